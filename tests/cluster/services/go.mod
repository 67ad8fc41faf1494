module pulumi-controller.test/services

go 1.26

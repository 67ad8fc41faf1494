module pulumi-controller.test/library

go 1.26

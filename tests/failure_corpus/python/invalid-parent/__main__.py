import pulumi


class Bucket(pulumi.ComponentResource):
    def __init__(self, name: str, opts: pulumi.ResourceOptions):
        super().__init__("example:storage:Bucket", name, None, opts)


Bucket("logs", pulumi.ResourceOptions(parent="storage"))

import pulumi


class Bucket(pulumi.ComponentResource):
    def __init__(self, name: str):
        super().__init__("example:storage:Bucket", name)


for zone in ["a", "b"]:
    Bucket("logs")

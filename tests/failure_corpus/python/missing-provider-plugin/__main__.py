import pulumi


class Password(pulumi.CustomResource):
    def __init__(self, name: str, length: int):
        super().__init__("vault-example:index:Password", name, {"length": length})


Password("password", 16)

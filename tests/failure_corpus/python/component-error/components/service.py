import pulumi


class Service(pulumi.ComponentResource):
    def __init__(self, name: str, port: int, opts: pulumi.ResourceOptions | None = None):
        super().__init__("example:app:Service", name, None, opts)
        self._check(port)
        self.register_outputs({"port": port})

    def _check(self, port: int):
        assert port <= 65535, f"invalid port {port}"

import pulumi

settings = pulumi.Output.from_input({"port": "http"})


def port(value):
    return int(value["port"])


pulumi.export("port", settings.apply(port))

import pulumi


class Greeting(pulumi.ComponentResource):
    """The component, which runs in the process of its own language."""

    text: pulumi.Output[str]

    def __init__(self, resource_name, name):
        inputs = {"name": name, "text": None}
        super().__init__("greetings:index:Greeting", resource_name, inputs, remote=True)


pulumi.export("text", Greeting("hello", "python").text)

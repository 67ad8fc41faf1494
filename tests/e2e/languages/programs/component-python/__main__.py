from typing import Optional, TypedDict

import pulumi
from pulumi.provider.experimental import component_provider_host


class GreetingArgs(TypedDict):
    name: pulumi.Input[str]


class Greeting(pulumi.ComponentResource):
    text: pulumi.Output[str]

    def __init__(
        self, name: str, args: GreetingArgs, opts: Optional[pulumi.ResourceOptions] = None
    ):
        super().__init__("greetings:index:Greeting", name, {}, opts)
        self.text = pulumi.Output.concat("python greets ", args["name"])
        self.register_outputs({"text": self.text})


if __name__ == "__main__":
    component_provider_host(name="greetings", components=[Greeting])

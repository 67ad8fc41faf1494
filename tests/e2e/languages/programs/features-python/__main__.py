import pulumi

config = pulumi.Config()


class Step(pulumi.CustomResource):
    """A resource of the test provider, which the CLI downloads from a server in the cluster."""

    def __init__(self, name, value, opts):
        opts = pulumi.ResourceOptions.merge(
            opts,
            pulumi.ResourceOptions(
                version="0.1.0", plugin_download_url=config.require("plugins")
            ),
        )
        super().__init__(
            "testing:index:Step", name, {"name": name, "value": value}, opts
        )


class Group(pulumi.ComponentResource):
    """A component with one child."""

    def __init__(self, name, value):
        super().__init__("features:index:Group", name)
        self.child = Step(f"{name}-child", value, pulumi.ResourceOptions(parent=self))
        self.register_outputs({"child": self.child.urn})


network = pulumi.StackReference(config.require("network"))
name = network.require_output("name")
group = Group("group", pulumi.Output.concat("one in ", name))
file = pulumi.FileAsset("greeting.txt")
archive = pulumi.AssetArchive({"greeting.txt": file})
stored = pulumi.Stash("stored", input={"file": file, "archive": archive})

pulumi.export("parent", group.urn)
pulumi.export("child", group.child.urn)
pulumi.export("reference", name)
pulumi.export("assets", stored.input)

import pulumi

config = pulumi.Config()

pulumi.export("zone", config.require("zone"))

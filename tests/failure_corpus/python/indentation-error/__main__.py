import pulumi

config = pulumi.Config()

if config.get("zone"):
pulumi.export("zone", config.get("zone"))

import pulumi

config = pulumi.Config()

pulumi.export("zone", config.get("zone") or "a"
pulumi.export("name", "web")

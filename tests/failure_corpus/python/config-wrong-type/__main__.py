import pulumi

config = pulumi.Config()

pulumi.export("replicas", config.require_int("replicas"))

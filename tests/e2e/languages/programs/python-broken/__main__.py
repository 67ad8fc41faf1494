import pulumi

pulumi.export("port", {}["http"])

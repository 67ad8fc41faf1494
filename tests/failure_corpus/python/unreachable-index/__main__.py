import pulumi

pulumi.export("zone", "a")

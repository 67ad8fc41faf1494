import pulumi

network = pulumi.StackReference("organization/network/production")

pulumi.export("vpc", network.require_output("vpc"))

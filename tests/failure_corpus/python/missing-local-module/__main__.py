import pulumi

from network.vpc import vpc_id

pulumi.export("vpc", vpc_id)

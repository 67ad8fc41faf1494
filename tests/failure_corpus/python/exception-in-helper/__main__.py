import pulumi

from network.subnets import subnets

pulumi.export("addresses", subnets("10.0.0.0/8", 300))

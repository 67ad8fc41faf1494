import pulumi

zones = {"a": {"subnets": ["10.0.0.0/24"]}}

pulumi.export("subnet", zones["b"]["subnets"][0])

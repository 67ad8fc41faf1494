import json

import pulumi

address = pulumi.Output.from_input("10.0.0.1")

pulumi.export("policy", json.dumps({"allow": address}))

from importlib.metadata import version

import pulumi

pulumi.export("version", version("six"))
pulumi.export("commit", "one")

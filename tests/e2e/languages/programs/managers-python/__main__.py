import os
import sys
from importlib.metadata import version

import pulumi

# This file contains the version of uv, if uv has created the environment.
with open(os.path.join(sys.prefix, "pyvenv.cfg")) as settings:
    is_of_uv = any(line.startswith("uv = ") for line in settings)
pulumi.export("environment", os.path.basename(sys.prefix))
pulumi.export("uv", is_of_uv)
pulumi.export("version", version("six"))
pulumi.export("commit", "one")

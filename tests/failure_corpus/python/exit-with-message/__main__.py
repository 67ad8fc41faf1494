import os
import sys

import pulumi

zone = os.environ.get("ZONE")
if not zone:
    sys.exit("Set ZONE to the name of a zone")
pulumi.export("zone", zone)

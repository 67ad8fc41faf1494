import os
import sys

import pulumi

zone = os.environ.get("ZONE")
if not zone:
    print("Set ZONE to the name of a zone", file=sys.stderr)
    sys.exit(1)
pulumi.export("zone", zone)

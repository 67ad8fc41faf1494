import os
import sys

if "ZONE" not in os.environ:
    sys.exit(3)

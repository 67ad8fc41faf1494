import json
from pathlib import Path

import pulumi

settings = json.loads(Path("settings.json").read_text())

pulumi.export("name", settings["name"])

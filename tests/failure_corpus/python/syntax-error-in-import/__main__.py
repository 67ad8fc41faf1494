import pulumi

from lib.tags import TAGS

pulumi.export("team", TAGS["team"])

import resource

import pulumi

LIMIT = 2 * 1024**3
resource.setrlimit(resource.RLIMIT_AS, (LIMIT, LIMIT))

table = bytearray(4 * 1024**3)
pulumi.export("size", len(table))

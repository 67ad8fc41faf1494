import pulumi

from network import Network

config = pulumi.Config()

network = Network("main", cidr=config.require("cidr"), zones=config.require_object("zones"))

# The address range of each subnet, by zone.
pulumi.export("subnets", network.subnets)

# The URL contains a secret value, so the output is secret as well.
password = config.require_secret("databasePassword")
pulumi.export("databaseUrl", pulumi.Output.concat("postgres://app:", password, "@database/app"))

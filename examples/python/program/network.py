import ipaddress
from typing import Dict, List, Optional

import pulumi


class Network(pulumi.ComponentResource):
    """A network with a subnet in each zone."""

    subnets: pulumi.Output[Dict[str, str]]
    """The address range of each subnet, by zone."""

    def __init__(
        self,
        name: str,
        cidr: str,
        zones: List[str],
        opts: Optional[pulumi.ResourceOptions] = None,
    ) -> None:
        super().__init__("example:index:Network", name, {}, opts)
        subnets = {}
        for index, zone in enumerate(zones):
            # A Stash stores a value in the state and needs no cloud account. Create the subnet of your cloud provider here.
            subnet = pulumi.Stash(
                f"{name}-{zone}",
                input=subnet_cidr(cidr, index),
                opts=pulumi.ResourceOptions(parent=self),
            )
            subnets[zone] = subnet.input
        self.subnets = pulumi.Output.from_input(subnets)
        self.register_outputs({"subnets": self.subnets})


def subnet_cidr(cidr: str, index: int) -> str:
    """Returns a subnet with 256 addresses: `subnet_cidr("10.20.0.0/16", 1)` is `10.20.1.0/24`."""
    subnets = list(ipaddress.ip_network(cidr).subnets(new_prefix=24))
    if index >= len(subnets):
        raise ValueError(f"{cidr} has no space for subnet {index}")
    return str(subnets[index])

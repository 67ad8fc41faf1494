import * as pulumi from "@pulumi/pulumi";

export interface NetworkArgs {
    /** The address range of the network, such as `10.20.0.0/16`. */
    cidr: string;
    /** The zones of the network. Each zone has a subnet. */
    zones: string[];
}

/** A network with a subnet in each zone. */
export class Network extends pulumi.ComponentResource {
    /** The address range of each subnet, by zone. */
    readonly subnets: pulumi.Output<Record<string, string>>;

    constructor(name: string, args: NetworkArgs, options?: pulumi.ComponentResourceOptions) {
        super("example:index:Network", name, {}, options);
        const subnets: Record<string, pulumi.Output<string>> = {};
        args.zones.forEach((zone, index) => {
            // A Stash stores a value in the state and needs no cloud account. Create the subnet of your cloud provider here.
            const subnet = new pulumi.Stash(`${name}-${zone}`, { input: subnetCidr(args.cidr, index) }, { parent: this });
            subnets[zone] = subnet.input as pulumi.Output<string>;
        });
        this.subnets = pulumi.output(subnets);
        this.registerOutputs({ subnets: this.subnets });
    }
}

/** Returns a subnet with 256 addresses: `subnetCidr("10.20.0.0/16", 1)` is `10.20.1.0/24`. */
export function subnetCidr(cidr: string, index: number): string {
    const [address, prefix] = cidr.split("/");
    if (index >= 2 ** (24 - Number(prefix))) {
        throw new RangeError(`${cidr} has no space for subnet ${index}`);
    }
    const first = address.split(".").reduce((sum, octet) => sum * 256 + Number(octet), 0) + index * 256;
    const octets = [24, 16, 8, 0].map((bits) => Math.floor(first / 2 ** bits) % 256);
    return `${octets.join(".")}/24`;
}

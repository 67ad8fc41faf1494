package main

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/pulumi/pulumi/sdk/v3/go/pulumi"
)

// NetworkArgs are the arguments of a Network.
type NetworkArgs struct {
	// CIDR is the address range of the network, such as `10.20.0.0/16`.
	CIDR string
	// Zones are the zones of the network. Each zone has a subnet.
	Zones []string
}

// Network is a network with a subnet in each zone.
type Network struct {
	pulumi.ResourceState

	// Subnets are the address ranges of the subnets, by zone.
	Subnets pulumi.StringMapOutput `pulumi:"subnets"`
}

// NewNetwork creates a Network.
func NewNetwork(ctx *pulumi.Context, name string, args *NetworkArgs, opts ...pulumi.ResourceOption) (*Network, error) {
	network := &Network{}
	if err := ctx.RegisterComponentResource("example:index:Network", name, network, opts...); err != nil {
		return nil, err
	}
	subnets := pulumi.StringMap{}
	for index, zone := range args.Zones {
		cidr, err := subnetCIDR(args.CIDR, index)
		if err != nil {
			return nil, err
		}
		// A Stash stores a value in the state and needs no cloud account. Create the subnet of your cloud provider here.
		subnet, err := pulumi.NewStash(ctx, name+"-"+zone, &pulumi.StashArgs{Input: pulumi.String(cidr)}, pulumi.Parent(network))
		if err != nil {
			return nil, err
		}
		subnets[zone] = subnet.Input.AsStringOutput()
	}
	network.Subnets = subnets.ToStringMapOutput()
	return network, ctx.RegisterResourceOutputs(network, pulumi.Map{"subnets": network.Subnets})
}

// subnetCIDR returns a subnet with 256 addresses: for `10.20.0.0/16` and 1, `10.20.1.0/24`.
func subnetCIDR(cidr string, index int) (string, error) {
	network, err := netip.ParsePrefix(cidr)
	if err != nil {
		return "", err
	}
	if bits := 24 - network.Bits(); bits < 0 || index >= 1<<bits {
		return "", fmt.Errorf("%s has no space for subnet %d", cidr, index)
	}
	first := network.Masked().Addr().As4()
	var address [4]byte
	binary.BigEndian.PutUint32(address[:], binary.BigEndian.Uint32(first[:])+uint32(index)<<8)
	return netip.PrefixFrom(netip.AddrFrom4(address), 24).String(), nil
}

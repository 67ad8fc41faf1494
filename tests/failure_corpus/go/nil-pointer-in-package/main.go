package main

import (
	"failure/network"
	"github.com/pulumi/pulumi/sdk/v3/go/pulumi"
)

func main() {
	pulumi.Run(func(ctx *pulumi.Context) error {
		vpc := network.Find("backend")
		ctx.Export("subnet", pulumi.String(network.Subnet(vpc)))
		return nil
	})
}

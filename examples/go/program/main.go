package main

import (
	"github.com/pulumi/pulumi/sdk/v3/go/pulumi"
	"github.com/pulumi/pulumi/sdk/v3/go/pulumi/config"
)

func main() {
	pulumi.Run(func(ctx *pulumi.Context) error {
		conf := config.New(ctx, "")
		var zones []string
		conf.RequireObject("zones", &zones)

		network, err := NewNetwork(ctx, "main", &NetworkArgs{CIDR: conf.Require("cidr"), Zones: zones})
		if err != nil {
			return err
		}

		// The address range of each subnet, by zone.
		ctx.Export("subnets", network.Subnets)

		// The URL contains a secret value, so the output is secret as well.
		password := conf.RequireSecret("databasePassword")
		ctx.Export("databaseUrl", pulumi.Sprintf("postgres://app:%s@database/app", password))
		return nil
	})
}

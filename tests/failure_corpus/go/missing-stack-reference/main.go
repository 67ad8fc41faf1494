package main

import (
	"github.com/pulumi/pulumi/sdk/v3/go/pulumi"
)

func main() {
	pulumi.Run(func(ctx *pulumi.Context) error {
		network, err := pulumi.NewStackReference(ctx, "organization/network/production", nil)
		if err != nil {
			return err
		}
		ctx.Export("vpc", network.GetOutput(pulumi.String("vpc")))
		return nil
	})
}

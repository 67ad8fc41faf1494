package main

import (
	"github.com/pulumi/pulumi/sdk/v3/go/pulumi"
	"github.com/pulumi/pulumi/sdk/v3/go/pulumi/config"
)

func main() {
	pulumi.Run(func(ctx *pulumi.Context) error {
		cfg := config.New(ctx, "")
		replicas := cfg.RequireInt("replicas")
		ctx.Export("replicas", pulumi.Int(replicas))
		return nil
	})
}

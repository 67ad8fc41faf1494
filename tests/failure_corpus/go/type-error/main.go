package main

import (
	"github.com/pulumi/pulumi/sdk/v3/go/pulumi"
)

func main() {
	pulumi.Run(func(ctx *pulumi.Context) error {
		replicas := "3"
		ctx.Export("replicas", pulumi.Int(replicas))
		return nil
	})
}

package main

import (
	"github.com/pulumi/pulumi/sdk/v3/go/pulumi"
)

func main() {
	pulumi.Run(func(ctx *pulumi.Context) error {
		var password pulumi.CustomResourceState
		err := ctx.RegisterResource("vault-example:index:Password", "password", pulumi.Map{"length": pulumi.Int(16)}, &password)
		if err != nil {
			return err
		}
		return nil
	})
}

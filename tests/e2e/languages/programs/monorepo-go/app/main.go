package main

import (
	"github.com/pulumi/pulumi/sdk/v3/go/pulumi"

	"pulumi-controller.test/library"
)

func main() {
	pulumi.Run(func(ctx *pulumi.Context) error {
		ctx.Export("library", pulumi.String(library.Text))
		return nil
	})
}

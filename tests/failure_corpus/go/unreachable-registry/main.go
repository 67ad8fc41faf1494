package main

import (
	"github.com/pulumi/pulumi/sdk/v3/go/pulumi"
	"rsc.io/quote"
)

func main() {
	pulumi.Run(func(ctx *pulumi.Context) error {
		ctx.Export("name", pulumi.String(quote.Go()))
		return nil
	})
}

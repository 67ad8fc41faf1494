package main

import (
	"github.com/google/uuid"
	"github.com/pulumi/pulumi/sdk/v3/go/pulumi"
	"rsc.io/quote"
)

func main() {
	pulumi.Run(func(ctx *pulumi.Context) error {
		id := uuid.New().String()
		ctx.Export("id", pulumi.String(quote.Go() + id))
		return nil
	})
}

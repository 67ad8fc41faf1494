package main

import (
	"log"
	"os"

	"github.com/pulumi/pulumi/sdk/v3/go/pulumi"
)

func main() {
	pulumi.Run(func(ctx *pulumi.Context) error {
		key, err := os.ReadFile("keys/deploy.pub")
		if err != nil {
			log.Fatalf("cannot read the deploy key: %v", err)
		}
		ctx.Export("key", pulumi.String(key))
		return nil
	})
}

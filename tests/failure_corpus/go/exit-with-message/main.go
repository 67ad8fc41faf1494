package main

import (
	"fmt"
	"os"

	"github.com/pulumi/pulumi/sdk/v3/go/pulumi"
)

func main() {
	pulumi.Run(func(ctx *pulumi.Context) error {
		if os.Getenv("ZONE") == "" {
			fmt.Fprintln(os.Stderr, "set ZONE to the name of a zone")
			os.Exit(1)
		}
		ctx.Export("zone", pulumi.String(os.Getenv("ZONE")))
		return nil
	})
}

package main

import (
	"os"

	"github.com/pulumi/pulumi/sdk/v3/go/pulumi"
)

func main() {
	pulumi.Run(func(ctx *pulumi.Context) error {
		if _, isSet := os.LookupEnv("ZONE"); !isSet {
			os.Exit(3)
		}
		return nil
	})
}

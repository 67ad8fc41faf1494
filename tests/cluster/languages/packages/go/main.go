// This program imports the packages that the Go programs of the tests use, so that `go mod tidy` keeps their modules.
package main

import (
	"github.com/pulumi/pulumi/sdk/v3/go/pulumi"
	"github.com/pulumi/pulumi/sdk/v3/go/pulumi/config"
)

func main() {
	pulumi.Run(func(ctx *pulumi.Context) error {
		_ = config.New(ctx, "")
		return nil
	})
}

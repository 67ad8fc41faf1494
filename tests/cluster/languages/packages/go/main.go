// The Go programs of the tests use go.mod and go.sum of this directory. This program imports the packages that these
// programs import, so that `go mod tidy` does not remove their modules from these files.
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

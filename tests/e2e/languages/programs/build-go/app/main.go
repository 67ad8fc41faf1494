package main

import (
	"os"

	"github.com/pulumi/pulumi/sdk/v3/go/pulumi"

	"pulumi-controller.test/library"
)

func main() {
	pulumi.Run(func(ctx *pulumi.Context) error {
		executable, err := os.Executable()
		if err != nil {
			return err
		}
		ctx.Export("executable", pulumi.String(executable))
		ctx.Export("library", pulumi.String(library.Text))
		return nil
	})
}

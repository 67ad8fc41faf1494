package main

import (
	"errors"
	"runtime/debug"

	"github.com/mattn/go-shellwords"
	"github.com/pulumi/pulumi/sdk/v3/go/pulumi"
)

func main() {
	pulumi.Run(func(ctx *pulumi.Context) error {
		if _, err := shellwords.Parse("a b"); err != nil {
			return err
		}
		build, exists := debug.ReadBuildInfo()
		if !exists {
			return errors.New("the program has no build information")
		}
		for _, module := range build.Deps {
			if module.Path == "github.com/mattn/go-shellwords" {
				ctx.Export("version", pulumi.String(module.Version))
			}
		}
		ctx.Export("commit", pulumi.String("one"))
		return nil
	})
}

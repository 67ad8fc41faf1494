package main

import (
	"github.com/pulumi/pulumi/sdk/v3/go/pulumi"
)

func main() {
	pulumi.Run(func(ctx *pulumi.Context) error {
		var tags map[string]string
		tags["team"] = "platform"
		ctx.Export("team", pulumi.String(tags["team"]))
		return nil
	})
}

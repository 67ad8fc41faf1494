package main

import (
	"github.com/pulumi/pulumi/sdk/v3/go/pulumi"
)

func main() {
	pulumi.Run(func(ctx *pulumi.Context) error {
		var settings any = map[string]any{"port": "8080"}
		port := pulumi.ToOutput(settings).ApplyT(func(value any) int {
			return value.(map[string]any)["port"].(int)
		})
		ctx.Export("port", port)
		return nil
	})
}

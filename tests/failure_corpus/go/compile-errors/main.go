package main

import (
	"fmt"

	"github.com/pulumi/pulumi/sdk/v3/go/pulumi"
)

func main() {
	pulumi.Run(func(ctx *pulumi.Context) error {
		name := "web"
		replicas := 3
		var port int = "80"
		ctx.Export("bucket", buckt)
		ctx.Export("port", pulumi.Itn(port))
		return nil
	})
}

package main

import (
	"github.com/pulumi/pulumi/sdk/v3/go/pulumi"
	"github.com/pulumi/pulumi/sdk/v3/go/pulumi/config"
)

func main() {
	pulumi.Run(func(ctx *pulumi.Context) error {
		conf := config.New(ctx, "")
		ctx.Export("greeting", pulumi.String(conf.Require("greeting")))
		ctx.Export("password", conf.RequireSecret("password"))
		ctx.Export("version", pulumi.String("one"))
		return nil
	})
}

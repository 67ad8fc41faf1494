package main

import (
	"strconv"

	"github.com/pulumi/pulumi/sdk/v3/go/pulumi"
)

func main() {
	pulumi.Run(func(ctx *pulumi.Context) error {
		port := pulumi.String("http").ToStringOutput().ApplyT(func(name string) (int, error) {
			return strconv.Atoi(name)
		}).(pulumi.IntOutput)
		ctx.Export("port", port)
		return nil
	})
}

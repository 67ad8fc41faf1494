package main

import (
	"failure/service"
	"github.com/pulumi/pulumi/sdk/v3/go/pulumi"
)

func main() {
	pulumi.Run(func(ctx *pulumi.Context) error {
		if _, err := service.New(ctx, "web", service.Arguments{Port: 99999}); err != nil {
			return err
		}
		return nil
	})
}

package main

import (
	"fmt"

	"github.com/pulumi/pulumi/sdk/v3/go/pulumi"
)

type bucket struct {
	pulumi.ResourceState
}

func main() {
	pulumi.Run(func(ctx *pulumi.Context) error {
		for _, zone := range []string{"a", "b"} {
			err := ctx.RegisterComponentResource("example:storage:Bucket", "logs", &bucket{})
			if err != nil {
				return fmt.Errorf("create the bucket of zone %s: %w", zone, err)
			}
		}
		return nil
	})
}

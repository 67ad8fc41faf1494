package main

import (
	"github.com/pulumi/pulumi/sdk/v3/go/pulumi"
)

// Step is a resource of the test provider.
type Step struct {
	pulumi.CustomResourceState

	Count pulumi.IntOutput `pulumi:"count"`
}

func main() {
	pulumi.Run(func(ctx *pulumi.Context) error {
		step := &Step{}
		inputs := pulumi.Map{"name": pulumi.String("step"), "value": pulumi.String("one")}
		if err := ctx.RegisterResource("testing:index:Step", "step", inputs, step); err != nil {
			return err
		}
		ctx.Export("count", step.Count)
		return nil
	})
}

package main

import (
	"github.com/pulumi/pulumi/sdk/v3/go/pulumi"
)

// Greeting is a component that runs in the process of its own language.
type Greeting struct {
	pulumi.ResourceState

	Text pulumi.StringOutput `pulumi:"text"`
}

func main() {
	pulumi.Run(func(ctx *pulumi.Context) error {
		greeting := &Greeting{}
		inputs := pulumi.Map{"name": pulumi.String("go")}
		if err := ctx.RegisterRemoteComponentResource("greetings:index:Greeting", "hello", inputs, greeting); err != nil {
			return err
		}
		ctx.Export("text", greeting.Text)
		return nil
	})
}

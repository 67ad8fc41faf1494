package main

import (
	"github.com/pulumi/pulumi/sdk/v3/go/pulumi"
	"github.com/pulumi/pulumi/sdk/v3/go/pulumi/config"
)

// Step is a resource of the test provider, which the CLI downloads from a server in the cluster.
type Step struct {
	pulumi.CustomResourceState
}

// Group is a component with one child.
type Group struct {
	pulumi.ResourceState

	child Step
}

func newGroup(ctx *pulumi.Context, name string, value pulumi.StringInput) (*Group, error) {
	group := &Group{}
	if err := ctx.RegisterComponentResource("features:index:Group", name, group); err != nil {
		return nil, err
	}
	inputs := pulumi.Map{"name": pulumi.String(name + "-child"), "value": value}
	err := ctx.RegisterResource("testing:index:Step", name+"-child", inputs, &group.child,
		pulumi.Parent(group), pulumi.Version("0.1.0"), pulumi.PluginDownloadURL(config.Require(ctx, "plugins")))
	if err != nil {
		return nil, err
	}
	return group, ctx.RegisterResourceOutputs(group, pulumi.Map{"child": group.child.URN()})
}

func main() {
	pulumi.Run(func(ctx *pulumi.Context) error {
		network, err := pulumi.NewStackReference(ctx, config.Require(ctx, "network"), nil)
		if err != nil {
			return err
		}
		name := network.GetStringOutput(pulumi.String("name"))
		group, err := newGroup(ctx, "group", pulumi.Sprintf("one in %s", name))
		if err != nil {
			return err
		}
		file := pulumi.NewFileAsset("greeting.txt")
		archive := pulumi.NewAssetArchive(map[string]interface{}{"greeting.txt": file})
		stored, err := pulumi.NewStash(ctx, "stored", &pulumi.StashArgs{Input: pulumi.Map{"file": file, "archive": archive}})
		if err != nil {
			return err
		}
		ctx.Export("parent", group.URN())
		ctx.Export("child", group.child.URN())
		ctx.Export("reference", name)
		ctx.Export("assets", stored.Input)
		return nil
	})
}

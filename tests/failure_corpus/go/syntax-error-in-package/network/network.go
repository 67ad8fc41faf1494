package network

import "github.com/pulumi/pulumi/sdk/v3/go/pulumi"

// Name returns the name of the network of an application.
func Name(application string) pulumi.StringInput {
	if application == "" 
		return pulumi.String("default")
	}
	return pulumi.String(application + "-network")
}

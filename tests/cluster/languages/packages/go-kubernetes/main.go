// The example kubernetes-go uses the modules in go.mod and go.sum of this directory. This program imports the same
// packages, so that `go mod tidy` does not remove their modules from these files.
package main

import (
	_ "github.com/pulumi/pulumi-kubernetes/sdk/v4/go/kubernetes/apps/v1"
	_ "github.com/pulumi/pulumi-kubernetes/sdk/v4/go/kubernetes/core/v1"
	_ "github.com/pulumi/pulumi-kubernetes/sdk/v4/go/kubernetes/meta/v1"
	"github.com/pulumi/pulumi/sdk/v3/go/pulumi"
	_ "github.com/pulumi/pulumi/sdk/v3/go/pulumi/config"
)

func main() {
	pulumi.Run(func(*pulumi.Context) error { return nil })
}

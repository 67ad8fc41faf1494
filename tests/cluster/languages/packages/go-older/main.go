// The program lock-go of the tests uses go.mod and go.sum of this directory. This program imports the same packages, so
// that `go mod tidy` does not remove their modules from these files.
package main

import (
	"github.com/mattn/go-shellwords"
	"github.com/pulumi/pulumi/sdk/v3/go/pulumi"
)

func main() {
	pulumi.Run(func(*pulumi.Context) error {
		_, err := shellwords.Parse("")
		return err
	})
}

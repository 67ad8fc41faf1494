// This program imports the packages of the Go programs that change their module files, so that `go mod tidy` keeps their modules.
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

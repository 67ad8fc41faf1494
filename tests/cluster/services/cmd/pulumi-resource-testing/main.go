// Command pulumi-resource-testing is a Pulumi provider whose resources can be slow, fail or be cancelled. It reports
// its operations to the provider log. The Pulumi CLI finds the program by its name on the PATH and starts it.
package main

import (
	"context"
	"fmt"
	"os"

	"pulumi-controller.test/services/testprovider"
)

func main() {
	provider, err := testprovider.New()
	if err == nil {
		err = provider.Run(context.Background(), testprovider.Name, testprovider.Version)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "pulumi-resource-testing:", err)
		os.Exit(1)
	}
}

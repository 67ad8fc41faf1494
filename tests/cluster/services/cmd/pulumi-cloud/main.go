// Command pulumi-cloud serves the part of the API of Pulumi Cloud that the Pulumi CLI uses.
package main

import (
	"flag"
	"fmt"
	"os"

	"pulumi-controller.test/services/httpserver"
	"pulumi-controller.test/services/pulumicloud"
)

func main() {
	address := flag.String("addr", ":80", "address to listen on")
	root := flag.String("root", "", "directory that contains the state; created if it does not exist")
	flag.Parse()
	if flag.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "pulumi-cloud: unexpected argument %q; see --help\n", flag.Arg(0))
		os.Exit(2)
	}
	if err := run(*address, *root); err != nil {
		fmt.Fprintln(os.Stderr, "pulumi-cloud:", err)
		os.Exit(1)
	}
}

func run(address, root string) error {
	server, err := pulumicloud.New(root)
	if err != nil {
		return err
	}
	return httpserver.Run(address, server.Handler())
}

// Command provider-log stores the events of the test provider in memory and serves queries for them.
package main

import (
	"flag"
	"fmt"
	"os"

	"pulumi-controller.test/services/eventlog"
	"pulumi-controller.test/services/httpserver"
)

const capacity = 100_000

func main() {
	address := flag.String("addr", ":80", "address to listen on")
	flag.Parse()
	if flag.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "provider-log: unexpected argument %q; see --help\n", flag.Arg(0))
		os.Exit(2)
	}
	if err := httpserver.Run(*address, eventlog.New(capacity).Handler()); err != nil {
		fmt.Fprintln(os.Stderr, "provider-log:", err)
		os.Exit(1)
	}
}

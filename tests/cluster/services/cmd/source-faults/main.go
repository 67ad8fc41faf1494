// Command source-faults serves artifacts with the faults that a test selects, such as truncated, slow, stalled and
// endless responses.
package main

import (
	"flag"
	"fmt"
	"os"

	"pulumi-controller.test/services/faultserver"
	"pulumi-controller.test/services/httpserver"
)

// capacity is the maximum total size of all uploads in bytes.
const capacity = 256 << 20

func main() {
	address := flag.String("addr", ":80", "address to listen on")
	flag.Parse()
	if flag.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "source-faults: unexpected argument %q; see --help\n", flag.Arg(0))
		os.Exit(2)
	}
	if err := httpserver.Run(*address, faultserver.New(capacity).Handler()); err != nil {
		fmt.Fprintln(os.Stderr, "source-faults:", err)
		os.Exit(1)
	}
}

// Command git-server serves bare Git repositories over HTTP for anonymous reads and writes.
package main

import (
	"flag"
	"fmt"
	"net/http"
	"os"

	"pulumi-controller.test/services/gitserver"
	"pulumi-controller.test/services/httpserver"
)

func main() {
	address := flag.String("addr", ":80", "address to listen on")
	root := flag.String("root", "", "directory that contains the repositories; created if it does not exist")
	flag.Parse()
	if flag.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "git-server: unexpected argument %q; see --help\n", flag.Arg(0))
		os.Exit(2)
	}
	if err := run(*address, *root); err != nil {
		fmt.Fprintln(os.Stderr, "git-server:", err)
		os.Exit(1)
	}
}

func run(address, root string) error {
	server, err := gitserver.New(root)
	if err != nil {
		return err
	}
	routes := http.NewServeMux()
	routes.HandleFunc("GET /healthz", func(response http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(response, "ok")
	})
	routes.Handle("/", server)
	return httpserver.Run(address, routes)
}

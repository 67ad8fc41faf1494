// Command package-server serves packages for npm, pip and Go.
package main

import (
	"flag"
	"fmt"
	"net/http"
	"os"

	"pulumi-controller.test/services/httpserver"
	"pulumi-controller.test/services/packageserver"
)

func main() {
	address := flag.String("addr", ":80", "address to listen on")
	tlsAddress := flag.String("tls-addr", ":443", "address to listen on for HTTPS")
	host := flag.String("host", "packages.test-services", "host name in the certificate")
	root := flag.String("root", "", "directory that contains the packages")
	token := flag.String("token", "", "token that requests below /private must contain; without this flag, these paths are not served")
	flag.Parse()
	if flag.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "package-server: unexpected argument %q; see --help\n", flag.Arg(0))
		os.Exit(2)
	}
	if err := run(*address, *tlsAddress, *host, *root, *token); err != nil {
		fmt.Fprintln(os.Stderr, "package-server:", err)
		os.Exit(1)
	}
}

func run(address, tlsAddress, host, root, token string) error {
	server, err := packageserver.New(root, token)
	if err != nil {
		return err
	}
	routes := http.NewServeMux()
	routes.HandleFunc("GET /healthz", func(response http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(response, "ok")
	})
	routes.Handle("/", server)
	return httpserver.RunWithTLS(address, tlsAddress, host, routes)
}

// Command package-mirror downloads the packages in lock files for package-server.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"pulumi-controller.test/services/packagemirror"
)

func main() {
	target := flag.String("to", "", "directory for the packages")
	npmRegistry := flag.String("npm-registry", "https://registry.npmjs.org", "address of the npm registry")
	index := flag.String("index", "https://pypi.org/simple", "address of the Python package index")
	var locks, requirements []string
	flag.Func("npm", "package-lock.json to mirror; can be repeated", appendTo(&locks))
	flag.Func("pypi", "requirements file with hashes and file names to mirror; can be repeated", appendTo(&requirements))
	flag.Parse()
	if flag.NArg() > 0 || *target == "" {
		fmt.Fprintln(os.Stderr, "package-mirror: --to is required, and other arguments must be flags; see --help")
		os.Exit(2)
	}
	var failures []error
	for _, lock := range locks {
		failures = append(failures, packagemirror.NPM(context.Background(), lock, *npmRegistry, filepath.Join(*target, "npm")))
	}
	for _, lock := range requirements {
		failures = append(failures, packagemirror.PyPI(context.Background(), lock, *index, filepath.Join(*target, "pypi")))
	}
	if err := errors.Join(failures...); err != nil {
		fmt.Fprintln(os.Stderr, "package-mirror:", err)
		os.Exit(1)
	}
}

func appendTo(list *[]string) func(string) error {
	return func(value string) error {
		*list = append(*list, value)
		return nil
	}
}

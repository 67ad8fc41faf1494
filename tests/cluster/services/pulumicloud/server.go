// Package pulumicloud implements the part of the API of Pulumi Cloud that the Pulumi CLI uses. It stores its state in a
// directory, and misbehaves if a test requests it.
package pulumicloud

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"sync"
)

// Server is the state of the handler.
//
// The lock of a stack is acquired before mutex. A handler that holds mutex never acquires the lock of a stack.
type Server struct {
	root string

	// mutex guards the following fields.
	mutex        sync.Mutex
	accounts     accounts
	stacks       map[stackID]*stack
	environments map[environmentID]*environment

	// observing guards the following fields, which are not stored.
	observing sync.Mutex
	requests  map[string][]Request
	faults    map[string][]*Fault
	lastFault int
}

// New returns a server with the state in a directory.
func New(root string) (*Server, error) {
	if root == "" {
		return nil, errors.New("the directory of the state is not set: use --root DIR")
	}
	root, err := filepath.Abs(root)
	if err != nil {
		return nil, fmt.Errorf("failed to find the directory %s: %w", root, err)
	}
	server := &Server{root: root, requests: map[string][]Request{}, faults: map[string][]*Fault{}}
	for _, folder := range []string{"stacks", "environments", "sessions", "packs"} {
		if err := os.MkdirAll(filepath.Join(root, folder), 0o755); err != nil {
			return nil, fmt.Errorf("failed to create the directory of the state: %w", err)
		}
	}
	if err := removeUnfinished(root); err != nil {
		return nil, err
	}
	if err := errors.Join(server.loadAccounts(), server.loadStacks(), server.loadEnvironments()); err != nil {
		return nil, err
	}
	return server, nil
}

// Handler serves the API below /api, accepts settings below /control, and serves pages of the console at all other
// paths.
func (server *Server) Handler() http.Handler {
	api := http.NewServeMux()
	server.addAccountRoutes(api)
	server.addStackRoutes(api)
	server.addUpdateRoutes(api)
	server.addPolicyRoutes(api)
	server.addEnvironmentRoutes(api)
	api.Handle("POST /api/oauth/token", server.open(server.exchangeToken))
	api.Handle("GET /api/capabilities", server.open(server.capabilities))
	api.Handle("GET /api/cli/version", server.open(newestVersion))
	api.Handle("/", server.open(func(call *call) error {
		return failure(http.StatusNotFound, "the test server does not implement %s %s", call.Method, call.URL.Path)
	}))

	routes := http.NewServeMux()
	routes.Handle("/api/", server.observe(withShortPaths(api)))
	routes.Handle("/control/", server.control())
	routes.HandleFunc("GET /healthz", func(response http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(response, "ok")
	})
	routes.HandleFunc("/", server.console)
	return routes
}

// Command transit-server serves the transit secrets engine of HashiCorp Vault with the HTTP API of Vault, without the
// other parts of Vault. A complete Vault server has several hundred dependencies, which the secrets provider
// `hashivault` of Pulumi does not need.
package main

import (
	"context"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/vault/builtin/logical/transit"
	"github.com/hashicorp/vault/sdk/logical"
)

const (
	mountPath  = "transit/"
	apiPath    = "/v1/"
	healthPath = "/v1/sys/health"
	maxBody    = 4 * 1024 * 1024
	// finishTime is the timeout for open requests at shutdown.
	finishTime = time.Second
	leaseTime  = time.Hour
)

func main() {
	address := flag.String("addr", ":8200", "address to listen on")
	token := flag.String("token", "", "token that each request must contain")
	flag.Parse()
	if flag.NArg() > 0 || *token == "" {
		fmt.Fprintln(os.Stderr, "transit-server: --token is required, and other arguments must be flags; see --help")
		os.Exit(2)
	}
	if err := run(*address, *token); err != nil {
		fmt.Fprintln(os.Stderr, "transit-server:", err)
		os.Exit(1)
	}
}

// run serves until SIGTERM or SIGINT.
func run(address, token string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	engine, err := newEngine(ctx)
	if err != nil {
		return fmt.Errorf("failed to start the transit engine: %w", err)
	}
	engine.token = token
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("failed to listen on %s: %w", address, err)
	}
	server := &http.Server{Handler: engine, ReadHeaderTimeout: 10 * time.Second}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	select {
	case err := <-served:
		return fmt.Errorf("failed to serve on %s: %w", listener.Addr(), err)
	case <-ctx.Done():
	}
	finish, cancel := context.WithTimeout(context.Background(), finishTime)
	defer cancel()
	if err := server.Shutdown(finish); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("failed to close the server on %s: %w", listener.Addr(), err)
	}
	return nil
}

// engine is a transit engine that stores its keys in memory.
type engine struct {
	backend logical.Backend
	storage logical.Storage
	token   string
}

func newEngine(ctx context.Context) (*engine, error) {
	storage := &logical.InmemStorage{}
	backend, err := transit.Factory(ctx, &logical.BackendConfig{
		StorageView: storage,
		Logger:      hclog.NewNullLogger(),
		System:      &logical.StaticSystemView{DefaultLeaseTTLVal: leaseTime, MaxLeaseTTLVal: leaseTime},
		Config:      map[string]string{},
	})
	if err != nil {
		return nil, err
	}
	if err := backend.Initialize(ctx, &logical.InitializationRequest{Storage: storage}); err != nil {
		return nil, err
	}
	return &engine{backend: backend, storage: storage}, nil
}

func (e *engine) ServeHTTP(response http.ResponseWriter, request *http.Request) {
	if request.URL.Path == healthPath {
		writeJSON(response, http.StatusOK, map[string]any{"initialized": true, "sealed": false})
		return
	}
	if subtle.ConstantTimeCompare([]byte(request.Header.Get("X-Vault-Token")), []byte(e.token)) != 1 {
		writeErrors(response, http.StatusForbidden, "permission denied")
		return
	}
	path, isMounted := strings.CutPrefix(request.URL.Path, apiPath+mountPath)
	if !isMounted {
		writeErrors(response, http.StatusNotFound, fmt.Sprintf("no handler for route %q", strings.TrimPrefix(request.URL.Path, apiPath)))
		return
	}
	call, err := e.call(response, request, path)
	if err != nil {
		writeErrors(response, http.StatusBadRequest, err.Error())
		return
	}
	result, err := e.backend.HandleRequest(request.Context(), call)
	status, err := logical.RespondErrorCommon(call, result, err)
	switch {
	case err != nil:
		writeErrors(response, status, err.Error())
	case status != 0:
		writeErrors(response, status)
	case result == nil || result.Data == nil:
		response.WriteHeader(http.StatusNoContent)
	default:
		writeJSON(response, http.StatusOK, map[string]any{"data": result.Data, "warnings": result.Warnings})
	}
}

// call converts an HTTP request as Vault does: a write to an object that does not exist is a creation.
func (e *engine) call(response http.ResponseWriter, request *http.Request, path string) (*logical.Request, error) {
	call := &logical.Request{Path: path, Storage: e.storage, MountPoint: mountPath, Data: map[string]any{}}
	switch request.Method {
	case http.MethodGet:
		call.Operation = logical.ReadOperation
		if request.URL.Query().Get("list") == "true" {
			call.Operation = logical.ListOperation
		}
		return call, nil
	case "LIST":
		call.Operation = logical.ListOperation
		return call, nil
	case http.MethodDelete:
		call.Operation = logical.DeleteOperation
		return call, nil
	case http.MethodPut, http.MethodPost:
		call.Operation = logical.UpdateOperation
	default:
		return nil, fmt.Errorf("unsupported method %s", request.Method)
	}
	decoder := json.NewDecoder(http.MaxBytesReader(response, request.Body, maxBody))
	decoder.UseNumber()
	if err := decoder.Decode(&call.Data); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("failed to parse the body as a JSON object: %w", err)
	}
	checked, exists, err := e.backend.HandleExistenceCheck(request.Context(), call)
	if err != nil {
		return nil, err
	}
	if checked && !exists {
		call.Operation = logical.CreateOperation
	}
	return call, nil
}

func writeErrors(response http.ResponseWriter, status int, messages ...string) {
	if messages == nil {
		messages = []string{}
	}
	writeJSON(response, status, map[string][]string{"errors": messages})
}

func writeJSON(response http.ResponseWriter, status int, body any) {
	response.Header().Set("Content-Type", "application/json")
	response.WriteHeader(status)
	_ = json.NewEncoder(response).Encode(body)
}

// Command dex is an OIDC issuer for tests: the server of Dex with one client, one user with a password, and storage in
// memory. The program of Dex supports SQLite and therefore needs cgo, which the test cluster does not use.
//
// PUT /control/id-tokens?lifetime=DURATION sets the lifetime of the ID tokens that the issuer issues from then on.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	gosundheit "github.com/AppsFlyer/go-sundheit"
	"github.com/dexidp/dex/server"
	"github.com/dexidp/dex/storage"
	"github.com/dexidp/dex/storage/memory"
	"golang.org/x/crypto/bcrypt"
)

const (
	// firstLifetime is the lifetime of ID tokens until a request changes the lifetime.
	firstLifetime = time.Hour
	// finishTime is the timeout for open requests at shutdown.
	finishTime = time.Second
)

// settings are the flags of the program.
type settings struct {
	address, certificate, key                       string
	issuer, clientID, clientSecretFile, redirectURL string
	email, password                                 string
}

func main() {
	var values settings
	flag.StringVar(&values.address, "addr", ":5554", "address for HTTPS")
	flag.StringVar(&values.certificate, "tls-cert", "", "file with the certificate of the server")
	flag.StringVar(&values.key, "tls-key", "", "file with the key of the certificate")
	flag.StringVar(&values.issuer, "issuer", "", "URL of the issuer")
	flag.StringVar(&values.clientID, "client-id", "", "ID of the client")
	flag.StringVar(&values.clientSecretFile, "client-secret-file", "", "file with the secret of the client")
	flag.StringVar(&values.redirectURL, "redirect-url", "", "URL of the client to which the issuer redirects users")
	flag.StringVar(&values.email, "email", "", "email address of the user")
	flag.StringVar(&values.password, "password", "", "password of the user")
	flag.Parse()
	isComplete := true
	flag.VisitAll(func(each *flag.Flag) { isComplete = isComplete && each.Value.String() != "" })
	if flag.NArg() > 0 || !isComplete {
		fmt.Fprintln(os.Stderr, "dex: all flags are required, and other arguments are not supported; see --help")
		os.Exit(2)
	}
	if err := run(values); err != nil {
		fmt.Fprintln(os.Stderr, "dex:", err)
		os.Exit(1)
	}
}

// run serves until SIGTERM or SIGINT.
func run(values settings) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	config, err := newConfig(values)
	if err != nil {
		return fmt.Errorf("failed to configure the issuer: %w", err)
	}
	dex := &issuer{ctx: ctx, config: config}
	if err := dex.setLifetime(firstLifetime); err != nil {
		return fmt.Errorf("failed to start the issuer: %w", err)
	}
	listener, err := net.Listen("tcp", values.address)
	if err != nil {
		return fmt.Errorf("failed to listen on %s: %w", values.address, err)
	}
	web := &http.Server{Handler: dex.handler(), ReadHeaderTimeout: 10 * time.Second}
	served := make(chan error, 1)
	go func() { served <- web.ServeTLS(listener, values.certificate, values.key) }()
	select {
	case err := <-served:
		return fmt.Errorf("failed to serve on %s: %w", listener.Addr(), err)
	case <-ctx.Done():
	}
	finish, cancel := context.WithTimeout(context.Background(), finishTime)
	defer cancel()
	if err := web.Shutdown(finish); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("failed to close the server on %s: %w", listener.Addr(), err)
	}
	return nil
}

// newConfig returns the configuration that `dex serve` would read from a file with `storage.type: memory`,
// `staticClients`, `staticPasswords` and `enablePasswordDB`.
func newConfig(values settings) (server.Config, error) {
	secret, err := os.ReadFile(values.clientSecretFile)
	if err != nil {
		return server.Config{}, err
	}
	hash, err := bcrypt.GenerateFromPassword([]byte(values.password), bcrypt.DefaultCost)
	if err != nil {
		return server.Config{}, err
	}
	logger := slog.New(slog.NewTextHandler(os.Stderr, nil))
	client := storage.Client{
		ID:           values.clientID,
		Secret:       strings.TrimSpace(string(secret)),
		RedirectURIs: []string{values.redirectURL},
		Name:         values.clientID,
	}
	name, _, _ := strings.Cut(values.email, "@")
	user := storage.Password{Email: values.email, Hash: hash, Username: name, UserID: name}
	connector := storage.Connector{ID: server.LocalConnector, Name: "Email", Type: server.LocalConnector}
	kept := storage.WithStaticClients(memory.New(logger), []storage.Client{client})
	kept = storage.WithStaticPasswords(kept, []storage.Password{user}, logger)
	kept = storage.WithStaticConnectors(kept, []storage.Connector{connector})
	return server.Config{
		Issuer:            values.issuer,
		Storage:           kept,
		AllowedGrantTypes: []string{"authorization_code"},
		Logger:            logger,
		HealthChecker:     gosundheit.New(),
	}, nil
}

// issuer is a server of Dex, which another server with another lifetime of ID tokens can replace. All servers use the
// same storage, and therefore the same signing keys and open sign-ins.
type issuer struct {
	ctx    context.Context
	config server.Config
	server atomic.Pointer[server.Server]
}

// setLifetime sets the lifetime of ID tokens.
func (i *issuer) setLifetime(lifetime time.Duration) error {
	config := i.config
	config.IDTokensValidFor = lifetime
	next, err := server.NewServer(i.ctx, config)
	if err != nil {
		return err
	}
	i.server.Store(next)
	return nil
}

func (i *issuer) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(response http.ResponseWriter, request *http.Request) {
		i.server.Load().ServeHTTP(response, request)
	})
	mux.HandleFunc("PUT /control/id-tokens", func(response http.ResponseWriter, request *http.Request) {
		lifetime, err := time.ParseDuration(request.URL.Query().Get("lifetime"))
		if err == nil && lifetime <= 0 {
			err = errors.New("lifetime must be positive")
		}
		if err != nil {
			http.Error(response, err.Error(), http.StatusBadRequest)
			return
		}
		if err := i.setLifetime(lifetime); err != nil {
			http.Error(response, err.Error(), http.StatusInternalServerError)
		}
	})
	return mux
}

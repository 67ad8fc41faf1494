// Package httpserver runs an HTTP server until the process receives a signal.
package httpserver

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// finishTime is the timeout for open requests at shutdown. The grace period of a pod is longer.
const finishTime = 5 * time.Second

// Run listens on an address and serves until SIGTERM or SIGINT.
func Run(address string, handler http.Handler) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("failed to listen on %s: %w", address, err)
	}
	fmt.Fprintf(os.Stderr, "listening on %s\n", listener.Addr())
	return serve(ctx, listener, handler)
}

// RunWithTLS is like Run, but also serves HTTPS on a second address, with a new certificate for the host name. The path
// /ca.crt returns this certificate.
func RunWithTLS(address, tlsAddress, host string, handler http.Handler) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	certificate, err := selfSigned(host)
	if err != nil {
		return fmt.Errorf("failed to create a certificate for %s: %w", host, err)
	}
	routes := http.NewServeMux()
	routes.HandleFunc("GET /ca.crt", func(response http.ResponseWriter, _ *http.Request) {
		_ = pem.Encode(response, &pem.Block{Type: "CERTIFICATE", Bytes: certificate.Certificate[0]})
	})
	routes.Handle("/", handler)
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("failed to listen on %s: %w", address, err)
	}
	settings := &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12}
	tlsListener, err := tls.Listen("tcp", tlsAddress, settings)
	if err != nil {
		return fmt.Errorf("failed to listen on %s: %w", tlsAddress, err)
	}
	fmt.Fprintf(os.Stderr, "listening on %s and %s\n", listener.Addr(), tlsListener.Addr())
	ended := make(chan error, 2)
	go func() { ended <- serve(ctx, listener, routes) }()
	go func() { ended <- serve(ctx, tlsListener, routes) }()
	// The first error ends the process.
	if err := <-ended; err != nil {
		return err
	}
	return <-ended
}

// selfSigned returns a new key and a self-signed certificate.
func selfSigned(host string) (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber:          big.NewInt(now.UnixNano()),
		Subject:               pkix.Name{CommonName: host},
		DNSNames:              []string{host},
		NotBefore:             now.Add(-time.Hour),
		NotAfter:              now.AddDate(1, 0, 0),
		KeyUsage:              x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true,
		IsCA:                  true,
	}
	certificate, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.Certificate{Certificate: [][]byte{certificate}, PrivateKey: key}, nil
}

func serve(ctx context.Context, listener net.Listener, handler http.Handler) error {
	server := &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: 10 * time.Second,
		// The end of the process cancels requests that still wait.
		BaseContext: func(net.Listener) context.Context { return ctx },
	}
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

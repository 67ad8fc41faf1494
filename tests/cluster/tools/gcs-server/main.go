// Command gcs-server is an emulator of Google Cloud Storage: the storage of fake-gcs-server, with authentication. It
// issues keys of service accounts, exchanges assertions that are signed with these keys for access tokens, and rejects
// storage requests without an access token. Clients can also sign access tokens with these keys.
//
// The server has a certificate for the host name of the real service. With the variable STORAGE_EMULATOR_HOST, the
// Pulumi CLI would send no credentials.
package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/md5"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/fsouza/fake-gcs-server/fakestorage"
)

const (
	storageHost = "storage.googleapis.com"
	// finishTime is the timeout for open requests at shutdown.
	finishTime = time.Second
	// maxUpload is the maximum size of an upload of the XML API in bytes.
	maxUpload = 16 * 1024 * 1024
)

func main() {
	address := flag.String("addr", ":80", "address for HTTP")
	tlsAddress := flag.String("tls-addr", ":443", "address for HTTPS")
	host := flag.String("host", "", "host name at which clients exchange assertions for access tokens")
	bucket := flag.String("bucket", "", "bucket that the server creates when it starts")
	flag.Parse()
	if flag.NArg() > 0 || *host == "" || *bucket == "" {
		fmt.Fprintln(os.Stderr, "gcs-server: --host and --bucket are required, and other arguments must be flags; see --help")
		os.Exit(2)
	}
	if err := run(*address, *tlsAddress, *host, *bucket); err != nil {
		fmt.Fprintln(os.Stderr, "gcs-server:", err)
		os.Exit(1)
	}
}

func run(address, tlsAddress, host, bucket string) error {
	storage, err := fakestorage.NewServerWithOptions(fakestorage.Options{
		NoListener:  true,
		Scheme:      "https",
		PublicHost:  storageHost,
		ExternalURL: "https://" + storageHost,
		Writer:      io.Discard,
	})
	if err != nil {
		return fmt.Errorf("failed to create the storage: %w", err)
	}
	storage.CreateBucketWithOpts(fakestorage.CreateBucketOpts{Name: bucket})
	accounts := newAccounts("http://" + host + tokenPath)
	certificate, err := selfSigned(storageHost)
	if err != nil {
		return fmt.Errorf("failed to create a certificate for %s: %w", storageHost, err)
	}
	return serve(address, tlsAddress, certificate, accounts.handler(withUploads(storage, bucket), certificate.Certificate[0]))
}

// withUploads adds the uploads of the XML API (PUT /BUCKET/OBJECT) to the handler of the storage, which supports these
// uploads only with signed URLs.
func withUploads(storage *fakestorage.Server, bucket string) http.Handler {
	handler := storage.HTTPHandler()
	return http.HandlerFunc(func(response http.ResponseWriter, request *http.Request) {
		// The storage serves the XML API only at its public host.
		request.Host = storageHost
		name, isObject := strings.CutPrefix(request.URL.Path, "/"+bucket+"/")
		if request.Method != http.MethodPut || !isObject {
			handler.ServeHTTP(response, request)
			return
		}
		content, err := io.ReadAll(http.MaxBytesReader(response, request.Body, maxUpload))
		if err != nil {
			http.Error(response, err.Error(), http.StatusBadRequest)
			return
		}
		attributes := fakestorage.ObjectAttrs{BucketName: bucket, Name: name, ContentType: request.Header.Get("Content-Type")}
		storage.CreateObject(fakestorage.Object{ObjectAttrs: attributes, Content: content})
		response.Header().Set("ETag", fmt.Sprintf(`"%x"`, md5.Sum(content)))
	})
}

// serve serves until SIGTERM or SIGINT.
func serve(address, tlsAddress string, certificate tls.Certificate, handler http.Handler) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("failed to listen on %s: %w", address, err)
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second}
	settings := &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12}
	tlsListener, err := tls.Listen("tcp", tlsAddress, settings)
	if err != nil {
		return fmt.Errorf("failed to listen on %s: %w", tlsAddress, err)
	}
	served := make(chan error, 2)
	go func() { served <- server.Serve(listener) }()
	go func() { served <- server.Serve(tlsListener) }()
	select {
	case err := <-served:
		return fmt.Errorf("failed to serve on %s and %s: %w", listener.Addr(), tlsListener.Addr(), err)
	case <-ctx.Done():
	}
	finish, cancel := context.WithTimeout(context.Background(), finishTime)
	defer cancel()
	if err := server.Shutdown(finish); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("failed to close the server on %s and %s: %w", listener.Addr(), tlsListener.Addr(), err)
	}
	return nil
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

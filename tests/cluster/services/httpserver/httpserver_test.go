package httpserver

import (
	"context"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"time"
)

func TestOpenRequestEndsWhenServerStops(t *testing.T) {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	arrived := make(chan struct{})
	handler := http.HandlerFunc(func(response http.ResponseWriter, request *http.Request) {
		close(arrived)
		<-request.Context().Done()
		fmt.Fprint(response, "partial content")
	})
	ended := make(chan error, 1)
	go func() { ended <- serve(ctx, listener, handler) }()
	received := make(chan string, 1)
	go func() {
		response, err := http.Get("http://" + listener.Addr().String())
		if err != nil {
			received <- err.Error()
			return
		}
		defer response.Body.Close()
		body, _ := io.ReadAll(response.Body)
		received <- string(body)
	}()
	<-arrived
	stop()
	for range 2 {
		select {
		case answer := <-received:
			if answer != "partial content" {
				t.Errorf("the response is %q", answer)
			}
		case err := <-ended:
			if err != nil {
				t.Errorf("the server ended with %v", err)
			}
		case <-time.After(2 * finishTime):
			t.Fatal("the server or the request did not end")
		}
	}
}

func TestErrorContainsAddressInUse(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	if err := Run(listener.Addr().String(), nil); err == nil {
		t.Fatal("two servers listen on one address")
	}
}

func TestCertificateIsValidOnlyForItsHost(t *testing.T) {
	certificate, err := selfSigned("packages.example")
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := x509.ParseCertificate(certificate.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	authorities := x509.NewCertPool()
	authorities.AddCert(parsed)
	if _, err := parsed.Verify(x509.VerifyOptions{Roots: authorities, DNSName: "packages.example"}); err != nil {
		t.Fatal(err)
	}
	if _, err := parsed.Verify(x509.VerifyOptions{Roots: authorities, DNSName: "other.example"}); err == nil {
		t.Fatal("the certificate is valid for another host")
	}
}

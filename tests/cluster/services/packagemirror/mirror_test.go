package packagemirror

import (
	"context"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// registry serves texts by path and counts the requests for each path.
func registry(t *testing.T, texts map[string]string) (*httptest.Server, map[string]int) {
	t.Helper()
	requests := map[string]int{}
	server := httptest.NewServer(http.HandlerFunc(func(response http.ResponseWriter, request *http.Request) {
		requests[request.URL.Path]++
		text, exists := texts[request.URL.Path]
		if !exists {
			http.NotFound(response, request)
			return
		}
		fmt.Fprint(response, text)
	}))
	t.Cleanup(server.Close)
	return server, requests
}

func write(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "lock")
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func integrity(content string) string {
	digest := sha512.Sum512([]byte(content))
	return "sha512-" + base64.StdEncoding.EncodeToString(digest[:])
}

func TestNPMPackagesAreDownloadedOnceAndVerified(t *testing.T) {
	server, requests := registry(t, map[string]string{"/@own/a/-/a-1.0.0.tgz": "archive"})
	lock := fmt.Sprintf(`{"packages": {
		"": {"version": "1.0.0"},
		"node_modules/@own/a": {"version": "1.0.0", "integrity": %[1]q},
		"node_modules/b/node_modules/@own/a": {"version": "1.0.0", "integrity": %[1]q},
		"node_modules/alias": {"name": "@own/a", "version": "1.0.0", "integrity": %[1]q},
		"node_modules/local": {"link": true},
		"node_modules/b/node_modules/bundled": {"version": "1.0.0", "inBundle": true},
		"node_modules/mac": {"version": "1.0.0", "integrity": %[1]q, "os": ["darwin"]},
		"node_modules/other": {"version": "1.0.0", "integrity": %[1]q, "cpu": "!x64"}}}`, integrity("archive"))
	directory := t.TempDir()
	for range 2 {
		if err := NPM(context.Background(), write(t, lock), server.URL, directory); err != nil {
			t.Fatal(err)
		}
	}
	content, err := os.ReadFile(filepath.Join(directory, "@own-a-1.0.0.tgz"))
	if err != nil || string(content) != "archive" {
		t.Error(content, err)
	}
	if requests["/@own/a/-/a-1.0.0.tgz"] != 1 || len(requests) != 1 {
		t.Error(requests)
	}
}

func TestWrongDigestFailsWithoutFile(t *testing.T) {
	server, requests := registry(t, map[string]string{"/a/-/a-1.0.0.tgz": "changed"})
	lock := fmt.Sprintf(`{"packages": {"node_modules/a": {"version": "1.0.0", "integrity": %q}}}`, integrity("archive"))
	directory := t.TempDir()
	err := NPM(context.Background(), write(t, lock), server.URL, directory)
	if err == nil || !strings.Contains(err.Error(), "expected") || requests["/a/-/a-1.0.0.tgz"] != 1 {
		t.Error(err, requests)
	}
	if files, _ := os.ReadDir(directory); len(files) != 0 {
		t.Error(files)
	}
}

func TestPythonFilesAreFoundInTheIndex(t *testing.T) {
	page := `<a href="../../files/own-2.0-py3-none-any.whl#sha256=x">x</a><a href="/files/own-1.0-py3-none-any.whl#sha256=y">y</a>`
	server, _ := registry(t, map[string]string{"/simple/own/": page, "/files/own-1.0-py3-none-any.whl": "wheel"})
	digest := sha256.Sum256([]byte("wheel"))
	line := "# comment\nown==1.0 --hash=sha256:" + hex.EncodeToString(digest[:]) + "  # own-1.0-py3-none-any.whl\n"
	directory := t.TempDir()
	if err := PyPI(context.Background(), write(t, line), server.URL+"/simple/", directory); err != nil {
		t.Fatal(err)
	}
	if content, err := os.ReadFile(filepath.Join(directory, "own-1.0-py3-none-any.whl")); err != nil || string(content) != "wheel" {
		t.Error(content, err)
	}
	absent := strings.ReplaceAll(line, "own-1.0", "own-3.0")
	if err := PyPI(context.Background(), write(t, absent), server.URL+"/simple", directory); err == nil {
		t.Error("the index does not list the file")
	}
	if err := PyPI(context.Background(), write(t, "own\n"), server.URL, directory); err == nil || !strings.Contains(err.Error(), "line 1") {
		t.Error(err)
	}
}

func TestTemporaryErrorsAreRetried(t *testing.T) {
	failures := 1
	server := httptest.NewServer(http.HandlerFunc(func(response http.ResponseWriter, _ *http.Request) {
		if failures--; failures >= 0 {
			http.Error(response, "later", http.StatusBadGateway)
			return
		}
		fmt.Fprint(response, "archive")
	}))
	defer server.Close()
	lock := fmt.Sprintf(`{"packages": {"node_modules/a": {"version": "1.0.0", "integrity": %q}}}`, integrity("archive"))
	if err := NPM(context.Background(), write(t, lock), server.URL, t.TempDir()); err != nil {
		t.Error(err)
	}
}

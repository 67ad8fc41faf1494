package packageserver

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func npmArchive(t *testing.T, manifest string) []byte {
	t.Helper()
	var buffer bytes.Buffer
	packed := gzip.NewWriter(&buffer)
	archive := tar.NewWriter(packed)
	for name, content := range map[string]string{"package/index.js": "1", "package/package.json": manifest} {
		if err := archive.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(content))}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(archive, content); err != nil {
			t.Fatal(err)
		}
	}
	archive.Close()
	packed.Close()
	return buffer.Bytes()
}

func start(t *testing.T) *httptest.Server {
	t.Helper()
	root := t.TempDir()
	for path, content := range map[string][]byte{
		"npm/own-1.9.0.tgz":                  npmArchive(t, `{"name": "@own/a", "version": "v1.9.0"}`),
		"npm/own-1.10.0.tgz":                 npmArchive(t, `{"name": "@own/a", "version": "1.10.0", "bin": {"a": "a.js"}}`),
		"pypi/My_Package-1.0.tar.gz":         []byte("archive"),
		"pypi/PyYAML-6.0.3-py3-none-any.whl": []byte("wheel"),
		"go/example.com/a/@v/list":           []byte("v1.0.0\n"),
		"plugins/plugin-v1.tar.gz":           []byte("plugin"),
		"secret":                             []byte("outside"),
	} {
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	server, err := New(root, "token")
	if err != nil {
		t.Fatal(err)
	}
	listener := httptest.NewServer(server)
	t.Cleanup(listener.Close)
	return listener
}

func get(t *testing.T, address string, authorize func(*http.Request)) (int, string) {
	t.Helper()
	request, err := http.NewRequest(http.MethodGet, address, nil)
	if err != nil {
		t.Fatal(err)
	}
	if authorize != nil {
		authorize(request)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(content)
}

func TestNPMFindsTheNewestVersionAndItsArchive(t *testing.T) {
	server := start(t)
	status, content := get(t, server.URL+"/npm/@own%2fa", nil)
	var packument struct {
		Tags     map[string]string `json:"dist-tags"`
		Versions map[string]struct {
			Bin  map[string]string
			Dist struct{ Tarball, Integrity string }
		}
	}
	if err := json.Unmarshal([]byte(content), &packument); err != nil || status != http.StatusOK {
		t.Fatal(status, content, err)
	}
	if packument.Tags["latest"] != "1.10.0" || packument.Versions["1.10.0"].Bin["a"] != "a.js" {
		t.Error(content)
	}
	if status, archive := get(t, packument.Versions["1.9.0"].Dist.Tarball, nil); status != http.StatusOK || len(archive) == 0 {
		t.Error(status)
	}
	if !strings.HasPrefix(packument.Versions["1.9.0"].Dist.Integrity, "sha512-") {
		t.Error(content)
	}
	if status, _ := get(t, server.URL+"/npm/absent", nil); status != http.StatusNotFound {
		t.Error(status)
	}
}

func TestPipFindsFilesByNormalizedNames(t *testing.T) {
	server := start(t)
	for name, file := range map[string]string{"my-package": "My_Package-1.0.tar.gz", "pyyaml": "PyYAML-6.0.3-py3-none-any.whl"} {
		status, page := get(t, server.URL+"/pypi/simple/"+name+"/", nil)
		address := server.URL + "/pypi/files/" + file
		if status != http.StatusOK || !strings.Contains(page, address+"#sha256=") {
			t.Error(status, page)
		}
		if status, content := get(t, address, nil); status != http.StatusOK || content == "" {
			t.Error(status)
		}
	}
	if status, _ := get(t, server.URL+"/pypi/simple/absent/", nil); status != http.StatusNotFound {
		t.Error(status)
	}
}

func TestGoFindsModules(t *testing.T) {
	if status, list := get(t, start(t).URL+"/go/example.com/a/@v/list", nil); status != http.StatusOK || list != "v1.0.0\n" {
		t.Error(status, list)
	}
}

func TestPluginsAreServed(t *testing.T) {
	if status, content := get(t, start(t).URL+"/plugins/plugin-v1.tar.gz", nil); status != http.StatusOK || content != "plugin" {
		t.Error(status, content)
	}
}

func TestPrivatePackagesRequireTheToken(t *testing.T) {
	server := start(t)
	address := server.URL + "/private/npm/@own%2fa"
	for token, expected := range map[string]int{"": http.StatusUnauthorized, "other": http.StatusUnauthorized, "token": http.StatusOK} {
		for kind, authorize := range map[string]func(*http.Request){
			"bearer": func(request *http.Request) { request.Header.Set("Authorization", "Bearer "+token) },
			"basic":  func(request *http.Request) { request.SetBasicAuth("user", token) },
		} {
			status, content := get(t, address, authorize)
			if status != expected {
				t.Error(kind, token, status)
			}
			if status == http.StatusOK && !strings.Contains(content, server.URL+"/private/npm/-/own-1.10.0.tgz") {
				t.Error(content)
			}
		}
	}
}

func TestFilesOutsideOfDirectoriesAreNotServed(t *testing.T) {
	server := start(t)
	for _, path := range []string{"/npm/-/..%2f..%2fsecret", "/pypi/files/..%2fsecret", "/go/..%2fsecret", "/secret"} {
		if status, content := get(t, server.URL+path, nil); status != http.StatusNotFound || strings.Contains(content, "outside") {
			t.Error(path, status, content)
		}
	}
}

func TestVersionsAreComparedByTheirNumbers(t *testing.T) {
	for _, row := range []struct {
		version, than string
		expected      bool
	}{
		{"1.10.0", "1.9.0", true}, {"1.9.0", "1.10.0", false}, {"2.0.0", "2.0.0-beta.1", true}, {"2.0.0-beta.1", "2.0.0", false},
		{"2.0.0-b", "2.0.0-a", true}, {"1.0.0", "1.0.0", true}, {"1.0", "1.0.0", false},
	} {
		if isNewer(row.version, row.than) != row.expected {
			t.Error(row)
		}
	}
}

// Package packageserver serves packages for npm, pip and Go, and plugins, from a directory in the same way as their
// public registries:
//
//	npm/*.tgz           archives of npm packages
//	pypi/*              wheels and source archives of Python packages
//	go/MODULE/@v/*      files of the Go module proxy protocol
//	plugins/*           archives of Pulumi plugins
package packageserver

import (
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"path/filepath"
	"strings"
)

// privatePrefix is the prefix of paths that require the token.
const privatePrefix = "/private"

// Server serves the packages in a directory.
type Server struct {
	root   string
	token  string
	npm    map[string]map[string]npmVersion
	python map[string][]pythonFile
}

// New reads the packages in a directory. If the token is not empty, the server also serves all packages below
// `/private`, for requests that contain the token as a bearer token or as a password.
func New(root, token string) (*Server, error) {
	npm, err := readNPM(filepath.Join(root, "npm"))
	if err != nil {
		return nil, err
	}
	python, err := readPython(filepath.Join(root, "pypi"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	return &Server{root: root, token: token, npm: npm, python: python}, nil
}

func (server *Server) ServeHTTP(response http.ResponseWriter, request *http.Request) {
	base := "http://" + request.Host
	if request.TLS != nil {
		base = "https://" + request.Host
	}
	path := request.URL.Path
	if rest, isPrivate := strings.CutPrefix(path, privatePrefix); isPrivate {
		if !server.isAllowed(request) {
			response.Header().Set("WWW-Authenticate", `Basic realm="packages"`)
			http.Error(response, "a valid token is required", http.StatusUnauthorized)
			return
		}
		path, base = rest, base+privatePrefix
	}
	if request.Method != http.MethodGet && request.Method != http.MethodHead {
		http.Error(response, "only GET and HEAD are supported", http.StatusMethodNotAllowed)
		return
	}
	switch kind, rest, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/"); kind {
	case "npm":
		server.serveNPM(response, request, rest, base+"/npm")
	case "pypi":
		server.servePython(response, request, rest, base+"/pypi")
	case "go", "plugins":
		server.serveFile(response, request, kind, rest)
	default:
		http.NotFound(response, request)
	}
}

func (server *Server) isAllowed(request *http.Request) bool {
	given, isBearer := strings.CutPrefix(request.Header.Get("Authorization"), "Bearer ")
	if !isBearer {
		_, given, _ = request.BasicAuth()
	}
	return server.token != "" && subtle.ConstantTimeCompare([]byte(given), []byte(server.token)) == 1
}

func (server *Server) serveNPM(response http.ResponseWriter, request *http.Request, rest, base string) {
	if file, isArchive := strings.CutPrefix(rest, "-/"); isArchive {
		server.serveFile(response, request, "npm", file)
		return
	}
	versions, exists := server.npm[rest]
	if !exists {
		response.Header().Set("Content-Type", "application/json")
		response.WriteHeader(http.StatusNotFound)
		fmt.Fprintln(response, `{"error":"Not found"}`)
		return
	}
	response.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(response).Encode(packument(rest, versions, base))
}

func (server *Server) servePython(response http.ResponseWriter, request *http.Request, rest, base string) {
	if file, isFile := strings.CutPrefix(rest, "files/"); isFile {
		server.serveFile(response, request, "pypi", file)
		return
	}
	name, isIndex := strings.CutPrefix(rest, "simple/")
	files, exists := server.python[normalize(strings.TrimSuffix(name, "/"))]
	if !isIndex || !exists {
		http.NotFound(response, request)
		return
	}
	response.Header().Set("Content-Type", "text/html")
	fmt.Fprint(response, simpleIndex(files, base))
}

// serveFile serves a file in a directory of the root. The path must not leave this directory.
func (server *Server) serveFile(response http.ResponseWriter, request *http.Request, directory, file string) {
	if !filepath.IsLocal(file) {
		http.NotFound(response, request)
		return
	}
	http.ServeFile(response, request, filepath.Join(server.root, directory, file))
}

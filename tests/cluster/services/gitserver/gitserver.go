// Package gitserver serves bare Git repositories over HTTP with Git's http-backend.
package gitserver

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/cgi"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
)

// maximumPushSize is far above the size of any test repository. It prevents a mistake from filling the disk.
const maximumPushSize = 1 << 30

// unfinished is the name prefix of repositories during their creation. Requests cannot address them.
const unfinished = ".unfinished-"

var (
	repositoryPath = regexp.MustCompile(`^/([a-z0-9-]+)\.git$`)
	servicePath    = regexp.MustCompile(`^/([a-z0-9-]+)\.git/(info/refs|git-upload-pack|git-receive-pack)$`)
)

// Server is the HTTP handler.
type Server struct {
	root    string
	git     string
	backend cgi.Handler
	// creating serializes the creation of repositories, because concurrent first pushes must create only one repository.
	creating sync.Mutex
	// counting guards counted.
	counting sync.Mutex
	counted  map[string]Requests
}

// New returns a server for the repositories in a directory.
func New(root string) (*Server, error) {
	if root == "" {
		return nil, errors.New("the directory of the repositories is not set: use --root DIR")
	}
	root, err := filepath.Abs(root)
	if err != nil {
		return nil, fmt.Errorf("failed to find the directory %s: %w", root, err)
	}
	if err := os.MkdirAll(root, 0o755); err != nil {
		return nil, fmt.Errorf("failed to create the directory of the repositories: %w", err)
	}
	if err := removeUnfinished(root); err != nil {
		return nil, err
	}
	git, backend, err := findGit()
	if err != nil {
		return nil, err
	}
	return &Server{root: root, git: git, counted: map[string]Requests{}, backend: cgi.Handler{
		Path: backend,
		Dir:  root,
		Env:  append(gitEnvironment(), "GIT_PROJECT_ROOT="+root, "GIT_HTTP_EXPORT_ALL=1"),
	}}, nil
}

// findGit returns the paths of git and of git-http-backend.
func findGit() (git, backend string, err error) {
	git, err = exec.LookPath("git")
	if err != nil {
		return "", "", fmt.Errorf("failed to find git on PATH: %w", err)
	}
	directory, err := exec.Command(git, "--exec-path").Output()
	if err != nil {
		return "", "", fmt.Errorf("failed to run git --exec-path: %w", err)
	}
	backend = filepath.Join(strings.TrimSpace(string(directory)), "git-http-backend")
	if _, err := os.Stat(backend); err != nil {
		return "", "", fmt.Errorf("failed to find git-http-backend, which is part of the package git: %w", err)
	}
	return git, backend, nil
}

// gitEnvironment returns Git's configuration as environment variables. The configuration needs no home directory, and
// works for any user ID and any owner of the repositories.
func gitEnvironment() []string {
	settings := [][2]string{
		{"safe.directory", "*"},
		{"http.receivepack", "true"},
		// Git must not start background jobs after a push.
		{"receive.autogc", "false"},
		{"gc.auto", "0"},
	}
	environment := []string{"GIT_CONFIG_NOSYSTEM=1", fmt.Sprintf("GIT_CONFIG_COUNT=%d", len(settings))}
	for index, setting := range settings {
		environment = append(environment,
			fmt.Sprintf("GIT_CONFIG_KEY_%d=%s", index, setting[0]),
			fmt.Sprintf("GIT_CONFIG_VALUE_%d=%s", index, setting[1]))
	}
	return environment
}

func (server *Server) ServeHTTP(response http.ResponseWriter, request *http.Request) {
	if match := repositoryPath.FindStringSubmatch(request.URL.Path); match != nil {
		server.serveRepository(response, request, match[1])
		return
	}
	if match := servicePath.FindStringSubmatch(request.URL.Path); match != nil {
		server.serveGit(response, request, match[1], match[2])
		return
	}
	if request.URL.Path == "/requests" {
		server.serveRequests(response, request)
		return
	}
	http.Error(response, fmt.Sprintf("no such path: %s; the path of a repository is /NAME.git, and NAME consists of "+
		"the characters a-z, 0-9 and -", request.URL.Path), http.StatusNotFound)
}

// serveRepository creates a repository if it does not exist.
func (server *Server) serveRepository(response http.ResponseWriter, request *http.Request, name string) {
	if request.Method != http.MethodPut {
		refuseMethod(response, request, http.MethodPut)
		return
	}
	created, err := server.ensureExists(name)
	if err != nil {
		http.Error(response, err.Error(), http.StatusInternalServerError)
		return
	}
	if created {
		response.WriteHeader(http.StatusCreated)
	}
	fmt.Fprintf(response, "/%s.git\n", name)
}

// serveGit forwards a request to Git.
func (server *Server) serveGit(response http.ResponseWriter, request *http.Request, name, action string) {
	method, service := http.MethodPost, action
	if action == "info/refs" {
		method, service = http.MethodGet, request.URL.Query().Get("service")
	}
	if request.Method != method {
		refuseMethod(response, request, method)
		return
	}
	switch service {
	case "git-receive-pack":
		if _, err := server.ensureExists(name); err != nil {
			http.Error(response, err.Error(), http.StatusInternalServerError)
			return
		}
	case "git-upload-pack":
		server.count(name, action == "info/refs")
		if !server.exists(name) {
			http.Error(response, fmt.Sprintf("no such repository: %s; create it with PUT /%s.git or a push", name, name),
				http.StatusNotFound)
			return
		}
	default:
		http.Error(response, fmt.Sprintf("no such service: %q; this server supports only the smart HTTP protocol of Git", service),
			http.StatusForbidden)
		return
	}
	request.Body = http.MaxBytesReader(response, request.Body, maximumPushSize)
	// A large push is chunked and has no length. http-backend reads to the end of its input, but Go's CGI handler rejects
	// a chunked request, because other CGI programs could not process it.
	request.TransferEncoding = nil
	server.backend.ServeHTTP(response, request)
}

func refuseMethod(response http.ResponseWriter, request *http.Request, allowed string) {
	response.Header().Set("Allow", allowed)
	http.Error(response, fmt.Sprintf("%s %s: the method must be %s", request.Method, request.URL.Path, allowed),
		http.StatusMethodNotAllowed)
}

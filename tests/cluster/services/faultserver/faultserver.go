// Package faultserver serves files over HTTP with configurable faults. It also receives requests of a controller: it
// implements a webhook and the part of the GitHub API that commit statuses, comments and lists of pull requests need.
package faultserver

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"sync"
	"time"
)

// Behavior describes the faults of a file. The zero value means no faults.
type Behavior struct {
	// Status is the status of an empty response in place of the file. With 0 or 200, the file is served.
	Status int `json:"status,omitempty"`
	// RetryAfter is the value of the Retry-After header.
	RetryAfter string `json:"retryAfter,omitempty"`
	// Times is the number of requests with these faults. Later requests have no faults. 0 means no limit.
	Times int `json:"times,omitempty"`
	// Hang stops the response before the header ("header") or after half of the file ("body").
	Hang string `json:"hang,omitempty"`
	// ExtraLength is added to the Content-Length header of the file. It may be negative.
	ExtraLength int64 `json:"extraLength,omitempty"`
	// Endless sends zeros after the file until the client disconnects.
	Endless bool `json:"endless,omitempty"`
	// Pause is the delay between two pieces of the file, and Pieces is the number of pieces.
	Pause  Duration `json:"pause,omitempty"`
	Pieces int      `json:"pieces,omitempty"`
	// Generated is the name of an archive that the server generates in place of the uploaded content.
	Generated string `json:"generated,omitempty"`
}

// Duration is a time.Duration whose JSON form is a string such as "20ms".
type Duration time.Duration

// UnmarshalText parses a string such as "20ms".
func (duration *Duration) UnmarshalText(text []byte) error {
	parsed, err := time.ParseDuration(string(text))
	*duration = Duration(parsed)
	return err
}

// MarshalText returns a string such as "20ms".
func (duration Duration) MarshalText() ([]byte, error) {
	return []byte(time.Duration(duration).String()), nil
}

// Described is the description of a file in a response.
type Described struct {
	Size   int64  `json:"size"`
	Digest string `json:"digest"`
	// Requests is the number of requests for the file.
	Requests int `json:"requests"`
}

type file struct {
	content   []byte
	described Described
	behavior  Behavior
	// left is the number of further requests that the faults apply to.
	left int
}

var namePattern = regexp.MustCompile(`^[a-z0-9][a-z0-9./-]{0,200}$`)

// Server is the state of the handler.
type Server struct {
	capacity int64

	mutex sync.Mutex
	files map[string]*file
	used  int64
	calls map[string][]Call
}

// New returns a server that stores at most capacity bytes of uploads.
func New(capacity int64) *Server {
	return &Server{capacity: capacity, files: map[string]*file{}, calls: map[string][]Call{}}
}

// Handler serves files below /files/, accepts settings below /control/, and records all other requests.
func (server *Server) Handler() http.Handler {
	routes := http.NewServeMux()
	routes.HandleFunc("GET /files/{name...}", server.serve)
	routes.HandleFunc("PUT /control/content/{name...}", server.upload)
	routes.HandleFunc("PUT /control/behavior/{name...}", server.setBehavior)
	routes.HandleFunc("GET /control/described/{name...}", server.describe)
	routes.HandleFunc("GET /control/calls/{owner}", server.serveCalls)
	routes.HandleFunc("/hooks/{owner}/{rest...}", server.recordCall)
	routes.HandleFunc("/api/v3/repos/{owner}/{rest...}", server.recordCall)
	routes.HandleFunc("GET /api/v3/repos/{owner}/{repository}/pulls", server.servePulls)
	// A client that comments on a pull request first queries its own user.
	routes.HandleFunc("GET /api/v3/user", func(response http.ResponseWriter, _ *http.Request) {
		response.Header().Set("Content-Type", "application/json")
		fmt.Fprintln(response, `{"login": "tester"}`)
	})
	routes.HandleFunc("GET /healthz", func(response http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(response, "ok")
	})
	return routes
}

// upload stores a file without faults.
func (server *Server) upload(response http.ResponseWriter, request *http.Request) {
	name := request.PathValue("name")
	if !namePattern.MatchString(name) {
		http.Error(response, fmt.Sprintf("invalid file name %q: must match %s", name, namePattern), http.StatusBadRequest)
		return
	}
	content, err := io.ReadAll(http.MaxBytesReader(response, request.Body, server.capacity))
	if err != nil {
		http.Error(response, fmt.Sprintf("failed to read the content of %s: %v", name, err), http.StatusBadRequest)
		return
	}
	measured := newMeasured()
	_, _ = measured.Write(content)
	described := Described{Size: measured.size, Digest: measured.digest()}
	server.mutex.Lock()
	defer server.mutex.Unlock()
	var before int64
	if old := server.files[name]; old != nil {
		before = int64(len(old.content))
	}
	if server.used-before+measured.size > server.capacity {
		http.Error(response, fmt.Sprintf("no space left for %s: %d bytes are in use", name, server.used), http.StatusInsufficientStorage)
		return
	}
	server.used += measured.size - before
	server.files[name] = &file{content: content, described: described}
	writeJSON(response, described)
}

// setBehavior sets the faults of a file. For a generated archive, it also computes the size and the digest.
func (server *Server) setBehavior(response http.ResponseWriter, request *http.Request) {
	name := request.PathValue("name")
	var behavior Behavior
	decoder := json.NewDecoder(http.MaxBytesReader(response, request.Body, 64*1024))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&behavior); err != nil {
		http.Error(response, fmt.Sprintf("failed to read the behavior of %s: %v", name, err), http.StatusBadRequest)
		return
	}
	if err := behavior.check(); err != nil {
		http.Error(response, err.Error(), http.StatusBadRequest)
		return
	}
	measured := newMeasured()
	if behavior.Generated != "" {
		if err := generate(behavior.Generated, measured); err != nil {
			http.Error(response, err.Error(), http.StatusBadRequest)
			return
		}
	}
	server.mutex.Lock()
	defer server.mutex.Unlock()
	known := server.files[name]
	if known == nil {
		if !namePattern.MatchString(name) {
			http.Error(response, fmt.Sprintf("invalid file name %q: must match %s", name, namePattern), http.StatusBadRequest)
			return
		}
		known = &file{described: Described{Digest: newMeasured().digest()}}
		server.files[name] = known
	}
	known.behavior, known.left = behavior, behavior.Times
	if behavior.Generated != "" {
		known.described.Size, known.described.Digest = measured.size, measured.digest()
	}
	writeJSON(response, known.described)
}

func (behavior Behavior) check() error {
	switch behavior.Hang {
	case "", "header", "body":
	default:
		return fmt.Errorf("invalid hang %q: must be header or body", behavior.Hang)
	}
	if behavior.Status != 0 && (behavior.Status < 200 || behavior.Status > 599) {
		return fmt.Errorf("invalid status %d", behavior.Status)
	}
	if behavior.Pieces < 0 || behavior.Times < 0 || (behavior.Pause != 0 && behavior.Pieces == 0) {
		return errors.New("pieces and times must not be negative, and a pause needs pieces")
	}
	return nil
}

func (server *Server) describe(response http.ResponseWriter, request *http.Request) {
	server.mutex.Lock()
	defer server.mutex.Unlock()
	known := server.files[request.PathValue("name")]
	if known == nil {
		http.NotFound(response, request)
		return
	}
	writeJSON(response, known.described)
}

// next records a request and returns the content and the faults of the response.
func (server *Server) next(name string) (content []byte, behavior Behavior, found bool) {
	server.mutex.Lock()
	defer server.mutex.Unlock()
	known := server.files[name]
	if known == nil {
		return nil, Behavior{}, false
	}
	known.described.Requests++
	behavior = known.behavior
	if behavior.Times > 0 {
		if known.left == 0 {
			return known.content, Behavior{Generated: behavior.Generated}, true
		}
		known.left--
	}
	return known.content, behavior, true
}

func (server *Server) serve(response http.ResponseWriter, request *http.Request) {
	content, behavior, found := server.next(request.PathValue("name"))
	if !found {
		http.NotFound(response, request)
		return
	}
	if behavior.RetryAfter != "" {
		response.Header().Set("Retry-After", behavior.RetryAfter)
	}
	switch {
	case behavior.Hang == "header":
		<-request.Context().Done()
	case behavior.Status != 0 && behavior.Status != http.StatusOK:
		response.WriteHeader(behavior.Status)
	case behavior.Generated != "":
		// The client may have disconnected, which cannot be reported.
		_ = generate(behavior.Generated, response)
	case behavior.Endless:
		serveEndlessly(response, content)
	case behavior.ExtraLength != 0:
		serveWithWrongLength(response, content, behavior.ExtraLength)
	default:
		serveInPieces(response, request, content, behavior)
	}
}

// serveEndlessly returns when the client disconnects.
func serveEndlessly(response http.ResponseWriter, content []byte) {
	_, err := response.Write(content)
	zeros := make([]byte, 1<<20)
	for err == nil {
		_, err = response.Write(zeros)
	}
}

// serveWithWrongLength writes the response to the connection, because the HTTP library rejects a wrong length.
func serveWithWrongLength(response http.ResponseWriter, content []byte, extra int64) {
	connection, _, err := http.NewResponseController(response).Hijack()
	if err != nil {
		http.Error(response, err.Error(), http.StatusInternalServerError)
		return
	}
	defer connection.Close()
	length := max(int64(len(content))+extra, 0)
	header := "HTTP/1.1 200 OK\r\nContent-Type: application/gzip\r\nContent-Length: " + strconv.FormatInt(length, 10) + "\r\n\r\n"
	if _, err := io.WriteString(connection, header); err == nil {
		_, _ = connection.Write(content)
	}
}

func serveInPieces(response http.ResponseWriter, request *http.Request, content []byte, behavior Behavior) {
	response.Header().Set("Content-Length", strconv.Itoa(len(content)))
	pieces := max(behavior.Pieces, 1)
	if behavior.Hang == "body" {
		pieces = 2
	}
	size := max((len(content)+pieces-1)/pieces, 1)
	for begin := 0; begin < len(content); begin += size {
		if _, err := response.Write(content[begin:min(begin+size, len(content))]); err != nil {
			return
		}
		_ = http.NewResponseController(response).Flush()
		if behavior.Hang == "body" {
			<-request.Context().Done()
			return
		}
		select {
		case <-request.Context().Done():
			return
		case <-time.After(time.Duration(behavior.Pause)):
		}
	}
}

func writeJSON(response http.ResponseWriter, value any) {
	response.Header().Set("Content-Type", "application/json")
	// The only possible error is a closed connection, which cannot be reported.
	_ = json.NewEncoder(response).Encode(value)
}

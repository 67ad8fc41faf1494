// Package faultserver serves files over HTTP with configurable faults. It also receives requests of a controller: it
// implements a webhook and the part of GitHub's API that commit statuses need.
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

// Behaviour describes the faults for a file. The zero value has no faults.
type Behaviour struct {
	// Status replaces the file with an empty response of this status; 0 or 200 serve the file.
	Status int `json:"status,omitempty"`
	// RetryAfter is the value of the Retry-After header.
	RetryAfter string `json:"retryAfter,omitempty"`
	// Times is the number of requests with these faults; later requests have none. 0 means no limit.
	Times int `json:"times,omitempty"`
	// Hang stops the response before the header ("header") or after half of the file ("body").
	Hang string `json:"hang,omitempty"`
	// ExtraLength is added to the announced length of the file; it may be negative.
	ExtraLength int64 `json:"extraLength,omitempty"`
	// Endless sends zeros after the file until the client disconnects.
	Endless bool `json:"endless,omitempty"`
	// Pause is the delay between two pieces of the file; Pieces is their number.
	Pause  Duration `json:"pause,omitempty"`
	Pieces int      `json:"pieces,omitempty"`
	// Generated is the name of an archive that is generated in place of the uploaded bytes.
	Generated string `json:"generated,omitempty"`
}

// Duration is a time.Duration that is a string in JSON, such as "20ms".
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

// Described is the description of a file.
type Described struct {
	Size   int64  `json:"size"`
	Digest string `json:"digest"`
	// Requests is the number of requests for the file.
	Requests int `json:"requests"`
}

type file struct {
	content   []byte
	described Described
	behaviour Behaviour
	// left is the remaining number of requests with the behaviour.
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
	routes.HandleFunc("PUT /control/behaviour/{name...}", server.behave)
	routes.HandleFunc("GET /control/described/{name...}", server.describe)
	routes.HandleFunc("GET /control/calls/{owner}", server.serveCalls)
	routes.HandleFunc("/hooks/{owner}/{rest...}", server.note)
	routes.HandleFunc("/api/v3/repos/{owner}/{rest...}", server.note)
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

// behave sets the faults of a file. For a generated file, it also computes the size and the digest.
func (server *Server) behave(response http.ResponseWriter, request *http.Request) {
	name := request.PathValue("name")
	var behaviour Behaviour
	decoder := json.NewDecoder(http.MaxBytesReader(response, request.Body, 64*1024))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&behaviour); err != nil {
		http.Error(response, fmt.Sprintf("failed to read the behaviour of %s: %v", name, err), http.StatusBadRequest)
		return
	}
	if err := behaviour.check(); err != nil {
		http.Error(response, err.Error(), http.StatusBadRequest)
		return
	}
	measured := newMeasured()
	if behaviour.Generated != "" {
		if err := generate(behaviour.Generated, measured); err != nil {
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
	known.behaviour, known.left = behaviour, behaviour.Times
	if behaviour.Generated != "" {
		known.described.Size, known.described.Digest = measured.size, measured.digest()
	}
	writeJSON(response, known.described)
}

func (behaviour Behaviour) check() error {
	switch behaviour.Hang {
	case "", "header", "body":
	default:
		return fmt.Errorf("invalid hang %q: must be header or body", behaviour.Hang)
	}
	if behaviour.Status != 0 && (behaviour.Status < 200 || behaviour.Status > 599) {
		return fmt.Errorf("invalid status %d", behaviour.Status)
	}
	if behaviour.Pieces < 0 || behaviour.Times < 0 || (behaviour.Pause != 0 && behaviour.Pieces == 0) {
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
func (server *Server) next(name string) (content []byte, behaviour Behaviour, found bool) {
	server.mutex.Lock()
	defer server.mutex.Unlock()
	known := server.files[name]
	if known == nil {
		return nil, Behaviour{}, false
	}
	known.described.Requests++
	behaviour = known.behaviour
	if behaviour.Times > 0 {
		if known.left == 0 {
			return known.content, Behaviour{Generated: behaviour.Generated}, true
		}
		known.left--
	}
	return known.content, behaviour, true
}

func (server *Server) serve(response http.ResponseWriter, request *http.Request) {
	content, behaviour, found := server.next(request.PathValue("name"))
	if !found {
		http.NotFound(response, request)
		return
	}
	if behaviour.RetryAfter != "" {
		response.Header().Set("Retry-After", behaviour.RetryAfter)
	}
	switch {
	case behaviour.Hang == "header":
		<-request.Context().Done()
	case behaviour.Status != 0 && behaviour.Status != http.StatusOK:
		response.WriteHeader(behaviour.Status)
	case behaviour.Generated != "":
		// The client may have disconnected, which cannot be reported.
		_ = generate(behaviour.Generated, response)
	case behaviour.Endless:
		serveEndlessly(response, content)
	case behaviour.ExtraLength != 0:
		serveWithWrongLength(response, content, behaviour.ExtraLength)
	default:
		serveInPieces(response, request, content, behaviour)
	}
}

// serveEndlessly ends when the client disconnects.
func serveEndlessly(response http.ResponseWriter, content []byte) {
	_, err := response.Write(content)
	zeros := make([]byte, 1<<20)
	for err == nil {
		_, err = response.Write(zeros)
	}
}

// serveWithWrongLength writes the response itself, because the library rejects a wrong length.
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

func serveInPieces(response http.ResponseWriter, request *http.Request, content []byte, behaviour Behaviour) {
	response.Header().Set("Content-Length", strconv.Itoa(len(content)))
	pieces := max(behaviour.Pieces, 1)
	if behaviour.Hang == "body" {
		pieces = 2
	}
	size := max((len(content)+pieces-1)/pieces, 1)
	for begin := 0; begin < len(content); begin += size {
		if _, err := response.Write(content[begin:min(begin+size, len(content))]); err != nil {
			return
		}
		_ = http.NewResponseController(response).Flush()
		if behaviour.Hang == "body" {
			<-request.Context().Done()
			return
		}
		select {
		case <-request.Context().Done():
			return
		case <-time.After(time.Duration(behaviour.Pause)):
		}
	}
}

func writeJSON(response http.ResponseWriter, value any) {
	response.Header().Set("Content-Type", "application/json")
	// The only possible error is a closed connection, which cannot be reported.
	_ = json.NewEncoder(response).Encode(value)
}

package faultserver

import (
	"encoding/json"
	"io"
	"net/http"
)

const (
	// maxCalls is the maximum number of recorded calls per owner.
	maxCalls = 1000
	// longestBody is the maximum size of a recorded body in bytes.
	longestBody = 64 << 10
)

// Call is a recorded request.
type Call struct {
	Method string          `json:"method"`
	Path   string          `json:"path"`
	Header http.Header     `json:"header"`
	Body   json.RawMessage `json:"body"`
}

// recordCall records a request and responds as GitHub does: with an empty list to GET, and with "created" to other
// methods.
func (server *Server) recordCall(response http.ResponseWriter, request *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(response, request.Body, longestBody))
	if err != nil {
		http.Error(response, err.Error(), http.StatusRequestEntityTooLarge)
		return
	}
	if !json.Valid(body) {
		body, _ = json.Marshal(string(body))
	}
	owner := request.PathValue("owner")
	call := Call{Method: request.Method, Path: request.URL.Path, Header: request.Header, Body: body}
	server.mutex.Lock()
	if len(server.calls[owner]) < maxCalls {
		server.calls[owner] = append(server.calls[owner], call)
	}
	server.mutex.Unlock()
	response.Header().Set("Content-Type", "application/json")
	if request.Method == http.MethodGet {
		_, _ = io.WriteString(response, "[]\n")
		return
	}
	response.WriteHeader(http.StatusCreated)
	_, _ = io.WriteString(response, "{}\n")
}

// servePulls responds with the file OWNER/REPOSITORY/pulls as the open pull requests, or with an empty list if the file
// was not uploaded. It does not record the request, because clients poll the list.
func (server *Server) servePulls(response http.ResponseWriter, request *http.Request) {
	content, _, found := server.next(request.PathValue("owner") + "/" + request.PathValue("repository") + "/pulls")
	if !found {
		content = []byte("[]\n")
	}
	response.Header().Set("Content-Type", "application/json")
	_, _ = response.Write(content)
}

// serveCalls lists the recorded calls of an owner, oldest first.
func (server *Server) serveCalls(response http.ResponseWriter, request *http.Request) {
	server.mutex.Lock()
	calls := append([]Call{}, server.calls[request.PathValue("owner")]...)
	server.mutex.Unlock()
	writeJSON(response, calls)
}

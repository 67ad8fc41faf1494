package gitserver

import (
	"encoding/json"
	"net/http"
	"strings"
)

// Requests is what was asked by those who read: polls, fetches, clones.
type Requests struct {
	// Repositories is how many were asked for.
	Repositories int `json:"repositories"`
	// Conversations is how often one was begun: with the question what the server can do.
	Conversations int `json:"conversations"`
	// Requests is how many there were in all.
	Requests int `json:"requests"`
}

// count notes a request of a reader.
func (server *Server) count(name string, begins bool) {
	server.counting.Lock()
	defer server.counting.Unlock()
	counted := server.counted[name]
	counted.Requests++
	if begins {
		counted.Conversations++
	}
	server.counted[name] = counted
}

// tellRequests answers with the sum over the repositories whose names begin so.
func (server *Server) tellRequests(response http.ResponseWriter, request *http.Request) {
	if request.Method != http.MethodGet {
		refuseMethod(response, request, http.MethodGet)
		return
	}
	prefix := request.URL.Query().Get("prefix")
	var sum Requests
	server.counting.Lock()
	for name, counted := range server.counted {
		if strings.HasPrefix(name, prefix) {
			sum.Repositories++
			sum.Conversations += counted.Conversations
			sum.Requests += counted.Requests
		}
	}
	server.counting.Unlock()
	response.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(response).Encode(sum)
}

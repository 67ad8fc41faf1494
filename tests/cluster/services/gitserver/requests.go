package gitserver

import (
	"encoding/json"
	"net/http"
	"strings"
)

// Requests counts the read requests of polls, fetches and clones.
type Requests struct {
	// Repositories is the number of different repositories.
	Repositories int `json:"repositories"`
	// Sessions is the number of requests for the capabilities of the server. Each poll, fetch or clone starts with such
	// a request.
	Sessions int `json:"sessions"`
	// Requests is the total number of read requests.
	Requests int `json:"requests"`
}

// count records a read request.
func (server *Server) count(name string, begins bool) {
	server.counting.Lock()
	defer server.counting.Unlock()
	counted := server.counted[name]
	counted.Requests++
	if begins {
		counted.Sessions++
	}
	server.counted[name] = counted
}

// serveRequests responds with the sums over all repositories with a name prefix.
func (server *Server) serveRequests(response http.ResponseWriter, request *http.Request) {
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
			sum.Sessions += counted.Sessions
			sum.Requests += counted.Requests
		}
	}
	server.counting.Unlock()
	response.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(response).Encode(sum)
}

package pulumicloud

import (
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"
)

// maxRequests is the maximum number of recorded requests per organization. When it is reached, the server forgets the
// oldest half.
const maxRequests = 20_000

// Request is a recorded request.
type Request struct {
	Time      time.Time `json:"time"`
	Method    string    `json:"method"`
	Path      string    `json:"path"`
	Query     string    `json:"query,omitempty"`
	UserAgent string    `json:"userAgent"`
	// Stack has the form PROJECT/STACK.
	Stack string `json:"stack,omitempty"`
	// User is the owner of the access token. It is empty for update tokens.
	User   string `json:"user,omitempty"`
	Status int    `json:"status"`

	token         string
	organizations []string
}

var (
	stackPath        = regexp.MustCompile(`^/api/stacks/([^/]+)/([^/]+)/([^/]+)`)
	organizationPath = regexp.MustCompile(`^/api/(?:stacks|orgs|esc/environments|preview/environments)/([^/]+)`)
	tokenKind        = regexp.MustCompile(`^(token|update-token) `)
)

const audiencePrefix = "urn:pulumi:org:"

// describe returns the description of a request. A request belongs to the organization in its path, or to all
// organizations of its caller.
func describe(request *http.Request, caller *caller) *Request {
	description := &Request{
		Time: time.Now(), Method: request.Method, Path: request.URL.Path, Query: request.URL.RawQuery,
		UserAgent: request.UserAgent(), token: tokenKind.ReplaceAllString(request.Header.Get("Authorization"), ""),
	}
	if caller != nil {
		description.User = caller.name
		description.organizations = caller.organizations()
	}
	if match := organizationPath.FindStringSubmatch(request.URL.Path); match != nil {
		description.organizations = match[1:]
	}
	if match := stackPath.FindStringSubmatch(request.URL.Path); match != nil {
		description.Stack = match[2] + "/" + match[3]
	}
	if request.URL.Path == "/api/oauth/token" {
		if organization, found := strings.CutPrefix(request.PostFormValue("audience"), audiencePrefix); found {
			description.organizations = []string{organization}
		}
	}
	return description
}

// observe identifies the caller of each request, records the request and injects faults.
func (server *Server) observe(next http.Handler) http.Handler {
	return http.HandlerFunc(func(response http.ResponseWriter, request *http.Request) {
		request.Body = http.MaxBytesReader(response, request.Body, longestBody)
		request, caller := server.identify(request)
		description := describe(request, caller)
		observed := &statusRecorder{ResponseWriter: response}
		if fault := server.nextFault(description); fault != nil {
			inject(fault, observed, request, next)
		} else {
			next.ServeHTTP(observed, request)
		}
		description.Status = observed.status
		server.record(description)
	})
}

func (server *Server) record(request *Request) {
	server.observing.Lock()
	defer server.observing.Unlock()
	for _, organization := range request.organizations {
		recorded := server.requests[organization]
		if len(recorded) >= maxRequests {
			recorded = slices.Clone(recorded[maxRequests/2:])
		}
		server.requests[organization] = append(recorded, *request)
	}
}

// listRequests returns the requests of an organization that match all filters, in the order of their responses.
func (server *Server) listRequests(organization string, filter func(*Request) bool) []Request {
	server.observing.Lock()
	defer server.observing.Unlock()
	result := []Request{}
	for _, request := range server.requests[organization] {
		if filter(&request) {
			result = append(result, request)
		}
	}
	return result
}

// statusRecorder remembers the status of a response.
type statusRecorder struct {
	http.ResponseWriter
	status int
}

func (recorder *statusRecorder) WriteHeader(status int) {
	recorder.status = status
	recorder.ResponseWriter.WriteHeader(status)
}

func (recorder *statusRecorder) Write(content []byte) (int, error) {
	if recorder.status == 0 {
		recorder.status = http.StatusOK
	}
	return recorder.ResponseWriter.Write(content)
}

// Unwrap gives http.ResponseController access to the response.
func (recorder *statusRecorder) Unwrap() http.ResponseWriter {
	return recorder.ResponseWriter
}

package pulumicloud

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"time"

	"github.com/pulumi/pulumi/sdk/v3/go/common/apitype"
)

// maxFaults is the maximum number of faults per organization.
const maxFaults = 1000

// Fault is the misbehavior of the server for the requests that match all conditions.
type Fault struct {
	// Method, Path, Token and Stack are the conditions. An empty condition matches all requests. Path is a regular
	// expression for the entire path, and Stack has the form PROJECT/STACK.
	Method string `json:"method,omitempty"`
	Path   string `json:"path,omitempty"`
	Token  string `json:"token,omitempty"`
	Stack  string `json:"stack,omitempty"`
	// Skip is the number of matching requests before the first request with the fault.
	Skip int `json:"skip,omitempty"`
	// Times is the number of requests with the fault. 0 means no limit.
	Times int `json:"times,omitempty"`

	// Delay is the time before the response.
	Delay Duration `json:"delay,omitempty"`
	// Status is the status of the response. With 0, the server processes the request as usual.
	Status int `json:"status,omitempty"`
	// Message is the message of the error. The default is the message of the service for this status.
	Message string `json:"message,omitempty"`
	// RetryAfter is the value of the Retry-After header.
	RetryAfter string `json:"retryAfter,omitempty"`
	// Processed makes the server process the request before it responds with the status.
	Processed bool `json:"processed,omitempty"`
	// Disconnect closes the connection in place of a response.
	Disconnect bool `json:"disconnect,omitempty"`

	// ID and Matched are set by the server. Matched is the number of matching requests.
	ID      int `json:"id"`
	Matched int `json:"matched"`

	path *regexp.Regexp
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

// prepare checks a new fault.
func (fault *Fault) prepare() error {
	if fault.Status != 0 && (fault.Status < 400 || fault.Status > 599) {
		return fmt.Errorf("invalid status %d: must be an error between 400 and 599", fault.Status)
	}
	if fault.Status == 0 && fault.Delay == 0 && !fault.Disconnect {
		return errors.New("the fault has no effect: set status, delay or disconnect")
	}
	if fault.Skip < 0 || fault.Times < 0 || fault.Delay < 0 {
		return errors.New("skip, times and delay must not be negative")
	}
	path, err := regexp.Compile("^(?:" + fault.Path + ")$")
	if err != nil {
		return fmt.Errorf("invalid path: %w", err)
	}
	if fault.Path != "" {
		fault.path = path
	}
	return nil
}

func (fault *Fault) matches(request *Request) bool {
	return (fault.Method == "" || fault.Method == request.Method) &&
		(fault.path == nil || fault.path.MatchString(request.Path)) &&
		(fault.Token == "" || fault.Token == request.token) &&
		(fault.Stack == "" || fault.Stack == request.Stack)
}

// addFault stores a fault of an organization.
func (server *Server) addFault(organization string, fault *Fault) error {
	server.observing.Lock()
	defer server.observing.Unlock()
	if len(server.faults[organization]) >= maxFaults {
		return fmt.Errorf("the organization %s has %d faults: delete them first", organization, maxFaults)
	}
	server.lastFault++
	fault.ID, fault.Matched = server.lastFault, 0
	server.faults[organization] = append(server.faults[organization], fault)
	return nil
}

func (server *Server) listFaults(organization string) []Fault {
	server.observing.Lock()
	defer server.observing.Unlock()
	result := []Fault{}
	for _, fault := range server.faults[organization] {
		result = append(result, *fault)
	}
	return result
}

// nextFault counts the request and returns a copy of its first fault, or nil.
func (server *Server) nextFault(request *Request) *Fault {
	server.observing.Lock()
	defer server.observing.Unlock()
	for _, organization := range request.organizations {
		for _, fault := range server.faults[organization] {
			if !fault.matches(request) {
				continue
			}
			fault.Matched++
			if after := fault.Matched - fault.Skip; after > 0 && (fault.Times == 0 || after <= fault.Times) {
				copied := *fault
				return &copied
			}
		}
	}
	return nil
}

// inject responds to a request with a fault.
func inject(fault *Fault, response http.ResponseWriter, request *http.Request, next http.Handler) {
	if fault.Processed {
		next.ServeHTTP(&discarded{header: http.Header{}}, request)
	}
	select {
	case <-time.After(time.Duration(fault.Delay)):
	case <-request.Context().Done():
		return
	}
	switch {
	case fault.Disconnect:
		disconnect(response)
	case fault.Status == 0:
		next.ServeHTTP(response, request)
	default:
		// The client can send its next request on the same connection only if the server has read the body.
		_, _ = io.Copy(io.Discard, http.MaxBytesReader(response, request.Body, longestBody))
		if fault.RetryAfter != "" {
			response.Header().Set("Retry-After", fault.RetryAfter)
		}
		writeError(response, fault.failure())
	}
}

// disconnect closes the connection to the client.
func disconnect(response http.ResponseWriter) {
	connection, _, err := http.NewResponseController(response).Hijack()
	if err != nil {
		writeError(response, fmt.Errorf("failed to close the connection: %w", err))
		return
	}
	_ = connection.Close()
}

func (fault *Fault) failure() error {
	switch {
	case fault.Message != "":
		return &apitype.ErrorResponse{Code: fault.Status, Message: fault.Message}
	case fault.Status == http.StatusUnauthorized:
		return errUnauthorized
	case fault.Status == http.StatusConflict:
		return errConflict
	default:
		return &apitype.ErrorResponse{Code: fault.Status, Message: http.StatusText(fault.Status)}
	}
}

// discarded is a response that the client does not receive.
type discarded struct {
	header http.Header
}

func (response *discarded) Header() http.Header { return response.header }

func (response *discarded) Write(content []byte) (int, error) { return len(content), nil }

func (response *discarded) WriteHeader(int) {}

// removeFaults deletes one fault of an organization, or all faults if the ID is 0. It reports whether the fault existed.
func (server *Server) removeFaults(organization string, id int) bool {
	server.observing.Lock()
	defer server.observing.Unlock()
	before := len(server.faults[organization])
	server.faults[organization] = slices.DeleteFunc(server.faults[organization], func(fault *Fault) bool {
		return id == 0 || fault.ID == id
	})
	return id == 0 || len(server.faults[organization]) < before
}

package eventlog

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	// maximumEventSize is sufficient for a long error message and a long URN.
	maximumEventSize = 64 * 1024
	// maximumWait limits the lifetime of an abandoned request.
	maximumWait = 10 * time.Minute
)

// Handler serves the log over HTTP.
func (log *Log) Handler() http.Handler {
	routes := http.NewServeMux()
	routes.HandleFunc("POST /events", log.handleAppend)
	routes.HandleFunc("GET /events", log.handleFind)
	routes.HandleFunc("DELETE /events", log.handleForget)
	routes.HandleFunc("GET /healthz", func(response http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(response, "ok")
	})
	return routes
}

func (log *Log) handleAppend(response http.ResponseWriter, request *http.Request) {
	var event Event
	decoder := json.NewDecoder(http.MaxBytesReader(response, request.Body, maximumEventSize))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&event); err != nil {
		status := http.StatusBadRequest
		var tooLarge *http.MaxBytesError
		if errors.As(err, &tooLarge) {
			status = http.StatusRequestEntityTooLarge
		}
		http.Error(response, fmt.Sprintf("reading the event: %v", err), status)
		return
	}
	if err := event.check(); err != nil {
		http.Error(response, err.Error(), http.StatusBadRequest)
		return
	}
	event, err := log.Append(event)
	if err != nil {
		http.Error(response, err.Error(), http.StatusInsufficientStorage)
		return
	}
	writeJSON(response, http.StatusCreated, event)
}

func (log *Log) handleFind(response http.ResponseWriter, request *http.Request) {
	filter, rest := filterFrom(request.URL.Query())
	wait, count, err := waitFrom(rest)
	if err != nil {
		http.Error(response, err.Error(), http.StatusBadRequest)
		return
	}
	ctx, cancel := context.WithTimeout(request.Context(), wait)
	defer cancel()
	writeJSON(response, http.StatusOK, log.Wait(ctx, filter, count))
}

func (log *Log) handleForget(response http.ResponseWriter, request *http.Request) {
	filter, rest := filterFrom(request.URL.Query())
	if err := refuseUnknown(rest); err != nil {
		http.Error(response, err.Error(), http.StatusBadRequest)
		return
	}
	writeJSON(response, http.StatusOK, map[string]int{"forgotten": log.Forget(filter)})
}

// waitFrom parses the wait time and the number of events. Without a wait time, the response is immediate.
func waitFrom(query url.Values) (wait time.Duration, count int, err error) {
	count = 1
	if text := query.Get("wait"); text != "" {
		wait, err = time.ParseDuration(text)
		if err != nil || wait < 0 || wait > maximumWait {
			return 0, 0, fmt.Errorf("invalid wait=%s: must be a duration from 0s to %s", text, maximumWait)
		}
	}
	if text := query.Get("count"); text != "" {
		count, err = strconv.Atoi(text)
		if err != nil || count < 1 {
			return 0, 0, fmt.Errorf("invalid count=%s: must be a positive number", text)
		}
		if !query.Has("wait") {
			return 0, 0, errors.New("count requires wait=DURATION")
		}
	}
	query.Del("wait")
	query.Del("count")
	return wait, count, refuseUnknown(query)
}

// refuseUnknown rejects unknown parameters: a misspelled filter would otherwise match every event.
func refuseUnknown(query url.Values) error {
	if len(query) == 0 {
		return nil
	}
	var names []string
	for name := range query {
		names = append(names, name)
	}
	slices.Sort(names)
	return fmt.Errorf("unknown query parameters: %s; the parameters are resource, stack, operation, phase, host, "+
		"and for GET also wait and count", strings.Join(names, ", "))
}

func writeJSON(response http.ResponseWriter, status int, value any) {
	response.Header().Set("Content-Type", "application/json")
	response.WriteHeader(status)
	// The status has already been sent. The only possible error is a closed connection, which cannot be reported.
	_ = json.NewEncoder(response).Encode(value)
}

// Package eventlog stores the events of the test provider. They prove that an operation took place exactly once.
package eventlog

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"
)

// The phases of an operation: begin before the change, and exactly one of the other phases after the change. An
// operation without an end means that the provider died during the operation.
const (
	Begin     = "begin"
	Done      = "done"
	Failed    = "failed"
	Cancelled = "cancelled"
)

// Event is one entry of the log.
type Event struct {
	// Sequence is the position in the order of arrival, starting at 1. The log assigns it and never reuses it.
	Sequence  uint64 `json:"sequence,omitempty"`
	Resource  string `json:"resource"`
	URN       string `json:"urn,omitempty"`
	Stack     string `json:"stack,omitempty"`
	Project   string `json:"project,omitempty"`
	Operation string `json:"operation"`
	Phase     string `json:"phase"`
	// Error is the cause if the phase is failed or cancelled.
	Error string    `json:"error,omitempty"`
	PID   int       `json:"pid"`
	Host  string    `json:"host"`
	Time  time.Time `json:"time"`
	// ID is the same for the begin and the end of an operation.
	ID string `json:"id"`
}

func (event Event) check() error {
	for name, value := range map[string]string{
		"resource": event.Resource, "operation": event.Operation, "phase": event.Phase, "id": event.ID,
	} {
		if value == "" {
			return fmt.Errorf("the event has no %q", name)
		}
	}
	if phases := []string{Begin, Done, Failed, Cancelled}; !slices.Contains(phases, event.Phase) {
		return fmt.Errorf("invalid phase %q: must be one of %s", event.Phase, strings.Join(phases, ", "))
	}
	if event.Sequence != 0 {
		return errors.New("the event has a sequence number, which only the log may assign")
	}
	return nil
}

// Filter selects events by exact field values. An empty field matches every event.
type Filter struct {
	Resource, Stack, Operation, Phase, Host string
}

func (filter Filter) matches(event Event) bool {
	return matchesField(filter.Resource, event.Resource) &&
		matchesField(filter.Stack, event.Stack) &&
		matchesField(filter.Operation, event.Operation) &&
		matchesField(filter.Phase, event.Phase) &&
		matchesField(filter.Host, event.Host)
}

func matchesField(wanted, actual string) bool {
	return wanted == "" || wanted == actual
}

// filterFrom parses the filter in a query and returns the remaining parameters.
func filterFrom(query url.Values) (Filter, url.Values) {
	var filter Filter
	for name, field := range map[string]*string{
		"resource": &filter.Resource, "stack": &filter.Stack, "operation": &filter.Operation,
		"phase": &filter.Phase, "host": &filter.Host,
	} {
		*field = query.Get(name)
		query.Del(name)
	}
	return filter, query
}

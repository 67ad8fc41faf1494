package eventlog

import (
	"context"
	"fmt"
	"sync"
)

// Log stores events in memory in the order of arrival.
type Log struct {
	capacity int

	lock     sync.Mutex
	events   []Event
	sequence uint64
	// changed is closed and replaced when an event arrives.
	changed chan struct{}
}

// New returns an empty log for at most capacity events.
func New(capacity int) *Log {
	return &Log{capacity: capacity, changed: make(chan struct{})}
}

// Append adds an event and returns it with its sequence number. It fails if the log is full. If the log dropped old
// events, a test that counts events could pass or fail wrongly.
func (log *Log) Append(event Event) (Event, error) {
	log.lock.Lock()
	defer log.lock.Unlock()
	if len(log.events) >= log.capacity {
		return Event{}, fmt.Errorf("the log is full with %d events: delete events with DELETE /events", len(log.events))
	}
	log.sequence++
	event.Sequence = log.sequence
	log.events = append(log.events, event)
	close(log.changed)
	log.changed = make(chan struct{})
	return event, nil
}

// Find returns the matching events and a channel that is closed when another event arrives.
func (log *Log) Find(filter Filter) ([]Event, <-chan struct{}) {
	log.lock.Lock()
	defer log.lock.Unlock()
	// The list is never nil, because an empty list must be encoded as [], not as null.
	found := []Event{}
	for _, event := range log.events {
		if filter.matches(event) {
			found = append(found, event)
		}
	}
	return found, log.changed
}

// Wait returns the matching events as soon as there are at least count, or when the context ends.
func (log *Log) Wait(ctx context.Context, filter Filter, count int) []Event {
	for {
		found, changed := log.Find(filter)
		if len(found) >= count {
			return found
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return found
		}
	}
}

// Forget removes the matching events and returns their number.
func (log *Log) Forget(filter Filter) int {
	log.lock.Lock()
	defer log.lock.Unlock()
	var kept []Event
	for _, event := range log.events {
		if !filter.matches(event) {
			kept = append(kept, event)
		}
	}
	forgotten := len(log.events) - len(kept)
	log.events = kept
	return forgotten
}

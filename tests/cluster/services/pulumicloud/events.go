package pulumicloud

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strconv"

	"github.com/pulumi/pulumi/sdk/v3/go/common/apitype"
)

const (
	// maxEvents is the maximum number of events of an update.
	maxEvents = 200_000
	// eventPage is the maximum number of events in a response.
	eventPage = 1000
)

func saveEvent(call *call, stack *stack, update *update) error {
	var event json.RawMessage
	if err := call.decode(&event); err != nil {
		return err
	}
	return stack.appendEvents(call, update, []json.RawMessage{event})
}

func saveEvents(call *call, stack *stack, update *update) error {
	var batch struct {
		Events []json.RawMessage `json:"events"`
	}
	if err := call.decode(&batch); err != nil {
		return err
	}
	return stack.appendEvents(call, update, batch.Events)
}

// appendEvents stores events without changes, because the CLI can be newer than the message types of the server.
func (stack *stack) appendEvents(call *call, update *update, events []json.RawMessage) error {
	if update.Events+len(events) > maxEvents {
		return failure(http.StatusRequestEntityTooLarge, "an update can have %d events", maxEvents)
	}
	var lines bytes.Buffer
	for _, event := range events {
		var known apitype.EngineEvent
		if err := json.Unmarshal(event, &known); err != nil {
			return failure(http.StatusBadRequest, "failed to decode an event: %v", err)
		}
		if known.SummaryEvent != nil {
			update.ResourceChanges = known.SummaryEvent.ResourceChanges
		}
		// A line contains one event, so the event must contain no line break.
		if err := json.Compact(&lines, event); err != nil {
			return failure(http.StatusBadRequest, "failed to decode an event: %v", err)
		}
		lines.WriteByte('\n')
	}
	path := stack.updatePath(update.ID, ".events")
	file, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("failed to open %s: %w", path, err)
	}
	_, err = file.Write(lines.Bytes())
	if err := errors.Join(err, file.Close()); err != nil {
		return fmt.Errorf("failed to write %s: %w", path, err)
	}
	update.Events += len(events)
	if err := stack.saveUpdate(update); err != nil {
		return err
	}
	return call.reply(struct{}{})
}

type storedEvent struct {
	sequence int
	kind     string
	urn      string
	content  json.RawMessage
}

// readEvents returns the events of an update in the order of their sequence numbers. A repeated request of the CLI can
// store an event twice, so the result contains only the first event with a sequence number.
func (stack *stack) readEvents(update *update) ([]storedEvent, error) {
	path := stack.updatePath(update.ID, ".events")
	content, err := os.ReadFile(path)
	if err != nil && !os.IsNotExist(err) {
		return nil, fmt.Errorf("failed to read %s: %w", path, err)
	}
	var events []storedEvent
	lines := bufio.NewScanner(bytes.NewReader(content))
	lines.Buffer(nil, longestBody)
	for lines.Scan() {
		// The bytes of the scanner are valid only until the next line.
		event, err := describeEvent(bytes.Clone(lines.Bytes()))
		if err != nil {
			return nil, fmt.Errorf("failed to decode %s: %w", path, err)
		}
		events = append(events, event)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("failed to read %s: %w", path, err)
	}
	slices.SortStableFunc(events, func(a, b storedEvent) int { return a.sequence - b.sequence })
	return slices.CompactFunc(events, func(a, b storedEvent) bool { return a.sequence == b.sequence }), nil
}

// describeEvent finds the type and the resource of an event. An event has one field that is an object, whose name is
// the type of the event.
func describeEvent(content json.RawMessage) (storedEvent, error) {
	event := storedEvent{content: content}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(content, &fields); err != nil {
		return event, err
	}
	for name, field := range fields {
		switch {
		case name == "sequence":
			if err := json.Unmarshal(field, &event.sequence); err != nil {
				return event, err
			}
		case bytes.HasPrefix(field, []byte("{")):
			var payload struct {
				URN         string `json:"urn"`
				ResourceURN string `json:"resourceUrn"`
				Metadata    struct {
					URN string `json:"urn"`
				} `json:"metadata"`
			}
			if err := json.Unmarshal(field, &payload); err != nil {
				return event, err
			}
			event.kind = name
			event.urn = payload.URN + payload.ResourceURN + payload.Metadata.URN
		}
	}
	return event, nil
}

// serveEvents lists the events of an update. The continuation token is the next sequence number. It is null after the
// last event of a complete update.
func serveEvents(call *call, stack *stack, update *update) error {
	query := call.URL.Query()
	first := 0
	if token := query.Get("continuationToken"); token != "" {
		var err error
		if first, err = strconv.Atoi(token); err != nil {
			return failure(http.StatusBadRequest, "invalid continuationToken %q", token)
		}
	}
	events, err := stack.readEvents(update)
	if err != nil {
		return err
	}
	response := struct {
		Events            []json.RawMessage `json:"events"`
		ContinuationToken *string           `json:"continuationToken"`
	}{Events: []json.RawMessage{}}
	next, more := first, update.Status == apitype.StatusRunning
	for _, event := range events {
		if event.sequence < first {
			continue
		}
		if len(response.Events) == eventPage {
			more = true
			break
		}
		next = event.sequence + 1
		types, urn := query["type"], query.Get("urn")
		if (len(types) == 0 || slices.Contains(types, event.kind)) && (urn == "" || urn == event.urn) {
			response.Events = append(response.Events, event.content)
		}
	}
	if more {
		token := strconv.Itoa(next)
		response.ContinuationToken = &token
	}
	return call.reply(response)
}

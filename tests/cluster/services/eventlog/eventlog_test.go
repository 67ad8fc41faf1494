package eventlog

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

func start(t *testing.T, capacity int) string {
	t.Helper()
	server := httptest.NewServer(New(capacity).Handler())
	t.Cleanup(server.Close)
	return server.URL
}

// request sends a request and checks the status of the response.
func request(t *testing.T, method, url, body string, wantedStatus int) string {
	t.Helper()
	request, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	if response.StatusCode != wantedStatus {
		t.Fatalf("%s %s: status %d, want %d: %s", method, url, response.StatusCode, wantedStatus, answer)
	}
	return string(answer)
}

func post(t *testing.T, server string, event Event) {
	t.Helper()
	body, err := json.Marshal(event)
	if err != nil {
		t.Fatal(err)
	}
	request(t, "POST", server+"/events", string(body), http.StatusCreated)
}

func find(t *testing.T, server, query string) []Event {
	t.Helper()
	var events []Event
	if err := json.Unmarshal([]byte(request(t, "GET", server+"/events"+query, "", http.StatusOK)), &events); err != nil {
		t.Fatal(err)
	}
	return events
}

func event(resource, operation, phase string) Event {
	return Event{Resource: resource, Operation: operation, Phase: phase, Stack: "dev", Host: "pod-" + resource, ID: "1"}
}

func TestFindReturnsMatchingEventsInOrder(t *testing.T) {
	server := start(t, 100)
	if answer := request(t, "GET", server+"/events", "", http.StatusOK); strings.TrimSpace(answer) != "[]" {
		t.Fatalf("an empty log responded with %s", answer)
	}
	other := event("b", "create", Done)
	other.Stack = "production"
	for _, each := range []Event{
		event("a", "create", Begin), event("b", "create", Begin), event("a", "create", Done), other,
		event("a", "delete", Begin),
	} {
		post(t, server, each)
	}
	for query, wanted := range map[string][]uint64{
		"":                                      {1, 2, 3, 4, 5},
		"?resource=a":                           {1, 3, 5},
		"?resource=a&operation=create":          {1, 3},
		"?phase=done":                           {3, 4},
		"?stack=production":                     {4},
		"?host=pod-b":                           {2, 4},
		"?resource=a&phase=done&host=pod-b":     {},
		"?resource=":                            {1, 2, 3, 4, 5},
		"?resource=A":                           {},
		"?operation=delete&phase=begin&stack=d": {},
	} {
		sequences := []uint64{}
		for _, each := range find(t, server, query) {
			sequences = append(sequences, each.Sequence)
		}
		if fmt.Sprint(sequences) != fmt.Sprint(wanted) {
			t.Errorf("%q found %v, want %v", query, sequences, wanted)
		}
	}
}

func TestWaitEndsWhenEnoughEventsMatch(t *testing.T) {
	server := start(t, 100)
	found := make(chan []Event, 1)
	go func() { found <- find(t, server, "?resource=a&wait=20s&count=2") }()
	post(t, server, event("a", "create", Begin))
	post(t, server, event("b", "create", Begin))
	select {
	case events := <-found:
		t.Fatalf("the wait for two events ended with %v", events)
	case <-time.After(100 * time.Millisecond):
	}
	post(t, server, event("a", "create", Done))
	select {
	case events := <-found:
		if len(events) != 2 || events[0].Phase != Begin || events[1].Phase != Done {
			t.Fatalf("the wait ended with %v", events)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("the wait did not end after both events arrived")
	}
}

func TestWaitReturnsMatchingEventsAfterTimeout(t *testing.T) {
	server := start(t, 100)
	post(t, server, event("a", "create", Begin))
	begin := time.Now()
	if events := find(t, server, "?wait=200ms&count=5"); len(events) != 1 {
		t.Fatalf("found %v", events)
	}
	if took := time.Since(begin); took < 200*time.Millisecond {
		t.Fatalf("the wait of 200 ms ended after %s", took)
	}
}

func TestForgetRemovesMatchingEventsAndKeepsSequence(t *testing.T) {
	server := start(t, 100)
	post(t, server, event("a", "create", Begin))
	post(t, server, event("b", "create", Begin))
	if answer := request(t, "DELETE", server+"/events?resource=a", "", http.StatusOK); !strings.Contains(answer, `"forgotten":1`) {
		t.Fatalf("the deletion responded with %s", answer)
	}
	post(t, server, event("c", "create", Begin))
	events := find(t, server, "")
	if len(events) != 2 || events[0].Resource != "b" || events[1].Sequence != 3 {
		t.Fatalf("the remaining events are %v", events)
	}
	request(t, "DELETE", server+"/events", "", http.StatusOK)
	if events := find(t, server, ""); len(events) != 0 {
		t.Fatalf("the remaining events are %v", events)
	}
}

func TestFullLogRejectsNewEvents(t *testing.T) {
	server := start(t, 1)
	post(t, server, event("a", "create", Begin))
	answer := request(t, "POST", server+"/events", `{"resource":"b","operation":"create","phase":"done","id":"1"}`,
		http.StatusInsufficientStorage)
	if !strings.Contains(answer, "full") {
		t.Errorf("the response does not contain the reason: %s", answer)
	}
	if events := find(t, server, ""); len(events) != 1 || events[0].Resource != "a" {
		t.Fatalf("the log contains %v", events)
	}
}

func TestInvalidRequestsAreRejectedWithReason(t *testing.T) {
	server := start(t, 100)
	for _, refused := range []struct {
		method, path, body string
		status             int
		reason             string
	}{
		{"POST", "/events", `not JSON`, http.StatusBadRequest, "reading the event"},
		{"POST", "/events", `{"resource":"a","operation":"create","id":"1"}`, http.StatusBadRequest, `no "phase"`},
		{"POST", "/events", `{"resource":"a","operation":"create","phase":"dnoe","id":"1"}`, http.StatusBadRequest, "dnoe"},
		{"POST", "/events", `{"resource":"a","phaze":"done"}`, http.StatusBadRequest, "phaze"},
		{"POST", "/events", `{"resource":"` + strings.Repeat("a", maximumEventSize) + `"}`,
			http.StatusRequestEntityTooLarge, "too large"},
		{"GET", "/events?resourse=a", "", http.StatusBadRequest, "resourse"},
		{"GET", "/events?wait=long", "", http.StatusBadRequest, "wait=long"},
		{"GET", "/events?wait=1s&count=0", "", http.StatusBadRequest, "count=0"},
		{"GET", "/events?count=2", "", http.StatusBadRequest, "wait"},
		{"DELETE", "/events?wait=1s", "", http.StatusBadRequest, "wait"},
	} {
		answer := request(t, refused.method, server+refused.path, refused.body, refused.status)
		if !strings.Contains(answer, refused.reason) {
			t.Errorf("%s %s: the response does not contain %q: %s", refused.method, refused.path, refused.reason, answer)
		}
	}
	if events := find(t, server, ""); len(events) != 0 {
		t.Fatalf("the log contains a rejected event: %v", events)
	}
}

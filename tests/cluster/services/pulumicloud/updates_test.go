package pulumicloud

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/pulumi/pulumi/sdk/v3/go/common/apitype"
)

// delta returns a request that inserts text at an offset.
func delta(sequence, offset int, text, after string) string {
	position := map[string]int{"line": 1, "column": 1, "offset": offset}
	edits := []map[string]any{{"Span": map[string]any{"uri": "", "start": position, "end": position}, "NewText": text}}
	content, _ := json.Marshal(map[string]any{
		"version": 3, "sequenceNumber": sequence, "checkpointHash": hashOf([]byte(after)), "deploymentDelta": edits,
	})
	return string(content)
}

func TestDeltaMustMatchHashAndSequenceNumber(t *testing.T) {
	cloud := newCloud(t)
	path, lease := cloud.begin("update")
	before, after := stateOf("a"), stateOf("a", "b")
	offset := strings.Index(before, "]")
	second := delta(2, offset, `,{"urn":"b"}`, after)
	cloud.mustFailAs(lease, http.StatusBadRequest, "verbatim", "PATCH", path+"/checkpointdelta", second)
	cloud.must("PATCH", path+"/checkpointverbatim", lease, verbatim(1, before), nil)
	cloud.mustFailAs(lease, http.StatusBadRequest, "has the hash", "PATCH", path+"/checkpointdelta", delta(2, offset, "", after))
	cloud.mustFailAs(lease, http.StatusBadRequest, "exceeds the size", "PATCH", path+"/checkpointdelta", delta(2, 10_000, "x", after))
	cloud.mustFailAs(lease, http.StatusConflict, "sequence number 3", "PATCH", path+"/checkpointdelta", delta(3, offset, `,{"urn":"b"}`, after))
	cloud.must("PATCH", path+"/checkpointdelta", lease, second, nil)
	// The CLI repeats a request whose response it did not receive.
	cloud.must("PATCH", path+"/checkpointdelta", lease, second, nil)
	cloud.mustFailAs(lease, http.StatusConflict, "sequence number 1", "PATCH", path+"/checkpointverbatim", verbatim(1, before))
	cloud.must("POST", path+"/complete", lease, `{"status": "succeeded"}`, nil)

	var exported json.RawMessage
	cloud.call("GET", stackURL+"/export", "", &exported)
	if string(exported) != after {
		t.Errorf("the state is %s, want %s", exported, after)
	}
	if found := cloud.updates()[0]; found.Checkpoints["delta"] != 1 || found.Checkpoints["verbatim"] != 1 || found.ResourceCount != 2 {
		t.Errorf("the update is %+v", found)
	}
}

func TestOldVersionsOfStateCanBeExported(t *testing.T) {
	cloud := newCloud(t)
	for version := 1; version <= 3; version++ {
		path, lease := cloud.begin("update")
		// The second update changes nothing.
		if version != 2 {
			body := fmt.Sprintf(`{"version": 3, "deployment": {"resources": [{"urn": "%d"}]}}`, version)
			cloud.must("PATCH", path+"/checkpoint", lease, body, nil)
		}
		cloud.must("POST", path+"/complete", lease, `{"status": "succeeded"}`, nil)
	}
	cloud.restart()
	for version, wanted := range map[string]string{"/1": `"1"`, "/2": `"1"`, "/3": `"3"`, "": `"3"`} {
		var exported json.RawMessage
		cloud.call("GET", stackURL+"/export"+version, "", &exported)
		if !strings.Contains(string(exported), wanted) {
			t.Errorf("export%s returned %s", version, exported)
		}
	}
	cloud.mustFail(http.StatusNotFound, "Version 4", "GET", stackURL+"/export/4", "")
}

func TestOnlyOneUpdateHasLease(t *testing.T) {
	cloud := newCloud(t)
	path, lease := cloud.begin("update")
	var created apitype.UpdateProgramResponse
	cloud.call("POST", stackURL+"/destroy", "", &created)
	second := stackURL + "/update/" + created.UpdateID
	cloud.mustFail(http.StatusConflict, "Conflict: Another update is currently in progress.", "POST", second, "{}")
	cloud.mustFail(http.StatusConflict, "Another update", "POST", stackURL+"/import", stateOf("a"))
	cloud.mustFail(http.StatusConflict, "Another update", "DELETE", stackURL+"?force=true", "")
	var stack apitype.Stack
	cloud.call("GET", stackURL, "", &stack)
	if operation := stack.CurrentOperation; operation == nil || operation.Author != "alice" || operation.Kind != "update" || operation.Started == 0 {
		t.Errorf("the current operation is %+v", operation)
	}
	// A preview needs no lease.
	cloud.begin("preview")
	cloud.must("POST", path+"/complete", lease, `{"status": "failed"}`, nil)
	cloud.mustFailAs(lease, http.StatusConflict, "The Update has already completed", "POST", path+"/complete", `{"status": "failed"}`)
	cloud.call("POST", second, "{}", nil)
}

func TestExpiredLeaseEndsUpdateAndRejectsToken(t *testing.T) {
	cloud := newCloud(t)
	path, lease := cloud.begin("update")
	cloud.must("POST", path+"/renew_lease", lease, `{"duration": 300}`, nil)
	cloud.mustFailAs(lease, http.StatusBadRequest, "between 1 and 300", "POST", path+"/renew_lease", `{"duration": 301}`)
	cloud.mustFailAs("update-token other", http.StatusForbidden, "token is invalid", "POST", path+"/renew_lease", `{"duration": 60}`)
	cloud.mustFail(http.StatusUnauthorized, "No credentials", "POST", path+"/renew_lease", `{"duration": 60}`)
	cloud.must("POST", controlledStack+"/lease/expire", "", "", nil)
	const expired = "The provided update token has expired"
	cloud.mustFailAs(lease, http.StatusForbidden, expired, "PATCH", path+"/checkpointverbatim", verbatim(1, stateOf("a")))
	cloud.restart()
	cloud.mustFailAs(lease, http.StatusForbidden, expired, "POST", path+"/complete", `{"status": "succeeded"}`)
	var history apitype.GetHistoryResponse
	cloud.call("GET", stackURL+"/updates", "", &history)
	if len(history.Updates) != 1 || history.Updates[0].Result != apitype.FailedResult || history.Updates[0].EndTime == 0 {
		t.Errorf("the history is %+v", history.Updates)
	}
	cloud.begin("update")
}

func TestLeaseDurationCanBeSetPerStack(t *testing.T) {
	cloud := newCloud(t)
	path, lease := cloud.begin("update")
	cloud.put(controlledStack+"/lease", `{"duration": "10ms"}`)
	cloud.must("POST", path+"/renew_lease", lease, `{"duration": 300}`, nil)
	deadline := time.Now().Add(10 * time.Second)
	for {
		status, body := cloud.send("POST", path+"/renew_lease", lease, `{"duration": 300}`)
		if status == http.StatusForbidden {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the lease of 10ms is still valid: %d %s", status, body)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func TestHistoryHasPagesAndNoPreviews(t *testing.T) {
	cloud := newCloud(t)
	cloud.begin("preview")
	cloud.mustFail(http.StatusNotFound, "has no updates", "GET", stackURL+"/updates/latest", "")
	for range 3 {
		path, lease := cloud.begin("refresh")
		cloud.must("POST", path+"/complete", lease, `{"status": "succeeded"}`, nil)
	}
	for query, wanted := range map[string]string{
		"": "[3 2 1]", "?pageSize=2&page=1": "[3 2]", "?pageSize=2&page=2": "[1]", "?pageSize=2&page=9": "[]",
		"?pageSize=9223372036854775807&page=9223372036854775807": "[]",
	} {
		var history apitype.GetHistoryResponse
		cloud.call("GET", stackURL+"/updates"+query, "", &history)
		versions := []int{}
		for _, update := range history.Updates {
			versions = append(versions, update.Version)
		}
		if fmt.Sprint(versions) != wanted {
			t.Errorf("%q returned the versions %v, want %s", query, versions, wanted)
		}
	}
	cloud.mustFail(http.StatusBadRequest, "pageSize", "GET", stackURL+"/updates?pageSize=0", "")
	var latest describedUpdate
	cloud.call("GET", stackURL+"/updates/latest", "", &latest)
	if latest.Version != 3 || latest.Info.Kind != apitype.RefreshUpdate || latest.Info.Message != "test" {
		t.Errorf("the latest update is %+v", latest)
	}
}

func TestRepeatedEventsAreStoredOnce(t *testing.T) {
	cloud := newCloud(t)
	path, lease := cloud.begin("update")
	batch := `{"events": [
		{"sequence": 1, "resourcePreEvent": {"metadata": {"urn": "urn:a", "op": "create"}}, "unknown": "kept"},
		{"sequence": 0, "stdoutEvent": {"message": "hello"}},
		{"sequence": 2, "summaryEvent": {"resourceChanges": {"create": 1}}}]}`
	cloud.must("POST", path+"/events/batch", lease, batch, nil)
	cloud.must("POST", path+"/events/batch", lease, batch, nil)
	type page struct {
		Events            []map[string]any
		ContinuationToken *string
	}
	var running, complete, filtered page
	cloud.call("GET", path+"/events", "", &running)
	cloud.must("POST", path+"/complete", lease, `{"status": "succeeded"}`, nil)
	cloud.call("GET", path+"/events", "", &complete)
	cloud.call("GET", path+"/events?type=resourcePreEvent&urn=urn:a", "", &filtered)
	if len(running.Events) != 3 || running.ContinuationToken == nil || *running.ContinuationToken != "3" {
		t.Errorf("an update in progress has the events %+v", running)
	}
	if len(complete.Events) != 3 || complete.ContinuationToken != nil || complete.Events[0]["stdoutEvent"] == nil {
		t.Errorf("the complete update has the events %+v", complete)
	}
	if len(filtered.Events) != 1 || filtered.Events[0]["unknown"] != "kept" {
		t.Errorf("the filtered events are %+v", filtered)
	}
	if changes := cloud.updates()[0].ResourceChanges; changes["create"] != 1 {
		t.Errorf("the changes are %v", changes)
	}
}

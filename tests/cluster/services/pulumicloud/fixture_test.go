package pulumicloud

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pulumi/pulumi/sdk/v3/go/common/apitype"
)

const (
	// stackURL is the path of the stack that the tests use.
	stackURL = "/api/stacks/acme/proof/dev"
	// controlledStack is the control path of this stack.
	controlledStack = "/control/organizations/acme/stacks/proof/dev"
)

// cloud is a server with the organization acme, whose only member is alice.
type cloud struct {
	t       *testing.T
	root    string
	url     string
	token   string
	handler atomic.Pointer[http.Handler]
}

func newCloud(t *testing.T) *cloud {
	t.Helper()
	cloud := &cloud{t: t, root: t.TempDir()}
	cloud.restart()
	server := httptest.NewServer(http.HandlerFunc(func(response http.ResponseWriter, request *http.Request) {
		(*cloud.handler.Load()).ServeHTTP(response, request)
	}))
	t.Cleanup(server.Close)
	t.Cleanup(server.CloseClientConnections)
	cloud.url = server.URL
	cloud.put("/control/organizations/acme", `{"members": {"alice": "admin"}}`)
	cloud.token = cloud.newToken("acme", `{"user": "alice", "name": "test"}`)
	return cloud
}

// restart replaces the server with a new server that loads the state.
func (cloud *cloud) restart() {
	cloud.t.Helper()
	server, err := New(cloud.root)
	if err != nil {
		cloud.t.Fatal(err)
	}
	handler := server.Handler()
	cloud.handler.Store(&handler)
}

// send sends a request with an Authorization header, and returns the status and the body of the response.
func (cloud *cloud) send(method, path, authorization, body string) (int, string) {
	cloud.t.Helper()
	request, err := http.NewRequest(method, cloud.url+path, strings.NewReader(body))
	if err != nil {
		cloud.t.Fatal(err)
	}
	if authorization != "" {
		request.Header.Set("Authorization", authorization)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		cloud.t.Fatal(err)
	}
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	if err != nil {
		cloud.t.Fatal(err)
	}
	return response.StatusCode, string(content)
}

// must sends a request that must succeed, and decodes the response.
func (cloud *cloud) must(method, path, authorization, body string, into any) {
	cloud.t.Helper()
	status, content := cloud.send(method, path, authorization, body)
	if status >= 300 {
		cloud.t.Fatalf("%s %s got the status %d: %s", method, path, status, content)
	}
	if into == nil {
		return
	}
	if err := json.Unmarshal([]byte(content), into); err != nil {
		cloud.t.Fatalf("%s %s: %v in %s", method, path, err, content)
	}
}

// call sends a request with the access token of alice.
func (cloud *cloud) call(method, path, body string, into any) {
	cloud.t.Helper()
	cloud.must(method, path, "token "+cloud.token, body, into)
}

// mustFail sends a request with the access token of alice, and checks the status and the text of the response.
func (cloud *cloud) mustFail(wanted int, text, method, path, body string) {
	cloud.t.Helper()
	cloud.mustFailAs("token "+cloud.token, wanted, text, method, path, body)
}

func (cloud *cloud) mustFailAs(authorization string, wanted int, text, method, path, body string) {
	cloud.t.Helper()
	status, content := cloud.send(method, path, authorization, body)
	if status != wanted || !strings.Contains(content, text) {
		cloud.t.Errorf("%s %s got the status %d, want %d with %q: %s", method, path, status, wanted, text, content)
	}
}

func (cloud *cloud) put(path, body string) {
	cloud.t.Helper()
	cloud.must(http.MethodPut, path, "", body, nil)
}

func (cloud *cloud) newToken(organization, body string) string {
	cloud.t.Helper()
	var response struct{ Token string }
	cloud.must(http.MethodPost, "/control/organizations/"+organization+"/tokens", "", body, &response)
	return response.Token
}

func (cloud *cloud) fault(body string) {
	cloud.t.Helper()
	cloud.must(http.MethodPost, "/control/organizations/acme/faults", "", body, nil)
}

// requests returns the recorded requests that match the filter.
func (cloud *cloud) requests(filter string) []Request {
	cloud.t.Helper()
	var requests []Request
	cloud.must(http.MethodGet, "/control/organizations/acme/requests?"+filter, "", "", &requests)
	return requests
}

// updates returns the updates of the stack, newest first.
func (cloud *cloud) updates() []update {
	cloud.t.Helper()
	var updates []update
	cloud.must(http.MethodGet, controlledStack+"/updates", "", "", &updates)
	return updates
}

// waitForRunning waits for an update of the stack that is in progress and that meets the condition.
func (cloud *cloud) waitForRunning(condition func(update) bool) update {
	cloud.t.Helper()
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		for _, update := range cloud.updates() {
			if update.Status == apitype.StatusRunning && condition(update) {
				return update
			}
		}
	}
	cloud.t.Fatalf("no update is in progress after 30 seconds: %+v", cloud.updates())
	return update{}
}

// begin creates a stack, and creates and starts an update. It returns the path of the update and its authorization.
func (cloud *cloud) begin(kind string) (path, authorization string) {
	cloud.t.Helper()
	if status, _ := cloud.send(http.MethodGet, stackURL, "token "+cloud.token, ""); status == http.StatusNotFound {
		cloud.call(http.MethodPost, "/api/stacks/acme/proof", `{"stackName": "dev"}`, nil)
	}
	var created apitype.UpdateProgramResponse
	cloud.call(http.MethodPost, stackURL+"/"+kind, `{"metadata": {"message": "test"}}`, &created)
	path = stackURL + "/update/" + created.UpdateID
	var started apitype.StartUpdateResponse
	cloud.call(http.MethodPost, path, `{}`, &started)
	return path, "update-token " + started.Token
}

// verbatim returns a request with a state that contains resources.
func verbatim(sequence int, state string) string {
	content, _ := json.Marshal(map[string]any{
		"version": 3, "sequenceNumber": sequence, "untypedDeployment": json.RawMessage(state),
	})
	return string(content)
}

// stateOf returns a state with resources.
func stateOf(urns ...string) string {
	var resources bytes.Buffer
	for index, urn := range urns {
		if index > 0 {
			resources.WriteByte(',')
		}
		resources.WriteString(`{"urn":"` + urn + `"}`)
	}
	return `{"version":3,"deployment":{"resources":[` + resources.String() + `]}}`
}

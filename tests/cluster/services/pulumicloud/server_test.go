package pulumicloud

import (
	"bytes"
	"compress/gzip"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pulumi/pulumi/sdk/v3/go/common/apitype"
)

func TestCompressedBodyIsLimitedAfterDecompression(t *testing.T) {
	cloud := newCloud(t)
	var body bytes.Buffer
	compressed, err := gzip.NewWriterLevel(&body, gzip.BestSpeed)
	if err != nil {
		t.Fatal(err)
	}
	zeros := make([]byte, 1<<20)
	for range longestBody>>20 + 1 {
		if _, err := compressed.Write(zeros); err != nil {
			t.Fatal(err)
		}
	}
	if err := compressed.Close(); err != nil {
		t.Fatal(err)
	}
	request, err := http.NewRequest("POST", cloud.url+"/api/stacks/acme/proof", &body)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Authorization", "token "+cloud.token)
	request.Header.Set("Content-Encoding", "gzip")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusRequestEntityTooLarge {
		t.Errorf("a body that is too large after decompression got the status %d", response.StatusCode)
	}
}

func TestTokenDeterminesAccess(t *testing.T) {
	cloud := newCloud(t)
	cloud.put("/control/organizations/acme", `{"members": {"alice": "admin", "rita": "reader"}}`)
	cloud.put("/control/organizations/other", `{"members": {"oscar": "member"}}`)
	cloud.call("POST", "/api/stacks/acme/proof", `{"stackName": "dev"}`, nil)
	reader := "token " + cloud.newToken("acme", `{"user": "rita"}`)
	stranger := "token " + cloud.newToken("other", `{"user": "oscar"}`)
	team := "token " + cloud.newToken("acme", `{"team": "platform", "name": "ci"}`)
	cloud.mustFailAs("token unknown", http.StatusUnauthorized, "Unauthorized: No credentials provided or are invalid.", "GET", "/api/user", "")
	cloud.mustFailAs("", http.StatusUnauthorized, "No credentials", "GET", stackURL, "")
	cloud.must("GET", stackURL, reader, "", nil)
	cloud.mustFailAs(reader, http.StatusForbidden, "Forbidden", "POST", stackURL+"/update", "{}")
	cloud.mustFailAs(stranger, http.StatusNotFound, "Organization 'acme' not found", "GET", stackURL, "")
	var found user
	cloud.must("GET", "/api/user", team, "", &found)
	if found.TokenInfo == nil || *found.TokenInfo != (tokenInfo{"ci", "acme", "platform"}) || len(found.Organizations) != 1 {
		t.Errorf("the user of a team token is %+v", found)
	}
	var stacks apitype.ListStacksResponse
	cloud.must("GET", "/api/user/stacks", stranger, "", &stacks)
	if len(stacks.Stacks) != 0 {
		t.Errorf("a user sees the stacks %+v of another organization", stacks.Stacks)
	}
	cloud.must("DELETE", "/control/organizations/acme/tokens/"+strings.TrimPrefix(team, "token "), "", "", nil)
	cloud.mustFailAs(team, http.StatusUnauthorized, "No credentials", "GET", "/api/user", "")
}

func TestFaultAffectsOnlyMatchingRequests(t *testing.T) {
	cloud := newCloud(t)
	cloud.put("/control/organizations/other", `{"members": {"oscar": "member"}}`)
	other := "token " + cloud.newToken("other", `{"user": "oscar"}`)
	cloud.call("POST", "/api/stacks/acme/proof", `{"stackName": "dev"}`, nil)
	cloud.fault(`{"method": "GET", "path": "/api/user", "status": 401, "skip": 1, "times": 1}`)
	cloud.fault(`{"stack": "proof/dev", "method": "GET", "status": 500, "message": "broken", "times": 1}`)
	cloud.must("GET", "/api/user", other, "", nil)
	cloud.call("GET", "/api/user", "", nil)
	cloud.mustFail(http.StatusUnauthorized, "No credentials", "GET", "/api/user", "")
	cloud.call("GET", "/api/user", "", nil)
	cloud.call("GET", "/api/user/stacks", "", nil)
	cloud.mustFail(http.StatusInternalServerError, "broken", "GET", stackURL, "")
	cloud.call("GET", stackURL, "", nil)
	if requests := cloud.requests("stack=proof/dev"); len(requests) != 2 || requests[0].Status != 500 || requests[1].Status != 200 {
		t.Errorf("the recorded requests are %+v", requests)
	}
}

func TestFaultCanLoseResponseOfProcessedRequest(t *testing.T) {
	cloud := newCloud(t)
	cloud.fault(`{"method": "POST", "path": "/api/stacks/acme/proof", "status": 502, "processed": true, "times": 1}`)
	cloud.mustFail(http.StatusBadGateway, "Bad Gateway", "POST", "/api/stacks/acme/proof", `{"stackName": "dev"}`)
	cloud.mustFail(http.StatusConflict, "Conflict: Stack 'dev' already exists", "POST", "/api/stacks/acme/proof", `{"stackName": "dev"}`)
	cloud.fault(`{"path": "/api/user", "disconnect": true, "times": 1}`)
	request, err := http.NewRequest("POST", cloud.url+"/api/user", nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Authorization", "token "+cloud.token)
	if response, err := http.DefaultClient.Do(request); err == nil {
		response.Body.Close()
		t.Errorf("a closed connection returned the status %d", response.StatusCode)
	}
	cloud.fault(`{"path": "/api/user", "delay": "300ms", "times": 1}`)
	begin := time.Now()
	cloud.call("GET", "/api/user", "", nil)
	if passed := time.Since(begin); passed < 300*time.Millisecond {
		t.Errorf("a slow response arrived after %s", passed)
	}
}

func TestInvalidControlRequestsAreRejected(t *testing.T) {
	cloud := newCloud(t)
	for _, body := range []string{`{"status": 200}`, `{}`, `{"status": 500, "path": "("}`, `{"status": 500, "times": -1}`, `{"unknown": 1}`, `[]`} {
		cloud.mustFailAs("", http.StatusBadRequest, "", "POST", "/control/organizations/acme/faults", body)
	}
	cloud.mustFailAs("", http.StatusBadRequest, "role", "PUT", "/control/organizations/acme", `{"members": {"alice": "owner"}}`)
	cloud.mustFailAs("", http.StatusBadRequest, "member", "POST", "/control/organizations/acme/tokens", `{"user": "nobody"}`)
	cloud.mustFailAs("", http.StatusNotFound, "create it first", "POST", "/control/organizations/none/tokens", `{}`)
	cloud.mustFailAs("", http.StatusConflict, "no update in progress", "POST", controlledStackWith(cloud)+"/lease/expire", "")
	cloud.mustFailAs("", http.StatusBadRequest, "unknown filter", "GET", "/control/organizations/acme/requests?color=red", "")
}

// controlledStackWith creates the stack and returns its control path.
func controlledStackWith(cloud *cloud) string {
	cloud.call("POST", "/api/stacks/acme/proof", `{"stackName": "dev"}`, nil)
	return controlledStack
}

func TestRestartKeepsStateAndRemovesUnfinishedFiles(t *testing.T) {
	cloud := newCloud(t)
	cloud.call("POST", "/api/stacks/acme/proof", `{"stackName": "dev", "tags": {"color": "blue"}}`, nil)
	var encrypted apitype.EncryptValueResponse
	cloud.call("POST", stackURL+"/encrypt", `{"plaintext": "aGVsbG8="}`, &encrypted)
	half := filepath.Join(cloud.root, unfinished+"1")
	incomplete := filepath.Join(cloud.root, "stacks", "incomplete")
	if err := os.WriteFile(half, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(incomplete, 0o700); err != nil {
		t.Fatal(err)
	}
	cloud.restart()
	for _, path := range []string{half, incomplete} {
		if _, err := os.Stat(path); !os.IsNotExist(err) {
			t.Errorf("%s remains after a restart: %v", path, err)
		}
	}
	var decrypted apitype.BatchDecryptResponse
	ciphertext := mustJSON(t, apitype.BatchDecryptRequest{Ciphertexts: [][]byte{encrypted.Ciphertext}})
	cloud.call("POST", stackURL+"/batch-decrypt", ciphertext, &decrypted)
	for _, plaintext := range decrypted.Plaintexts {
		if string(plaintext) != "hello" {
			t.Errorf("the decrypted value is %q", plaintext)
		}
	}
	cloud.call("POST", "/api/stacks/acme/proof", `{"stackName": "other"}`, nil)
	cloud.mustFail(http.StatusBadRequest, "not encrypted with this key", "POST", "/api/stacks/acme/proof/other/batch-decrypt", ciphertext)
	cloud.call("POST", stackURL+"/rename", `{"newName": "renamed"}`, nil)
	cloud.restart()
	var stack apitype.Stack
	cloud.call("GET", "/api/stacks/acme/proof/renamed", "", &stack)
	if stack.Tags["color"] != "blue" || len(decrypted.Plaintexts) != 1 {
		t.Errorf("the stack is %+v, the decrypted values are %v", stack, decrypted.Plaintexts)
	}
	cloud.mustFail(http.StatusNotFound, "Not Found: Stack 'acme/proof/dev' not found", "GET", stackURL, "")
}

func TestDeletedOrganizationLeavesNoFiles(t *testing.T) {
	cloud := newCloud(t)
	path, lease := cloud.begin("update")
	cloud.must("PATCH", path+"/checkpointverbatim", lease, verbatim(1, stateOf("a")), nil)
	cloud.call("POST", "/api/esc/environments/acme", `{"project": "app", "name": "dev"}`, nil)
	cloud.must("DELETE", "/control/organizations/acme", "", "", nil)
	cloud.mustFail(http.StatusUnauthorized, "", "GET", "/api/user", "")
	for _, folder := range []string{"stacks", "environments"} {
		entries, err := os.ReadDir(filepath.Join(cloud.root, folder))
		if err != nil || len(entries) != 0 {
			t.Errorf("%s contains %v: %v", folder, entries, err)
		}
	}
}

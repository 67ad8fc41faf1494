package gitserver

import (
	"encoding/json"
	"net/http"
	"testing"
)

func requests(t *testing.T, url string) Requests {
	t.Helper()
	status, answer := request(t, "GET", url)
	var counted Requests
	if err := json.Unmarshal([]byte(answer), &counted); err != nil || status != http.StatusOK {
		t.Fatalf("GET %s responded with %d %s: %v", url, status, answer, err)
	}
	return counted
}

func TestReadRequestsAreCountedButPushesAreNot(t *testing.T) {
	url, _ := start(t)
	work := t.TempDir()
	commit(t, work, "file", []byte("content"))
	for _, name := range []string{"scene-one", "scene-two", "other"} {
		git(t, work, "push", "--quiet", url+"/"+name+".git", "main")
	}
	if counted := requests(t, url+"/requests"); counted != (Requests{}) {
		t.Fatalf("before the first read request: %+v", counted)
	}
	for _, name := range []string{"scene-one", "scene-one", "scene-two", "other"} {
		git(t, work, "ls-remote", "--exit-code", url+"/"+name+".git", "main")
	}
	// A poll consists of two requests: the capabilities of the server and the reference of the branch.
	for path, wanted := range map[string]Requests{
		"/requests":                  {Repositories: 3, Sessions: 4, Requests: 8},
		"/requests?prefix=scene-":    {Repositories: 2, Sessions: 3, Requests: 6},
		"/requests?prefix=scene-two": {Repositories: 1, Sessions: 1, Requests: 2},
		"/requests?prefix=nobody":    {},
	} {
		if counted := requests(t, url+path); counted != wanted {
			t.Errorf("GET %s: %+v, want %+v", path, counted, wanted)
		}
	}
	if status, answer := request(t, "DELETE", url+"/requests"); status != http.StatusMethodNotAllowed {
		t.Errorf("DELETE /requests responded with %d %s", status, answer)
	}
}

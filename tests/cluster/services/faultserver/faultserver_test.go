package faultserver

import (
	"archive/tar"
	"bufio"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

const content = "the bytes of an artifact"

type fixture struct {
	t   *testing.T
	url string
}

func start(t *testing.T) fixture {
	t.Helper()
	server := httptest.NewServer(New(1 << 20).Handler())
	t.Cleanup(server.CloseClientConnections)
	return fixture{t, server.URL}
}

func (f fixture) put(path, body string) (int, Described) {
	f.t.Helper()
	request, err := http.NewRequest(http.MethodPut, f.url+path, strings.NewReader(body))
	if err != nil {
		f.t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		f.t.Fatal(err)
	}
	defer response.Body.Close()
	var described Described
	if response.StatusCode == http.StatusOK {
		if err := json.NewDecoder(response.Body).Decode(&described); err != nil {
			f.t.Fatal(err)
		}
	}
	return response.StatusCode, described
}

// get reads the file until the time limit.
func (f fixture) get(limit time.Duration) (*http.Response, []byte, error) {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, f.url+"/files/app.tar.gz", nil)
	if err != nil {
		f.t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, 4<<20))
	return response, body, err
}

func (f fixture) setBehavior(behavior string) Described {
	f.t.Helper()
	status, described := f.put("/control/behavior/app.tar.gz", behavior)
	if status != http.StatusOK {
		f.t.Fatalf("%s got the response status %d", behavior, status)
	}
	return described
}

func TestUploadedFileIsServedUnchangedAndDescribed(t *testing.T) {
	f := start(t)
	if _, _, err := f.get(time.Second); err != nil {
		t.Fatal(err)
	}
	status, described := f.put("/control/content/app.tar.gz", content)
	if status != http.StatusOK || described.Size != int64(len(content)) || len(described.Digest) != len("sha256:")+64 {
		t.Fatalf("%d %+v", status, described)
	}
	for _, behavior := range []string{`{}`, `{"pieces": 5, "pause": "1ms"}`} {
		f.setBehavior(behavior)
		if response, body, err := f.get(5 * time.Second); err != nil || string(body) != content || response.ContentLength != int64(len(content)) {
			t.Errorf("%s: %q %v", behavior, body, err)
		}
	}
	if described := f.setBehavior(`{}`); described.Requests != 2 {
		t.Errorf("%d requests were counted", described.Requests)
	}
}

func TestTimesLimitsFaultsToFirstRequests(t *testing.T) {
	f := start(t)
	f.put("/control/content/app.tar.gz", content)
	f.setBehavior(`{"status": 503, "retryAfter": "7", "times": 2}`)
	var statuses []int
	for range 3 {
		response, _, err := f.get(time.Second)
		if err != nil {
			t.Fatal(err)
		}
		statuses = append(statuses, response.StatusCode)
		if busy := response.StatusCode == 503; busy != (response.Header.Get("Retry-After") == "7") {
			t.Errorf("%d with Retry-After %q", response.StatusCode, response.Header.Get("Retry-After"))
		}
	}
	if fmt.Sprint(statuses) != "[503 503 200]" {
		t.Errorf("%v", statuses)
	}
}

func TestHangLastsUntilClientTimesOut(t *testing.T) {
	f := start(t)
	f.put("/control/content/app.tar.gz", content)
	for _, behavior := range []string{`{"hang": "header"}`, `{"hang": "body"}`} {
		f.setBehavior(behavior)
		if _, body, err := f.get(200 * time.Millisecond); !errors.Is(err, context.DeadlineExceeded) || len(body) == len(content) {
			t.Errorf("%s: %q %v", behavior, body, err)
		}
	}
}

func TestExtraLengthSetsWrongContentLength(t *testing.T) {
	f := start(t)
	f.put("/control/content/app.tar.gz", content)
	f.setBehavior(`{"extraLength": 10}`)
	if _, _, err := f.get(time.Second); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("a length that is too long: %v", err)
	}
	f.setBehavior(`{"extraLength": -10}`)
	if _, body, err := f.get(time.Second); err != nil || string(body) != content[:len(content)-10] {
		t.Errorf("a length that is too short: %q %v", body, err)
	}
	// Proves that the server sends the extra bytes.
	connection, err := net.Dial("tcp", strings.TrimPrefix(f.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	fmt.Fprint(connection, "GET /files/app.tar.gz HTTP/1.1\r\nHost: test\r\n\r\n")
	all, err := io.ReadAll(bufio.NewReader(connection))
	if err != nil || !strings.HasSuffix(string(all), content) {
		t.Errorf("%q %v", all, err)
	}
}

func TestEndlessFileDoesNotEnd(t *testing.T) {
	f := start(t)
	f.put("/control/content/app.tar.gz", content)
	f.setBehavior(`{"endless": true}`)
	if _, body, err := f.get(5 * time.Second); err != nil || len(body) != 4<<20 {
		t.Errorf("%d bytes, %v", len(body), err)
	}
}

func TestGeneratedArchiveMatchesDescribedDigest(t *testing.T) {
	defer func(before func(*tar.Writer) error) { generators["entries"] = before }(generators["entries"])
	generators["entries"] = func(archive *tar.Writer) error {
		return archive.WriteHeader(&tar.Header{Name: "a", Typeflag: tar.TypeReg, Mode: 0o644})
	}
	f := start(t)
	described := f.setBehavior(`{"generated": "entries"}`)
	_, body, err := f.get(time.Second)
	if err != nil {
		t.Fatal(err)
	}
	measured := newMeasured()
	_, _ = measured.Write(body)
	if described.Digest != measured.digest() || described.Size != measured.size {
		t.Errorf("%+v, but %d bytes of digest %s", described, measured.size, measured.digest())
	}
	decompressed, err := gzip.NewReader(strings.NewReader(string(body)))
	if err != nil {
		t.Fatal(err)
	}
	if header, err := tar.NewReader(decompressed).Next(); err != nil || header.Name != "a" {
		t.Errorf("%v %v", header, err)
	}
}

func TestInvalidFaultsAreRejected(t *testing.T) {
	f := start(t)
	for _, behavior := range []string{
		`{"hang": "sometimes"}`, `{"status": 99}`, `{"pause": "1s"}`, `{"generated": "what"}`, `{"unknown": 1}`, `[]`,
	} {
		if status, _ := f.put("/control/behavior/app.tar.gz", behavior); status != http.StatusBadRequest {
			t.Errorf("%s got the response status %d", behavior, status)
		}
	}
	if status, _ := f.put("/control/content/app.tar.gz", strings.Repeat("x", 1<<20+1)); status != http.StatusBadRequest {
		t.Errorf("a file that is too large got the response status %d", status)
	}
	if status, _ := f.put("/control/content/UPPER", ""); status != http.StatusBadRequest {
		t.Errorf("an invalid name got the response status %d", status)
	}
}

func TestRecordedCallsAreListed(t *testing.T) {
	f := start(t)
	post := func(path, body string) int {
		response, err := http.Post(f.url+path, "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		return response.StatusCode
	}
	if status := post("/hooks/team/alert", `{"reason":"Done"}`); status != http.StatusCreated {
		t.Errorf("a webhook call got the response status %d", status)
	}
	post("/api/v3/repos/team/app/statuses/abc", "no JSON")
	post("/hooks/other/alert", "{}")
	response, err := http.Get(f.url + "/control/calls/team")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	var calls []Call
	if err := json.NewDecoder(response.Body).Decode(&calls); err != nil {
		t.Fatal(err)
	}
	if len(calls) != 2 || calls[0].Path != "/hooks/team/alert" || string(calls[0].Body) != `{"reason":"Done"}` {
		t.Fatalf("calls %+v", calls)
	}
	if calls[1].Path != "/api/v3/repos/team/app/statuses/abc" || string(calls[1].Body) != `"no JSON"` {
		t.Fatalf("calls %+v", calls)
	}
}

func TestAnUploadedFileIsTheListOfPullRequests(t *testing.T) {
	f := start(t)
	list := func() string {
		response, err := http.Get(f.url + "/api/v3/repos/team/app/pulls?per_page=100&state=open")
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		content, err := io.ReadAll(response.Body)
		if err != nil {
			t.Fatal(err)
		}
		return string(content)
	}
	if content := list(); content != "[]\n" {
		t.Errorf("without a file, the list is %q", content)
	}
	f.put("/control/content/team/app/pulls", `[{"number": 7}]`)
	if content := list(); content != `[{"number": 7}]` {
		t.Errorf("with a file, the list is %q", content)
	}
}

package gitserver

import (
	"bytes"
	"crypto/rand"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// start serves an empty directory without a home directory, as in a pod.
func start(t *testing.T) (url, root string) {
	t.Helper()
	if home, set := os.LookupEnv("HOME"); set {
		os.Unsetenv("HOME")
		t.Cleanup(func() { os.Setenv("HOME", home) })
	}
	root = t.TempDir()
	handler, err := New(root)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return server.URL, root
}

// git runs Git as a client that has only the configuration of the test.
func git(t *testing.T, directory string, arguments ...string) string {
	t.Helper()
	output, err := tryGit(directory, arguments...)
	if err != nil {
		t.Fatalf("git %s: %v: %s", strings.Join(arguments, " "), err, output)
	}
	return output
}

func tryGit(directory string, arguments ...string) (string, error) {
	command := exec.Command("git", arguments...)
	command.Dir = directory
	command.Env = append(os.Environ(), "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null", "GIT_TERMINAL_PROMPT=0",
		"GIT_AUTHOR_NAME=test", "GIT_AUTHOR_EMAIL=test@example.com",
		"GIT_COMMITTER_NAME=test", "GIT_COMMITTER_EMAIL=test@example.com")
	output, err := command.CombinedOutput()
	return strings.TrimSpace(string(output)), err
}

// commit creates a repository if it does not exist, and a commit with one file.
func commit(t *testing.T, directory, name string, content []byte) {
	t.Helper()
	git(t, directory, "init", "--quiet", "--initial-branch=main")
	if err := os.WriteFile(filepath.Join(directory, name), content, 0o600); err != nil {
		t.Fatal(err)
	}
	git(t, directory, "add", name)
	git(t, directory, "commit", "--quiet", "-m", "Add "+name)
}

func request(t *testing.T, method, url string) (int, string) {
	t.Helper()
	request, err := http.NewRequest(method, url, nil)
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
	return response.StatusCode, string(answer)
}

func TestRepositoryIsCreatedOnceWithBranchMain(t *testing.T) {
	url, root := start(t)
	for _, wanted := range []int{http.StatusCreated, http.StatusOK} {
		if status, answer := request(t, "PUT", url+"/program.git"); status != wanted {
			t.Fatalf("PUT responded with %d, want %d: %s", status, wanted, answer)
		}
	}
	head, err := os.ReadFile(filepath.Join(root, "program.git", "HEAD"))
	if err != nil || string(head) != "ref: refs/heads/main\n" {
		t.Fatalf("HEAD is %q, %v", head, err)
	}
	left, err := os.ReadDir(root)
	if err != nil || len(left) != 1 {
		t.Fatalf("the directory contains %v, %v", left, err)
	}
}

func TestFirstPushCreatesRepository(t *testing.T) {
	url, _ := start(t)
	work := t.TempDir()
	commit(t, work, "Pulumi.yaml", []byte("name: one\n"))
	git(t, work, "push", "--quiet", url+"/program.git", "main")

	clone := filepath.Join(t.TempDir(), "clone")
	git(t, work, "clone", "--quiet", url+"/program.git", clone)
	if content, err := os.ReadFile(filepath.Join(clone, "Pulumi.yaml")); err != nil || string(content) != "name: one\n" {
		t.Fatalf("the clone contains %q, %v", content, err)
	}
	commit(t, work, "Pulumi.yaml", []byte("name: two\n"))
	git(t, work, "push", "--quiet", url+"/program.git", "main")
	git(t, clone, "pull", "--quiet")
	if pulled, pushed := git(t, clone, "rev-parse", "HEAD"), git(t, work, "rev-parse", "HEAD"); pulled != pushed {
		t.Fatalf("pulled %s, pushed %s", pulled, pushed)
	}
}

func TestChunkedPushSucceeds(t *testing.T) {
	url, _ := start(t)
	work := t.TempDir()
	// Random content does not compress, so the push exceeds the size of one megabyte from which Git sends chunks.
	content := make([]byte, 4<<20)
	if _, err := rand.Read(content); err != nil {
		t.Fatal(err)
	}
	commit(t, work, "large", content)
	git(t, work, "push", "--quiet", url+"/program.git", "main")
	clone := filepath.Join(t.TempDir(), "clone")
	git(t, work, "clone", "--quiet", url+"/program.git", clone)
	if cloned, err := os.ReadFile(filepath.Join(clone, "large")); err != nil || !bytes.Equal(cloned, content) {
		t.Fatalf("the clone's file differs, %v", err)
	}
}

func TestConcurrentFirstPushesCreateOneRepository(t *testing.T) {
	url, _ := start(t)
	var pushes sync.WaitGroup
	for _, branch := range []string{"main", "second", "third"} {
		work := t.TempDir()
		commit(t, work, branch, []byte(branch))
		pushes.Go(func() {
			if output, err := tryGit(work, "push", "--quiet", url+"/program.git", "main:"+branch); err != nil {
				t.Errorf("pushing %s: %v: %s", branch, err, output)
			}
		})
	}
	pushes.Wait()
	if references := git(t, t.TempDir(), "ls-remote", "--heads", url+"/program.git"); strings.Count(references, "\n") != 2 {
		t.Fatalf("the repository has these branches, want three:\n%s", references)
	}
}

func TestRepositoryOfAnotherUserIsServed(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("NOT RUN: changing the owner of a repository needs root")
	}
	url, root := start(t)
	work := t.TempDir()
	commit(t, work, "file", []byte("content"))
	git(t, work, "push", "--quiet", url+"/program.git", "main")
	if err := os.Chown(filepath.Join(root, "program.git"), 12345, 12345); err != nil {
		t.Fatal(err)
	}
	git(t, work, "ls-remote", "--exit-code", url+"/program.git", "main")
}

func TestInvalidRequestsAreRejectedWithReason(t *testing.T) {
	url, root := start(t)
	request(t, "PUT", url+"/program.git")
	for _, refused := range []struct {
		method, path string
		status       int
		reason       string
	}{
		{"PUT", "/Program.git", http.StatusNotFound, "a-z"},
		{"PUT", "/..%2fescape.git", http.StatusNotFound, "a-z"},
		{"PUT", "/deep/program.git", http.StatusNotFound, "a-z"},
		{"PUT", "/program", http.StatusNotFound, "a-z"},
		{"GET", "/program.git", http.StatusMethodNotAllowed, "PUT"},
		{"DELETE", "/program.git", http.StatusMethodNotAllowed, "PUT"},
		{"GET", "/program.git/HEAD", http.StatusNotFound, "no such path"},
		{"GET", "/program.git/config", http.StatusNotFound, "no such path"},
		{"GET", "/program.git/info/refs", http.StatusForbidden, "smart HTTP"},
		{"GET", "/missing.git/info/refs?service=git-upload-pack", http.StatusNotFound, "no such repository: missing"},
		{"GET", "/program.git/git-upload-pack", http.StatusMethodNotAllowed, "POST"},
	} {
		status, answer := request(t, refused.method, url+refused.path)
		if status != refused.status || !strings.Contains(answer, refused.reason) {
			t.Errorf("%s %s: %d %s; want %d and %q", refused.method, refused.path, status, answer,
				refused.status, refused.reason)
		}
	}
	if left, err := os.ReadDir(root); err != nil || len(left) != 1 {
		t.Errorf("a rejected request created a file: %v, %v", left, err)
	}
}

func TestNewRemovesUnfinishedRepositories(t *testing.T) {
	root := t.TempDir()
	if err := os.Mkdir(filepath.Join(root, unfinished+"1"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := New(root); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(root); err != nil || len(left) != 0 {
		t.Fatalf("the remaining files are %v, %v", left, err)
	}
}

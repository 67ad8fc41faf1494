package pulumicloud

import (
	"bytes"
	"context"
	"encoding/json"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// commandTime is the timeout of one run of the Pulumi CLI.
const commandTime = 90 * time.Second

// buildProvider builds the test provider once for all tests and returns its directory.
var buildProvider = sync.OnceValues(func() (string, error) {
	directory, err := os.MkdirTemp("", "test-provider-")
	if err != nil {
		return "", err
	}
	command := exec.Command("go", "build", "-o", directory, "../cmd/pulumi-resource-testing")
	command.Stdout, command.Stderr = os.Stderr, os.Stderr
	return directory, command.Run()
})

func TestMain(tests *testing.M) {
	status := tests.Run()
	if _, err := exec.LookPath("pulumi"); err == nil {
		if directory, err := buildProvider(); err == nil {
			os.RemoveAll(directory)
		}
	}
	os.Exit(status)
}

// project is a Pulumi project with the stack acme/proof/dev in its own cloud.
type project struct {
	*cloud
	directory   string
	environment []string
}

// newProject returns a project. The CLI uses the access token of alice.
func newProject(t *testing.T) *project {
	t.Helper()
	for _, program := range []string{"pulumi", "pulumi-language-yaml"} {
		if _, err := exec.LookPath(program); err != nil {
			if os.Getenv("CI") != "" {
				t.Fatalf("%s must be on PATH because the environment variable CI is set", program)
			}
			t.Skipf("NOT RUN: %s is not on PATH", program)
		}
	}
	provider, err := buildProvider()
	if err != nil {
		t.Fatalf("building the provider: %v", err)
	}
	t.Parallel()
	project := &project{cloud: newCloud(t), directory: t.TempDir()}
	address, err := url.Parse(project.url)
	if err != nil {
		t.Fatal(err)
	}
	project.environment = append(os.Environ(),
		"PATH="+provider+string(os.PathListSeparator)+os.Getenv("PATH"),
		"PULUMI_HOME="+filepath.Join(project.directory, "home"),
		"PULUMI_BACKEND_URL="+project.url,
		"PULUMI_CONSOLE_DOMAIN="+address.Host,
		"PULUMI_ACCESS_TOKEN="+project.token,
		"PULUMI_SKIP_UPDATE_CHECK=true",
		"PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION=true",
	)
	project.program(nil)
	return project
}

// newStack returns a project whose stack exists.
func newStack(t *testing.T) *project {
	t.Helper()
	project := newProject(t)
	project.pulumi("stack", "init", "acme/dev")
	return project
}

// program writes a program with a Step for each name.
func (project *project) program(inputs map[string]any, names ...string) {
	project.t.Helper()
	resources := map[string]any{}
	if len(names) == 0 {
		names = []string{"first"}
	}
	for _, name := range names {
		properties := map[string]any{"name": name}
		for key, value := range inputs {
			properties[key] = value
		}
		resources[name] = map[string]any{"type": "testing:index:Step", "properties": properties}
	}
	// JSON is valid YAML.
	content, err := json.MarshalIndent(map[string]any{
		"name": "proof", "runtime": "yaml", "resources": resources,
		"outputs": map[string]any{"value": "${" + names[0] + ".value}", "secretValue": "${" + names[0] + ".secretValue}"},
	}, "", "  ")
	if err != nil {
		project.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(project.directory, "Pulumi.yaml"), content, 0o600); err != nil {
		project.t.Fatal(err)
	}
}

// command prepares a run of the CLI whose output goes to the buffer.
func (project *project) command(arguments ...string) (*exec.Cmd, *bytes.Buffer) {
	ctx, cancel := context.WithTimeout(context.Background(), commandTime)
	project.t.Cleanup(cancel)
	output := new(bytes.Buffer)
	command := exec.CommandContext(ctx, "pulumi", append(arguments, "--non-interactive")...)
	command.Dir, command.Env = project.directory, project.environment
	command.Stdout, command.Stderr = output, output
	// A provider that lives longer than the CLI keeps the output open.
	command.WaitDelay = 5 * time.Second
	return command, output
}

// pulumi runs the CLI, which must succeed.
func (project *project) pulumi(arguments ...string) string {
	project.t.Helper()
	command, output := project.command(arguments...)
	if err := command.Run(); err != nil {
		project.t.Fatalf("pulumi %s: %v\n%s", strings.Join(arguments, " "), err, output)
	}
	return output.String()
}

// pulumiMustFail runs the CLI and checks that it fails with this reason.
func (project *project) pulumiMustFail(reason string, arguments ...string) string {
	project.t.Helper()
	command, output := project.command(arguments...)
	if err := command.Run(); err == nil {
		project.t.Fatalf("pulumi %s succeeded, but must fail:\n%s", strings.Join(arguments, " "), output)
	}
	project.mustContain(output.String(), reason)
	return output.String()
}

func (project *project) mustContain(output string, wanted ...string) {
	project.t.Helper()
	for _, text := range wanted {
		if !strings.Contains(output, text) {
			project.t.Fatalf("the output does not contain %q:\n%s", text, output)
		}
	}
}

func (project *project) up() string {
	project.t.Helper()
	return project.pulumi("up", "--yes", "--skip-preview")
}

// start starts an update that takes a minute, and waits until the server has its first checkpoint.
func (project *project) start() (*exec.Cmd, *bytes.Buffer) {
	project.t.Helper()
	project.program(map[string]any{"seconds": 60})
	command, output := project.command("up", "--yes", "--skip-preview")
	if err := command.Start(); err != nil {
		project.t.Fatal(err)
	}
	project.t.Cleanup(func() {
		_ = command.Process.Kill()
		_ = command.Wait()
	})
	project.waitForRunning(func(update update) bool { return update.Checkpoints["verbatim"] > 0 })
	return command, output
}

// state returns the state that the server stores.
func (project *project) state() string {
	project.t.Helper()
	var state json.RawMessage
	project.must("GET", controlledStack+"/state", "", "", &state)
	return string(state)
}

func TestLoginShowsUserAndOrganizations(t *testing.T) {
	project := newProject(t)
	project.mustContain(project.pulumi("login", project.url), "Logged in to "+project.url+" as alice")
	project.mustContain(project.pulumi("whoami", "--verbose"), "User: alice", "Organizations: acme", "Token type: personal")
}

func TestUpStoresStateThatSurvivesRestart(t *testing.T) {
	project := newStack(t)
	project.program(map[string]any{"value": "one", "secretValue": "hidden"})
	output := project.up()
	project.mustContain(output, "Updating (dev)", "View Live: "+project.url+"/acme/proof/dev/updates/1", "2 created")
	if _, page := project.send("GET", "/acme/proof/dev/updates/1", "", ""); !strings.Contains(page, "succeeded") {
		t.Errorf("the permalink shows %q", page)
	}
	if state := project.state(); strings.Contains(state, "hidden") {
		t.Errorf("the state contains a secret in plain text: %s", state)
	}
	project.restart()
	project.mustContain(project.pulumi("stack", "output", "--show-secrets", "--json"), `"value": "one"`, `"secretValue": "hidden"`)
	project.mustContain(project.up(), "2 unchanged")
	if latest := project.updates()[0]; latest.Version != 2 || latest.Status != "succeeded" || latest.RequestedBy != "alice" || latest.Events == 0 {
		t.Errorf("the latest update is %+v", latest)
	}
}

func TestPreviewChangesNothing(t *testing.T) {
	project := newStack(t)
	output := project.pulumi("preview")
	project.mustContain(output, "Previewing update (dev)", "2 to create")
	preview := project.updates()[0]
	project.mustContain(output, project.url+"/acme/proof/dev/previews/"+preview.ID)
	if !preview.Preview || preview.Status != "succeeded" || len(preview.Checkpoints) != 0 {
		t.Errorf("the preview is %+v", preview)
	}
	project.mustContain(project.pulumi("stack", "history"), "Stack has never been updated")
}

func TestHistoryContainsRefreshAndDestroy(t *testing.T) {
	project := newStack(t)
	project.pulumi("up", "--yes", "--skip-preview", "--message", "the first update")
	project.pulumi("refresh", "--yes", "--skip-preview")
	project.pulumi("destroy", "--yes", "--skip-preview")
	var history []struct {
		Version         int
		Kind            string
		Message         string
		Result          string
		ResourceChanges map[string]int
	}
	if err := json.Unmarshal([]byte(project.pulumi("stack", "history", "--json")), &history); err != nil {
		t.Fatal(err)
	}
	if len(history) != 3 || history[0].Kind != "destroy" || history[1].Kind != "refresh" || history[2].Message != "the first update" {
		t.Fatalf("the history is %+v", history)
	}
	if history[0].Version != 3 || history[0].Result != "succeeded" || history[0].ResourceChanges["delete"] != 2 {
		t.Errorf("the destroy is %+v", history[0])
	}
	project.pulumi("stack", "rm", "--yes")
	project.mustFail(404, "not found", "GET", stackURL, "")
}

func TestExportedStateCanBeImported(t *testing.T) {
	project := newStack(t)
	project.program(map[string]any{"secretValue": "hidden"})
	project.up()
	file := filepath.Join(project.directory, "state.json")
	project.pulumi("stack", "export", "--file", file)
	project.pulumi("destroy", "--yes", "--skip-preview")
	project.mustContain(project.pulumi("stack", "import", "--file", file), "Import complete")
	project.mustContain(project.up(), "2 unchanged")
	project.pulumiMustFail("no stack named 'acme/proof/missing' found", "stack", "export", "--stack", "acme/proof/missing")
}

func TestStackIsDeletedOnlyWithoutResources(t *testing.T) {
	project := newStack(t)
	project.up()
	project.pulumiMustFail("still has resources", "stack", "rm", "--yes")
	project.pulumiMustFail("already exists", "stack", "init", "acme/dev")
	project.mustContain(project.pulumi("stack", "ls", "--json"), `"resourceCount": 3`)
	project.pulumi("stack", "rm", "--yes", "--force")
	project.mustFail(404, "not found", "GET", stackURL, "")
}

func TestTagsAndConfigAreStored(t *testing.T) {
	project := newStack(t)
	project.pulumi("stack", "tag", "set", "owner", "platform")
	project.pulumi("config", "set", "--secret", "password", "hidden")
	project.mustContain(project.pulumi("stack", "tag", "ls"), "owner", "platform", "pulumi:project", "proof")
	project.mustContain(project.pulumi("config", "get", "password"), "hidden")
	project.up()
	latest := project.updates()[0]
	if value := latest.Program.Config["proof:password"]; !value.Secret || strings.Contains(value.String, "hidden") {
		t.Errorf("the update has the configuration %+v", latest.Program.Config)
	}
	var stack stackRecord
	project.must("GET", controlledStack, "", "", &stack)
	if stack.Tags["owner"] != "platform" || stack.Tags["pulumi:runtime"] != "yaml" {
		t.Errorf("the stack has the tags %v", stack.Tags)
	}
	project.pulumi("stack", "rename", "acme/proof/renamed")
	project.mustContain(project.pulumi("config", "get", "password", "--stack", "acme/proof/renamed"), "hidden")
}

func TestLargeStateIsUploadedAsDeltas(t *testing.T) {
	project := newStack(t)
	names := []string{"first", "second", "third", "fourth", "fifth"}
	project.program(map[string]any{"value": strings.Repeat("x", 500)}, names...)
	project.up()
	latest := project.updates()[0]
	if latest.Checkpoints["verbatim"] == 0 || latest.Checkpoints["delta"] < len(names) || latest.ResourceCount != len(names)+2 {
		t.Errorf("the update has the checkpoints %v and %d resources", latest.Checkpoints, latest.ResourceCount)
	}
	for _, request := range project.requests("method=PATCH&stack=proof/dev") {
		if request.Status != 200 {
			t.Errorf("a checkpoint was refused: %+v", request)
		}
	}
	project.mustContain(project.up(), "6 unchanged")
}

func TestCancelEndsUpdateOfOtherProcess(t *testing.T) {
	project := newStack(t)
	command, output := project.start()
	conflict := project.pulumiMustFail("[409] Conflict: Another update is currently in progress.", "up", "--yes", "--skip-preview")
	project.mustContain(conflict, "update-conflicts")
	project.mustContain(project.pulumi("stack"), "Update in progress", "Requested By: alice")
	project.mustContain(project.pulumi("cancel", "--yes"), "has been canceled")
	if err := command.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := command.Wait(); err == nil {
		t.Fatalf("the cancelled update succeeded:\n%s", output)
	}
	project.mustContain(output.String(), "The Update has already completed")
	project.pulumiMustFail("The Update has already completed", "cancel", "--yes")
	project.program(nil)
	project.pulumi("up", "--yes", "--skip-preview", "--refresh")
}

func TestExpiredLeaseFailsRunningUpdate(t *testing.T) {
	project := newStack(t)
	command, output := project.start()
	project.must("POST", controlledStack+"/lease/expire", "", "", nil)
	if err := command.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := command.Wait(); err == nil {
		t.Fatalf("an update without a lease succeeded:\n%s", output)
	}
	project.mustContain(output.String(), "[403] The provided update token has expired")
	if latest := project.updates()[0]; !latest.Expired || latest.Status != "failed" {
		t.Errorf("the update is %+v", latest)
	}
}

func TestRateLimitIsRetriedAfterDelay(t *testing.T) {
	project := newStack(t)
	project.fault(`{"method": "GET", "path": "/api/stacks/acme/proof/dev/export", "status": 429, "retryAfter": "2", "times": 1}`)
	project.up()
	requests := project.requests("path=/api/stacks/acme/proof/dev/export")
	index := slices.IndexFunc(requests, func(request Request) bool { return request.Status == 429 })
	if index < 0 || index+1 == len(requests) || requests[index+1].Time.Sub(requests[index].Time) < 2*time.Second {
		t.Errorf("the requests are %+v", requests)
	}
	project.fault(`{"method": "POST", "path": "/api/stacks/acme/proof/dev/update", "status": 429, "times": 1}`)
	project.pulumiMustFail("request rate-limit exceeded", "up", "--yes", "--skip-preview")
}

func TestErrorsOfServiceFailUpdate(t *testing.T) {
	project := newStack(t)
	for fault, reason := range map[string]string{
		`{"path": ".*/update", "status": 403, "times": 1}`:                      "[403] Forbidden",
		`{"path": ".*/update/[^/]*", "status": 409, "times": 1}`:                "[409] Conflict: Another update",
		`{"path": ".*/update/[^/]*", "status": 404, "times": 1}`:                "[404] Not Found",
		`{"path": ".*/update", "status": 500, "message": "broken", "times": 1}`: "[500] broken",
	} {
		project.fault(fault)
		project.pulumiMustFail(reason, "up", "--yes", "--skip-preview")
	}
	// The CLI repeats checkpoints after a temporary error.
	project.fault(`{"method": "PATCH", "path": ".*/checkpointverbatim", "status": 503, "times": 1}`)
	project.fault(`{"method": "PATCH", "path": ".*/checkpoint.*", "status": 502, "processed": true, "skip": 1, "times": 1}`)
	project.up()
	project.mustContain(project.up(), "2 unchanged")
}

func TestRevokedTokenIsRejected(t *testing.T) {
	project := newStack(t)
	project.must("DELETE", "/control/organizations/acme/tokens/"+project.token, "", "", nil)
	project.pulumiMustFail("pulumi login", "up", "--yes", "--skip-preview")
	// The CLI trusts the credentials in its directory for an hour.
	project.environment = append(project.environment, "PULUMI_HOME="+filepath.Join(project.directory, "other"))
	project.pulumiMustFail("Unauthorized: No credentials provided or are invalid.", "up", "--yes", "--skip-preview")
}

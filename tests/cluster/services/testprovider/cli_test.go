package testprovider

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"pulumi-controller.test/services/eventlog"
)

// commandTime is the timeout of one run of the Pulumi CLI.
const commandTime = 90 * time.Second

// buildProvider builds the provider once for all tests and returns its directory.
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

// project is a Pulumi project with one Step. It has its own backend with the stack dev, and its own provider log.
type project struct {
	t           *testing.T
	directory   string
	environment []string
	log         *eventlog.Log
}

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
	project := &project{t: t, directory: t.TempDir(), log: eventlog.New(1000)}
	server := httptest.NewServer(project.log.Handler())
	t.Cleanup(server.Close)
	if err := os.Mkdir(filepath.Join(project.directory, "state"), 0o700); err != nil {
		t.Fatal(err)
	}
	project.environment = append(os.Environ(),
		"PATH="+provider+string(os.PathListSeparator)+os.Getenv("PATH"),
		"PULUMI_HOME="+filepath.Join(project.directory, "home"),
		"PULUMI_BACKEND_URL=file://"+filepath.Join(project.directory, "state"),
		"PULUMI_CONFIG_PASSPHRASE=",
		"PULUMI_SKIP_UPDATE_CHECK=true",
		"PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION=true",
		logVariable+"="+server.URL,
	)
	project.program(nil)
	project.must("stack", "init", "dev")
	return project
}

// program writes a program with one Step. The Step has the input `name: first` and the given inputs.
func (project *project) program(inputs map[string]any) {
	project.t.Helper()
	properties := map[string]any{"name": "first"}
	for name, value := range inputs {
		properties[name] = value
	}
	// JSON is valid YAML.
	content, err := json.MarshalIndent(map[string]any{
		"name": "proof", "runtime": "yaml",
		"resources": map[string]any{
			"step": map[string]any{"type": "testing:index:Step", "properties": properties},
		},
		"outputs": map[string]any{
			"id": "${step.id}", "count": "${step.count}", "createdAt": "${step.createdAt}",
			"value": "${step.value}", "secretValue": "${step.secretValue}",
		},
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

func (project *project) try(arguments ...string) (string, error) {
	command, output := project.command(arguments...)
	err := command.Run()
	return output.String(), err
}

func (project *project) must(arguments ...string) string {
	project.t.Helper()
	output, err := project.try(arguments...)
	if err != nil {
		project.t.Fatalf("pulumi %s: %v\n%s", strings.Join(arguments, " "), err, output)
	}
	return output
}

func (project *project) up() string {
	project.t.Helper()
	return project.must("up", "--yes", "--skip-preview")
}

// mustFail runs the CLI and checks that it fails with this reason.
func (project *project) mustFail(reason string, arguments ...string) {
	project.t.Helper()
	output, err := project.try(arguments...)
	if err == nil {
		project.t.Fatalf("pulumi %s succeeded, but must fail:\n%s", strings.Join(arguments, " "), output)
	}
	if !strings.Contains(output, reason) {
		project.t.Fatalf("pulumi %s failed without the reason %q:\n%s", strings.Join(arguments, " "), reason, output)
	}
}

func (project *project) outputs(flags ...string) map[string]any {
	project.t.Helper()
	var outputs map[string]any
	text := project.must(append([]string{"stack", "output", "--json"}, flags...)...)
	if err := json.Unmarshal([]byte(text), &outputs); err != nil {
		project.t.Fatalf("reading the outputs: %v\n%s", err, text)
	}
	return outputs
}

// expectEvents compares the events since the last call with "operation phase" in order. It also checks that every
// operation has both a begin and an end.
func (project *project) expectEvents(wanted ...string) {
	project.t.Helper()
	events, _ := project.log.Find(eventlog.Filter{})
	project.log.Forget(eventlog.Filter{})
	var found []string
	begun := map[string]string{}
	for _, event := range events {
		found = append(found, event.Operation+" "+event.Phase)
		if event.Phase == eventlog.Begin {
			begun[event.ID] = event.Operation
		} else if begun[event.ID] != event.Operation {
			project.t.Errorf("the %s of %s has no begin: %+v", event.Phase, event.Operation, event)
		}
		if event.Resource != "first" || event.Stack != "dev" || event.Project != "proof" || event.PID == 0 ||
			event.Host == "" || event.Time.IsZero() || !strings.HasSuffix(event.URN, "testing:index:Step::step") {
			project.t.Errorf("the event is incomplete: %+v", event)
		}
	}
	if strings.Join(found, ", ") != strings.Join(wanted, ", ") {
		project.t.Fatalf("the log contains %q, want %q", found, wanted)
	}
}

// expectNoLock checks that the stack is not locked.
func (project *project) expectNoLock() {
	project.t.Helper()
	err := filepath.WalkDir(filepath.Join(project.directory, "state", ".pulumi", "locks"),
		func(path string, entry os.DirEntry, err error) error {
			if err == nil && !entry.IsDir() {
				project.t.Errorf("a lock remains: %s", path)
			}
			return err
		})
	if err != nil && !os.IsNotExist(err) {
		project.t.Fatal(err)
	}
}

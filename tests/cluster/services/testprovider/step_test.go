package testprovider

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pulumi-controller.test/services/eventlog"
)

func TestStepIsCreatedUpdatedReplacedAndDeleted(t *testing.T) {
	project := newProject(t)
	project.program(map[string]any{"seconds": 0.5, "steps": 2, "value": "one", "replaceKey": "a"})
	output := project.up()
	for _, line := range []string{"creating first: step 1 of 2", "creating first: step 2 of 2"} {
		if !strings.Contains(output, line) {
			t.Errorf("the output does not contain %q:\n%s", line, output)
		}
	}
	project.expectEvents("create begin", "create done")
	created := project.outputs()
	if created["count"] != 0.0 || created["value"] != "one" || created["createdAt"] == "" {
		t.Fatalf("the outputs are %v", created)
	}

	project.up()
	project.expectEvents()

	project.program(map[string]any{"value": "two", "replaceKey": "a"})
	project.up()
	project.expectEvents("update begin", "update done")
	updated := project.outputs()
	if updated["count"] != 1.0 || updated["value"] != "two" || updated["id"] != created["id"] ||
		updated["createdAt"] != created["createdAt"] {
		t.Fatalf("the update changed %v to %v", created, updated)
	}

	project.program(map[string]any{"value": "two", "replaceKey": "b"})
	project.up()
	project.expectEvents("create begin", "create done", "delete begin", "delete done")
	if replaced := project.outputs(); replaced["id"] == created["id"] || replaced["count"] != 0.0 {
		t.Fatalf("the replacement changed %v to %v", updated, replaced)
	}

	project.must("destroy", "--yes", "--skip-preview")
	project.expectEvents("delete begin", "delete done")
	project.expectNoLock()
}

func TestPreviewChangesNothing(t *testing.T) {
	project := newProject(t)
	project.must("preview")
	project.expectEvents()
}

func TestStepTakesConfiguredTime(t *testing.T) {
	project := newProject(t)
	project.program(map[string]any{"seconds": 1, "steps": 3})
	project.up()
	events, _ := project.log.Find(eventlog.Filter{})
	if len(events) != 2 {
		t.Fatalf("the log contains %v", events)
	}
	if took := events[1].Time.Sub(events[0].Time); took < time.Second || took > 10*time.Second {
		t.Fatalf("a creation of one second took %s", took)
	}
}

func TestStepFailsOnConfiguredOperation(t *testing.T) {
	project := newProject(t)
	up := []string{"up", "--yes", "--skip-preview"}
	project.program(map[string]any{"failOn": "create"})
	project.mustFail("creating first: the input failOn is create", up...)
	project.expectEvents("create begin", "create failed")

	project.program(nil)
	project.up()
	project.expectEvents("create begin", "create done")
	project.program(map[string]any{"failOn": "update"})
	project.mustFail("updating first: the input failOn is update", up...)
	project.expectEvents("update begin", "update failed")

	project.program(map[string]any{"failOn": "delete"})
	project.up()
	project.expectEvents("update begin", "update done")
	project.mustFail("deleting first: the input failOn is delete", "destroy", "--yes", "--skip-preview")
	project.expectEvents("delete begin", "delete failed")

	project.program(nil)
	project.up()
	project.must("destroy", "--yes", "--skip-preview")
	project.expectEvents("update begin", "update done", "delete begin", "delete done")
}

func TestInvalidInputsAreRejected(t *testing.T) {
	project := newProject(t)
	for reason, inputs := range map[string]map[string]any{
		`"craete" is none of create, update and delete`: {"failOn": "craete"},
		"-2 is less than one":                           {"steps": -2},
		"-1 is less than zero":                          {"seconds": -1},
	} {
		project.program(inputs)
		project.mustFail(reason, "up", "--yes", "--skip-preview")
	}
	project.expectEvents()
}

// interrupt starts an update, and sends SIGINT to the CLI once the operation has begun. It returns the time from SIGINT
// to the end of the CLI, and the output.
func (project *project) interrupt(operation string) (time.Duration, string) {
	project.t.Helper()
	command, output := project.command("up", "--yes", "--skip-preview")
	if err := command.Start(); err != nil {
		project.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), commandTime/2)
	defer cancel()
	begun := project.log.Wait(ctx, eventlog.Filter{Operation: operation, Phase: eventlog.Begin}, 1)
	signalled := time.Now()
	if err := command.Process.Signal(os.Interrupt); err != nil {
		project.t.Errorf("sending SIGINT: %v", err)
	}
	err := command.Wait()
	took := time.Since(signalled)
	if len(begun) != 1 {
		project.t.Fatalf("the %s did not begin:\n%s", operation, output)
	}
	if err == nil {
		project.t.Fatalf("the interrupted update succeeded:\n%s", output)
	}
	return took, output.String()
}

func TestSIGINTCancelsCreationAndUpdate(t *testing.T) {
	project := newProject(t)
	project.program(map[string]any{"seconds": 30, "steps": 10})
	took, output := project.interrupt(createOperation)
	if took > 5*time.Second {
		t.Errorf("the CLI took %s to end after SIGINT", took)
	}
	if !strings.Contains(output, "cancelled while creating first: interrupted in step") {
		t.Errorf("the output does not contain the cancelled operation:\n%s", output)
	}
	project.expectEvents("create begin", "create cancelled")
	project.expectNoLock()

	project.program(nil)
	project.up()
	project.expectEvents("create begin", "create done")
	project.program(map[string]any{"seconds": 30})
	if took, _ := project.interrupt(updateOperation); took > 5*time.Second {
		t.Errorf("the CLI took %s to end after SIGINT", took)
	}
	project.expectEvents("update begin", "update cancelled")
	project.expectNoLock()
}

func TestStepThatIgnoresCancellationCompletes(t *testing.T) {
	project := newProject(t)
	project.program(map[string]any{"seconds": 4, "steps": 4, "ignoreCancel": true})
	took, output := project.interrupt(createOperation)
	if took < 3*time.Second {
		t.Errorf("the CLI ended %s after SIGINT, before the end of the creation:\n%s", took, output)
	}
	project.expectEvents("create begin", "create done")
	project.expectNoLock()
	if resources := project.must("stack", "export"); !strings.Contains(resources, "testing:index:Step::step") {
		t.Errorf("the state does not contain the created resource:\n%s", resources)
	}
}

func TestSecretIsHiddenInOutputsAndEncryptedInState(t *testing.T) {
	project := newProject(t)
	project.program(map[string]any{"secretValue": "a-very-secret-value"})
	output := project.up()
	if shown := project.outputs()["secretValue"]; shown != "[secret]" {
		t.Errorf("the output shows %v", shown)
	}
	if shown := project.outputs("--show-secrets")["secretValue"]; shown != "a-very-secret-value" {
		t.Errorf("with --show-secrets, the output shows %v", shown)
	}
	state, err := os.ReadFile(filepath.Join(project.directory, "state", ".pulumi", "stacks", "proof", "dev.json"))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(output+string(state), "a-very-secret-value") {
		t.Errorf("the output of the CLI or the state contains the secret:\n%s\n%s", output, state)
	}
}

func TestOperationFailsWithoutProviderLog(t *testing.T) {
	project := newProject(t)
	// No process listens on port 1.
	project.environment = append(project.environment, logVariable+"=http://127.0.0.1:1/")
	project.mustFail("failed to report begin of create first to the provider log at http://127.0.0.1:1",
		"up", "--yes", "--skip-preview")
	if state := project.must("stack", "export"); strings.Contains(state, "testing:index:Step::step") {
		t.Errorf("the failed operation has left a resource:\n%s", state)
	}
	project.environment = append(project.environment, logVariable+"=")
	project.up()
	project.expectEvents()
}

func TestRefreshReportsResourcesInEnvironmentAsDeleted(t *testing.T) {
	project := newProject(t)
	project.program(map[string]any{"name": "first"})
	project.up()
	project.must("refresh", "--yes", "--skip-preview", "--expect-no-changes")
	project.environment = append(project.environment, goneVariable+"=other,first")
	project.mustFail("no changes were expected", "refresh", "--preview-only", "--expect-no-changes")
	project.must("refresh", "--yes", "--skip-preview")
	project.up()
	project.expectEvents("create begin", "create done", "create begin", "create done")
}

func TestRefreshReportsAnotherValueOfResourcesInEnvironment(t *testing.T) {
	project := newProject(t)
	project.program(map[string]any{"name": "first", "value": "one"})
	project.up()
	project.environment = append(project.environment, driftedVariable+"=other,first")
	project.mustFail("no changes were expected", "refresh", "--preview-only", "--expect-no-changes")
	project.must("refresh", "--yes", "--skip-preview")
	if state := project.must("stack", "export"); !strings.Contains(state, `"value": "drifted"`) {
		t.Errorf("the state does not contain the actual value:\n%s", state)
	}
	project.expectEvents("create begin", "create done")
}

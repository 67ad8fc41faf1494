package testprovider

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"pulumi-controller.test/services/eventlog"
)

// logVariable is the environment variable with the base URL of the provider log. Without it, nothing is reported.
const logVariable = "PROVIDER_LOG_URL"

// reportTime is the timeout for one report. The log is in the same cluster and responds immediately.
const reportTime = 10 * time.Second

// reporter reports the phases of one operation to the provider log.
type reporter struct {
	url   string
	event eventlog.Event
}

func newReporter(ctx context.Context, operation operation) reporter {
	event := eventlog.Event{
		Resource:  operation.inputs.Name,
		Operation: operation.name,
		PID:       os.Getpid(),
		ID:        rand.Text(),
	}
	// The host name only helps users to find the pod. The event is valid without it.
	event.Host, _ = os.Hostname()
	if urn := urnOf(ctx); urn != "" {
		event.URN, event.Stack, event.Project = string(urn), urn.Stack().String(), string(urn.Project())
	}
	return reporter{url: strings.TrimSuffix(os.Getenv(logVariable), "/"), event: event}
}

// send reports a phase. If a report fails, the operation fails, because a test would otherwise assume that the
// operation never took place.
func (reporter reporter) send(ctx context.Context, phase string, failure error) error {
	if reporter.url == "" {
		return nil
	}
	event := reporter.event
	event.Phase, event.Time = phase, time.Now().UTC()
	if failure != nil {
		event.Error = failure.Error()
	}
	if err := reporter.post(ctx, event); err != nil {
		return fmt.Errorf("failed to report %s of %s %s to the provider log at %s (from %s): %w",
			phase, event.Operation, event.Resource, reporter.url, logVariable, err)
	}
	return nil
}

func (reporter reporter) post(ctx context.Context, event eventlog.Event) error {
	body, err := json.Marshal(event)
	if err != nil {
		return err
	}
	// The report must also be sent if the operation is cancelled.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), reportTime)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, reporter.url+"/events", bytes.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusCreated {
		answer, _ := io.ReadAll(io.LimitReader(response.Body, 1024))
		return fmt.Errorf("response %s: %s", response.Status, strings.TrimSpace(string(answer)))
	}
	return nil
}

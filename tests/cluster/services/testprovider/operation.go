package testprovider

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"time"

	provider "github.com/pulumi/pulumi-go-provider"

	"pulumi-controller.test/services/eventlog"
)

// operation is a creation, an update or a deletion of a resource.
type operation struct {
	name   string
	inputs StepInputs
}

// run reports the begin, waits for the configured time, acts, and reports the end.
func (operation operation) run(ctx context.Context, act func(context.Context) error) error {
	if operation.inputs.IgnoreCancel {
		ctx = context.WithoutCancel(ctx)
	}
	report := newReporter(ctx, operation)
	if err := report.send(ctx, eventlog.Begin, nil); err != nil {
		return err
	}
	failure := operation.attempt(ctx, act)
	phase := eventlog.Done
	switch {
	case failure != nil && errors.Is(ctx.Err(), context.Canceled):
		phase = eventlog.Cancelled
		failure = fmt.Errorf("cancelled while %s %s: %w", operation.verb(), operation.inputs.Name, failure)
	case failure != nil:
		phase = eventlog.Failed
		failure = fmt.Errorf("%s %s: %w", operation.verb(), operation.inputs.Name, failure)
	}
	return errors.Join(failure, report.send(ctx, phase, failure))
}

// attempt executes the part between the begin and the end. A resource with a configured failure fails before act is
// called.
func (operation operation) attempt(ctx context.Context, act func(context.Context) error) error {
	operation.print(ctx)
	held := operation.allocate()
	defer runtime.KeepAlive(held)
	if err := operation.waitSteps(ctx); err != nil {
		return err
	}
	if operation.inputs.FailOn == operation.name {
		return fmt.Errorf("the input failOn is %s", operation.name)
	}
	return act(ctx)
}

// print writes the configured amount of output in messages of many lines.
func (operation operation) print(ctx context.Context) {
	line := strings.Repeat("so much to say ", 8) + "\n"
	message := strings.Repeat(line, 64*1024/len(line))
	for printed := 0; printed < operation.inputs.PrintMegabytes<<20; printed += len(message) {
		provider.GetLogger(ctx).Info(message)
	}
}

// allocate returns the configured amount of memory. It writes to each page, because the kernel allocates a page only on
// the first write.
func (operation operation) allocate() []byte {
	held := make([]byte, operation.inputs.HoldMegabytes<<20)
	for at := 0; at < len(held); at += os.Getpagesize() {
		held[at] = 1
	}
	return held
}

// waitSteps waits for the configured time and reports each step to the user.
func (operation operation) waitSteps(ctx context.Context) error {
	steps := operation.inputs.Steps
	total := time.Duration(operation.inputs.Seconds * float64(time.Second))
	begin := time.Now()
	for step := 1; step <= steps; step++ {
		// The times are relative to the begin, so the overhead of the steps does not accumulate.
		timer := time.NewTimer(time.Until(begin.Add(total * time.Duration(step) / time.Duration(steps))))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return fmt.Errorf("interrupted in step %d of %d: %w", step, steps, ctx.Err())
		}
		provider.GetLogger(ctx).Infof("%s %s: step %d of %d", operation.verb(), operation.inputs.Name, step, steps)
	}
	return nil
}

func (operation operation) verb() string {
	return map[string]string{
		createOperation: "creating", updateOperation: "updating", deleteOperation: "deleting",
	}[operation.name]
}

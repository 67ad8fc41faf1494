package testprovider

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	provider "github.com/pulumi/pulumi-go-provider"
	"github.com/pulumi/pulumi-go-provider/infer"
)

// Names of the operations in the log and in the input failOn.
const (
	createOperation = "create"
	updateOperation = "update"
	deleteOperation = "delete"
)

// goneVariable is the environment variable with a comma-separated list of Steps that a refresh reports as deleted.
const goneVariable = "PROVIDER_GONE"

// driftedVariable is the environment variable with a comma-separated list of Steps whose value a refresh reports as
// changed.
const driftedVariable = "PROVIDER_DRIFTED"

// Step is the resource of the provider.
type Step struct{}

// StepInputs contains the inputs of a Step.
type StepInputs struct {
	Name           string     `pulumi:"name"`
	Seconds        float64    `pulumi:"seconds,optional"`
	Steps          int        `pulumi:"steps,optional"`
	FailOn         string     `pulumi:"failOn,optional"`
	IgnoreCancel   bool       `pulumi:"ignoreCancel,optional"`
	ConfigMap      *ConfigMap `pulumi:"configMap,optional"`
	PrintMegabytes int        `pulumi:"printMegabytes,optional"`
	HoldMegabytes  int        `pulumi:"holdMegabytes,optional"`
	Value          string     `pulumi:"value,optional"`
	ReplaceKey     string     `pulumi:"replaceKey,optional" provider:"replaceOnChanges"`
	SecretValue    *string    `pulumi:"secretValue,optional" provider:"secret"`
}

// StepState contains the outputs of a Step, which are stored in the state.
type StepState struct {
	StepInputs
	Count     int    `pulumi:"count"`
	CreatedAt string `pulumi:"createdAt"`
}

// Annotate describes the resource to Pulumi.
func (step *Step) Annotate(annotator infer.Annotator) {
	annotator.SetToken("index", "Step")
	annotator.Describe(&step, "Executes the configured operation and reports it to the provider log.")
}

// Annotate describes the inputs to Pulumi.
func (inputs *StepInputs) Annotate(annotator infer.Annotator) {
	annotator.Describe(&inputs.Name, "The name of the resource in the provider log.")
	annotator.Describe(&inputs.Seconds, "The duration of each operation in seconds.")
	annotator.Describe(&inputs.Steps, "The number of steps of an operation. The CLI shows each step.")
	annotator.SetDefault(&inputs.Steps, 1)
	annotator.Describe(&inputs.FailOn, "The operation that fails after its time: create, update or delete.")
	annotator.Describe(&inputs.IgnoreCancel, "Whether a cancelled operation continues to its end.")
	annotator.Describe(&inputs.ConfigMap, "A ConfigMap that is created, changed and deleted with the resource.")
	annotator.Describe(&inputs.PrintMegabytes, "The amount of output that each operation prints, for tests of programs with excessive output.")
	annotator.Describe(&inputs.HoldMegabytes, "The amount of memory that each operation allocates, for tests of memory limits.")
	annotator.Describe(&inputs.Value, "Any value. A change updates the resource.")
	annotator.Describe(&inputs.ReplaceKey, "Any value. A change replaces the resource.")
	annotator.Describe(&inputs.SecretValue, "Any value. It is a secret in the outputs and the state.")
}

// Check rejects invalid inputs, because they are a mistake in a test.
func (Step) Check(ctx context.Context, request infer.CheckRequest) (infer.CheckResponse[StepInputs], error) {
	inputs, failures, err := infer.DefaultCheck[StepInputs](ctx, request.NewInputs)
	if err != nil {
		return infer.CheckResponse[StepInputs]{}, err
	}
	refuse := func(property, format string, arguments ...any) {
		failures = append(failures, provider.CheckFailure{Property: property, Reason: fmt.Sprintf(format, arguments...)})
	}
	if inputs.Seconds < 0 {
		refuse("seconds", "%v is less than zero", inputs.Seconds)
	}
	if inputs.PrintMegabytes < 0 {
		refuse("printMegabytes", "%d is less than zero", inputs.PrintMegabytes)
	}
	if inputs.HoldMegabytes < 0 {
		refuse("holdMegabytes", "%d is less than zero", inputs.HoldMegabytes)
	}
	if inputs.Steps < 1 {
		refuse("steps", "%d is less than one", inputs.Steps)
	}
	if !slices.Contains([]string{"", createOperation, updateOperation, deleteOperation}, inputs.FailOn) {
		refuse("failOn", "%q is none of create, update and delete", inputs.FailOn)
	}
	return infer.CheckResponse[StepInputs]{Inputs: inputs, Failures: failures}, nil
}

// Create runs the configured operation and creates the ConfigMap.
func (Step) Create(
	ctx context.Context, request infer.CreateRequest[StepInputs],
) (infer.CreateResponse[StepState], error) {
	state := StepState{StepInputs: request.Inputs}
	if request.DryRun {
		return infer.CreateResponse[StepState]{Output: state}, nil
	}
	state.CreatedAt = time.Now().UTC().Format(time.RFC3339Nano)
	created := false
	err := operation{createOperation, request.Inputs}.run(ctx, func(ctx context.Context) error {
		err := changeConfigMap(ctx, nil, request.Inputs.ConfigMap)
		created = err == nil
		return err
	})
	if err != nil && created {
		// The state must contain every existing resource. Otherwise, no operation would delete the resource.
		err = infer.ResourceInitFailedError{Reasons: []string{err.Error()}}
	}
	return infer.CreateResponse[StepState]{ID: request.Inputs.Name + "-" + rand.Text()[:8], Output: state}, err
}

// Update runs the configured operation, and creates, updates or deletes the ConfigMap.
func (Step) Update(
	ctx context.Context, request infer.UpdateRequest[StepInputs, StepState],
) (infer.UpdateResponse[StepState], error) {
	state := request.State
	state.StepInputs = request.Inputs
	state.Count++
	if request.DryRun {
		return infer.UpdateResponse[StepState]{Output: state}, nil
	}
	err := operation{updateOperation, request.Inputs}.run(ctx, func(ctx context.Context) error {
		return changeConfigMap(ctx, request.State.ConfigMap, request.Inputs.ConfigMap)
	})
	return infer.UpdateResponse[StepState]{Output: state}, err
}

// Read reports the resources in PROVIDER_GONE as deleted, those in PROVIDER_DRIFTED with another value, for tests of
// drift, and all other resources as unchanged.
func (Step) Read(
	_ context.Context, request infer.ReadRequest[StepInputs, StepState],
) (infer.ReadResponse[StepInputs, StepState], error) {
	isListed := func(variable string) bool {
		return slices.Contains(strings.Split(os.Getenv(variable), ","), request.State.Name)
	}
	if isListed(goneVariable) {
		return infer.ReadResponse[StepInputs, StepState]{}, nil
	}
	if isListed(driftedVariable) {
		request.Inputs.Value, request.State.Value = "drifted", "drifted"
	}
	return infer.ReadResponse[StepInputs, StepState](request), nil
}

// Delete runs the configured operation and deletes the ConfigMap.
func (Step) Delete(ctx context.Context, request infer.DeleteRequest[StepState]) (infer.DeleteResponse, error) {
	inputs := request.State.StepInputs
	err := operation{deleteOperation, inputs}.run(ctx, func(ctx context.Context) error {
		return changeConfigMap(ctx, inputs.ConfigMap, nil)
	})
	return infer.DeleteResponse{}, err
}

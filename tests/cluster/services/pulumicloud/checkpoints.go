package pulumicloud

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/pulumi/pulumi/sdk/v3/go/common/apitype"
)

// emptyDeployment is the state of a stack without checkpoints.
const emptyDeployment = `{"version":3,"deployment":{"manifest":{"time":"0001-01-01T00:00:00Z","magic":"","version":""}}}`

func (stack *stack) checkpointPath(version int) string {
	return filepath.Join(stack.folder, "checkpoints", strconv.Itoa(version)+".json")
}

// checkpoint returns the state after an update. An update that changes nothing stores no checkpoint, so this can be the
// checkpoint of an older update.
func (stack *stack) checkpoint(version int) ([]byte, error) {
	for ; version >= 0; version-- {
		content, err := os.ReadFile(stack.checkpointPath(version))
		if err == nil {
			return content, nil
		}
		if !errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("failed to read version %d of the stack %s: %w", version, stack.id(), err)
		}
	}
	return []byte(emptyDeployment), nil
}

// countResources returns the number of resources in the current state.
func (stack *stack) countResources() (int, error) {
	content, err := stack.checkpoint(stack.Version)
	if err != nil {
		return 0, err
	}
	var state struct {
		Deployment struct {
			Resources []struct{} `json:"resources"`
		} `json:"deployment"`
	}
	if err := json.Unmarshal(content, &state); err != nil {
		return 0, fmt.Errorf("failed to decode the state of the stack %s: %w", stack.id(), err)
	}
	return len(state.Deployment.Resources), nil
}

// saveCheckpoint stores the state and then the update. If the process ends between the two writes, the CLI repeats the
// request with the same sequence number, which stores the same state again.
func (stack *stack) saveCheckpoint(call *call, update *update, encoding string, sequence int, state []byte) error {
	if err := writeFile(stack.checkpointPath(update.Version), state); err != nil {
		return err
	}
	update.Checkpoints[encoding]++
	update.Sequence = sequence
	if err := stack.saveUpdate(update); err != nil {
		return err
	}
	return call.reply(struct{}{})
}

func (update *update) refuseCheckpoint() error {
	if update.Preview {
		return failure(http.StatusBadRequest, "a preview cannot change the state")
	}
	return nil
}

func saveFullCheckpoint(call *call, stack *stack, update *update) error {
	var request apitype.PatchUpdateCheckpointRequest
	if err := errors.Join(update.refuseCheckpoint(), call.decode(&request)); err != nil {
		return err
	}
	if request.IsInvalid || len(request.Deployment) == 0 {
		return failure(http.StatusBadRequest, "the checkpoint contains no valid deployment")
	}
	state, err := json.Marshal(apitype.UntypedDeployment{
		Version: request.Version, Features: request.Features, Deployment: request.Deployment,
	})
	if err != nil {
		return fmt.Errorf("failed to encode the checkpoint: %w", err)
	}
	return stack.saveCheckpoint(call, update, "full", update.Sequence, state)
}

// saveVerbatimCheckpoint stores a state without changes, because later deltas refer to its bytes.
func saveVerbatimCheckpoint(call *call, stack *stack, update *update) error {
	var request apitype.PatchUpdateVerbatimCheckpointRequest
	if err := errors.Join(update.refuseCheckpoint(), call.decode(&request)); err != nil {
		return err
	}
	var state apitype.UntypedDeployment
	if err := json.Unmarshal(request.UntypedDeployment, &state); err != nil || len(state.Deployment) == 0 {
		return failure(http.StatusBadRequest, "the checkpoint contains no valid deployment")
	}
	// The CLI repeats a request with the same sequence number. A lower number belongs to an older state.
	if request.SequenceNumber < update.Sequence {
		return failure(http.StatusConflict, "the checkpoint has the sequence number %d, but the last checkpoint has %d",
			request.SequenceNumber, update.Sequence)
	}
	return stack.saveCheckpoint(call, update, "verbatim", request.SequenceNumber, request.UntypedDeployment)
}

func saveCheckpointDelta(call *call, stack *stack, update *update) error {
	var request apitype.PatchUpdateCheckpointDeltaRequest
	if err := errors.Join(update.refuseCheckpoint(), call.decode(&request)); err != nil {
		return err
	}
	if update.Checkpoints["verbatim"] == 0 {
		return failure(http.StatusBadRequest, "a delta needs an earlier verbatim checkpoint of the same update")
	}
	before, err := stack.checkpoint(update.Version)
	if err != nil {
		return err
	}
	if request.SequenceNumber == update.Sequence && hashOf(before) == request.CheckpointHash {
		// The server has stored this delta, but the CLI has not received the response.
		return call.reply(struct{}{})
	}
	if request.SequenceNumber != update.Sequence+1 {
		return failure(http.StatusConflict, "the delta has the sequence number %d, but the last checkpoint has %d",
			request.SequenceNumber, update.Sequence)
	}
	after, err := applyDelta(before, request.DeploymentDelta)
	if err != nil {
		return failure(http.StatusBadRequest, "failed to apply the delta: %v", err)
	}
	if hash := hashOf(after); hash != request.CheckpointHash {
		return failure(http.StatusBadRequest, "the checkpoint after the delta has the hash %s, but the request contains %s",
			hash, request.CheckpointHash)
	}
	return stack.saveCheckpoint(call, update, "delta", request.SequenceNumber, after)
}

func hashOf(content []byte) string {
	hash := sha256.Sum256(content)
	return hex.EncodeToString(hash[:])
}

// textEdit replaces a range of bytes. The CLI also sends lines and columns, which are not relevant.
type textEdit struct {
	Span struct {
		Start struct {
			Offset int `json:"offset"`
		} `json:"start"`
		End struct {
			Offset int `json:"offset"`
		} `json:"end"`
	}
	NewText string
}

// applyDelta applies edits, which must be in the order of their offsets.
func applyDelta(before []byte, delta json.RawMessage) ([]byte, error) {
	var edits []textEdit
	if err := json.Unmarshal(delta, &edits); err != nil {
		return nil, err
	}
	var after bytes.Buffer
	last := 0
	for _, edit := range edits {
		start, end := edit.Span.Start.Offset, edit.Span.End.Offset
		if start < last || end < start || end > len(before) {
			return nil, fmt.Errorf("the edit from %d to %d overlaps another edit or exceeds the size of %d", start, end, len(before))
		}
		after.Write(before[last:start])
		after.WriteString(edit.NewText)
		last = end
	}
	after.Write(before[last:])
	return after.Bytes(), nil
}

// exportState returns the current state, or the state after the update with the version in the path.
func exportState(call *call, stack *stack) error {
	version := stack.Version
	if text := call.PathValue("version"); text != "" {
		var err error
		if version, err = strconv.Atoi(text); err != nil || version < 1 || version > stack.Version {
			return failure(http.StatusNotFound, "Version %s of stack '%s' not found", text, stack.id())
		}
	}
	content, err := stack.checkpoint(version)
	if err != nil {
		return err
	}
	return call.reply(json.RawMessage(content))
}

// importState replaces the state. It is an update that is complete when the request returns.
func (server *Server) importState(call *call, stack *stack) error {
	var state apitype.UntypedDeployment
	if err := call.decode(&state); err != nil {
		return err
	}
	if len(state.Deployment) == 0 {
		return failure(http.StatusBadRequest, "the request contains no deployment")
	}
	if state.Version > newestDeployment {
		return failure(http.StatusBadRequest, "the deployment has the version %d, but the newest version is %d",
			state.Version, newestDeployment)
	}
	if stack.running() != nil {
		return errConflict
	}
	now := time.Now()
	imported := &update{
		ID: randomUUID(), Kind: apitype.StackImportUpdate, Version: stack.Version + 1, Status: apitype.StatusRunning,
		RequestedBy: call.caller.name, UserAgent: call.UserAgent(), Created: now, Started: now, Expires: now,
		Checkpoints: map[string]int{},
	}
	imported.Program.Metadata.Environment = map[string]string{}
	if err := writeJSONFile(stack.checkpointPath(imported.Version), state); err != nil {
		return err
	}
	stack.Version, stack.ActiveUpdate = imported.Version, imported.ID
	stack.updates[imported.ID] = imported
	if err := errors.Join(stack.endUpdate(imported, apitype.StatusSucceeded), stack.save()); err != nil {
		return err
	}
	return call.reply(apitype.ImportStackResponse{UpdateID: imported.ID})
}

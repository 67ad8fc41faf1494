package pulumicloud

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/pulumi/pulumi/sdk/v3/go/common/apitype"
)

// update is an operation on a stack: an update, refresh, destroy or import, or the preview of an operation. Its fields,
// except the name of its file, are the content of updates/ID.json.
type update struct {
	ID   string             `json:"id"`
	Kind apitype.UpdateKind `json:"kind"`
	// Preview is true if the operation changes nothing. Previews need no lease, and are not part of the history.
	Preview bool `json:"preview"`
	// Version is the version of the stack after the update.
	Version     int                          `json:"version"`
	Status      apitype.UpdateStatus         `json:"status"`
	RequestedBy string                       `json:"requestedBy"`
	UserAgent   string                       `json:"userAgent"`
	Program     apitype.UpdateProgramRequest `json:"program"`
	Created     time.Time                    `json:"created"`
	Started     time.Time                    `json:"started,omitzero"`
	Ended       time.Time                    `json:"ended,omitzero"`
	// Expired is true if the update has ended because its lease expired.
	Expired bool `json:"expired,omitempty"`

	Token   string    `json:"token,omitempty"`
	Expires time.Time `json:"expires,omitzero"`
	// Renewals is the number of lease renewals.
	Renewals int `json:"renewals"`

	// Checkpoints is the number of checkpoints by their encoding: full, verbatim and delta.
	Checkpoints map[string]int `json:"checkpoints"`
	// Sequence is the sequence number of the last checkpoint.
	Sequence        int                    `json:"sequence"`
	Events          int                    `json:"events"`
	ResourceChanges map[apitype.OpType]int `json:"resourceChanges,omitempty"`
	ResourceCount   int                    `json:"resourceCount"`
}

func (stack *stack) updatePath(id, extension string) string {
	return filepath.Join(stack.folder, "updates", id+extension)
}

func (stack *stack) saveUpdate(update *update) error {
	return writeJSONFile(stack.updatePath(update.ID, ".json"), update)
}

func (stack *stack) loadUpdates() error {
	entries, err := os.ReadDir(filepath.Join(stack.folder, "updates"))
	if err != nil {
		return fmt.Errorf("failed to list the updates of the stack %s: %w", stack.id(), err)
	}
	for _, entry := range entries {
		id, found := strings.CutSuffix(entry.Name(), ".json")
		if !found {
			continue
		}
		loaded := &update{}
		if err := readJSONFile(stack.updatePath(id, ".json"), loaded); err != nil {
			return err
		}
		stack.updates[id] = loaded
	}
	return nil
}

// running returns the update that is in progress, or nil.
func (stack *stack) running() *update {
	if active := stack.updates[stack.ActiveUpdate]; active != nil && active.Status == apitype.StatusRunning {
		return active
	}
	return nil
}

// endExpiredUpdate ends the update in progress if its lease has expired.
func (stack *stack) endExpiredUpdate() error {
	running := stack.running()
	if running == nil || time.Now().Before(running.Expires) {
		return nil
	}
	running.Expired = true
	return stack.endUpdate(running, apitype.StatusFailed)
}

func (stack *stack) endUpdate(update *update, status apitype.UpdateStatus) error {
	update.Status, update.Ended = status, time.Now()
	count, err := stack.countResources()
	if err != nil {
		return err
	}
	update.ResourceCount = count
	return stack.saveUpdate(update)
}

func (server *Server) addUpdateRoutes(api *http.ServeMux) {
	const path = "/api/stacks/{organization}/{project}/{stack}"
	const update = path + "/{kind}/{update}"
	api.Handle("GET "+path+"/updates", server.onStack(serveHistory))
	api.Handle("GET "+path+"/updates/latest", server.onStack(serveLatestUpdate))
	api.Handle("GET "+path+"/updates/latest/previews", server.onStack(servePreviews))
	api.Handle("GET "+path+"/updates/{version}", server.onStack(serveUpdateByVersion))
	api.Handle("POST "+path+"/{kind}", server.onStack(server.createUpdate))
	api.Handle("POST "+update, server.onUpdate(server.startUpdate))
	api.Handle("GET "+update, server.onUpdate(serveUpdateStatus))
	api.Handle("GET "+update+"/events", server.onUpdate(serveEvents))
	api.Handle("POST "+update+"/cancel", server.onUpdate(cancelUpdate))
	api.Handle("POST "+update+"/renew_lease", server.withLease(server.renewLease))
	api.Handle("POST "+update+"/complete", server.withLease(completeUpdate))
	api.Handle("PATCH "+update+"/checkpoint", server.withLease(saveFullCheckpoint))
	api.Handle("PATCH "+update+"/checkpointverbatim", server.withLease(saveVerbatimCheckpoint))
	api.Handle("PATCH "+update+"/checkpointdelta", server.withLease(saveCheckpointDelta))
	api.Handle("POST "+update+"/events", server.withLease(saveEvent))
	api.Handle("POST "+update+"/events/batch", server.withLease(saveEvents))
}

// onUpdate calls a handler with the update in the path. The kind of the update in the path is not relevant, because the
// CLI always sends "update".
func (server *Server) onUpdate(handle func(*call, *stack, *update) error) http.Handler {
	return server.onStack(func(call *call, stack *stack) error {
		update, err := stack.find(call)
		if err != nil {
			return err
		}
		return handle(call, stack, update)
	})
}

func (stack *stack) find(call *call) (*update, error) {
	update := stack.updates[call.PathValue("update")]
	if update == nil {
		return nil, failure(http.StatusNotFound, "Update '%s' not found", call.PathValue("update"))
	}
	return update, nil
}

// withLease calls a handler for a request that must contain the token of the lease.
func (server *Server) withLease(handle func(*call, *stack, *update) error) http.Handler {
	return server.open(func(call *call) error {
		token, found := strings.CutPrefix(call.Header.Get("Authorization"), "update-token ")
		if !found {
			return errUnauthorized
		}
		stack, err := server.lockStack(call.Request)
		if err != nil {
			return err
		}
		defer stack.lock.Unlock()
		update, err := stack.find(call)
		if err != nil {
			return err
		}
		switch {
		case update.Token == "" || token != update.Token:
			return errTokenInvalid
		case update.Expired || time.Now().After(update.Expires):
			return errTokenExpired
		case update.Status != apitype.StatusRunning:
			return errCompleted
		}
		return handle(call, stack, update)
	})
}

var updateKinds = map[string]bool{"update": true, "preview": true, "refresh": true, "destroy": true}

func (server *Server) createUpdate(call *call, stack *stack) error {
	if !updateKinds[call.PathValue("kind")] {
		return failure(http.StatusNotFound, "the test server does not implement %s %s", call.Method, call.URL.Path)
	}
	created := &update{
		ID: randomUUID(), Kind: apitype.UpdateKind(call.PathValue("kind")), Status: apitype.StatusNotStarted,
		RequestedBy: call.caller.name, UserAgent: call.UserAgent(), Created: time.Now(), Checkpoints: map[string]int{},
	}
	if err := call.decode(&created.Program); err != nil {
		return err
	}
	created.Preview = created.Kind == apitype.PreviewUpdate || created.Program.Options.DryRun
	required, err := server.requiredPolicies(call, stack)
	if err != nil {
		return err
	}
	if err := stack.saveUpdate(created); err != nil {
		return err
	}
	stack.updates[created.ID] = created
	return call.reply(apitype.UpdateProgramResponse{UpdateID: created.ID, RequiredPolicies: required})
}

func (server *Server) startUpdate(call *call, stack *stack, update *update) error {
	var request apitype.StartUpdateRequest
	if err := call.decode(&request); err != nil {
		return err
	}
	if update.Status != apitype.StatusNotStarted {
		return failure(http.StatusConflict, "The Update has already started")
	}
	if !update.Preview && stack.running() != nil {
		return errConflict
	}
	if request.Tags != nil {
		stack.Tags = request.Tags
	}
	update.Version = stack.Version
	if !update.Preview {
		stack.Version++
		stack.ActiveUpdate, update.Version = update.ID, stack.Version
	}
	update.Status, update.Started = apitype.StatusRunning, time.Now()
	update.Token, update.Expires = randomID(), time.Now().Add(server.leaseDuration(stack))
	if err := errors.Join(stack.saveUpdate(update), stack.save()); err != nil {
		return err
	}
	// The journal version 0 makes the CLI send checkpoints.
	return call.reply(apitype.StartUpdateResponse{
		Version: update.Version, Token: update.Token, TokenExpiration: update.Expires.Unix(),
	})
}

// longestLease is the longest lease of an update.
const longestLease = 5 * time.Minute

// leaseDuration returns the duration of the leases of a stack.
func (server *Server) leaseDuration(stack *stack) time.Duration {
	if stack.LeaseDuration > 0 {
		return time.Duration(stack.LeaseDuration)
	}
	if duration := server.settings(stack.Organization).LeaseDuration; duration > 0 {
		return time.Duration(duration)
	}
	return longestLease
}

func (server *Server) renewLease(call *call, stack *stack, update *update) error {
	var request apitype.RenewUpdateLeaseRequest
	if err := call.decode(&request); err != nil {
		return err
	}
	requested := time.Duration(request.Duration) * time.Second
	if requested <= 0 || requested > longestLease {
		return failure(http.StatusBadRequest, "the duration must be between 1 and %d seconds", int(longestLease.Seconds()))
	}
	// The token stays valid, because concurrent requests of the CLI can still use it.
	update.Expires = time.Now().Add(min(requested, server.leaseDuration(stack)))
	update.Renewals++
	if err := stack.saveUpdate(update); err != nil {
		return err
	}
	return call.reply(apitype.RenewUpdateLeaseResponse{Token: update.Token, TokenExpiration: update.Expires.Unix()})
}

func completeUpdate(call *call, stack *stack, update *update) error {
	var request apitype.CompleteUpdateRequest
	if err := call.decode(&request); err != nil {
		return err
	}
	switch request.Status {
	case apitype.UpdateStatusSucceeded, apitype.UpdateStatusFailed, apitype.UpdateStatusCancelled:
	default:
		return failure(http.StatusBadRequest, "invalid status %q: must be succeeded, failed or cancelled", request.Status)
	}
	if err := stack.endUpdate(update, request.Status); err != nil {
		return err
	}
	return call.reply(struct{}{})
}

// cancelUpdate ends an update. The next request of the process that runs the update fails.
func cancelUpdate(call *call, stack *stack, update *update) error {
	if update.Status != apitype.StatusRunning {
		return errCompleted
	}
	if err := stack.endUpdate(update, apitype.UpdateStatusCancelled); err != nil {
		return err
	}
	return call.reply(struct{}{})
}

package pulumicloud

import (
	"errors"
	"net/http"
	"time"

	"github.com/pulumi/pulumi/sdk/v3/go/common/apitype"
)

// onControlledStack calls a handler with the stack in the path, and holds its lock.
func (server *Server) onControlledStack(handle func(*call, *stack) error) func(*call) error {
	return func(call *call) error {
		stack, err := server.lockStack(call.Request)
		var known *apitype.ErrorResponse
		if errors.As(err, &known) {
			return reject(known.Code, "%s", known.Message)
		}
		if err != nil {
			return err
		}
		defer stack.lock.Unlock()
		return handle(call, stack)
	}
}

// serveStacks lists the stacks of an organization with their tags.
func (server *Server) serveStacks(call *call) error {
	stacks := []apitype.Stack{}
	for _, stack := range server.sortedStacks(func(id stackID) bool { return id.organization == call.PathValue("organization") }) {
		stack.lock.Lock()
		if !stack.deleted {
			stacks = append(stacks, stack.describe())
		}
		stack.lock.Unlock()
	}
	return call.reply(stacks)
}

// listedUpdate is an update in the response of a control request.
type listedUpdate struct {
	*update
	// Token hides the token of the lease.
	Token string `json:"token,omitempty"`
	// ExecKind and ExecAgent describe the program that started the CLI.
	ExecKind  string `json:"execKind"`
	ExecAgent string `json:"execAgent"`
}

// serveUpdates lists all updates and previews, newest first.
func serveUpdates(call *call, stack *stack) error {
	updates := []listedUpdate{}
	for _, update := range stack.sortedUpdates(func(*update) bool { return true }) {
		environment := update.Program.Metadata.Environment
		updates = append(updates, listedUpdate{
			update: update, ExecKind: environment["exec.kind"], ExecAgent: environment["exec.agent"],
		})
	}
	return call.reply(updates)
}

// setLease sets the duration of the leases of a stack.
func setLease(call *call, stack *stack) error {
	var request struct {
		Duration Duration `json:"duration"`
	}
	if err := call.decodeControl(&request); err != nil {
		return err
	}
	if request.Duration < 0 {
		return reject(http.StatusBadRequest, "duration must not be negative")
	}
	stack.LeaseDuration = request.Duration
	if err := stack.save(); err != nil {
		return err
	}
	return call.replyNoContent()
}

// expireLease expires the lease of the update in progress. The update ends when the next request for the stack arrives.
func expireLease(call *call, stack *stack) error {
	running := stack.running()
	if running == nil {
		return reject(http.StatusConflict, "the stack %s has no update in progress", stack.id())
	}
	running.Expires = time.Now()
	if err := stack.saveUpdate(running); err != nil {
		return err
	}
	return call.replyNoContent()
}

package pulumicloud

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/pulumi/pulumi/sdk/v3/go/common/apitype"
	"github.com/pulumi/pulumi/sdk/v3/go/common/tokens"
)

// pageSize is the maximum number of stacks in a response.
const pageSize = 100

// stackID identifies a stack by its current names.
type stackID struct {
	organization, project, name string
}

func (id stackID) String() string {
	return id.organization + "/" + id.project + "/" + id.name
}

// stack is a stack with its updates. Its lock guards all fields except folder.
type stack struct {
	lock    sync.Mutex
	folder  string
	deleted bool
	updates map[string]*update

	stackRecord
}

// stackRecord is the content of stack.json.
type stackRecord struct {
	ID           string               `json:"id"`
	Organization string               `json:"organization"`
	Project      string               `json:"project"`
	Name         string               `json:"name"`
	Created      time.Time            `json:"created"`
	Tags         map[string]string    `json:"tags"`
	Teams        []string             `json:"teams,omitempty"`
	Config       *apitype.StackConfig `json:"config,omitempty"`
	// Version is the version of the last update that was started.
	Version int `json:"version"`
	// ActiveUpdate is the last started update that is not a preview. It can be complete.
	ActiveUpdate string `json:"activeUpdate"`
	// Key encrypts the secrets of the stack.
	Key []byte `json:"key"`
	// LeaseDuration replaces the setting of the organization.
	LeaseDuration Duration `json:"leaseDuration,omitempty"`
}

func (stack *stack) id() stackID {
	return stackID{stack.Organization, stack.Project, stack.Name}
}

func (stack *stack) save() error {
	return writeJSONFile(filepath.Join(stack.folder, "stack.json"), stack.stackRecord)
}

func (server *Server) loadStacks() error {
	server.stacks = map[stackID]*stack{}
	folder := filepath.Join(server.root, "stacks")
	entries, err := os.ReadDir(folder)
	if err != nil {
		return fmt.Errorf("failed to list the stacks: %w", err)
	}
	for _, entry := range entries {
		loaded := &stack{folder: filepath.Join(folder, entry.Name()), updates: map[string]*update{}}
		err := readJSONFile(filepath.Join(loaded.folder, "stack.json"), &loaded.stackRecord)
		if errors.Is(err, os.ErrNotExist) {
			// An earlier process has not finished the creation or the deletion of this stack.
			err = os.RemoveAll(loaded.folder)
			if err == nil {
				continue
			}
		}
		if err := errors.Join(err, loaded.loadUpdates()); err != nil {
			return err
		}
		server.stacks[loaded.id()] = loaded
	}
	return nil
}

func (server *Server) addStackRoutes(api *http.ServeMux) {
	const path = "/api/stacks/{organization}/{project}/{stack}"
	api.Handle("GET /api/user/stacks", server.authenticated(server.listStacks))
	api.Handle("GET /api/stacks/{organization}", server.inOrganization(server.listOrganizationStacks))
	api.Handle("HEAD /api/stacks/{organization}/{project}", server.inOrganization(server.serveProject))
	api.Handle("POST /api/stacks/{organization}/{project}", server.inOrganization(server.createStack))
	api.Handle("GET "+path, server.onStack(serveStack))
	api.Handle("DELETE "+path, server.onStack(server.deleteStack))
	api.Handle("POST "+path+"/rename", server.onStack(server.renameStack))
	api.Handle("PATCH "+path+"/tags", server.onStack(setTags))
	api.Handle("GET "+path+"/config", server.onStack(serveConfig))
	api.Handle("PUT "+path+"/config", server.onStack(setConfig))
	api.Handle("DELETE "+path+"/config", server.onStack(removeConfig))
	api.Handle("GET "+path+"/export", server.onStack(exportState))
	api.Handle("GET "+path+"/export/{version}", server.onStack(exportState))
	api.Handle("POST "+path+"/import", server.onStack(server.importState))
	api.Handle("POST "+path+"/encrypt", server.onStack(encryptValue))
	api.Handle("POST "+path+"/decrypt", server.onStack(decryptValue))
	api.Handle("POST "+path+"/batch-encrypt", server.onStack(encryptValues))
	api.Handle("POST "+path+"/batch-decrypt", server.onStack(decryptValues))
	// The CLI reports the decryption of secrets of other providers.
	api.Handle("POST "+path+"/decrypt/log-decryption", server.onStack(acceptReport))
	api.Handle("POST "+path+"/decrypt/log-batch-decryption", server.onStack(acceptReport))
}

func acceptReport(call *call, _ *stack) error {
	return call.replyNoContent()
}

// onStack calls a handler with the stack in the path, and holds its lock.
func (server *Server) onStack(handle func(*call, *stack) error) http.Handler {
	return server.inOrganization(func(call *call, organization string) error {
		stack, err := server.lockStack(call.Request)
		if err != nil {
			return err
		}
		defer stack.lock.Unlock()
		return handle(call, stack)
	})
}

// lockStack returns the stack in the path of a request. The caller must release its lock.
func (server *Server) lockStack(request *http.Request) (*stack, error) {
	id := stackID{request.PathValue("organization"), request.PathValue("project"), request.PathValue("stack")}
	server.mutex.Lock()
	stack := server.stacks[id]
	server.mutex.Unlock()
	if stack != nil {
		stack.lock.Lock()
		if !stack.deleted && stack.id() == id {
			err := stack.endExpiredUpdate()
			if err != nil {
				stack.lock.Unlock()
			}
			return stack, err
		}
		stack.lock.Unlock()
	}
	return nil, failure(http.StatusNotFound, "Stack '%s' not found", id)
}

func (server *Server) createStack(call *call, organization string) error {
	var request apitype.CreateStackRequest
	if err := call.decode(&request); err != nil {
		return err
	}
	id := stackID{organization, call.PathValue("project"), request.StackName}
	if !isName(id.project) || !isName(id.name) {
		return failure(http.StatusBadRequest, "invalid stack name '%s': names are limited to 100 alphanumeric characters, "+
			"hyphens, underscores and periods", id)
	}
	created := &stack{updates: map[string]*update{}, stackRecord: stackRecord{
		ID: randomUUID(), Organization: id.organization, Project: id.project, Name: id.name, Created: time.Now(),
		Tags: request.Tags, Teams: request.Teams, Config: request.Config, Key: newKey(),
	}}
	if created.Tags == nil {
		created.Tags = map[string]string{}
	}
	created.folder = filepath.Join(server.root, "stacks", created.ID)
	server.mutex.Lock()
	defer server.mutex.Unlock()
	if server.stacks[id] != nil {
		return failure(http.StatusConflict, "Stack '%s' already exists", id.name)
	}
	if err := created.create(request.State); err != nil {
		return err
	}
	server.stacks[id] = created
	return call.reply(struct{}{})
}

// create writes the files of a new stack. The stack exists when stack.json exists.
func (stack *stack) create(state *apitype.UntypedDeployment) error {
	for _, name := range []string{"updates", "checkpoints"} {
		if err := os.MkdirAll(filepath.Join(stack.folder, name), 0o755); err != nil {
			return fmt.Errorf("failed to create the directory of the stack %s: %w", stack.id(), err)
		}
	}
	if state != nil {
		if err := writeJSONFile(stack.checkpointPath(0), state); err != nil {
			return err
		}
	}
	return stack.save()
}

func serveStack(call *call, stack *stack) error {
	return call.reply(stack.describe())
}

func (stack *stack) describe() apitype.Stack {
	response := apitype.Stack{
		ID: stack.ID, OrgName: stack.Organization, ProjectName: stack.Project, StackName: tokens.QName(stack.Name),
		ActiveUpdate: stack.ActiveUpdate, Tags: stack.Tags, Config: stack.Config, Version: stack.Version,
	}
	if update := stack.running(); update != nil {
		response.CurrentOperation = &apitype.OperationStatus{
			Kind: update.Kind, Author: update.RequestedBy, Started: update.Started.Unix(),
		}
	}
	return response
}

func (server *Server) deleteStack(call *call, stack *stack) error {
	if stack.running() != nil {
		return errConflict
	}
	resources, err := stack.countResources()
	if err != nil {
		return err
	}
	force, _ := strconv.ParseBool(call.URL.Query().Get("force"))
	if resources > 0 && !force {
		// The CLI compares this message.
		return failure(http.StatusBadRequest, "Stack still contains resources.")
	}
	if err := server.removeStack(stack); err != nil {
		return err
	}
	return call.replyNoContent()
}

// removeStack deletes a stack. The caller must hold its lock.
func (server *Server) removeStack(stack *stack) error {
	err := os.Remove(filepath.Join(stack.folder, "stack.json"))
	if err := errors.Join(err, os.RemoveAll(stack.folder)); err != nil {
		return fmt.Errorf("failed to delete the stack %s: %w", stack.id(), err)
	}
	stack.deleted = true
	server.mutex.Lock()
	defer server.mutex.Unlock()
	delete(server.stacks, stack.id())
	return nil
}

// serveProject responds to HEAD requests, with which the CLI checks whether a project exists.
func (server *Server) serveProject(call *call, organization string) error {
	server.mutex.Lock()
	defer server.mutex.Unlock()
	for id := range server.stacks {
		if id.organization == organization && id.project == call.PathValue("project") {
			return call.replyNoContent()
		}
	}
	return failure(http.StatusNotFound, "Project '%s' not found", call.PathValue("project"))
}

func (server *Server) listOrganizationStacks(call *call, organization string) error {
	return server.replyStacks(call, func(id stackID) bool { return id.organization == organization })
}

func (server *Server) listStacks(call *call) error {
	organization := call.URL.Query().Get("organization")
	if organization != "" {
		if err := call.caller.checkAccess(organization, call.Method); err != nil {
			return err
		}
	}
	return server.replyStacks(call, func(id stackID) bool {
		_, member := call.caller.roles[id.organization]
		return member && (organization == "" || id.organization == organization)
	})
}

// replyStacks lists stacks in the order of their names. The continuation token is the name of the last listed stack.
func (server *Server) replyStacks(call *call, include func(stackID) bool) error {
	query := call.URL.Query()
	response := apitype.ListStacksResponse{Stacks: []apitype.StackSummary{}}
	for _, stack := range server.sortedStacks(include) {
		summary, matches, err := stack.summarize(query.Get("project"), query.Get("tagName"), query.Get("tagValue"))
		if err != nil {
			return err
		}
		name := stackID{summary.OrgName, summary.ProjectName, summary.StackName}.String()
		if !matches || name <= query.Get("continuationToken") {
			continue
		}
		if len(response.Stacks) == pageSize {
			last := response.Stacks[pageSize-1]
			token := stackID{last.OrgName, last.ProjectName, last.StackName}.String()
			response.ContinuationToken = &token
			break
		}
		response.Stacks = append(response.Stacks, summary)
	}
	return call.reply(response)
}

func (server *Server) sortedStacks(include func(stackID) bool) []*stack {
	server.mutex.Lock()
	defer server.mutex.Unlock()
	ids := slices.SortedFunc(maps.Keys(server.stacks), func(a, b stackID) int {
		return strings.Compare(a.String(), b.String())
	})
	var result []*stack
	for _, id := range ids {
		if include(id) {
			result = append(result, server.stacks[id])
		}
	}
	return result
}

// summarize returns the entry of a stack in a list, and whether the stack matches the filters.
func (stack *stack) summarize(project, tag, value string) (apitype.StackSummary, bool, error) {
	stack.lock.Lock()
	defer stack.lock.Unlock()
	summary := apitype.StackSummary{
		ID: stack.ID, OrgName: stack.Organization, ProjectName: stack.Project, StackName: stack.Name,
	}
	found, tagged := stack.Tags[tag]
	if stack.deleted || (project != "" && project != stack.Project) || (tag != "" && !tagged) || (value != "" && found != value) {
		return summary, false, nil
	}
	if update := stack.updates[stack.ActiveUpdate]; update != nil {
		started := update.Started.Unix()
		summary.LastUpdate = &started
		count, err := stack.countResources()
		if err != nil {
			return summary, false, err
		}
		summary.ResourceCount = &count
	}
	return summary, true, nil
}

package pulumicloud

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"slices"
	"strconv"
	"time"
)

// longestControl is the maximum size of the body of a control request in bytes.
const longestControl = 1 << 20

// Settings are the settings of an organization.
type Settings struct {
	// LeaseDuration is the duration of the lease of an update. The default is five minutes.
	LeaseDuration Duration `json:"leaseDuration,omitempty"`
	// CheckpointCutoffBytes is the size from which the CLI uploads checkpoints as deltas. The default is 1 KiB.
	CheckpointCutoffBytes int `json:"checkpointCutoffBytes,omitempty"`
}

// settings returns the settings of an organization.
func (server *Server) settings(name string) Settings {
	server.mutex.Lock()
	defer server.mutex.Unlock()
	if organization := server.accounts.Organizations[name]; organization != nil {
		return organization.Settings
	}
	return Settings{}
}

// problem is an error of a control request.
type problem struct {
	status int
	text   string
}

func (problem *problem) Error() string { return problem.text }

func reject(status int, format string, arguments ...any) error {
	return &problem{status, fmt.Sprintf(format, arguments...)}
}

// onControl calls a handler of a control request, which needs no access token.
func onControl(handle func(*call) error) http.HandlerFunc {
	return func(response http.ResponseWriter, request *http.Request) {
		err := handle(&call{Request: request, response: response})
		var known *problem
		switch {
		case errors.As(err, &known):
			http.Error(response, known.text, known.status)
		case err != nil:
			http.Error(response, err.Error(), http.StatusInternalServerError)
		}
	}
}

// decodeControl decodes the body of a control request, and rejects unknown fields. An empty body is an empty object.
func (call *call) decodeControl(into any) error {
	decoder := json.NewDecoder(http.MaxBytesReader(call.response, call.Body, longestControl))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(into); err != nil && call.ContentLength != 0 {
		return reject(http.StatusBadRequest, "failed to decode the body: %v", err)
	}
	return nil
}

func (server *Server) control() http.Handler {
	const path = "/control/organizations/{organization}"
	const stack = path + "/stacks/{project}/{stack}"
	routes := http.NewServeMux()
	routes.Handle("PUT "+path, onControl(server.putOrganization))
	routes.Handle("DELETE "+path, onControl(server.deleteOrganization))
	routes.Handle("POST "+path+"/tokens", onControl(server.createToken))
	routes.Handle("DELETE "+path+"/tokens/{token}", onControl(server.revokeToken))
	routes.Handle("PUT "+path+"/issuers", onControl(server.putIssuers))
	routes.Handle("GET "+path+"/faults", onControl(func(call *call) error {
		return call.reply(server.listFaults(call.PathValue("organization")))
	}))
	routes.Handle("POST "+path+"/faults", onControl(server.createFault))
	routes.Handle("DELETE "+path+"/faults", onControl(server.deleteFaults))
	routes.Handle("DELETE "+path+"/faults/{fault}", onControl(server.deleteFaults))
	routes.Handle("GET "+path+"/requests", onControl(server.serveRequests))
	routes.Handle("DELETE "+path+"/requests", onControl(server.forgetRequests))
	routes.Handle("GET "+path+"/stacks", onControl(server.serveStacks))
	routes.Handle("GET "+stack, onControl(server.onControlledStack(serveStack)))
	routes.Handle("GET "+stack+"/updates", onControl(server.onControlledStack(serveUpdates)))
	routes.Handle("GET "+stack+"/state", onControl(server.onControlledStack(exportState)))
	routes.Handle("PUT "+stack+"/lease", onControl(server.onControlledStack(setLease)))
	routes.Handle("POST "+stack+"/lease/expire", onControl(server.onControlledStack(expireLease)))
	return routes
}

// putOrganization creates an organization, or replaces its members and settings.
func (server *Server) putOrganization(call *call) error {
	var request struct {
		Members  map[string]Role `json:"members"`
		Settings Settings        `json:"settings"`
	}
	if err := call.decodeControl(&request); err != nil {
		return err
	}
	name := call.PathValue("organization")
	if !isName(name) {
		return reject(http.StatusBadRequest, "invalid organization name %q", name)
	}
	for user, role := range request.Members {
		if !isName(user) || (role != Admin && role != Member && role != Reader) {
			return reject(http.StatusBadRequest, "invalid member %q with the role %q: the role must be admin, member or reader", user, role)
		}
	}
	if request.Settings.LeaseDuration < 0 || request.Settings.CheckpointCutoffBytes < 0 {
		return reject(http.StatusBadRequest, "the settings must not be negative")
	}
	server.mutex.Lock()
	defer server.mutex.Unlock()
	existing := server.accounts.Organizations[name]
	if existing == nil {
		existing = &organization{}
		server.accounts.Organizations[name] = existing
	}
	existing.Members, existing.Settings = request.Members, request.Settings
	if err := server.saveAccounts(); err != nil {
		return err
	}
	return call.replyNoContent()
}

// deleteOrganization deletes an organization and everything in it.
func (server *Server) deleteOrganization(call *call) error {
	name := call.PathValue("organization")
	for _, stack := range server.sortedStacks(func(id stackID) bool { return id.organization == name }) {
		stack.lock.Lock()
		var err error
		if !stack.deleted {
			err = server.removeStack(stack)
		}
		stack.lock.Unlock()
		if err != nil {
			return err
		}
	}
	server.observing.Lock()
	delete(server.requests, name)
	delete(server.faults, name)
	server.observing.Unlock()
	server.mutex.Lock()
	defer server.mutex.Unlock()
	var failures error
	for id, environment := range server.environments {
		if id.organization == name {
			failures = errors.Join(failures, os.Remove(server.environmentPath(environment)))
			delete(server.environments, id)
		}
	}
	if organization := server.accounts.Organizations[name]; organization != nil {
		for _, pack := range organization.Policies.Packs {
			if err := os.Remove(server.packPath(pack.Archive)); err != nil && !errors.Is(err, os.ErrNotExist) {
				failures = errors.Join(failures, err)
			}
		}
	}
	delete(server.accounts.Organizations, name)
	maps.DeleteFunc(server.accounts.Tokens, func(_ string, token token) bool { return token.Organization == name })
	if err := errors.Join(failures, server.saveAccounts()); err != nil {
		return fmt.Errorf("failed to delete the organization %s: %w", name, err)
	}
	return call.replyNoContent()
}

// createToken creates an access token of a member, of the organization or of a team.
func (server *Server) createToken(call *call) error {
	var request struct {
		Name      string   `json:"name"`
		User      string   `json:"user"`
		Team      string   `json:"team"`
		ExpiresIn Duration `json:"expiresIn"`
	}
	if err := call.decodeControl(&request); err != nil {
		return err
	}
	name := call.PathValue("organization")
	server.mutex.Lock()
	defer server.mutex.Unlock()
	organization := server.accounts.Organizations[name]
	if organization == nil {
		return reject(http.StatusNotFound, "organization %s not found: create it first", name)
	}
	created := token{Name: request.Name, User: request.User, Team: request.Team}
	if request.User == "" {
		created.Organization = name
	} else if _, member := organization.Members[request.User]; !member || request.Team != "" {
		return reject(http.StatusBadRequest, "the user %s must be a member of %s, and a token of a user has no team", request.User, name)
	}
	if request.ExpiresIn > 0 {
		created.Expires = time.Now().Add(time.Duration(request.ExpiresIn))
	}
	value := "pul-" + randomID()
	server.accounts.Tokens[value] = created
	if err := server.saveAccounts(); err != nil {
		return err
	}
	return call.reply(map[string]string{"token": value})
}

func (server *Server) revokeToken(call *call) error {
	server.mutex.Lock()
	defer server.mutex.Unlock()
	value := call.PathValue("token")
	if _, found := server.accounts.Tokens[value]; !found {
		return reject(http.StatusNotFound, "the access token does not exist")
	}
	delete(server.accounts.Tokens, value)
	if err := server.saveAccounts(); err != nil {
		return err
	}
	return call.replyNoContent()
}

// putIssuers replaces the OIDC issuers of an organization.
func (server *Server) putIssuers(call *call) error {
	var issuers []Issuer
	if err := call.decodeControl(&issuers); err != nil {
		return err
	}
	for index := range issuers {
		if err := issuers[index].check(); err != nil {
			return reject(http.StatusBadRequest, "invalid issuer %q: %v", issuers[index].URL, err)
		}
	}
	server.mutex.Lock()
	defer server.mutex.Unlock()
	organization := server.accounts.Organizations[call.PathValue("organization")]
	if organization == nil {
		return reject(http.StatusNotFound, "organization %s not found: create it first", call.PathValue("organization"))
	}
	organization.Issuers = issuers
	if err := server.saveAccounts(); err != nil {
		return err
	}
	return call.replyNoContent()
}

func (server *Server) createFault(call *call) error {
	var fault Fault
	if err := call.decodeControl(&fault); err != nil {
		return err
	}
	if err := fault.prepare(); err != nil {
		return reject(http.StatusBadRequest, "%v", err)
	}
	if err := server.addFault(call.PathValue("organization"), &fault); err != nil {
		return reject(http.StatusInsufficientStorage, "%v", err)
	}
	return call.reply(map[string]int{"id": fault.ID})
}

func (server *Server) deleteFaults(call *call) error {
	id := 0
	if text := call.PathValue("fault"); text != "" {
		var err error
		if id, err = strconv.Atoi(text); err != nil || id < 1 {
			return reject(http.StatusBadRequest, "invalid ID %q", text)
		}
	}
	if !server.removeFaults(call.PathValue("organization"), id) {
		return reject(http.StatusNotFound, "fault %d not found", id)
	}
	return call.replyNoContent()
}

// serveRequests lists the requests for an organization that match the parameters method, path and stack.
func (server *Server) serveRequests(call *call) error {
	query := call.URL.Query()
	for name := range query {
		if !slices.Contains([]string{"method", "path", "stack"}, name) {
			return reject(http.StatusBadRequest, "unknown filter %q", name)
		}
	}
	fault := Fault{Method: query.Get("method"), Path: query.Get("path"), Stack: query.Get("stack"), Disconnect: true}
	if err := fault.prepare(); err != nil {
		return reject(http.StatusBadRequest, "%v", err)
	}
	return call.reply(server.listRequests(call.PathValue("organization"), fault.matches))
}

func (server *Server) forgetRequests(call *call) error {
	server.observing.Lock()
	defer server.observing.Unlock()
	delete(server.requests, call.PathValue("organization"))
	return call.replyNoContent()
}

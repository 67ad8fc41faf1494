package pulumicloud

import (
	"cmp"
	"encoding/json"
	"net/http"
	"slices"
	"strconv"

	"github.com/pulumi/pulumi/sdk/v3/go/common/apitype"
)

// policyGroup applies policy packs to stacks. Its JSON form is also the response of the service.
type policyGroup struct {
	Name string `json:"name"`
	// Default is true for the group that applies to all stacks.
	Default    bool                           `json:"isOrgDefault"`
	EntityType string                         `json:"entityType"`
	Mode       string                         `json:"mode"`
	Stacks     []apitype.PulumiStackReference `json:"stacks"`
	Packs      []appliedPack                  `json:"appliedPolicyPacks"`
	Accounts   []string                       `json:"accounts"`
}

// appliedPack is a version of a policy pack in a group.
type appliedPack struct {
	Name         string                     `json:"name"`
	DisplayName  string                     `json:"displayName"`
	Version      int                        `json:"version"`
	VersionTag   string                     `json:"versionTag"`
	Config       map[string]json.RawMessage `json:"config,omitempty"`
	Environments []string                   `json:"environments,omitempty"`
}

func newGroup(name string) policyGroup {
	return policyGroup{
		Name: name, EntityType: "stacks", Mode: "preventative",
		Stacks: []apitype.PulumiStackReference{}, Packs: []appliedPack{}, Accounts: []string{},
	}
}

// group returns the group with a name. The default group always exists.
func (policies *policies) group(name string) (*policyGroup, error) {
	for index := range policies.Groups {
		if policies.Groups[index].Name == name {
			return &policies.Groups[index], nil
		}
	}
	if name != apitype.DefaultPolicyGroup {
		return nil, failure(http.StatusNotFound, "Policy Group '%s' not found", name)
	}
	created := newGroup(name)
	created.Default = true
	policies.Groups = slices.Insert(policies.Groups, 0, created)
	return &policies.Groups[0], nil
}

// requiredPolicies returns the policy packs that the CLI must run for a stack.
func (server *Server) requiredPolicies(call *call, stack *stack) ([]apitype.RequiredPolicy, error) {
	server.mutex.Lock()
	defer server.mutex.Unlock()
	organization := server.accounts.Organizations[stack.Organization]
	if organization == nil {
		return nil, failure(http.StatusNotFound, "Organization '%s' not found", stack.Organization)
	}
	var required []apitype.RequiredPolicy
	for _, group := range organization.Policies.Groups {
		if group.Mode != "preventative" || (!group.Default && !group.contains(stack)) {
			continue
		}
		for _, applied := range group.Packs {
			pack := organization.Policies.find(applied.Name, strconv.Itoa(applied.Version))
			if pack == nil {
				continue
			}
			required = append(required, apitype.RequiredPolicy{
				Name: pack.Name, Version: pack.Version, VersionTag: pack.VersionTag, DisplayName: pack.DisplayName,
				PackLocation: call.externalURL("/api/packs/" + pack.Archive), Config: configOf(applied.Config),
			})
		}
	}
	return required, nil
}

func (group *policyGroup) contains(stack *stack) bool {
	return slices.ContainsFunc(group.Stacks, func(reference apitype.PulumiStackReference) bool {
		return reference.Name == stack.Name && (reference.RoutingProject == "" || reference.RoutingProject == stack.Project)
	})
}

func listGroups(call *call, policies *policies) error {
	if _, err := policies.group(apitype.DefaultPolicyGroup); err != nil {
		return err
	}
	type summary struct {
		Name                  string `json:"name"`
		IsOrgDefault          bool   `json:"isOrgDefault"`
		NumStacks             int    `json:"numStacks"`
		EntityType            string `json:"entityType"`
		Mode                  string `json:"mode"`
		NumEnabledPolicyPacks int    `json:"numEnabledPolicyPacks"`
	}
	summaries := []summary{}
	for _, group := range policies.Groups {
		summaries = append(summaries, summary{
			group.Name, group.Default, len(group.Stacks), group.EntityType, group.Mode, len(group.Packs),
		})
	}
	return call.reply(map[string]any{"policyGroups": summaries})
}

func (server *Server) createGroup(call *call, policies *policies) error {
	var request struct {
		Name       string `json:"name"`
		EntityType string `json:"entityType"`
		Mode       string `json:"mode"`
	}
	if err := call.decode(&request); err != nil {
		return err
	}
	if !isName(request.Name) {
		return failure(http.StatusBadRequest, "invalid policy group name '%s'", request.Name)
	}
	if _, err := policies.group(request.Name); err == nil {
		return failure(http.StatusConflict, "Policy Group '%s' already exists", request.Name)
	}
	created := newGroup(request.Name)
	created.EntityType = cmp.Or(request.EntityType, created.EntityType)
	created.Mode = cmp.Or(request.Mode, created.Mode)
	policies.Groups = append(policies.Groups, created)
	if err := server.saveAccounts(); err != nil {
		return err
	}
	return call.replyNoContent()
}

func serveGroup(call *call, policies *policies) error {
	group, err := policies.group(call.PathValue("group"))
	if err != nil {
		return err
	}
	return call.reply(group)
}

func (server *Server) deleteGroup(call *call, policies *policies) error {
	group, err := policies.group(call.PathValue("group"))
	if err != nil {
		return err
	}
	if group.Default {
		return failure(http.StatusBadRequest, "the default Policy Group cannot be deleted")
	}
	policies.Groups = slices.DeleteFunc(policies.Groups, func(other policyGroup) bool { return other.Name == call.PathValue("group") })
	if err := server.saveAccounts(); err != nil {
		return err
	}
	return call.replyNoContent()
}

func (server *Server) updateGroup(call *call, policies *policies) error {
	var request struct {
		NewName          string                        `json:"newName"`
		AddStack         *apitype.PulumiStackReference `json:"addStack"`
		RemoveStack      *apitype.PulumiStackReference `json:"removeStack"`
		AddPolicyPack    *appliedPack                  `json:"addPolicyPack"`
		RemovePolicyPack *appliedPack                  `json:"removePolicyPack"`
	}
	if err := call.decode(&request); err != nil {
		return err
	}
	group, err := policies.group(call.PathValue("group"))
	if err != nil {
		return err
	}
	if request.AddPolicyPack != nil {
		if err := policies.apply(group, *request.AddPolicyPack); err != nil {
			return err
		}
	}
	if removed := request.RemovePolicyPack; removed != nil {
		group.Packs = slices.DeleteFunc(group.Packs, func(pack appliedPack) bool { return pack.Name == removed.Name })
	}
	if request.AddStack != nil && !slices.Contains(group.Stacks, *request.AddStack) {
		group.Stacks = append(group.Stacks, *request.AddStack)
	}
	if removed := request.RemoveStack; removed != nil {
		group.Stacks = slices.DeleteFunc(group.Stacks, func(stack apitype.PulumiStackReference) bool { return stack == *removed })
	}
	if request.NewName != "" {
		if _, err := policies.group(request.NewName); err == nil || !isName(request.NewName) || group.Default {
			return failure(http.StatusBadRequest, "cannot rename the Policy Group '%s' to '%s'", group.Name, request.NewName)
		}
		group.Name = request.NewName
	}
	if err := server.saveAccounts(); err != nil {
		return err
	}
	return call.replyNoContent()
}

// apply adds a policy pack to a group, and replaces another version of the same pack.
func (policies *policies) apply(group *policyGroup, added appliedPack) error {
	version := added.VersionTag
	if version == "" && added.Version > 0 {
		version = strconv.Itoa(added.Version)
	}
	pack := policies.find(added.Name, version)
	if pack == nil {
		return failure(http.StatusNotFound, "Policy Pack '%s' %s not found", added.Name, version)
	}
	added.DisplayName, added.Version, added.VersionTag = pack.DisplayName, pack.Version, pack.VersionTag
	group.Packs = slices.DeleteFunc(group.Packs, func(other appliedPack) bool { return other.Name == added.Name })
	group.Packs = append(group.Packs, added)
	return nil
}

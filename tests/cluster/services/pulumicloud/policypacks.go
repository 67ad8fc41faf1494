package pulumicloud

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/pulumi/pulumi/sdk/v3/go/common/apitype"
)

// maxPacks is the maximum number of versions of all policy packs of an organization.
const maxPacks = 1000

// policies are the policy packs and the policy groups of an organization.
type policies struct {
	Packs  []policyPack  `json:"packs,omitempty"`
	Groups []policyGroup `json:"groups,omitempty"`
}

// policyPack is a published version of a policy pack.
type policyPack struct {
	Name        string           `json:"name"`
	DisplayName string           `json:"displayName"`
	Version     int              `json:"version"`
	VersionTag  string           `json:"versionTag"`
	Policies    []apitype.Policy `json:"policies"`
	// Archive is the name of the file with the code.
	Archive string `json:"archive"`
	// Complete is true after the CLI has uploaded the code.
	Complete bool `json:"complete"`
}

func (pack *policyPack) hasVersion(version string) bool {
	return pack.VersionTag == version || strconv.Itoa(pack.Version) == version
}

// find returns a complete pack. Without a version, it returns the newest version.
func (policies *policies) find(name, version string) *policyPack {
	for index := range slices.Backward(policies.Packs) {
		pack := &policies.Packs[index]
		if pack.Name == name && pack.Complete && (version == "" || pack.hasVersion(version)) {
			return pack
		}
	}
	return nil
}

func (server *Server) addPolicyRoutes(api *http.ServeMux) {
	const path = "/api/orgs/{organization}/policypacks"
	const version = path + "/{pack}/versions/{version}"
	api.Handle("GET "+path, server.onPolicies(listPacks))
	api.Handle("POST "+path, server.onPolicies(server.publishPack))
	api.Handle("DELETE "+path+"/{pack}", server.onPolicies(server.deletePack))
	api.Handle("DELETE "+version, server.onPolicies(server.deletePack))
	api.Handle("POST "+version+"/complete", server.onPolicies(server.completePack))
	api.Handle("GET "+version+"/schema", server.onPolicies(servePackSchema))
	// The names of archives are not predictable, so these requests need no access token, as with signed URLs.
	api.Handle("PUT /api/packs/{archive}", server.open(server.uploadPack))
	api.Handle("GET /api/packs/{archive}", server.open(server.downloadPack))

	const group = "/api/orgs/{organization}/policygroups"
	api.Handle("GET "+group, server.onPolicies(listGroups))
	api.Handle("POST "+group, server.onPolicies(server.createGroup))
	api.Handle("GET "+group+"/{group}", server.onPolicies(serveGroup))
	api.Handle("PATCH "+group+"/{group}", server.onPolicies(server.updateGroup))
	api.Handle("DELETE "+group+"/{group}", server.onPolicies(server.deleteGroup))
	api.Handle("GET /api/stacks/{organization}/{project}/{stack}/policypacks",
		server.onStack(func(call *call, stack *stack) error {
			required, err := server.requiredPolicies(call, stack)
			if err != nil {
				return err
			}
			return call.reply(apitype.GetStackPolicyPacksResponse{RequiredPolicies: required})
		}))
}

// onPolicies calls a handler with the policies of the organization in the path, and holds server.mutex.
func (server *Server) onPolicies(handle func(*call, *policies) error) http.Handler {
	return server.inOrganization(func(call *call, name string) error {
		server.mutex.Lock()
		defer server.mutex.Unlock()
		organization := server.accounts.Organizations[name]
		if organization == nil {
			return failure(http.StatusNotFound, "Organization '%s' not found", name)
		}
		return handle(call, &organization.Policies)
	})
}

func listPacks(call *call, policies *policies) error {
	packs := map[string]*apitype.PolicyPackWithVersions{}
	for _, pack := range policies.Packs {
		if !pack.Complete {
			continue
		}
		listed := packs[pack.Name]
		if listed == nil {
			listed = &apitype.PolicyPackWithVersions{Name: pack.Name}
			packs[pack.Name] = listed
		}
		listed.DisplayName = pack.DisplayName
		listed.Versions = append(listed.Versions, pack.Version)
		listed.VersionTags = append(listed.VersionTags, pack.VersionTag)
	}
	response := apitype.ListPolicyPacksResponse{PolicyPacks: []apitype.PolicyPackWithVersions{}}
	for _, name := range slices.Sorted(maps.Keys(packs)) {
		response.PolicyPacks = append(response.PolicyPacks, *packs[name])
	}
	return call.reply(response)
}

// publishPack starts the publication of a version. The CLI then uploads the code and completes the publication.
func (server *Server) publishPack(call *call, policies *policies) error {
	var request apitype.CreatePolicyPackRequest
	if err := call.decode(&request); err != nil {
		return err
	}
	created := policyPack{
		Name: request.Name, DisplayName: request.DisplayName, VersionTag: request.VersionTag, Policies: request.Policies,
		Version: 1, Archive: randomID(),
	}
	if !isName(created.Name) {
		return failure(http.StatusBadRequest, "invalid policy pack name '%s'", created.Name)
	}
	for _, pack := range policies.Packs {
		if pack.Name != created.Name {
			continue
		}
		if pack.Complete && request.VersionTag != "" && pack.VersionTag == request.VersionTag {
			return failure(http.StatusConflict, "Policy Pack '%s' version '%s' already exists", pack.Name, pack.VersionTag)
		}
		created.Version = max(created.Version, pack.Version+1)
	}
	if created.VersionTag == "" {
		created.VersionTag = strconv.Itoa(created.Version)
	}
	if len(policies.Packs) >= maxPacks {
		return failure(http.StatusRequestEntityTooLarge, "an organization can have %d versions of policy packs", maxPacks)
	}
	policies.Packs = append(policies.Packs, created)
	if err := server.saveAccounts(); err != nil {
		return err
	}
	return call.reply(apitype.CreatePolicyPackResponse{
		Version: created.Version, UploadURI: call.externalURL("/api/packs/" + created.Archive),
	})
}

func (server *Server) completePack(call *call, policies *policies) error {
	for index := range slices.Backward(policies.Packs) {
		pack := &policies.Packs[index]
		if pack.Name != call.PathValue("pack") || !pack.hasVersion(call.PathValue("version")) {
			continue
		}
		if _, err := os.Stat(server.packPath(pack.Archive)); err != nil {
			return failure(http.StatusBadRequest, "the code of the policy pack '%s' has not been uploaded", pack.Name)
		}
		pack.Complete = true
		if err := server.saveAccounts(); err != nil {
			return err
		}
		return call.replyNoContent()
	}
	return errNoPack(call)
}

func errNoPack(call *call) error {
	return failure(http.StatusNotFound, "Policy Pack '%s' %s not found", call.PathValue("pack"), call.PathValue("version"))
}

// deletePack deletes one version or all versions.
func (server *Server) deletePack(call *call, policies *policies) error {
	name, version := call.PathValue("pack"), call.PathValue("version")
	var deleted []string
	remaining := slices.DeleteFunc(slices.Clone(policies.Packs), func(pack policyPack) bool {
		matches := pack.Name == name && (version == "" || pack.hasVersion(version))
		if matches {
			deleted = append(deleted, pack.Archive)
		}
		return matches
	})
	if len(deleted) == 0 {
		return errNoPack(call)
	}
	policies.Packs = remaining
	err := server.saveAccounts()
	for _, archive := range deleted {
		if removed := os.Remove(server.packPath(archive)); removed != nil && !errors.Is(removed, os.ErrNotExist) {
			err = errors.Join(err, removed)
		}
	}
	if err != nil {
		return err
	}
	return call.replyNoContent()
}

func servePackSchema(call *call, policies *policies) error {
	pack := policies.find(call.PathValue("pack"), call.PathValue("version"))
	if pack == nil {
		return errNoPack(call)
	}
	response := apitype.GetPolicyPackConfigSchemaResponse{ConfigSchema: map[string]apitype.PolicyConfigSchema{}}
	for _, policy := range pack.Policies {
		if policy.ConfigSchema != nil {
			response.ConfigSchema[policy.Name] = *policy.ConfigSchema
		}
	}
	return call.reply(response)
}

func (server *Server) packPath(archive string) string {
	return filepath.Join(server.root, "packs", archive)
}

func (server *Server) uploadPack(call *call) error {
	content, err := call.read()
	if err != nil {
		return err
	}
	archive := call.PathValue("archive")
	server.mutex.Lock()
	defer server.mutex.Unlock()
	for _, organization := range server.accounts.Organizations {
		for _, pack := range organization.Policies.Packs {
			if pack.Archive == archive && !pack.Complete {
				if err := writeFile(server.packPath(archive), content); err != nil {
					return err
				}
				return call.replyNoContent()
			}
		}
	}
	return failure(http.StatusNotFound, "upload '%s' not found", archive)
}

func (server *Server) downloadPack(call *call) error {
	archive := call.PathValue("archive")
	if !isName(archive) {
		return failure(http.StatusNotFound, "archive '%s' not found", archive)
	}
	content, err := os.ReadFile(server.packPath(archive))
	if errors.Is(err, os.ErrNotExist) {
		return failure(http.StatusNotFound, "archive '%s' not found", archive)
	}
	if err != nil {
		return fmt.Errorf("failed to read the archive %s: %w", archive, err)
	}
	call.response.Header().Set("Content-Type", "application/gzip")
	// The only possible error is a closed connection, which cannot be reported.
	_, _ = call.response.Write(content)
	return nil
}

// configOf returns the configuration of a policy pack in the form of a request.
func configOf(config map[string]json.RawMessage) map[string]*json.RawMessage {
	result := map[string]*json.RawMessage{}
	for name, value := range config {
		result[name] = &value
	}
	return result
}

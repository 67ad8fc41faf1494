package pulumicloud

import (
	"cmp"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pulumi/esc/eval"
)

const (
	// defaultProject is the project of environments that have only a name.
	defaultProject = "default"
	revisionHeader = "Pulumi-ESC-Revision"
	// maxRevisions is the maximum number of revisions of an environment.
	maxRevisions = 1000
)

type environmentID struct {
	organization, project, name string
}

func (id environmentID) String() string {
	return id.organization + "/" + id.project + "/" + id.name
}

// environment is a definition of an ESC environment with all its revisions. It is the content of environments/ID.json.
// server.mutex guards all fields.
type environment struct {
	ID           string     `json:"id"`
	Organization string     `json:"organization"`
	Project      string     `json:"project"`
	Name         string     `json:"name"`
	Revisions    []revision `json:"revisions"`
	// Tags are the revision numbers by the tag, without the tag latest.
	Tags map[string]int `json:"tags"`
	// Key encrypts the secrets of the definition.
	Key []byte `json:"key"`
}

// revision is a version of a definition. Its secrets are encrypted.
type revision struct {
	Number  int       `json:"number"`
	Created time.Time `json:"created"`
	Creator string    `json:"creator"`
	YAML    string    `json:"yaml"`
}

func (environment *environment) id() environmentID {
	return environmentID{environment.Organization, environment.Project, environment.Name}
}

func (server *Server) environmentPath(environment *environment) string {
	return filepath.Join(server.root, "environments", environment.ID+".json")
}

func (server *Server) saveEnvironment(environment *environment) error {
	return writeJSONFile(server.environmentPath(environment), environment)
}

func (server *Server) loadEnvironments() error {
	server.environments = map[environmentID]*environment{}
	folder := filepath.Join(server.root, "environments")
	entries, err := os.ReadDir(folder)
	if err != nil {
		return fmt.Errorf("failed to list the environments: %w", err)
	}
	for _, entry := range entries {
		loaded := &environment{}
		if err := readJSONFile(filepath.Join(folder, entry.Name()), loaded); err != nil {
			return err
		}
		server.environments[loaded.id()] = loaded
	}
	return nil
}

// withShortPaths maps the paths of older clients, and the paths of anonymous environments, to paths that are not
// ambiguous.
func withShortPaths(next http.Handler) http.Handler {
	return http.HandlerFunc(func(response http.ResponseWriter, request *http.Request) {
		path := request.URL.Path
		if rest, found := strings.CutPrefix(path, "/api/preview/environments/"); found {
			segments := strings.Split(rest, "/")
			// The environments of older clients have no project.
			if len(segments) > 1 && segments[1] != "yaml" {
				segments = slices.Insert(segments, 1, defaultProject)
			}
			path = "/api/esc/environments/" + strings.Join(segments, "/")
		}
		if rest, found := strings.CutPrefix(path, "/api/esc/environments/"); found {
			if segments := strings.Split(rest, "/"); len(segments) > 1 && segments[1] == "yaml" {
				segments[0], segments[1] = segments[1], segments[0]
				path = "/api/esc/" + strings.Join(segments, "/")
			}
		}
		if path != request.URL.Path {
			request = request.Clone(request.Context())
			request.URL.Path, request.URL.RawPath = path, ""
		}
		next.ServeHTTP(response, request)
	})
}

func (server *Server) addEnvironmentRoutes(api *http.ServeMux) {
	const path = "/api/esc/environments/{organization}/{project}/{environment}"
	const anonymous = "/api/esc/yaml/{organization}"
	api.Handle("GET /api/esc/environments", server.authenticated(func(call *call) error {
		return server.replyEnvironments(call, func(id environmentID) bool {
			_, member := call.caller.roles[id.organization]
			return member
		})
	}))
	api.Handle("GET /api/esc/environments/{organization}", server.inOrganization(func(call *call, organization string) error {
		return server.replyEnvironments(call, func(id environmentID) bool { return id.organization == organization })
	}))
	api.Handle("POST /api/esc/environments/{organization}", server.inOrganization(server.createEnvironment))
	api.Handle("GET "+path, server.onEnvironment(serveDefinition))
	api.Handle("GET "+path+"/decrypt", server.onEnvironment(serveDecryptedDefinition))
	api.Handle("PATCH "+path, server.onEnvironment(server.updateDefinition))
	api.Handle("DELETE "+path, server.onEnvironment(server.deleteEnvironment))
	api.Handle("POST "+path+"/clone", server.onEnvironment(server.cloneEnvironment))
	api.Handle("GET "+path+"/versions", server.onEnvironment(serveRevisions))
	api.Handle("GET "+path+"/versions/{version}", server.onEnvironment(serveDefinition))
	// VERSION/decrypt, or tags/TAG.
	api.Handle("GET "+path+"/versions/{version}/{tag}", server.onEnvironment(func(call *call, environment *environment) error {
		switch {
		case call.PathValue("version") == "tags":
			return serveRevisionTag(call, environment)
		case call.PathValue("tag") == "decrypt":
			return serveDecryptedDefinition(call, environment)
		default:
			return failure(http.StatusNotFound, "the test server does not implement %s %s", call.Method, call.URL.Path)
		}
	}))
	api.Handle("GET "+path+"/versions/tags", server.onEnvironment(serveRevisionTags))
	api.Handle("POST "+path+"/versions/tags", server.onEnvironment(server.createRevisionTag))
	api.Handle("PATCH "+path+"/versions/tags/{tag}", server.onEnvironment(server.updateRevisionTag))
	api.Handle("DELETE "+path+"/versions/tags/{tag}", server.onEnvironment(server.deleteRevisionTag))
	api.Handle("POST "+path+"/open", server.inOrganizationToOpen(server.openEnvironment))
	api.Handle("POST "+path+"/versions/{version}/open", server.inOrganizationToOpen(server.openEnvironment))
	api.Handle("GET "+path+"/open/{session}", server.inOrganization(server.serveSession))
	api.Handle("POST "+anonymous+"/check", server.inOrganizationToOpen(server.checkDefinition))
	api.Handle("POST "+anonymous+"/open", server.inOrganizationToOpen(server.openDefinition))
	api.Handle("GET "+anonymous+"/open/{session}", server.inOrganization(server.serveSession))
}

// onEnvironment calls a handler with the environment in the path, and holds server.mutex.
func (server *Server) onEnvironment(handle func(*call, *environment) error) http.Handler {
	return server.inOrganization(func(call *call, organization string) error {
		id := environmentID{organization, call.PathValue("project"), call.PathValue("environment")}
		server.mutex.Lock()
		defer server.mutex.Unlock()
		environment := server.environments[id]
		if environment == nil {
			return failure(http.StatusNotFound, "Environment '%s' not found", id)
		}
		return handle(call, environment)
	})
}

func (server *Server) replyEnvironments(call *call, include func(environmentID) bool) error {
	type listed struct {
		Organization string `json:"organization"`
		Project      string `json:"project"`
		Name         string `json:"name"`
	}
	environments := []listed{}
	server.mutex.Lock()
	defer server.mutex.Unlock()
	for id := range server.environments {
		if include(id) {
			environments = append(environments, listed{id.organization, id.project, id.name})
		}
	}
	slices.SortFunc(environments, func(a, b listed) int {
		return cmp.Or(strings.Compare(a.Organization, b.Organization), strings.Compare(a.Project, b.Project), strings.Compare(a.Name, b.Name))
	})
	return call.reply(map[string]any{"environments": environments, "nextToken": ""})
}

func (server *Server) createEnvironment(call *call, organization string) error {
	var request struct {
		Project string `json:"project"`
		Name    string `json:"name"`
	}
	if err := call.decode(&request); err != nil {
		return err
	}
	id := environmentID{organization, cmp.Or(request.Project, defaultProject), request.Name}
	server.mutex.Lock()
	defer server.mutex.Unlock()
	if _, err := server.addEnvironment(id, call.caller.name, newKey()); err != nil {
		return err
	}
	return call.reply(struct{}{})
}

// addEnvironment creates an environment with an empty revision.
func (server *Server) addEnvironment(id environmentID, creator string, key []byte) (*environment, error) {
	if !isName(id.project) || !isName(id.name) {
		return nil, failure(http.StatusBadRequest, "invalid environment name '%s'", id)
	}
	if server.environments[id] != nil {
		return nil, failure(http.StatusConflict, "Environment '%s' already exists", id)
	}
	created := &environment{
		ID: randomUUID(), Organization: id.organization, Project: id.project, Name: id.name, Tags: map[string]int{}, Key: key,
		Revisions: []revision{{Number: 1, Created: time.Now(), Creator: creator}},
	}
	if err := server.saveEnvironment(created); err != nil {
		return nil, err
	}
	server.environments[id] = created
	return created, nil
}

// find returns the revision with a number or a tag. Without a version, it returns the newest revision.
func (environment *environment) find(version string) (revision, error) {
	newest := environment.Revisions[len(environment.Revisions)-1]
	if version == "" || version == "latest" {
		return newest, nil
	}
	number, err := strconv.Atoi(version)
	if err != nil {
		number = environment.Tags[version]
	}
	for _, revision := range environment.Revisions {
		if revision.Number == number {
			return revision, nil
		}
	}
	return revision{}, failure(http.StatusNotFound, "Version '%s' of environment '%s' not found", version, environment.id())
}

func etag(revision revision) string {
	return hashOf([]byte(strconv.Itoa(revision.Number) + "\n" + revision.YAML))
}

func serveDefinition(call *call, environment *environment) error {
	revision, err := environment.find(call.PathValue("version"))
	if err != nil {
		return err
	}
	return call.replyDefinition(revision, []byte(revision.YAML))
}

func serveDecryptedDefinition(call *call, environment *environment) error {
	revision, err := environment.find(call.PathValue("version"))
	if err != nil {
		return err
	}
	content, err := eval.DecryptSecrets(call.Context(), environment.Name, []byte(revision.YAML), secretKey(environment.Key))
	if err != nil {
		return err
	}
	return call.replyDefinition(revision, content)
}

func (call *call) replyDefinition(revision revision, content []byte) error {
	header := call.response.Header()
	header.Set("Content-Type", "application/x-yaml")
	header.Set("ETag", etag(revision))
	header.Set(revisionHeader, strconv.Itoa(revision.Number))
	// The only possible error is a closed connection, which cannot be reported.
	_, _ = call.response.Write(content)
	return nil
}

// updateDefinition stores a definition as a new revision and encrypts its secrets.
func (server *Server) updateDefinition(call *call, environment *environment) error {
	content, err := call.read()
	if err != nil {
		return err
	}
	newest, err := environment.find("")
	if err != nil {
		return err
	}
	if expected := call.Header.Get("ETag"); expected != "" && expected != etag(newest) {
		return failure(http.StatusConflict, "environment '%s' has been updated by another request", environment.id())
	}
	if _, diagnostics, err := eval.LoadYAMLBytes(environment.Name, content); err != nil {
		return failure(http.StatusBadRequest, "failed to decode the definition: %v", err)
	} else if diagnostics.HasErrors() {
		return newDiagnosedError(diagnostics)
	}
	encrypted, err := eval.EncryptSecrets(call.Context(), environment.Name, content, secretKey(environment.Key))
	if err != nil {
		return failure(http.StatusBadRequest, "failed to encrypt the secrets of the definition: %v", err)
	}
	if len(environment.Revisions) >= maxRevisions {
		return failure(http.StatusRequestEntityTooLarge, "an environment can have %d revisions", maxRevisions)
	}
	created := revision{newest.Number + 1, time.Now(), call.caller.name, string(encrypted)}
	environment.Revisions = append(environment.Revisions, created)
	if err := server.saveEnvironment(environment); err != nil {
		return err
	}
	call.response.Header().Set("ETag", etag(created))
	call.response.Header().Set(revisionHeader, strconv.Itoa(created.Number))
	return call.reply(struct{}{})
}

func (server *Server) deleteEnvironment(call *call, environment *environment) error {
	if err := os.Remove(server.environmentPath(environment)); err != nil {
		return fmt.Errorf("failed to delete the environment %s: %w", environment.id(), err)
	}
	delete(server.environments, environment.id())
	return call.replyNoContent()
}

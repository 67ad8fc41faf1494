package pulumicloud

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/pulumi/esc"
	"github.com/pulumi/esc/eval"
	"github.com/pulumi/esc/syntax"
	"github.com/pulumi/pulumi/sdk/v3/go/common/apitype"
	"github.com/pulumi/pulumi/sdk/v3/go/common/resource"
)

// longestSession is the maximum and default duration of an opened environment.
const longestSession = 2 * time.Hour

// session is an opened environment: the content of sessions/ID.json.
type session struct {
	Organization string           `json:"organization"`
	Expires      time.Time        `json:"expires"`
	Environment  *esc.Environment `json:"environment"`
}

// diagnosedError is an error response with the errors of a definition.
type diagnosedError struct {
	Code        int                             `json:"code"`
	Message     string                          `json:"message"`
	Diagnostics []apitype.EnvironmentDiagnostic `json:"diagnostics"`
}

func (err *diagnosedError) Error() string {
	return fmt.Sprintf("[%d] %s", err.Code, err.Message)
}

func newDiagnosedError(diagnostics syntax.Diagnostics) error {
	result := &diagnosedError{Code: http.StatusBadRequest, Message: "Bad Request: the environment contains errors"}
	for _, diagnostic := range diagnostics {
		described := apitype.EnvironmentDiagnostic{Summary: diagnostic.Summary, Detail: diagnostic.Detail}
		if subject := diagnostic.Subject; subject != nil {
			described.Range = &esc.Range{
				Environment: subject.Filename,
				Begin:       esc.Pos{Line: subject.Start.Line, Column: subject.Start.Column, Byte: subject.Start.Byte},
				End:         esc.Pos{Line: subject.End.Line, Column: subject.End.Column, Byte: subject.End.Byte},
			}
		}
		result.Diagnostics = append(result.Diagnostics, described)
	}
	return result
}

// inOrganizationToOpen is like inOrganization, but also allows POST requests of readers, because these requests change
// nothing.
func (server *Server) inOrganizationToOpen(handle func(call *call, organization string) error) http.Handler {
	return server.authenticated(func(call *call) error {
		organization := call.PathValue("organization")
		if err := call.caller.checkAccess(organization, http.MethodGet); err != nil {
			return err
		}
		return handle(call, organization)
	})
}

// loader gives the evaluator access to the environments of an organization.
type loader struct {
	server       *Server
	organization string
	overrides    map[string]string
}

// LoadEnvironment finds an environment by [PROJECT/]NAME[@VERSION].
func (loader loader) LoadEnvironment(_ context.Context, name string) ([]byte, eval.Decrypter, error) {
	if replacement, found := loader.overrides[name]; found {
		name = replacement
	}
	path, version, _ := strings.Cut(name, "@")
	project, short, found := strings.Cut(path, "/")
	if !found {
		project, short = defaultProject, path
	}
	id := environmentID{loader.organization, project, short}
	loader.server.mutex.Lock()
	defer loader.server.mutex.Unlock()
	environment := loader.server.environments[id]
	if environment == nil {
		return nil, nil, failure(http.StatusNotFound, "Environment '%s' not found", id)
	}
	revision, err := environment.find(version)
	if err != nil {
		return nil, nil, err
	}
	return []byte(revision.YAML), secretKey(environment.Key), nil
}

// LoadProvider refuses all providers, because they connect to other services.
func (loader loader) LoadProvider(_ context.Context, name string) (esc.Provider, error) {
	return nil, fmt.Errorf("the test server has no provider %q", name)
}

// LoadRotator refuses all rotators.
func (loader loader) LoadRotator(_ context.Context, name string) (esc.Rotator, error) {
	return nil, fmt.Errorf("the test server has no rotator %q", name)
}

// evaluate evaluates a definition. If check is true, it validates the definition and does not decrypt secrets, except if
// showSecrets is true.
func (loader loader) evaluate(
	call *call, name string, content []byte, key eval.Decrypter, check, showSecrets bool,
) (*esc.Environment, error) {
	definition, diagnostics, err := eval.LoadYAMLBytes(name, content)
	if err != nil {
		return nil, failure(http.StatusBadRequest, "failed to decode the definition: %v", err)
	}
	if diagnostics.HasErrors() {
		return nil, newDiagnosedError(diagnostics)
	}
	values := map[string]esc.Value{"pulumi": esc.NewValue(map[string]esc.Value{
		"organization": esc.NewValue(map[string]esc.Value{"login": esc.NewValue(loader.organization)}),
		"user":         esc.NewValue(map[string]esc.Value{"login": esc.NewValue(call.caller.name)}),
	})}
	execution, err := esc.NewExecContext(values)
	if err != nil {
		return nil, fmt.Errorf("failed to evaluate the environment %s: %w", name, err)
	}
	var result *esc.Environment
	if check {
		result, diagnostics = eval.CheckEnvironment(call.Context(), name, definition, key, loader, loader, execution, showSecrets)
	} else {
		result, diagnostics = eval.EvalEnvironment(call.Context(), name, definition, key, loader, loader, execution)
	}
	if diagnostics.HasErrors() {
		return nil, newDiagnosedError(diagnostics)
	}
	if result == nil {
		result = &esc.Environment{}
	}
	return result, nil
}

func (server *Server) openEnvironment(call *call, organization string) error {
	loader := loader{server: server, organization: organization}
	name := call.PathValue("project") + "/" + call.PathValue("environment")
	versioned := name
	if version := call.PathValue("version"); version != "" {
		versioned += "@" + version
	}
	content, key, err := loader.LoadEnvironment(call.Context(), versioned)
	if err != nil {
		return err
	}
	result, err := loader.evaluate(call, name, content, key, false, true)
	if err != nil {
		return err
	}
	return server.startSession(call, organization, result)
}

// noKey decrypts nothing, because an anonymous environment has no key.
type noKey struct{}

func (noKey) Decrypt(context.Context, []byte) ([]byte, error) {
	return nil, errors.New("an anonymous environment cannot contain encrypted secrets")
}

func (server *Server) openDefinition(call *call, organization string) error {
	content, err := call.read()
	if err != nil {
		return err
	}
	loader := loader{server: server, organization: organization}
	if encoded := call.URL.Query().Get("environmentOverrides"); encoded != "" {
		decoded, err := base64.RawURLEncoding.DecodeString(encoded)
		if err := errors.Join(err, json.Unmarshal(decoded, &loader.overrides)); err != nil {
			return failure(http.StatusBadRequest, "failed to decode environmentOverrides: %v", err)
		}
	}
	result, err := loader.evaluate(call, esc.AnonymousEnvironmentName, content, noKey{}, false, true)
	if err != nil {
		return err
	}
	return server.startSession(call, organization, result)
}

func (server *Server) checkDefinition(call *call, organization string) error {
	content, err := call.read()
	if err != nil {
		return err
	}
	showSecrets, _ := strconv.ParseBool(call.URL.Query().Get("showSecrets"))
	loader := loader{server: server, organization: organization}
	result, err := loader.evaluate(call, esc.AnonymousEnvironmentName, content, noKey{}, true, showSecrets)
	if err != nil {
		return err
	}
	return call.reply(result)
}

func (server *Server) sessionPath(id string) string {
	return filepath.Join(server.root, "sessions", id+".json")
}

// startSession stores the values of an opened environment for later requests.
func (server *Server) startSession(call *call, organization string, environment *esc.Environment) error {
	duration := longestSession
	if text := call.URL.Query().Get("duration"); text != "" {
		parsed, err := time.ParseDuration(text)
		if err != nil || parsed <= 0 {
			return failure(http.StatusBadRequest, "invalid duration %q", text)
		}
		duration = min(parsed, longestSession)
	}
	if err := server.removeExpiredSessions(); err != nil {
		return err
	}
	id := randomID()
	err := writeJSONFile(server.sessionPath(id), session{organization, time.Now().Add(duration), environment})
	if err != nil {
		return err
	}
	return call.reply(apitype.OpenEnvironmentResponse{ID: id})
}

// removeExpiredSessions deletes the files that are older than the longest session.
func (server *Server) removeExpiredSessions() error {
	folder := filepath.Join(server.root, "sessions")
	entries, err := os.ReadDir(folder)
	if err != nil {
		return fmt.Errorf("failed to list the sessions: %w", err)
	}
	for _, entry := range entries {
		// A concurrent request can delete the file first.
		information, err := entry.Info()
		if err == nil && time.Since(information.ModTime()) > longestSession {
			err = os.Remove(filepath.Join(folder, entry.Name()))
		}
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("failed to delete an expired session: %w", err)
		}
	}
	return nil
}

// serveSession returns the values of an opened environment, or one value.
func (server *Server) serveSession(call *call, organization string) error {
	id := call.PathValue("session")
	missing := failure(http.StatusNotFound, "Open environment '%s' not found", id)
	if !isName(id) {
		return missing
	}
	var opened session
	err := readJSONFile(server.sessionPath(id), &opened)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return missing
	case err != nil:
		return err
	case opened.Organization != organization || time.Now().After(opened.Expires):
		return missing
	}
	property := call.URL.Query().Get("property")
	if property == "" {
		return call.reply(opened.Environment)
	}
	path, err := resource.ParsePropertyPath(property)
	if err != nil {
		return failure(http.StatusBadRequest, "invalid property %q: %v", property, err)
	}
	value, found := findValue(esc.NewValue(opened.Environment.Properties), path)
	if !found {
		return failure(http.StatusNotFound, "Property '%s' not found", property)
	}
	return call.reply(value)
}

func findValue(value esc.Value, path resource.PropertyPath) (esc.Value, bool) {
	for _, step := range path {
		found := false
		switch container := value.Value.(type) {
		case map[string]esc.Value:
			key, _ := step.(string)
			value, found = container[key]
		case []esc.Value:
			if index, valid := step.(int); valid && index >= 0 && index < len(container) {
				value, found = container[index], true
			}
		}
		if !found {
			return value, false
		}
	}
	return value, true
}

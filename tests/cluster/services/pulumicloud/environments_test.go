package pulumicloud

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// edit creates an environment with a definition.
func (project *project) edit(name, definition string) {
	project.t.Helper()
	file := filepath.Join(project.directory, "environment.yaml")
	if err := os.WriteFile(file, []byte(definition), 0o600); err != nil {
		project.t.Fatal(err)
	}
	project.pulumi("env", "init", name, "--file", file)
}

func TestEnvironmentIsOpenedWithImportsAndSecrets(t *testing.T) {
	project := newProject(t)
	project.edit("acme/shared/base", "values:\n  region: eu\n  password:\n    fn::secret: hidden\n")
	project.edit("acme/app/dev", "imports: [shared/base]\nvalues:\n  name: ${region}-dev\n")
	project.mustContain(project.pulumi("env", "open", "acme/app/dev"), `"name": "eu-dev"`, `"password": "hidden"`)
	project.mustContain(project.pulumi("env", "open", "acme/app/dev", "password", "--format", "string"), "hidden")
	project.mustContain(project.pulumi("env", "ls", "--organization", "acme"), "acme/app/dev", "acme/shared/base")
	var stored string
	entries, err := os.ReadDir(filepath.Join(project.root, "environments"))
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		content, err := os.ReadFile(filepath.Join(project.root, "environments", entry.Name()))
		if err != nil {
			t.Fatal(err)
		}
		stored += string(content)
	}
	if strings.Contains(stored, "hidden") || !strings.Contains(stored, "ciphertext") {
		t.Errorf("the secret is not encrypted: %s", stored)
	}
	project.pulumi("env", "set", "acme/shared/base", "region", "us")
	project.restart()
	project.mustContain(project.pulumi("env", "open", "acme/app/dev"), `"name": "us-dev"`)
	project.mustContain(project.pulumi("env", "open", "acme/shared/base@2"), `"region": "eu"`)
}

func TestRevisionsAreTaggedAndCloned(t *testing.T) {
	project := newProject(t)
	project.edit("acme/shared/base", "values:\n  region: eu\n  password:\n    fn::secret: hidden\n")
	project.pulumi("env", "version", "tag", "acme/shared/base@old", "@1")
	project.mustContain(project.pulumi("env", "version", "tag", "ls", "acme/shared/base", "--output", "json"), `"old"`, `"latest"`)
	project.mustContain(project.pulumi("env", "version", "history", "acme/shared/base", "--output", "json"), `"number": 2`, `"old"`)
	project.pulumi("env", "clone", "acme/shared/base", "shared/copy")
	project.mustContain(project.pulumi("env", "open", "acme/shared/copy"), `"region": "eu"`, `"password": "hidden"`)
}

func TestStackUsesValuesOfEnvironment(t *testing.T) {
	project := newStack(t)
	project.edit("acme/app/dev", "values:\n  pulumiConfig:\n    proof:value:\n      fn::secret: from the environment\n")
	project.pulumi("config", "env", "add", "app/dev", "--yes")
	project.mustContain(project.pulumi("config", "env", "ls"), "app/dev")
	project.mustContain(project.pulumi("config", "get", "value"), "from the environment")
	program := `{"name": "proof", "runtime": "yaml", "config": {"value": {"type": "string"}}, "outputs": {"copy": "${value}"}}`
	if err := os.WriteFile(filepath.Join(project.directory, "Pulumi.yaml"), []byte(program), 0o600); err != nil {
		t.Fatal(err)
	}
	project.up()
	project.mustContain(project.pulumi("stack", "output", "copy", "--show-secrets"), "from the environment")
	project.mustContain(project.updates()[0].Program.Metadata.Environment["stack.environments"], "app/dev")
	project.call(http.MethodDelete, "/api/esc/environments/acme/app/dev", "", nil)
	project.pulumiMustFail("Environment 'acme/app/dev' not found", "up", "--yes", "--skip-preview")
}

func TestErrorsOfEnvironmentAreReported(t *testing.T) {
	cloud := newCloud(t)
	const path = "/api/esc/environments/acme/app/dev"
	cloud.call("POST", "/api/esc/environments/acme", `{"project": "app", "name": "dev"}`, nil)
	cloud.mustFail(http.StatusConflict, "already exists", "POST", "/api/esc/environments/acme", `{"project": "app", "name": "dev"}`)
	cloud.mustFail(http.StatusBadRequest, "diagnostics", "PATCH", path, "values: [")
	cloud.call("PATCH", path, "values:\n  a: ${missing}\n", nil)
	cloud.mustFail(http.StatusBadRequest, "unknown property", "POST", path+"/open", "")
	cloud.call("PATCH", path, "values:\n  a:\n    fn::open::other: {}\n", nil)
	cloud.mustFail(http.StatusBadRequest, "no provider", "POST", path+"/open", "")
	cloud.mustFail(http.StatusNotFound, "Version '9'", "GET", path+"/versions/9", "")
	cloud.mustFail(http.StatusBadRequest, "Environment 'acme/app/none' not found", "POST", "/api/esc/environments/acme/yaml/open", "imports: [app/none]")
	cloud.mustFail(http.StatusNotFound, "Open environment", "GET", path+"/open/unknown", "")
}

func TestRevisionTagSelectsDefinition(t *testing.T) {
	cloud := newCloud(t)
	const path = "/api/esc/environments/acme/app/dev"
	cloud.call("POST", "/api/esc/environments/acme", `{"project": "app", "name": "dev"}`, nil)
	cloud.call("PATCH", path, "values:\n  a: one\n", nil)
	cloud.call("POST", path+"/versions/tags", `{"name": "stable"}`, nil)
	cloud.call("PATCH", path, "values:\n  a: two\n", nil)
	var tag revisionTag
	cloud.call("GET", path+"/versions/tags/stable", "", &tag)
	if tag.Revision != 2 {
		t.Errorf("the tag is %+v", tag)
	}
	for definition, wanted := range map[string]string{
		"imports: [app/dev@stable]": `"one"`, "imports: [app/dev@latest]": `"two"`, "imports: [app/dev@2]": `"one"`,
	} {
		var opened struct{ ID string }
		cloud.call("POST", "/api/esc/environments/acme/yaml/open?duration=1m", definition, &opened)
		path := "/api/esc/environments/acme/yaml/open/" + opened.ID + "?property=a"
		if _, values := cloud.send("GET", path, "token "+cloud.token, ""); !strings.Contains(values, wanted) {
			t.Errorf("%s has the value %s, want %s", definition, values, wanted)
		}
	}
	// Older clients use environments without a project.
	cloud.call("POST", "/api/preview/environments/acme", `{"name": "old"}`, nil)
	cloud.call("PATCH", "/api/preview/environments/acme/old", "values:\n  a: three\n", nil)
	var opened struct{ ID string }
	cloud.call("POST", "/api/preview/environments/acme/old/open?duration=1m", "", &opened)
	cloud.call("GET", "/api/preview/environments/acme/old/open/"+opened.ID, "", nil)
}

package pulumicloud

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/pulumi/pulumi/sdk/v3/go/common/apitype"
)

func mustJSON(t *testing.T, value any) string {
	t.Helper()
	content, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// publish publishes a policy pack as the CLI does.
func (cloud *cloud) publish(version, code string) {
	cloud.t.Helper()
	var created apitype.CreatePolicyPackResponse
	cloud.call("POST", "/api/orgs/acme/policypacks", `{"name": "rules", "displayName": "Rules", "versionTag": "`+version+`",
		"policies": [{"name": "region", "configSchema": {"type": "object", "properties": {"allowed": {"type": "string"}}}}]}`, &created)
	path := strings.TrimPrefix(created.UploadURI, cloud.url)
	cloud.mustFail(http.StatusBadRequest, "has not been uploaded", "POST", "/api/orgs/acme/policypacks/rules/versions/"+version+"/complete", "")
	cloud.must("PUT", path, "", code, nil)
	cloud.call("POST", "/api/orgs/acme/policypacks/rules/versions/"+version+"/complete", "", nil)
}

func TestPolicyPackOfGroupIsRequiredForItsStacks(t *testing.T) {
	cloud := newCloud(t)
	cloud.call("POST", "/api/stacks/acme/proof", `{"stackName": "dev"}`, nil)
	cloud.publish("1.0.0", "old code")
	cloud.publish("1.1.0", "new code")
	cloud.mustFail(http.StatusConflict, "already exists", "POST", "/api/orgs/acme/policypacks", `{"name": "rules", "versionTag": "1.1.0"}`)
	cloud.call("POST", "/api/orgs/acme/policygroups", `{"name": "production", "entityType": "stacks"}`, nil)
	const group = "/api/orgs/acme/policygroups/production"
	cloud.call("PATCH", group, `{"addPolicyPack": {"name": "rules", "config": {"region": {"allowed": "eu"}}}}`, nil)
	required := func() []apitype.RequiredPolicy {
		var response apitype.UpdateProgramResponse
		cloud.call("POST", stackURL+"/preview", "{}", &response)
		return response.RequiredPolicies
	}
	if found := required(); len(found) != 0 {
		t.Fatalf("a stack outside of the group requires %+v", found)
	}
	cloud.call("PATCH", group, `{"addStack": {"name": "dev", "routingProject": "proof"}}`, nil)
	cloud.restart()
	found := required()
	if len(found) != 1 || found[0].VersionTag != "1.1.0" || string(*found[0].Config["region"]) != `{"allowed":"eu"}` {
		t.Fatalf("the stack requires %+v", found)
	}
	if _, code := cloud.send("GET", strings.TrimPrefix(found[0].PackLocation, cloud.url), "", ""); code != "new code" {
		t.Errorf("the code of the policy pack is %q", code)
	}
	var schema apitype.GetPolicyPackConfigSchemaResponse
	cloud.call("GET", "/api/orgs/acme/policypacks/rules/versions/1.0.0/schema", "", &schema)
	if _, known := schema.ConfigSchema["region"]; !known {
		t.Errorf("the schema is %+v", schema)
	}
	cloud.call("PATCH", group, `{"removeStack": {"name": "dev", "routingProject": "proof"}}`, nil)
	cloud.call("PATCH", "/api/orgs/acme/policygroups/default-policy-group", `{"addPolicyPack": {"name": "rules", "versionTag": "1.0.0"}}`, nil)
	if found := required(); len(found) != 1 || found[0].VersionTag != "1.0.0" {
		t.Errorf("the default group requires %+v", found)
	}
	cloud.call("DELETE", "/api/orgs/acme/policypacks/rules", "", nil)
	cloud.call("DELETE", group, "", nil)
	cloud.mustFail(http.StatusNotFound, "Policy Group 'production' not found", "GET", group, "")
	if found := required(); len(found) != 0 {
		t.Errorf("a deleted policy pack is required: %+v", found)
	}
}

func mustDecode(t *testing.T, text string, into any) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), into); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
}

func TestPolicyPackIsEnabledByCLI(t *testing.T) {
	project := newProject(t)
	project.publish("1.0.0", "code")
	project.mustContain(project.pulumi("policy", "ls", "acme"), "rules", "1.0.0")
	project.pulumi("policy", "enable", "acme/rules", "1.0.0", "--policy-group", "default-policy-group")
	project.mustContain(project.pulumi("policy", "group", "get", "default-policy-group", "--org", "acme"), "rules", "1.0.0")
	project.pulumi("policy", "disable", "acme/rules", "--version", "1.0.0", "--policy-group", "default-policy-group")
	project.pulumi("policy", "rm", "acme/rules", "1.0.0", "--yes")
	if output := project.pulumi("policy", "ls", "acme"); strings.Contains(output, "rules") {
		t.Errorf("the removed policy pack is listed:\n%s", output)
	}
}

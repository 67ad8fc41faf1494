package testprovider

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pulumi/pulumi-go-provider/infer"
)

// startKubernetes serves the ConfigMap part of the Kubernetes API with a certificate and a token, as in a pod. It
// returns the data of the objects by path.
func startKubernetes(t *testing.T) map[string]map[string]string {
	t.Helper()
	objects := map[string]map[string]string{}
	server := httptest.NewTLSServer(http.HandlerFunc(func(response http.ResponseWriter, request *http.Request) {
		status, message := respondAsKubernetes(objects, request)
		response.WriteHeader(status)
		fmt.Fprintf(response, `{"kind":"Status","message":%q}`, message)
	}))
	t.Cleanup(server.Close)
	address, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("KUBERNETES_SERVICE_HOST", address.Hostname())
	t.Setenv("KUBERNETES_SERVICE_PORT", address.Port())
	directory, before := t.TempDir(), serviceAccountDirectory
	serviceAccountDirectory = directory
	t.Cleanup(func() { serviceAccountDirectory = before })
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	for name, content := range map[string][]byte{"token": []byte("the-token\n"), "ca.crt": authority} {
		if err := os.WriteFile(filepath.Join(directory, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return objects
}

func respondAsKubernetes(objects map[string]map[string]string, request *http.Request) (int, string) {
	if request.Header.Get("Authorization") != "Bearer the-token" {
		return http.StatusUnauthorized, "Unauthorized"
	}
	var body struct {
		Kind     string
		Metadata struct{ Name string }
		Data     map[string]*string
	}
	if request.Method != http.MethodDelete {
		if err := json.NewDecoder(request.Body).Decode(&body); err != nil {
			return http.StatusBadRequest, err.Error()
		}
	}
	path := request.URL.Path
	content := request.Method + " " + request.Header.Get("Content-Type")
	if content == "POST application/json" && body.Kind == "ConfigMap" {
		path += "/" + body.Metadata.Name
		if objects[path] != nil {
			return http.StatusConflict, "configmaps already exists"
		}
		objects[path] = map[string]string{}
	}
	object := objects[path]
	if object == nil {
		return http.StatusNotFound, "configmaps not found"
	}
	if request.Method == http.MethodDelete {
		delete(objects, path)
		return http.StatusOK, ""
	}
	if content != "POST application/json" && content != "PATCH application/merge-patch+json" {
		return http.StatusUnsupportedMediaType, content
	}
	for key, value := range body.Data {
		if value == nil {
			delete(object, key)
		} else {
			object[key] = *value
		}
	}
	return http.StatusOK, ""
}

func TestConfigMapIsCreatedChangedMovedAndDeleted(t *testing.T) {
	objects := startKubernetes(t)
	t.Setenv(logVariable, "")
	ctx := context.Background()
	expect := func(wanted string) {
		t.Helper()
		if found := fmt.Sprint(objects); found != wanted {
			t.Fatalf("Kubernetes contains %s, want %s", found, wanted)
		}
	}
	inputs := func(name string, data map[string]string) StepInputs {
		return StepInputs{Name: "first", Steps: 1, ConfigMap: &ConfigMap{"team", name, data}}
	}
	first := inputs("a", map[string]string{"one": "1", "two": "2"})
	created, err := Step{}.Create(ctx, infer.CreateRequest[StepInputs]{Inputs: first})
	if err != nil {
		t.Fatal(err)
	}
	expect("map[/api/v1/namespaces/team/configmaps/a:map[one:1 two:2]]")

	_, err = Step{}.Create(ctx, infer.CreateRequest[StepInputs]{Inputs: first})
	if err == nil || !strings.Contains(err.Error(), "failed to create the ConfigMap team/a: Kubernetes responded with 409") {
		t.Fatalf("a second creation returned %v", err)
	}

	state := created.Output
	for _, change := range []struct {
		inputs StepInputs
		wanted string
	}{
		{inputs("a", map[string]string{"two": "zwei"}), "map[/api/v1/namespaces/team/configmaps/a:map[two:zwei]]"},
		{inputs("b", map[string]string{"two": "2"}), "map[/api/v1/namespaces/team/configmaps/b:map[two:2]]"},
	} {
		updated, err := Step{}.Update(ctx, infer.UpdateRequest[StepInputs, StepState]{State: state, Inputs: change.inputs})
		if err != nil {
			t.Fatal(err)
		}
		expect(change.wanted)
		state = updated.Output
	}
	// The second call covers a retry after the result of the first call was lost.
	for range 2 {
		if _, err := (Step{}).Delete(ctx, infer.DeleteRequest[StepState]{State: state}); err != nil {
			t.Fatal(err)
		}
		expect("map[]")
	}
}

func TestPreviewCreatesNoConfigMap(t *testing.T) {
	objects := startKubernetes(t)
	_, err := Step{}.Create(context.Background(), infer.CreateRequest[StepInputs]{DryRun: true,
		Inputs: StepInputs{Name: "first", Steps: 1, ConfigMap: &ConfigMap{"team", "a", nil}}})
	if err != nil || len(objects) != 0 {
		t.Fatalf("Kubernetes contains %v, %v", objects, err)
	}
}

func TestUnreportedCreationIsKeptInState(t *testing.T) {
	objects := startKubernetes(t)
	// This log accepts the begin and rejects the end of the operation.
	answers := 0
	log := httptest.NewServer(http.HandlerFunc(func(response http.ResponseWriter, _ *http.Request) {
		answers++
		if answers == 1 {
			response.WriteHeader(http.StatusCreated)
			return
		}
		http.Error(response, "the log is full", http.StatusInsufficientStorage)
	}))
	t.Cleanup(log.Close)
	t.Setenv(logVariable, log.URL)
	created, err := Step{}.Create(context.Background(), infer.CreateRequest[StepInputs]{
		Inputs: StepInputs{Name: "first", Steps: 1, ConfigMap: &ConfigMap{"team", "a", nil}}})
	var unfinished infer.ResourceInitFailedError
	if !errors.As(err, &unfinished) || !strings.Contains(strings.Join(unfinished.Reasons, ""), "the log is full") {
		t.Fatalf("the creation returned %v", err)
	}
	if created.ID == "" || created.Output.ConfigMap == nil || len(objects) != 1 {
		t.Fatalf("the state has no resource for the ConfigMap: %+v, %v", created, objects)
	}
}

func TestConfigMapOutsideOfPodIsRejected(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	err := changeConfigMap(context.Background(), nil, &ConfigMap{"team", "a", nil})
	if err == nil || !strings.Contains(err.Error(), "requires a pod") {
		t.Fatalf("the call returned %v", err)
	}
}

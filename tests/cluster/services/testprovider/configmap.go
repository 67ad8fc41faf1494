package testprovider

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// serviceAccountDirectory is the mount path of the ServiceAccount token. Tests replace it.
var serviceAccountDirectory = "/var/run/secrets/kubernetes.io/serviceaccount"

// callTime is the timeout of one call to Kubernetes.
const callTime = 30 * time.Second

// ConfigMap is an object that a Step can create in its own cluster.
type ConfigMap struct {
	Namespace string            `pulumi:"namespace"`
	Name      string            `pulumi:"name"`
	Data      map[string]string `pulumi:"data,optional"`
}

func (configMap ConfigMap) collection() string {
	return "/api/v1/namespaces/" + url.PathEscape(configMap.Namespace) + "/configmaps"
}

func (configMap ConfigMap) path() string {
	return configMap.collection() + "/" + url.PathEscape(configMap.Name)
}

func (configMap ConfigMap) String() string {
	return "ConfigMap " + configMap.Namespace + "/" + configMap.Name
}

// changeConfigMap replaces the old object by the wanted object. Either may be nil.
func changeConfigMap(ctx context.Context, old, wanted *ConfigMap) error {
	if old == nil && wanted == nil {
		return nil
	}
	cluster, err := connect()
	if err != nil {
		return err
	}
	if old != nil && wanted != nil && old.path() == wanted.path() {
		return cluster.patch(ctx, *old, *wanted)
	}
	if wanted != nil {
		if err := cluster.create(ctx, *wanted); err != nil {
			return err
		}
	}
	if old != nil {
		return cluster.delete(ctx, *old)
	}
	return nil
}

// cluster is a client for the Kubernetes API in a pod.
type cluster struct {
	url, token string
	client     *http.Client
}

func connect() (*cluster, error) {
	host, port := os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT")
	if host == "" || port == "" {
		return nil, errors.New("the input configMap requires a pod: " +
			"KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set")
	}
	token, err := os.ReadFile(filepath.Join(serviceAccountDirectory, "token"))
	if err != nil {
		return nil, fmt.Errorf("failed to read the ServiceAccount token, which the pod must mount: %w", err)
	}
	certificates, err := os.ReadFile(filepath.Join(serviceAccountDirectory, "ca.crt"))
	if err != nil {
		return nil, fmt.Errorf("failed to read the cluster's certificate authority: %w", err)
	}
	authorities := x509.NewCertPool()
	if !authorities.AppendCertsFromPEM(certificates) {
		return nil, fmt.Errorf("failed to read the cluster's certificate authority: no certificate in %s/ca.crt",
			serviceAccountDirectory)
	}
	return &cluster{
		url:   "https://" + net.JoinHostPort(host, port),
		token: strings.TrimSpace(string(token)),
		client: &http.Client{
			Timeout: callTime,
			Transport: &http.Transport{
				TLSClientConfig:   &tls.Config{RootCAs: authorities, MinVersion: tls.VersionTLS12},
				DisableKeepAlives: true,
			},
		},
	}, nil
}

func (cluster *cluster) create(ctx context.Context, configMap ConfigMap) error {
	_, err := cluster.call(ctx, http.MethodPost, configMap.collection(), "application/json", map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap",
		"metadata": map[string]string{"name": configMap.Name},
		"data":     configMap.Data,
	})
	if err != nil {
		return fmt.Errorf("failed to create the %s: %w", configMap, err)
	}
	return nil
}

func (cluster *cluster) patch(ctx context.Context, old, wanted ConfigMap) error {
	// In a merge patch, null removes a key.
	data := map[string]any{}
	for key := range old.Data {
		data[key] = nil
	}
	for key, value := range wanted.Data {
		data[key] = value
	}
	_, err := cluster.call(ctx, http.MethodPatch, wanted.path(), "application/merge-patch+json",
		map[string]any{"data": data})
	if err != nil {
		return fmt.Errorf("failed to change the %s: %w", wanted, err)
	}
	return nil
}

func (cluster *cluster) delete(ctx context.Context, configMap ConfigMap) error {
	status, err := cluster.call(ctx, http.MethodDelete, configMap.path(), "", nil)
	if err != nil && status != http.StatusNotFound {
		return fmt.Errorf("failed to delete the %s: %w", configMap, err)
	}
	return nil
}

// call returns the status of the response, if any, and an error for every unsuccessful status.
func (cluster *cluster) call(ctx context.Context, method, path, contentType string, content any) (int, error) {
	var body io.Reader
	if content != nil {
		encoded, err := json.Marshal(content)
		if err != nil {
			return 0, err
		}
		body = bytes.NewReader(encoded)
	}
	request, err := http.NewRequestWithContext(ctx, method, cluster.url+path, body)
	if err != nil {
		return 0, err
	}
	request.Header.Set("Authorization", "Bearer "+cluster.token)
	if contentType != "" {
		request.Header.Set("Content-Type", contentType)
	}
	response, err := cluster.client.Do(request)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	if response.StatusCode >= http.StatusMultipleChoices {
		var status struct{ Message string }
		// A response that is not from Kubernetes has no message. Its status is sufficient.
		_ = json.NewDecoder(io.LimitReader(response.Body, 64*1024)).Decode(&status)
		return response.StatusCode, fmt.Errorf("Kubernetes responded with %s: %s", response.Status, status.Message)
	}
	return response.StatusCode, nil
}

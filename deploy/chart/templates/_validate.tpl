{{/* Rejects combinations of values that cannot work. The schema in values.schema.json validates each value. */}}
{{- define "pulumi-controller.validate" -}}
{{- $values := .Values -}}
{{- if and $values.multiTenant.enabled $values.watch.namespace -}}
{{- fail "multiTenant.enabled and watch.namespace cannot be combined: with multiTenant.enabled, one controller manages all tenants. To install a controller for one tenant, disable multiTenant.enabled, and set workspace.defaultServiceAccount, workspace.allowedServiceAccounts, workspace.restricted and admissionPolicy.enabled" -}}
{{- end -}}
{{- if and $values.multiTenant.namespaces (not $values.multiTenant.enabled) -}}
{{- fail "multiTenant.namespaces requires multiTenant.enabled: otherwise, a ClusterRoleBinding already grants the permissions in all namespaces" -}}
{{- end -}}
{{- if and $values.multiTenant.enabled (not $values.controller.noCrossNamespaceRefs) -}}
{{- fail "multiTenant.enabled requires controller.noCrossNamespaceRefs: otherwise, tenants can reference the sources of other tenants" -}}
{{- end -}}
{{- if and $values.shards (trim $values.watch.labelSelector) -}}
{{- fail "shards and watch.labelSelector cannot be combined: the chart sets the label selector of each shard" -}}
{{- end -}}
{{- if and $values.caBundle.configMap.name $values.caBundle.secret.name -}}
{{- fail "caBundle.configMap.name and caBundle.secret.name cannot be combined: the controller reads only one CA bundle" -}}
{{- end -}}
{{- if and $values.git.caCertificate (or $values.caBundle.configMap.name $values.caBundle.secret.name) -}}
{{- fail "git.caCertificate and caBundle cannot be combined: both values define the file ca.crt" -}}
{{- end -}}
{{- if and $values.history.url (not $values.history.enabled) -}}
{{- fail "history.url requires history.enabled" -}}
{{- end -}}
{{- if and $values.history.endpoint.enabled (not $values.history.enabled) -}}
{{- fail "history.endpoint.enabled requires history.enabled" -}}
{{- end -}}
{{- if and $values.history.endpoint.enabled $values.watch.namespace -}}
{{- fail "history.endpoint.enabled and watch.namespace cannot be combined: the endpoint needs cluster-wide permissions" -}}
{{- end -}}
{{- if and $values.receiver.ingress.enabled (not $values.receiver.enabled) -}}
{{- fail "receiver.ingress.enabled requires receiver.enabled" -}}
{{- end -}}
{{- if and $values.receiver.ingress.enabled (not $values.receiver.ingress.hosts) -}}
{{- fail "receiver.ingress.enabled requires receiver.ingress.hosts" -}}
{{- end -}}
{{- if and $values.ui.ingress.enabled (not $values.ui.enabled) -}}
{{- fail "ui.ingress.enabled requires ui.enabled" -}}
{{- end -}}
{{- if and $values.ui.ingress.enabled (not (and $values.ui.ingress.hosts $values.ui.ingress.tls)) -}}
{{- fail "ui.ingress.enabled requires ui.ingress.hosts and ui.ingress.tls: users enter tokens in the web UI" -}}
{{- end -}}
{{- if and $values.ui.oidc.issuer (not (and $values.ui.enabled $values.ui.url $values.ui.oidc.clientId)) -}}
{{- fail "ui.oidc.issuer requires ui.enabled, ui.url and ui.oidc.clientId" -}}
{{- end -}}
{{- $issuerBundle := include "pulumi-controller.caBundle" $values.ui.oidc.caBundle -}}
{{- if and (not $values.ui.oidc.issuer) (or $values.ui.oidc.clientId $values.ui.oidc.scopes $values.ui.oidc.clientSecret.name $issuerBundle) -}}
{{- fail "ui.oidc.clientId, ui.oidc.scopes, ui.oidc.clientSecret.name and ui.oidc.caBundle require ui.oidc.issuer" -}}
{{- end -}}
{{- if and $values.ui.oidc.caBundle.configMap.name $values.ui.oidc.caBundle.secret.name -}}
{{- fail "ui.oidc.caBundle.configMap.name and ui.oidc.caBundle.secret.name cannot be combined: the controller reads only one CA bundle" -}}
{{- end -}}
{{- if and (not $values.traces.endpoint) (or $values.traces.workspaceEndpoint $values.traces.headersSecret.name) -}}
{{- fail "traces.workspaceEndpoint and traces.headersSecret.name require traces.endpoint" -}}
{{- end -}}
{{- if and (not $values.flux.enabled) (or $values.flux.namespace $values.flux.eventsAddr) -}}
{{- fail "flux.namespace and flux.eventsAddr require flux.enabled" -}}
{{- end -}}
{{- if and (not $values.serviceAccount.create) (not $values.serviceAccount.name) -}}
{{- fail "serviceAccount.create=false requires serviceAccount.name: set the name of an existing ServiceAccount" -}}
{{- end -}}
{{- with $values.podDisruptionBudget -}}
{{- if and (not (kindIs "invalid" .minAvailable)) (not (kindIs "invalid" .maxUnavailable)) -}}
{{- fail "podDisruptionBudget.minAvailable and podDisruptionBudget.maxUnavailable cannot be combined: Kubernetes accepts only one of them" -}}
{{- end -}}
{{- end -}}
{{- range $label := list "app" "control-plane" "app.kubernetes.io/part-of" "app.kubernetes.io/component" -}}
{{- if hasKey $values.podLabels $label -}}
{{- fail (printf "podLabels must not contain %s: Deployments, Services and NetworkPolicies select pods by this label" $label) -}}
{{- end -}}
{{- end -}}
{{- range list "RUNTIME_NAMESPACE" "POD_UID" "AGENT_IMAGE" -}}
{{- $reserved := . -}}
{{- range $values.extraEnv -}}
{{- if eq .name $reserved -}}{{- fail (printf "extraEnv must not contain %s, because the chart sets this variable" $reserved) -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- $named := dict
  "log-level" "controller.logLevel" "log-encoding" "controller.logFormat" "concurrent" "controller.concurrent"
  "no-cross-namespace-refs" "controller.noCrossNamespaceRefs" "events-addr" "flux.eventsAddr"
  "artifact-hosts" "flux.artifactHosts" "receiver-addr" "receiver.enabled" "ui-addr" "ui.enabled" "ui-url" "ui.url"
  "ui-oidc-issuer" "ui.oidc.issuer" "ui-oidc-client-id" "ui.oidc.clientId" "ui-oidc-scopes" "ui.oidc.scopes"
  "ui-oidc-client-secret-file" "ui.oidc.clientSecret.name"
  "ui-oidc-ca-file" "ui.oidc.caBundle" "watch-all-namespaces" "watch.namespace"
  "watch-namespace" "watch.namespace" "watch-label-selector" "watch.labelSelector or shards"
  "leader-election-lease-duration" "leaderElection.leaseDuration"
  "leader-election-renew-deadline" "leaderElection.renewDeadline"
  "leader-election-retry-period" "leaderElection.retryPeriod" "agent-image" "image"
  "default-workspace-image" "workspace.image" "default-service-account" "workspace.defaultServiceAccount"
  "default-access-token-secret" "workspace.defaultAccessTokenSecret"
  "allowed-service-accounts" "workspace.allowedServiceAccounts" "restrict-workspace-pods" "workspace.restricted"
  "eviction-protection" "workspace.evictionProtection" "assign-workspace-user" "openshift.enabled"
  "max-concurrent-runs" "runs.maxConcurrent" "max-concurrent-runs-per-namespace" "runs.maxConcurrentPerNamespace"
  "max-concurrent-runs-per-node" "runs.maxConcurrentPerNode" "default-run-timeout" "runs.defaultTimeout"
  "max-run-timeout" "runs.maxTimeout" "cluster-name" "controller.clusterName" "history-url" "history.url" "history-addr" "history.endpoint.enabled"
  "history-max-runs" "history.maxRuns" "history-max-age" "history.maxAge" "history-max-size" "history.maxSize"
  "storage-size" "storage.size" "artifact-max-size" "storage.artifactMaxSize"
  "artifact-max-unpacked-size" "storage.artifactMaxUnpackedSize"
  "otlp-endpoint" "traces.endpoint" "otlp-headers" "traces.headersSecret.name"
  "workspace-otlp-endpoint" "traces.workspaceEndpoint"
-}}
{{- range $values.extraArgs -}}
{{- $flag := . | trimPrefix "--" | splitList "=" | first -}}
{{- if hasKey $named $flag -}}
{{- fail (printf "extraArgs must not contain --%s: set %s instead" $flag (get $named $flag)) -}}
{{- end -}}
{{- if has $flag (list "enable-leader-election" "health-addr" "metrics-addr" "storage-path" "git-trust-path" "runtime-namespace") -}}
{{- fail (printf "extraArgs must not contain --%s, because the objects of the chart depend on the value of this flag" $flag) -}}
{{- end -}}
{{- end -}}
{{- end -}}

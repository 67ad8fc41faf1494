{{/* Prints the arguments of a controller as a YAML list. The values change the arguments in kustomize/base.
Parameters: root, instance, args (the arguments in kustomize/base). */}}
{{- define "pulumi-controller.args" -}}
{{- $values := .root.Values -}}
{{- $workspace := include "pulumi-controller.workspace" .root | fromYaml -}}
{{- $fluxNamespace := include "pulumi-controller.fluxNamespace" .root -}}
{{- $fluxIsElsewhere := eq (include "pulumi-controller.fluxIsElsewhere" .root) "true" -}}
{{- $events := $values.flux.eventsAddr -}}
{{- $hosts := $values.flux.artifactHosts -}}
{{- if $fluxIsElsewhere -}}
{{- $events = $events | default (printf "http://notification-controller.%s.svc.cluster.local./" $fluxNamespace) -}}
{{- $sources := list (printf "source-controller.%s.svc.cluster.local" $fluxNamespace) (printf "source-watcher.%s.svc.cluster.local" $fluxNamespace) -}}
{{- $hosts = concat $sources $hosts -}}
{{- end -}}
{{- $args := list -}}
{{- range .args -}}
{{- if hasPrefix "--events-addr=" . -}}
{{- if $values.flux.enabled -}}{{- $args = append $args (ternary (printf "--events-addr=%s" $events) . (ne $events "")) -}}{{- end -}}
{{- else if hasPrefix "--watch-all-namespaces=" . -}}
{{- $args = append $args (printf "--watch-all-namespaces=%t" (eq $values.watch.namespace "")) -}}
{{- with $values.watch.namespace -}}{{- $args = append $args (printf "--watch-namespace=%s" .) -}}{{- end -}}
{{- else if hasPrefix "--log-level=" . -}}
{{- $args = append $args (printf "--log-level=%s" $values.controller.logLevel) -}}
{{- else if hasPrefix "--log-encoding=" . -}}
{{- $args = append $args (printf "--log-encoding=%s" $values.controller.logFormat) -}}
{{- else -}}
{{- $args = append $args . -}}
{{- end -}}
{{- end -}}
{{- if .instance.receiver -}}{{- $args = append $args "--receiver-addr=:9292" -}}{{- end -}}
{{- if .instance.ui -}}{{- $args = append $args "--ui-addr=:9294" -}}{{- end -}}
{{- if $values.history.endpoint.enabled -}}{{- $args = append $args "--history-addr=127.0.0.1:9293" -}}{{- end -}}
{{- if not $values.history.enabled -}}{{- $args = append $args "--history-url=" -}}{{- end -}}
{{- $noCrossNamespaceRefs := "" -}}
{{- if $values.multiTenant.enabled -}}{{- $noCrossNamespaceRefs = "true" -}}
{{- else if not $values.controller.noCrossNamespaceRefs -}}{{- $noCrossNamespaceRefs = "false" -}}{{- end -}}
{{- $optional := list
  (list "watch-label-selector" .instance.selector)
  (list "artifact-hosts" (join "," $hosts))
  (list "no-cross-namespace-refs" $noCrossNamespaceRefs)
  (list "concurrent" $values.controller.concurrent)
  (list "leader-election-lease-duration" $values.leaderElection.leaseDuration)
  (list "leader-election-renew-deadline" $values.leaderElection.renewDeadline)
  (list "leader-election-retry-period" $values.leaderElection.retryPeriod)
  (list "default-workspace-image" $values.workspace.image)
  (list "default-service-account" $workspace.defaultServiceAccount)
  (list "default-access-token-secret" $values.workspace.defaultAccessTokenSecret)
  (list "allowed-service-accounts" (join "," $workspace.allowedServiceAccounts))
  (list "max-concurrent-runs" $values.runs.maxConcurrent)
  (list "max-concurrent-runs-per-namespace" $values.runs.maxConcurrentPerNamespace)
  (list "max-concurrent-runs-per-node" $values.runs.maxConcurrentPerNode)
  (list "default-run-timeout" $values.runs.defaultTimeout)
  (list "max-run-timeout" $values.runs.maxTimeout)
  (list "cluster-name" $values.controller.clusterName)
  (list "otlp-endpoint" $values.traces.endpoint)
  (list "workspace-otlp-endpoint" $values.traces.workspaceEndpoint)
  (list "ui-url" (ternary $values.ui.url "" .instance.ui))
  (list "ui-oidc-issuer" (ternary $values.ui.oidc.issuer "" .instance.ui))
  (list "ui-oidc-client-id" (ternary $values.ui.oidc.clientId "" .instance.ui))
  (list "ui-oidc-scopes" (ternary (join "," $values.ui.oidc.scopes) "" .instance.ui))
  (list "ui-oidc-client-secret-file" (ternary "/etc/pulumi-controller/ui/client-secret" "" (and .instance.ui (ne $values.ui.oidc.clientSecret.name ""))))
  (list "ui-oidc-ca-file" (ternary "/etc/pulumi-controller/ui-ca/ca.crt" "" (and .instance.ui (ne (include "pulumi-controller.caBundle" $values.ui.oidc.caBundle) ""))))
  (list "storage-size" $values.storage.size)
  (list "history-url" $values.history.url)
  (list "history-max-runs" $values.history.maxRuns)
  (list "history-max-age" $values.history.maxAge)
  (list "history-max-size" $values.history.maxSize)
  (list "artifact-max-size" $values.storage.artifactMaxSize)
  (list "artifact-max-unpacked-size" $values.storage.artifactMaxUnpackedSize)
-}}
{{- range $optional -}}
{{- $value := last . -}}
{{/* Helm reads numbers as floats, and prints large floats with an exponent. */}}
{{- if kindIs "float64" $value -}}{{- $value = int64 $value -}}{{- end -}}
{{- if not (or (kindIs "invalid" $value) (eq (toString $value) "")) -}}
{{- $args = append $args (printf "--%s=%v" (first .) $value) -}}
{{- end -}}
{{- end -}}
{{- if or $values.workspace.restricted $values.multiTenant.enabled -}}{{- $args = append $args "--restrict-workspace-pods" -}}{{- end -}}
{{- if not $values.workspace.evictionProtection -}}{{- $args = append $args "--eviction-protection=false" -}}{{- end -}}
{{- if $values.openshift.enabled -}}{{- $args = append $args "--assign-workspace-user=false" -}}{{- end -}}
{{- concat $args $values.extraArgs | toYaml -}}
{{- end -}}

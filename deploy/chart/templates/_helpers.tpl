{{- define "pulumi-controller.name" -}}
{{- .Values.nameOverride | default .Chart.Name | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{/* Prefix of the names of all objects. The limit leaves space for the suffixes, because names of Services and label
values can have at most 63 characters. */}}
{{- define "pulumi-controller.fullname" -}}
{{- $name := include "pulumi-controller.name" . -}}
{{- $full := printf "%s-%s" .Release.Name $name -}}
{{- if contains $name .Release.Name -}}{{- $full = .Release.Name -}}{{- end -}}
{{- .Values.fullnameOverride | default $full | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{/* Prefix of the names of Services and NetworkPolicies, as in kustomize/components. */}}
{{- define "pulumi-controller.prefix" -}}
{{- include "pulumi-controller.fullname" . | trimSuffix "-controller" -}}
{{- end -}}

{{- define "pulumi-controller.serviceAccountName" -}}
{{- .Values.serviceAccount.name | default (include "pulumi-controller.fullname" .) -}}
{{- end -}}

{{- define "pulumi-controller.subject" -}}
kind: ServiceAccount
name: {{ include "pulumi-controller.serviceAccountName" . }}
namespace: {{ .Release.Namespace | quote }}
{{- end -}}

{{- define "pulumi-controller.image" -}}
{{- with .Values.image -}}
{{- if .registry }}{{ .registry }}/{{ end }}{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}{{ with .digest }}@{{ . }}{{ end }}
{{- end -}}
{{- end -}}

{{/* Prints the source of a projected volume that contains CA certificates as the file ca.crt. Prints nothing if the
value names no object. Parameter: a value with the fields configMap and secret. */}}
{{- define "pulumi-controller.caBundle" -}}
{{- range $kind := list "configMap" "secret" -}}
{{- with get $ $kind -}}
{{- if .name -}}
{{- dict $kind (dict "name" .name "items" (list (dict "key" .key "path" "ca.crt"))) | toYaml -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Labels of the pods. NetworkPolicies in the namespaces of tenants select pods by these labels. */}}
{{- define "pulumi-controller.podLabels" -}}
app.kubernetes.io/part-of: pulumi-controller
app.kubernetes.io/component: pulumi-controller
{{- end -}}

{{- define "pulumi-controller.labels" -}}
{{ include "pulumi-controller.podLabels" . }}
app.kubernetes.io/name: {{ include "pulumi-controller.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- end -}}

{{/* Prints the objects in a file of the chart as a YAML list. */}}
{{- define "pulumi-controller.objects" -}}
{{- $text := .root.Files.Get .path -}}
{{- if not $text -}}
{{- fail (printf "the chart does not contain %s: create the chart with `helm package` in a clone of the repository, because the chart directory contains symbolic links to files in other directories" .path) -}}
{{- end -}}
{{- $objects := list -}}
{{- range splitList "\n---\n" $text -}}
{{- $object := fromYaml . -}}
{{- if hasKey $object "Error" -}}{{- fail (printf "%s: %s" $.path $object.Error) -}}{{- end -}}
{{- if and $object.kind (ne $object.kind "Kustomization") -}}{{- $objects = append $objects $object -}}{{- end -}}
{{- end -}}
{{- toYaml $objects -}}
{{- end -}}

{{/* Adds the labels of the chart to the metadata of an object. */}}
{{- define "pulumi-controller.addLabels" -}}
{{- $labels := merge (deepCopy (.object.metadata.labels | default dict)) (include "pulumi-controller.labels" .root | fromYaml) -}}
{{- $_ := set .object.metadata "labels" $labels -}}
{{- end -}}

{{/* Replaces the prefix `pulumi-controller` of a name with the full name of the release. */}}
{{- define "pulumi-controller.rename" -}}
{{- include "pulumi-controller.fullname" .root }}{{ trimPrefix "pulumi-controller" .name -}}
{{- end -}}

{{/* Prints the suffix for the names of the objects of a shard. The suffix is the key. If the key would make the name of
the metrics Service too long or invalid, the suffix is the hash in the name of the Lease. Parameter: the key. */}}
{{- define "pulumi-controller.shardSuffix" -}}
{{- if and (le (len .) 14) (regexMatch "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$" .) -}}
{{- . -}}
{{- else -}}
{{- printf "sharding.fluxcd.io/key=%s" . | sha256sum | trunc 8 -}}
{{- end -}}
{{- end -}}

{{/* Prints the Deployments as a YAML list. Without shards, the list has one entry. With shards, the list has one entry
for the objects without the label of a shard, and one entry for each shard. */}}
{{- define "pulumi-controller.instances" -}}
{{- $name := include "pulumi-controller.fullname" . -}}
{{- if .Values.shards }}
- {name: {{ $name }}, selector: "!sharding.fluxcd.io/key", receiver: {{ .Values.receiver.enabled }}, ui: {{ .Values.ui.enabled }}}
{{- range .Values.shards }}
- {name: {{ $name }}-{{ include "pulumi-controller.shardSuffix" . }}, selector: "sharding.fluxcd.io/key={{ . }}", receiver: false, ui: false}
{{- end }}
{{- else }}
- {name: {{ $name }}, selector: {{ trim .Values.watch.labelSelector | quote }}, receiver: {{ .Values.receiver.enabled }}, ui: {{ .Values.ui.enabled }}}
{{- end }}
{{- end -}}

{{/* Label selector for the pods of all Deployments. */}}
{{- define "pulumi-controller.allPods" -}}
{{- $names := list -}}
{{- range include "pulumi-controller.instances" . | fromYamlArray -}}{{- $names = append $names .name -}}{{- end -}}
{{- if eq (len $names) 1 -}}
matchLabels:
  app: {{ first $names }}
{{- else -}}
matchExpressions:
  - key: app
    operator: In
    values: {{ toJson $names }}
{{- end -}}
{{- end -}}

{{/* Prints the names of the Leases as a YAML list. If a controller has a label selector, the name ends with the first
eight characters of the SHA-256 of the selector. */}}
{{- define "pulumi-controller.leases" -}}
{{- range include "pulumi-controller.instances" . | fromYamlArray }}
- pulumi-controller-leader-election{{ with .selector }}-{{ . | sha256sum | trunc 8 }}{{ end }}
{{- end }}
{{- end -}}

{{- define "pulumi-controller.fluxNamespace" -}}
{{- .Values.flux.namespace | default .Release.Namespace -}}
{{- end -}}

{{/* Prints `true` if Flux is not in the namespace of the release. The NetworkPolicies of Flux then do not apply to the
controller. */}}
{{- define "pulumi-controller.fluxIsElsewhere" -}}
{{- and .Values.flux.enabled (ne (include "pulumi-controller.fluxNamespace" .) .Release.Namespace) -}}
{{- end -}}

{{/* Prints the settings of workspace pods. `multiTenant.enabled` changes their defaults. */}}
{{- define "pulumi-controller.workspace" -}}
{{- $account := .Values.workspace.defaultServiceAccount -}}
{{- $allowed := .Values.workspace.allowedServiceAccounts -}}
{{- if .Values.multiTenant.enabled -}}
{{- $account = $account | default "pulumi" -}}
{{- $allowed = $allowed | default (list $account) -}}
{{- end -}}
{{- dict "defaultServiceAccount" $account "allowedServiceAccounts" $allowed | toYaml -}}
{{- end -}}

{{/* Prints a quantity with a binary suffix, or without a suffix, in bytes. Prints 0 for other suffixes. */}}
{{- define "pulumi-controller.bytes" -}}
{{- $units := dict "" 1 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 -}}
{{- $unit := regexFind "[A-Za-z]*$" . -}}
{{- if and (hasKey $units $unit) (regexMatch "^[0-9]+[A-Za-z]*$" .) -}}
{{- mul (trimSuffix $unit . | int64) (get $units $unit) -}}
{{- else -}}0{{- end -}}
{{- end -}}

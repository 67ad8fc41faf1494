{{/* Renders an object of config/rbac according to the values. With watch.namespace, ClusterRoles become Roles in this
namespace. Parameters: root, object. */}}
{{- define "pulumi-controller.rbacObject" -}}
{{- $values := .root.Values -}}
{{- $object := .object -}}
{{- $part := trimPrefix "pulumi-controller" $object.metadata.name -}}
{{- $isAggregated := hasKey ($object.metadata.labels | default dict) "rbac.authorization.k8s.io/aggregate-to-admin" -}}
{{- $isForUsers := or $isAggregated (eq $part "-approver") -}}
{{- $isClusterWide := hasPrefix "Cluster" $object.kind -}}
{{- $render := true -}}
{{- if $isForUsers -}}
{{- $render = $values.rbac.createClusterAggregationRoles -}}
{{- else if and (eq $part "-flux-sources") (not $values.flux.enabled) -}}
{{- $render = false -}}
{{- else if not $isClusterWide -}}
{{- $_ := set $object.metadata "namespace" .root.Release.Namespace -}}
{{- else if $values.watch.namespace -}}
{{/* Nodes are not namespaced, and Roles cannot be aggregated. */}}
{{- $render = not (has $part (list "-node-reader" "-source-reader")) -}}
{{- $_ := set $object "kind" (trimPrefix "Cluster" $object.kind) -}}
{{- $_ := set $object.metadata "namespace" $values.watch.namespace -}}
{{- if $object.roleRef -}}{{- $_ := set $object.roleRef "kind" "Role" -}}{{- end -}}
{{- else if not $values.rbac.createClusterRole -}}
{{- $render = false -}}
{{- else if and $values.multiTenant.enabled (eq $part "-workspaces") $object.roleRef -}}
{{/* RoleBindings in the namespaces of tenants replace this ClusterRoleBinding. */}}
{{- $render = false -}}
{{- end -}}
{{- if $render -}}
{{- include "pulumi-controller.addLabels" . -}}
{{- $_ := set $object.metadata "name" (include "pulumi-controller.rename" (dict "root" .root "name" $object.metadata.name)) -}}
{{- with $object.roleRef -}}
{{- $_ := set . "name" (include "pulumi-controller.rename" (dict "root" $.root "name" .name)) -}}
{{- $_ := set $object "subjects" (list (include "pulumi-controller.subject" $.root | fromYaml)) -}}
{{- end -}}
{{- range $object.rules -}}
{{- if has "pulumi-controller-leader-election" (.resourceNames | default list) -}}
{{- $_ := set . "resourceNames" (include "pulumi-controller.leases" $.root | fromYamlArray) -}}
{{- end -}}
{{- end -}}
{{- if and (eq $part "") $object.rules -}}
{{- $_ := set $object "rules" (concat $object.rules $values.rbac.extraRules) -}}
{{- end }}
---
{{ toYaml $object }}
{{- end -}}
{{- end -}}

{{/* Renders a RoleBinding for the controller. Parameters: root, name, namespace, kind, role. */}}
{{- define "pulumi-controller.roleBinding" }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: {{ .name }}
  namespace: {{ .namespace | quote }}
  labels:
    {{- include "pulumi-controller.labels" .root | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: {{ .kind }}
  name: {{ .role }}
subjects:
  -
    {{- include "pulumi-controller.subject" .root | nindent 4 }}
{{- end -}}

//! Findings about the workspace template: fields of the pod that a template cannot change, and items that the pod does
//! not contain.

use pulumi_controller::api::names::{
    ACCESS_TOKEN_DIRECTORY, ANNOTATION_REVISION_HASH, CONFIG_MAPS_DIRECTORY, LABEL_COMPONENT, LABEL_RUN,
    LABEL_WORKSPACE_NAME, MAX_TERMINATION_GRACE_SECONDS, OIDC_DIRECTORY, PULUMI_CONTAINER, SECRETS_DIRECTORY,
    SHARE_DIRECTORY, SHARE_VOLUME, TLS_DIRECTORY,
};
use pulumi_controller::api::pulumi::StackSpec;
use serde_json::Value;

use super::finding::{Finding, in_template};

const POD: &str = "spec.workspaceTemplate.spec.podTemplate";
/// Fields of the `pulumi` container that a template cannot change.
const CONTAINER_FIELDS: [&str; 5] =
    ["args", "command", "terminationMessagePath", "terminationMessagePolicy", "workingDir"];
/// Environment variables of the `pulumi` container that a pod template cannot change.
const VARIABLES: [&str; 4] = ["POD_NAME", "POD_NAMESPACE", "POD_UID", "PWD"];
/// Init containers that the controller generates, with the fields that a template can change. Items that a template adds
/// to the lists `env` and `volumeMounts` of `fetch` have no effect.
const INIT_CONTAINERS: [(&str, &[&str]); 2] = [
    ("bootstrap", &["name", "imagePullPolicy", "resources", "securityContext"]),
    ("fetch", &["name", "imagePullPolicy", "resources", "securityContext", "env", "volumeMounts"]),
];
/// Directories in the share volume that only the agent can use.
const AGENT_DIRECTORIES: [&str; 7] = ["bin", "operations", "previous", "settings", "source", "staging", "workspace"];
/// Other directories that only the agent can use.
const RESERVED_DIRECTORIES: [&str; 5] =
    [TLS_DIRECTORY, SECRETS_DIRECTORY, CONFIG_MAPS_DIRECTORY, OIDC_DIRECTORY, ACCESS_TOKEN_DIRECTORY];
/// Files and variables of the operator's workspace pods that the controller's pods do not contain.
const MISSING_IN_POD: [&str; 4] = ["/share/agent", "/share/tini", "POD_SA_NAME", "AGENT_MEMLIMIT"];

pub fn findings(spec: &StackSpec) -> Vec<Finding> {
    let mut all = security_profile(spec).into_iter().collect::<Vec<_>>();
    let fields = pulumi_container(spec).into_iter().chain(init_containers(spec)).chain(pod_fields(spec));
    let rejected =
        |field| Finding::required(format!("{POD}.{field}"), "the controller rejects this field", "remove the field");
    all.extend(fields.chain(metadata(spec)).map(rejected));
    let text = spec.workspace_template.as_ref().map(Value::to_string).unwrap_or_default();
    for missing in MISSING_IN_POD.into_iter().filter(|item| text.contains(item)) {
        let change = format!("the workspace pod does not contain {missing}");
        all.push(Finding::required("spec.workspaceTemplate", change, "remove the reference"));
    }
    all
}

fn security_profile(spec: &StackSpec) -> Option<Finding> {
    let profile = in_template(spec, "/spec/securityProfile").and_then(Value::as_str)?;
    let is_valid = ["", "baseline", "restricted"].contains(&profile);
    let change = format!("the controller rejects the profile {profile:?}");
    let field = "spec.workspaceTemplate.spec.securityProfile";
    (!is_valid).then(|| Finding::required(field, change, "use restricted or baseline"))
}

fn items<'a>(spec: &'a StackSpec, list: &str) -> impl Iterator<Item = &'a Value> {
    in_template(spec, &format!("/spec/podTemplate/spec/{list}")).and_then(Value::as_array).into_iter().flatten()
}

fn named<'a>(items: impl IntoIterator<Item = &'a Value>, name: &str) -> Option<&'a Value> {
    items.into_iter().find(|item| item.get("name").and_then(Value::as_str) == Some(name))
}

fn pulumi_container(spec: &StackSpec) -> Vec<String> {
    let Some(container) = named(items(spec, "containers"), PULUMI_CONTAINER) else { return Vec::new() };
    let path = format!("spec.containers[{PULUMI_CONTAINER}]");
    let fields = CONTAINER_FIELDS.into_iter().filter(|field| container.get(field).is_some());
    let variables = container.get("env").and_then(Value::as_array).into_iter().flatten();
    let variables = variables.filter_map(|variable| variable.get("name")?.as_str());
    let variables = variables.filter(|name| VARIABLES.contains(name)).map(|name| format!("env[{name}]"));
    let all = fields.map(str::to_owned).chain(variables).chain(mounts(container));
    all.map(|field| format!("{path}.{field}")).collect()
}

fn init_containers(spec: &StackSpec) -> Vec<String> {
    let of = |(name, permitted): (&str, &[&str])| {
        let Some(container) = named(items(spec, "initContainers"), name) else { return Vec::new() };
        let fields = container.as_object().into_iter().flatten().map(|(field, _)| field.clone());
        let fields = fields.filter(|field| !permitted.contains(&field.as_str()));
        let mounts = mounts(container).into_iter().filter(|_| permitted.contains(&"volumeMounts"));
        fields.chain(mounts).map(|field| format!("spec.initContainers[{name}].{field}")).collect()
    };
    INIT_CONTAINERS.into_iter().flat_map(of).collect()
}

/// Returns the mounts of a container that hide the directories of the agent.
fn mounts(container: &Value) -> Vec<String> {
    let mounts = container.get("volumeMounts").and_then(Value::as_array).into_iter().flatten();
    let paths = mounts.filter_map(|mount| mount.get("mountPath")?.as_str());
    paths.filter(|path| is_reserved(path)).map(|path| format!("volumeMounts[{path}]")).collect()
}

fn is_reserved(path: &str) -> bool {
    let path = format!("/{}", path.split('/').filter(|part| !matches!(*part, "" | ".")).collect::<Vec<_>>().join("/"));
    let is_below = |root: &str| path.strip_prefix(root).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    path == SHARE_DIRECTORY
        || RESERVED_DIRECTORIES.into_iter().any(is_below)
        || AGENT_DIRECTORIES.iter().any(|directory| is_below(&format!("{SHARE_DIRECTORY}/{directory}")))
}

fn pod_fields(spec: &StackSpec) -> Vec<String> {
    let field = |name: &str| in_template(spec, &format!("/spec/podTemplate/spec/{name}"));
    let grace = field("terminationGracePeriodSeconds").and_then(Value::as_u64);
    let is_true = |name: &str| field(name).is_some_and(|value| value != &Value::Bool(false));
    let fields = [
        ("ephemeralContainers", field("ephemeralContainers").is_some()),
        ("hostPID", is_true("hostPID")),
        ("restartPolicy", field("restartPolicy").is_some_and(|policy| policy != "Always")),
        ("shareProcessNamespace", is_true("shareProcessNamespace")),
        ("terminationGracePeriodSeconds", grace.is_some_and(|seconds| seconds > MAX_TERMINATION_GRACE_SECONDS)),
    ];
    let mut all: Vec<String> =
        fields.into_iter().filter(|(_, is_rejected)| *is_rejected).map(|(name, _)| format!("spec.{name}")).collect();
    // A volume of the operator's pods with the same name has the same definition.
    let share = named(items(spec, "volumes"), SHARE_VOLUME).and_then(|volume| volume.get("emptyDir"));
    let is_changed = share.is_none_or(|share| share.as_object().is_none_or(|fields| !fields.is_empty()));
    if named(items(spec, "volumes"), SHARE_VOLUME).is_some() && is_changed {
        all.push(format!("spec.volumes[{SHARE_VOLUME}]"));
    }
    all
}

fn metadata(spec: &StackSpec) -> Vec<String> {
    let keys = |kind: &str, keys: &[&str]| -> Vec<String> {
        let set = in_template(spec, &format!("/spec/podTemplate/metadata/{kind}")).and_then(Value::as_object);
        let set = set.into_iter().flatten().filter(|(key, _)| keys.contains(&key.as_str()));
        set.map(|(key, _)| format!("metadata.{kind}[{key}]")).collect()
    };
    let mut all = keys("labels", &[LABEL_COMPONENT, LABEL_WORKSPACE_NAME, LABEL_RUN]);
    all.extend(keys("annotations", &[ANNOTATION_REVISION_HASH]));
    all
}

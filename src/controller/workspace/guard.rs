//! Validates the user-defined `podTemplate`. Except for [`check_fields`], the checks use the merged template, so that
//! merge directives cannot bypass the checks.

use std::collections::HashSet;

use serde_json::Value;

use super::environment::has_name;
use super::init_containers::{self, FETCH_CONTAINER};
use super::pod;
use super::spec_error::SpecError;
use crate::api::names::{
    ACCESS_TOKEN_DIRECTORY, ANNOTATION_REVISION_HASH, CONFIG_MAPS_DIRECTORY, LABEL_RUN, MAX_TERMINATION_GRACE_SECONDS,
    OIDC_DIRECTORY, PULUMI_CONTAINER, SECRETS_DIRECTORY, SHARE_DIRECTORY, TLS_DIRECTORY,
};

/// Directories in the share volume in which the agent creates and removes files.
const AGENT_DIRECTORIES: [&str; 7] = ["bin", "operations", "previous", "settings", "source", "staging", "workspace"];
/// Fields of the `pulumi` container that the agent requires.
const CONTAINER_FIELDS: [&str; 5] =
    ["args", "command", "terminationMessagePath", "terminationMessagePolicy", "workingDir"];

/// Returns an error for the first template field that is neither the spec nor the labels or annotations of the pod.
pub(super) fn check_fields(patch: &Value) -> Result<(), SpecError> {
    let unsupported = |field: String| Err(SpecError::Unsupported { field });
    for (field, value) in patch.as_object().into_iter().flatten() {
        match field.as_str() {
            "spec" => {}
            "metadata" => {
                let fields = value.as_object().into_iter().flatten();
                let mut strange = fields.filter(|(name, _)| !matches!(name.as_str(), "annotations" | "labels"));
                if let Some((name, _)) = strange.next() {
                    return unsupported(format!("metadata.{name}"));
                }
            }
            _ => return unsupported(field.clone()),
        }
    }
    Ok(())
}

/// Returns an error for the first generated field that the merged template changes.
pub(super) fn check_unchanged(generated: &Value, merged: &Value) -> Result<(), SpecError> {
    init_containers::check(generated, merged)?;
    check_fetch_container(generated, merged)?;
    check_pod(merged)?;
    check_metadata(generated, merged)?;
    check_items(generated, merged, "/spec/volumes", "volumes")?;
    check_pulumi_container(generated, merged)
}

fn check_pod(merged: &Value) -> Result<(), SpecError> {
    let field = |name: &str| merged.pointer(&format!("/spec/{name}"));
    let unsupported = |name: &str| Err(SpecError::Unsupported { field: format!("spec.{name}") });
    if field("ephemeralContainers").is_some() {
        return unsupported("ephemeralContainers");
    }
    // The termination of the container must prove that its run has ended. If the container has its own PID namespace,
    // the kernel kills all its processes when the first process, `agent::init`, exits. In a shared PID namespace,
    // processes of the run could outlive the container.
    for name in ["hostPID", "shareProcessNamespace"] {
        if field(name).is_some_and(|value| value != &Value::Bool(false)) {
            return unsupported(name);
        }
    }
    if field("restartPolicy").is_some_and(|policy| policy != "Always") {
        return unsupported("restartPolicy");
    }
    match field("terminationGracePeriodSeconds").and_then(Value::as_u64) {
        Some(seconds) if seconds > MAX_TERMINATION_GRACE_SECONDS => Err(SpecError::GracePeriod { seconds }),
        _ => Ok(()),
    }
}

fn check_metadata(generated: &Value, merged: &Value) -> Result<(), SpecError> {
    let labels = |template: &Value| template.pointer("/metadata/labels").cloned();
    for (label, value) in labels(generated).as_ref().and_then(Value::as_object).into_iter().flatten() {
        if merged.pointer("/metadata/labels").and_then(|labels| labels.get(label)) != Some(value) {
            return protected(format!("the label {label}"));
        }
    }
    if merged.pointer("/metadata/labels").is_some_and(|labels| labels.get(LABEL_RUN).is_some()) {
        return protected(format!("the label {LABEL_RUN}"));
    }
    let annotations = merged.pointer("/metadata/annotations");
    if annotations.is_some_and(|annotations| annotations.get(ANNOTATION_REVISION_HASH).is_some()) {
        return protected(format!("the annotation {ANNOTATION_REVISION_HASH}"));
    }
    Ok(())
}

/// Checks that the generated variables and mounts of `fetch` are unchanged. Users can add other variables and mounts.
fn check_fetch_container(generated: &Value, merged: &Value) -> Result<(), SpecError> {
    let fetch = |template| container(template, "/spec/initContainers", FETCH_CONTAINER);
    let (Some(ours), Some(theirs)) = (fetch(generated), fetch(merged)) else {
        return protected(format!("the init container {FETCH_CONTAINER}"));
    };
    let path = format!("initContainers[{FETCH_CONTAINER}]");
    for list in ["env", "volumeMounts"] {
        check_items(ours, theirs, &format!("/{list}"), &format!("{path}.{list}"))?;
    }
    check_mount_paths(ours, theirs, &path)
}

fn check_pulumi_container(generated: &Value, merged: &Value) -> Result<(), SpecError> {
    let pulumi = |template| container(template, "/spec/containers", PULUMI_CONTAINER);
    let (Some(ours), Some(theirs)) = (pulumi(generated), pulumi(merged)) else {
        return protected(format!("the container {PULUMI_CONTAINER}"));
    };
    if let Some(field) = CONTAINER_FIELDS.iter().find(|field| ours.get(**field) != theirs.get(**field)) {
        return protected(format!("spec.containers[{PULUMI_CONTAINER}].{field}"));
    }
    let path = format!("containers[{PULUMI_CONTAINER}]");
    check_items(ours, theirs, "/volumeMounts", &format!("{path}.volumeMounts"))?;
    let environment = theirs.get("env").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    if let Some(variable) = pod::own_environment().iter().find(|variable| !environment.contains(variable)) {
        let name = variable.get("name").and_then(Value::as_str).unwrap_or_default();
        return protected(format!("spec.{path}.env[{name}]"));
    }
    check_mount_paths(ours, theirs, &path)
}

fn container<'a>(template: &'a Value, list: &str, name: &str) -> Option<&'a Value> {
    template.pointer(list)?.as_array()?.iter().find(|container| has_name(container, name))
}

/// Checks that every generated item is unchanged.
fn check_items(generated: &Value, merged: &Value, pointer: &str, path: &str) -> Result<(), SpecError> {
    let items = |value: &Value| value.pointer(pointer).and_then(Value::as_array).cloned().unwrap_or_default();
    let theirs = items(merged);
    let theirs: HashSet<&Value> = theirs.iter().collect();
    match items(generated).iter().find(|item| !theirs.contains(item)) {
        Some(item) => {
            let name = item.get("mountPath").or_else(|| item.get("name")).and_then(Value::as_str).unwrap_or_default();
            protected(format!("spec.{path}[{name}]"))
        }
        None => Ok(()),
    }
}

/// Checks that user-defined mounts neither hide the agent's directories nor prevent the agent from removing them.
fn check_mount_paths(ours: &Value, theirs: &Value, container: &str) -> Result<(), SpecError> {
    let mounts =
        |container: &Value| container.get("volumeMounts").and_then(Value::as_array).cloned().unwrap_or_default();
    let generated = mounts(ours);
    let generated: HashSet<&Value> = generated.iter().collect();
    for mount in mounts(theirs).iter().filter(|mount| !generated.contains(mount)) {
        let path = plain_path(mount.get("mountPath").and_then(Value::as_str).unwrap_or_default());
        if is_reserved(&path) {
            return protected(format!("spec.{container}.volumeMounts[{path}]"));
        }
    }
    Ok(())
}

/// Normalizes a path as the container runtime does: the result is absolute and contains no empty, `.` or `..`
/// segments.
fn plain_path(path: &str) -> String {
    let mut parts = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    format!("/{}", parts.join("/"))
}

fn is_reserved(path: &str) -> bool {
    let at_or_below = |root: &str| path.strip_prefix(root).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    path == SHARE_DIRECTORY
        || at_or_below(TLS_DIRECTORY)
        || at_or_below(SECRETS_DIRECTORY)
        || at_or_below(CONFIG_MAPS_DIRECTORY)
        || at_or_below(OIDC_DIRECTORY)
        || at_or_below(ACCESS_TOKEN_DIRECTORY)
        || AGENT_DIRECTORIES.iter().any(|directory| at_or_below(&format!("{SHARE_DIRECTORY}/{directory}")))
}

fn protected(field: String) -> Result<(), SpecError> {
    Err(SpecError::Protected { field })
}

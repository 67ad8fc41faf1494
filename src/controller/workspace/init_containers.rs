//! Arranges the init containers of a pod: the generated init containers come first, followed by the user-defined init
//! containers in their original order. If a user-defined init container runs to completion, a generated init container
//! receives the source beforehand, so that the user-defined init container can read the source.

use k8s_openapi::api::core::v1::Pod;
use serde_json::{Map, Value};

use super::environment::has_name;
use super::spec_error::SpecError;
use crate::api::names::PULUMI_CONTAINER;

/// Name of the init container that copies the agent binary into the share volume. The `pulumi` container can
/// therefore use any Pulumi image.
pub(super) const BOOTSTRAP_CONTAINER: &str = "bootstrap";
/// Name of the init container that receives the source before the user-defined init containers run.
pub(super) const FETCH_CONTAINER: &str = "fetch";
/// Generated init containers, in execution order.
pub(super) const GENERATED_CONTAINERS: [&str; 2] = [BOOTSTRAP_CONTAINER, FETCH_CONTAINER];
/// Fields of the generated init containers that users can change. A policy can require these fields in all containers
/// of a namespace.
const ADJUSTABLE: [&str; 3] = ["imagePullPolicy", "resources", "securityContext"];
/// Lists of the `fetch` container that users can extend, with the merge key of their items. Templates for the Pulumi
/// Kubernetes Operator extend these lists, because its `fetch` container downloads the source.
const EXTENSIBLE: [(&str, &str); 2] = [("env", "name"), ("volumeMounts", "mountPath")];
/// Maximum number of items that [`without_effect`] lists.
const MAX_LISTED: usize = 10;
/// Security context fields that set the user and the group of a container.
const IDENTITY: [&str; 2] = ["runAsUser", "runAsGroup"];

/// Returns an error for the first generated field that the user-defined template changes.
pub(super) fn check(generated: &Value, merged: &Value) -> Result<(), SpecError> {
    let protected = |field: String| Err(SpecError::Protected { field });
    for name in GENERATED_CONTAINERS {
        let (Some(ours), Some(theirs)) = (find(generated, name), find(merged, name)) else {
            return protected(format!("the init container {name}"));
        };
        let is_extensible = |field: &str| name == FETCH_CONTAINER && EXTENSIBLE.iter().any(|(list, _)| *list == field);
        let is_fixed = |field: &&String| !ADJUSTABLE.contains(&field.as_str()) && !is_extensible(field);
        let mut fields = ours.keys().chain(theirs.keys()).filter(is_fixed);
        if let Some(field) = fields.find(|field| ours.get(*field) != theirs.get(*field)) {
            return protected(format!("spec.initContainers[{name}].{field}"));
        }
    }
    Ok(())
}

/// Returns the items that the user-defined template adds to `fetch`, such as `env[SSH_KNOWN_HOSTS]`. The items have
/// no effect, because the controller downloads the source.
pub(super) fn without_effect(pod_template: &Value) -> Vec<String> {
    let Some(fetch) = find(pod_template, FETCH_CONTAINER) else { return Vec::new() };
    let items = EXTENSIBLE.iter().flat_map(|(list, key)| {
        let items = fetch.get(*list).and_then(Value::as_array).into_iter().flatten();
        items.filter_map(move |item| Some(format!("{list}[{}]", item.get(*key)?.as_str()?)))
    });
    items.take(MAX_LISTED).collect()
}

/// Sorts the merged init containers: the generated init containers come first, followed by the user-defined init
/// containers. Keeps `fetch` only if `has_source` is `true` and a user-defined init container runs to completion.
/// Returns whether the template still contains `fetch`. If `true`, the pod receives the source before the
/// user-defined init containers run.
pub(super) fn arrange(template: &mut Value, has_source: bool) -> bool {
    let identity = identity_of_pulumi(template);
    let Some(containers) = template.pointer_mut("/spec/initContainers").and_then(Value::as_array_mut) else {
        return false;
    };
    let (mut ordered, users): (Vec<Value>, Vec<Value>) = std::mem::take(containers).into_iter().partition(is_own);
    ordered.sort_by_key(|container| GENERATED_CONTAINERS.iter().position(|name| has_name(container, name)));
    let fetches = has_source && users.iter().any(runs_to_completion);
    if fetches {
        for container in ordered.iter_mut().filter(|container| has_name(container, FETCH_CONTAINER)) {
            set_identity(container, &identity);
        }
    } else {
        ordered.retain(|container| !has_name(container, FETCH_CONTAINER));
    }
    ordered.extend(users);
    *containers = ordered;
    fetches
}

/// Returns the names of the user-defined init containers that run to completion.
pub(super) fn of_user(pod: &Pod) -> impl Iterator<Item = &str> {
    let containers = pod.spec.iter().flat_map(|spec| spec.init_containers.iter().flatten());
    let waited_for = containers.filter(|container| container.restart_policy.as_deref() != Some("Always"));
    waited_for.map(|container| container.name.as_str()).filter(|name| !GENERATED_CONTAINERS.contains(name))
}

fn is_own(container: &Value) -> bool {
    GENERATED_CONTAINERS.iter().any(|name| has_name(container, name))
}

/// Returns whether a container runs to completion. A sidecar keeps running, so no container waits for it to complete.
fn runs_to_completion(container: &Value) -> bool {
    container.get("restartPolicy").and_then(Value::as_str) != Some("Always")
}

fn find<'a>(template: &'a Value, name: &str) -> Option<&'a Map<String, Value>> {
    let containers = template.pointer("/spec/initContainers")?.as_array()?;
    containers.iter().find(|container| has_name(container, name))?.as_object()
}

/// Returns the user and the group from the security context of the `pulumi` container.
fn identity_of_pulumi(template: &Value) -> Map<String, Value> {
    let containers = template.pointer("/spec/containers").and_then(Value::as_array);
    let pulumi = containers.into_iter().flatten().find(|container| has_name(container, PULUMI_CONTAINER));
    let context = pulumi.and_then(|container| container.get("securityContext")).and_then(Value::as_object);
    let identity = context.into_iter().flatten().filter(|(field, _)| IDENTITY.contains(&field.as_str()));
    identity.map(|(field, value)| (field.clone(), value.clone())).collect()
}

/// Sets the user and the group of the `fetch` container, unless it already sets them. The agent's user must own the
/// source files, because the agent changes these files.
fn set_identity(container: &mut Value, identity: &Map<String, Value>) {
    let Some(container) = container.as_object_mut().filter(|_| !identity.is_empty()) else { return };
    let context = container.entry("securityContext").or_insert_with(|| Value::Object(Map::new()));
    for (field, value) in identity {
        if let Some(context) = context.as_object_mut().filter(|context| !context.contains_key(field)) {
            context.insert(field.clone(), value.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn arranged(init_containers: Value, pulumi: Value, has_source: bool) -> (bool, Vec<Value>) {
        let mut template = json!({"spec": {"initContainers": init_containers, "containers": [pulumi]}});
        let fetches = arrange(&mut template, has_source);
        (fetches, template["spec"]["initContainers"].as_array().expect("is a list").clone())
    }

    #[test]
    fn the_bootstrap_container_runs_first_and_the_fetch_container_if_needed() {
        let (bootstrap, fetch) = (json!({"name": "bootstrap"}), json!({"name": "fetch"}));
        let (prepare, check) = (json!({"name": "prepare"}), json!({"name": "check"}));
        let proxy = json!({"name": "proxy", "restartPolicy": "Always"});
        let table = [
            ("no other init containers", json!([bootstrap, fetch]), true, vec!["bootstrap"]),
            ("one", json!([prepare, bootstrap, fetch]), true, vec!["bootstrap", "fetch", "prepare"]),
            ("no source", json!([prepare, bootstrap, fetch]), false, vec!["bootstrap", "prepare"]),
            ("a sidecar", json!([proxy, bootstrap, fetch]), true, vec!["bootstrap", "proxy"]),
            (
                "several containers keep their order",
                json!([prepare, proxy, bootstrap, fetch, check]),
                true,
                vec!["bootstrap", "fetch", "prepare", "proxy", "check"],
            ),
            (
                "own init containers out of order",
                json!([fetch, prepare, bootstrap]),
                true,
                vec!["bootstrap", "fetch", "prepare"],
            ),
        ];
        for (case, init_containers, has_source, expected) in table {
            let (fetches, containers) = arranged(init_containers, json!({"name": "pulumi"}), has_source);
            let names: Vec<_> =
                containers.iter().map(|container| container["name"].as_str().expect("name is set")).collect();
            assert_eq!(names, expected, "{case}");
            assert_eq!(fetches, expected.contains(&"fetch"), "{case}");
        }
    }

    #[test]
    fn ineffective_template_additions_to_the_fetch_container_are_listed() {
        let template =
            |fetch: Value| json!({"spec": {"initContainers": [{"name": "prepare", "env": [{"name": "A"}]}, fetch]}});
        let added = json!({
            "name": "fetch", "resources": {}, "env": [{"name": "SSH_KNOWN_HOSTS", "value": "/a"}],
            "volumeMounts": [{"name": "hosts", "mountPath": "/etc/ssh"}],
        });
        assert_eq!(without_effect(&template(added)), ["env[SSH_KNOWN_HOSTS]", "volumeMounts[/etc/ssh]"]);
        assert!(without_effect(&template(json!({"name": "fetch", "resources": {}}))).is_empty());
        assert!(without_effect(&json!({"spec": {"initContainers": null}})).is_empty());
        let many: Vec<Value> = (0..1000).map(|number| json!({"name": format!("V{number}")})).collect();
        assert_eq!(without_effect(&template(json!({"name": "fetch", "env": many}))).len(), MAX_LISTED);
    }

    #[test]
    fn the_fetch_container_runs_as_the_user_of_the_pulumi_container() {
        let prepare = json!({"name": "prepare"});
        let pulumi =
            json!({"name": "pulumi", "securityContext": {"runAsUser": 2000, "runAsGroup": 3000, "readOnly": true}});
        let fetch = json!({"name": "fetch", "securityContext": {"runAsGroup": 4000}});
        let (_, containers) = arranged(json!([fetch, prepare]), pulumi, true);
        assert_eq!(containers[0]["securityContext"], json!({"runAsUser": 2000, "runAsGroup": 4000}));
    }
}

//! Detects Workspace objects that another client, such as a mutating webhook or a controller, changes after each
//! apply. Without a backoff, continuous applies would put load on the controller and the API server without any
//! effect.

use std::collections::BTreeSet;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use kube::Resource;
use serde::Serialize;
use serde_json::Value;

use super::repeats::Delays;
use crate::api::names::FIELD_MANAGER;

/// Delays between applies of the same content to outdated objects.
pub(super) const APPLIES: Delays =
    Delays { immediate: 4, first: Duration::from_secs(60), longest: Duration::from_secs(30 * 60) };
/// Maximum number of fields in an object description.
const MAX_FIELDS: usize = 5;
/// Maximum length of an object description, in characters.
const MAX_TEXT: usize = 500;

/// Objects that another client changes after each apply. The controller therefore delays the next apply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Contested {
    /// Description of the objects, including the fields that differ and the managers of these fields.
    pub message: String,
    /// Remaining time until the next apply.
    pub pause: Duration,
    /// Whether the StatefulSet is one of the objects. If `true`, a new pod might not match the spec.
    pub stateful_set: bool,
}

impl Contested {
    /// Creates the message from `objects`, which are the results of [`describe`].
    pub(super) fn new(objects: &[String], pause: Duration, stateful_set: bool) -> Self {
        let message = format!(
            "other clients change objects of the Workspace after each apply, so the controller delays further applies: \
             {}. Exclude the objects from the webhook, policy or controller that changes them",
            objects.join("; ")
        );
        Contested { message, pause, stateful_set }
    }
}

/// Describes an object: its kind, its name, the fields that differ from the applied fields, and the managers of these
/// fields.
pub(super) fn describe<K: Resource<DynamicType = ()> + Serialize>(found: &K, desired: &Value) -> String {
    let value = serde_json::to_value(found).unwrap_or_default();
    let mut paths = BTreeSet::new();
    differences(&value, desired, &mut Vec::new(), &mut paths);
    let managed = found.meta().managed_fields.as_deref().unwrap_or_default();
    let mut fields: Vec<String> = paths.iter().take(MAX_FIELDS).map(|path| field(path, managed)).collect();
    if paths.len() > MAX_FIELDS {
        fields.push(format!("and {} more", paths.len() - MAX_FIELDS));
    }
    if fields.is_empty() {
        fields.push(format!("fields that the controller does not set ({})", changed_by(&managers(managed, &[]))));
    }
    let name = found.meta().name.as_deref().unwrap_or_default();
    format!("{} {name}: {}", K::kind(&()), fields.join(", ")).chars().take(MAX_TEXT).collect()
}

fn field(path: &[String], managed: &[ManagedFieldsEntry]) -> String {
    format!("{} ({})", path.join("."), changed_by(&managers(managed, path)))
}

/// Describes the clients that changed a field. If an admission webhook or policy changes a field, the API server
/// attributes the change to the client that sent the request, which is this controller. A changed field without
/// another manager was therefore changed by an admission webhook or policy.
fn changed_by(managers: &BTreeSet<&str>) -> String {
    match managers.is_empty() {
        true => "changed by an admission webhook or policy".to_owned(),
        false => format!("changed by {}", managers.iter().copied().collect::<Vec<_>>().join(" and ")),
    }
}

/// Collects the paths of the fields that differ from `desired`. Treats a list as a single field, and ignores fields
/// that `desired` does not contain.
fn differences(found: &Value, desired: &Value, path: &mut Vec<String>, paths: &mut BTreeSet<Vec<String>>) {
    // The API server normalizes quantities, so a difference is not a conflict.
    if path.last().is_some_and(|field| field == "resources") {
        return;
    }
    match (found, desired) {
        (_, Value::Null) => {}
        (Value::Object(found), Value::Object(desired)) => {
            for (field, desired) in desired {
                path.push(field.clone());
                differences(found.get(field).unwrap_or(&Value::Null), desired, path, paths);
                path.pop();
            }
        }
        (Value::Array(found), Value::Array(desired)) if found.len() == desired.len() => {
            let mut within = BTreeSet::new();
            for (found, desired) in found.iter().zip(desired) {
                differences(found, desired, &mut Vec::new(), &mut within);
            }
            if !within.is_empty() {
                paths.insert(path.clone());
            }
        }
        _ if found == desired => {}
        _ => drop(paths.insert(path.clone())),
    }
}

/// Returns the field managers of the field and its subfields, except this controller.
fn managers<'a>(managed: &'a [ManagedFieldsEntry], path: &[String]) -> BTreeSet<&'a str> {
    let owns = |entry: &&ManagedFieldsEntry| {
        let mut fields = entry.fields_v1.as_ref().map(|fields| &fields.0);
        for field in path {
            fields = fields.and_then(|fields| fields.get(format!("f:{field}")));
        }
        fields.is_some() && entry.subresource.as_deref().unwrap_or_default().is_empty()
    };
    let names = managed.iter().filter(owns).filter_map(|entry| entry.manager.as_deref());
    names.filter(|name| *name != FIELD_MANAGER).collect()
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Service;
    use serde_json::json;

    use super::*;

    #[test]
    fn each_differing_field_is_reported_with_its_field_manager() {
        let expected = json!({
            "metadata": {"name": "web-workspace", "labels": {"team": "a", "env": "dev"}, "annotations": null},
            "spec": {"clusterIP": "None", "ports": [{"name": "grpc", "port": 50051}], "type": "ClusterIP"},
        });
        let managed = |manager: &str, subresource: &str, fields: Value| {
            json!({"manager": manager, "operation": "Update", "subresource": subresource, "fieldsType": "FieldsV1",
                "fieldsV1": fields})
        };
        let found = |managed: Vec<Value>| -> Service {
            serde_json::from_value(json!({
                "metadata": {
                    "name": "web-workspace", "labels": {"team": "b", "env": "dev", "more": "x"}, "managedFields": managed,
                },
                "spec": {"clusterIP": "None", "ports": [{"name": "http", "port": 50051}], "type": "ClusterIP"},
            }))
            .unwrap()
        };
        let labels = json!({"f:metadata": {"f:labels": {"f:team": {}}}});
        let ports = json!({"f:spec": {"f:ports": {"k:{\"port\":50051,\"protocol\":\"TCP\"}": {"f:name": {}}}}});
        let rows = [
            (
                vec![managed(FIELD_MANAGER, "", labels.clone())],
                "metadata.labels.team (changed by an admission webhook or policy), spec.ports (changed by an admission webhook \
                 or policy)",
            ),
            (
                vec![
                    managed("kubectl-edit", "", labels),
                    managed("mesh", "", ports.clone()),
                    managed("x", "status", ports),
                ],
                "metadata.labels.team (changed by kubectl-edit), spec.ports (changed by mesh)",
            ),
        ];
        for (managed, text) in rows {
            assert_eq!(describe(&found(managed), &expected), format!("Service web-workspace: {text}"));
        }
        let many: serde_json::Map<String, Value> = (0..9).map(|n| (format!("label-{n}"), json!("x"))).collect();
        let text = describe(&found(Vec::new()), &json!({"metadata": {"labels": many}}));
        assert!(text.contains("label-4") && !text.contains("label-5") && text.ends_with("and 4 more"), "{text}");
    }
}

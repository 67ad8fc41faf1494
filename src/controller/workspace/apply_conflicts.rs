//! Detects Workspace objects that another client, such as a mutating webhook or a controller, changes after each
//! apply. Without a backoff, continuous applies would put load on the controller and the API server without any
//! effect.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use kube::Resource;
use serde::Serialize;
use serde_json::Value;
use tokio::time::Instant;

use crate::api::names::FIELD_MANAGER;

/// Maximum number of times that the controller applies the same content to outdated objects without a backoff.
const MAX_APPLIES: u32 = 5;
/// Initial backoff. Each further apply doubles the backoff, up to [`MAX_BACKOFF`].
const MIN_BACKOFF: Duration = Duration::from_secs(60);
const MAX_BACKOFF: Duration = Duration::from_secs(30 * 60);
/// Minimum delay after the last apply before the controller resets the apply count. The actual delay is either this
/// minimum or twice the backoff, whichever is longer.
const RESET_INTERVAL: Duration = Duration::from_secs(10 * 60);
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

/// Number of applies to outdated objects, by namespace and name of the Workspace. The counts exist only in memory and
/// start at zero after a restart.
#[derive(Default)]
pub(super) struct Applies(Mutex<HashMap<(String, String), Applied>>);

struct Applied {
    parts_hash: String,
    count: u32,
    last: Instant,
}

impl Applied {
    fn pause(&self) -> Duration {
        let doublings = self.count.saturating_sub(MAX_APPLIES).min(16);
        if self.count < MAX_APPLIES { Duration::ZERO } else { (MIN_BACKOFF * (1 << doublings)).min(MAX_BACKOFF) }
    }

    fn is_over(&self) -> bool {
        self.last.elapsed() > RESET_INTERVAL.max(self.pause() * 2)
    }
}

impl Applies {
    /// Records that the controller applied the content with the given hash to outdated objects.
    pub(super) fn record(&self, (namespace, name): (&str, &str), parts_hash: &str) {
        let mut known = self.lock();
        known.retain(|_, applied| !applied.is_over());
        let key = (namespace.to_owned(), name.to_owned());
        let before = known.get(&key).filter(|applied| applied.parts_hash == parts_hash).map_or(0, |a| a.count);
        let count = before.saturating_add(1);
        known.insert(key, Applied { parts_hash: parts_hash.to_owned(), count, last: Instant::now() });
    }

    /// Returns the remaining backoff for the content with the given hash, or `None` if the controller can apply the
    /// content now.
    pub(super) fn pause(&self, (namespace, name): (&str, &str), parts_hash: &str) -> Option<Duration> {
        let known = self.lock();
        let applied = known.get(&(namespace.to_owned(), name.to_owned()))?;
        let left = applied.pause().saturating_sub(applied.last.elapsed());
        (applied.parts_hash == parts_hash && !left.is_zero()).then_some(left)
    }

    /// Removes the state of a deleted Workspace.
    pub(super) fn forget(&self, (namespace, name): (&str, &str)) {
        self.lock().remove(&(namespace.to_owned(), name.to_owned()));
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<(String, String), Applied>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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

    const WEB: (&str, &str) = ("apps", "web");

    #[tokio::test(start_paused = true)]
    async fn repeated_applies_of_the_same_content_are_delayed() {
        let applies = Applies::default();
        for _ in 0..4 {
            applies.record(WEB, "hash");
            assert_eq!(applies.pause(WEB, "hash"), None);
        }
        for minutes in [1, 2, 4, 8, 16, 30, 30] {
            applies.record(WEB, "hash");
            let pause = Duration::from_secs(minutes * 60);
            assert_eq!(applies.pause(WEB, "hash"), Some(pause));
            assert_eq!(applies.pause(WEB, "other"), None, "other content is applied immediately");
            assert_eq!(applies.pause(("apps", "api"), "hash"), None);
            tokio::time::advance(pause).await;
            assert_eq!(applies.pause(WEB, "hash"), None, "the apply is retried");
        }
        tokio::time::advance(Duration::from_secs(3601)).await;
        applies.record(WEB, "hash");
        assert_eq!(applies.pause(WEB, "hash"), None, "the count is reset");
    }

    #[tokio::test(start_paused = true)]
    async fn changed_content_resets_the_apply_count() {
        let applies = Applies::default();
        (0..5).for_each(|_| applies.record(WEB, "hash"));
        applies.record(WEB, "other");
        assert_eq!((applies.pause(WEB, "hash"), applies.pause(WEB, "other")), (None, None));
    }

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

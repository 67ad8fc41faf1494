//! Detects changes that others make to a Stack's Workspace. The next run restores the fields that the Stack sets and keeps additional
//! fields.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use kube::ResourceExt;
use serde_json::{Value, json};

use crate::api::auto::Workspace;

/// Maximum number of remembered Workspaces. A forgotten Workspace is applied once more.
const MAX_REMEMBERED: usize = 1000;

/// UIDs of Workspaces that admission changed during an apply, for example with a mutating webhook, and the resulting generation. Applying
/// such a Workspace again would have no effect. Cheap to clone.
#[derive(Clone, Default)]
pub struct MutatedWorkspaces(Arc<Mutex<HashMap<String, Option<i64>>>>);

impl MutatedWorkspaces {
    /// Records the API server's response to an apply.
    pub fn record(&self, wanted: &Workspace, applied: &Workspace) {
        let Some(uid) = applied.uid() else { return };
        let mut generations = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !has_drifted(wanted, applied) {
            generations.remove(&uid);
            return;
        }
        if generations.len() >= MAX_REMEMBERED {
            generations.clear();
        }
        generations.insert(uid, applied.metadata.generation);
    }

    /// Whether the Workspace is still in the state that admission produced at the last apply.
    pub fn contains(&self, workspace: &Workspace) -> bool {
        let generations = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        workspace.uid().and_then(|uid| generations.get(&uid).copied()) == Some(workspace.metadata.generation)
    }
}

/// Whether a field of the wanted spec is missing or has another value.
pub fn has_drifted(wanted: &Workspace, live: &Workspace) -> bool {
    !is_part_of(&json!(wanted.spec), &json!(live.spec))
}

/// Whether `live` contains `wanted`; additional fields and list items are allowed. List items with a name are compared by name.
fn is_part_of(wanted: &Value, live: &Value) -> bool {
    match (wanted, live) {
        (Value::Object(wanted), Value::Object(live)) => wanted.iter().all(|(key, value)| match live.get(key) {
            Some(live) => is_part_of(value, live),
            // The API server drops null fields.
            None => value.is_null(),
        }),
        (Value::Array(wanted), Value::Array(live)) => {
            wanted.iter().all(|item| live.iter().any(|other| is_same_item(item, other) && is_part_of(item, other)))
        }
        _ => wanted == live,
    }
}

fn is_same_item(wanted: &Value, live: &Value) -> bool {
    wanted.get("name") == live.get("name")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::auto::WorkspaceSpec;

    fn workspace(generation: i64, spec: Value) -> Workspace {
        let spec: WorkspaceSpec = serde_json::from_value(spec).expect("a spec");
        let mut workspace = Workspace::new("app", spec);
        workspace.metadata.uid = Some("uid-1".to_owned());
        workspace.metadata.generation = Some(generation);
        workspace
    }

    fn wanted() -> Value {
        json!({
            "image": "pulumi", "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}],
            "stacks": [{"name": "dev", "config": [{"key": "k", "value": "v"}]}],
            "podTemplate": {"metadata": {"creationTimestamp": null}, "spec": {"priority": 1}},
        })
    }

    #[test]
    fn changed_or_removed_fields_are_drift_and_added_ones_are_not() {
        let rows = [
            ("nothing has changed", json!({}), false),
            ("a scalar has changed", json!({"image": "other"}), true),
            ("a field was removed", json!({"image": null}), true),
            ("a field was added", json!({"pulumiLogLevel": 3}), false),
            (
                "a variable has changed",
                json!({"env": [{"name": "A", "value": "9"}, {"name": "B", "value": "2"}]}),
                true,
            ),
            ("a variable was removed", json!({"env": [{"name": "B", "value": "2"}]}), true),
            (
                "variables were added and reordered",
                json!({"env": [{"name": "C", "value": "3"}, {"name": "B", "value": "2"}, {"name": "A", "value": "1"}]}),
                false,
            ),
            (
                "the config has changed",
                json!({"stacks": [{"name": "dev", "config": [{"key": "k", "value": "x"}]}]}),
                true,
            ),
            (
                "the artifact was set",
                json!({"artifact": {"url": "", "digest": "sha256:a", "revision": "x", "dir": ""}}),
                false,
            ),
            (
                "an empty timestamp was dropped",
                json!({"podTemplate": {"metadata": {}, "spec": {"priority": 1}}}),
                false,
            ),
            ("the pod has changed", json!({"podTemplate": {"metadata": {}, "spec": {"priority": 2}}}), true),
        ];
        for (name, changes, expected) in rows {
            let mut live = wanted();
            live.as_object_mut().expect("a map").extend(changes.as_object().expect("a map").clone());
            assert_eq!(has_drifted(&workspace(1, wanted()), &workspace(2, live)), expected, "{name}");
        }
    }

    #[test]
    fn a_workspace_mutated_by_a_webhook_is_applied_once_per_edit() {
        let mutated = MutatedWorkspaces::default();
        let wanted = workspace(1, wanted());
        let by_webhook = |generation| workspace(generation, json!({"image": "mirror/pulumi"}));
        assert!(!mutated.contains(&by_webhook(1)));
        mutated.record(&wanted, &by_webhook(2));
        assert!(mutated.contains(&by_webhook(2)));
        assert!(!mutated.contains(&by_webhook(3)), "it was edited since");
        mutated.record(&wanted, &wanted);
        assert!(!mutated.contains(&by_webhook(2)));
    }
}

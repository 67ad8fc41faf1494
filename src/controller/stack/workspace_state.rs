//! State of a Stack's Workspace: its readiness, the artifact in its pod, and its drift.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use kube::ResourceExt;
use serde_json::{Value, json};

use crate::api::auto::{ArtifactReference, Workspace};
use crate::api::conditions::workspace_reason;
use crate::source::{Origin, Resolved};

/// Maximum number of entries in [`MutatedWorkspaces`]. If a mutated Workspace has no entry, the controller applies the
/// Workspace again.
const MAX_RECORDED: usize = 1000;

pub enum Readiness {
    Ready,
    /// The conditions of the Workspace describe an earlier spec, or the Workspace has no conditions.
    Unobserved,
    /// The Workspace is idle and has no pod.
    Sleeping,
    Waiting(String),
    Failed(String),
    VersionTooLow(String),
    /// The agent failed to install the program's dependencies.
    NotInstalled(String),
    /// The pod is ready with its current source, but rejected a newer source as unusable.
    SourceRefused(String),
    /// The pod waits for the bytes of an artifact that the store lacks.
    LacksSource(String),
}

pub fn readiness(workspace: &Workspace) -> Readiness {
    let status = workspace.status.clone().unwrap_or_default();
    let Some(ready) = workspace.current_ready() else {
        return Readiness::Unobserved;
    };
    let message = format!("{}: {}", ready.reason, ready.message);
    // The message starts with the cause, because `kubectl get` truncates the end of the message.
    let waiting = format!("{} ({}); ", ready.message, ready.reason);
    match ready.reason.as_str() {
        _ if ready.status == "True" && workspace.is_asleep() => Readiness::Sleeping,
        _ if ready.status == "True" && status.artifact == workspace.spec.artifact => Readiness::Ready,
        workspace_reason::ARTIFACT_REFUSED => Readiness::SourceRefused(ready.message.clone()),
        workspace_reason::ARTIFACT_UNAVAILABLE => Readiness::LacksSource(waiting),
        workspace_reason::INSTALLATION_FAILED => Readiness::NotInstalled(message),
        workspace_reason::INCOMPATIBLE_CONFIGURATION => Readiness::VersionTooLow(message),
        workspace_reason::POD_FAILED | workspace_reason::SPEC_INVALID => Readiness::Failed(message),
        _ => Readiness::Waiting(waiting),
    }
}

/// Returns whether the Workspace's pod needs the bytes of this artifact. A new pod contains no artifact, even if a
/// sleeping Workspace has just woken up. A running pod keeps only one directory of an archive. If the spec selects
/// another directory, the pod therefore needs the archive again.
pub fn needs_bytes(workspace: &Workspace, artifact: &ArtifactReference) -> bool {
    let placed = workspace.status.as_ref().and_then(|status| status.artifact.as_ref());
    let is_placed = placed.is_some_and(|placed| placed.digest == artifact.digest && placed.dir == artifact.dir);
    let asks_for_it = workspace.spec.artifact.as_ref() == Some(artifact);
    let is_awaited = || asks_for_it && matches!(readiness(workspace), Readiness::LacksSource(_));
    !is_placed || workspace.is_asleep() || is_awaited()
}

/// Returns the artifact in the pod. Returns `None` if the spec of the Workspace contains another artifact.
pub fn in_place(workspace: &Workspace) -> Option<Resolved> {
    let reference = workspace.status.as_ref()?.artifact.as_ref()?;
    (workspace.spec.artifact.as_ref() == Some(reference)).then_some(())?;
    from_reference(reference)
}

/// Returns the artifact in the pod, even if the Workspace spec contains a newer artifact that the pod has not received
/// or has rejected.
pub fn last_in_place(workspace: &Workspace) -> Option<Resolved> {
    from_reference(workspace.status.as_ref()?.artifact.as_ref()?)
}

/// Converts a reference to a resolved artifact. The result contains no origin, so the controller cannot fetch this
/// artifact.
pub fn from_reference(reference: &ArtifactReference) -> Option<Resolved> {
    Some(Resolved {
        origin: Origin::Url(String::new()),
        revision: reference.revision.clone(),
        origin_revision: None,
        metadata: None,
        content_id: None,
        digest: reference.digest.clone(),
        directory: reference.dir.parse().ok()?,
    })
}

/// Workspaces that an admission webhook or policy changed during an apply. Maps the UID of each Workspace to its
/// generation after the apply. Another apply of such a Workspace would have no effect. Cheap to clone.
#[derive(Clone, Default)]
pub struct MutatedWorkspaces(Arc<Mutex<HashMap<String, Option<i64>>>>);

impl MutatedWorkspaces {
    /// Records the API server's response to an apply.
    pub fn record(&self, desired: &Workspace, applied: &Workspace) {
        let Some(uid) = applied.uid() else { return };
        let mut generations = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !has_drifted(desired, applied) {
            generations.remove(&uid);
            return;
        }
        if generations.len() >= MAX_RECORDED {
            generations.clear();
        }
        generations.insert(uid, applied.metadata.generation);
    }

    /// Returns whether an admission webhook or policy changed the Workspace during the last apply, and no other change
    /// followed.
    pub fn contains(&self, workspace: &Workspace) -> bool {
        let generations = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        workspace.uid().and_then(|uid| generations.get(&uid).copied()) == Some(workspace.metadata.generation)
    }
}

/// Returns whether the existing spec lacks a field of the desired spec or has a different value for the field. The
/// policy packs must be equal, because an additional policy pack or configuration can disable the desired policies.
pub fn has_drifted(desired: &Workspace, live: &Workspace) -> bool {
    let packs = &desired.spec.policy_packs;
    let has_other_packs = !packs.is_empty() && *packs != live.spec.policy_packs;
    has_other_packs || !is_part_of(&json!(desired.spec), &json!(live.spec))
}

/// Returns whether `live` contains `desired`. `live` can contain additional fields and list items. The function matches
/// list items that have the same name.
fn is_part_of(desired: &Value, live: &Value) -> bool {
    match (desired, live) {
        (Value::Object(desired), Value::Object(live)) => desired.iter().all(|(key, value)| match live.get(key) {
            Some(live) => is_part_of(value, live),
            // The API server drops null fields.
            None => value.is_null(),
        }),
        (Value::Array(desired), Value::Array(live)) => {
            desired.iter().all(|item| live.iter().any(|other| is_same_item(item, other) && is_part_of(item, other)))
        }
        _ => desired == live,
    }
}

fn is_same_item(desired: &Value, live: &Value) -> bool {
    desired.get("name") == live.get("name")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::auto::WorkspaceSpec;

    fn workspace(generation: i64, spec: Value) -> Workspace {
        let spec: WorkspaceSpec = serde_json::from_value(spec).expect("valid spec");
        let mut workspace = Workspace::new("app", spec);
        workspace.metadata.uid = Some("uid-1".to_owned());
        workspace.metadata.generation = Some(generation);
        workspace
    }

    fn live_workspace() -> Value {
        json!({
            "image": "pulumi", "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}],
            "stacks": [{"name": "dev", "config": [{"key": "k", "value": "v"}]}],
            "podTemplate": {"metadata": {"creationTimestamp": null}, "spec": {"priority": 1}},
        })
    }

    #[test]
    fn changed_or_removed_fields_are_drift_and_added_fields_are_not() {
        let rows = [
            ("unchanged", json!({}), false),
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
                json!({"artifact": {"url": "", "digest": crate::artifact::Digest::of(b"a"), "revision": "x", "dir": ""}}),
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
            let mut live = live_workspace();
            live.as_object_mut().expect("is a map").extend(changes.as_object().expect("is a map").clone());
            assert_eq!(has_drifted(&workspace(1, live_workspace()), &workspace(2, live)), expected, "{name}");
        }
    }

    #[test]
    fn additional_policy_packs_and_configurations_are_drift() {
        let artifact = json!({"digest": crate::artifact::Digest::of(b"pack")});
        let pack = |name: &str, config: Value| json!({"name": name, "artifact": artifact, "config": config});
        let with = |packs: &[Value]| workspace(1, json!({ "policyPacks": packs }));
        let house = || pack("cluster/house", json!({}));
        let disabled = || json!({"all": "disabled"});
        let rows = [
            ("unchanged", vec![house()], false),
            ("disabled", vec![pack("cluster/house", disabled())], true),
            ("disabled by another entry", vec![house(), pack("mine", disabled())], true),
            ("removed", vec![], true),
        ];
        for (name, live, expected) in rows {
            assert_eq!(has_drifted(&with(&[house()]), &with(&live)), expected, "{name}");
        }
        let own = with(&[pack("mine", json!({}))]);
        assert!(!has_drifted(&with(&[]), &own), "a Stack without policy packs keeps those of other clients");
    }

    #[test]
    fn a_workspace_that_a_webhook_changes_is_applied_once_per_edit() {
        let mutated = MutatedWorkspaces::default();
        let expected = workspace(1, live_workspace());
        let by_webhook = |generation| workspace(generation, json!({"image": "mirror/pulumi"}));
        assert!(!mutated.contains(&by_webhook(1)));
        mutated.record(&expected, &by_webhook(2));
        assert!(mutated.contains(&by_webhook(2)));
        assert!(!mutated.contains(&by_webhook(3)), "the Workspace was edited after the apply");
        mutated.record(&expected, &expected);
        assert!(!mutated.contains(&by_webhook(2)));
    }
}

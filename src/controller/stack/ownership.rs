//! Ownership of a Stack's objects: owner references and labels.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, OwnerReference};
use kube::{Resource, ResourceExt};

use crate::api::auto::{Update, UpdateKind, Workspace};
use crate::api::conditions::{self, STALLED, stack_reason};
use crate::api::names;
use crate::api::pulumi::Stack;

/// Workspace annotation with the hash of the desired metadata and spec.
pub const ANNOTATION_DESIRED_HASH: &str = "pulumi.com/desired-hash";

/// Returns the owner references for a Stack's objects. Returns `None` if the Stack is being deleted. In a foreground
/// deletion, the garbage collector would immediately delete the owned objects, which the destroy still requires. The
/// controller itself deletes the objects before it removes the Stack's finalizer.
pub fn references(stack: &Stack) -> Option<Vec<OwnerReference>> {
    let reference = OwnerReference {
        api_version: Stack::api_version(&()).into_owned(),
        kind: Stack::kind(&()).into_owned(),
        name: stack.name_any(),
        uid: stack.uid().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    };
    stack.metadata.deletion_timestamp.is_none().then(|| vec![reference])
}

/// Returns the labels for all objects that belong to a Stack.
pub fn labels(stack: &Stack) -> BTreeMap<String, String> {
    let shard = stack.labels().get_key_value(names::LABEL_SHARD).map(|(key, value)| (key.clone(), value.clone()));
    let own = [
        (names::LABEL_STACK_COMPONENT, "stack".to_owned()),
        (names::LABEL_STACK_NAME, stack.name_any()),
        (names::LABEL_WORKSPACE_NAME, stack.name_any()),
    ]
    .map(|(key, value)| (key.to_owned(), value));
    own.into_iter().chain(shard).collect()
}

/// Returns the name of the Stack that owns an object. If the object has no owner reference, for example after a
/// deletion with the propagation policy `Orphan`, the labels identify the Stack.
pub fn stack_of<K: Resource>(object: &K) -> Option<String> {
    let is_stack = |o: &&OwnerReference| o.kind == "Stack" && o.api_version.starts_with("pulumi.com/");
    let owner = object.owner_references().iter().find(is_stack).map(|owner| owner.name.clone());
    let label = |name: &str| object.labels().get(name);
    let is_made = label(names::LABEL_STACK_COMPONENT).is_some_and(|component| component == "stack");
    owner.or_else(|| label(names::LABEL_WORKSPACE_NAME).filter(|_| is_made).cloned())
}

/// Returns the reason why an Update that a Stack has created must not start: it is not the recorded run of the Stack, or
/// it destroys a Stack that is not being deleted. The controller records a run before it creates the Update, so such an
/// Update comes from a backup or is a copy. `stack` is the Stack with the name of the Workspace. Returns `None` for an
/// Update that a user has created.
pub fn unrecorded_run(stack: Option<&Stack>, update: &Update) -> Option<String> {
    let name = stack_of(update)?;
    let is_due = |stack: &&Stack| {
        let current = stack.status.as_ref().and_then(|status| status.current_update.as_deref());
        let is_deleted = stack.metadata.deletion_timestamp.is_some();
        current.is_some_and(|current| current.name == update.name_any())
            && (is_deleted || update.spec.kind != UpdateKind::Destroy)
    };
    stack.filter(is_due).is_none().then(|| {
        format!(
            "the Update is not the recorded run of Stack {name}, for example because a backup contained it; request a run of the \
             Stack with the annotation reconcile.fluxcd.io/requestedAt"
        )
    })
}

/// Returns the reason why an Update that a user has created must not start in the Workspace of a Stack whose Pulumi stack
/// another Stack manages. Only the runs of a Stack contain the Pulumi stacks of the other Stacks.
pub fn run_in_a_conflict(stack: &Stack, update: &Update) -> Option<String> {
    let status = stack.status.as_ref()?;
    if status.current_update.as_deref().is_some_and(|current| current.name == update.name_any()) {
        return None;
    }
    let is_conflict =
        |stalled: &&Condition| stalled.status == "True" && stalled.reason == stack_reason::UPDATE_CONFLICT;
    let stalled = conditions::find(&status.conditions, STALLED).filter(is_conflict)?;
    Some(format!(
        "an Update that a user creates cannot start an up, refresh or destroy in the Workspace of Stack {}: {}",
        stack.name_any(),
        stalled.message
    ))
}

/// Returns whether the Stack owns this Workspace, which has the name of the Stack.
pub fn owns(stack: &Stack, workspace: &Workspace) -> bool {
    desired_hash(workspace).is_some() || stack_of(workspace) == Some(stack.name_any())
}

/// Returns the hash in a Workspace's annotation.
pub fn desired_hash(workspace: &Workspace) -> Option<&str> {
    workspace.metadata.annotations.as_ref()?.get(ANNOTATION_DESIRED_HASH).map(String::as_str)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use serde_json::{Value, json};

    use super::*;
    use crate::api::pulumi::StackSpec;

    fn workspace(metadata: Value) -> Workspace {
        let mut workspace = json!({"metadata": {"name": "app", "namespace": "apps"}, "spec": {}});
        workspace["metadata"].as_object_mut().expect("a map").extend(metadata.as_object().expect("a map").clone());
        serde_json::from_value(workspace).expect("valid Workspace")
    }

    #[test]
    fn ownership_is_detected_with_and_without_an_owner_reference() {
        let stack = Stack::new("app", StackSpec::default());
        let owner = |kind: &str, version: &str| json!({"ownerReferences": [{"kind": kind, "apiVersion": version, "name": "app", "uid": "u"}]});
        let labels = json!({"labels": {"pulumi.com/component": "stack", "auto.pulumi.com/workspace-name": "app"}});
        let rows = [
            ("owned", owner("Stack", "pulumi.com/v1"), true),
            ("owned, with the label of an older version", owner("Stack", "pulumi.com/v1alpha1"), true),
            ("another kind", owner("Stack", "example.com/v1"), false),
            ("orphaned", labels, true),
            ("only the hash annotation", json!({"annotations": {"pulumi.com/desired-hash": "a"}}), true),
            ("a user's", json!({}), false),
            ("created by a user, with a label", json!({"labels": {"auto.pulumi.com/workspace-name": "app"}}), false),
        ];
        for (name, metadata, expected) in rows {
            assert_eq!(owns(&stack, &workspace(metadata)), expected, "{name}");
        }
    }

    #[test]
    fn only_the_stack_itself_runs_in_its_workspace_during_a_conflict() {
        let stack = |reason: &str| -> Stack {
            let stalled = json!({"type": "Stalled", "status": "True", "reason": reason, "message": "Stack api manages stack dev",
                "lastTransitionTime": "2026-01-01T00:00:00Z"});
            let status = json!({"conditions": [stalled], "currentUpdate": {"name": "web-1", "type": "up"}});
            serde_json::from_value(json!({"metadata": {"name": "web"}, "spec": {"stack": "dev"}, "status": status}))
                .expect("valid Stack")
        };
        let update = |name: &str| Update::new(name, crate::api::auto::UpdateSpec::default());
        let refused = run_in_a_conflict(&stack("UpdateConflict"), &update("by-hand")).expect("refused");
        assert!(refused.contains("Workspace of Stack web: Stack api manages stack dev"), "{refused}");
        assert_eq!(run_in_a_conflict(&stack("UpdateConflict"), &update("web-1")), None);
        assert_eq!(run_in_a_conflict(&stack("UpdateFailed"), &update("by-hand")), None);
    }

    #[test]
    fn an_update_from_a_backup_is_not_the_recorded_run() {
        let stack = |current: Option<&str>| -> Stack {
            let current = current.map(|name| json!({"name": name, "type": "up"}));
            let metadata = json!({"name": "web", "deletionTimestamp": "2026-01-01T00:00:00Z"});
            let status = json!({"conditions": [], "currentUpdate": current});
            serde_json::from_value(json!({"metadata": metadata, "spec": {"stack": "dev"}, "status": status}))
                .expect("valid Stack")
        };
        let restored = |mut stack: Stack| {
            stack.metadata.deletion_timestamp = None;
            stack
        };
        let labels = json!({"pulumi.com/component": "stack", "auto.pulumi.com/workspace-name": "web"});
        let owner = json!([{"apiVersion": "pulumi.com/v1", "kind": "Stack", "name": "web", "uid": "uid-1"}]);
        let update = |metadata: Value| -> Update {
            let mut update =
                json!({"metadata": {"name": "web-1"}, "spec": {"workspaceName": "web", "type": "destroy"}});
            update["metadata"].as_object_mut().expect("a map").extend(metadata.as_object().expect("a map").clone());
            serde_json::from_value(update).expect("valid Update")
        };
        let (labeled, owned) = (|| update(json!({"labels": labels})), || update(json!({"ownerReferences": owner})));
        let up = |mut update: Update| {
            update.spec.kind = UpdateKind::Up;
            update
        };
        let rows = [
            ("the recorded run", Some(stack(Some("web-1"))), owned(), false),
            ("the recorded run without an owner", Some(stack(Some("web-1"))), labeled(), false),
            ("an up of a Stack that is not being deleted", Some(restored(stack(Some("web-1")))), up(owned()), false),
            ("a destroy of a Stack that is not being deleted", Some(restored(stack(Some("web-1")))), owned(), true),
            ("another run is recorded", Some(stack(Some("web-2"))), owned(), true),
            ("no run is recorded", Some(stack(None)), labeled(), true),
            ("the Stack does not exist", None, labeled(), true),
            ("a user has created the Update", Some(stack(None)), update(json!({})), false),
            ("a user has created the Update without a Stack", None, update(json!({})), false),
        ];
        for (case, stack, update, expected) in rows {
            assert_eq!(unrecorded_run(stack.as_ref(), &update).is_some(), expected, "{case}");
        }
    }

    #[test]
    fn objects_created_during_deletion_have_no_owner_reference() {
        let mut stack = Stack::new("app", StackSpec::default());
        assert_eq!(references(&stack).expect("owned").len(), 1);
        stack.metadata.deletion_timestamp = Some(Time(jiff::Timestamp::UNIX_EPOCH));
        assert_eq!(references(&stack), None);
    }
}

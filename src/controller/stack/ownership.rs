//! What belongs to a Stack, and how it is told. Pure.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{Resource, ResourceExt};

use crate::api::auto::Workspace;
use crate::api::names;
use crate::api::pulumi::Stack;

/// On a Workspace: a hash of what its Stack wants of it.
pub const ANNOTATION_WANTED: &str = "pulumi.com/wanted-hash";

/// The ownerReferences of what a Stack makes. One that is being deleted gives none: in a foreground deletion the garbage collector
/// would at once take away what a destroy needs. The Stack removes all of it before it lets go.
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

/// The name of the Stack that an object belongs to: its owner's, else by the labels of what a Stack makes. A deletion that
/// orphans takes the references away.
pub fn stack_of<K: Resource>(object: &K) -> Option<String> {
    let is_stack = |o: &&OwnerReference| o.kind == "Stack" && o.api_version.starts_with("pulumi.com/");
    let owner = object.owner_references().iter().find(is_stack).map(|owner| owner.name.clone());
    let label = |name: &str| object.labels().get(name);
    let is_made = label(names::LABEL_STACK_COMPONENT).is_some_and(|component| component == "stack");
    owner.or_else(|| label(names::LABEL_WORKSPACE_NAME).filter(|_| is_made).cloned())
}

/// Whether the Workspace of a Stack's name is the Stack's.
pub fn is_of(stack: &Stack, workspace: &Workspace) -> bool {
    wanted_hash(workspace).is_some() || stack_of(workspace) == Some(stack.name_any())
}

/// The hash that a planned or a live Workspace carries.
pub fn wanted_hash(workspace: &Workspace) -> Option<&str> {
    workspace.metadata.annotations.as_ref()?.get(ANNOTATION_WANTED).map(String::as_str)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use serde_json::{Value, json};

    use super::*;
    use crate::api::pulumi::StackSpec;

    fn workspace(metadata: Value) -> Workspace {
        let mut workspace = json!({"metadata": {"name": "app", "namespace": "apps"}, "spec": {}});
        workspace["metadata"].as_object_mut().expect("fields").extend(metadata.as_object().expect("fields").clone());
        serde_json::from_value(workspace).expect("a workspace")
    }

    #[test]
    fn what_belongs_to_a_stack_is_known_with_and_without_a_reference() {
        let stack = Stack::new("app", StackSpec::default());
        let owner = |kind: &str, version: &str| json!({"ownerReferences": [{"kind": kind, "apiVersion": version, "name": "app", "uid": "u"}]});
        let labels = json!({"labels": {"pulumi.com/component": "stack", "auto.pulumi.com/workspace-name": "app"}});
        let rows = [
            ("owned", owner("Stack", "pulumi.com/v1"), true),
            ("owned as an older version", owner("Stack", "pulumi.com/v1alpha1"), true),
            ("another's kind", owner("Stack", "example.com/v1"), false),
            ("orphaned", labels, true),
            ("with its hash alone", json!({"annotations": {"pulumi.com/wanted-hash": "a"}}), true),
            ("a person's", json!({}), false),
            ("a person's, with a label", json!({"labels": {"auto.pulumi.com/workspace-name": "app"}}), false),
        ];
        for (name, metadata, wanted) in rows {
            assert_eq!(is_of(&stack, &workspace(metadata)), wanted, "{name}");
        }
    }

    #[test]
    fn what_a_stack_makes_while_it_is_deleted_is_not_the_garbage_collectors() {
        let mut stack = Stack::new("app", StackSpec::default());
        assert_eq!(references(&stack).expect("owned").len(), 1);
        stack.metadata.deletion_timestamp = Some(Time(jiff::Timestamp::UNIX_EPOCH));
        assert_eq!(references(&stack), None);
    }
}

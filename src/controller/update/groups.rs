//! Groups by which Updates are indexed.

use kube::ResourceExt;

use crate::api::auto::Update;
use crate::controller::stack::stack_of;
use crate::runtime::backoff::ObjectKey;
use crate::runtime::index::{IndexWriter, Indexed, indexed};

/// Group that an Update belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum UpdateGroup {
    /// Workspace in which the Update runs.
    Workspace(ObjectKey),
    /// Stack that created the Update.
    Stack(ObjectKey),
}

impl UpdateGroup {
    pub fn workspace(namespace: &str, name: &str) -> Self {
        UpdateGroup::Workspace((namespace.to_owned(), name.to_owned()))
    }

    pub fn stack(namespace: &str, name: &str) -> Self {
        UpdateGroup::Stack((namespace.to_owned(), name.to_owned()))
    }
}

/// Updates, indexed by group.
pub type Updates = Indexed<Update, UpdateGroup>;

/// Returns an empty store of Updates with its writer.
pub fn updates() -> (Updates, IndexWriter<Update, UpdateGroup>) {
    indexed(groups_of)
}

fn groups_of(update: &Update) -> Vec<UpdateGroup> {
    let namespace = update.namespace().unwrap_or_default();
    let workspace = UpdateGroup::workspace(&namespace, &update.spec.workspace_name);
    let stack = stack_of(update).map(|stack| UpdateGroup::stack(&namespace, &stack));
    std::iter::once(workspace).chain(stack).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_update_is_indexed_by_its_workspace_and_stack() {
        let update = |labels: serde_json::Value| -> Update {
            serde_json::from_value(json!({
                "apiVersion": "auto.pulumi.com/v1alpha1", "kind": "Update",
                "metadata": {"namespace": "apps", "name": "app-1", "labels": labels},
                "spec": {"workspaceName": "app", "stackName": "dev", "type": "up"},
            }))
            .expect("an Update")
        };
        let of_workspace = UpdateGroup::workspace("apps", "app");
        assert_eq!(groups_of(&update(json!({}))), std::slice::from_ref(&of_workspace));
        let made = json!({"pulumi.com/component": "stack", "auto.pulumi.com/workspace-name": "app"});
        assert_eq!(groups_of(&update(made)), [of_workspace, UpdateGroup::stack("apps", "app")]);
    }
}

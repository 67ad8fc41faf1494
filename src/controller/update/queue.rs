//! Index of the Updates by Workspace and by Stack, and the position of each run in the queue for run slots.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;

use crate::api::auto::Update;
use crate::controller::stack::stack_of;
use crate::runtime::backoff::ObjectKey;
use crate::runtime::index::{IndexWriter, Indexed, indexed};
use crate::runtime::run_limiter::Run;

/// Group of Updates.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum UpdateGroup {
    /// Updates that run in this Workspace.
    Workspace(ObjectKey),
    /// Updates that this Stack created.
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

/// Returns an empty store of Updates and its writer.
pub fn updates() -> (Updates, IndexWriter<Update, UpdateGroup>) {
    indexed(groups_of)
}

fn groups_of(update: &Update) -> Vec<UpdateGroup> {
    let namespace = update.namespace().unwrap_or_default();
    let workspace = UpdateGroup::workspace(&namespace, &update.spec.workspace_name);
    let stack = stack_of(update).map(|stack| UpdateGroup::stack(&namespace, &stack));
    std::iter::once(workspace).chain(stack).collect()
}

/// Returns the run of an Update in a pod for the run limiter. `siblings` contains all Updates of the same Workspace.
pub fn run_in(pod: &Pod, update: &Update, siblings: &[Arc<Update>]) -> Run {
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
    run_on(node.unwrap_or_default(), update, siblings)
}

/// Returns the run of an Update on a node.
fn run_on(node: &str, update: &Update, siblings: &[Arc<Update>]) -> Run {
    Run {
        uid: update.uid().unwrap_or_default(),
        namespace: update.namespace().unwrap_or_default(),
        workspace: update.spec.workspace_name.clone(),
        node: node.to_owned(),
        priority: update.spec.priority.unwrap_or_default(),
        pending_since: pending_since(update, siblings),
    }
}

/// Returns all open runs with their Updates. After a restart, these are the runs that an earlier process has started.
pub fn open_runs(updates: &[Arc<Update>]) -> Vec<(Run, ObjectRef<Update>)> {
    let open = updates.iter().filter(|update| !update.is_complete());
    let bound = open.filter_map(|update| Some((update, update.status.as_ref()?.run.as_ref()?)));
    bound
        .map(|(update, binding)| (run_on(&binding.node_name, update, &[]), ObjectRef::from_obj(update.as_ref())))
        .collect()
}

/// Returns the time at which the run became due. A Stack sets this time in its Updates. The runs in a Workspace without
/// a Stack share one position in the queue: each run becomes due at the creation of its Update or at the last start of
/// a run in the Workspace, whichever is later. Creating many Updates at the same time therefore has no advantage.
fn pending_since(update: &Update, siblings: &[Arc<Update>]) -> Timestamp {
    if let Some(since) = &update.spec.pending_since {
        return since.0;
    }
    let started = siblings.iter().filter_map(|other| other.status.as_ref()?.start_time.as_ref());
    let last_start = started.map(|time| time.0).max();
    let created = update.creation_timestamp().map(|time| time.0).unwrap_or_default();
    last_start.map_or(created, |last| last.max(created))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use serde_json::json;

    use super::*;
    use crate::api::auto::{RunBinding, UpdateSpec, UpdateStatus};
    use crate::api::conditions::{self, COMPLETE, ConditionUpdate, Status};

    fn time(second: i64) -> Option<Time> {
        Timestamp::from_second(second).ok().map(Time)
    }

    fn update(created: i64, started: Option<i64>) -> Update {
        let mut update =
            Update::new("by-hand", UpdateSpec { workspace_name: "web".to_owned(), ..UpdateSpec::default() });
        update.metadata.creation_timestamp = time(created);
        let start_time = started.and_then(time);
        update.status = Some(UpdateStatus { start_time, ..UpdateStatus::default() });
        update
    }

    #[test]
    fn updates_of_one_workspace_share_one_queue_position() {
        let siblings: Vec<_> = [update(5, Some(50)), update(6, Some(70)), update(10, None)].map(Arc::new).into();
        let since = |update: &Update, siblings| pending_since(update, siblings).as_second();
        assert_eq!(since(&update(10, None), &[]), 10);
        assert_eq!(since(&update(10, None), &siblings), 70, "start of the last run");
        assert_eq!(since(&update(100, None), &siblings), 100);
        let mut of_stack = update(10, None);
        of_stack.spec.pending_since = time(20);
        assert_eq!(since(&of_stack, &siblings), 20, "the Stack sets the time");
    }

    #[test]
    fn a_run_is_queued_with_its_node_and_its_priority() {
        let pod = json!({"metadata": {"name": "web-workspace-0"}, "spec": {"nodeName": "n1", "containers": []}});
        let pod: Pod = serde_json::from_value(pod).expect("valid pod");
        let mut update = update(10, None);
        update.metadata.uid = Some("uid-1".to_owned());
        update.metadata.namespace = Some("apps".to_owned());
        update.spec.priority = Some(-3);
        let expected = Run {
            uid: "uid-1".to_owned(),
            namespace: "apps".to_owned(),
            workspace: "web".to_owned(),
            node: "n1".to_owned(),
            priority: -3,
            pending_since: Timestamp::from_second(10).expect("timestamp in range"),
        };
        assert_eq!(run_in(&pod, &update, &[]), expected);
    }

    #[test]
    fn runs_stay_open_across_restarts_until_their_end_is_recorded() {
        let bound = |uid: &str| {
            let mut update = update(10, Some(20));
            update.metadata.uid = Some(uid.to_owned());
            update.metadata.namespace = Some("apps".to_owned());
            let run = RunBinding { node_name: "n1".to_owned(), ..RunBinding::default() };
            update.status.get_or_insert_default().run = Some(run);
            update
        };
        let mut ended = bound("ended");
        let condition = ConditionUpdate { kind: COMPLETE, status: Status::True, reason: "Updated", message: "" };
        let at = Timestamp::from_second(30).expect("timestamp in range");
        conditions::set(&mut ended.status.get_or_insert_default().conditions, &condition, 1, at);
        let all: Vec<_> = [bound("open"), ended, update(10, None)].map(Arc::new).into();
        let open = open_runs(&all);
        let found: Vec<_> = open.iter().map(|(run, _)| (run.uid.as_str(), run.node.as_str())).collect();
        assert_eq!(found, [("open", "n1")]);
        assert_eq!(open[0].1, ObjectRef::new("by-hand").within("apps"));
    }

    #[test]
    fn an_update_is_indexed_by_its_workspace_and_stack() {
        let update = |labels: serde_json::Value| -> Update {
            serde_json::from_value(json!({
                "apiVersion": "auto.pulumi.com/v1alpha1", "kind": "Update",
                "metadata": {"namespace": "apps", "name": "app-1", "labels": labels},
                "spec": {"workspaceName": "app", "stackName": "dev", "type": "up"},
            }))
            .expect("valid Update")
        };
        let of_workspace = UpdateGroup::workspace("apps", "app");
        assert_eq!(groups_of(&update(json!({}))), std::slice::from_ref(&of_workspace));
        let made = json!({"pulumi.com/component": "stack", "auto.pulumi.com/workspace-name": "app"});
        assert_eq!(groups_of(&update(made)), [of_workspace, UpdateGroup::stack("apps", "app")]);
    }
}

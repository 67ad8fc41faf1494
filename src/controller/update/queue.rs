//! Indexes the Updates by Workspace and by Stack, and determines the position of each run in the run slot queue.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

use crate::api::auto::Update;
use crate::api::pulumi::BoundConcurrencyGroup;
use crate::controller::stack::stack_of;
use crate::runtime::backoff::ObjectKey;
use crate::runtime::index::{IndexWriter, Indexed, indexed};
use crate::runtime::run_limiter::{Group, GroupKey, Run, Share};

/// Group that contains the Updates of one Workspace or one Stack.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum UpdateGroup {
    /// Updates that run in the given Workspace.
    Workspace(ObjectKey),
    /// Updates that the given Stack created.
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

/// Returns an empty Update store and its writer.
pub fn updates() -> (Updates, IndexWriter<Update, UpdateGroup>) {
    indexed(groups_of)
}

fn groups_of(update: &Update) -> Vec<UpdateGroup> {
    let namespace = update.namespace().unwrap_or_default();
    let workspace = UpdateGroup::workspace(&namespace, &update.spec.workspace_name);
    let stack = stack_of(update).map(|stack| UpdateGroup::stack(&namespace, &stack));
    std::iter::once(workspace).chain(stack).collect()
}

/// Returns the run of an Update as the run limiter represents it. The run executes in `pod`. `siblings` contains all
/// Updates of the same Workspace.
pub fn run_in(pod: &Pod, update: &Update, siblings: &[Arc<Update>]) -> Run {
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
    run_on(node.unwrap_or_default(), update, siblings)
}

/// Returns the run of an Update as the run limiter represents it. The run executes on `node`.
pub fn run_on(node: &str, update: &Update, siblings: &[Arc<Update>]) -> Run {
    Run {
        uid: update.uid().unwrap_or_default(),
        namespace: update.namespace().unwrap_or_default(),
        workspace: update.spec.workspace_name.clone(),
        node: node.to_owned(),
        priority: update.spec.priority.unwrap_or_default(),
        is_background: update.spec.background.unwrap_or_default(),
        pending_since: pending_since(update, siblings),
        created: update.creation_timestamp().map(|time| time.0).unwrap_or_default(),
        group: bound_group(update),
        share: Share::default(),
        expected: expected_duration(update, siblings),
        started: update.status.as_ref().and_then(|status| status.start_time.as_ref()).map(|time| time.0),
    }
}

/// Returns the concurrency group that the run binding contains. Changes to the Stack or to the namespace annotations
/// therefore do not affect an open run.
fn bound_group(update: &Update) -> Option<Group> {
    let bound = update.status.as_ref()?.run.as_ref()?.concurrency_group.as_ref()?;
    let namespace = update.namespace().filter(|_| !bound.shared.unwrap_or_default());
    let key = GroupKey { namespace, name: bound.name.clone() };
    Some(Group { key, limit: usize::try_from(bound.limit).unwrap_or(usize::MAX) })
}

/// Returns the concurrency group of a run that is not bound yet. The group belongs to the namespace, unless both the
/// flag `--concurrency-groups` and the namespace annotation contain the group name. A tenant can therefore never use
/// the slots of a group that belongs to another namespace.
pub fn group_of(update: &Update, shared: &BTreeSet<String>, limits: &BTreeMap<String, u32>) -> Option<Group> {
    let group = update.spec.concurrency_group.as_ref()?;
    let name = group.name.clone();
    let (namespace, limit) = match limits.get(&name).filter(|_| shared.contains(&name)) {
        Some(limit) => (None, *limit),
        None => (Some(update.namespace().unwrap_or_default()), group.local_limit()),
    };
    Some(Group { key: GroupKey { namespace, name }, limit: usize::try_from(limit).unwrap_or(usize::MAX) })
}

/// Converts a concurrency group for the run binding.
pub fn binding_of(group: &Group) -> BoundConcurrencyGroup {
    BoundConcurrencyGroup {
        name: group.key.name.clone(),
        limit: u32::try_from(group.limit).unwrap_or(u32::MAX),
        shared: group.key.namespace.is_none().then_some(true),
    }
}

/// Returns the median duration of the Workspace's completed runs of the same kind, or `None` if there is no such run.
fn expected_duration(update: &Update, siblings: &[Arc<Update>]) -> Option<SignedDuration> {
    let kind = |update: &Update| (update.spec.kind, update.spec.preview_of);
    let ended = siblings.iter().filter(|other| other.is_complete() && kind(other) == kind(update));
    let durations = ended.filter_map(|other| {
        let status = other.status.as_ref()?;
        // A run that did not start has no binding.
        status.run.as_ref()?;
        Some(status.end_time.as_ref()?.0.duration_since(status.start_time.as_ref()?.0))
    });
    let mut durations: Vec<SignedDuration> = durations.filter(|duration| !duration.is_negative()).collect();
    durations.sort_unstable();
    durations.get(durations.len() / 2).copied()
}

/// Returns all open runs with their Updates. After a restart, an earlier controller process has started these runs.
pub fn open_runs(updates: &[Arc<Update>]) -> Vec<(Run, Arc<Update>)> {
    let open = updates.iter().filter(|update| !update.is_complete());
    let bound = open.filter_map(|update| Some((update, update.status.as_ref()?.run.as_ref()?)));
    bound
        .map(|(update, binding)| {
            let is_sibling = |other: &&Arc<Update>| {
                other.metadata.namespace == update.metadata.namespace
                    && other.spec.workspace_name == update.spec.workspace_name
            };
            let siblings: Vec<_> = updates.iter().filter(is_sibling).cloned().collect();
            (run_on(&binding.node_name, update, &siblings), update.clone())
        })
        .collect()
}

/// Returns the time at which the run became due. The Stack controller sets this time in the Updates that it creates.
/// The run of any other Update becomes due when the Update is created or when a run last started in the Workspace,
/// whichever is later. The runs in a Workspace therefore share a single position in the queue, and a user gains no
/// advantage from creating many Updates.
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
    use crate::api::auto::{RunBinding, UpdateKind, UpdateSpec, UpdateStatus};
    use crate::api::conditions::{self, COMPLETE, ConditionUpdate, Status};
    use crate::api::pulumi::ConcurrencyGroup;

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
            created: Timestamp::from_second(10).expect("timestamp in range"),
            ..Run::default()
        };
        assert_eq!(run_in(&pod, &update, &[]), expected);
        update.spec.pending_since = time(1);
        let pending_since = Timestamp::from_second(1).expect("timestamp in range");
        assert_eq!(
            run_in(&pod, &update, &[]),
            Run { pending_since, ..expected },
            "only the API server sets the creation time"
        );
    }

    #[test]
    fn only_an_administrator_shares_a_group_between_namespaces() {
        let (shared, limits) = (BTreeSet::from(["aws-prod".to_owned()]), BTreeMap::from([("aws-prod".to_owned(), 4)]));
        let mut update = update(10, None);
        update.metadata.namespace = Some("apps".to_owned());
        assert_eq!(group_of(&update, &shared, &limits), None);
        let named = ConcurrencyGroup { name: "aws-prod".to_owned(), limit: Some(2) };
        update.spec.concurrency_group = Some(named);
        let group = |namespace: Option<&str>, limit| {
            let key = GroupKey { namespace: namespace.map(str::to_owned), name: "aws-prod".to_owned() };
            Some(Group { key, limit })
        };
        let rows = [
            ("shared", shared.clone(), limits.clone(), group(None, 4)),
            ("not permitted by the annotation", BTreeSet::new(), limits, group(Some("apps"), 2)),
            ("not in the flag", shared, BTreeMap::new(), group(Some("apps"), 2)),
        ];
        for (name, shared, limits, expected) in rows {
            let found = group_of(&update, &shared, &limits);
            assert_eq!(found, expected, "{name}");
            // After a restart, the binding contains the same group.
            let concurrency_group = found.as_ref().map(binding_of);
            update.status.get_or_insert_default().run = Some(RunBinding { concurrency_group, ..RunBinding::default() });
            assert_eq!(bound_group(&update), expected, "{name}");
        }
        update.spec.concurrency_group = Some(ConcurrencyGroup { name: "aws-prod".to_owned(), limit: None });
        assert_eq!(group_of(&update, &BTreeSet::new(), &BTreeMap::new()), group(Some("apps"), 1), "default");
    }

    #[test]
    fn the_expected_duration_is_the_median_of_runs_of_the_same_kind() {
        let ended = |seconds: i64, kind: UpdateKind| {
            let mut update = update(10, Some(100));
            update.spec.kind = kind;
            let condition = ConditionUpdate { kind: COMPLETE, status: Status::True, reason: "Updated", message: "" };
            let status = update.status.get_or_insert_default();
            (status.end_time, status.run) = (time(100 + seconds), Some(RunBinding::default()));
            let at = Timestamp::from_second(100 + seconds).expect("timestamp in range");
            conditions::set(&mut status.conditions, &condition, 1, at);
            Arc::new(update)
        };
        let mut next = update(10, None);
        next.spec.kind = UpdateKind::Up;
        assert_eq!(expected_duration(&next, &[]), None);
        let mut siblings: Vec<_> = [60, 3600, 90].map(|seconds| ended(seconds, UpdateKind::Up)).into();
        siblings.push(ended(1, UpdateKind::Preview));
        siblings.push(Arc::new(update(10, Some(100))));
        assert_eq!(expected_duration(&next, &siblings), Some(SignedDuration::from_secs(90)));
        next.spec.kind = UpdateKind::Destroy;
        assert_eq!(expected_duration(&next, &siblings), None);
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
        assert!(Arc::ptr_eq(&open[0].1, &all[0]));
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

//! Watches that trigger a Stack's reconcile: Stacks, sources, Workspaces and Updates.

use std::sync::Arc;

use futures::Stream;
use kube::runtime::Controller;
use kube::runtime::WatchStreamExt;
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher::Event;
use kube::{Resource, ResourceExt};

use crate::api::auto::{Update, UpdatePhase, Workspace};
use crate::api::conditions;
use crate::api::pulumi::{Stack, StackSpec};
use crate::controller::stack::context::Context;
use crate::controller::stack::groups::StackGroup;
use crate::controller::stack::reconcile::reconcile;
use crate::controller::stack::{ownership, prerequisites};
use crate::runtime::controller::Start;
use crate::runtime::index::IndexWriter;
use crate::runtime::tolerant_watcher::watcher;
use crate::runtime::watch::only_changes;

/// Wake-up streams of the controller.
pub struct Feeds<W, D> {
    /// Stacks whose sources have changed.
    pub woken: W,
    /// Stacks whose dependencies or dependents have changed.
    pub dependents: D,
}

impl<W, D> std::fmt::Debug for Feeds<W, D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Feeds").finish_non_exhaustive()
    }
}

/// Runs the controller until it is stopped.
pub async fn controller(
    start: Start<IndexWriter<Stack, StackGroup>>,
    feeds: Feeds<
        impl Stream<Item = ObjectRef<Stack>> + Send + 'static,
        impl Stream<Item = ObjectRef<Stack>> + Send + 'static,
    >,
    context: Arc<Context>,
) {
    let duplicates = context.duplicates.clone();
    let noted = move |stack: &mut Stack| {
        duplicates.note(stack);
        cut_down(stack);
    };
    let dependents = context.dependents.clone();
    let seen = move |event: &Event<Stack>| dependents.note(event);
    let scope = start.scope.clone();
    let updates = watcher::<Update>(scope.api(start.client.clone()), scope.other_kinds());
    let workspaces = watcher::<Workspace>(scope.api(start.client.clone()), scope.other_kinds());
    let triggers = |controller: Controller<Stack>| {
        controller
            .watches_stream(only_changes(updates.default_backoff(), update_state), |update: Update| {
                owner(&update).filter(|_| !is_untouched(&update))
            })
            .watches_stream(only_changes(workspaces.default_backoff(), workspace_state), |workspace: Workspace| {
                // A foreign Workspace blocks the Stack of the same name.
                owner(&workspace)
                    .or_else(|| Some(ObjectRef::new(&workspace.name_any()).within(&workspace.namespace()?)))
            })
            .reconcile_on(feeds.woken)
            .reconcile_on(feeds.dependents)
    };
    start.run(noted, seen, triggers, reconcile, context).await;
}

/// Returns the fields of an Update that the Stack's status reflects: for an open Update the waiting condition, start, cancellation and
/// progress; for a completed or deleted one the resource version.
fn update_state(update: &Update) -> String {
    if update.is_complete() || update.metadata.deletion_timestamp.is_some() {
        return format!("{:?}", update.metadata.resource_version);
    }
    let Some(status) = &update.status else { return String::new() };
    let progressing = conditions::find(&status.conditions, conditions::PROGRESSING);
    let waits = progressing.filter(|condition| condition.status != "True");
    let waits = waits.map(|condition| (&condition.reason, &condition.message));
    let is_canceling = status.phase == Some(UpdatePhase::Canceling);
    let resources = status.progress.as_ref().map(|progress| (progress.resources_done, progress.resources_total));
    let has_begun = status.run.is_some() || update.is_started_by_operator();
    format!("{:?}", (waits, has_begun, is_canceling, resources.unwrap_or_default()))
}

/// Whether the Update is as the Stack created it, so that the event brings no change.
fn is_untouched(update: &Update) -> bool {
    let conditions = update.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    conditions.is_empty() && update.metadata.deletion_timestamp.is_none()
}

/// Returns the fields of a Workspace that a Stack reads.
fn workspace_state(workspace: &Workspace) -> String {
    let metadata = &workspace.metadata;
    format!("{:?}", (metadata.generation, &metadata.annotations, &metadata.deletion_timestamp, &workspace.status))
}

/// Keeps only the fields that determine the source of a Stack, its dependencies, and its readiness for dependents.
fn cut_down(stack: &mut Stack) {
    let StackSpec { flux_source, program_ref, prerequisites, depends_on, .. } = std::mem::take(&mut stack.spec);
    stack.spec = StackSpec { flux_source, program_ref, prerequisites, depends_on, ..StackSpec::default() };
    stack.status = stack.status.take().map(prerequisites::part_of_status);
}

/// Returns the Stack that an object belongs to.
fn owner<K: Resource>(object: &K) -> Option<ObjectRef<Stack>> {
    Some(ObjectRef::new(&ownership::stack_of(object)?).within(&object.namespace()?))
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::api::auto::{RunBinding, RunProgress, UpdateSpec, UpdateStatus};
    use crate::api::conditions::{Claim, PROGRESSING, Status};

    fn update(status: UpdateStatus) -> Update {
        let mut update = Update::new("app-1", UpdateSpec::default());
        update.status = Some(status);
        update
    }

    fn says(progressing: Status, reason: &str, change: fn(&mut UpdateStatus)) -> String {
        let mut status = UpdateStatus::default();
        let claim = Claim { kind: PROGRESSING, status: progressing, reason, message: "said" };
        conditions::set(&mut status.conditions, &claim, 1, Timestamp::UNIX_EPOCH);
        change(&mut status);
        update_state(&update(status))
    }

    #[test]
    fn run_phases_wake_the_stack_and_resource_names_do_not() {
        let progress = |done: i64, name: &str| {
            let name = Some(name.to_owned());
            Some(RunProgress { resources_done: done, resources_total: 2, name, ..RunProgress::default() })
        };
        let phases = [
            update_state(&update(UpdateStatus::default())),
            says(Status::False, "Queued", |_| ()),
            says(Status::False, "WorkspaceNotReady", |_| ()),
            says(Status::True, "Progressing", |status| status.run = Some(RunBinding::default())),
            says(Status::True, "Progressing", |status| {
                status.run = Some(RunBinding::default());
                status.progress = Some(RunProgress { resources_total: 2, ..RunProgress::default() });
            }),
            says(Status::True, "Progressing", |status| {
                status.run = Some(RunBinding::default());
                status.phase = Some(UpdatePhase::Canceling);
            }),
            says(Status::Unknown, "RunOutcomeUnknown", |status| status.run = Some(RunBinding::default())),
        ];
        for (number, phase) in phases.iter().enumerate() {
            assert!(!phases[..number].contains(phase), "phase {number}: {phase}");
        }
        let with = |progress| update_state(&update(UpdateStatus { progress, ..UpdateStatus::default() }));
        assert_eq!(with(progress(1, "a")), with(progress(1, "b")));
        assert_ne!(with(progress(1, "a")), with(progress(2, "a")));
    }
}

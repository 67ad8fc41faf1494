//! Reads the state that a step of an Update reconciliation needs.

use std::net::IpAddr;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;

use crate::api::auto::{RunBinding, RunProgress, Update, UpdateKind, Workspace};
use crate::api::names;
use crate::api::pulumi::{RunSchedule, Stack};
use crate::controller::namespaces::{RunSettings, RunShare};
use crate::controller::references::{Checked, Waiter};
use crate::controller::stack::{RestrictedRun, Restriction, run_in_a_conflict, unapproved_run, unrecorded_run};
use crate::controller::update::attachments::{RunSnapshot, RunState};
use crate::controller::update::context::Context;
use crate::controller::update::deadline;
use crate::controller::update::interruptions::{self, Disruption};
use crate::controller::update::order;
use crate::controller::update::plans::{self, PlanFile};
use crate::controller::update::pod_mark;
use crate::controller::update::pod_termination::{self, NodeState};
use crate::controller::update::request::{RunTimeouts, has_valid_workspace_name};
use crate::controller::workspace::references;
use crate::runtime::reads::ReadError;

/// State at the start of a step.
#[derive(Clone, Debug)]
pub struct Observed {
    pub update: Update,
    /// Workspace of the Update, or `None` while the agent reports the progress of the run.
    pub workspace: Option<Workspace>,
    /// Pod of the Workspace, or `None` while the agent reports the progress of the run.
    pub pod: Option<Pod>,
    /// State of the node on which the run executes. `observe` reads the node only if the outcome of the run is
    /// unknown.
    pub node: NodeState,
    /// Announced removal of the node.
    pub disruption: Option<Disruption>,
    /// Name of the open Update directly before this Update in the order of the Workspace.
    pub preceding_update: Option<String>,
    pub timeouts: RunTimeouts,
    /// State of the run that the attached task reports.
    pub run_state: Option<RunState>,
    /// Progress of the run that the attached task reports.
    pub progress: Option<RunProgress>,
    /// IP address of the agent to which the task is attached.
    pub agent_ip: Option<IpAddr>,
    /// Whether the attached task may start the run.
    pub task_may_start: bool,
    /// State of the Stack that owns the Update. `observe` reads the Stack only if the deletion of the Update waits for
    /// the Stack.
    pub stack: Owner,
    /// Reason why the Stack does not permit the run: the run is not its recorded run, or its approval settings forbid the
    /// run. `observe` checks this only before an `up` or `destroy` run that is the next run of its Workspace.
    pub forbidden: Option<String>,
    /// Restriction that prevents the run from starting now. Set only for the next run of the Workspace.
    pub restriction: Option<Restriction>,
    /// Share of the run slots that the namespace receives. Set only for the next run of the Workspace.
    pub run_share: RunShare,
    /// Plan of the run. `observe` does not read the plan after the agent has reported that the run is in progress or
    /// completed.
    pub plan: PlanFile,
    /// State of the referenced Secrets and ConfigMaps. Set only after [`check_references`].
    pub references: Option<Checked>,
}

/// State of the Stack that owns an Update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// The Stack exists, or `observe` has not read the Stack.
    Lives,
    Deleting,
    /// The Stack does not exist, or another Stack now has the same name.
    Gone,
}

/// Returns the run binding, or `None` if the status of the Update contains no binding.
pub fn binding(update: &Update) -> Option<&RunBinding> {
    update.status.as_ref()?.run.as_ref()
}

/// Returns whether an annotation requests that the run be canceled.
pub fn is_cancel_requested(update: &Update) -> bool {
    update.annotations().contains_key(names::ANNOTATION_CANCEL)
}

/// Returns whether a Stack created the Update.
pub fn is_of_stack(update: &Update) -> bool {
    update.owner_references().iter().any(|owner| owner.kind == "Stack")
}

/// Returns whether the Update has the finalizer of a Stack. The Stack controller removes both finalizers of such an
/// Update with one write, after the status of the Stack contains the result and the pod is no longer marked.
pub fn is_held_by_stack(update: &Update) -> bool {
    update.finalizers().iter().any(|f| f == names::STACK_FINALIZER)
}

/// Reads the state that the step needs.
pub async fn observe(update: Update, context: &Context, now: Timestamp) -> Result<Observed, ReadError> {
    let snapshot = context.attachments.snapshot(&update.uid().unwrap_or_default());
    let is_interrupted = context.interruptions.contains(&update.uid().unwrap_or_default());
    let needs_pod = is_interrupted || needs_pod(&update, snapshot.as_ref(), context.timeouts, now);
    let (workspace, pod) = match !needs_pod || !has_valid_workspace_name(&update) {
        true => (None, None),
        false => workspace_and_pod(&update, context).await?,
    };
    let is_expired = deadline::end_expired(&update, context.timeouts, pod.as_ref(), now).is_some();
    let reported = snapshot.as_ref().filter(|_| !is_expired && !is_interrupted);
    let (node, disruption) = node(&update, pod.as_ref(), reported, context).await?;
    let preceding_update = preceding_update(&update, pod.as_ref(), context).await?;
    let timeouts = context.timeouts;
    let stack = owner_state(&update, context).await?;
    let has_started =
        snapshot.as_ref().is_some_and(|snapshot| matches!(snapshot.run_state, RunState::Running | RunState::Ended(_)));
    let plan = match update.is_complete() || has_started {
        true => PlanFile::NotNeeded,
        false => plans::load(&update, context).await?,
    };
    let settings = run_settings(&update, preceding_update.as_ref(), context).await?;
    let is_governed = !has_started && needs_stack(&update, preceding_update.as_ref());
    let governing = match is_governed {
        true => governing_stack(&update, context).await?,
        false => None,
    };
    let unrecorded = unrecorded_run(governing.as_ref(), &update).filter(|_| is_governed);
    let forbidden = unrecorded
        .or_else(|| unapproved_run(governing.as_ref()?, &update))
        .or_else(|| run_in_a_conflict(governing.as_ref()?, &update));
    let schedule = governing.as_ref().and_then(|stack| schedule(stack, &update));
    let restriction = settings.as_ref().and_then(|settings| restriction(&update, settings, schedule, now));
    let run_share = settings.map(|settings| settings.run_share).unwrap_or_default();
    let agent_ip = snapshot.as_ref().map(|snapshot| snapshot.ip);
    let task_may_start = snapshot.as_ref().is_some_and(|snapshot| snapshot.may_start);
    let (run_state, progress) = snapshot.map_or((None, None), |snapshot| (Some(snapshot.run_state), snapshot.progress));
    Ok(Observed {
        update,
        workspace,
        pod,
        node,
        disruption,
        preceding_update,
        timeouts,
        run_state,
        progress,
        agent_ip,
        task_may_start,
        stack,
        forbidden,
        restriction,
        run_share,
        plan,
        references: None,
    })
}

/// Checks the Secrets and ConfigMaps that the run references. The check can read each object, so the caller performs it
/// only if the run can start as soon as all objects exist. Returns `None` if the Workspace or its pod does not exist.
pub async fn check_references(observed: &Observed, context: &Context) -> Result<Option<Checked>, ReadError> {
    let (Some(workspace), Some(pod)) = (&observed.workspace, &observed.pod) else { return Ok(None) };
    let namespace = observed.update.namespace().unwrap_or_default();
    let desired = references(&workspace.spec, Some(&observed.update.spec.stack_name));
    let mounted_since = pod.creation_timestamp().map(|created| created.0);
    let waiter = Waiter::Update(ObjectRef::from_obj(&observed.update));
    context.references.check(&namespace, &desired, mounted_since, &waiter).await.map(Some)
}

/// Reads the Workspace of an Update, and the pod of the run. The binding of a run contains the pod: a user can delete
/// the Workspace that has taken the pod from a pool. A run without a binding executes in the pod of the Workspace.
async fn workspace_and_pod(update: &Update, context: &Context) -> Result<(Option<Workspace>, Option<Pod>), ReadError> {
    let namespace = update.namespace().unwrap_or_default();
    let workspace = context.reader.get_opt::<Workspace>(&namespace, &update.spec.workspace_name).await?;
    let pod = match (&workspace, binding(update)) {
        (Some(workspace), None) => workspace.pod_name(),
        (Some(_), Some(_)) | (None, _) => update.pod_name(),
    };
    let pod = context.reader.get_opt::<Pod>(&namespace, &pod).await?;
    Ok((workspace, pod))
}

/// Returns the name of the open Update directly before `update` in the order of the Workspace.
///
/// The Update for which the pod is marked comes before all other Updates without a binding, because its binding can be
/// recorded at any time. Otherwise, an Update that the cache has received late could mark the same pod, and both runs
/// would be bound.
async fn preceding_update(update: &Update, pod: Option<&Pod>, context: &Context) -> Result<Option<String>, ReadError> {
    let siblings = context.siblings(update);
    let preceding = match pod.is_some_and(|pod| pod_mark::is_of(pod, update)) {
        true => order::open_run(update, &siblings),
        false => order::preceding(update, &siblings),
    };
    if let Some(other) = preceding {
        return Ok(Some(other.name_any()));
    }
    let Some((name, uid)) = marked_update(update, pod, &siblings, context).await? else { return Ok(None) };
    let namespace = update.namespace().unwrap_or_default();
    let is_sibling = |other: &Update| {
        other.metadata.uid.as_ref() == Some(&uid) && other.spec.workspace_name == update.spec.workspace_name
    };
    match context.reader.get_opt::<Update>(&namespace, &name).await {
        Ok(other) => {
            let open = other.filter(|other| is_sibling(other) && !other.is_complete());
            Ok(open.map(|other| other.name_any()))
        }
        // The run of an Update that the controller cannot parse may be open.
        Err(ReadError::Parse { .. }) => Ok(Some(name)),
        Err(error) => Err(error),
    }
}

/// Returns the name and the UID of the other Update for whose run the pod is marked, if `update` can be the next run of
/// the Workspace. The caller must read this Update. The cache is not sufficient: it can be outdated, and it contains
/// neither the Updates of other shards nor the Updates that the controller cannot parse. Without this read, the
/// controller could remove the protection of the pod during a run.
async fn marked_update(
    update: &Update,
    pod: Option<&Pod>,
    siblings: &[Arc<Update>],
    context: &Context,
) -> Result<Option<(String, String)>, ReadError> {
    let Some(pod) = pod.filter(|pod| may_be_next(update, None) && !pod_mark::is_of(pod, update)) else {
        return Ok(None);
    };
    let Some(uid) = pod.annotations().get(names::ANNOTATION_RUN) else { return Ok(None) };
    let cached = siblings.iter().find(|other| other.metadata.uid.as_ref() == Some(uid));
    // The completion of a run is final.
    if cached.is_some_and(|cached| cached.is_complete()) {
        return Ok(None);
    }
    let namespace = update.namespace().unwrap_or_default();
    let name = match cached.map(|cached| cached.name_any()).or_else(|| pod_mark::update_name(pod)) {
        Some(name) => Some(name),
        None => context.reader.find_name::<Update>(&namespace, uid).await?,
    };
    Ok(name.map(|name| (name, uid.clone())))
}

/// Returns the state of the Stack that owns the Update. Reads the Stack only if the Update is being deleted, or if the
/// controller deletes the Update after the Stack has recorded its result.
async fn owner_state(update: &Update, context: &Context) -> Result<Owner, ReadError> {
    let expires = update.is_complete() && update.spec.ttl_after_completed.is_some() && is_held_by_stack(update);
    let is_needed = update.metadata.deletion_timestamp.is_some() || expires;
    let Some((name, uid)) = owner(update).filter(|_| is_needed) else {
        return Ok(Owner::Lives);
    };
    let namespace = update.namespace().unwrap_or_default();
    Ok(match context.reader.get_opt::<Stack>(&namespace, &name).await? {
        Some(stack) if uid.is_some_and(|uid| stack.uid() != Some(uid)) => Owner::Gone,
        Some(stack) if stack.metadata.deletion_timestamp.is_some() => Owner::Deleting,
        Some(_) => Owner::Lives,
        None => Owner::Gone,
    })
}

/// Returns whether a Stack can prevent the start of the run: an `up`, a destroy or a refresh that is the next run of its
/// Workspace.
fn needs_stack(update: &Update, preceding_update: Option<&String>) -> bool {
    // The settings also apply to a bound run, because users can change its Update until the run has started.
    let may_start = may_be_next(update, preceding_update) || (binding(update).is_some() && !update.is_complete());
    may_start && changes_state(update) && has_valid_workspace_name(update)
}

/// Returns the Stack that can prevent the start of the run. This Stack has the same name as the Workspace.
async fn governing_stack(update: &Update, context: &Context) -> Result<Option<Stack>, ReadError> {
    let namespace = update.namespace().unwrap_or_default();
    context.reader.get_opt::<Stack>(&namespace, &update.spec.workspace_name).await
}

/// Returns the schedule of a Stack if the Update is its recorded run. The schedule has no effect on Updates that users
/// create.
fn schedule<'a>(stack: &'a Stack, update: &Update) -> Option<&'a RunSchedule> {
    let current = stack.status.as_ref()?.current_update.as_deref()?;
    stack.spec.schedule.as_ref().filter(|_| current.name == update.name_any())
}

/// Returns the run settings that the namespace specifies for the next run of the Workspace.
async fn run_settings(
    update: &Update,
    preceding_update: Option<&String>,
    context: &Context,
) -> Result<Option<RunSettings>, ReadError> {
    if !may_be_next(update, preceding_update) {
        return Ok(None);
    }
    Ok(Some(context.namespaces.run_settings(&update.namespace().unwrap_or_default()).await?))
}

/// Returns the restriction that the namespace settings and the schedule of the Stack impose on a run. The Stack
/// controller revokes a queued run when a window closes or a freeze starts, but the run can become ready earlier.
fn restriction(
    update: &Update,
    settings: &RunSettings,
    schedule: Option<&RunSchedule>,
    now: Timestamp,
) -> Option<Restriction> {
    let namespace = update.namespace().unwrap_or_default();
    let run = RestrictedRun { kind: update.spec.kind, namespace: &namespace, schedule };
    run.restriction(settings, now)
}

/// Returns whether the run is open and not bound yet, and no other Update of the Workspace runs before it.
fn may_be_next(update: &Update, preceding_update: Option<&String>) -> bool {
    let is_open = !update.is_complete() && update.metadata.deletion_timestamp.is_none();
    is_open && binding(update).is_none() && preceding_update.is_none()
}

/// Returns whether the run can change resources or their state.
fn changes_state(update: &Update) -> bool {
    matches!(update.spec.kind, UpdateKind::Up | UpdateKind::Destroy | UpdateKind::Refresh)
}

/// Returns whether the step needs the Workspace and its pod. While the agent reports the progress of an open run, the
/// step needs them only to cancel the run or to enforce a timeout.
fn needs_pod(update: &Update, snapshot: Option<&RunSnapshot>, timeouts: RunTimeouts, now: Timestamp) -> bool {
    let is_reporting =
        snapshot.is_some_and(|snapshot| matches!(snapshot.run_state, RunState::Running | RunState::Held(_)));
    let is_open = binding(update).is_some() && !update.is_complete();
    let is_ending = update.metadata.deletion_timestamp.is_some() || is_cancel_requested(update);
    let is_expired = deadline::start_expired(update, timeouts, now).is_some();
    !is_reporting || !is_open || is_ending || is_expired
}

/// Reads the node of a run if the agent does not report the progress of the run. `snapshot` is `None` if the caller
/// ignores the report from the attached task.
async fn node(
    update: &Update,
    pod: Option<&Pod>,
    snapshot: Option<&RunSnapshot>,
    context: &Context,
) -> Result<(NodeState, Option<Disruption>), ReadError> {
    let not_read = (NodeState::NotRead, None);
    let Some(binding) = binding(update).filter(|_| !update.is_complete()) else { return Ok(not_read) };
    let is_reported = snapshot.is_some_and(|snapshot| {
        matches!(snapshot.run_state, RunState::Running | RunState::Held(_) | RunState::Ended(_))
    });
    let is_unreachable = snapshot.is_some_and(|snapshot| matches!(snapshot.run_state, RunState::Unreachable(_)));
    let is_interrupted = context.interruptions.contains(&update.uid().unwrap_or_default());
    if !is_interrupted && (is_reported || !pod_termination::needs_node(binding, pod, is_unreachable)) {
        return Ok(not_read);
    }
    match context.reader.get_cluster_opt::<Node>(&binding.node_name).await {
        Ok(node) => Ok((NodeState::of(node.as_ref()), node.as_ref().and_then(interruptions::disruption))),
        Err(error) if error.is_forbidden() => Ok((NodeState::Unreadable(error.to_string()), None)),
        Err(error) => Err(error),
    }
}

/// Returns the name and the UID of the Stack that owns an Update. An Update without an owner reference belongs to a
/// Stack if it has the Stack finalizer. In this case, the Workspace has the same name as the Stack, and the UID is
/// unknown. The owner reference is missing if a user removed it, or if the Stack was being deleted when it created
/// the Update.
fn owner(update: &Update) -> Option<(String, Option<String>)> {
    let referred = update.owner_references().iter().find(|o| o.kind == "Stack");
    let is_held = is_held_by_stack(update);
    referred
        .map(|o| (o.name.clone(), Some(o.uid.clone())))
        .or_else(|| is_held.then(|| (update.spec.workspace_name.clone(), None)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::auto::{RunBinding, UpdateSpec, UpdateStatus};
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use serde_json::json;

    #[test]
    fn the_schedule_of_a_stack_restricts_only_its_recorded_run() {
        let freeze = json!({"from": "2026-01-01T00:00:00Z", "to": "2026-01-02T00:00:00Z"});
        let stack: Stack = serde_json::from_value(json!({
            "apiVersion": "pulumi.com/v1", "kind": "Stack", "metadata": {"name": "app", "namespace": "apps"},
            "spec": {"stack": "dev", "schedule": {"freezes": [freeze]}},
            "status": {"conditions": [], "currentUpdate": {"name": "app-1", "type": "up"}},
        }))
        .expect("valid Stack");
        let is_restricted = |name: &str, now: &str| {
            let update = Update::new(name, UpdateSpec { kind: UpdateKind::Up, ..UpdateSpec::default() });
            let now = now.parse().expect("valid time");
            restriction(&update, &RunSettings::default(), schedule(&stack, &update), now).is_some()
        };
        assert!(is_restricted("app-1", "2026-01-01T12:00:00Z"));
        assert!(!is_restricted("app-1", "2026-01-02T12:00:00Z"), "the freeze has ended");
        assert!(!is_restricted("by-hand", "2026-01-01T12:00:00Z"), "a user has created the Update");
    }

    #[test]
    fn the_pod_of_a_reported_run_is_not_read_before_its_timeout() {
        let at = |run_state: RunState, second: i64| {
            let spec = UpdateSpec { timeout: Some("60s".to_owned()), ..UpdateSpec::default() };
            let start_time = Timestamp::from_second(100).ok().map(Time);
            let mut update = Update::new("a", spec);
            update.status =
                Some(UpdateStatus { run: Some(RunBinding::default()), start_time, ..UpdateStatus::default() });
            let snapshot = RunSnapshot { run_state, progress: None, ip: IpAddr::from([10, 0, 0, 1]), may_start: true };
            let now = Timestamp::from_second(second).expect("timestamp in range");
            needs_pod(&update, Some(&snapshot), RunTimeouts::default(), now)
        };
        for reported in [RunState::Running, RunState::Held("session".to_owned())] {
            assert!(!at(reported.clone(), 160));
            assert!(at(reported, 161), "the run must be ended, or attached again without the permission to start");
        }
        assert!(at(RunState::Connecting, 160));
    }
}

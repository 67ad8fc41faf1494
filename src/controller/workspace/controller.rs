//! Workspace controller: the watches, and the reconcile loop (observe, decide, act).
//!
//! The controller reconciles a Workspace after explicit requests, and after changes to the Workspace, its pod, its
//! StatefulSet, its runs or the CA.

use std::hash::Hash;
use std::sync::Arc;

use futures::{Stream, StreamExt, TryStreamExt};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use kube::runtime::reflector::ObjectRef;
use kube::runtime::reflector::store::Writer;
use kube::runtime::watcher::Event;
use kube::{Resource, ResourceExt};

use super::act::{Act, Step};
use super::context::Context;
use super::decide::{Action, decide, decide_with_ignored_call};
use super::observe::{Observed, observe};
use super::pod_state;
use super::pool::{Pool, Pooled};
use crate::api::auto::{Update, UpdateStatus, Workspace, WorkspaceSpec};
use crate::api::conditions::{COMPLETE, is_true};
use crate::api::names::{LABEL_COMPONENT, LABEL_WORKSPACE_NAME};
use crate::controller::authority::Generations;
use crate::controller::update::waits_for_references;
use crate::runtime::controller::Start;
use crate::runtime::first_objects::FirstReader;
use crate::runtime::reconcile::{Outcome, ReconcileError};
use crate::runtime::requeue::Requeue;
use crate::runtime::tolerant_watcher;
use crate::runtime::triggers::mapped;
use crate::runtime::watch::{LastStates, only_changes};
use crate::runtime::work_queue::Urgency;

/// Maximum number of steps per reconciliation. A reconciliation normally needs at most 12 steps. The delivery of the
/// policy packs needs one additional step for each pack, and a Workspace has at most 20 packs.
const MAX_STEPS: usize = 32;

/// Inputs of the Workspace controller in addition to the Workspace watch.
pub struct Feeds<W, F, P> {
    /// Workspaces that the controller must reconcile immediately, for example because the bytes of their artifact are
    /// available, or because of [`run_changes`].
    pub requeues: W,
    /// Receives each event about a Workspace after the store contains the change.
    pub on_event: F,
    /// Receives each workspace pod that the watch reports.
    pub on_pod: P,
}

impl<W, F, P> std::fmt::Debug for Feeds<W, F, P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Feeds").finish_non_exhaustive()
    }
}

/// Reconciles all Workspaces in scope until the controller is stopped.
pub async fn controller<W, F, P>(start: Start<Writer<Workspace>>, feeds: Feeds<W, F, P>, context: Arc<Context>)
where
    P: FnMut(&Pod) + Send + 'static,
    W: Stream<Item = ObjectRef<Workspace>> + Send + 'static,
    F: FnMut(&Event<Workspace>) + Send + 'static,
{
    let Feeds { requeues, on_event, mut on_pod } = feeds;
    let (client, scope) = (start.client.clone(), start.scope.clone());
    let labelled = scope.other_kinds().labels(&format!("{LABEL_COMPONENT}=workspace"));
    let first_lists = start.runner.first_lists().clone();
    let pods = tolerant_watcher::watcher::<Pod>(scope.api(client.clone()), labelled.clone());
    let stateful_sets = tolerant_watcher::watcher::<StatefulSet>(scope.api(client), labelled);
    let (pods, stateful_sets) = (first_lists.track(pods), first_lists.track(stateful_sets));
    let pods = pods.inspect_ok(move |event| match event {
        Event::Apply(pod) | Event::InitApply(pod) => on_pod(pod),
        Event::Init | Event::InitDone | Event::Delete(_) => {}
    });
    // Each listed Update requeues its Workspace.
    let updates = first_lists.track_list(context.updates.is_listed());
    let (changed, runner) = (context.clone(), start.runner.clone());
    let authority = authority_changes(context.authority.clone());
    let pods = mapped(only_changes(pods, decisive, workspace_of), |(workspace, _)| Some(workspace));
    let stateful_sets = mapped(
        only_changes(stateful_sets, spec_state, workspace_of),
        move |(workspace, _): (ObjectRef<Workspace>, _)| {
            let key = (workspace.namespace.clone().unwrap_or_default(), workspace.name.clone());
            // A StatefulSet in the initial list has not necessarily changed.
            if runner.has_begun_key(&key) {
                changed.memory.verified_parts.invalidate((&key.0, &key.1));
            }
            Some(workspace)
        },
    );
    let workspaces = start.store.as_reader();
    let all = move |()| futures::stream::iter(workspaces.state()).map(|workspace| ObjectRef::from_obj(&*workspace));
    let triggers = vec![pods, stateful_sets, requeues.boxed(), authority.flat_map(all).boxed()];
    tokio::join!(start.run(strip_unused_fields, on_event, |_| Urgency::Normal, triggers, reconcile, context), updates);
}

/// Returns a stream that contains an item for each change to the CA. After a change, the controller must issue new
/// certificates.
fn authority_changes(
    authority: tokio::sync::watch::Receiver<Arc<Generations>>,
) -> impl Stream<Item = ()> + Send + 'static {
    futures::stream::unfold(authority, |mut authority| async move {
        authority.changed().await.ok()?;
        Some(((), authority))
    })
}

/// Removes the spec and the status from a watched Workspace, because each reconciliation reads the Workspace from the
/// API server.
fn strip_unused_fields(workspace: &mut Workspace) {
    workspace.spec = WorkspaceSpec::default();
    workspace.status = None;
}

/// Returns a function that requeues a Workspace when a run in the Workspace is bound, when the run completes, when the
/// run starts or stops waiting for references, and when its Update is deleted. The function receives the events about
/// Updates.
pub fn run_changes(requeue: Requeue<Workspace>) -> impl FnMut(&Event<Update>) {
    let mut states = LastStates::default();
    move |event| {
        for workspace in states.changed(event, run_state, workspace_of_run) {
            requeue.request(workspace);
        }
    }
}

/// Returns the state of an Update that affects its Workspace.
fn run_state(update: &Update) -> impl Hash + use<> {
    let status = update.status.as_ref();
    let seen = |status: &UpdateStatus| (status.run.is_some(), is_true(&status.conditions, COMPLETE));
    (status.map(seen), update.is_started_by_operator(), waits_for_references(update))
}

fn workspace_of_run(update: &Update) -> Option<ObjectRef<Workspace>> {
    Some(ObjectRef::new(&update.spec.workspace_name).within(&update.namespace()?))
}

/// Returns the pod fields that can change the next action. While a pod starts, the kubelet writes many other fields.
fn decisive(pod: &Pod) -> String {
    format!("{:?}", pod_state::read(pod))
}

/// Returns the StatefulSet fields that clients can change. The result excludes the StatefulSet status, because the pod
/// status is more detailed.
fn spec_state(stateful_set: &StatefulSet) -> String {
    let metadata = &stateful_set.metadata;
    format!(
        "{:?}",
        (
            metadata.generation,
            &metadata.labels,
            &metadata.annotations,
            &metadata.finalizers,
            &metadata.deletion_timestamp
        )
    )
}

fn workspace_of<K: Resource<DynamicType = ()>>(object: &K) -> Option<ObjectRef<Workspace>> {
    let name = object.labels().get(LABEL_WORKSPACE_NAME)?;
    Some(ObjectRef::new(name).within(&object.namespace()?))
}

/// Reconciles a Workspace in steps until no action is due.
pub async fn reconcile(workspace: Arc<Workspace>, context: Arc<Context>) -> Result<Outcome, ReconcileError> {
    context.caches.wait().await?;
    let (namespace, name) = (workspace.namespace().unwrap_or_default(), workspace.name_any());
    let mut listed = listed(&workspace, &context);
    let (mut agent_calls, mut has_ignored_call) = (Vec::new(), false);
    for _ in 0..MAX_STEPS {
        let now = Timestamp::now();
        let looking = Box::pin(observe(&namespace, &name, listed.take(), &context, now));
        let Some((mut observed, agent)) = looking.await? else {
            return Ok(Outcome::Settled);
        };
        if context.pool.is_enabled() {
            offer(&observed, &context.pool);
        }
        let mut action = decide(&observed, now);
        if let Some(error) = ignored_call(&mut agent_calls, &action) {
            let pod = observed.pod.as_ref().map(|pod| pod.uid.as_str());
            observed.silent_since = context.memory.ignored_calls.record((&namespace, &name), pod, now);
            has_ignored_call = true;
            // Without backoff, the controller would repeatedly send the source to such an agent.
            action = decide_with_ignored_call(&mut observed, now).ok_or_else(|| ReconcileError::transient(error))?;
        }
        tracing::debug!(?action, "decided");
        let act = Act { observed: &observed, agent: agent.as_ref(), context: &context, now };
        if let Step::Done(outcome) = Box::pin(act.perform(action)).await? {
            if !has_ignored_call {
                context.memory.ignored_calls.record((&namespace, &name), None, now);
            }
            return Ok(outcome);
        }
    }
    // Returns an error, so that the controller retries with backoff.
    Err(ReconcileError::transient(format!("the reconciliation has not ended after {MAX_STEPS} steps")))
}

/// Adds an action that calls the agent to `earlier`, the agent calls of this reconciliation. Returns an error message if
/// the agent has already accepted the same call, but does not report its result.
fn ignored_call(earlier: &mut Vec<Action>, action: &Action) -> Option<String> {
    let call = action.agent_call()?;
    if earlier.contains(action) {
        return Some(format!("agent accepted {call}, but does not report the result"));
    }
    earlier.push(action.clone());
    None
}

/// Returns the Workspace from the initial list of the Stack controller, which the first reconciliation uses. Returns
/// `None` if the watch of this controller has delivered a different version. The reconciliation must then read the
/// Workspace, because no further watch event would correct its result.
fn listed(workspace: &Workspace, context: &Context) -> Option<Workspace> {
    let (namespace, name) = (workspace.namespace().unwrap_or_default(), workspace.name_any());
    let listed = context.first_workspaces.take(FirstReader::WorkspaceController, &namespace, &name)?;
    (listed.metadata.resource_version == workspace.metadata.resource_version).then_some(listed)
}

/// Records in the pool whether the Workspace is sleeping and can take a pod.
fn offer(observed: &Observed, pool: &Pool) {
    let workspace = &observed.workspace;
    let (namespace, name) = (workspace.namespace().unwrap_or_default(), workspace.name_any());
    let waits = !observed.is_namespace_terminating
        && workspace.is_asleep()
        && workspace.metadata.deletion_timestamp.is_none()
        && observed.pod.is_none()
        && observed.pooled == Pooled::None;
    match observed.pool_template.clone().filter(|_| waits) {
        Some(template) => pool.offer(&namespace, &name, template),
        None => pool.withdraw(&namespace, &name),
    }
}

#[cfg(test)]
mod tests;

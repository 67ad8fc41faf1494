//! Workspace controller: the watches, and the reconcile loop (observe, decide, act).
//!
//! The controller reconciles a Workspace after explicit requests, and after changes to the Workspace, its pod, its
//! StatefulSet, its runs or the CA.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, TryStreamExt};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use kube::runtime::reflector::ObjectRef;
use kube::runtime::reflector::store::Writer;
use kube::runtime::{Controller, WatchStreamExt, watcher};
use kube::{Resource, ResourceExt};

use super::act::{Act, Step};
use super::context::Context;
use super::decide::decide;
use super::observe::{Observed, observe};
use super::pod_state;
use super::pool::{Pool, Pooled};
use crate::api::auto::{Update, UpdateStatus, Workspace, WorkspaceSpec};
use crate::api::conditions::{COMPLETE, is_true};
use crate::api::names::{LABEL_COMPONENT, LABEL_WORKSPACE_NAME};
use crate::controller::authority::Generations;
use crate::controller::update::{UpdateGroup, waits_for_references};
use crate::runtime::controller::Start;
use crate::runtime::first_lists::FirstLists;
use crate::runtime::first_objects::FirstReader;
use crate::runtime::index::{IndexWriter, StoreWriter as _};
use crate::runtime::reconcile::{Outcome, ReconcileError};
use crate::runtime::scope::Scope;
use crate::runtime::tolerant_watcher;
use crate::runtime::watch::{self, only_changes};

/// Maximum number of steps per reconciliation. A reconciliation normally needs fewer steps.
const MAX_STEPS: usize = 12;
/// Requeue interval after a reconciliation that reached the maximum number of steps.
const STEP_LIMIT_REQUEUE: Duration = Duration::from_secs(1);

/// Inputs of the Workspace controller in addition to the Workspace watch.
pub struct Watches<W> {
    /// Store of all Updates that the controller watches. The stored Updates contain only the fields that
    /// [`watch::strip_update`] keeps. `Context::updates` reads this store.
    pub updates: IndexWriter<Update, UpdateGroup>,
    /// Workspaces that the controller must reconcile immediately, for example because the bytes of their artifact are
    /// available.
    pub requeues: W,
}

/// Reconciles all Workspaces in scope until the controller is stopped.
pub async fn controller<W>(start: Start<Writer<Workspace>>, watches: Watches<W>, context: Arc<Context>)
where
    W: Stream<Item = ObjectRef<Workspace>> + Send + 'static,
{
    let Watches { updates, requeues } = watches;
    let (client, scope) = (start.client.clone(), start.scope.clone());
    let labelled = scope.other_kinds().labels(&format!("{LABEL_COMPONENT}=workspace"));
    let first_lists = start.runner.first_lists().clone();
    let pods = tolerant_watcher::watcher::<Pod>(scope.api(client.clone()), labelled.clone());
    let stateful_sets = tolerant_watcher::watcher::<StatefulSet>(scope.api(client), labelled);
    let (pods, stateful_sets) = (first_lists.track(pods), first_lists.track(stateful_sets));
    let runs = run_changes(&scope, &context, updates, &first_lists);
    let (changed, runner) = (context.clone(), start.runner.clone());
    let authority = authority_changes(context.authority.clone());
    let triggers = |controller: Controller<Workspace>| {
        controller
            .watches_stream(only_changes(pods, decisive), |pod| workspace_of(&pod))
            .watches_stream(only_changes(stateful_sets, spec_state), move |stateful_set| {
                let workspace = workspace_of(&stateful_set)?;
                let key = (workspace.namespace.clone().unwrap_or_default(), workspace.name.clone());
                // A StatefulSet in the initial list has not necessarily changed.
                if runner.has_begun_key(&key) {
                    changed.memory.verified_parts.invalidate((&key.0, &key.1));
                }
                Some(workspace)
            })
            .watches_stream(runs, |update| {
                let namespace = update.namespace().unwrap_or_default();
                Some(ObjectRef::new(&update.spec.workspace_name).within(&namespace))
            })
            .reconcile_on(requeues)
            .reconcile_all_on(authority)
    };
    start.run(strip_unused_fields, |_| (), triggers, reconcile, context).await;
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

/// Returns a stream of Updates. The stream contains an Update when its run is bound, when the run completes, and when
/// the run starts or stops waiting for references. The store contains the current version of an Update before the
/// stream returns it.
fn run_changes(
    scope: &Scope,
    context: &Context,
    mut store: IndexWriter<Update, UpdateGroup>,
    first_lists: &FirstLists,
) -> impl Stream<Item = Result<Update, watcher::Error>> + Send + 'static {
    let updates = tolerant_watcher::watcher::<Update>(scope.api(context.client.clone()), scope.own_kinds());
    first_lists
        .track(updates)
        .modify(|update| {
            watch::strip_metadata(update);
            watch::strip_update(update);
        })
        .inspect_ok(move |event| store.apply(event))
        .touched_objects()
        .predicate_filter(run_state, Default::default())
}

fn run_state(update: &Update) -> Option<u64> {
    let status = update.status.as_ref();
    let mut hasher = DefaultHasher::new();
    let seen = |status: &UpdateStatus| (status.run.is_some(), is_true(&status.conditions, COMPLETE));
    (status.map(seen), update.is_started_by_operator(), waits_for_references(update)).hash(&mut hasher);
    Some(hasher.finish())
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
    for _ in 0..MAX_STEPS {
        let now = Timestamp::now();
        let looking = Box::pin(observe(&namespace, &name, listed.take(), &context, now));
        let Some((observed, agent)) = looking.await? else {
            return Ok(Outcome::Settled);
        };
        if context.pool.is_enabled() {
            offer(&observed, &context.pool);
        }
        let action = decide(&observed, now);
        tracing::debug!(?action, "decided");
        let act = Act { observed: &observed, agent: agent.as_ref(), context: &context, now };
        if let Step::Done(outcome) = Box::pin(act.perform(action)).await? {
            return Ok(outcome);
        }
    }
    Ok(Outcome::After(STEP_LIMIT_REQUEUE))
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

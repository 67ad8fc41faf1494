//! Watches the source kinds to which Stacks refer. The watch for a kind starts when a Stack uses a source of this kind.
//! The watch stops when no Stack refers to the kind, or when the API server no longer serves the kind.

use std::collections::HashMap;
use std::fmt;
use std::pin::pin;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use futures::channel::mpsc;
use futures::{SinkExt, Stream, StreamExt};
use kube::api::ApiResource;
use kube::core::PartialObjectMeta;
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher::{self, Event};
use kube::{Client, Error};
use tokio_util::sync::CancellationToken;

use crate::api::pulumi::Stack;
use crate::controller::stack::dependents::{StackGroup, Stacks};
use crate::controller::stack::first_sources::FirstSources;
use crate::runtime::backoff::ObjectKey;
use crate::runtime::critical_tasks::CriticalTasks;
use crate::runtime::reconcile::ReconcileRunner;
use crate::runtime::scope::Scope;
use crate::runtime::tolerant_watcher;
use crate::source::Unavailable;
use crate::source::flux::{self, Found, Reference, Sources};
use crate::source::kinds::GroupKind;

/// Capacity of the requeue channel for Stacks. While the channel is full, the watch blocks.
const WAITING: usize = 1024;
/// Interval between two checks of a watch. A check stops the watch if no Stack refers to the source kind.
const REVIEW: Duration = Duration::from_secs(5 * 60);

/// Watches for source kinds. Cheap to clone. All clones share the watches.
#[derive(Clone)]
pub struct SourceWatches(Arc<Shared>);

struct Shared {
    client: Client,
    scope: Scope,
    stacks: Stacks,
    sources: Sources,
    requeue: mpsc::Sender<ObjectRef<Stack>>,
    tasks: CriticalTasks,
    end: CancellationToken,
    first_sources: FirstSources,
    /// Runner of the Stack controller.
    runner: OnceLock<Arc<ReconcileRunner>>,
    /// Hold the lock only for short critical sections, and never across an `.await`.
    watched: Mutex<HashMap<GroupKind, Watched>>,
}

/// State of the watch for a source kind.
#[derive(Debug, Default)]
struct Watched {
    /// Message with which the API server rejected the watch, or `None` if the API server allows the watch.
    refused: Option<String>,
    /// Whether the initial list is complete.
    is_listed: bool,
}

/// Reason why a watch has ended.
#[derive(Debug, PartialEq, Eq)]
enum Ended {
    /// No Stack refers to the kind.
    Unneeded,
    /// The API server no longer serves the kind.
    NotServed,
}

impl fmt::Debug for SourceWatches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SourceWatches").finish_non_exhaustive()
    }
}

impl SourceWatches {
    /// Returns the watches, and the stream of Stacks to requeue.
    pub fn new(
        client: Client,
        scope: Scope,
        stacks: Stacks,
        sources: Sources,
        tasks: CriticalTasks,
        end: CancellationToken,
    ) -> (Self, impl Stream<Item = ObjectRef<Stack>> + Send + 'static) {
        let (requeue, requeued) = mpsc::channel(WAITING);
        let (first_sources, runner, watched) = Default::default();
        let shared = Shared { client, scope, stacks, sources, requeue, tasks, end, first_sources, runner, watched };
        (SourceWatches(Arc::new(shared)), requeued)
    }

    /// Sets the runner of the Stack controller. With the runner, the initial list of a watch requeues only the Stacks
    /// whose first reconciliation has started. All other Stacks read their sources later anyway.
    pub fn set_runner(&self, runner: Arc<ReconcileRunner>) {
        // The controller sets the runner only once, so an error is impossible.
        drop(self.0.runner.set(runner));
    }

    /// Starts the watch for this source kind, unless the watch is already running. The watch requeues the Stacks whose
    /// source changes.
    ///
    /// # Errors
    ///
    /// Returns an error if the API server rejects the watch.
    pub fn keep(&self, resource: &ApiResource) -> Result<(), Unavailable> {
        let kind = GroupKind::new(&resource.group, &resource.kind);
        let mut watched = self.0.lock();
        if let Some(watch) = watched.get(&kind) {
            return watch.refused.as_ref().map_or(Ok(()), |message| Err(flux::missing_permission(resource, message)));
        }
        watched.insert(kind.clone(), Watched::default());
        drop(watched);
        let (shared, resource) = (self.0.clone(), resource.clone());
        self.0.tasks.spawn(async move { shared.run(&kind, &resource).await });
        Ok(())
    }

    /// Promotes the first reconciliation of one Stack per source. This reconciliation reads the source, and promotes the
    /// other Stacks of the source if the source has changed while no controller was running.
    pub fn promote_one_stack_per_source(&self) {
        let Some(runner) = self.0.runner.get() else { return };
        let stacks = self.0.stacks.one_per_group(|group| matches!(group, StackGroup::Source(..)));
        stacks.iter().for_each(|stack| runner.promote(stack.as_ref()));
    }

    /// Returns a source for the first reconciliation of a Stack. Stacks with the same source share one read until the
    /// source changes.
    pub async fn find_first(&self, namespace: &str, reference: &Reference) -> Result<Found, Unavailable> {
        let first = &self.0.first_sources;
        let key = (namespace.to_owned(), reference.name.clone());
        let changes = match first.get(&reference.kind, &key) {
            Ok(found) => return Ok(found),
            Err(changes) => changes,
        };
        let found = self.0.sources.find(namespace, reference).await?;
        first.insert(&reference.kind, key.clone(), &found, changes);
        self.0.promote_outdated(&key, &found, reference);
        Ok(found)
    }
}

impl Shared {
    async fn run(&self, kind: &GroupKind, resource: &ApiResource) {
        tracing::info!(kind = %kind, version = resource.version, "started watching sources");
        let ended = tokio::select! {
            () = self.end.cancelled() => return,
            ended = self.follow(kind, resource) => ended,
        };
        tracing::info!(kind = %kind, ?ended, "stopped watching sources");
        if ended == Ended::NotServed {
            self.lock().remove(kind);
            self.sources.invalidate().await;
            // The requeued Stacks then resolve the kind and their sources again.
            let stacks = StackGroup::SourceKind(kind.clone());
            tokio::select! {
                () = self.end.cancelled() => {}
                () = self.requeue(&stacks) => {}
            }
        }
    }

    async fn follow(&self, kind: &GroupKind, resource: &ApiResource) -> Ended {
        let api = self.scope.metadata_api(self.client.clone(), resource);
        let mut events = pin!(tolerant_watcher::watcher(api, self.scope.other_kinds()));
        let mut review = tokio::time::interval(REVIEW);
        review.reset();
        loop {
            let event = tokio::select! {
                _ = review.tick() => {
                    self.first_sources.clear();
                    if self.forget_if_unneeded(kind) { return Ended::Unneeded; }
                    continue;
                }
                event = events.next() => event,
            };
            match event {
                Some(Ok(Event::Apply(source) | Event::Delete(source))) => {
                    self.first_sources.remove(kind, &key(&source));
                    self.requeue(&StackGroup::Source(kind.clone(), key(&source))).await;
                }
                // While the watch was interrupted, clients may have created or deleted sources.
                Some(Ok(Event::InitDone)) => {
                    self.first_sources.clear();
                    self.set_refused(kind, None);
                    let is_first = self.set_listed(kind);
                    let has_begun = |stack: &Stack| self.runner.get().is_none_or(|runner| runner.has_begun(stack));
                    self.requeue_if(&StackGroup::SourceKind(kind.clone()), |stack| !is_first || has_begun(stack)).await;
                }
                Some(Ok(Event::Init | Event::InitApply(_))) => {}
                Some(Err(error)) => {
                    self.first_sources.clear();
                    match refusal(&error) {
                        Some((404, _)) => return Ended::NotServed,
                        Some((403, message)) => {
                            if self.set_refused(kind, Some(message)) {
                                self.requeue(&StackGroup::SourceKind(kind.clone())).await;
                            }
                        }
                        _ => tracing::debug!(kind = %kind, %error, "watch was interrupted"),
                    }
                }
                None => return Ended::NotServed,
            }
        }
    }

    /// Promotes the first reconciliation of each Stack that has not applied the revision of its source.
    fn promote_outdated(&self, key: &ObjectKey, found: &Found, reference: &Reference) {
        let Some(runner) = self.runner.get() else { return };
        let Ok(resolved) = found.artifact(reference.directory.clone()) else { return };
        // A source that is too large for the cache is read again for each of its Stacks.
        if !self.first_sources.is_new_revision(&reference.kind, key, &resolved.revision) {
            return;
        }
        for stack in self.stacks.in_group(&StackGroup::Source(reference.kind.clone(), key.clone())) {
            let applied = stack.status.as_ref().and_then(|status| status.last_applied_revision.as_ref());
            if applied != Some(&resolved.revision) {
                runner.promote(stack.as_ref());
            }
        }
    }

    /// Records whether the API server rejects the watch. Returns whether this result has changed.
    fn set_refused(&self, kind: &GroupKind, message: Option<String>) -> bool {
        let mut watched = self.lock();
        let Some(watch) = watched.get_mut(kind) else { return false };
        let has_changed = watch.refused.is_some() != message.is_some();
        watch.refused = message;
        has_changed
    }

    /// Records that a list is complete. Returns whether the list is the initial list of the watch.
    fn set_listed(&self, kind: &GroupKind) -> bool {
        self.lock().get_mut(kind).is_some_and(|watch| !std::mem::replace(&mut watch.is_listed, true))
    }

    /// Removes the watch if no Stack refers to the kind. The check and the removal share one critical section, so a
    /// concurrent `keep` cannot find a watch that is about to stop.
    fn forget_if_unneeded(&self, kind: &GroupKind) -> bool {
        let mut watched = self.lock();
        let needed = self.stacks.has_group(&StackGroup::SourceKind(kind.clone()));
        if !needed {
            watched.remove(kind);
        }
        !needed
    }

    /// Requeues the Stacks of a group. Blocks while the channel is full. A dropped request would be lost, because a
    /// Stack without a due run may have no periodic requeue.
    async fn requeue(&self, group: &StackGroup) {
        self.requeue_if(group, |_| true).await;
    }

    /// Requeues the Stacks in a group that satisfy `predicate`.
    async fn requeue_if(&self, group: &StackGroup, predicate: impl Fn(&Stack) -> bool) {
        let mut requeue = self.requeue.clone();
        for stack in self.stacks.in_group(group).into_iter().filter(|stack| predicate(stack.as_ref())) {
            self.runner.get().inspect(|runner| runner.promote(stack.as_ref()));
            // The receiver closes the channel only when the controller shuts down.
            if requeue.send(ObjectRef::from_obj(stack.as_ref())).await.is_err() {
                return;
            }
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<GroupKind, Watched>> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn key(source: &PartialObjectMeta) -> ObjectKey {
    (source.metadata.namespace.clone().unwrap_or_default(), source.metadata.name.clone().unwrap_or_default())
}

/// Returns the status code and the message with which the API server rejected a watch.
fn refusal(error: &watcher::Error) -> Option<(u16, String)> {
    match error {
        watcher::Error::InitialListFailed(Error::Api(status))
        | watcher::Error::WatchStartFailed(Error::Api(status))
        | watcher::Error::WatchFailed(Error::Api(status))
        | watcher::Error::WatchError(status) => Some((status.code, status.message.clone())),
        _ => None,
    }
}

#[cfg(test)]
mod tests;

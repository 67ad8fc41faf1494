//! What wakes a Stack: itself, its source, its Workspace, its Updates.

use std::sync::Arc;

use futures::{Stream, StreamExt};
use kube::runtime::controller::{Config, Controller};
use kube::runtime::reflector::ObjectRef;
use kube::runtime::reflector::store::Writer as StoreWriter;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Client, Resource, ResourceExt};

use crate::api::auto::{Update, Workspace};
use crate::api::pulumi::Stack;
use crate::controller::stack::{Context, reconcile};
use crate::runtime::drive::{Drive, no_errors};
use crate::runtime::scope::Scope;
use crate::runtime::watch;

/// What the controller is fed with.
pub struct Feeds<W> {
    /// Where the watched Stacks are kept.
    pub store: StoreWriter<Stack>,
    /// Stacks whose sources have changed.
    pub woken: W,
}

impl<W> std::fmt::Debug for Feeds<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Feeds").finish_non_exhaustive()
    }
}

/// Runs the controller until it is told to end.
pub async fn controller(
    client: Client,
    scope: &Scope,
    feeds: Feeds<impl Stream<Item = ObjectRef<Stack>> + Send + 'static>,
    drive: Arc<Drive>,
    context: Arc<Context>,
    concurrency: u16,
    shutdown: impl Future<Output = ()> + Send + Sync + 'static,
) {
    let stacks = feeds.store.as_reader();
    let stream = watch::changes(scope.api(client.clone()), scope.own_kinds(), feeds.store, drive.clone());
    let updates = watcher(scope.api::<Update>(client.clone()), scope.other_kinds());
    let workspaces = watcher(scope.api::<Workspace>(client), scope.other_kinds());
    Controller::for_stream(stream, stacks)
        .with_config(Config::default().concurrency(concurrency))
        .watches_stream(updates.default_backoff().touched_objects(), |update: Update| {
            let news = update.is_complete() || update.metadata.deletion_timestamp.is_some();
            owner(&update).filter(|_| news)
        })
        .watches_stream(workspaces.default_backoff().touched_objects(), |workspace: Workspace| owner(&workspace))
        .reconcile_on(feeds.woken)
        .graceful_shutdown_on(shutdown)
        .run(
            move |stack, context| {
                let drive = drive.clone();
                async move { drive.run(stack.as_ref(), reconcile(stack.clone(), context)).await }
            },
            no_errors,
            context,
        )
        .for_each(|_| std::future::ready(()))
        .await;
}

/// The Stack that an object belongs to.
fn owner<K: Resource>(object: &K) -> Option<ObjectRef<Stack>> {
    let is_stack = |kind: &str, version: &str| kind == "Stack" && version.starts_with("pulumi.com/");
    let owner = object.owner_references().iter().find(|o| is_stack(&o.kind, &o.api_version))?;
    Some(ObjectRef::new(&owner.name).within(&object.namespace()?))
}

//! What wakes a Stack: itself, its source, its Workspace, its Updates.

use std::sync::Arc;

use futures::StreamExt;
use kube::api::DynamicObject;
use kube::runtime::controller::{Config, Controller};
use kube::runtime::reflector::{self, ObjectRef, Store as Reflected};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Resource, ResourceExt};

use crate::api::auto::{Update, Workspace};
use crate::api::pulumi::{Stack, StackSpec};
use crate::controller::stack::{Context, reconcile};
use crate::runtime::drive::{Drive, no_errors};
use crate::runtime::scope::Scope;
use crate::runtime::watch;
use crate::source::flux;

/// Runs the controller until it is told to end.
pub async fn controller(
    scope: &Scope,
    drive: Arc<Drive>,
    context: Arc<Context>,
    concurrency: u16,
    shutdown: impl Future<Output = ()> + Send + Sync + 'static,
) {
    let client = &context.client;
    let (stacks, writer) = reflector::store::<Stack>();
    let stream = watch::changes(scope.api(client.clone()), scope.own_kinds(), cut_down, writer, drive.clone());
    let updates = watcher(scope.api::<Update>(client.clone()), scope.other_kinds());
    let workspaces = watcher(scope.api::<Workspace>(client.clone()), scope.other_kinds());
    let controller = Controller::for_stream(stream, stacks.clone())
        .with_config(Config::default().concurrency(concurrency))
        .watches_stream(updates.default_backoff().touched_objects(), |update: Update| {
            let news = update.is_complete() || update.metadata.deletion_timestamp.is_some();
            owner(&update).filter(|_| news)
        })
        .watches_stream(workspaces.default_backoff().touched_objects(), |workspace: Workspace| owner(&workspace));
    let controller = flux::KINDS.iter().fold(controller, |controller, kind| {
        let resource = flux::api_resource(kind);
        let sources = watcher(scope.dynamic_api(client.clone(), &resource), scope.other_kinds());
        let stacks = stacks.clone();
        controller.watches_stream_with(
            sources.default_backoff().touched_objects(),
            move |source| of_source(&stacks, kind, &source),
            resource,
        )
    });
    controller
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

/// Leaves what tells which source feeds a Stack.
fn cut_down(stack: &mut Stack) {
    let flux_source = std::mem::take(&mut stack.spec.flux_source);
    stack.spec = StackSpec { flux_source, ..StackSpec::default() };
    stack.status = None;
}

/// The Stack that an object belongs to.
fn owner<K: Resource>(object: &K) -> Option<ObjectRef<Stack>> {
    let is_stack = |kind: &str, version: &str| kind == "Stack" && version.starts_with("pulumi.com/");
    let owner = object.owner_references().iter().find(|o| is_stack(&o.kind, &o.api_version))?;
    Some(ObjectRef::new(&owner.name).within(&object.namespace()?))
}

/// The Stacks that a source feeds.
fn of_source(stacks: &Reflected<Stack>, kind: &str, source: &DynamicObject) -> Vec<ObjectRef<Stack>> {
    let namespace = source.namespace();
    let fed = |stack: &Arc<Stack>| {
        stack.namespace() == namespace && flux::is_named_by(source, kind, &stack.spec.flux_source.source_ref)
    };
    stacks.state().iter().filter(|s| fed(s)).map(|s| ObjectRef::from_obj(s.as_ref())).collect()
}

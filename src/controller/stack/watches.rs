//! What wakes a Stack: itself, its source, its Workspace, its Updates.

use std::sync::Arc;

use futures::StreamExt;
use kube::api::DynamicObject;
use kube::runtime::controller::{Config, Controller};
use kube::runtime::reflector::{self, ObjectRef, Store as Reflected};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Resource, ResourceExt};

use crate::api::auto::{Update, Workspace};
use crate::api::conditions;
use crate::api::pulumi::Stack;
use crate::controller::stack::{Context, reconcile};
use crate::runtime::drive::{Drive, no_errors};
use crate::runtime::news::news;
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
    let stream = watch::changes(scope.api(client.clone()), scope.own_kinds(), writer, drive.clone());
    let updates = watcher(scope.api::<Update>(client.clone()), scope.other_kinds());
    let workspaces = watcher(scope.api::<Workspace>(client.clone()), scope.other_kinds());
    let controller = Controller::for_stream(stream, stacks.clone())
        .with_config(Config::default().concurrency(concurrency))
        .watches_stream(news(updates.default_backoff(), update_state), |update: Update| {
            owner(&update).filter(|_| !is_untouched(&update))
        })
        .watches_stream(news(workspaces.default_backoff(), workspace_state), |workspace: Workspace| owner(&workspace));
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

/// Of an Update that is open, whether it waits, and for what; of one that is to be let go, everything.
fn update_state(update: &Update) -> String {
    if update.is_complete() || update.metadata.deletion_timestamp.is_some() {
        return format!("{:?}", update.metadata.resource_version);
    }
    let conditions = update.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    let progressing = conditions::find(conditions, conditions::PROGRESSING);
    let waits = progressing.filter(|condition| condition.status == "False");
    format!("{:?}", waits.map(|condition| (&condition.reason, &condition.message)))
}

/// The Stack that made it knows as much of it.
fn is_untouched(update: &Update) -> bool {
    let conditions = update.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    conditions.is_empty() && update.metadata.deletion_timestamp.is_none()
}

/// What a Stack reads of its Workspace.
fn workspace_state(workspace: &Workspace) -> String {
    let metadata = &workspace.metadata;
    format!("{:?}", (metadata.generation, &metadata.annotations, &metadata.deletion_timestamp, &workspace.status))
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

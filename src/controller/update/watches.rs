//! Triggers of an Update reconcile: the Update, its Workspace, the end of the preceding Update, its attached task, and a free
//! run slot.

use std::sync::Arc;

use futures::Stream;
use futures::channel::mpsc;
use kube::ResourceExt;
use kube::runtime::Controller;
use kube::runtime::WatchStreamExt;
use kube::runtime::reflector::ObjectRef;

use crate::api::auto::{Update, Workspace};
use crate::api::names;
use crate::controller::update::context::Context;
use crate::controller::update::groups::{UpdateGroup, Updates};
use crate::controller::update::reconcile::reconcile;
use crate::runtime::controller::Start;
use crate::runtime::index::IndexWriter;
use crate::runtime::tolerant_watcher::watcher;
use crate::runtime::watch;

/// Inputs of the controller.
pub struct Feeds<G> {
    /// Updates whose attached task reports a change.
    pub wakes: mpsc::Receiver<ObjectRef<Update>>,
    /// Updates that may take a free run slot.
    pub places: G,
}

impl<G> std::fmt::Debug for Feeds<G> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Feeds").finish_non_exhaustive()
    }
}

/// Runs the controller until it is stopped.
pub async fn controller(
    start: Start<IndexWriter<Update, UpdateGroup>>,
    feeds: Feeds<impl Stream<Item = ObjectRef<Update>> + Send + 'static>,
    context: Arc<Context>,
) {
    let updates = context.updates.clone();
    let scope = start.scope.clone();
    let ended = watcher::<Update>(scope.api(start.client.clone()), scope.own_kinds());
    let workspaces = watcher::<Workspace>(scope.api(start.client.clone()), scope.own_kinds());
    let siblings = updates.clone();
    let triggers = |controller: Controller<Update>| {
        controller
            .watches_stream(ended.default_backoff().touched_objects(), move |update: Update| {
                // An Update that was released earlier wakes no others when the controller starts.
                match update.is_complete() && update.finalizers().iter().any(|f| f == names::UPDATE_FINALIZER) {
                    true => waiting(&siblings, update.namespace(), &update.spec.workspace_name),
                    false => Vec::new(),
                }
            })
            .watches_stream(workspaces.default_backoff().touched_objects(), move |workspace: Workspace| {
                waiting(&updates, workspace.namespace(), &workspace.name_any())
            })
            .reconcile_on(feeds.wakes)
            .reconcile_on(feeds.places)
    };
    start.run(watch::cut_down_update, |_| (), triggers, reconcile, context).await;
}

/// Returns the open Updates of a Workspace.
fn waiting(updates: &Updates, namespace: Option<String>, workspace: &str) -> Vec<ObjectRef<Update>> {
    let of_workspace = updates.in_group(&UpdateGroup::workspace(&namespace.unwrap_or_default(), workspace));
    of_workspace.iter().filter(|u| !u.is_complete()).map(|u| ObjectRef::from_obj(u.as_ref())).collect()
}

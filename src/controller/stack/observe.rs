//! The only reads of a Stack's reconcile.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;

use crate::api::auto::{ArtifactReference, Update, Workspace};
use crate::api::names;
use crate::api::pulumi::Stack;
use crate::controller::stack::Context;
use crate::controller::stack::decide::is_destroyed;
use crate::runtime::reads::ReadError;
use crate::source::flux::Reference;
use crate::source::{Resolved, Unavailable};

/// What is known at the start of a pass.
#[derive(Clone, Debug)]
pub struct Observed {
    pub stack: Stack,
    /// What the source has; `None` when the pass needs no source.
    pub source: Option<Result<Resolved, Unavailable>>,
    /// Whether the wanted artifact's bytes are in the store.
    pub in_store: bool,
    pub workspace: Option<Workspace>,
    /// The Update named in `status.currentUpdate`.
    pub update: Option<Update>,
    /// Its outputs, once it is complete.
    pub outputs: Option<Secret>,
    /// Every Update of this Stack that the controller knows of.
    pub updates: Vec<Arc<Update>>,
}

/// Reads what a pass needs, and no more.
pub async fn observe(stack: Stack, context: &Context) -> Result<Observed, ReadError> {
    let namespace = stack.namespace().unwrap_or_default();
    let name = stack.name_any();
    let workspace = context.reader.get_opt::<Workspace>(&namespace, &name).await?;
    let update = match current_update_name(&stack) {
        Some(current) => context.reader.get_opt::<Update>(&namespace, current).await?,
        None => None,
    };
    let outputs = match update.as_ref().filter(|u| u.is_complete()).and_then(outputs_name) {
        Some(secret) => context.reader.get_opt::<Secret>(&namespace, secret).await?,
        None => None,
    };
    let source = match needs_source(&stack, update.as_ref(), workspace.as_ref()) {
        true => Some(resolve(&stack, context).await),
        false => None,
    };
    let in_store = matches!(&source, Some(Ok(resolved)) if context.store.contains(&resolved.digest));
    let updates = context.updates_of(&namespace, &name);
    Ok(Observed { stack, source, in_store, workspace, update, outputs, updates })
}

/// What the Stack's source has. A change of it wakes the Stack from then on.
async fn resolve(stack: &Stack, context: &Context) -> Result<Resolved, Unavailable> {
    let reference = Reference::parse(&stack.spec.flux_source)?;
    let found = context.sources.look(&stack.namespace().unwrap_or_default(), &reference).await?;
    context.source_watches.keep(&found.resource)?;
    found.artifact(reference.directory)
}

/// Name of the open run's Update.
pub fn current_update_name(stack: &Stack) -> Option<&str> {
    Some(stack.status.as_ref()?.current_update.as_ref()?.name.as_str())
}

fn outputs_name(update: &Update) -> Option<&str> {
    update.status.as_ref()?.outputs.as_deref()
}

/// A run that is there is awaited whatever the source says; a Stack that is being deleted goes on with the source that
/// its pod has.
fn needs_source(stack: &Stack, update: Option<&Update>, workspace: Option<&Workspace>) -> bool {
    // An Update that has not started may still be taken back; one that has is awaited whatever the source says.
    if update.is_some_and(|u| u.is_complete() || u.status.as_ref().is_some_and(|s| s.run.is_some())) {
        return false;
    }
    match stack.metadata.deletion_timestamp {
        Some(_) => {
            stack.spec.destroy_on_finalize.unwrap_or_default()
                && !is_destroyed(stack)
                && workspace.is_none_or(|w| last_in_place(w).is_none())
                && stack.status.as_ref().is_some_and(|s| s.attempts.is_some())
        }
        None => !stack.spec.suspend.unwrap_or_default(),
    }
}

/// The artifact that a Workspace's pod has in place, if it is the one that the Workspace asks for.
pub fn in_place(workspace: &Workspace) -> Option<Resolved> {
    let reference = workspace.status.as_ref()?.artifact.as_ref()?;
    (workspace.spec.artifact.as_ref() == Some(reference)).then_some(())?;
    from_reference(reference)
}

/// The artifact that a Workspace's pod has in place, whatever the Workspace asks for: a newer one may have been refused.
pub fn last_in_place(workspace: &Workspace) -> Option<Resolved> {
    from_reference(workspace.status.as_ref()?.artifact.as_ref()?)
}

/// An artifact by its reference, without a place to fetch it from.
fn from_reference(reference: &ArtifactReference) -> Option<Resolved> {
    Some(Resolved {
        url: String::new(),
        revision: reference.revision.clone(),
        digest: reference.digest.parse().ok()?,
        directory: reference.dir.parse().ok()?,
    })
}

/// The values of the two annotations that ask for a run.
pub fn requests(stack: &Stack) -> (Option<String>, Option<String>) {
    let value = |key: &str| stack.annotations().get(key).cloned();
    (value(names::ANNOTATION_RECONCILIATION_REQUEST), value(names::ANNOTATION_REQUESTED_AT))
}

//! Writes the outputs of a Stack to the objects in `spec.writeOutputsTo`, and deletes the objects that the spec no longer
//! contains.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::ResourceExt;

use crate::api::auto::{Update, UpdateKind};
use crate::api::pulumi::{OutputObject, OutputObjectKind, OutputObjectReference, Stack, StackStatus};
use crate::controller::stack::context::Context;
use crate::controller::stack::observed::Observed;
use crate::controller::stack::{output_objects, status};
use crate::runtime::failpoint;
use crate::runtime::reads::Reader;
use crate::runtime::reconcile::ReconcileError;
use crate::runtime::writes::{Created, Object, WriteError, Writer};

/// Result of a write. An error contains the message about a permanent rejection, which a retry would not resolve.
type Written = Result<(), String>;

/// Writes the outputs of a successful update. `status` contains the result of the run. Returns `status` with the result
/// of the writes.
///
/// The controller writes the objects before the status. If it restarts in between, it writes the objects again.
pub async fn write(
    observed: &Observed,
    update: &Update,
    status: StackStatus,
    context: &Context,
    now: Timestamp,
) -> Result<StackStatus, ReconcileError> {
    let stack = &observed.stack;
    let targets = &stack.spec.write_outputs_to;
    let is_unused = targets.is_empty() && status.written_outputs.is_empty();
    if is_unused || !has_outputs(observed, update, &status) {
        return Ok(status);
    }
    // An invalid field does not prevent the run. The controller therefore reports it only now, and keeps the objects.
    if let Err(message) = output_objects::check(stack) {
        let written = status.written_outputs.clone();
        return Ok(output_objects::record(stack, status, written, &[message], now));
    }
    let (mut written, mut errors) = (Vec::new(), Vec::new());
    for target in targets {
        let reference = output_objects::reference(target);
        match write_object(observed, target, context).await? {
            Ok(()) => written.push(reference),
            Err(message) => {
                errors.push(message);
                written.extend(status.written_outputs.contains(&reference).then_some(reference));
            }
        }
    }
    for reference in &status.written_outputs {
        if targets.iter().any(|target| output_objects::reference(target) == *reference) {
            continue;
        }
        if let Err(message) = delete_object(stack, reference, context).await? {
            errors.push(message);
            written.push(reference.clone());
        }
    }
    failpoint::hit("stack-outputs-written");
    Ok(output_objects::record(stack, status, written, &errors, now))
}

/// Returns whether the Update is a successful `up` with known outputs. A deleted Stack writes no outputs.
fn has_outputs(observed: &Observed, update: &Update, recorded: &StackStatus) -> bool {
    let result = update.status.clone().unwrap_or_default();
    let is_of_update = |name: &String| *name == update.name_any();
    let last = recorded.last_update.as_ref().filter(|last| last.name.as_ref().is_some_and(is_of_update));
    let has_succeeded = last.is_some_and(|last| last.reason.is_none());
    let is_known = status::outputs_are_known(&result, observed.outputs.as_ref());
    let is_deleted = observed.stack.metadata.deletion_timestamp.is_some();
    update.spec.kind == UpdateKind::Up && has_succeeded && is_known && !is_deleted
}

async fn write_object(
    observed: &Observed,
    target: &OutputObject,
    context: &Context,
) -> Result<Written, ReconcileError> {
    let stack = &observed.stack;
    let content = match output_objects::content(target, observed.outputs.as_ref()) {
        Ok(content) => content,
        Err(message) => return Ok(Err(format!("{} {}: {message}", target.kind.as_str(), target.name))),
    };
    match target.kind {
        OutputObjectKind::Secret => {
            put(stack, output_objects::secret(stack, target, content), &context.reader, &context.writer).await
        }
        OutputObjectKind::ConfigMap => {
            put(stack, output_objects::config_map(stack, target, content), &context.reader, &context.writer).await
        }
    }
}

/// Creates or applies an object, unless another owner has an object with the same name. An apply without preconditions
/// could overwrite an object that another client creates after the read. The function therefore creates a missing
/// object, and sends the UID when it applies an existing object.
async fn put<K: Object>(
    stack: &Stack,
    mut object: K,
    reader: &Reader,
    writer: &Writer,
) -> Result<Written, ReconcileError> {
    let (namespace, name) = (object.namespace().unwrap_or_default(), object.name_any());
    let existing = match reader.get_opt::<K>(&namespace, &name).await? {
        Some(existing) => existing,
        None => match writer.create(&object).await {
            Ok(Created::New(object) | Created::Existing(object)) => object,
            Err(error) => return refusal(Err(error)),
        },
    };
    if !is_owned(stack, &existing) {
        let kind = K::kind(&());
        return Ok(Err(format!(
            "{kind} {name} exists and does not belong to this Stack: delete the {kind}, or set another name"
        )));
    }
    if let Err(error) = writer.own_created_fields(&existing).await {
        return refusal(Err(error));
    }
    object.meta_mut().uid = existing.uid();
    refusal(writer.apply::<K>(&object).await.map(drop))
}

async fn delete_object(
    stack: &Stack,
    reference: &OutputObjectReference,
    context: &Context,
) -> Result<Written, ReconcileError> {
    match reference.kind {
        OutputObjectKind::Secret => delete::<Secret>(stack, &reference.name, context).await,
        OutputObjectKind::ConfigMap => delete::<ConfigMap>(stack, &reference.name, context).await,
    }
}

/// Deletes an object, unless the object belongs to another owner.
async fn delete<K: Object>(stack: &Stack, name: &str, context: &Context) -> Result<Written, ReconcileError> {
    let namespace = stack.namespace().unwrap_or_default();
    let existing = context.reader.get_opt::<K>(&namespace, name).await?;
    let Some(owned) = existing.filter(|object| is_owned(stack, object)) else { return Ok(Ok(())) };
    refusal(context.writer.delete::<K>(&namespace, name, owned.uid().as_deref()).await)
}

fn is_owned<K: Object>(stack: &Stack, object: &K) -> bool {
    let uid = stack.uid();
    object.owner_references().iter().any(|owner| Some(&owner.uid) == uid.as_ref())
}

/// Returns the message about a write that the API server rejects permanently. If the function returned an error
/// instead, the controller would never record the run.
fn refusal(written: Result<(), WriteError>) -> Result<Written, ReconcileError> {
    match written {
        Ok(()) => Ok(Ok(())),
        Err(error) => {
            let is_final = error.is_content_rejected() || error.is_forbidden() || error.is_namespace_terminating();
            if is_final { Ok(Err(error.to_string())) } else { Err(error.into()) }
        }
    }
}

#[cfg(test)]
mod tests;

//! Helpers that end a reconcile step: they write the status, then continue or requeue.

use std::time::Duration;

use jiff::Timestamp;
use kube::ResourceExt;

use crate::api::pulumi::{Stack, StackStatus};
use crate::controller::stack::context::Context;
use crate::controller::stack::requeue::rest_after;
use crate::controller::stack::state::State;
use crate::controller::stack::status;
use crate::runtime::reconcile::ReconcileError;
use crate::runtime::writes::WriteError;

/// Continuation after a reconcile step.
#[derive(Debug)]
pub enum Next {
    /// Start another step immediately with this version of the Stack.
    Again(Box<Stack>),
    /// End the reconcile until a watch event arrives or this time has passed.
    Rest(Option<Duration>),
}

/// Writes the status. Returns the Stack from the API server if the write changed it.
pub async fn write(stack: &Stack, status: &StackStatus, context: &Context) -> Result<Option<Stack>, WriteError> {
    let written = context.writer.status(stack, status).await?;
    let namespace = stack.namespace().unwrap_or_default();
    context.metrics.stack_stands(&namespace, &stack.name_any(), status::standing(status));
    Ok(written)
}

/// Writes the status and continues with the Stack as the API server returns it.
pub async fn again(stack: &Stack, status: &StackStatus, context: &Context) -> Result<Next, ReconcileError> {
    let written = write(stack, status, context).await?;
    Ok(Next::Again(Box::new(written.unwrap_or_else(|| stack.clone()))))
}

/// Writes the conditions of the state and requeues after `known`, or after the default interval of the state.
pub async fn rest(
    stack: &Stack,
    state: &State,
    known: Option<Duration>,
    context: &Context,
    now: Timestamp,
) -> Result<Next, ReconcileError> {
    write(stack, &status::with_state(stack, state, now), context).await?;
    Ok(Next::Rest(rest_after(state, known, context.requeue_dependency)))
}

//! The end of a step: the status is written, then comes another pass or a rest.

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

/// What comes after a step.
#[derive(Debug)]
pub enum Next {
    /// Another pass at once, with the Stack as it is now.
    Again(Box<Stack>),
    /// Nothing to do until something changes, or this time has passed.
    Rest(Option<Duration>),
}

/// Writes a status; the answer is the Stack as it is then, if that was news.
pub async fn write(stack: &Stack, status: &StackStatus, context: &Context) -> Result<Option<Stack>, WriteError> {
    let written = context.writer.status(stack, status).await?;
    let namespace = stack.namespace().unwrap_or_default();
    context.metrics.stack_stands(&namespace, &stack.name_any(), status::standing(status));
    Ok(written)
}

/// Writes a status and continues with the Stack as the API server returns it.
pub async fn again(stack: &Stack, status: &StackStatus, context: &Context) -> Result<Next, ReconcileError> {
    let written = write(stack, status, context).await?;
    Ok(Next::Again(Box::new(written.unwrap_or_else(|| stack.clone()))))
}

/// Writes how the Stack stands and rests, until the time that is known or as long as one rests that stands so.
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

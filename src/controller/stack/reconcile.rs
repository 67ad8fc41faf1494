//! The reconcile loop of a Stack: observe, decide, act.

use std::sync::Arc;

use jiff::Timestamp;
use kube::ResourceExt;

use crate::api::pulumi::Stack;
use crate::controller::stack::act::act;
use crate::controller::stack::context::Context;
use crate::controller::stack::decide::decide;
use crate::controller::stack::observe::observe;
use crate::controller::stack::step::Next;
use crate::runtime::reconcile::{Outcome, ReconcileError};

/// Maximum number of steps before the Stack is requeued, so that other Stacks get their turn.
const STEPS: usize = 8;

/// Reconciles a Stack: observe, decide, act. Each action also writes the status.
pub async fn reconcile(stack: Arc<Stack>, context: Arc<Context>) -> Result<Outcome, ReconcileError> {
    context.caches.wait().await?;
    context.metrics.stacks(context.stacks.store().len());
    // The cache may lag behind the controller's own last write, but the record of runs has to be current.
    let namespace = stack.namespace().unwrap_or_default();
    let Some(live) = context.reader.get_opt::<Stack>(&namespace, &stack.name_any()).await? else {
        return Ok(Outcome::Settled);
    };
    let mut stack = Box::new(live);
    for _ in 0..STEPS {
        let observed = Box::pin(observe(*stack, &context)).await?;
        let now = Timestamp::now();
        let action = decide(&observed, now);
        tracing::debug!(action = action.name(), "decided");
        match Box::pin(act(&observed, action, &context, now)).await? {
            Next::Again(next) => stack = next,
            Next::Rest(None) => return Ok(Outcome::Settled),
            Next::Rest(Some(after)) => return Ok(Outcome::After(after)),
        }
    }
    Ok(Outcome::After(std::time::Duration::from_secs(1)))
}

//! Reconcile loop of an Update: observe, decide, act.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kube::ResourceExt;

use crate::api::auto::Update;
use crate::controller::update::act::{Next, act};
use crate::controller::update::context::Context;
use crate::controller::update::decide::decide;
use crate::controller::update::observe::observe;
use crate::runtime::reconcile::{Outcome, ReconcileError};

/// Maximum number of steps per reconcile, so that other Updates get their turn.
const STEPS: usize = 6;

/// Reconciles an Update step by step. Each action writes the status itself.
pub async fn reconcile(update: Arc<Update>, context: Arc<Context>) -> Result<Outcome, ReconcileError> {
    context.adopt_open_runs();
    // The cache may lag behind the last write of this controller, but the binding of a run must be current.
    let namespace = update.namespace().unwrap_or_default();
    let Some(live) = context.reader.get_opt::<Update>(&namespace, &update.name_any()).await? else {
        context.forget(&update);
        return Ok(Outcome::Settled);
    };
    let live = context.writer.take_over(&live).await?.unwrap_or(live);
    let mut update = Box::new(live);
    for _ in 0..STEPS {
        let observed = observe(*update, &context).await?;
        let now = Timestamp::now();
        let action = decide(&observed, now);
        tracing::debug!(action = action.name(), "decided");
        match act(&observed, action, &context, now).await? {
            Next::Again(next) => update = next,
            Next::Done(None) => return Ok(Outcome::Settled),
            Next::Done(Some(after)) => return Ok(Outcome::After(after)),
        }
    }
    Ok(Outcome::After(Duration::from_secs(1)))
}

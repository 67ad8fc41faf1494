//! One pass of an Update: observe, decide, act.

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

/// How many steps one reconcile takes at most before it lets others have their turn.
const STEPS: usize = 6;

/// Brings an Update forward: observe, decide, act; status is part of each act.
pub async fn reconcile(update: Arc<Update>, context: Arc<Context>) -> Result<Outcome, ReconcileError> {
    context.adopt_open_runs();
    // The cache may lag behind our own last write; what a run is bound to must not.
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
            Next::Rest(None) => return Ok(Outcome::Settled),
            Next::Rest(Some(after)) => return Ok(Outcome::After(after)),
        }
    }
    Ok(Outcome::After(Duration::from_secs(1)))
}

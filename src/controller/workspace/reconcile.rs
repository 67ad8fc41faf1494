//! Reconcile loop of a Workspace: observe, decide, act.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;

use super::act::{Act, Step};
use super::context::Context;
use super::decide::decide;
use super::observe::observe;
use crate::api::auto::Workspace;
use crate::runtime::reconcile::{Outcome, ReconcileError};

/// Maximum number of steps per reconcile. No Workspace needs more.
const MAX_STEPS: usize = 12;
/// Requeue interval if the steps did not suffice.
const STEP_LIMIT_REQUEUE: Duration = Duration::from_secs(1);

/// Reconciles a Workspace step by step until nothing is due.
pub async fn reconcile(workspace: Arc<Workspace>, context: Arc<Context>) -> Result<Outcome, ReconcileError> {
    context.caches.wait().await?;
    let (namespace, name) = (workspace.namespace().unwrap_or_default(), workspace.name_any());
    for _ in 0..MAX_STEPS {
        let now = Timestamp::now();
        let looking = Box::pin(observe(&namespace, &name, &context, now));
        let Some((observed, agent)) = looking.await? else {
            return Ok(Outcome::Settled);
        };
        let action = decide(&observed, now);
        tracing::debug!(?action, "decided");
        let act = Act { observed: &observed, agent: agent.as_ref(), context: &context, now };
        if let Step::Done(outcome) = Box::pin(act.perform(action)).await? {
            return Ok(outcome);
        }
    }
    Ok(Outcome::After(STEP_LIMIT_REQUEUE))
}

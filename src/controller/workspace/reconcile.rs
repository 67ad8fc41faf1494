//! One reconcile of a Workspace: observe, decide and act, step by step.

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

/// More steps than any Workspace needs in one go.
const MAX_STEPS: usize = 12;
/// How soon the next reconcile comes when they were not enough.
const GO_ON: Duration = Duration::from_secs(1);

/// Looks, decides and acts until there is nothing to do now.
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
    Ok(Outcome::After(GO_ON))
}

//! The reconciler of Workspaces: a pod in which Pulumi runs, with the wanted source in place.
//!
//! `render` says what a Workspace is made of; `observe` looks, `decide` says what to do next, `act` does it, `status`
//! says how things are.

mod act;
mod agent_probe;
mod apply_conflicts;
mod config;
mod context;
mod controller;
mod decide;
mod environment;
mod guard;
mod init_containers;
mod input_watch;
mod observe;
mod parts;
mod pod;
mod pod_security;
mod pod_state;
mod references;
mod render;
mod report;
mod repository;
mod restrictions;
mod revision;
mod security;
mod service;
mod source;
mod status;
mod tls;
mod verified_parts;
mod version;
mod warnings;

#[cfg(test)]
mod apply_conflicts_tests;
#[cfg(test)]
mod cache_tests;
#[cfg(test)]
mod decide_tests;
#[cfg(test)]
mod operator_tests;
#[cfg(test)]
mod render_tests;
#[cfg(test)]
mod source_tests;

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;

pub use agent_probe::AgentProbes;
pub use config::{files as config_files, settings};
pub use context::{Context, Memory};
pub use controller::{Watches, controller};
pub use environment::run_environment;
pub use input_watch::InputWatch;
pub use pod_state::is_operators as is_operators_pod;
pub use references::references;
pub use render::{PodSettings, Rendered, SpecError, render};
pub use restrictions::PodRestrictions;

use crate::api::auto::Workspace;
use crate::runtime::reconcile::{Outcome, ReconcileError};

/// More steps than any Workspace needs in one go.
const MAX_STEPS: usize = 12;
/// How soon to go on when they were not enough.
const GO_ON: Duration = Duration::from_secs(1);

/// Looks, decides and acts until there is nothing to do now.
pub async fn reconcile(workspace: Arc<Workspace>, context: Arc<Context>) -> Result<Outcome, ReconcileError> {
    context.caches.wait().await?;
    let (namespace, name) = (workspace.namespace().unwrap_or_default(), workspace.name_any());
    for _ in 0..MAX_STEPS {
        let now = Timestamp::now();
        let looking = Box::pin(observe::observe(&namespace, &name, &context, now));
        let Some((observed, agent)) = looking.await? else {
            return Ok(Outcome::Settled);
        };
        let action = decide::decide(&observed, now);
        tracing::debug!(?action, "decided");
        let act = act::Act { observed: &observed, agent: agent.as_ref(), context: &context, now };
        if let act::Step::Done(outcome) = Box::pin(act.perform(action)).await? {
            return Ok(outcome);
        }
    }
    Ok(Outcome::After(GO_ON))
}

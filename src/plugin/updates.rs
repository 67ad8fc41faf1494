//! Updates of a Stack, which record its runs.

use kube::ResourceExt as _;
use kube::api::ListParams;
use pulumi_controller::api::auto::{Update, UpdatePhase};
use pulumi_controller::api::names;
use pulumi_controller::api::pulumi::Stack;

use crate::plugin::cluster::{Cluster, Scope};
use crate::plugin::error::PluginError;

/// Returns the Updates of a Stack, newest first.
///
/// # Errors
///
/// Returns an error if the request fails.
pub async fn list(cluster: &Cluster, namespace: &str, stack: &str) -> Result<Vec<Update>, PluginError> {
    let labels = format!("{}={stack}", names::LABEL_STACK_NAME);
    let scope = Scope::Namespace(namespace.to_owned());
    let mut updates: Vec<Update> = cluster.list(&scope, ListParams::default().labels(&labels)).await?;
    // The names of the Updates of a Stack sort by creation.
    updates.sort_by_key(|update| std::cmp::Reverse((update.creation_timestamp(), update.name_any())));
    Ok(updates)
}

/// Returns the name of the open run of a Stack, or else of its last run.
pub fn current_or_last(stack: &Stack) -> Option<&str> {
    let status = stack.status.as_ref()?;
    let open = status.current_update.as_ref().map(|open| open.name.as_str());
    open.or_else(|| status.last_update.as_ref()?.name.as_deref())
}

/// Returns the phase of an Update. Without a status, the run waits.
pub fn phase(update: &Update) -> &'static str {
    match update.status.as_ref().and_then(|status| status.phase) {
        None | Some(UpdatePhase::Waiting) => "Waiting",
        Some(UpdatePhase::Starting) => "Starting",
        Some(UpdatePhase::Running) => "Running",
        Some(UpdatePhase::Canceling) => "Canceling",
        Some(UpdatePhase::OutcomeUnknown) => "OutcomeUnknown",
        Some(UpdatePhase::Succeeded) => "Succeeded",
        Some(UpdatePhase::Failed) => "Failed",
    }
}

//! Lists the Updates of a Stack. Each Update records one run.

use kube::api::ListParams;
use pulumi_controller::api::auto::Update;
use pulumi_controller::api::names;
use pulumi_controller::view::runs;

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
    runs::sort(&mut updates);
    Ok(updates)
}

//! `cancel`: cancels the open or queued run of a Stack.

use kube::ResourceExt as _;
use pulumi_controller::api::names::ANNOTATION_CANCEL;
use pulumi_controller::api::pulumi::Stack;
use pulumi_controller::view::requests::annotations;

use crate::plugin::args::CancelFlags;
use crate::plugin::cluster::Cluster;
use crate::plugin::error::PluginError;
use crate::plugin::progress::Progress;
use crate::plugin::select::full_name;

/// Cancels the open or queued run of a Stack.
///
/// # Errors
///
/// Returns an error if no run is open or queued, or if a request fails.
pub async fn run(cluster: &Cluster, flags: &CancelFlags) -> Result<(), PluginError> {
    let stack: Stack = cluster.get(cluster.namespace(), &flags.stack).await?;
    let run = run_to_cancel(&stack, flags.run.as_deref())?;
    let mut progress = Progress::new();
    progress.action(&format!("canceling run {run} of Stack {}", full_name(&stack)));
    let patch = annotations(&[(ANNOTATION_CANCEL, run)]);
    cluster.merge::<Stack>(cluster.namespace(), &stack.name_any(), &patch).await?;
    progress.success("cancellation requested");
    progress.note(
        "Pulumi completes the resource operations in progress. The Stack runs again after a change, or after: kubectl \
         pulumi reconcile",
    );
    Ok(())
}

/// Returns the name of the run that the controller must cancel. The annotation contains the run name instead of a time,
/// so the command never cancels a later run.
fn run_to_cancel<'a>(stack: &'a Stack, named: Option<&str>) -> Result<&'a str, PluginError> {
    let open = stack.status.as_ref().and_then(|status| status.current_update.as_ref()).map(|open| open.name.as_str());
    let name = full_name(stack);
    match (open, named) {
        (Some(open), Some(named)) if open != named => Err(PluginError::NotReady(format!(
            "failed to cancel run {named} of Stack {name}: the open or queued run is {open}; use this name"
        ))),
        (Some(open), _) => Ok(open),
        (None, _) => Err(PluginError::NotReady(format!(
            "failed to cancel a run of Stack {name}: no run is open or queued. To prevent new runs, run: kubectl \
             pulumi suspend"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::plugin::fixtures::stack;

    #[test]
    fn only_the_open_run_is_canceled() {
        let open = stack("web", &json!({}), &json!({ "currentUpdate": { "name": "web-2" } }));
        assert_eq!(run_to_cancel(&open, None).unwrap(), "web-2");
        assert_eq!(run_to_cancel(&open, Some("web-2")).unwrap(), "web-2");
        let other = run_to_cancel(&open, Some("web-1")).unwrap_err().to_string();
        assert!(other.contains("the open or queued run is web-2"), "{other}");
        let idle = stack("web", &json!({}), &json!({}));
        assert_eq!(run_to_cancel(&idle, None).unwrap_err().exit_code(), 5);
    }
}

//! `reconcile`: requests a run of Stacks, and waits for its result.

use std::collections::BTreeSet;

use kube::ResourceExt as _;
use pulumi_controller::api::pulumi::Stack;
use pulumi_controller::view::{phase, requests};

use crate::plugin::args::ReconcileFlags;
use crate::plugin::cluster::Cluster;
use crate::plugin::error::PluginError;
use crate::plugin::follow;
use crate::plugin::progress::Progress;
use crate::plugin::select::{self, full_name};
use crate::plugin::sources::Source;

/// Requests a run of Stacks.
///
/// # Errors
///
/// Returns an error if a Stack is suspended, if a run fails, if a request fails, or if the timeout expires.
pub async fn run(cluster: &Cluster, flags: &ReconcileFlags) -> Result<(), PluginError> {
    let mut progress = Progress::new();
    let stacks = select::selected(cluster, &flags.selection).await?;
    let (stacks, suspended): (Vec<Stack>, Vec<Stack>) = stacks.into_iter().partition(|s| !phase::is_suspended(s));
    let mut failures = skip_suspended(&suspended, flags.selection.stacks.is_empty(), &mut progress);
    let value = requests::request_value();
    if flags.with_source {
        reconcile_sources(cluster, &stacks, &value, &mut progress).await?;
    }
    let patch = if flags.refresh { requests::request_with_refresh(&value) } else { requests::request(&value) };
    for stack in &stacks {
        progress.action(&format!("annotating Stack {}", full_name(stack)));
        let (namespace, name) = (stack.namespace().unwrap_or_default(), stack.name_any());
        cluster.merge::<Stack>(&namespace, &name, &patch).await?;
        progress.success("Stack annotated");
    }
    if !flags.no_wait {
        for stack in &stacks {
            progress.action(&format!("waiting for the run of Stack {}", full_name(stack)));
            let of_request = |stack: &Stack| follow::of_request(stack, &value);
            match Box::pin(follow::wait(cluster, stack, of_request, &mut progress)).await {
                Ok(result) => progress.success(&format!("Stack {}: {result}", full_name(stack))),
                Err(error) => collect(error, &mut failures, &mut progress)?,
            }
        }
    }
    summarize(failures)
}

/// Reports the suspended Stacks. Named Stacks that are suspended are failures.
fn skip_suspended(suspended: &[Stack], is_selection: bool, progress: &mut Progress) -> Vec<String> {
    let mut failures = Vec::new();
    for stack in suspended {
        let name = full_name(stack);
        if is_selection {
            progress.note(&format!("skipping Stack {name}: it is suspended"));
        } else {
            let message = format!("failed to reconcile Stack {name}: it is suspended; run: kubectl pulumi resume");
            progress.failure(&message);
            failures.push(message);
        }
    }
    failures
}

/// Reconciles each source of the Stacks once.
async fn reconcile_sources(
    cluster: &Cluster,
    stacks: &[Stack],
    value: &str,
    progress: &mut Progress,
) -> Result<(), PluginError> {
    let mut done = BTreeSet::new();
    for stack in stacks {
        let Some(source) = Source::of(stack) else {
            progress.note(&format!("Stack {} has no Flux source: nothing to reconcile first", full_name(stack)));
            continue;
        };
        if !done.insert(source.describe()) {
            continue;
        }
        progress.action(&format!("annotating {}", source.describe()));
        let revision = source.reconcile(cluster, value, progress).await?;
        progress.success(&format!("fetched revision {revision}"));
    }
    Ok(())
}

/// Reports the failure of one Stack, so that the command continues with the other Stacks.
///
/// # Errors
///
/// Returns an error only if it also affects the other Stacks.
pub fn collect(error: PluginError, failures: &mut Vec<String>, progress: &mut Progress) -> Result<(), PluginError> {
    match error {
        PluginError::NotReady(message) => {
            progress.failure(&message);
            failures.push(message);
            Ok(())
        }
        other => Err(other),
    }
}

/// Returns an error if at least one Stack has failed. The command has already printed the causes.
///
/// # Errors
///
/// Returns an error with the number of failures.
pub fn summarize(failures: Vec<String>) -> Result<(), PluginError> {
    match failures.len() {
        0 => Ok(()),
        1 => Err(PluginError::NotReady("1 Stack has failed; the cause is above".to_owned())),
        count => Err(PluginError::NotReady(format!("{count} Stacks have failed; the causes are above"))),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::plugin::fixtures::stack;

    #[test]
    fn a_suspended_stack_is_a_failure_only_if_it_is_named() {
        let suspended = [stack("web", &json!({ "suspend": true }), &json!({}))];
        assert!(skip_suspended(&suspended, true, &mut Progress::new()).is_empty());
        let failures = skip_suspended(&suspended, false, &mut Progress::new());
        assert!(failures[0].contains("apps/web"), "{failures:?}");
        assert_eq!(summarize(failures).unwrap_err().exit_code(), 5);
        assert!(summarize(Vec::new()).is_ok());
    }

    #[test]
    fn only_a_failure_of_the_stack_lets_the_command_continue() {
        let mut failures = Vec::new();
        let not_ready = PluginError::NotReady("broken".to_owned());
        assert!(collect(not_ready, &mut failures, &mut Progress::new()).is_ok());
        let timed_out = PluginError::TimedOut("too slow".to_owned());
        assert_eq!(collect(timed_out, &mut failures, &mut Progress::new()).unwrap_err().exit_code(), 4);
        assert_eq!(failures, ["broken"]);
    }
}

//! `suspend` and `resume`: set and clear `spec.suspend` of the selected Stacks.

use kube::ResourceExt as _;
use pulumi_controller::api::pulumi::Stack;
use pulumi_controller::view::{phase, requests};

use crate::plugin::args::{ResumeFlags, Selection};
use crate::plugin::cluster::Cluster;
use crate::plugin::commands::reconcile::Missed;
use crate::plugin::error::PluginError;
use crate::plugin::follow;
use crate::plugin::progress::Progress;
use crate::plugin::select::{self, full_name};

/// Suspends Stacks. Open runs continue.
///
/// # Errors
///
/// Returns an error if no Stack is selected, or if a request fails.
pub async fn suspend(cluster: &Cluster, selection: &Selection) -> Result<(), PluginError> {
    let mut progress = Progress::new();
    let stacks = select::selected(cluster, selection).await?;
    let mut missed = Missed::new(stacks.len());
    for stack in &stacks {
        if let Err(error) = change(cluster, stack, true, &mut progress).await {
            missed.add(error, &mut progress)?;
        } else if stack.status.as_ref().is_some_and(|status| status.current_update.is_some()) {
            progress.note("the open run continues; to stop it, run: kubectl pulumi cancel");
        }
    }
    missed.summarize()
}

/// Resumes Stacks.
///
/// # Errors
///
/// Returns an error if no Stack is selected, if a request fails, or with `--wait` if a Stack does not become Ready.
pub async fn resume(cluster: &Cluster, flags: &ResumeFlags) -> Result<(), PluginError> {
    let mut progress = Progress::new();
    let stacks = select::selected(cluster, &flags.selection).await?;
    let mut missed = Missed::new(stacks.len());
    let mut resumed = Vec::new();
    for stack in &stacks {
        match change(cluster, stack, false, &mut progress).await {
            Ok(()) => resumed.push(stack),
            Err(error) => missed.add(error, &mut progress)?,
        }
    }
    for stack in resumed.into_iter().filter(|_| flags.wait) {
        progress.action(&format!("waiting for Stack {}", full_name(stack)));
        match Box::pin(follow::wait(cluster, stack, follow::of_readiness, &mut progress)).await {
            Ok(result) => progress.success(&format!("Stack {}: {result}", full_name(stack))),
            Err(error) => missed.add(error, &mut progress)?,
        }
    }
    missed.summarize()
}

async fn change(
    cluster: &Cluster,
    stack: &Stack,
    is_suspended: bool,
    progress: &mut Progress,
) -> Result<(), PluginError> {
    let (doing, done) = if is_suspended { ("suspending", "suspended") } else { ("resuming", "resumed") };
    let name = full_name(stack);
    if phase::is_suspended(stack) == is_suspended {
        let state = if is_suspended { "already suspended" } else { "not suspended" };
        progress.note(&format!("Stack {name} is {state}"));
        return Ok(());
    }
    progress.action(&format!("{doing} Stack {name}"));
    let namespace = stack.namespace().unwrap_or_default();
    cluster.merge::<Stack>(&namespace, &stack.name_any(), &requests::suspension(is_suspended)).await?;
    progress.success(&format!("Stack {done}"));
    Ok(())
}

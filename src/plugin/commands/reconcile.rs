//! `reconcile`: requests a run for each selected Stack, and waits for the results.

use std::collections::BTreeMap;
use std::time::Duration;

use kube::ResourceExt as _;
use pulumi_controller::api::pulumi::Stack;
use pulumi_controller::view::{phase, requests};
use serde_json::Value;
use tokio::time::Instant;

use crate::plugin::args::ReconcileFlags;
use crate::plugin::cluster::Cluster;
use crate::plugin::error::PluginError;
use crate::plugin::follow::{self, POLL_INTERVAL};
use crate::plugin::progress::Progress;
use crate::plugin::select::{self, full_name};
use crate::plugin::sources::Source;

/// Maximum time that the command waits for the controller to start a run for a new source revision.
const START_TIMEOUT: Duration = Duration::from_secs(20);

/// Run that the command waits for.
#[derive(Debug, PartialEq, Eq)]
enum Goal {
    /// The run that the reconcile annotation requests.
    Requested,
    /// The run that a new source revision has started. Contains the name of the previous run.
    After(Option<String>),
}

/// Requests a run for each selected Stack, and waits for the results.
///
/// # Errors
///
/// Returns an error if a Stack is suspended, if a run fails or waits, if a request fails, or if the timeout expires.
pub async fn run(cluster: &Cluster, flags: &ReconcileFlags) -> Result<(), PluginError> {
    let mut progress = Progress::new();
    let stacks = select::selected(cluster, &flags.selection).await?;
    let (stacks, suspended): (Vec<Stack>, Vec<Stack>) = stacks.into_iter().partition(|s| !phase::is_suspended(s));
    let mut missed = Missed::new(stacks.len() + suspended.len());
    skip_suspended(&suspended, flags.selection.stacks.is_empty(), &mut missed, &mut progress);
    let value = requests::request_value();
    let mut revisions = BTreeMap::new();
    if flags.with_source {
        revisions = Box::pin(reconcile_sources(cluster, &stacks, &value, &missed, &mut progress)).await?;
    }
    let started_until = (Instant::now() + START_TIMEOUT).min(cluster.deadline());
    let patch = if flags.refresh { requests::request_with_refresh(&value) } else { requests::request(&value) };
    let mut goals = Vec::new();
    for stack in stacks {
        // A run for a new revision does not refresh the state. With `--refresh`, the command therefore requests a run.
        let revision = match Source::of(&stack).and_then(|source| revisions.get(&source.describe())) {
            Some(None) => {
                missed.failed += 1;
                continue;
            }
            Some(Some(revision)) if !flags.refresh => Some(revision.as_str()),
            _ => None,
        };
        match Box::pin(start(cluster, &stack, revision, started_until, &patch, &mut progress)).await {
            Ok(goal) => goals.push((stack, goal)),
            Err(error) => missed.add(error, &mut progress)?,
        }
    }
    for (stack, goal) in goals.iter().filter(|_| !flags.no_wait) {
        progress.action(&format!("waiting for the run of Stack {}", full_name(stack)));
        let assess = |stack: &Stack| match goal {
            Goal::Requested => follow::of_request(stack, &value),
            Goal::After(earlier) => follow::of_next_run(stack, earlier.as_deref()),
        };
        match Box::pin(follow::wait(cluster, stack, assess, &mut progress)).await {
            Ok(result) => progress.success(&format!("Stack {}: {result}", full_name(stack))),
            Err(error) => missed.add(error, &mut progress)?,
        }
    }
    missed.summarize()
}

/// Waits for the run that a new source revision starts or, without such a run, requests a run.
async fn start(
    cluster: &Cluster,
    stack: &Stack,
    revision: Option<&str>,
    until: Instant,
    patch: &Value,
    progress: &mut Progress,
) -> Result<Goal, PluginError> {
    if let Some(revision) = revision
        && let Some(goal) = Box::pin(started_run(cluster, stack, revision, until, progress)).await?
    {
        return Ok(goal);
    }
    request(cluster, stack, patch, progress).await?;
    Ok(Goal::Requested)
}

/// Requests a run of a Stack.
async fn request(cluster: &Cluster, stack: &Stack, patch: &Value, progress: &mut Progress) -> Result<(), PluginError> {
    progress.action(&format!("annotating Stack {}", full_name(stack)));
    let (namespace, name) = (stack.namespace().unwrap_or_default(), stack.name_any());
    cluster.merge::<Stack>(&namespace, &name, patch).await?;
    progress.success("Stack annotated");
    Ok(())
}

/// Waits until a new source revision has started a run. Returns `None` if the command must request a run. `before` is
/// the Stack as it was before the source reconciliation.
async fn started_run(
    cluster: &Cluster,
    before: &Stack,
    revision: &str,
    until: Instant,
    progress: &mut Progress,
) -> Result<Option<Goal>, PluginError> {
    if attempted(before) == Some(revision) {
        return Ok(None);
    }
    let (namespace, name) = (before.namespace().unwrap_or_default(), before.name_any());
    loop {
        let stack: Stack = cluster.get(&namespace, &name).await?;
        if let Some(goal) = run_of_revision(before, &stack, revision) {
            progress.success(&format!("the new revision has started a run of Stack {}", full_name(before)));
            return Ok(Some(goal));
        }
        // The revision starts no run if its changes do not affect the Stack, or if the Stack waits.
        if Instant::now() + POLL_INTERVAL > until {
            return Ok(None);
        }
        progress.state(&format!("waiting for a run of Stack {} with the new revision", full_name(before)));
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Returns the run that a new revision has started between two observed states of a Stack.
fn run_of_revision(before: &Stack, now: &Stack, revision: &str) -> Option<Goal> {
    if attempted(before) == Some(revision) || attempted(now) != Some(revision) {
        return None;
    }
    let is_open = now.status.as_ref().is_some_and(|status| status.current_update.is_some());
    let last = |stack: &Stack| stack.status.as_ref()?.last_update.as_ref()?.name.clone();
    // While the run is open, the last run in the status is the previous run.
    Some(Goal::After(last(if is_open { now } else { before })))
}

/// Returns the source revision of the last run that the controller has started.
fn attempted(stack: &Stack) -> Option<&str> {
    stack.status.as_ref()?.last_attempted_revision.as_deref()
}

/// Reports the suspended Stacks. A suspended Stack is an error only if the user has named the Stack.
fn skip_suspended(suspended: &[Stack], is_selection: bool, missed: &mut Missed, progress: &mut Progress) {
    for stack in suspended {
        let name = full_name(stack);
        if is_selection {
            progress.note(&format!("skipping Stack {name}: it is suspended"));
        } else {
            let resume = "run: kubectl pulumi resume";
            progress.failure(&format!("failed to reconcile Stack {name}: it is suspended; {resume}"));
            missed.failed += 1;
        }
    }
}

/// Reconciles each distinct source of the Stacks once, and returns the fetched revision of each source. The revision is
/// `None` if the source has failed, and the command continues with the Stacks that have another source.
async fn reconcile_sources(
    cluster: &Cluster,
    stacks: &[Stack],
    value: &str,
    missed: &Missed,
    progress: &mut Progress,
) -> Result<BTreeMap<String, Option<String>>, PluginError> {
    let mut revisions = BTreeMap::new();
    for stack in stacks {
        let Some(source) = Source::of(stack) else {
            progress.note(&format!("Stack {} has no Flux source: nothing to reconcile first", full_name(stack)));
            continue;
        };
        if revisions.contains_key(&source.describe()) {
            continue;
        }
        progress.action(&format!("annotating {}", source.describe()));
        let revision = match Box::pin(source.reconcile(cluster, value, progress)).await {
            Ok(revision) => {
                progress.success(&format!("fetched revision {revision}"));
                Some(revision)
            }
            Err(error) if missed.continues_after(&error) => {
                progress.failure(&error.to_string());
                None
            }
            Err(error) => return Err(error),
        };
        revisions.insert(source.describe(), revision);
    }
    Ok(revisions)
}

/// Numbers of Stacks that have failed or that wait. The command prints the cause for each Stack, and continues with the
/// other Stacks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Missed {
    /// Whether the command changes several Stacks.
    has_several: bool,
    failed: usize,
    waiting: usize,
}

impl Missed {
    /// Returns the numbers for a command that changes this number of Stacks.
    pub fn new(stacks: usize) -> Self {
        Missed { has_several: stacks > 1, ..Missed::default() }
    }

    /// Returns whether an error concerns only one of several Stacks, or only its source. For example, another user can
    /// have deleted the Stack.
    fn continues_after(&self, error: &PluginError) -> bool {
        let concerns_one = match error {
            PluginError::NotReady(_) | PluginError::NotFound { .. } | PluginError::Failed(_) => true,
            PluginError::Refused { code, .. } => matches!(code, 400 | 403 | 404 | 409 | 422),
            _ => false,
        };
        self.has_several && concerns_one
    }

    /// Reports an error that concerns one Stack.
    ///
    /// # Errors
    ///
    /// Returns the error if it also affects the other Stacks.
    pub fn add(&mut self, error: PluginError, progress: &mut Progress) -> Result<(), PluginError> {
        match error {
            PluginError::NotReady(message) => {
                progress.failure(&message);
                self.failed += 1;
            }
            PluginError::Waiting(message) => {
                progress.note(&message);
                self.waiting += 1;
            }
            other if self.continues_after(&other) => {
                progress.failure(&other.to_string());
                self.failed += 1;
            }
            other => return Err(other),
        }
        Ok(())
    }

    /// Returns an error if at least one Stack has failed or waits.
    ///
    /// # Errors
    ///
    /// Returns an error that contains the number of failed and waiting Stacks.
    pub fn summarize(self) -> Result<(), PluginError> {
        match (self.failed, self.waiting) {
            (0, 0) => Ok(()),
            (0, 1) => Err(PluginError::Waiting("1 Stack waits; the cause is above".to_owned())),
            (0, count) => Err(PluginError::Waiting(format!("{count} Stacks wait; the causes are above"))),
            (1, _) => Err(PluginError::NotReady("1 Stack has failed; the cause is above".to_owned())),
            (count, _) => Err(PluginError::NotReady(format!("{count} Stacks have failed; the causes are above"))),
        }
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
        let mut missed = Missed::default();
        skip_suspended(&suspended, true, &mut missed, &mut Progress::new());
        assert_eq!(missed, Missed::default());
        skip_suspended(&suspended, false, &mut missed, &mut Progress::new());
        assert_eq!(missed, Missed { failed: 1, ..Missed::default() });
        assert_eq!(missed.summarize().unwrap_err().exit_code(), 5);
        assert!(Missed::default().summarize().is_ok());
    }

    #[test]
    fn only_an_error_of_the_stack_lets_the_command_continue() {
        let mut missed = Missed::default();
        let mut progress = Progress::new();
        assert!(missed.add(PluginError::Waiting("approval".to_owned()), &mut progress).is_ok());
        let waiting = missed.summarize().unwrap_err();
        assert_eq!(crate::plugin::message(&waiting), "ℹ 1 Stack waits; the cause is above");
        assert_eq!(waiting.exit_code(), 5);
        assert!(missed.add(PluginError::NotReady("broken".to_owned()), &mut progress).is_ok());
        let timed_out = PluginError::TimedOut("too slow".to_owned());
        assert_eq!(missed.add(timed_out, &mut progress).unwrap_err().exit_code(), 4);
        assert_eq!(missed, Missed { failed: 1, waiting: 1, ..Missed::default() });
        assert_eq!(
            crate::plugin::message(&missed.summarize().unwrap_err()),
            "✗ 1 Stack has failed; the cause is above"
        );
    }

    #[test]
    fn the_rejection_of_one_request_does_not_end_the_command_for_the_other_stacks() {
        let refused = |code| PluginError::Refused {
            request: "change Stack apps/web".to_owned(),
            code,
            reason: String::new(),
            message: String::new(),
        };
        let mut progress = Progress::new();
        for (stacks, code, continues) in
            [(2, 404, true), (2, 422, true), (2, 401, false), (2, 503, false), (1, 404, false)]
        {
            let mut missed = Missed::new(stacks);
            assert_eq!(missed.add(refused(code), &mut progress).is_ok(), continues, "{stacks} {code}");
            assert_eq!(missed.failed, usize::from(continues), "{stacks} {code}");
        }
    }

    #[test]
    fn a_new_revision_that_starts_a_run_needs_no_request() {
        let of = |revision: &str, open: Option<&str>, last: &str| {
            let open = open.map(|name| json!({ "name": name }));
            let status =
                json!({ "lastAttemptedRevision": revision, "currentUpdate": open, "lastUpdate": { "name": last } });
            stack("web", &json!({}), &status)
        };
        let before = of("a", None, "web-1");
        let after = |name: &str| Some(Goal::After(Some(name.to_owned())));
        let rows = [
            ("the run is open", of("b", Some("web-2"), "web-1"), after("web-1")),
            ("an earlier run has ended before it", of("b", Some("web-3"), "web-2"), after("web-2")),
            ("the run has ended", of("b", None, "web-2"), after("web-1")),
            ("no run has started", of("a", None, "web-1"), None),
            ("a run of the earlier revision is open", of("a", Some("web-2"), "web-1"), None),
        ];
        for (case, now, expected) in rows {
            assert_eq!(run_of_revision(&before, &now, "b"), expected, "{case}");
        }
        assert_eq!(run_of_revision(&before, &of("a", Some("web-2"), "web-1"), "a"), None, "the revision is not new");
    }
}

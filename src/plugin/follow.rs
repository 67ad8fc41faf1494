//! Waits until requested runs complete, or until Stacks are Ready.

use std::time::Duration;

use kube::ResourceExt as _;
use pulumi_controller::api::conditions::{self, READY, stack_reason};
use pulumi_controller::api::pulumi::{Stack, StackStatus};
use pulumi_controller::view::phase;
use tokio::time::Instant;

use crate::plugin::cluster::Cluster;
use crate::plugin::error::PluginError;
use crate::plugin::progress::Progress;
use crate::plugin::select::full_name;

/// Interval at which the plugin reads an object.
pub const POLL_INTERVAL: Duration = Duration::from_secs(2);

/// State of a wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The wait continues. Contains the current state.
    Waiting(String),
    /// The goal is reached. Contains the result.
    Done(String),
    /// The goal cannot be reached until a user acts. Contains the cause and the action.
    Failed(String),
    /// The spec or an administrator requires that the run waits for a decision or a time. Contains the reason for the
    /// wait, the cause and the action.
    Blocked(String),
}

/// Returns the state of the run that the annotation value `value` requests.
pub fn of_request(stack: &Stack, value: &str) -> Outcome {
    if phase::is_suspended(stack) {
        return suspended(stack);
    }
    let status = stack.status.clone().unwrap_or_default();
    if status.last_handled_reconcile_at.as_deref() != Some(value) {
        return Outcome::Waiting("waiting for the controller to handle the request".to_owned());
    }
    let is_requested = status.last_update.as_ref().and_then(|last| last.inputs.requested_at.as_deref()) == Some(value);
    state(stack, &status, is_requested)
}

/// Returns the state of the run that follows the run with the name `earlier`.
pub fn of_next_run(stack: &Stack, earlier: Option<&str>) -> Outcome {
    if phase::is_suspended(stack) {
        return suspended(stack);
    }
    let status = stack.status.clone().unwrap_or_default();
    let is_result = status.last_update.as_ref().and_then(|last| last.name.as_deref()) != earlier;
    state(stack, &status, is_result)
}

fn suspended(stack: &Stack) -> Outcome {
    Outcome::Failed(format!("Stack is suspended; resume it: {}", command(stack, "resume")))
}

/// Returns whether a Stack is Ready with its current spec, has failed or still waits.
pub fn of_readiness(stack: &Stack) -> Outcome {
    let status = stack.status.clone().unwrap_or_default();
    if status.observed_generation != stack.metadata.generation {
        return Outcome::Waiting("waiting for the controller to read the spec".to_owned());
    }
    state(stack, &status, true)
}

/// Returns the state of a Stack for which the plugin waits. `is_result` is true if the last run is the expected run.
fn state(stack: &Stack, status: &StackStatus, is_result: bool) -> Outcome {
    let ready = conditions::find(&status.conditions, READY);
    let message = ready.map(|ready| ready.message.clone()).unwrap_or_default();
    if let Some(stalled) = phase::stalled(status) {
        return Outcome::Failed(format!("{}; next step: {}", stalled.message, command(stack, "explain")));
    }
    if status.current_update.is_some() {
        return Outcome::Waiting(message);
    }
    let Some(reconciling) = phase::reconciling(status) else {
        return match ready {
            Some(ready) if ready.status == "True" && is_result => Outcome::Done(message),
            _ => Outcome::Waiting(message),
        };
    };
    match reconciling.reason.as_str() {
        stack_reason::AWAITING_APPROVAL => Outcome::Blocked(format!(
            "an approval: {message}; review the plan and approve it: {}",
            command(stack, "approve")
        )),
        stack_reason::PAUSED => {
            Outcome::Blocked(format!("the end of a pause: {message}; next step: {}", command(stack, "explain")))
        }
        stack_reason::OUTSIDE_SCHEDULE => {
            Outcome::Blocked(format!("its schedule: {message}; next step: {}", command(stack, "explain")))
        }
        stack_reason::INPUTS_CHANGE_OFTEN => {
            Outcome::Failed(format!("{message}; next step: {}", command(stack, "explain")))
        }
        stack_reason::RETRYING_AFTER_FAILURE | stack_reason::UPDATE_CONFLICT if is_result => {
            Outcome::Failed(format!("{message}; {}", reconciling.message))
        }
        _ => Outcome::Waiting(message),
    }
}

fn command(stack: &Stack, name: &str) -> String {
    format!("kubectl pulumi {name} -n {} {}", stack.namespace().unwrap_or_default(), stack.name_any())
}

/// Reads a Stack repeatedly until `assess` reports a result, and shows the state of the wait.
///
/// # Errors
///
/// Returns an error if the goal is not reached, if the Stack is deleted, if a request fails, or if the timeout expires.
pub async fn wait(
    cluster: &Cluster,
    stack: &Stack,
    assess: impl Fn(&Stack) -> Outcome,
    progress: &mut Progress,
) -> Result<String, PluginError> {
    let (namespace, name) = (stack.namespace().unwrap_or_default(), stack.name_any());
    loop {
        let stack: Stack = cluster.get(&namespace, &name).await?;
        let state = match assess(&stack) {
            Outcome::Done(result) => return Ok(result),
            Outcome::Failed(cause) => {
                return Err(PluginError::NotReady(format!("Stack {} is not ready: {cause}", full_name(&stack))));
            }
            Outcome::Blocked(cause) => {
                return Err(PluginError::Waiting(format!("Stack {} waits for {cause}", full_name(&stack))));
            }
            Outcome::Waiting(state) => state,
        };
        progress.state(&state);
        if Instant::now() + POLL_INTERVAL > cluster.deadline() {
            return Err(PluginError::TimedOut(format!(
                "timed out while waiting for Stack {}: {state}; the run continues; to wait longer, increase --timeout",
                full_name(&stack)
            )));
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::plugin::fixtures::{condition, stack};

    const AT: &str = "2026-11-02T12:00:00Z";

    fn of(conditions: &[Value], more: &Value) -> Outcome {
        let mut status = json!({ "lastHandledReconcileAt": AT, "conditions": conditions });
        for (key, value) in more.as_object().into_iter().flatten() {
            status[key] = value.clone();
        }
        of_request(&stack("web", &json!({}), &status), AT)
    }

    #[test]
    fn the_wait_ends_with_the_result_of_the_requested_run() {
        let ready = condition("Ready", "True", "ProcessingCompleted", "up to date");
        let last = json!({ "lastUpdate": { "requestedAt": AT } });
        assert_eq!(of(std::slice::from_ref(&ready), &last), Outcome::Done("up to date".to_owned()));
        assert_eq!(of(&[ready], &json!({})), Outcome::Waiting("up to date".to_owned()), "an earlier run");
        let failed = [
            condition("Ready", "False", "UpdateFailed", "broken"),
            condition("Reconciling", "True", "RetryingAfterFailure", "1 update failure(s)"),
        ];
        assert_eq!(of(&failed, &last), Outcome::Failed("broken; 1 update failure(s)".to_owned()));
        assert_eq!(of(&failed, &json!({})), Outcome::Waiting("broken".to_owned()), "an earlier run");
    }

    #[test]
    fn the_wait_for_the_next_run_ignores_the_earlier_run() {
        let ready = condition("Ready", "True", "ProcessingCompleted", "up to date");
        let status = json!({ "conditions": [ready], "lastUpdate": { "name": "web-2" } });
        let stack = stack("web", &json!({}), &status);
        assert_eq!(of_next_run(&stack, Some("web-1")), Outcome::Done("up to date".to_owned()));
        assert_eq!(of_next_run(&stack, None), Outcome::Done("up to date".to_owned()));
        assert_eq!(of_next_run(&stack, Some("web-2")), Outcome::Waiting("up to date".to_owned()));
    }

    #[test]
    fn the_wait_continues_during_the_run_and_before_the_request_is_handled() {
        let working = condition("Reconciling", "True", "StackProcessing", "running");
        let ready = condition("Ready", "Unknown", "NotReadyInProgress", "running");
        let run = json!({ "currentUpdate": { "name": "web-1" } });
        assert_eq!(of(&[working, ready], &run), Outcome::Waiting("running".to_owned()));
        let unhandled = stack("web", &json!({}), &json!({ "lastHandledReconcileAt": "before" }));
        assert!(matches!(of_request(&unhandled, AT), Outcome::Waiting(_)));
    }

    #[test]
    fn the_wait_ends_if_a_user_must_act() {
        let approval = [
            condition("Ready", "False", "AwaitingApproval", "waiting for approval"),
            condition("Reconciling", "True", "AwaitingApproval", "waiting for approval"),
        ];
        let expected =
            "an approval: waiting for approval; review the plan and approve it: kubectl pulumi approve -n apps web";
        assert_eq!(of(&approval, &json!({})), Outcome::Blocked(expected.to_owned()));
        for (reason, expected) in [("Paused", "the end of a pause: why"), ("OutsideSchedule", "its schedule: why")] {
            let waiting = [condition("Ready", "False", reason, "why"), condition("Reconciling", "True", reason, "why")];
            let found = of(&waiting, &json!({}));
            assert!(matches!(&found, Outcome::Blocked(cause) if cause.starts_with(expected)), "{found:?}");
        }
        let stalled = [condition("Stalled", "True", "SpecInvalid", "invalid spec.interval")];
        let expected = "invalid spec.interval; next step: kubectl pulumi explain -n apps web";
        assert_eq!(of(&stalled, &json!({})), Outcome::Failed(expected.to_owned()));
        let suspended = stack("web", &json!({ "suspend": true }), &json!({}));
        assert!(matches!(of_request(&suspended, AT), Outcome::Failed(_)));
    }
}

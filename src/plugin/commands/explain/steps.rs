//! Summary of each state of a Stack, and the steps with which a user continues. `docs/spec/v1/stack.md` describes the
//! states.

use kube::ResourceExt as _;
use pulumi_controller::api::conditions::stack_reason as reason;
use pulumi_controller::api::pulumi::Stack;

use crate::plugin::phase::Phase;

/// Returns one sentence about the state of a Stack.
pub fn summary(phase: Phase, why: Option<&str>) -> &'static str {
    match (phase, why) {
        (Phase::Pending, _) => "The controller has not reconciled the Stack yet.",
        (Phase::Ready, Some(reason::PREVIEWED)) => "The last preview has succeeded. A preview changes no resources.",
        (Phase::Ready, _) => "The last run has succeeded, and no run is due.",
        (Phase::Running, _) => "A run is open or queued.",
        (Phase::Preparing, _) => "The controller fetches the source or prepares the workspace pod.",
        (Phase::Suspended, _) => "spec.suspend is true, so no run starts.",
        (Phase::Deleting, _) => {
            "The Stack is being deleted. The controller destroys its resources first, if the spec requires it."
        }
        (Phase::Retrying, Some(reason::UPDATE_CONFLICT)) => {
            "Another update holds the lock of the Pulumi stack. The controller retries the run."
        }
        (Phase::Retrying, _) => "The last run has failed. The controller retries it.",
        (Phase::Waiting, Some(reason::AWAITING_APPROVAL)) => "The plan of the next run requires an approval.",
        (Phase::Waiting, Some(reason::PAUSED)) => "A run is due, but the controller or the namespace is paused.",
        (Phase::Waiting, Some(reason::OUTSIDE_SCHEDULE)) => {
            "A run is due, but no window is open, or a freeze prevents the run."
        }
        (Phase::Waiting, Some(reason::PREREQUISITE_NOT_SATISFIED)) => "The Stack waits for other Stacks.",
        (Phase::Waiting, Some(reason::SOURCE_UNAVAILABLE)) => "The source has no artifact that can be fetched.",
        (Phase::Waiting, _) => "The next run waits. The cause is below.",
        (Phase::Stalled, Some(reason::RUN_OUTCOME_UNKNOWN)) => {
            "It is unknown whether the last run has ended. No other run starts, because both could change resources."
        }
        (Phase::Stalled, Some(reason::PENDING_CREATES)) => {
            "An interrupted run was creating resources. Another run could create them again, so you must decide."
        }
        (Phase::Stalled, Some(reason::STACK_NOT_FOUND)) => {
            "The backend does not contain the Pulumi stack to destroy. The destroy requires your decision."
        }
        (Phase::Stalled, Some(reason::CANCELED)) => "A user has canceled the last run, so it is not retried.",
        (Phase::Stalled, Some(reason::PLAN_REJECTED)) => "A user has rejected the plan of the next run.",
        (Phase::Stalled, _) => "The Stack cannot continue without an action of a user.",
    }
}

/// Returns the steps with which a user continues, first the most likely step. Each step is a sentence with a command on
/// the next line.
pub fn next_steps(stack: &Stack, phase: Phase, why: Option<&str>) -> Vec<String> {
    let steps = Steps { namespace: stack.namespace().unwrap_or_default(), name: stack.name_any() };
    match phase {
        Phase::Ready => Vec::new(),
        Phase::Pending => vec![steps.with("Check that the controller is running:", "kubectl pulumi doctor")],
        Phase::Running | Phase::Deleting => vec![steps.plugin("Follow the log of the run:", "logs -f", "")],
        Phase::Preparing => vec![steps.plugin("Look at the events of the Workspace and its pod:", "events", "")],
        Phase::Suspended => vec![steps.plugin("Resume the Stack:", "resume", "")],
        Phase::Retrying => vec![
            steps.plugin("Correct the cause. The log of the last run contains all messages:", "logs", ""),
            steps.plugin("To retry the run now:", "reconcile", ""),
        ],
        Phase::Waiting => steps.of_waiting(why),
        Phase::Stalled => steps.of_stalled(why),
    }
}

/// Commands for a Stack.
struct Steps {
    namespace: String,
    name: String,
}

impl Steps {
    fn with(&self, sentence: &str, command: &str) -> String {
        format!("{sentence}\n    {command}")
    }

    fn plugin(&self, sentence: &str, command: &str, flags: &str) -> String {
        let flags = if flags.is_empty() { String::new() } else { format!(" {flags}") };
        self.with(sentence, &format!("kubectl pulumi {command} -n {} {}{flags}", self.namespace, self.name))
    }

    fn of_waiting(&self, why: Option<&str>) -> Vec<String> {
        let namespace = &self.namespace;
        match why {
            Some(reason::AWAITING_APPROVAL) => vec![
                self.plugin("Review the plan, and approve it:", "approve", ""),
                self.plugin("Or reject the plan:", "reject", "--reason TEXT"),
            ],
            Some(reason::PAUSED) => vec![self.with(
                "Wait until the pause ends. An administrator ends the pause of a namespace with:",
                &format!("kubectl annotate namespace {namespace} pulumi.com/pause-"),
            )],
            Some(reason::OUTSIDE_SCHEDULE) => vec![self.with(
                "Wait until the time in the cause, or change spec.schedule. The namespace can have a schedule, too:",
                &format!(
                    "kubectl get namespace {namespace} -o jsonpath='{{.metadata.annotations.pulumi\\.com/schedule}}'"
                ),
            )],
            Some(reason::PREREQUISITE_NOT_SATISFIED) => {
                vec![self.plugin("Look at the Stacks on which this Stack depends:", "tree", "")]
            }
            Some(reason::SOURCE_UNAVAILABLE) => {
                vec![self.plugin("Correct the source, and reconcile it:", "reconcile", "--with-source")]
            }
            _ => vec![self.plugin("Look at the events:", "events", "")],
        }
    }

    fn of_stalled(&self, why: Option<&str>) -> Vec<String> {
        match why {
            Some(reason::RUN_OUTCOME_UNKNOWN | reason::PENDING_CREATES) => vec![
                self.plugin(
                    "If the run has ended, and the resources in the cause do not exist, remove them from the state:",
                    "resolve",
                    "--decision clear",
                ),
                self.plugin(
                    "If the run has ended, and the state is correct, for example after `pulumi import`, run again:",
                    "resolve",
                    "--decision retry",
                ),
            ],
            Some(reason::STACK_NOT_FOUND) => vec![
                self.plugin("Correct the backend or the names, and retry the destroy:", "resolve", "--decision retry"),
                self.plugin("Or delete the Stack without a destroy:", "resolve", "--decision abandon"),
            ],
            Some(reason::CANCELED | reason::PLAN_REJECTED | reason::UPDATE_FAILED | reason::PREVIEW_FAILED) => {
                vec![self.plugin("Request another run:", "reconcile", "")]
            }
            Some(reason::DESTROY_UNCONFIRMED) => vec![self.with(
                "Check that the Stack was deleted intentionally, and confirm the destroy:",
                &format!("kubectl annotate -n {} stack {} pulumi.com/confirm-destroy=true", self.namespace, self.name),
            )],
            Some(reason::SOURCE_UNAVAILABLE) => {
                vec![self.plugin("Correct the source, and reconcile it:", "reconcile", "--with-source")]
            }
            Some(reason::WORKSPACE_FAILED) => {
                vec![self.plugin("Correct the cause. The events of the pod contain more messages:", "events", "")]
            }
            _ => vec![self.with(
                "Correct the field or the object that the cause names:",
                &format!("kubectl edit -n {} stack {}", self.namespace, self.name),
            )],
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::plugin::fixtures::stack;

    #[test]
    fn every_state_that_is_not_ready_has_a_next_step_with_a_command() {
        let stack = stack("web", &json!({}), &json!({}));
        let phases = [
            Phase::Pending,
            Phase::Running,
            Phase::Preparing,
            Phase::Retrying,
            Phase::Waiting,
            Phase::Stalled,
            Phase::Suspended,
            Phase::Deleting,
        ];
        let reasons = [
            None,
            Some(reason::AWAITING_APPROVAL),
            Some(reason::PAUSED),
            Some(reason::OUTSIDE_SCHEDULE),
            Some(reason::PREREQUISITE_NOT_SATISFIED),
            Some(reason::SOURCE_UNAVAILABLE),
            Some(reason::RUN_OUTCOME_UNKNOWN),
            Some(reason::STACK_NOT_FOUND),
            Some(reason::CANCELED),
            Some(reason::DESTROY_UNCONFIRMED),
            Some(reason::WORKSPACE_FAILED),
            Some(reason::SPEC_INVALID),
        ];
        for phase in phases {
            for why in reasons {
                let steps = next_steps(&stack, phase, why);
                assert!(!steps.is_empty(), "{phase} {why:?}");
                assert!(steps.iter().all(|step| step.contains("\n    kubectl ")), "{phase} {why:?}: {steps:?}");
                assert!(summary(phase, why).ends_with('.'), "{phase} {why:?}");
            }
        }
        assert!(next_steps(&stack, Phase::Ready, None).is_empty());
    }

    #[test]
    fn a_command_names_the_namespace_and_the_stack() {
        let stack = stack("web", &json!({}), &json!({}));
        let steps = next_steps(&stack, Phase::Suspended, None);
        assert_eq!(steps, ["Resume the Stack:\n    kubectl pulumi resume -n apps web"]);
    }
}

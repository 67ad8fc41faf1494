//! `explain`: explains the state of a Stack, and shows the next step.

mod details;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;
use kube::api::ListParams;
use pulumi_controller::api::auto::{Update, Workspace};
use pulumi_controller::api::conditions::stack_reason;
use pulumi_controller::api::names;
use pulumi_controller::api::pulumi::Stack;
use pulumi_controller::view::phase::{self, Phase};
use pulumi_controller::view::runs;
use pulumi_controller::view::steps::{Related, State};
use serde::Serialize;

use crate::plugin::args::Format;
use crate::plugin::cluster::Cluster;
use crate::plugin::duplicates::with_same_pulumi_stack;
use crate::plugin::error::PluginError;
use crate::plugin::screen::{self, Screen};

use details::{Facts, details};

/// Explains the state of a Stack.
///
/// # Errors
///
/// Returns an error if the Stack does not exist, or if a request fails.
pub async fn run(cluster: &Cluster, name: &str, format: Format) -> Result<(), PluginError> {
    let namespace = cluster.namespace();
    let stack: Stack = cluster.get(namespace, name).await?;
    let workspace: Option<Workspace> = cluster.get_opt(namespace, name).await?;
    let update: Option<Update> = match runs::current_or_last(&stack) {
        Some(run) => cluster.get_opt(namespace, run).await?,
        None => None,
    };
    let lacks_pod = Box::pin(lacks_pod(cluster, &stack, workspace.as_ref())).await;
    let same_pulumi_stack = Box::pin(same_pulumi_stack(cluster, &stack)).await;
    let facts = Facts { stack, workspace, update, lacks_pod, same_pulumi_stack };
    screen::print(&Explanation::of(&facts, Timestamp::now()), format)
}

/// Returns whether a stalled Stack has no workspace pod. Returns `false` if the pod cannot be read, because a user without
/// permissions for pods also needs an explanation.
async fn lacks_pod(cluster: &Cluster, stack: &Stack, workspace: Option<&Workspace>) -> bool {
    if State::of(stack).reason != Some(stack_reason::WORKSPACE_FAILED) {
        return false;
    }
    let Some(workspace) = workspace else { return true };
    let pooled = workspace.pooled_pod().map(|pod| pod.name.clone());
    let name = pooled.unwrap_or_else(|| names::workspace_pod(&stack.name_any()));
    matches!(cluster.get_opt::<Pod>(cluster.namespace(), &name).await, Ok(None))
}

/// Returns the name of the only other Stack with the same Pulumi stack, if the Stack waits for it. Returns `None` if the
/// Stacks cannot be listed.
async fn same_pulumi_stack(cluster: &Cluster, stack: &Stack) -> Option<String> {
    let state = State::of(stack);
    if (state.phase, state.reason) != (Phase::Stalled, Some(stack_reason::UPDATE_CONFLICT)) {
        return None;
    }
    let stacks: Vec<Stack> = cluster.list(&cluster.scope(false), ListParams::default()).await.ok()?;
    match with_same_pulumi_stack(stack, &stacks).as_slice() {
        [other] => Some(other.name_any()),
        _ => None,
    }
}

/// Explanation of a Stack's state.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Explanation {
    namespace: String,
    name: String,
    phase: Phase,
    /// Reason of the condition that explains the phase.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// Summary of the state in one or two sentences.
    summary: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    cause: Option<String>,
    /// Facts about the Workspace and the run.
    details: Vec<String>,
    next_steps: Vec<String>,
}

impl Explanation {
    fn of(facts: &Facts, now: Timestamp) -> Self {
        let stack = &facts.stack;
        let related = Related {
            workspace: facts.workspace.as_ref(),
            lacks_pod: facts.lacks_pod,
            same_pulumi_stack: facts.same_pulumi_stack.as_deref(),
        };
        let state = State::of(stack).with(related);
        Explanation {
            namespace: stack.namespace().unwrap_or_default(),
            name: stack.name_any(),
            phase: state.phase,
            reason: state.reason.map(str::to_owned),
            summary: state.summary().to_owned(),
            cause: phase::cause(stack).map(str::to_owned),
            details: details(facts, now),
            next_steps: state.next_steps(),
        }
    }
}

impl Screen for Explanation {
    fn text(&self) -> String {
        let reason = self.reason.as_ref().map(|reason| format!(" ({reason})")).unwrap_or_default();
        let mut out = format!("Stack {}/{}: {}{reason}\n", self.namespace, self.name, self.phase);
        out.push_str(&format!("\n  {}\n", self.summary));
        if let Some(cause) = &self.cause {
            out.push_str(&format!("\nCause:\n{}", indented(cause)));
        }
        if !self.details.is_empty() {
            out.push_str("\nDetails:\n");
            out.extend(self.details.iter().map(|detail| format!("  - {}\n", detail.replace('\n', "\n    "))));
        }
        if !self.next_steps.is_empty() {
            out.push_str("\nNext step:\n");
            out.extend(self.next_steps.iter().map(|step| indented(step)));
        }
        out
    }
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("  {line}\n")).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::plugin::fixtures::{condition, now, stack, update, workspace};
    use crate::plugin::reference_tests::assert_example;

    fn explanation(conditions: &[Value]) -> Explanation {
        let stack = stack("web", &json!({}), &json!({ "conditions": conditions }));
        Explanation::of(&Facts::of(stack), now())
    }

    #[test]
    fn a_stalled_stack_is_explained_with_the_command_that_resolves_it() {
        let message = "the state contains pending creates: urn:pulumi:dev::web::aws:s3/bucket:Bucket::logs";
        let status = json!({
            "conditions": [
                condition("Ready", "False", "PendingCreates", message),
                condition("Stalled", "True", "PendingCreates", message),
            ],
            "lastUpdate": { "name": "web-000012b1a9f", "type": "up", "failures": 1 },
        });
        let facts = Facts {
            workspace: Some(workspace(&json!({ "conditions": [condition("Ready", "True", "Succeeded", "ready")] }))),
            update: Some(update("web-000012b1a9f", "up", &json!({ "phase": "Failed" }))),
            ..Facts::of(stack("web", &json!({}), &status))
        };
        assert_example("kubectl pulumi explain web", &Explanation::of(&facts, now()).text());
    }

    #[test]
    fn every_explanation_has_a_summary() {
        let ready = explanation(&[condition("Ready", "True", "ProcessingCompleted", "done")]);
        assert_eq!(
            ready.text(),
            "Stack apps/web: Ready (ProcessingCompleted)\n\n  The last run has succeeded, and no run is due.\n\nDetails:\n  - done\n"
        );
        let pending = explanation(&[]);
        assert_eq!(pending.phase, Phase::Pending);
        assert!(pending.next_steps[0].contains("kubectl pulumi doctor"), "{:?}", pending.next_steps);
    }
}

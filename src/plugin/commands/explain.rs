//! `explain`: explains why a Stack is not running, and shows the next step.

mod steps;

use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;
use pulumi_controller::api::auto::{Update, Workspace};
use pulumi_controller::api::conditions::{self, READY};
use pulumi_controller::api::pulumi::Stack;
use serde::Serialize;

use crate::plugin::args::Format;
use crate::plugin::cluster::Cluster;
use crate::plugin::error::PluginError;
use crate::plugin::phase::{self, Phase};
use crate::plugin::screen::{self, Screen, age};
use crate::plugin::updates;

/// Explains the state of a Stack.
///
/// # Errors
///
/// Returns an error if the Stack does not exist, or if a request fails.
pub async fn run(cluster: &Cluster, name: &str, format: Format) -> Result<(), PluginError> {
    let namespace = cluster.namespace();
    let stack: Stack = cluster.get(namespace, name).await?;
    let workspace: Option<Workspace> = cluster.get_opt(namespace, name).await?;
    let update: Option<Update> = match updates::current_or_last(&stack) {
        Some(run) => cluster.get_opt(namespace, run).await?,
        None => None,
    };
    let facts = Facts { stack, workspace, update };
    screen::print(&Explanation::of(&facts, Timestamp::now()), format)
}

/// Objects that explain the state of a Stack.
struct Facts {
    stack: Stack,
    workspace: Option<Workspace>,
    /// The open run, or else the last run.
    update: Option<Update>,
}

/// Explanation of the state of a Stack.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Explanation {
    namespace: String,
    name: String,
    phase: Phase,
    /// Reason of the condition that explains the phase.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// One sentence about the phase.
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
        let phase = Phase::of(stack);
        let reason = reason(stack);
        Explanation {
            namespace: stack.namespace().unwrap_or_default(),
            name: stack.name_any(),
            phase,
            summary: steps::summary(phase, reason).to_owned(),
            cause: phase::cause(stack).map(str::to_owned),
            details: details(facts, now),
            next_steps: steps::next_steps(stack, phase, reason),
            reason: reason.map(str::to_owned),
        }
    }
}

/// Returns the reason of the condition that explains the phase best.
fn reason(stack: &Stack) -> Option<&str> {
    let status = stack.status.as_ref()?;
    let ready = conditions::find(&status.conditions, READY);
    let condition = phase::stalled(status).or_else(|| phase::reconciling(status)).or(ready)?;
    Some(condition.reason.as_str())
}

fn details(facts: &Facts, now: Timestamp) -> Vec<String> {
    let mut details = Vec::new();
    let status = facts.stack.status.as_ref();
    if let Some(pending) = status.and_then(|status| status.pending_since.as_ref()) {
        details.push(format!("a run is due since {}", age(Some(pending), now)));
    }
    if let Some(update) = &facts.update {
        let status = update.status.as_ref();
        let progress = status.and_then(|status| status.progress.as_ref()).map(|progress| progress.summary.as_str());
        let progress = progress.filter(|summary| !summary.is_empty());
        let progress = progress.map(|summary| format!(": {summary}")).unwrap_or_default();
        let (kind, name, phase) = (update.spec.kind.as_str(), update.name_any(), updates::phase(update));
        details.push(format!("run {name} ({kind}) is {phase}{progress}"));
        details.extend(
            status.and_then(|status| status.permalink.as_ref()).map(|url| format!("run in Pulumi Cloud: {url}")),
        );
    }
    let ready = facts.workspace.as_ref().and_then(|workspace| workspace.status.as_ref());
    let ready = ready.and_then(|status| conditions::find(&status.conditions, READY));
    if let Some(ready) = ready.filter(|ready| ready.status != "True") {
        details.push(format!("Workspace is not ready ({}): {}", ready.reason, ready.message));
    }
    if let Some(failures) = status.and_then(|status| status.last_update.as_ref()).map(|last| last.failures)
        && failures > 0
    {
        details.push(format!("consecutive failures with the current inputs: {failures}"));
    }
    details.extend(phase::drift(&facts.stack).map(|drift| format!("drift: {drift}")));
    details
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

    fn explanation(conditions: Value, more: Value) -> Explanation {
        let mut status = json!({ "conditions": conditions });
        for (key, value) in more.as_object().into_iter().flatten() {
            status[key] = value.clone();
        }
        let stack = stack("web", &json!({}), &status);
        Explanation::of(&Facts { stack, workspace: None, update: None }, now())
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
            stack: stack("web", &json!({}), &status),
            workspace: Some(workspace(&json!({ "conditions": [condition("Ready", "True", "Succeeded", "ready")] }))),
            update: Some(update("web-000012b1a9f", "up", &json!({ "phase": "Failed" }))),
        };
        assert_example("kubectl pulumi explain web", &Explanation::of(&facts, now()).text());
    }

    #[test]
    fn every_explanation_has_a_summary() {
        let ready = explanation(json!([condition("Ready", "True", "ProcessingCompleted", "done")]), json!({}));
        assert_eq!(
            ready.text(),
            "Stack apps/web: Ready (ProcessingCompleted)\n\n  The last run has succeeded, and no run is due.\n"
        );
        let pending = explanation(json!([]), json!({}));
        assert_eq!(pending.phase, Phase::Pending);
        assert!(pending.next_steps[0].contains("kubectl pulumi doctor"), "{:?}", pending.next_steps);
    }

    #[test]
    fn details_name_the_workspace_and_the_failures() {
        let status = json!({ "pendingSince": "2026-11-02T11:55:00Z", "lastUpdate": { "failures": 2 } });
        let facts = Facts {
            stack: stack("web", &json!({}), &status),
            workspace: Some(workspace(
                &json!({ "conditions": [condition("Ready", "False", "PodFailed", "no image")] }),
            )),
            update: None,
        };
        let expected = [
            "a run is due since 5m",
            "Workspace is not ready (PodFailed): no image",
            "consecutive failures with the current inputs: 2",
        ];
        assert_eq!(details(&facts, now()), expected);
    }
}

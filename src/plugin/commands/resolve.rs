//! `resolve`: resolves runs that require a decision.

use kube::ResourceExt as _;
use pulumi_controller::api::names::ANNOTATION_RESOLVE;
use pulumi_controller::api::pulumi::Stack;
use pulumi_controller::view::decisions;
use pulumi_controller::view::requests::annotations;
use serde::Serialize;

use crate::plugin::args::{Decision, Format, ResolveFlags};
use crate::plugin::cluster::Cluster;
use crate::plugin::commands::reconcile::Missed;
use crate::plugin::error::PluginError;
use crate::plugin::progress::Progress;
use crate::plugin::screen::{self, Screen, table};
use crate::plugin::select;

/// Resolves the runs that require a decision, for all selected Stacks.
///
/// # Errors
///
/// Returns an error if no selected Stack requires a decision, or if a request fails.
pub async fn run(cluster: &Cluster, flags: &ResolveFlags, format: Format) -> Result<(), PluginError> {
    let stacks = select::selected(cluster, &flags.selection).await?;
    let resolutions: Vec<Resolution> =
        stacks.iter().filter_map(|stack| Resolution::of(stack, flags.decision)).collect();
    if resolutions.is_empty() {
        let decision = flags.decision.as_str();
        return Err(PluginError::NotReady(format!(
            "no selected Stack requires a decision that can be {decision}; nothing was changed. To show the decisions that a Stack \
             requires, run kubectl pulumi explain"
        )));
    }
    if flags.dry_run {
        return screen::print(&Resolutions(resolutions), format);
    }
    let mut progress = Progress::new();
    let mut missed = Missed::new(resolutions.len());
    let mut resolved = Vec::new();
    for resolution in resolutions {
        progress.action(&format!("resolving run {} of Stack {}", resolution.run, resolution.full_name()));
        let patch = annotations(&[(ANNOTATION_RESOLVE, resolution.value().as_str())]);
        match cluster.merge::<Stack>(&resolution.namespace, &resolution.stack, &patch).await {
            Ok(_) => {
                progress.success(&format!("run resolved with {}", resolution.decision.as_str()));
                resolved.push(resolution);
            }
            Err(error) => missed.add(error, &mut progress)?,
        }
    }
    screen::print(&Resolutions(resolved), format)?;
    missed.summarize()
}

/// Decision about a Stack's run.
#[derive(Serialize)]
struct Resolution {
    namespace: String,
    stack: String,
    reason: String,
    run: String,
    decision: Decision,
}

#[derive(Serialize)]
#[serde(transparent)]
struct Resolutions(Vec<Resolution>);

impl Resolution {
    /// Returns the decision about a Stack's run. Returns `None` if the Stack requires no decision, or if the decision
    /// does not apply to the Stack's state.
    fn of(stack: &Stack, decision: Decision) -> Option<Self> {
        let (reason, run) = decisions::run_to_resolve(stack, decision.into())?;
        Some(Resolution {
            namespace: stack.namespace().unwrap_or_default(),
            stack: stack.name_any(),
            reason: reason.to_owned(),
            run,
            decision,
        })
    }

    fn full_name(&self) -> String {
        format!("{}/{}", self.namespace, self.stack)
    }

    /// Returns the annotation value for the decision.
    fn value(&self) -> String {
        format!("{}={}", self.run, self.decision.as_str())
    }
}

impl Screen for Resolutions {
    fn text(&self) -> String {
        let cells = |resolution: &Resolution| {
            let Resolution { namespace, stack, reason, run, decision } = resolution;
            vec![namespace.clone(), stack.clone(), reason.clone(), run.clone(), decision.as_str().to_owned()]
        };
        table(&["NAMESPACE", "STACK", "REASON", "RUN", "DECISION"], &self.0.iter().map(cells).collect::<Vec<_>>())
    }
}

#[cfg(test)]
mod tests {
    use pulumi_controller::api::resolve;
    use serde_json::json;

    use super::*;
    use crate::plugin::fixtures::{condition, stack};
    use crate::plugin::reference_tests::assert_example;

    fn stalled(name: &str, reason: &str, open: Option<&str>) -> Stack {
        let mut status = json!({
            "conditions": [condition("Stalled", "True", reason, "")],
            "lastUpdate": { "name": format!("{name}-000012b1a9f") },
        });
        if let Some(open) = open {
            status["currentUpdate"] = json!({ "name": open });
        }
        stack(name, &json!({}), &status)
    }

    #[test]
    fn the_decision_names_the_run_that_requires_it() {
        let run = |stack: &Stack, decision| Resolution::of(stack, decision).map(|resolution| resolution.run);
        let last = Some("web-000012b1a9f".to_owned());
        assert_eq!(run(&stalled("web", "PendingCreates", None), Decision::Clear), last);
        assert_eq!(run(&stalled("web", "RunOutcomeUnknown", None), Decision::Retry), last);
        let unknown = stalled("web", "RunOutcomeUnknown", Some("web-2"));
        assert_eq!(run(&unknown, Decision::Retry).as_deref(), Some("web-2"));
        assert_eq!(run(&stalled("web", "StackNotFound", None), Decision::Abandon), last);
        assert_eq!(run(&stalled("web", "StackNotFound", None), Decision::Clear), None);
        assert_eq!(run(&stalled("web", "SpecInvalid", None), Decision::Retry), None);
        assert_eq!(run(&stack("web", &json!({}), &json!({})), Decision::Retry), None);
    }

    #[test]
    fn the_controller_accepts_the_value_of_every_decision() {
        for decision in [Decision::Retry, Decision::Clear, Decision::Abandon] {
            let value = Resolution::of(&stalled("web", "PendingCreates", None), decision).unwrap().value();
            assert_eq!(resolve::parse(&value).unwrap().update, "web-000012b1a9f", "{value}");
        }
    }

    #[test]
    fn the_decisions_are_listed() {
        let stacks = [stalled("network", "PendingCreates", None), stalled("web", "PendingCreates", None)];
        let all = stacks.iter().filter_map(|stack| Resolution::of(stack, Decision::Clear)).collect();
        assert_example("kubectl pulumi resolve --all --decision clear --dry-run", &Resolutions(all).text());
    }
}

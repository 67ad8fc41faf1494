//! Simulates a user who makes the decisions that waiting Stacks require.

use jiff::Timestamp;
use kube::ResourceExt;
use pulumi_controller::api::conditions::{STALLED, find, is_true};
use pulumi_controller::api::pulumi::Stack;
use serde_json::json;

use crate::checks::find_pending_creates;
use crate::evidence;
use crate::facts::{RemovedManually, name_of};
use crate::stage::Stage;

/// Annotation that contains the decision.
const RESOLVE: &str = "pulumi.com/resolve";
const PENDING_CREATES: &str = "PendingCreates";
const RUN_OUTCOME_UNKNOWN: &str = "RunOutcomeUnknown";

/// A decision that a waiting Stack requires.
struct PendingDecision {
    stack: String,
    reason: String,
    message: String,
    /// Name of the Update that requires the decision.
    update: String,
}

/// The simulated user's decision, or the reason why no decision was necessary.
#[derive(Clone, Debug)]
pub struct Resolution {
    pub stack: String,
    /// Resources that existed but were missing from the state. The simulated user has removed these resources.
    pub removed: Vec<String>,
    /// Reason why no decision was necessary. `None` if a decision was necessary.
    pub unjustified: Option<String>,
}

/// Makes one decision per run for every waiting Stack.
pub async fn resolve_all(stage: &mut Stage<'_>, stacks: &[Stack]) -> Vec<Resolution> {
    let mut resolutions = Vec::new();
    for decision in stacks.iter().filter_map(pending_decision) {
        let is_new = |member: &crate::stage::Member| !member.resolved.contains(&decision.update);
        if stage.stacks.get(&decision.stack).is_some_and(is_new) {
            resolutions.push(resolve(stage, decision).await);
        }
    }
    resolutions
}

async fn resolve(stage: &mut Stage<'_>, decision: PendingDecision) -> Resolution {
    let facts = evidence::of(stage, &decision.stack, &[]).await;
    let last = facts.events.last().map_or(0, |event| event.sequence);
    let (found, unjustified) = match find_pending_creates(&facts) {
        Ok(found) => (found.exist, None),
        // If the outcome of a run is unknown, a decision is necessary even if the state contains no pending creates.
        Err(_) if decision.reason == RUN_OUTCOME_UNKNOWN => (Vec::new(), None),
        Err(why) => {
            (Vec::new(), Some(format!("{} waits for a decision ({}), but {why}", decision.update, decision.message)))
        }
    };
    let resolution = json!({"metadata": {"annotations": {RESOLVE: format!("{}=clear", decision.update)}}});
    stage.scene.patch::<Stack>(&decision.stack, resolution).await;
    let removed: Vec<String> = found.iter().map(|urn| name_of(urn).to_owned()).collect();
    if let Some(member) = stage.stacks.get_mut(&decision.stack) {
        member.removed_manually.extend(found.into_iter().map(|urn| RemovedManually {
            urn,
            after: last,
            at: Timestamp::now(),
        }));
        member.resolved.insert(decision.update);
    }
    Resolution { stack: decision.stack, removed, unjustified }
}

/// Returns the decision that a Stack requires, or `None` if the Stack requires no decision.
fn pending_decision(stack: &Stack) -> Option<PendingDecision> {
    let status = stack.status.as_ref()?;
    let stalled = find(&status.conditions, STALLED).filter(|_| is_true(&status.conditions, STALLED))?;
    if ![PENDING_CREATES, RUN_OUTCOME_UNKNOWN].contains(&stalled.reason.as_str()) {
        return None;
    }
    let last = status.last_update.as_ref().and_then(|last| last.name.clone());
    let current = status.current_update.as_ref().map(|current| current.name.clone());
    // The condition message normally contains the run name. If the message contains no run name, the open run takes
    // precedence over the last run.
    let names = [current, last].into_iter().flatten().collect::<Vec<_>>();
    let named = names.iter().find(|name| stalled.message.contains(name.as_str())).or_else(|| names.first())?;
    Some(PendingDecision {
        stack: stack.name_any(),
        reason: stalled.reason.clone(),
        message: stalled.message.clone(),
        update: named.clone(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stack(reason: &str, message: &str, current: Option<&str>) -> Stack {
        let stalled = json!({
            "type": "Stalled", "status": "True", "reason": reason, "message": message, "lastTransitionTime": "2026-01-01T00:00:00Z",
        });
        let mut status = json!({"conditions": [stalled], "lastUpdate": {"name": "s-1"}});
        if let Some(current) = current {
            status["currentUpdate"] = json!({"name": current});
        }
        let spec = json!({"stack": "dev", "fluxSource": {"sourceRef": {"kind": "GitRepository", "name": "r"}}});
        serde_json::from_value(json!({
            "apiVersion": "pulumi.com/v1", "kind": "Stack", "metadata": {"name": "s"}, "spec": spec, "status": status,
        }))
        .unwrap()
    }

    #[test]
    fn a_stack_that_awaits_a_user_decision_reports_the_run() {
        let examples = [
            ("PendingCreates", "resolution of s-1", None, Some("s-1")),
            ("PendingCreates", "resolution of s-1", Some("s-2"), Some("s-1")),
            ("RunOutcomeUnknown", "unknown outcome", Some("s-2"), Some("s-2")),
            ("RunOutcomeUnknown", "unknown outcome", None, Some("s-1")),
            ("UpdateFailed", "given up", None, None),
        ];
        for (reason, message, current, update) in examples {
            let requests = pending_decision(&stack(reason, message, current)).map(|decision| decision.update);
            assert_eq!(requests.as_deref(), update, "{reason} {message}");
        }
    }
}

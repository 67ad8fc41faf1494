//! `approve` and `reject`: create an Approval for a Stack's plan.

use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use kube::ResourceExt as _;
use pulumi_controller::api::conditions::stack_reason;
use pulumi_controller::api::pulumi::{ApprovalDecision, Stack, StackPlan};
use pulumi_controller::text::printable_line;
use pulumi_controller::view::decisions::approval;
use pulumi_controller::view::phase;

use crate::plugin::args::DecisionFlags;
use crate::plugin::cluster::Cluster;
use crate::plugin::confirm::{self, Question};
use crate::plugin::error::PluginError;
use crate::plugin::plan;
use crate::plugin::progress::Progress;
use crate::plugin::select::full_name;

/// Minimum number of digits in a shortened digest for an approval: 128 bits. With fewer digits, a tenant who controls
/// the plan content could find a harmful plan whose digest starts with the same digits.
const MIN_APPROVED_DIGITS: usize = 32;
/// Minimum number of digits in a shortened digest for a rejection.
const MIN_REJECTED_DIGITS: usize = 8;
/// Maximum number of planned resource changes that the command shows in the terminal.
const MAX_RESOURCES: usize = 50;

/// Approves the plan of a Stack.
///
/// # Errors
///
/// Returns an error if no plan waits for a decision, if the user declines, or if a request fails.
pub async fn approve(cluster: &Cluster, flags: &DecisionFlags) -> Result<(), PluginError> {
    Box::pin(decide(cluster, flags, ApprovalDecision::Approve)).await
}

/// Rejects the plan of a Stack.
///
/// # Errors
///
/// Returns an error if no plan waits for a decision, if the user declines, or if a request fails.
pub async fn reject(cluster: &Cluster, flags: &DecisionFlags) -> Result<(), PluginError> {
    Box::pin(decide(cluster, flags, ApprovalDecision::Reject)).await
}

async fn decide(cluster: &Cluster, flags: &DecisionFlags, decision: ApprovalDecision) -> Result<(), PluginError> {
    let stack: Stack = cluster.get(cluster.namespace(), &flags.stack).await?;
    let plan = waiting_plan(&stack, decision)?;
    let cluster = match &flags.plan {
        Some(digest) => {
            check_digest(&stack, plan, digest, decision)?;
            cluster.clone()
        }
        // The decision applies to the plan that the terminal shows, even if the controller has created a newer plan.
        None => {
            confirm(&stack, plan, decision)?;
            cluster.with_new_deadline()
        }
    };
    let user = user(&cluster).await?;
    let mut progress = Progress::new();
    let (doing, done) = words(decision);
    progress.action(&format!("{doing} plan {} of Stack {}", plan.digest, full_name(&stack)));
    let approval = approval(&stack, plan, decision, &user, flags.reason.as_deref());
    let created = cluster.create(cluster.namespace(), &approval).await?;
    progress.success(&format!("Approval {} created: plan {done} by {user}", created.name_any()));
    Ok(())
}

fn words(decision: ApprovalDecision) -> (&'static str, &'static str) {
    match decision {
        ApprovalDecision::Approve => ("approving", "approved"),
        ApprovalDecision::Reject => ("rejecting", "rejected"),
    }
}

/// Returns the plan that waits for a decision. An approval of a rejected plan would have no effect, because one
/// rejection is sufficient.
fn waiting_plan(stack: &Stack, decision: ApprovalDecision) -> Result<&StackPlan, PluginError> {
    let (namespace, name) = (stack.namespace().unwrap_or_default(), stack.name_any());
    let failed = |why: &str| {
        PluginError::NotReady(format!(
            "failed to decide about a plan of Stack {namespace}/{name}: {why}; run: kubectl pulumi explain \
             -n {namespace} {name}"
        ))
    };
    let stalled = stack.status.as_ref().and_then(phase::stalled);
    if decision == ApprovalDecision::Approve && stalled.is_some_and(|it| it.reason == stack_reason::PLAN_REJECTED) {
        return Err(failed("a user has rejected the plan"));
    }
    let plan = stack.status.as_ref().and_then(|status| status.plan.as_deref());
    plan.ok_or_else(|| failed("no plan waits for a decision"))
}

/// Checks that the Stack's plan is the plan that the user has reviewed.
fn check_digest(stack: &Stack, plan: &StackPlan, given: &str, decision: ApprovalDecision) -> Result<(), PluginError> {
    let min_digits = match decision {
        ApprovalDecision::Approve => MIN_APPROVED_DIGITS,
        ApprovalDecision::Reject => MIN_REJECTED_DIGITS,
    };
    let (current, digest) = (plan.digest.to_string(), plan.digest.hex());
    let digits = given.strip_prefix("sha256:").unwrap_or(given);
    let is_valid = digits.len() >= min_digits && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    if !is_valid {
        return Err(PluginError::Usage(format!(
            "invalid --plan={given}: use the digest of the plan, or its first {min_digits} or more digits"
        )));
    }
    if given == current || digest.starts_with(digits) {
        return Ok(());
    }
    Err(PluginError::NotReady(format!(
        "failed to decide about plan {given} of Stack {}: the current plan is {current}; review this plan",
        full_name(stack)
    )))
}

/// Shows the plan, and asks the user for confirmation.
fn confirm(stack: &Stack, plan: &StackPlan, decision: ApprovalDecision) -> Result<(), PluginError> {
    let (namespace, name) = (stack.namespace().unwrap_or_default(), stack.name_any());
    confirm::ask(&Question {
        description: &describe(stack, plan),
        question: match decision {
            ApprovalDecision::Approve => "Approve this plan?",
            ApprovalDecision::Reject => "Reject this plan?",
        },
        without_terminal: &format!(
            "--plan is required without a terminal: use the digest of the plan that you have reviewed; to see the plan: kubectl \
             pulumi explain -n {namespace} {name}, or kubectl pulumi logs -n {namespace} {name} {}",
            plan.update_name
        ),
        declined: format!("the plan of Stack {} still waits for a decision", full_name(stack)),
    })
}

/// Describes a plan that requires a decision.
fn describe(stack: &Stack, plan: &StackPlan) -> String {
    let mut out = format!("Plan {} of Stack {}\n", plan.digest, full_name(stack));
    let refresh = if plan.refresh.unwrap_or_default() { " with a refresh of the state" } else { "" };
    out.push_str(&format!("  operation: {}{refresh}\n", plan.operation.as_str()));
    if let Some(revision) = &plan.revision {
        out.push_str(&format!("  revision: {}\n", printable_line(revision)));
    }
    out.push_str(&format!("  changes: {}\n", plan::changes(plan)));
    out.extend(plan::resources(plan, MAX_RESOURCES).iter().map(|line| format!("  {line}\n")));
    out
}

/// Returns the user name that the API server derives from the credentials. The admission policy accepts no other name.
async fn user(cluster: &Cluster) -> Result<String, PluginError> {
    let review = cluster.review(&SelfSubjectReview::default()).await?;
    let info = review.status.and_then(|status| status.user_info);
    info.and_then(|info| info.username).ok_or_else(|| {
        PluginError::Failed("failed to read your user name: the API server returned none; log in again".to_owned())
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::plugin::fixtures::{DIGEST, PLAN, REVISION, condition, stack};
    use crate::plugin::reference_tests::assert_example;

    fn with_plan() -> Stack {
        let plan = json!({
            "digest": PLAN,
            "updateName": "web-000012b1a9f",
            "fileDigest": DIGEST,
            "operation": "up",
            "revision": REVISION,
            "changes": { "create": 1, "delete": 1, "same": 12 },
            "resources": [
                { "urn": "urn:pulumi:dev::web::aws:s3/bucket:Bucket::logs", "operation": "delete" },
                { "urn": "urn:pulumi:dev::web::aws:s3/bucket:Bucket::archive", "operation": "create" },
            ],
            "resourceCount": 3,
        });
        stack("web", &json!({}), &json!({ "plan": plan }))
    }

    #[test]
    fn the_approval_is_the_approval_of_the_guide() {
        let stack = with_plan();
        let reason = Some("replaces the database");
        let plan = waiting_plan(&stack, ApprovalDecision::Reject).unwrap();
        let approval = approval(&stack, plan, ApprovalDecision::Reject, "alice", reason);
        let expected = json!({
            "apiVersion": "pulumi.com/v1alpha1",
            "kind": "Approval",
            "metadata": { "generateName": "web-", "namespace": "apps" },
            "spec": {
                "stackRef": { "name": "web" },
                "planDigest": PLAN,
                "decision": "Reject",
                "reason": "replaces the database",
                "by": "alice",
            },
        });
        assert_eq!(serde_json::to_value(approval).unwrap(), expected);
    }

    #[test]
    fn only_the_reviewed_plan_is_accepted() {
        let stack = with_plan();
        let check = |given: &str, decision: ApprovalDecision| {
            let plan = waiting_plan(&stack, decision).unwrap();
            check_digest(&stack, plan, given, decision).map_err(|error| error.exit_code())
        };
        let hex = PLAN.strip_prefix("sha256:").unwrap();
        for valid in [PLAN, hex, hex.get(..32).unwrap(), PLAN.get(..39).unwrap()] {
            assert_eq!(check(valid, ApprovalDecision::Approve), Ok(()), "{valid}");
            assert_eq!(check(valid, ApprovalDecision::Reject), Ok(()), "{valid}");
        }
        for short in ["d242d1f0", "sha256:d242d1f0da28", hex.get(..31).unwrap()] {
            assert_eq!(check(short, ApprovalDecision::Approve), Err(2), "{short}");
            assert_eq!(check(short, ApprovalDecision::Reject), Ok(()), "{short}");
        }
        assert_eq!(check("d242d1f", ApprovalDecision::Reject), Err(2), "too short");
        assert_eq!(check("not a digest", ApprovalDecision::Reject), Err(2));
        assert_eq!(check("0123456789", ApprovalDecision::Reject), Err(5), "another plan");
        assert_eq!(check(DIGEST, ApprovalDecision::Approve), Err(5), "another plan");
        let missing = waiting_plan(&without_plan(), ApprovalDecision::Approve).unwrap_err();
        assert_eq!(missing.exit_code(), 5);
        assert!(missing.to_string().ends_with("run: kubectl pulumi explain -n apps web"), "{missing}");
    }

    #[test]
    fn a_rejected_plan_cannot_be_approved() {
        let mut rejected = with_plan();
        let stalled = condition("Stalled", "True", "PlanRejected", "alice has rejected the plan");
        rejected.status.as_mut().unwrap().conditions = serde_json::from_value(json!([stalled])).unwrap();
        let error = waiting_plan(&rejected, ApprovalDecision::Approve).unwrap_err();
        assert!(error.to_string().contains("a user has rejected the plan"), "{error}");
        assert!(waiting_plan(&rejected, ApprovalDecision::Reject).is_ok());
    }

    fn without_plan() -> Stack {
        stack("web", &json!({}), &json!({}))
    }

    #[test]
    fn the_plan_is_shown_before_the_decision() {
        let mut stack = with_plan();
        assert_example(
            "kubectl pulumi approve web",
            &describe(&stack, waiting_plan(&stack, ApprovalDecision::Approve).unwrap()),
        );
        stack.status.as_mut().unwrap().plan.as_mut().unwrap().refresh = Some(true);
        let text = describe(&stack, waiting_plan(&stack, ApprovalDecision::Approve).unwrap());
        assert!(text.contains("  operation: up with a refresh of the state\n"), "{text}");
        let resources = &mut stack.status.as_mut().unwrap().plan.as_mut().unwrap().resources;
        resources[0].urn = "urn:pulumi:dev::web::aws:s3/bucket:Bucket::logs\n  same     all".to_owned();
        let text = describe(&stack, waiting_plan(&stack, ApprovalDecision::Approve).unwrap());
        assert!(text.contains("Bucket logs\u{fffd}  same     all\n"), "{text}");
    }
}

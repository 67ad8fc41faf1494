//! Simulates a user who approves each plan.

use kube::ResourceExt;
use pulumi_controller::api::conditions::{RECONCILING, find, stack_reason};
use pulumi_controller::api::pulumi::{Stack, StackPlan};
use serde_json::{Value, json};

use crate::harness::{Scene, kubectl, try_kubectl};

/// User who approves plans.
const APPROVER: &str = "approver";

/// Grants the user permission to approve plans in the scene's namespace.
pub async fn permit(scene: &Scene) {
    let (role, user) = ("--clusterrole=pulumi-controller-approver", format!("--user={APPROVER}"));
    kubectl(&["--namespace", &scene.namespace, "create", "rolebinding", APPROVER, role, &user], "").await;
}

/// Returns the settings for a Stack whose updates and destroys require an approval.
pub fn settings() -> Value {
    json!({"mode": "Always", "destroy": true})
}

/// Approves the plan of each Stack that waits for an approval, and returns the names of these Stacks. The next call
/// repeats a failed request.
pub async fn approve_all(scene: &Scene, stacks: &[Stack]) -> Vec<String> {
    let mut approved = Vec::new();
    for (stack, plan) in stacks.iter().filter_map(|stack| Some((stack, awaited_plan(stack)?))) {
        let object = approval(&stack.name_any(), plan).to_string();
        let arguments = ["--namespace", &scene.namespace, "--as", APPROVER, "create", "--filename", "-"];
        // The request fails if the Approval exists, but the controller has not observed the Approval yet.
        if try_kubectl(&arguments, &object).await.is_ok() {
            approved.push(stack.name_any());
        }
    }
    approved
}

fn awaited_plan(stack: &Stack) -> Option<&StackPlan> {
    let status = stack.status.as_ref()?;
    let reconciling = find(&status.conditions, RECONCILING)?;
    status.plan.as_deref().filter(|_| reconciling.reason == stack_reason::AWAITING_APPROVAL)
}

fn approval(stack: &str, plan: &StackPlan) -> Value {
    let digest = plan.digest.to_string();
    let short = digest.trim_start_matches("sha256:").get(..16).unwrap_or_default();
    json!({
        "apiVersion": "pulumi.com/v1alpha1",
        "kind": "Approval",
        "metadata": {"name": format!("{stack}-{short}")},
        "spec": {"stackRef": {"name": stack}, "planDigest": digest, "decision": "Approve", "by": APPROVER},
    })
}

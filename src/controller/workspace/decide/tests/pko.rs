//! Tests for Workspaces and pods that the Pulumi Kubernetes Operator manages.

use serde_json::{Value, json};

use super::{Is, check, outdated, workspace};
use crate::api::conditions::workspace_reason as reason;
use crate::controller::workspace::decide::Action;
use crate::controller::workspace::observe::{Agent, Observed};
use crate::controller::workspace::parts::PartState;
use crate::controller::workspace::report::State;

/// Sets the managed fields of the Workspace.
fn managed(o: &mut Observed, managers: &[(&str, &str)]) {
    let entry = |(manager, subresource): &(&str, &str)| json!({"manager": manager, "operation": "Apply", "subresource": subresource});
    let entries: Vec<Value> = managers.iter().map(entry).collect();
    o.workspace = workspace(json!({"managedFields": entries, "finalizers": []}), "Succeeded");
}

#[test]
fn a_pko_workspace_of_a_stack_is_ignored_and_its_idle_pod_deleted() {
    let applied = Action::Apply { service: true, tls: false, budget: false, stateful_set: true };
    check(vec![
        (
            "its Service and StatefulSet are adopted",
            |o| {
                o.service = PartState::ManagedByOperator;
                o.stateful_set = PartState::ManagedByOperator;
            },
            Is::Action(applied),
        ),
        (
            "created by the operator for a Stack",
            |o| {
                managed(
                    o,
                    &[("pulumi-kubernetes-operator", ""), ("pulumi-kubernetes-operator/workspace-status", "status")],
                )
            },
            Is::Action(Action::Ignore),
        ),
        (
            "created by a user, with a status of the operator",
            |o| managed(o, &[("kubectl", ""), ("pulumi-kubernetes-operator/workspace-status", "status")]),
            Is::Action(Action::TakeOver),
        ),
        (
            "a pod of the operator without a run",
            |o| {
                outdated(o);
                o.agent = Agent::NotCalled;
            },
            Is::Action(Action::DeletePod { uid: "pod".to_owned() }),
        ),
        (
            "a pod of the operator with a possible run",
            |o| {
                outdated(o);
                o.agent = Agent::Unreachable("the agent belongs to the Pulumi Kubernetes Operator".to_owned());
            },
            Is::Report(State::Failing, reason::CONNECTION_FAILED, "the Pulumi Kubernetes Operator"),
        ),
    ]);
}

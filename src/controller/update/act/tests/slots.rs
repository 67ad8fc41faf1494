//! Tests for the run slots of runs that tenants try to keep open.

use super::*;

fn pod() -> Value {
    json!({
        "metadata": {"name": "app-workspace-0", "namespace": "apps", "uid": "pod-uid", "resourceVersion": "1"},
        "spec": {"nodeName": "node", "containers": []},
        "status": {"podIP": "10.0.0.1"},
    })
}

#[tokio::test]
async fn a_bound_run_with_an_invalid_workspace_is_reconciled_again() {
    let (client, _) = client(|_| FakeResponse::refusal(404, "NotFound"));
    let parts = TestParts::new(client);
    let workspace = json!({
        "apiVersion": "auto.pulumi.com/v1alpha1", "kind": "Workspace",
        "metadata": {"name": "app", "namespace": "apps"},
        "spec": {"env": [{"name": "A=B", "value": "x"}]},
    });
    let workspace = Some(serde_json::from_value(workspace).unwrap());
    let observed = Observed { workspace, ..observed(stored(), Some(pod())) };
    let now = "2026-01-01T12:10:00Z".parse().unwrap();
    let next = act(&observed, Action::Attach(RunBinding::default()), &context(&parts), now).await;
    assert!(matches!(next, Err(ReconcileError::Transient(_))), "a later attempt enforces the deadline: {next:?}");
}

//! Tests a program that creates Stacks.

use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt;
use pulumi_controller::api::conditions::{DRIFTED, drift_reason};
use pulumi_controller::api::pulumi::Stack;
use serde_json::json;

use super::{deploy, read, until_done};
use crate::harness::{Scene, WaitLimit, has_condition, is_done, run};

#[test]
fn a_program_creates_stacks_in_order_and_deletes_them_in_reverse_order() {
    run("provider-stacks", async |scene| {
        let teams = deploy(scene, "kubernetes-stacks", "teams").await;
        teams.until_revision_within(WaitLimit::Long, "1").await;
        let stacks = scene.list::<Stack>().await;
        assert_eq!(stacks.len(), 3);
        assert!(stacks.iter().all(is_done), "the outer Stack is Ready after the inner Stacks: {stacks:?}");
        let created =
            |name: &str| stacks.iter().find(|stack| stack.name_any() == name).and_then(|s| s.creation_timestamp());
        assert!(created("team-blue") < created("team-green"), "the second Stack waits for the first Stack");
        assert_eq!(read(scene, "configmap/settings-green", "{.data.team}").await, "green");

        // The status of the inner Stacks changes, but this change is not drift.
        let blue = scene.stack_handle("team-blue", &stacks[0]);
        blue.annotate("reconcile.fluxcd.io/requestedAt", "now").await;
        blue.until("to have handled the request", WaitLimit::Run, |stack| {
            is_done(stack)
                && stack.status.as_ref().and_then(|status| status.last_handled_reconcile_at.as_deref()) == Some("now")
        })
        .await;
        teams.change(json!({"spec": {"drift": {"interval": "1m"}}})).await;
        teams
            .until("to have checked for drift", WaitLimit::Long, |stack| {
                has_condition(stack, DRIFTED, "False", drift_reason::NO_DRIFT)
            })
            .await;
        until_done(&teams).await;

        teams.delete().await;
        teams.until_gone().await;
        assert!(scene.list::<Stack>().await.is_empty(), "the destroy waits until the inner Stacks are deleted");
        assert_eq!(settings(scene).await, Vec::<String>::new(), "the inner Stacks destroyed their resources");
    });
}

async fn settings(scene: &Scene) -> Vec<String> {
    let maps = scene.list::<ConfigMap>().await;
    maps.iter().map(ResourceExt::name_any).filter(|name| name.starts_with("settings-")).collect()
}

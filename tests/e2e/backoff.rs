//! Tests the intervals between a Stack's runs, and the removal of the Workspace between runs.

use std::collections::HashSet;

use k8s_openapi::api::core::v1::{Event, Pod};
use kube::ResourceExt;
use pulumi_controller::api::auto::{Update, Workspace};
use pulumi_controller::api::conditions::{RECONCILING, STALLED};
use pulumi_controller::api::names::workspace_pod;
use pulumi_controller::api::pulumi::{Stack, WorkspaceReclaimPolicy};
use serde_json::json;

use crate::harness::{Poll, Program, Scene, WaitLimit, api_call, condition, once, run, wait_until};

fn with_text(text: &str) -> Program {
    Program::new("backoff").step("step", json!({"value": text}))
}

#[test]
fn a_stack_with_an_interval_reruns_without_changes() {
    run("interval", async |scene| {
        let source = scene.source("app").await;
        let commit = source.push(&with_text("one").files()).await;
        let mut stack = scene.stack("main", &source);
        stack.spec.interval = Some("3s".to_owned());
        let main = scene.start(stack).await;
        let messages = until_requested(scene, 3).await;
        main.change(json!({"spec": {"interval": "0s"}})).await;
        main.until_applied(&commit).await;
        assert_eq!(messages[..3], ["Initial stack update", "Resync time elapsed: 3s", "Resync time elapsed: 3s"]);
        assert_eq!(main.log.operations().await, once(&["create step"]), "the resync changes no resource");
    });
}

#[test]
fn a_failing_stack_is_retried_indefinitely_without_stalling() {
    run("retry", async |scene| {
        let source = scene.source("app").await;
        source.push(&Program::new("backoff").step("step", json!({"failOn": "create"})).files()).await;
        let mut stack = scene.stack("main", &source);
        // The controller uses the minimum of 10 s instead of this value for each backoff.
        stack.spec.retry_max_backoff_duration_seconds = Some(1);
        let main = scene.start(stack).await;
        let failed = main
            .until("to have failed five times", WaitLimit::Run, |stack| {
                stack
                    .status
                    .as_ref()
                    .and_then(|status| status.last_update.as_ref())
                    .is_some_and(|last| last.failures == 5)
            })
            .await;
        let retrying = condition(&failed, RECONCILING).map(|condition| condition.message.clone()).unwrap_or_default();
        assert!(retrying.starts_with("5 update failure(s)"), "the condition agrees with the status: {retrying}");
        let stalled = |stack: &Stack| condition(stack, STALLED).is_some();
        assert!(!scene.timeline.states_of::<Stack>().iter().any(stalled), "the Stack is never stalled");
        let fixed = source.push(&with_text("one").files()).await;
        main.until_applied(&fixed).await;
    });
}

#[test]
fn a_failed_stack_is_retried_after_its_retry_interval() {
    run("retry-interval", async |scene| {
        let source = scene.source("app").await;
        source.push(&Program::new("backoff").step("step", json!({"failOn": "create"})).files()).await;
        let mut stack = scene.stack("main", &source);
        stack.spec.retry_interval = Some("1s".to_owned());
        let main = scene.start(stack).await;
        main.until("to have failed six times", WaitLimit::Run, |stack| {
            stack.status.as_ref().and_then(|status| status.attempts).unwrap_or_default() > 6
        })
        .await;
        let stalled = |stack: &Stack| condition(stack, STALLED).is_some();
        assert!(!scene.timeline.states_of::<Stack>().iter().any(stalled), "the Stack is never stalled");
        let fixed = source.push(&with_text("one").files()).await;
        main.until_applied(&fixed).await;
    });
}

/// Waits until the timeline contains at least `expected` Updates, and returns their messages. The timeline includes
/// Updates that the controller has deleted.
async fn until_requested(scene: &Scene, expected: usize) -> Vec<String> {
    wait_until(format!("{expected} runs"), WaitLimit::Run, async || {
        let mut seen = HashSet::new();
        let mut updates = scene.timeline.states_of::<Update>();
        updates.retain(|update| seen.insert(update.uid()));
        let messages: Vec<String> = updates.into_iter().filter_map(|update| update.spec.message).collect();
        if messages.len() >= expected { Poll::Found(messages) } else { Poll::NotYet(format!("{messages:?}")) }
    })
    .await
}

#[test]
fn reclaim_policy_delete_removes_the_workspace_between_runs() {
    run("reclaim", async |scene| {
        let source = scene.source("app").await;
        let first = source.push(&with_text("one").files()).await;
        let mut stack = scene.stack("main", &source);
        stack.spec.workspace_reclaim_policy = WorkspaceReclaimPolicy::Delete;
        stack.spec.destroy_on_finalize = Some(true);
        let main = scene.start(stack).await;
        main.until_applied(&first).await;
        until_reclaimed(scene).await;
        let second = source.push(&with_text("two").files()).await;
        main.until_applied(&second).await;
        until_reclaimed(scene).await;
        let events = api_call("listing events", scene.api::<Event>().list(&Default::default())).await;
        let reported: i32 = events
            .items
            .iter()
            .filter(|event| event.reason.as_deref() == Some("WorkspaceDeleted"))
            .map(|event| event.count.unwrap_or(1))
            .sum();
        assert_eq!(reported, 2, "one event per run");
        main.delete().await;
        main.until_gone().await;
        assert_eq!(main.log.operations().await, once(&["create step", "update step", "delete step"]));
    });
}

async fn until_reclaimed(scene: &Scene) {
    wait_until("the Workspace and its pod to be deleted", WaitLimit::Run, async || {
        let (workspaces, pods) = (scene.list::<Workspace>().await, scene.list::<Pod>().await);
        let pods = pods.iter().filter(|pod| pod.metadata.name == Some(workspace_pod("main"))).count();
        match (workspaces.len(), pods) {
            (0, 0) => Poll::Found(()),
            counts => Poll::NotYet(format!("{counts:?}")),
        }
    })
    .await;
}

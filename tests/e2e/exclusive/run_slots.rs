//! Tests a controller with a single run slot: the queue order and the default run timeout.

use kube::ResourceExt;
use pulumi_controller::api::auto::Update;
use pulumi_controller::api::conditions::{RECONCILING, update_reason};
use pulumi_controller::api::pulumi::Stack;
use serde_json::json;

use crate::harness::{
    Commit, Controller, Poll, Program, Scene, StackHandle, WaitLimit, client, condition, in_scene, run_alone,
    run_with_cleanup, wait_until,
};
use crate::runs_parts::{slow, until_ended_with_reason};

#[test]
fn queued_stacks_keep_their_position_and_higher_priority_runs_first() {
    run_alone(async || {
        let controller = Controller::new(&client().await);
        let before = controller.arguments().await;
        let limits = ["--max-concurrent-runs=1", "--default-run-timeout=60s"].map(str::to_owned);
        let test = async || {
            controller.start_with(&[before.as_slice(), &limits].concat(), 1).await;
            in_scene("slots", async |scene| queue_for_one_slot(scene, &controller).await).await;
        };
        run_with_cleanup(test, async || controller.start_with(&before, 1).await).await;
    });
}

async fn queue_for_one_slot(scene: &Scene, controller: &Controller) {
    let (hogs, earlys, urgents) =
        (scene.source("hog").await, scene.source("early").await, scene.source("urgent").await);
    hogs.push(&slow("hog", 300).files()).await;
    let with_text = |text: &str| Program::new("app").step("step", json!({"value": text}));
    let first = earlys.push(&with_text("one").files()).await;
    let only = urgents.push(&with_text("one").files()).await;
    let hog = scene.start(scene.stack("hog", &hogs)).await;
    hog.log.wait_for("create", "slow", "begin").await;

    let early = scene.start(scene.stack("early", &earlys)).await;
    until_queued(&early, &first).await;
    let mut stack = scene.stack("urgent", &urgents);
    stack.spec.priority = Some(10);
    let urgent = scene.start(stack).await;
    until_queued(&urgent, &only).await;

    let since = |stack: Stack| stack.status.and_then(|status| status.pending_since).expect("pendingSince is set");
    let position = since(early.get().await);
    let second = earlys.push(&with_text("two").files()).await;
    let update = until_queued(&early, &second).await;
    assert_eq!(since(early.get().await), position, "a newer commit keeps the position in the queue");
    assert_eq!(update.spec.pending_since, Some(position));
    controller.kill().await;
    controller.until_available().await;

    until_ended_with_reason(&hog, update_reason::CANCELED).await;
    hog.change(json!({"spec": {"suspend": true}})).await;
    let last = hog.get().await.status.and_then(|status| status.last_update?.message).unwrap_or_default();
    assert!(last.contains("--default-run-timeout"), "{last}");
    urgent.until_applied(&only).await;
    early.until_applied(&second).await;
    let started = async |stack: &StackHandle<'_>| {
        let updates = stack.updates().await;
        updates.into_iter().filter_map(|update| update.status?.start_time).map(|time| time.0).collect::<Vec<_>>()
    };
    let (of_early, of_urgent) = (started(&early).await, started(&urgent).await);
    assert_eq!((of_early.len(), of_urgent.len()), (1, 1), "each Stack has run once");
    assert!(of_urgent < of_early, "the higher priority runs first: {of_urgent:?}, {of_early:?}");
}

/// Waits until the Stack reports that its run for this commit is queued, and returns the Update of the run.
async fn until_queued(stack: &StackHandle<'_>, commit: &Commit) -> Update {
    let is_of_commit = |update: &&Update| {
        update.spec.artifact.as_ref().is_some_and(|artifact| artifact.revision == commit.revision())
            && update.metadata.deletion_timestamp.is_none()
    };
    stack
        .until("to report the full queue", WaitLimit::Run, |stack| {
            let revision = stack.status.as_ref().and_then(|status| status.last_attempted_revision.clone());
            let message = condition(stack, RECONCILING).map(|found| found.message.as_str()).unwrap_or_default();
            revision == Some(commit.revision()) && message.contains("--max-concurrent-runs")
        })
        .await;
    wait_until(format!("the run of the Stack {} to be queued", stack.name), WaitLimit::Run, async || {
        let updates = stack.updates().await;
        match updates.iter().find(is_of_commit) {
            Some(update) => Poll::Found(update.clone()),
            None => {
                Poll::NotYet(format!("{:?}", updates.iter().map(|u| (u.name_any(), &u.status)).collect::<Vec<_>>()))
            }
        }
    })
    .await
}

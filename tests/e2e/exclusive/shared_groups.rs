//! Tests a concurrency group that two namespaces share.

use pulumi_controller::api::conditions::RECONCILING;
use pulumi_controller::api::names::{ANNOTATION_CANCEL, ANNOTATION_CONCURRENCY_GROUPS};
use pulumi_controller::api::pulumi::{ConcurrencyGroup, Stack};
use serde_json::json;

use crate::harness::{
    Controller, Program, Scene, WaitLimit, client, condition, in_scene, kubectl, run_alone, run_with_cleanup,
};
use crate::runs_parts::slow;

#[test]
fn namespaces_share_a_group_only_if_the_administrator_permits_it() {
    run_alone(async || {
        let controller = Controller::new(&client().await);
        let before = controller.arguments().await;
        let flag = "--concurrency-groups=account=1".to_owned();
        let test = async || {
            controller.start_with(&[before.as_slice(), &[flag]].concat(), 1).await;
            in_scene("group-one", async |one| {
                in_scene("group-two", async |two| {
                    in_scene("group-local", async |local| share(one, two, local, &controller).await).await;
                })
                .await;
            })
            .await;
        };
        run_with_cleanup(test, async || controller.start_with(&before, 1).await).await;
    });
}

fn in_group(mut stack: Stack) -> Stack {
    // This limit has no effect, because a controller flag sets the shared group's limit.
    stack.spec.concurrency_group = Some(ConcurrencyGroup { name: "account".to_owned(), limit: Some(9) });
    stack
}

async fn share(one: &Scene, two: &Scene, local: &Scene, controller: &Controller) {
    for scene in [one, two] {
        let annotation = format!("{ANNOTATION_CONCURRENCY_GROUPS}=account");
        kubectl(&["annotate", "namespace", &scene.namespace, "--overwrite", &annotation], "").await;
    }
    let slow_source = one.source("app").await;
    slow_source.push(&slow("shared-group", 300).files()).await;
    let first = one.start(in_group(one.stack("main", &slow_source))).await;
    first.log.wait_for("create", "slow", "begin").await;

    let quick = Program::new("shared-group").step("step", json!({"value": "one"}));
    let source = two.source("app").await;
    let commit = source.push(&quick.files()).await;
    let second = two.start(in_group(two.stack("main", &source))).await;
    let waits = |stack: &Stack| {
        let message = condition(stack, RECONCILING).map(|found| found.message.as_str()).unwrap_or_default();
        message.contains("waiting for concurrency group account: 1 of 1 runs open (--concurrency-groups)")
    };
    second.until("to wait for the group", WaitLimit::Run, waits).await;
    // The new process must find the open run and its concurrency group before it starts another run.
    controller.kill().await;
    controller.until_available().await;

    let local_source = local.source("app").await;
    let local_commit = local_source.push(&quick.files()).await;
    let stranger = local.start(in_group(local.stack("main", &local_source))).await;
    stranger.until_applied(&local_commit).await;
    assert!(second.log.operations().await.is_empty(), "the run waits for the run in the other namespace");

    first.annotate(ANNOTATION_CANCEL, "now").await;
    second.until_applied(&commit).await;
}

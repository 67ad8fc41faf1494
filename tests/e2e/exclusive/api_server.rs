//! Tests outages of the API server during runs. No other test runs at the same time.

use std::collections::BTreeSet;

use kube::ResourceExt;
use pulumi_controller::api::auto::Update;
use pulumi_controller::api::pulumi::Stack;
use serde_json::json;

use crate::harness::{
    ApiServerOutage, Controller, OutageKind, Poll, Program, Scene, WaitLimit, in_scene, once, report_skipped,
    run_alone, wait_until,
};

/// Runs the test. If the tests must not stop the API server, reports the test as skipped.
fn run_or_skip(name: &str, test: impl AsyncFnOnce(&Controller, &Scene)) {
    if !ApiServerOutage::is_possible() {
        report_skipped(name, "the API server of an existing cluster must not be stopped");
        return;
    }
    run_alone(async || {
        in_scene(name, async |scene| {
            let controller = Controller::new(&scene.client);
            test(&controller, scene).await;
        })
        .await;
    });
}

#[test]
fn a_run_continues_without_the_api_server_and_is_recorded_once() {
    run_or_skip("api-gone", async |controller, scene| {
        check_run_during_outage(controller, scene, OutageKind::Stopped).await;
    });
}

#[test]
fn a_run_continues_while_the_api_server_hangs_and_is_recorded_once() {
    run_or_skip("api-hangs", async |controller, scene| {
        check_run_during_outage(controller, scene, OutageKind::Paused).await;
    });
}

/// Tests a run that starts before the outage and ends during the outage. The run takes twenty seconds, so the
/// controller loses its lease during the run.
async fn check_run_during_outage(controller: &Controller, scene: &Scene, kind: OutageKind) {
    let source = scene.source("app").await;
    let slow = |value: &str| {
        let properties = json!({"seconds": 20, "steps": 20, "value": value});
        Program::new("api-away").step("slow", properties).output("n", json!("${slow.count}"))
    };
    let first = source.push(&slow("one").files()).await;
    let main = scene.start(scene.stack("main", &source)).await;
    main.log.wait_for("create", "slow", "begin").await;
    let pod = main.pod_and_restarts().await;

    let outage = ApiServerOutage::start(kind).await;
    // Without the API server, the pods on the node can still reach the Service of the provider log.
    main.log.wait_for("create", "slow", "done").await;
    outage.finish().await;
    until_reachable(scene).await;

    let stack = main.until_applied(&first).await;
    assert_eq!(json!(stack.status.expect("a status").outputs), json!({"n": 0}));
    assert_eq!(main.log.operations().await, once(&["create slow"]), "no operation is repeated");
    assert_eq!(main.pod_and_restarts().await, pod, "the run continues in the same pod");
    assert_eq!(main.updates().await.len(), 1);
    controller.until_available().await;

    // Pushes a commit immediately after the outage. The run for this commit proves that each watch is active again.
    let second = source.push(&Program::new("api-away").step("slow", json!({"value": "two"})).files()).await;
    main.until_applied(&second).await;
    assert_eq!(main.log.operations().await, once(&["create slow", "update slow"]));
    assert_results_recorded_once(scene);
}

/// The restart ends all watches, and the resource versions of the watches expire.
#[test]
fn a_commit_pushed_right_after_an_api_server_restart_starts_a_run() {
    run_or_skip("api-watches", async |controller, scene| {
        let source = scene.source("app").await;
        let with_text = |text: &str| Program::new("api-watches").step("step", json!({"value": text}));
        let first = source.push(&with_text("one").files()).await;
        let main = scene.start(scene.stack("main", &source)).await;
        main.until_applied(&first).await;
        let pod = main.pod_and_restarts().await;

        ApiServerOutage::start(OutageKind::Stopped).await.finish().await;
        until_reachable(scene).await;
        let second = source.push(&with_text("two").files()).await;
        main.until_applied(&second).await;
        assert_eq!(main.log.operations().await, once(&["create step", "update step"]));
        assert_eq!(main.pod_and_restarts().await, pod, "no pod is replaced");
        assert_eq!(main.updates().await.len(), 2, "one run per commit");
        controller.until_available().await;
        assert_results_recorded_once(scene);
    });
}

/// Waits until the API server responds. The first call can fail because the shared client still uses a closed
/// connection. The function therefore retries, and later calls succeed.
async fn until_reachable(scene: &Scene) {
    wait_until("the API server to be reachable again", WaitLimit::Reaction, async || {
        match scene.api::<Stack>().list(&Default::default()).await {
            Ok(_) => Poll::Found(()),
            Err(error) => Poll::NotYet(error.to_string()),
        }
    })
    .await;
}

/// Checks for each run that all observed Update and Stack states contain the same result.
fn assert_results_recorded_once(scene: &Scene) {
    let mut ends = BTreeSet::new();
    for update in scene.timeline.states_of::<Update>().iter().filter(|update| update.is_complete()) {
        let status = update.status.clone().unwrap_or_default();
        ends.insert((update.name_any(), status.end_time.map(|time| time.0), status.message));
    }
    let names: BTreeSet<&String> = ends.iter().map(|(name, ..)| name).collect();
    assert_eq!(names.len(), ends.len(), "an Update ended twice: {ends:?}");
    let mut recorded = BTreeSet::new();
    for last in scene.timeline.states_of::<Stack>().into_iter().filter_map(|stack| stack.status?.last_update) {
        recorded.insert((last.name, last.last_resync_time.map(|time| time.0)));
    }
    let names: BTreeSet<&Option<String>> = recorded.iter().map(|(name, _)| name).collect();
    assert_eq!(names.len(), recorded.len(), "a Stack recorded a run twice: {recorded:?}");
}

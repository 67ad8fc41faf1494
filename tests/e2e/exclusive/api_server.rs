//! Tests outages of the API server during runs. No other test runs at the same time.

use std::collections::BTreeSet;

use kube::ResourceExt;
use pulumi_controller::api::auto::Update;
use pulumi_controller::api::pulumi::Stack;
use serde_json::json;

use crate::harness::{
    Absence, Controller, Look, Program, Scene, StoppedApiServer, WaitLimit, in_scene, not_run, once, run_alone,
    wait_until,
};

/// Runs the test, or reports it as skipped if the tests must not stop the API server.
fn run_where_it_can_go(name: &str, test: impl AsyncFnOnce(&Controller, &Scene)) {
    if !StoppedApiServer::is_possible() {
        not_run(name, "the API server of an existing cluster must not be stopped");
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
    run_where_it_can_go("api-gone", async |controller, scene| {
        a_run_ends_while_it_is_away(controller, scene, Absence::Stopped).await;
    });
}

#[test]
fn a_run_continues_while_the_api_server_hangs_and_is_recorded_once() {
    run_where_it_can_go("api-hangs", async |controller, scene| {
        a_run_ends_while_it_is_away(controller, scene, Absence::Paused).await;
    });
}

/// Tests a run that starts before the outage and ends during the outage. In these twenty seconds, the controller loses
/// its lease.
async fn a_run_ends_while_it_is_away(controller: &Controller, scene: &Scene, absence: Absence) {
    let source = scene.source("app").await;
    let slow = |value: &str| {
        let properties = json!({"seconds": 20, "steps": 20, "value": value});
        Program::new("api-away").step("slow", properties).output("n", json!("${slow.count}"))
    };
    let first = source.push(&slow("one").files()).await;
    let main = scene.start(scene.stack("main", &source)).await;
    main.log.wait_for("create", "slow", "begin").await;
    let pod = main.pod_and_restarts().await;

    let away = StoppedApiServer::take(absence).await;
    // The node can reach the Service of the provider log without the API server.
    main.log.wait_for("create", "slow", "done").await;
    away.bring_back().await;
    until_reachable(scene).await;

    let stack = main.until_applied(&first).await;
    assert_eq!(json!(stack.status.expect("a status").outputs), json!({"n": 0}));
    assert_eq!(main.log.sentences().await, once(&["create slow"]), "no operation is repeated");
    assert_eq!(main.pod_and_restarts().await, pod, "the run continues in the same pod");
    assert_eq!(main.updates().await.len(), 1);
    controller.until_available().await;

    // A push immediately after the outage runs, which proves that every watch is active again.
    let second = source.push(&Program::new("api-away").step("slow", json!({"value": "two"})).files()).await;
    main.until_applied(&second).await;
    assert_eq!(main.log.sentences().await, once(&["create slow", "update slow"]));
    each_result_was_recorded_once(scene);
}

/// The restart ends all watches, and their resource versions have expired.
#[test]
fn a_commit_pushed_right_after_an_api_server_restart_runs() {
    run_where_it_can_go("api-watches", async |controller, scene| {
        let source = scene.source("app").await;
        let with_text = |text: &str| Program::new("api-watches").step("step", json!({"value": text}));
        let first = source.push(&with_text("one").files()).await;
        let main = scene.start(scene.stack("main", &source)).await;
        main.until_applied(&first).await;
        let pod = main.pod_and_restarts().await;

        StoppedApiServer::take(Absence::Stopped).await.bring_back().await;
        until_reachable(scene).await;
        let second = source.push(&with_text("two").files()).await;
        main.until_applied(&second).await;
        assert_eq!(main.log.sentences().await, once(&["create step", "update step"]));
        assert_eq!(main.pod_and_restarts().await, pod, "no pod is replaced");
        assert_eq!(main.updates().await.len(), 2, "one run per commit");
        controller.until_available().await;
        each_result_was_recorded_once(scene);
    });
}

/// Waits until the API server responds. A call on a closed connection fails; this function retries, so later calls
/// succeed.
async fn until_reachable(scene: &Scene) {
    wait_until("the API server to be reachable again", WaitLimit::Reaction, async || {
        match scene.api::<Stack>().list(&Default::default()).await {
            Ok(_) => Look::Found(()),
            Err(error) => Look::NotYet(error.to_string()),
        }
    })
    .await;
}

/// Checks that all observed states of an Update or a Stack contain the same result for a run.
fn each_result_was_recorded_once(scene: &Scene) {
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

//! Tests controller restarts while Workspaces sleep, fall asleep or wake up.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use pulumi_controller::api::auto::Update;
use pulumi_controller::api::names::workspace_pod;
use serde_json::json;

use crate::harness::{Controller, Program, Scene, client, in_scene, once, run_alone, run_with_cleanup};
use crate::pool;
use crate::sleeping::{is_asleep, run_on_request, stack_with_idle_time, until_asleep};

/// Failpoints between the steps in which a Workspace falls asleep or wakes up.
pub const FAILPOINTS: [&str; 4] = ["workspace-asleep", "stack-workspace-requested", "workspace-awake", POD_RECORDED];
/// Failpoint after the controller has recorded a pool pod in a Workspace status, and before it changes the pod's
/// labels.
const POD_RECORDED: &str = "pod-recorded";

#[test]
fn a_restart_of_the_controller_wakes_no_workspace() {
    run_alone(async || {
        in_scene("sleeping-restart", async |scene| {
            let source = scene.source("app").await;
            let program = Program::new("sleeping-restart").step("step", json!({"value": "one"}));
            let commit = source.push(&program.files()).await;
            let main = scene.start(stack_with_idle_time(scene, &source)).await;
            main.until_applied(&commit).await;
            let before = until_asleep(scene, "main").await;

            let controller = Controller::new(&client().await);
            controller.kill().await;
            controller.until_available().await;
            // The run of another Stack proves that the controller has had time to reconcile the first Stack after the
            // restart.
            let other = scene.start(scene.stack("other", &source)).await;
            other.until_applied(&commit).await;
            let after = main.workspace().await;
            assert!(is_asleep(&after));
            assert_eq!(after.status, before.status, "the restart changes nothing");
            let pods: BTreeSet<String> = scene.list::<Pod>().await.iter().map(Pod::name_any).collect();
            assert_eq!(pods, BTreeSet::from([workspace_pod("other")]));
            assert_eq!(main.updates().await.len(), 1);
        })
        .await;
    });
}

#[test]
fn a_restart_at_any_step_of_a_sleep_neither_loses_nor_duplicates_a_run() {
    run_alone(async || {
        let controller = Controller::new(&client().await);
        let crashes = async || {
            for failpoint in FAILPOINTS {
                println!("the controller exits at {failpoint}");
                in_scene("sleeping-step", async |scene| {
                    controller.restart_with_failpoint(Some(failpoint)).await;
                    if failpoint == POD_RECORDED {
                        pool::set_idle_pods(scene, "1").await;
                    }
                    check_sleep(scene).await;
                    controller.until_failpoint_reached(failpoint).await;
                })
                .await;
            }
        };
        run_with_cleanup(crashes, async || controller.restart_with_failpoint(None).await).await;
    });
}

/// Runs a Stack, waits until its Workspace sleeps, and requests a run, which wakes up the Workspace.
async fn check_sleep(scene: &Scene) {
    let source = scene.source("app").await;
    let program = Program::new("sleeping-step").step("step", json!({"value": scene.id}));
    let commit = source.push(&program.files()).await;
    let main = scene.start(stack_with_idle_time(scene, &source)).await;
    main.until_applied(&commit).await;
    until_asleep(scene, "main").await;
    if pool::has_idle_pods(scene).await {
        pool::until_ready(scene).await;
    }
    run_on_request(&main, "while asleep").await;
    assert_eq!(main.log.operations().await, once(&["create step"]));
    let runs: BTreeSet<String> = scene.timeline.states_of::<Update>().iter().map(Update::name_any).collect();
    assert_eq!(runs.len(), 2, "one run before and one run after the sleep: {runs:?}");
}

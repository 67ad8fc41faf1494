//! Tests a controller of a newer version with agents of an older version.

use std::panic::{AssertUnwindSafe, resume_unwind};

use futures::FutureExt;
use k8s_openapi::api::core::v1::Pod;
use serde_json::json;

use crate::harness::{Controller, Poll, Program, Scene, WaitLimit, client, in_scene, once, run_alone, wait_until};

#[test]
fn a_newer_controller_replaces_only_idle_incompatible_agents() {
    run_alone(async || {
        let controller = Controller::new(&client().await);
        let upgrades = AssertUnwindSafe(in_scene("upgrade", async |scene| {
            let source = scene.source("app").await;
            let with_text = |text: &str, seconds: u32| {
                Program::new("upgrade").step("step", json!({"value": text, "seconds": seconds, "steps": seconds}))
            };
            let first = source.push(&with_text("one", 1).files()).await;
            let main = scene.start(scene.stack("main", &source)).await;
            main.until_applied(&first).await;
            let pod = main.pod_and_restarts().await;

            let [last_spoken_to, first_not_spoken_to] = versions();
            controller.restart_with_version(Some(&last_spoken_to)).await;
            let second = source.push(&with_text("two", 30).files()).await;
            main.log.wait_for("update", "step", "begin").await;
            assert_eq!(main.pod_and_restarts().await, pod, "the existing agent executes the run");

            controller.restart_with_version(Some(&first_not_spoken_to)).await;
            main.until_applied(&second).await;
            assert_eq!(
                main.log.operations().await,
                once(&["create step", "update step"]),
                "the run was not interrupted"
            );
            assert_eq!(main.updates().await.len(), 2);
            until_another_pod(scene, &pod.0).await;
        }));
        let outcome = upgrades.catch_unwind().await;
        controller.restart_with_version(None).await;
        if let Err(failure) = outcome {
            resume_unwind(failure);
        }
    });
}

/// Returns the last controller version that supports agents of the current version, and the first version that does not
/// support these agents.
fn versions() -> [String; 2] {
    let mut numbers = env!("CARGO_PKG_VERSION").split('.').map(|number| number.parse::<u64>().expect("a number"));
    let (major, minor) = (numbers.next().expect("a major version"), numbers.next().expect("a minor version"));
    [2, 3].map(|later| format!("{major}.{}.0", minor + later))
}

async fn until_another_pod(scene: &Scene, before: &str) {
    wait_until("the pod to be replaced", WaitLimit::Run, async || {
        let pods = scene.list::<Pod>().await;
        let uids: Vec<String> = pods.iter().filter_map(|pod| pod.metadata.uid.clone()).collect();
        match uids.iter().any(|uid| uid != before) {
            true => Poll::Found(()),
            false => Poll::NotYet(format!("{uids:?}")),
        }
    })
    .await;
}

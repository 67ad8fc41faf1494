//! A controller that dies. These tests have it to themselves.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::path::Path;

use futures::FutureExt;
use kube::ResourceExt;
use pulumi_controller::api::auto::Update;
use serde_json::json;

use crate::harness::{Controller, Program, Scene, client, in_scene, once, run_alone};

/// The controller is made to die at each place that the code names, once, on the way from a new Stack to one that is
/// destroyed and gone.
#[test]
fn the_controller_restarted_between_two_steps_neither_loses_nor_doubles_a_run() {
    let failpoints = failpoints_of_the_controller();
    assert!(failpoints.len() > 3, "the code names places where the controller may die: {failpoints:?}");
    run_alone(async || {
        let controller = Controller::new(&client().await);
        let deaths = AssertUnwindSafe(async {
            for failpoint in &failpoints {
                println!("the controller dies at {failpoint}");
                in_scene("failpoint", async |scene| {
                    // Once: the process that is started after it lives.
                    controller.die_at(Some(failpoint)).await;
                    whole_life_of_a_stack(scene).await;
                    controller.until_it_died(failpoint).await;
                })
                .await;
            }
        });
        let outcome = deaths.catch_unwind().await;
        controller.die_at(None).await;
        if let Err(failure) = outcome {
            resume_unwind(failure);
        }
    });
}

/// From its creation to its end; every resource is created once and deleted once, by one run each.
async fn whole_life_of_a_stack(scene: &Scene) {
    let source = scene.source("app").await;
    // An output, so that its Secret is one of the steps.
    let program =
        Program::new("failpoint").step("step", json!({"value": scene.id})).output("n", json!("${step.count}"));
    let commit = source.push(&program.files()).await;
    let mut stack = scene.stack("main", &source);
    stack.spec.destroy_on_finalize = Some(true);
    let main = scene.start(stack).await;
    main.until_applied(&commit).await;
    main.delete().await;
    main.until_gone().await;
    assert_eq!(main.log.sentences().await, once(&["create step", "delete step"]));
    let runs: BTreeSet<String> = scene.timeline.states_of::<Update>().iter().map(Update::name_any).collect();
    assert_eq!(runs.len(), 2, "one up and one destroy: {runs:?}");
}

/// The names in the code, but for the agent's, which is another process.
fn failpoints_of_the_controller() -> BTreeSet<String> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut names = BTreeSet::new();
    let mut folders = vec![source.clone()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("the source can be listed").flatten() {
            let path = entry.path();
            if path.is_dir() && path != source.join("agent") {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = std::fs::read_to_string(&path).expect("the source can be read");
                let calls = text.split("failpoint::hit(\"").skip(1);
                names.extend(calls.filter_map(|rest| rest.split('"').next()).map(str::to_owned));
            }
        }
    }
    names
}

#[test]
fn the_controller_killed_during_a_run_attaches_again() {
    run_alone(async || {
        in_scene("killed", async |scene| {
            let source = scene.source("app").await;
            let program = Program::new("killed")
                .step("slow", json!({"seconds": 20, "steps": 20}))
                .output("n", json!("${slow.count}"));
            let commit = source.push(&program.files()).await;
            let main = scene.start(scene.stack("main", &source)).await;
            main.log.wait_for("create", "slow", "begin").await;
            let before = main.updates().await;
            let pod = main.pod_and_restarts().await;

            let controller = Controller::new(&scene.client);
            let killed = controller.kill().await;
            controller.until_available().await;
            assert_ne!(controller.pod().await.uid().unwrap_or_default(), killed, "another controller is at work");
            assert_eq!(
                main.log.sentences().await,
                ["create slow begin"],
                "the run went on while there was no controller"
            );

            let stack = main.until_applied(&commit).await;
            assert_eq!(json!(stack.status.expect("a status").outputs), json!({"n": 0}));
            assert_eq!(main.log.sentences().await, once(&["create slow"]));
            assert_eq!(main.pod_and_restarts().await, pod);
            let after = main.updates().await;
            assert_eq!((before.len(), after.len()), (1, 1));
            let binding = |updates: &[Update]| updates[0].status.clone().and_then(|status| status.run);
            assert_eq!(binding(&before), binding(&after), "the run is the one that was started");
            assert!(binding(&after).is_some());
        })
        .await;
    });
}

#[test]
fn a_commit_pushed_while_there_is_no_controller_runs_once_it_is_back() {
    run_alone(async || {
        in_scene("away", async |scene| {
            let source = scene.source("app").await;
            let saying = |text: &str| Program::new("away").step("step", json!({"value": text}));
            let first = source.push(&saying("one").files()).await;
            let main = scene.start(scene.stack("main", &source)).await;
            main.until_applied(&first).await;
            let pod = main.pod_and_restarts().await;

            let controller = Controller::new(&scene.client);
            controller.kill().await;
            let second = source.push(&saying("two").files()).await;
            source.artifact_of(&second).await;
            controller.until_available().await;
            main.until_applied(&second).await;
            assert_eq!(main.pod_and_restarts().await, pod);
            assert_eq!(main.log.sentences().await, once(&["create step", "update step"]));
            assert_eq!(main.updates().await.len(), 2);
        })
        .await;
    });
}

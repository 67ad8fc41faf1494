//! Measures the warm path for a Git repository that the controller polls. The path starts with a reconcile request
//! immediately after a push, and ends when the CLI starts. Only the first step differs from the steps in `path.rs`.

use pulumi_controller::api::auto::{Update, Workspace};
use pulumi_controller::api::names::ANNOTATION_REQUESTED_AT;

use crate::harness::{Scene, in_scene};
use crate::moments::{Moments, now};
use crate::path::{Pod, ROUNDS, STEPS, STEPS_TO_EXEC, moments_of, program, steps, total};
use crate::table::{Row, median};

/// Poll interval in seconds. The interval is so long that only reconcile requests cause polls.
const POLL_INTERVAL: i64 = 3600;
/// Description of the first step, which differs from the first step for a Flux artifact.
const FIRST_STEP: &str = "Stack reconciled: repository polled, commit fetched and packed, Workspace written";

pub async fn measure() -> Row {
    let mut row = None;
    in_scene("bench-poll", async |scene| row = Some(poll(scene).await)).await;
    row.expect("the scene has ended")
}

async fn poll(scene: &Scene) -> Row {
    let source = scene.source("app").await;
    let first = source.push_without_notification(&program("start")).await;
    let mut stack = scene.stack_on_repository("main", &source);
    stack.spec.resync_frequency_seconds = Some(POLL_INTERVAL);
    let stack = scene.start(stack).await;
    stack.until_applied(&first).await;
    let pod = Pod::of(scene, &stack.name);
    let (workspaces, updates) = (Moments::<Workspace>::watch(scene.api()), Moments::<Update>::watch(scene.api()));
    let (mut runs, mut pushes) = (Vec::new(), Vec::new());
    for round in 1..=ROUNDS {
        let text = format!("round {round}");
        let push_began = now();
        let commit = source.push_without_notification(&program(&text)).await;
        let began = now();
        stack.annotate(ANNOTATION_REQUESTED_AT, &text).await;
        stack.until_applied(&commit).await;
        let run = moments_of(began, &commit.revision(), &workspaces, &updates, &pod).await;
        println!(
            "round {round} of {ROUNDS}: exec after {:.3} s, Update finished after {:.3} s",
            run[STEPS_TO_EXEC] - began,
            run[STEPS.len()] - began
        );
        pushes.push(began - push_began);
        runs.push(run);
    }
    let mut steps = steps(&runs, STEPS_TO_EXEC);
    steps[0].name = FIRST_STEP.to_owned();
    let (to_exec, to_end) = (total(&runs, STEPS_TO_EXEC), total(&runs, STEPS.len()));
    let name = "reconcile request for a pushed commit → exec of `pulumi up`, warm";
    Row::of(name, "", format!("{to_exec:.2} s"), None).with_steps(steps).with_note(format!(
        "Update finished after {to_end:.2} s; commit and push took {:.2} s before the request; medians of {ROUNDS}",
        median(pushes)
    ))
}

//! Measures the time from a workspace pod's creation until its Workspace is Ready. The node has already pulled the
//! images.

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use pulumi_controller::api::auto::Workspace;
use pulumi_controller::api::conditions::{READY, is_true};
use pulumi_controller::api::names;

use crate::harness::{Program, Scene, in_scene};
use crate::moments::{Moment, Moments, now};
use crate::table::{Row, Step, median};

const ROUNDS: usize = 5;
const BUDGET: f64 = 3.0;

/// Steps of the measurement, in order. A watch observes the end of each step.
const STEPS: [&str; 3] = [
    "scheduled",
    "sandbox and volumes created, agent copied by `bootstrap`, status reported by the kubelet",
    "agent started, source installed, Workspace Ready",
];

pub async fn measure() -> Row {
    let mut row = None;
    in_scene("bench-cold", async |scene| row = Some(cold(scene).await)).await;
    row.expect("the scene has ended")
}

async fn cold(scene: &Scene) -> Row {
    let source = scene.source("app").await;
    let commit = source.push(&Program::new("bench-cold").output("text", "hello".into()).files()).await;
    source.artifact_of(&commit).await;
    let (pods, workspaces) = (Moments::<Pod>::watch(scene.api()), Moments::<Workspace>::watch(scene.api()));
    let (mut rounds, mut whole) = (Vec::new(), Vec::new());
    for round in 1..=ROUNDS {
        let began = now();
        let stack = scene.start(scene.stack(&format!("cold-{round}"), &source)).await;
        stack.until_applied(&commit).await;
        whole.push(now() - began);
        let moments = moments_of(&stack.name, &pods, &workspaces);
        println!(
            "round {round} of {ROUNDS}: ready {:.2} s after the pod was created; Stack Ready after {:.2} s in all",
            moments[STEPS.len()] - moments[0],
            now() - began
        );
        rounds.push(moments);
        stack.delete().await;
        stack.until_gone().await;
    }
    let step = |i: usize| median(rounds.iter().map(|moments| moments[i + 1] - moments[i]).collect());
    let steps = (0..STEPS.len()).map(|i| Step { name: STEPS[i].to_owned(), seconds: step(i) }).collect();
    let total = median(rounds.iter().map(|moments| moments[STEPS.len()] - moments[0]).collect());
    Row::seconds("pod created → workspace ready, images present", total, BUDGET)
        .with_steps(steps)
        .with_note(format!("new Stack → Ready: {:.2} s; medians of {ROUNDS}", median(whole)))
}

/// Returns the start time and the end time of each step.
fn moments_of(stack: &str, pods: &Moments<Pod>, workspaces: &Moments<Workspace>) -> Vec<Moment> {
    let name = names::workspace_pod(stack);
    let first =
        |what: &str, predicate: &dyn Fn(&Pod) -> bool| pods.first(what, |pod| pod.name_any() == name && predicate(pod));
    let is_condition = |pod: &Pod, kind: &str| {
        let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
        conditions.into_iter().flatten().any(|condition| condition.type_ == kind && condition.status == "True")
    };
    vec![
        first("at all", &|_| true),
        first("scheduled", &|pod| is_condition(pod, "PodScheduled")),
        first("initialized", &|pod| is_condition(pod, "Initialized")),
        workspaces.first("ready", |workspace| {
            let status = workspace.status.clone().unwrap_or_default();
            workspace.name_any() == stack && status.artifact.is_some() && is_true(&status.conditions, READY)
        }),
    ]
}

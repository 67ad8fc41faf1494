//! Measures a push to one Stack while many other Stacks are idle. The measurement covers the steps of the warm path
//! that the controller executes, and uses a fake agent.

use kube::ResourceExt;
use pulumi_controller::api::auto::{Update, Workspace};
use serde_json::json;

use crate::fake_nodes;
use crate::harness::{FluxObject, Program, Scene, Source, StackHandle};
use crate::moments::{Moments, now};
use crate::path::{STEPS, watched};
use crate::table::{Row, Step, median};

const ROUNDS: usize = 5;
const BUDGET: f64 = 0.5;
/// Number of observable steps before the request to the agent.
const STEPS_SEEN: usize = 4;

/// A Stack that receives pushes, in its own namespace.
pub struct Pushed<'a> {
    source: Source<'a>,
    external: FluxObject<'a>,
    stack: StackHandle<'a>,
    workspaces: Moments<Workspace>,
    updates: Moments<Update>,
}

impl<'a> Pushed<'a> {
    pub async fn start(scene: &'a Scene) -> Pushed<'a> {
        let source = scene.source("app").await;
        let artifact = source.artifact_of(&source.push(&program("start")).await).await;
        let external = scene.flux_object("ExternalArtifact", "externalartifacts", "served");
        external.create(json!({})).await;
        external.publish(&artifact).await;
        let stack = fake_nodes::place(scene.stack_on_kind("pushed", None, &external));
        let stack = scene.start(stack).await;
        stack.until_revision(&artifact.revision).await;
        let (workspaces, updates) = (Moments::watch(scene.api()), Moments::watch(scene.api()));
        Pushed { source, external, stack, workspaces, updates }
    }

    /// Measures the time from a new artifact in the source status to the request to the agent. `others` describes the
    /// other Stacks.
    pub async fn measure(&self, others: &str, budget: Option<f64>) -> Row {
        println!("{ROUNDS} pushes to one of the Stacks");
        let mut steps: [Vec<f64>; STEPS_SEEN] = Default::default();
        let mut totals = Vec::new();
        for round in 1..=ROUNDS {
            let commit = self.source.push(&program(&format!("{others}, round {round}"))).await;
            let artifact = self.source.artifact_of(&commit).await;
            let mut before = now();
            let began = before;
            self.external.publish(&artifact).await;
            self.stack.until_revision(&artifact.revision).await;
            let seen = watched(&artifact.revision, &self.workspaces, &self.updates);
            for (step, end) in steps.iter_mut().zip([seen.requested, seen.source_installed, seen.created, seen.bound]) {
                step.push(end - before);
                before = end;
            }
            totals.push(seen.bound - began);
            println!("round {round} of {ROUNDS}: {} bound after {:.3} s", seen.update.name_any(), seen.bound - began);
        }
        let measured = median(totals);
        let steps =
            steps.into_iter().zip(STEPS).map(|(times, name)| Step { name: name.to_owned(), seconds: median(times) });
        Row::of(
            &format!("artifact in status → agent called, warm, {others}"),
            budget.map_or_else(String::new, |budget| format!("{budget} s")),
            format!("{measured:.2} s"),
            budget.map(|budget| measured < budget),
        )
        .with_steps(steps.collect())
    }

    pub async fn measure_at_rest(&self, stacks: usize) -> Row {
        self.measure(&format!("{stacks} Stacks at rest"), Some(BUDGET)).await
    }
}

fn program(text: &str) -> Vec<crate::harness::File> {
    Program::new("bench-push").output("text", text.into()).files()
}

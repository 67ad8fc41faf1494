//! Measures how much a tenant can delay the runs in another namespace. The measurement covers the warm path steps that
//! the controller executes. The benchmark measures these steps without and with an attack by a tenant who has the role
//! `edit`.

use std::time::Duration;

use k8s_openapi::api::core::v1::Namespace;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use pulumi_controller::api::auto::{Update, Workspace};
use pulumi_controller::api::names::ANNOTATION_REQUESTED_AT;
use pulumi_controller::api::pulumi::{DependencyReference, Stack};
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::harness::{
    Commit, File, FluxObject, Poll, Program, Scene, Source, StackHandle, WaitLimit, from_json, in_scene, wait_until,
};
use crate::moments::{Moments, now};
use crate::path::watched;
use crate::table::{Row, Step, median};

const ROUNDS: usize = 8;
/// Budget for the additional delay, in seconds.
const BUDGET: f64 = 1.0;
/// Number of Stacks that the attacker creates.
const ATTACKERS: usize = 10;
/// Delay between two rounds of changes to all of the attacker's Stacks.
const PAUSE: Duration = Duration::from_millis(500);
/// Time for which an attack runs before the measurement starts.
const WARM_UP: Duration = Duration::from_secs(10);
/// Size of each attacker repository in bytes.
const REPOSITORY: usize = 8 << 20;

pub async fn measure() -> Vec<Row> {
    let mut rows = Vec::new();
    in_scene("bench-victim", async |scene| {
        let victims = Victims::start(scene).await;
        println!("measuring without an attack");
        let rest = victims.rounds("rest").await;
        let attack = |name: &'static str, times: [Vec<f64>; 3]| rows_of(name, &rest, times);
        rows.extend(rows_of("no attack", &rest, victims.rounds("second rest").await));
        rows.extend(attack("large Stacks", measure_large_objects(&victims).await));
        rows.extend(attack("expensive readyExpr", measure_attack("bench-expressions", &victims, expressions).await));
        rows.extend(attack("Git repositories", measure_attack("bench-git", &victims, repositories).await));
        rows.extend(attack("long runs", measure_attack("bench-long", &victims, long_runs).await));
    })
    .await;
    rows
}

/// Names of the victims' sources, in the order of the measured times.
const NAMES: [&str; 3] = ["fluxSource", "fluxSource and readyExpr", "projectRepo"];

fn rows_of(attack: &str, rest: &[Vec<f64>; 3], times: [Vec<f64>; 3]) -> Vec<Row> {
    let row = |((name, rest), times): ((&str, &Vec<f64>), Vec<f64>)| {
        let longest = times.iter().copied().fold(0.0, f64::max);
        let (rest, attacked) = (median(rest.clone()), median(times));
        Row::of(
            &format!("delay of a Stack with {name}: {attack}"),
            format!("{BUDGET} s"),
            format!("{:.2} s", attacked - rest),
            Some(attacked - rest < BUDGET),
        )
        .with_steps(vec![Step {
            name: "from the artifact or the request to the bound run, median".to_owned(),
            seconds: attacked,
        }])
        .with_note(format!("without an attack: {rest:.2} s; maximum: {longest:.2} s; {ROUNDS} rounds"))
    };
    NAMES.into_iter().zip(rest).zip(times).map(row).collect()
}

/// Stacks in one namespace that receive pushes.
struct Victims<'a> {
    plain: (FluxObject<'a>, StackHandle<'a>),
    expression: (FluxObject<'a>, StackHandle<'a>),
    source: Source<'a>,
    repository: (Source<'a>, StackHandle<'a>),
    workspaces: Moments<Workspace>,
    updates: Moments<Update>,
}

impl<'a> Victims<'a> {
    async fn start(scene: &'a Scene) -> Victims<'a> {
        let source = scene.source("app").await;
        let first = source.artifact_of(&source.push(&program("start")).await).await;
        let served = async |name: &str| {
            let external = scene.flux_object("ExternalArtifact", "externalartifacts", name);
            external.create(json!({})).await;
            external.publish(&first).await;
            external
        };
        let (for_plain, for_expression) = (served("plain").await, served("expression").await);
        let plain = scene.start(scene.stack_on_kind("plain", None, &for_plain)).await;
        plain.until_revision(&first.revision).await;
        let mut stack = scene.stack_on_kind("expression", None, &for_expression);
        let ready_expr = Some("dep.status.lastUpdate.state == 'succeeded'".to_owned());
        stack.spec.depends_on = vec![DependencyReference { name: plain.name.clone(), namespace: None, ready_expr }];
        let expression = scene.start(stack).await;
        expression.until_revision(&first.revision).await;
        let repository = scene.source("repository").await;
        let commit = repository.push_without_notification(&program("start")).await;
        let mut stack = scene.stack_on_repository("repository", &repository);
        stack.spec.resync_frequency_seconds = Some(3600);
        let on_repository = scene.start(stack).await;
        on_repository.until_applied(&commit).await;
        Victims {
            plain: (for_plain, plain),
            expression: (for_expression, expression),
            source,
            repository: (repository, on_repository),
            workspaces: Moments::watch(scene.api()),
            updates: Moments::watch(scene.api()),
        }
    }

    /// Returns, for each victim, the times until the controller has bound its runs to pods, in seconds.
    async fn rounds(&self, name: &str) -> [Vec<f64>; 3] {
        let mut times: [Vec<f64>; 3] = Default::default();
        for round in 1..=ROUNDS {
            for (number, times) in times.iter_mut().enumerate() {
                let text = format!("{name} {number} {round}");
                times.push(match number {
                    0 => self.flux_round(&self.plain, &text).await,
                    1 => self.flux_round(&self.expression, &text).await,
                    _ => self.git_round(&text).await,
                });
            }
            let last: Vec<String> = times.iter().map(|times| format!("{:.2}", times[round - 1])).collect();
            println!("{name}, round {round} of {ROUNDS}: bound after {} s", last.join(", "));
        }
        times
    }

    async fn flux_round(&self, (external, stack): &(FluxObject<'_>, StackHandle<'_>), text: &str) -> f64 {
        let artifact = self.source.artifact_of(&self.source.push(&program(text)).await).await;
        let began = now();
        external.publish(&artifact).await;
        stack.until_revision(&artifact.revision).await;
        watched(&artifact.revision, &self.workspaces, &self.updates).bound - began
    }

    async fn git_round(&self, text: &str) -> f64 {
        let (source, stack) = &self.repository;
        let commit: Commit = source.push_without_notification(&program(text)).await;
        let began = now();
        stack.annotate(ANNOTATION_REQUESTED_AT, text).await;
        stack.until_applied(&commit).await;
        watched(&commit.revision(), &self.workspaces, &self.updates).bound - began
    }
}

fn program(text: &str) -> Vec<File> {
    Program::new("bench-tenants").output("text", text.into()).files()
}

/// Measures the victims during an attack in another namespace.
async fn measure_attack(name: &str, victims: &Victims<'_>, attack: impl AsyncFn(&Scene)) -> [Vec<f64>; 3] {
    let mut times = None;
    in_scene(name, async |scene| times = Some(measure_during(name, victims, attack(scene)).await)).await;
    times.expect("the victims are measured")
}

/// Measures the victims while the attack runs.
async fn measure_during(name: &str, victims: &Victims<'_>, attack: impl Future<Output = ()>) -> [Vec<f64>; 3] {
    println!("measuring during the attack {name}");
    let measured = async {
        sleep(WARM_UP).await;
        victims.rounds(name).await
    };
    tokio::select! {
        times = measured => times,
        () = attack => panic!("the attack {name} ended"),
    }
}

/// Creates Stacks of 1.3 MB, and changes these Stacks continuously. Half of the Stacks have more values than the
/// controller parses. The harness does not watch these Stacks' namespace.
async fn measure_large_objects(victims: &Victims<'_>) -> [Vec<f64>; 3] {
    let client = crate::harness::client().await;
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let name = "bench-large";
    let namespace: Namespace = from_json(json!({"metadata": {"name": name}}));
    namespaces.create(&PostParams::default(), &namespace).await.expect("a new namespace");
    let attack = async {
        let stacks: Api<Stack> = Api::namespaced(client.clone(), name);
        let config: [Value; 2] = [json!("x".repeat(1_300_000)), json!(vec![json!({"": 0}); 180_000])];
        for number in 0..ATTACKERS {
            let stack = json!({
                "apiVersion": "pulumi.com/v1", "kind": "Stack", "metadata": {"name": format!("large-{number}")},
                "spec": {"stack": "dev", "fluxSource": {"sourceRef": {"kind": "GitRepository", "name": "none"}},
                         "config": {"value": config[number % 2]}},
            });
            stacks.create(&PostParams::default(), &from_json(stack)).await.expect("a large Stack");
        }
        for change in 0.. {
            for number in 0..ATTACKERS {
                let patch = json!({"metadata": {"annotations": {ANNOTATION_REQUESTED_AT: change.to_string()}}});
                let name = format!("large-{number}");
                drop(stacks.patch_metadata(&name, &PatchParams::default(), &Patch::Merge(&patch)).await);
            }
            sleep(PAUSE).await;
        }
    };
    let times = measure_during("large", victims, attack).await;
    namespaces.delete(name, &DeleteParams::default()).await.expect("the namespace exists");
    wait_until("the large Stacks to be deleted", WaitLimit::Long, async || match namespaces.get_opt(name).await {
        Ok(None) => Poll::Found(()),
        found => Poll::NotYet(format!("{:?}", found.map(|namespace| namespace.is_some()))),
    })
    .await;
    times
}

/// Continuously changes expressions with a high evaluation cost.
async fn expressions(scene: &Scene) {
    let source = scene.source("app").await;
    let commit = source.push(&program("attack")).await;
    let base = scene.start(scene.stack("base", &source)).await;
    base.until_applied(&commit).await;
    let list = format!("[{}]", vec!["1"; 50].join(","));
    let expression = |change: usize| {
        format!("{list}.all(a, {list}.all(b, {list}.all(c, {list}.all(d, a + b + c + d > {change} - {change}))))")
    };
    let mut stacks = Vec::new();
    for number in 0..ATTACKERS {
        let mut stack = scene.stack(&format!("attack-{number}"), &source);
        stack.spec.depends_on = vec![DependencyReference {
            name: base.name.clone(),
            namespace: None,
            ready_expr: Some(expression(number)),
        }];
        stacks.push(scene.start(stack).await);
    }
    for change in ATTACKERS.. {
        for (number, stack) in stacks.iter().enumerate() {
            let dependency = json!({"name": base.name, "readyExpr": expression(change * ATTACKERS + number)});
            stack.change(json!({"spec": {"dependsOn": [dependency]}})).await;
        }
        sleep(PAUSE).await;
    }
}

/// Continuously pushes to repositories of 8 MiB, and requests a reconciliation for each commit.
async fn repositories(scene: &Scene) {
    let random = |_| char::from(fastrand::u8(b' '..=b'~'));
    let file = |path: &str, content: String| File { path: path.to_owned(), content };
    let large = file("large.txt", (0..REPOSITORY).map(random).collect());
    let mut stacks = Vec::new();
    for number in 0..ATTACKERS / 2 {
        let source = scene.source(&format!("large-{number}")).await;
        source.push_without_notification(&[program("attack"), vec![large.clone()]].concat()).await;
        let mut stack = scene.stack_on_repository(&format!("attack-{number}"), &source);
        stack.spec.preview = Some(true);
        stacks.push((scene.start(stack).await, source));
    }
    for change in 0.. {
        for (stack, source) in &stacks {
            let files = [program("attack"), vec![large.clone(), file("change.txt", change.to_string())]].concat();
            source.push_without_notification(&files).await;
            stack.annotate(ANNOTATION_REQUESTED_AT, &change.to_string()).await;
        }
        sleep(PAUSE).await;
    }
}

/// Occupies as many run slots as possible.
async fn long_runs(scene: &Scene) {
    let source = scene.source("app").await;
    let project = "name: attack\nruntime:\n  name: yaml\n  options: {compiler: sleep 3600}\n";
    source.push(&[File { path: "Pulumi.yaml".to_owned(), content: project.to_owned() }]).await;
    for number in 0..ATTACKERS {
        let mut stack = scene.stack(&format!("attack-{number}"), &source);
        // The deletion of a Stack waits until its run completes, so the run needs a timeout.
        stack.spec.timeout = Some("3m".to_owned());
        scene.start(stack).await;
    }
    std::future::pending().await
}

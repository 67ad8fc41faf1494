//! Measures the warm path, which starts with a new artifact in the source status. The path ends when the CLI starts or
//! when the Update completes. The baseline is `pulumi up` with the same program in the same pod, without the agent.

use std::process::Stdio;

use kube::ResourceExt;
use prost::Message;
use pulumi_controller::api::auto::{Update, Workspace};
use pulumi_controller::api::conditions::{READY, is_true};
use pulumi_controller::api::names;
use pulumi_controller::rpc::proto;
use serde_json::json;
use tokio::process::Command;

use crate::harness::{File, Scene, in_scene};
use crate::moments::{Moment, Moments, now};
use crate::table::{Row, Step, median};

pub const ROUNDS: usize = 10;
const BUDGET_TO_EXEC: f64 = 0.5;
/// Budget for a run's overhead compared with the CLI without the agent, in seconds.
const BUDGET_TO_END: f64 = 1.0;

/// Steps of the warm path, in order. A watch or the agent's journal provides the end time of each step.
pub const STEPS: [&str; 7] = [
    "Stack reconciled: source read, artifact fetched and verified, Workspace written",
    "Workspace reconciled: source streamed, verified, unpacked and installed",
    "attempt recorded, Update created",
    "Update reconciled: pod labeled, run bound to the pod",
    "agent called: request journaled, settings written, CLI started",
    "`pulumi up`",
    "result journaled, read and recorded in the Update",
];
/// Number of steps before the CLI starts.
pub const STEPS_TO_EXEC: usize = 5;

pub async fn measure() -> Vec<Row> {
    let mut rows = Vec::new();
    in_scene("bench-path", async |scene| rows = warm(scene).await).await;
    rows
}

async fn warm(scene: &Scene) -> Vec<Row> {
    let source = scene.source("app").await;
    let mut artifact = source.artifact_of(&source.push(&program("start")).await).await;
    // The benchmark itself writes the source status, so that it knows the exact time of the change.
    let external = scene.flux_object("ExternalArtifact", "externalartifacts", "served");
    external.create(json!({})).await;
    external.publish(&artifact).await;
    let stack = scene.start(scene.stack_on_kind("main", None, &external)).await;
    stack.until_revision(&artifact.revision).await;
    let pod = Pod::of(scene, &stack.name);
    pod.bare_up("start", true).await;
    let (workspaces, updates) = (Moments::<Workspace>::watch(scene.api()), Moments::<Update>::watch(scene.api()));
    let (mut runs, mut bare) = (Vec::new(), Vec::new());
    for round in 1..=ROUNDS {
        let text = format!("round {round}");
        artifact = source.artifact_of(&source.push(&program(&text)).await).await;
        let began = now();
        external.publish(&artifact).await;
        stack.until_revision(&artifact.revision).await;
        let run = moments_of(began, &artifact.revision, &workspaces, &updates, &pod).await;
        bare.push(pod.bare_up(&text, false).await);
        println!(
            "round {round} of {ROUNDS}: exec after {:.3} s, Update finished after {:.3} s, bare {:.2} s",
            run[STEPS_TO_EXEC] - began,
            run[STEPS.len()] - began,
            bare[bare.len() - 1]
        );
        runs.push(run);
    }
    rows(&runs, median(bare))
}

fn rows(runs: &[Vec<Moment>], bare: f64) -> Vec<Row> {
    let (to_exec, to_end) = (total(runs, STEPS_TO_EXEC), total(runs, STEPS.len()));
    let finished = "artifact in status → Update finished, one-resource YAML, warm";
    let budget = format!("bare ({bare:.2} s) + 1 s");
    vec![
        Row::seconds("artifact in status → exec of `pulumi up`, warm", to_exec, BUDGET_TO_EXEC)
            .with_steps(steps(runs, STEPS_TO_EXEC)),
        Row::of(finished, budget, format!("{to_end:.2} s"), Some(to_end < bare + BUDGET_TO_END))
            .with_steps(steps(runs, STEPS.len()))
            .with_note(format!("overhead over a bare `pulumi up`: {:.2} s; medians of {ROUNDS}", to_end - bare)),
    ]
}

/// Returns the median total duration of the first `end` steps.
pub fn total(runs: &[Vec<Moment>], end: usize) -> f64 {
    median(runs.iter().map(|run| run[end] - run[0]).collect())
}

/// Returns the median duration of each of the first `end` steps.
pub fn steps(runs: &[Vec<Moment>], end: usize) -> Vec<Step> {
    let step = |i: usize| median(runs.iter().map(|run| run[i + 1] - run[i]).collect());
    (0..end).map(|i| Step { name: STEPS[i].to_owned(), seconds: step(i) }).collect()
}

/// Times at which watches have observed the states of a run.
pub struct Watched {
    pub requested: Moment,
    pub source_installed: Moment,
    pub created: Moment,
    pub bound: Moment,
    pub ended: Moment,
    pub update: Update,
}

/// Returns the observed times of a revision's completed run.
pub fn watched(revision: &str, workspaces: &Moments<Workspace>, updates: &Moments<Update>) -> Watched {
    let requested = workspaces.first("that requests the artifact", |workspace| {
        workspace.spec.artifact.as_ref().is_some_and(|artifact| artifact.revision == revision)
    });
    let source_installed = workspaces.first("with the installed artifact", |workspace| {
        workspace.status.as_ref().is_some_and(|status| {
            status.artifact.as_ref().is_some_and(|artifact| artifact.revision == revision)
                && is_true(&status.conditions, READY)
        })
    });
    let is_match = |update: &Update| update.artifact().is_some_and(|artifact| artifact.revision == revision);
    let (created, update) = updates.find(is_match).expect("an Update of the revision was observed");
    let bound = updates
        .first("bound to a pod", |update| is_match(update) && update.status.as_ref().is_some_and(|s| s.run.is_some()));
    let ended = updates.first("complete", |update| is_match(update) && update.is_complete());
    Watched { requested, source_installed, created, bound, ended, update }
}

/// Returns the start time and the end time of each step.
pub async fn moments_of(
    began: Moment,
    revision: &str,
    workspaces: &Moments<Workspace>,
    updates: &Moments<Update>,
    pod: &Pod,
) -> Vec<Moment> {
    let Watched { requested, source_installed, created, bound, ended, update } = watched(revision, workspaces, updates);
    let (exec, cli_ended) = pod.journal(&update.uid().unwrap_or_default()).await;
    vec![began, requested, source_installed, created, bound, exec, cli_ended, ended]
}

/// Returns a program with one resource. The resource changes with `text`, and needs no plugin.
pub fn program(text: &str) -> Vec<File> {
    vec![File { path: "Pulumi.yaml".to_owned(), content: project(text) }]
}

fn project(text: &str) -> String {
    let stash = json!({"type": "pulumi:index:Stash", "properties": {"input": text}});
    let project = json!({
        "name": "bench-path", "runtime": "yaml", "resources": {"stash": stash},
        "outputs": {"text": "${stash.output}"},
    });
    format!("{project:#}\n")
}

/// Command that runs the CLI without the agent.
pub const PULUMI_UP: &str =
    "pulumi --non-interactive --color=never up --yes --skip-preview --suppress-progress --stack=bare";

/// A workspace pod, in which the benchmark runs commands.
pub struct Pod {
    pub namespace: String,
    name: String,
}

impl Pod {
    pub fn of(scene: &Scene, stack: &str) -> Pod {
        Pod::named(scene, names::workspace_pod(stack))
    }

    pub fn named(scene: &Scene, name: String) -> Pod {
        Pod { namespace: scene.namespace.clone(), name }
    }

    /// Reads the journal of an operation, and returns the times at which the CLI started and exited.
    pub async fn journal(&self, operation: &str) -> (Moment, Moment) {
        let milliseconds = |time: i64| time as f64 / 1000.0;
        let folder = format!("{}/operations/{operation}", names::SHARE_DIRECTORY);
        let progress = self.run(&format!("cat {folder}/progress-0")).await;
        let mut left = progress.as_slice();
        let mut started = None;
        while started.is_none() && !left.is_empty() {
            let message = proto::Progress::decode_length_delimited(&mut left).expect("the journal is valid");
            started = matches!(message.event, Some(proto::progress::Event::Started(_))).then_some(message.time);
        }
        let result = self.run(&format!("cat {folder}/result")).await;
        let result = proto::Result::decode(result.as_slice()).expect("the result is valid");
        (milliseconds(started.expect("the journal contains the start of the CLI")), milliseconds(result.ended))
    }

    /// Runs the CLI without the agent in the same pod, and returns the duration in seconds. The command uses its own
    /// project and Pulumi stack.
    async fn bare_up(&self, text: &str, first: bool) -> f64 {
        let init = if first { "pulumi --non-interactive stack init bare" } else { "true" };
        let prepare = format!(
            "mkdir -p /tmp/bare && cd /tmp/bare && cat >Pulumi.yaml <<'END'\n{}\nEND\n{init}",
            project(text).replace("bench-path", &format!("bare-{}", self.namespace)),
        );
        self.duration(&prepare, PULUMI_UP).await
    }

    /// Returns the duration of a command in the pod, in seconds. The command and its preparation use the scene's
    /// backend.
    pub async fn duration(&self, prepare: &str, command: &str) -> f64 {
        let environment = crate::harness::Environment::get();
        // `/proc/uptime` has two decimal places, but the shell's clock has none.
        let script = format!(
            "export PULUMI_BACKEND_URL='{}' AWS_ACCESS_KEY_ID='{}' AWS_SECRET_ACCESS_KEY='{}' PULUMI_CONFIG_PASSPHRASE=e2e \
             PULUMI_SKIP_UPDATE_CHECK=true HOME=/tmp/bare-home USER=pulumi; mkdir -p /tmp/bare-home\n\
             {{ {prepare}\n}} >&2 && read -r begin rest </proc/uptime\n\
             {{ {command}\n}} >&2 || exit 1\n\
             read -r end rest </proc/uptime; echo $begin $end",
            environment.s3_backend_url, environment.s3_access_key, environment.s3_secret_key,
        );
        let output = String::from_utf8(self.run(&script).await).expect("two numbers");
        let times: Vec<f64> = output.split_whitespace().map(|time| time.parse().expect("a number")).collect();
        times[1] - times[0]
    }

    /// Returns the output of a shell script in the pod.
    pub async fn run(&self, script: &str) -> Vec<u8> {
        let exec = ["exec", "--namespace", &self.namespace, &self.name, "--container", names::PULUMI_CONTAINER];
        let output = Command::new("kubectl")
            .args(exec)
            .args(["--", "sh", "-c", script])
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output()
            .await
            .expect("kubectl starts");
        let problem = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "in the pod {}: {}: {problem}", self.name, output.status);
        output.stdout
    }
}

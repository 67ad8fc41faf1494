//! Measures how long the simultaneous creation of sixty Stacks with the same source takes, and what sixty idle Stacks
//! cost.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use pulumi_controller::api::auto::{Update, Workspace};
use pulumi_controller::api::conditions::{READY, is_true};
use pulumi_controller::api::names::LABEL_COMPONENT;
use serde_json::json;
use tokio::time::sleep;

use crate::api_writes::{ApiWrites, format_counts};
use crate::bare_crowd;
use crate::harness::{Controller, Crowd, Poll, Program, Scene, WaitLimit, in_scene, wait_until};
use crate::moments::{Moments, now};
use crate::processes::Process;
use crate::table::{Row, Step};

const STACKS: usize = 60;
/// Maximum ratio of the measured time to the duration of a Job that creates the same Pulumi stacks. ARCHITECTURE.md
/// explains why the budget is relative.
const BUDGET: f64 = 1.5;
/// Budget for the controller's memory after the runs, in MiB.
const MEMORY_BUDGET: f64 = 20.0;
/// Delay between the end of the last run and the measurement of the controller's memory.
const MEMORY_DELAY: Duration = Duration::from_secs(60);
/// Budget for one agent's memory, in MiB.
const AGENT_BUDGET: f64 = 10.0;
/// Duration without writes after which the benchmark regards the controller as idle.
const QUIET: Duration = Duration::from_secs(30);
/// Maximum time until the controller must be idle.
const QUIET_TIMEOUT: Duration = Duration::from_secs(300);

pub async fn measure(with_rest: bool) -> Vec<Row> {
    let mut rows = Vec::new();
    in_scene("bench-crowd", async |scene| {
        rows.push(crowd(scene).await);
        rows.push(memory_afterwards(scene).await);
        rows.push(agents(scene).await);
        if with_rest {
            rows.push(rest(scene).await);
        }
    })
    .await;
    rows
}

async fn crowd(scene: &Scene) -> Row {
    let (workspaces, updates) = (Moments::<Workspace>::watch(scene.api()), Moments::<Update>::watch(scene.api()));
    println!("running a Job with {STACKS} pods without the controller");
    let program = Program::new("bare").step("member", json!({"value": scene.id})).output("n", json!("${member.count}"));
    let bare = bare_crowd::run(scene, &program.file("Pulumi.yaml").content, STACKS).await.as_secs_f64();
    println!("creating {STACKS} Stacks and waiting up to {:?} until all are Ready", WaitLimit::Long.limit());
    let times = Crowd::start(&[(scene, STACKS)]).await.until_done(WaitLimit::Long).await;
    println!("{times}");
    let (total, began) = (times.all_done.as_secs_f64(), now() - times.all_done.as_secs_f64());
    let failed = scene.list::<Update>().await.iter().filter(|update| is_failed(update)).count();
    let ready = workspaces.first_of_each(|workspace| {
        let conditions = workspace.status.as_ref().map(|status| status.conditions.as_slice());
        is_true(conditions.unwrap_or_default(), READY)
    });
    let last_ready = ready.iter().copied().fold(began, f64::max);
    let last_run = updates.first_of_each(Update::is_complete).iter().copied().fold(began, f64::max);
    let step = |name: &str, seconds: f64| Step { name: name.to_owned(), seconds };
    let measured = format!("{total:.0} s, {failed} failed");
    Row::of(
        "60 new Stacks on one source",
        format!("{BUDGET} of a bare Job ({bare:.0} s)"),
        measured,
        Some(total < BUDGET * bare && failed == 0),
    )
    .with_steps(vec![
        step("until the last Workspace is Ready, in parallel with runs", last_ready - began),
        step("until the last run has ended", (last_run - last_ready).max(0.0)),
        step("until the last Stack is Ready", (began + total - last_run.max(last_ready)).max(0.0)),
    ])
    .with_note(format!(
        "a Job without the controller took {bare:.0} s for the same stacks: the ratio is {:.2}",
        total / bare
    ))
}

fn is_failed(update: &Update) -> bool {
    update.status.as_ref().is_some_and(|status| is_true(&status.conditions, "Failed"))
}

/// Returns the controller's memory one minute after the last Stack became Ready. Without load, the controller needs
/// memory only for its caches.
async fn memory_afterwards(scene: &Scene) -> Row {
    let process = controller(scene).await;
    let before = process.rss_anon();
    println!("observing the memory of the controller for {MEMORY_DELAY:?}");
    sleep(MEMORY_DELAY).await;
    let memory = process.rss_anon();
    Row::of(
        &format!("controller memory (RssAnon), one minute after {STACKS} new Stacks"),
        format!("{MEMORY_BUDGET} MiB"),
        format!("{memory:.1} MiB"),
        Some(memory <= MEMORY_BUDGET),
    )
    .with_note(format!("{before:.1} MiB when the last Stack was Ready; peak (VmHWM): {:.1} MiB", process.peak()))
    .with_note(format!("resident memory (RSS) one minute afterwards: {:.1} MiB", process.rss()))
}

/// Returns the table row for the agent that uses the most memory. An agent's memory is the sum of its two processes'
/// memory.
async fn agents(scene: &Scene) -> Row {
    let pods: Vec<Pod> = scene.list().await;
    let pods = pods.iter().filter(|pod| pod.labels().contains_key(LABEL_COMPONENT));
    let memory = |pod: &Pod| -> f64 {
        let processes = Process::in_pod(&pod.uid().unwrap_or_default(), "agent");
        assert!(!processes.is_empty(), "the pod {} has an agent", pod.name_any());
        processes.iter().map(|process| process.rss_anon()).sum()
    };
    let most = pods.map(memory).fold(0.0, f64::max);
    Row::of(
        "agent memory (RssAnon), idle, both processes, maximum of 60",
        format!("{AGENT_BUDGET} MiB"),
        format!("{most:.1} MiB"),
        Some(most < AGENT_BUDGET),
    )
}

async fn rest(scene: &Scene) -> Row {
    let seconds = rest_seconds(300);
    let mut writes = ApiWrites::from_now();
    println!("waiting until the controller is idle, then for {seconds} s");
    until_versions_are_reported(scene).await;
    writes.until_quiet(QUIET, QUIET_TIMEOUT).await;
    let process = controller(scene).await;
    let before = process.cpu_time();
    sleep(Duration::from_secs(seconds)).await;
    let written = writes.take_new();
    let share = 100.0 * (process.cpu_time() - before) / seconds as f64;
    let number: usize = written.values().sum();
    Row::of(
        &format!("API writes at rest, {STACKS} Stacks, {seconds} s"),
        "0, except the Lease",
        number.to_string(),
        Some(number == 0),
    )
    .with_note(format!("written: {}", format_counts(&written)))
    .with_note(format!("the controller uses {share:.1} % of a CPU"))
}

/// Waits until each Workspace status contains the CLI version. The agent queries this version with a delay after its
/// start, so each status changes once more after the first run.
async fn until_versions_are_reported(scene: &Scene) {
    let is_unknown = |workspace: &Workspace| workspace.status.as_ref().is_none_or(|it| it.pulumi_version.is_none());
    wait_until("the version of the CLI in the status of each Workspace", WaitLimit::Long, async || {
        match scene.list::<Workspace>().await.iter().filter(|workspace| is_unknown(workspace)).count() {
            0 => Poll::Found(()),
            unknown => Poll::NotYet(format!("Workspaces without a version: {unknown}")),
        }
    })
    .await;
}

/// Returns how long the benchmark measures the idle controller, in seconds. The environment variable
/// `BENCH_REST_SECONDS` overrides the default, so a developer can shorten the benchmark.
pub fn rest_seconds(default: u64) -> u64 {
    std::env::var("BENCH_REST_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

pub async fn controller(scene: &Scene) -> Process {
    let pod = Controller::new(&scene.client).pod().await;
    let found = Process::in_pod(&pod.uid().unwrap_or_default(), "manager");
    *found.first().expect("the controller's process is on this machine")
}

//! Executes the acts at their planned times. Meanwhile, simulates a user who makes the decisions for waiting Stacks.
//! Then waits until all Stacks are Ready.

use std::time::Duration;

use jiff::Timestamp;
use kube::ResourceExt;
use pulumi_controller::api::auto::Update;
use pulumi_controller::api::pulumi::Stack;
use tokio::time::{Instant, sleep, sleep_until};

use crate::approver::approve_all;
use crate::checks::find_violations;
use crate::evidence;
use crate::facts::{Facts, Operation, Phase};
use crate::faults::perform;
use crate::harness::{Controller, Poll, Scene, WaitLimit, is_done, wait_until};
use crate::plan::{Kind, plan};
use crate::processes::{Role, find};
use crate::report::Tally;
use crate::stage::Stage;
use crate::user::{Resolution, resolve_all};

/// Interval at which the simulated user checks the Stacks.
const POLL_INTERVAL: Duration = Duration::from_secs(2);
/// Maximum time from the last fault until all Stacks must be Ready. After several restarts of a container, the kubelet
/// delays the next restart by minutes.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(480);

/// An executed act or an observation.
#[derive(Clone, Debug)]
pub struct LogEntry {
    pub at: Timestamp,
    pub kind: Option<Kind>,
    pub what: String,
}

/// Results of a chaos test.
pub struct StormResults {
    pub facts: Vec<Facts>,
    pub log: Vec<LogEntry>,
    pub resolutions: Vec<Resolution>,
    /// Time from the last fault until all Stacks were Ready, or `None` if the timeout expired.
    pub settled_after: Option<Duration>,
    /// Start time of the scene. The timeline shows times relative to this time.
    pub began: Timestamp,
}

/// Executes the plan and collects the facts.
pub async fn run(
    scene: &Scene,
    controller: &Controller,
    seed: u64,
    length: Duration,
    began: Timestamp,
) -> StormResults {
    let mut stage = Stage::create(scene).await;
    let mut results =
        StormResults { facts: Vec::new(), log: Vec::new(), resolutions: Vec::new(), settled_after: None, began };
    until_first_run(&stage).await;
    let begin = Instant::now();
    for act in plan(seed, length) {
        while Instant::now() + POLL_INTERVAL < begin + act.at {
            observe(&mut stage, &mut results).await;
            sleep(POLL_INTERVAL.min((begin + act.at).saturating_duration_since(Instant::now()))).await;
        }
        sleep_until(begin + act.at).await;
        let at = Timestamp::now();
        match perform(&mut stage, controller, act).await {
            Some(target) => results.record(at, Some(act.kind), format!("{}: {target}", act.kind)),
            None => results.record(at, None, format!("no target for the fault {}", act.kind)),
        }
    }
    settle(&mut stage, &mut results).await;
    let seen = scene.timeline.states_of::<Update>();
    for name in stage.stacks.keys() {
        results.facts.push(evidence::of(&stage, name, &seen).await);
    }
    stage.disable_destroy().await;
    results
}

impl StormResults {
    fn record(&mut self, at: Timestamp, kind: Option<Kind>, what: String) {
        let seconds = at.duration_since(self.began).as_secs_f64();
        println!("{seconds:7.2} s  {what}");
        self.log.push(LogEntry { at, kind, what });
    }

    /// Checks all facts for violations, and summarizes the chaos test.
    pub fn tally(&self) -> Tally {
        let broken: Vec<_> = self.facts.iter().flat_map(find_violations).collect();
        Tally::of(self, broken)
    }
}

async fn until_first_run(stage: &Stage<'_>) {
    wait_until("the first run to begin", WaitLimit::Run, async || {
        let pods = stage.pods().await;
        if find(&pods, Role::Provider).is_empty() {
            Poll::NotYet(format!("{} pods", pods.len()))
        } else {
            Poll::Found(())
        }
    })
    .await;
}

/// Makes the user's decisions for waiting Stacks, recreates deleted Stacks, and returns all Stacks.
async fn observe(stage: &mut Stage<'_>, results: &mut StormResults) -> Vec<Stack> {
    let stacks = stage.scene.list::<Stack>().await;
    for name in stage.create_again(&stacks).await {
        results.record(Timestamp::now(), None, format!("{name} was deleted; created it again"));
    }
    for name in approve_all(stage.scene, &stacks).await {
        results.record(Timestamp::now(), None, format!("the user approved the plan of {name}"));
    }
    for resolution in resolve_all(stage, &stacks).await {
        let Resolution { stack, removed, unjustified } = &resolution;
        let what = match (unjustified, removed.is_empty()) {
            (Some(why), _) => format!("{stack} waits for a decision without a reason: {why}"),
            (None, true) => format!("the user resolved {stack}: no resource exists"),
            (None, false) => format!("the user resolved {stack} and removed {}", removed.join(", ")),
        };
        results.record(Timestamp::now(), None, what);
        results.resolutions.push(resolution);
    }
    stacks
}

/// Waits until each Stack exists and is Ready with the latest revision.
async fn settle(stage: &mut Stage<'_>, results: &mut StormResults) {
    let (begin, mut last_report) = (Instant::now(), Instant::now());
    results.record(Timestamp::now(), None, "all faults are injected".to_owned());
    while begin.elapsed() < SETTLE_TIMEOUT {
        let stacks = observe(stage, results).await;
        let open: Vec<&String> = stage.stacks.keys().filter(|name| !is_settled(&*stage, name, &stacks)).collect();
        if open.is_empty() {
            results.settled_after = Some(begin.elapsed());
            return;
        }
        if last_report.elapsed() > Duration::from_secs(15) {
            last_report = Instant::now();
            println!(
                "{:7.2} s after the last fault, Stacks that are not Ready at the latest revision: {open:?}",
                begin.elapsed().as_secs_f64()
            );
        }
        sleep(POLL_INTERVAL).await;
    }
}

fn is_settled(stage: &Stage<'_>, name: &str, stacks: &[Stack]) -> bool {
    let member = &stage.stacks[name];
    let latest = Some(stage.latest(member).revision.as_str());
    let is_at_latest = |stack: &Stack| {
        let applied = stack.status.as_ref().and_then(|status| status.last_applied_revision.as_deref());
        is_done(stack) && applied == latest && stack.metadata.deletion_timestamp.is_none()
    };
    !member.is_deleted && stacks.iter().any(|stack| stack.name_any() == name && is_at_latest(stack))
}

/// Returns the Stack's history in chronological order: object states, provider events and faults.
pub fn timeline(scene: &Scene, results: &StormResults, facts: &Facts) -> String {
    let seconds = |at: Timestamp| at.duration_since(results.began).as_secs_f64();
    let mut lines: Vec<(f64, String)> = Vec::new();
    for line in scene.timeline.text().lines().filter(|line| line.contains(&facts.stack)) {
        let at = line.split_once(" s ").and_then(|(number, _)| number.trim().parse().ok()).unwrap_or_default();
        lines.push((at, line.to_owned()));
    }
    for event in &facts.events {
        let at = seconds(event.time);
        let (operation, phase) = (operation_word(event.operation), phase_word(event.phase));
        lines.push((at, format!("{at:7.2} s  provider {}: {operation} {} {phase}", event.pid, event.called)));
    }
    for entry in &results.log {
        let at = seconds(entry.at);
        let mentions_stack = entry.what.contains(&facts.stack);
        let is_global = matches!(
            entry.kind,
            Some(Kind::KillController | Kind::MoveLeader | Kind::StopApiServer | Kind::PushRevision)
        );
        if mentions_stack || is_global {
            lines.push((at, format!("{at:7.2} s  *** {}", entry.what)));
        }
    }
    lines.sort_by(|(one, _), (other, _)| one.total_cmp(other));
    lines.into_iter().map(|(_, line)| line).collect::<Vec<_>>().join("\n")
}

fn operation_word(operation: Operation) -> &'static str {
    match operation {
        Operation::Create => "create",
        Operation::Update => "update",
        Operation::Delete => "delete",
    }
}

fn phase_word(phase: Phase) -> &'static str {
    match phase {
        Phase::Begin => "begin",
        Phase::Done => "done",
        Phase::Failed => "failed",
        Phase::Cancelled => "cancelled",
    }
}

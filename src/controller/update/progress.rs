//! Computes the progress of an open run from the agent's messages. The progress has a limited size and contains a
//! one-line summary. This module performs no I/O.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::api::auto::RunProgress;
use crate::api::{columns, conditions};
use crate::rpc::proto::{self, StepState, progress};

/// Maximum number of operations in progress. Additional operations are ignored, even after they have completed.
const MAX_IN_PROGRESS: usize = 64;
/// Maximum number of resources that the progress counts.
const MAX_RESOURCES: usize = 10_000;
/// Maximum length of a string from the agent, in bytes.
const MAX_FIELD_LENGTH: usize = 128;

/// Urgency with which the controller must write changed progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProgressChange {
    None,
    Some,
    /// The controller must write the progress as soon as it reports the run, because the new process ID or URL
    /// identifies a lock.
    Urgent,
}

/// Progress of a run.
#[derive(Debug, Default)]
pub struct Progress {
    reported: Reported,
    resources: Resources,
}

/// Hashes of the URNs of the resources in a run. The number of hashes is limited.
#[derive(Debug, Default)]
struct Resources {
    registered: HashSet<u64>,
    done: HashSet<u64>,
}

/// Part of the progress that the status contains.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Reported {
    pid: Option<u32>,
    permalink: Option<String>,
    done: i64,
    /// Resources with an operation in progress, oldest operation first.
    in_progress: Vec<RunningStep>,
    idle_since: Option<Timestamp>,
    /// What the CLI is doing while the engine is not running.
    step: Option<String>,
    resources_done: usize,
    resources_total: usize,
}

/// Resource with an operation in progress.
#[derive(Clone, Debug, PartialEq, Eq)]
struct RunningStep {
    /// Hash of the URN. A URN can be long.
    hash: u64,
    operation: String,
    kind: String,
    name: String,
    since: Option<Timestamp>,
}

/// Type of the resource that represents the Pulumi stack.
const STACK_RESOURCE_TYPE: &str = "pulumi:pulumi:Stack";

impl Progress {
    /// Processes a message from the agent.
    pub fn observe(&mut self, progress: &proto::Progress) -> ProgressChange {
        let before = self.reported.clone();
        match &progress.event {
            Some(progress::Event::Started(started)) => {
                self.resources = Resources::default();
                let (pid, step) = (Some(started.pid), before.step.clone());
                self.reported = Reported { pid, step, done: before.done, ..Reported::default() };
            }
            Some(progress::Event::Permalink(url)) => {
                self.reported.permalink = Some(url.clone()).filter(|url| !url.is_empty());
            }
            Some(progress::Event::Resource(step)) => self.step(step, progress.time),
            Some(progress::Event::Step(step)) => {
                self.reported.step = Some(one_line(step)).filter(|step| !step.is_empty());
            }
            Some(progress::Event::Idle(idle)) => {
                self.reported.idle_since = Timestamp::from_millisecond(idle.since).ok();
                return if self.reported == before { ProgressChange::None } else { ProgressChange::Some };
            }
            Some(progress::Event::Exited(_) | progress::Event::Diagnostic(_)) | None => {}
        }
        self.reported.idle_since = None;
        match () {
            () if (self.reported.pid, &self.reported.permalink) != (before.pid, &before.permalink) => {
                ProgressChange::Urgent
            }
            () if self.reported == before => ProgressChange::None,
            () => ProgressChange::Some,
        }
    }

    fn step(&mut self, step: &proto::ResourceStep, time: i64) {
        let (kind, name) = kind_and_name(&step.urn);
        // The operation on the stack resource lasts until the end of the run, so the progress excludes it.
        if kind == STACK_RESOURCE_TYPE {
            return;
        }
        let hash = hash(&step.urn);
        self.resources.record(hash, step.state());
        let Reported { in_progress, done, resources_done, resources_total, .. } = &mut self.reported;
        (*resources_done, *resources_total) = (self.resources.done.len(), self.resources.registered.len());
        let known = in_progress.iter().position(|work| work.hash == hash);
        match (step.state(), known) {
            (StepState::Begun, None) if step.operation != "same" && in_progress.len() < MAX_IN_PROGRESS => {
                let since = Timestamp::from_millisecond(time).ok();
                let operation = one_line(&step.operation);
                in_progress.push(RunningStep { hash, operation, kind, name, since });
            }
            (StepState::Done | StepState::Failed, Some(known)) => {
                in_progress.remove(known);
                *done += i64::from(step.state() == StepState::Done);
            }
            _ => {}
        }
    }

    /// Returns the progress for the status.
    pub fn status(&self) -> RunProgress {
        self.reported.status()
    }
}

impl Resources {
    fn record(&mut self, hash: u64, state: StepState) {
        if self.registered.len() < MAX_RESOURCES {
            self.registered.insert(hash);
        }
        if state == StepState::Done && self.registered.contains(&hash) {
            self.done.insert(hash);
        }
    }
}

impl Reported {
    fn status(&self) -> RunProgress {
        let first = self.in_progress.first();
        let number = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
        RunProgress {
            summary: columns::text(&self.summary(), columns::MAX_PROGRESS),
            steps_done: self.done,
            in_work: number(self.in_progress.len()),
            operation: first.map(|work| work.operation.clone()),
            kind: first.map(|work| work.kind.clone()),
            name: first.map(|work| work.name.clone()),
            since: first.and_then(|work| work.since).map(Time),
            idle_since: self.idle_since.map(Time),
            step: self.step.clone(),
            pid: self.pid.map(i64::from),
            permalink: self.permalink.clone(),
            resources_done: number(self.resources_done),
            resources_total: number(self.resources_total),
        }
    }

    fn summary(&self) -> String {
        let mut summary = match &self.step {
            Some(step) if self.done == 0 => step.clone(),
            Some(step) => format!("{} done, {step}", self.done),
            None => format!("{} done", self.done),
        };
        if let Some(work) = self.in_progress.first() {
            summary.push_str(&format!(", {} {} {}", present_participle(&work.operation), work.kind, work.name));
        }
        if let more @ 1.. = self.in_progress.len().saturating_sub(1) {
            summary.push_str(&format!(" and {more} more"));
        }
        if let Some(since) = self.idle_since {
            summary.push_str(&format!(", idle since {}", since.strftime("%H:%M:%SZ")));
        }
        summary
    }
}

/// Returns the number of resources for each operation on one line, such as `2 create, 5 same`.
pub fn summary_of_changes<'a>(changes: impl Iterator<Item = (&'a String, &'a i64)>) -> String {
    let changes: Vec<String> = changes.map(|(word, count)| format!("{count} {word}")).collect();
    columns::text(&changes.join(", "), columns::MAX_PROGRESS)
}

fn hash(urn: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    urn.hash(&mut hasher);
    hasher.finish()
}

/// Parses the type and the name of a resource from its URN, `urn:pulumi:<stack>::<project>::<types of its
/// parents>$<type>::<name>`.
pub(super) fn kind_and_name(urn: &str) -> (String, String) {
    let mut parts = urn.splitn(4, "::").skip(2);
    match (parts.next(), parts.next()) {
        (Some(kinds), Some(name)) => (one_line(&short(kinds.rsplit('$').next().unwrap_or(kinds))), one_line(name)),
        _ => (String::new(), one_line(urn)),
    }
}

/// Shortens `aws:s3/bucket:Bucket` to `aws:s3:Bucket`, as the Pulumi CLI does.
fn short(kind: &str) -> String {
    let parts: Vec<&str> = kind.split(':').collect();
    match parts.as_slice() {
        [package, module, name] => match module.split_once('/') {
            Some((module, file)) if file.eq_ignore_ascii_case(name) => format!("{package}:{module}:{name}"),
            _ => kind.to_owned(),
        },
        _ => kind.to_owned(),
    }
}

/// Replaces control characters in a string from the agent and limits its length, because the agent is not trusted.
fn one_line(text: &str) -> String {
    let line: String = text.chars().take(MAX_FIELD_LENGTH).map(|c| if c.is_control() { ' ' } else { c }).collect();
    conditions::shorten(&line, MAX_FIELD_LENGTH)
}

/// Returns the present participle of a Pulumi engine operation.
fn present_participle(operation: &str) -> &str {
    match operation {
        "create" | "create-replacement" => "creating",
        "update" => "updating",
        "delete" | "delete-replaced" => "deleting",
        "replace" => "replacing",
        "read" | "read-replacement" => "reading",
        "refresh" => "refreshing",
        "import" | "import-replacement" => "importing",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(event: progress::Event) -> proto::Progress {
        proto::Progress { sequence: 1, time: 1_000, event: Some(event) }
    }

    fn step(name: &str, operation: &str, state: StepState) -> proto::Progress {
        let urn = format!("urn:pulumi:dev::app::my:index:Group$aws:s3/bucket:Bucket::{name}");
        message(progress::Event::Resource(proto::ResourceStep {
            urn,
            operation: operation.to_owned(),
            state: state.into(),
        }))
    }

    fn stack_itself() -> proto::Progress {
        message(progress::Event::Resource(proto::ResourceStep {
            urn: "urn:pulumi:dev::app::pulumi:pulumi:Stack::app-dev".to_owned(),
            operation: "create".to_owned(),
            state: StepState::Begun.into(),
        }))
    }

    fn started(pid: u32) -> proto::Progress {
        message(progress::Event::Started(proto::Started { pid }))
    }

    #[test]
    fn the_progress_summary_shows_completed_and_running_steps() {
        let mut progress = Progress::default();
        assert_eq!(progress.observe(&started(42)), ProgressChange::Urgent);
        assert_eq!(progress.observe(&started(42)), ProgressChange::None);
        let link = || message(progress::Event::Permalink("https://app.pulumi.com/acme/app/dev/updates/7".to_owned()));
        assert_eq!(progress.observe(&link()), ProgressChange::Urgent);
        assert_eq!(progress.observe(&link()), ProgressChange::None);
        let cli = |step: &str| message(progress::Event::Step(step.to_owned()));
        let rows = [
            (cli("opening the\nstack"), "opening the stack"),
            (started(42), "opening the stack"),
            (link(), "opening the stack"),
            (cli(""), "0 done"),
            (stack_itself(), "0 done"),
            (step("a", "same", StepState::Begun), "0 done"),
            (step("a", "same", StepState::Done), "0 done"),
            (step("logs", "create", StepState::Begun), "0 done, creating aws:s3:Bucket logs"),
            (step("web", "update", StepState::Begun), "0 done, creating aws:s3:Bucket logs and 1 more"),
            (step("logs", "create", StepState::Done), "1 done, updating aws:s3:Bucket web"),
            (step("logs", "create", StepState::Done), "1 done, updating aws:s3:Bucket web"),
            (
                message(progress::Event::Idle(proto::Idle { since: 61_000 })),
                "1 done, updating aws:s3:Bucket web, idle since 00:01:01Z",
            ),
            (step("web", "update", StepState::Failed), "1 done"),
            (cli("reading the secret outputs"), "1 done, reading the secret outputs"),
        ];
        for (message, expected) in rows {
            progress.observe(&message);
            assert_eq!(progress.status().summary, expected);
        }
        let status = progress.status();
        assert_eq!((status.pid, status.steps_done, status.in_work, status.idle_since), (Some(42), 1, 0, None));
        assert_eq!(status.permalink.as_deref(), Some("https://app.pulumi.com/acme/app/dev/updates/7"));
        assert_eq!(
            (status.resources_done, status.resources_total),
            (2, 3),
            "only web failed; the stack resource is ignored"
        );
        assert_eq!(progress.observe(&started(43)), ProgressChange::Urgent, "the CLI restarts");
        let status = progress.status();
        assert_eq!((status.steps_done, status.resources_done, status.resources_total), (1, 0, 0));
        assert_eq!(status.permalink, None, "the new process has no update yet");
    }

    #[test]
    fn progress_from_a_hostile_agent_is_bounded() {
        let mut progress = Progress::default();
        for number in 0..1000 {
            progress.observe(&step(&format!("{number}\n{}", "x".repeat(9000)), "create", StepState::Begun));
        }
        assert_eq!(progress.reported.in_progress.len(), MAX_IN_PROGRESS);
        for number in 0..2 * MAX_RESOURCES {
            let state = if number % 2 == 0 { StepState::Done } else { StepState::Begun };
            progress.observe(&step(&format!("r{number}"), "same", state));
        }
        let resources = &progress.resources;
        assert_eq!(resources.registered.len(), MAX_RESOURCES);
        assert!(resources.done.len() <= MAX_RESOURCES);
        let status = progress.status();
        assert!(status.summary.len() < 4 * MAX_FIELD_LENGTH && !status.summary.contains('\n'), "{}", status.summary);
        let strange = proto::ResourceStep { urn: "no urn".to_owned(), operation: "fold".to_owned(), state: 1 };
        let mut progress = Progress::default();
        progress.observe(&message(progress::Event::Resource(strange)));
        assert_eq!(progress.status().summary, "0 done, fold  no urn");
    }

    #[test]
    fn resource_types_are_shortened_as_in_the_cli() {
        for (kind, expected) in [
            ("aws:s3/bucket:Bucket", "aws:s3:Bucket"),
            ("testing:index:Step", "testing:index:Step"),
            ("kubernetes:apps/v1:Deployment", "kubernetes:apps/v1:Deployment"),
            ("odd", "odd"),
        ] {
            assert_eq!(short(kind), expected);
        }
    }
}

//! How far an open run is, made of what its agent says: bounded, and told in one line. Pure.

use std::hash::{DefaultHasher, Hash, Hasher};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::api::auto::RunProgress;
use crate::api::conditions;
use crate::rpc::proto::{self, StepState, progress};

/// The most resources in work that are kept; more are worked on, and not counted.
const MOST_IN_WORK: usize = 64;
/// The longest word of the agent's that is kept, in bytes.
const LONGEST_WORD: usize = 128;

/// What a piece of news is worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum News {
    None,
    Some,
    /// It has to be written down at once: a lock is recognized by it.
    Urgent,
}

/// How far a run is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    pid: Option<u32>,
    done: i64,
    /// Oldest first.
    in_work: Vec<Work>,
    idle_since: Option<Timestamp>,
}

/// A resource that is being worked on.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Work {
    /// Of its URN, which may be long.
    hash: u64,
    operation: String,
    kind: String,
    name: String,
    since: Option<Timestamp>,
}

/// The resource that stands for the whole stack.
const STACK_ITSELF: &str = "pulumi:pulumi:Stack";

impl Progress {
    /// Takes note of what the agent says.
    pub fn observe(&mut self, progress: &proto::Progress) -> News {
        let before = self.clone();
        match &progress.event {
            Some(progress::Event::Started(started)) => {
                self.pid = Some(started.pid);
                self.in_work.clear();
            }
            Some(progress::Event::Resource(step)) => self.step(step, progress.time),
            Some(progress::Event::Idle(idle)) => {
                self.idle_since = Timestamp::from_millisecond(idle.since).ok();
                return if *self == before { News::None } else { News::Some };
            }
            Some(progress::Event::Diagnostic(_)) | None => {}
        }
        self.idle_since = None;
        match () {
            () if self.pid != before.pid => News::Urgent,
            () if *self == before => News::None,
            () => News::Some,
        }
    }

    fn step(&mut self, step: &proto::ResourceStep, time: i64) {
        let (kind, name) = kind_and_name(&step.urn);
        // It is in work from the beginning to the end, and says nothing.
        if kind == STACK_ITSELF {
            return;
        }
        let hash = hash(&step.urn);
        let known = self.in_work.iter().position(|work| work.hash == hash);
        match (step.state(), known) {
            (StepState::Begun, None) if step.operation != "same" && self.in_work.len() < MOST_IN_WORK => {
                let since = Timestamp::from_millisecond(time).ok();
                let operation = word(&step.operation);
                self.in_work.push(Work { hash, operation, kind, name, since });
            }
            (StepState::Done | StepState::Failed, Some(known)) => {
                self.in_work.remove(known);
                self.done += i64::from(step.state() == StepState::Done);
            }
            _ => {}
        }
    }

    /// As the status has it.
    pub fn status(&self) -> RunProgress {
        let first = self.in_work.first();
        RunProgress {
            summary: conditions::column(&self.summary()),
            steps_done: self.done,
            in_work: i64::try_from(self.in_work.len()).unwrap_or(i64::MAX),
            operation: first.map(|work| work.operation.clone()),
            kind: first.map(|work| work.kind.clone()),
            name: first.map(|work| work.name.clone()),
            since: first.and_then(|work| work.since).map(Time),
            idle_since: self.idle_since.map(Time),
            pid: self.pid.map(i64::from),
        }
    }

    fn summary(&self) -> String {
        let mut summary = format!("{} done", self.done);
        if let Some(work) = self.in_work.first() {
            summary.push_str(&format!(", {} {} {}", doing(&work.operation), work.kind, work.name));
        }
        if let more @ 1.. = self.in_work.len().saturating_sub(1) {
            summary.push_str(&format!(" and {more} more"));
        }
        if let Some(since) = self.idle_since {
            summary.push_str(&format!(", silent since {}", since.strftime("%H:%M:%SZ")));
        }
        summary
    }
}

/// What a run did, in one line: `2 create, 5 same`.
pub fn summary_of_changes<'a>(changes: impl Iterator<Item = (&'a String, &'a i64)>) -> String {
    conditions::column(&changes.map(|(word, count)| format!("{count} {word}")).collect::<Vec<_>>().join(", "))
}

fn hash(urn: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    urn.hash(&mut hasher);
    hasher.finish()
}

/// Type and name of a resource, from `urn:pulumi:<stack>::<project>::<types of its parents>$<type>::<name>`.
fn kind_and_name(urn: &str) -> (String, String) {
    let mut parts = urn.splitn(4, "::").skip(2);
    match (parts.next(), parts.next()) {
        (Some(kinds), Some(name)) => (word(&short(kinds.rsplit('$').next().unwrap_or(kinds))), word(name)),
        _ => (String::new(), word(urn)),
    }
}

/// `aws:s3:Bucket` for `aws:s3/bucket:Bucket`, as the CLI shows it.
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

/// A word of the agent's, bounded and on one line: it is not trusted.
fn word(text: &str) -> String {
    let line: String = text.chars().take(LONGEST_WORD).map(|c| if c.is_control() { ' ' } else { c }).collect();
    conditions::shorten(&line, LONGEST_WORD)
}

/// The engine's word for what it does, as something that is going on.
fn doing(operation: &str) -> &str {
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

    fn said(event: progress::Event) -> proto::Progress {
        proto::Progress { sequence: 1, time: 1_000, event: Some(event) }
    }

    fn step(name: &str, operation: &str, state: StepState) -> proto::Progress {
        let urn = format!("urn:pulumi:dev::app::my:index:Group$aws:s3/bucket:Bucket::{name}");
        said(progress::Event::Resource(proto::ResourceStep {
            urn,
            operation: operation.to_owned(),
            state: state.into(),
        }))
    }

    fn stack_itself() -> proto::Progress {
        said(progress::Event::Resource(proto::ResourceStep {
            urn: "urn:pulumi:dev::app::pulumi:pulumi:Stack::app-dev".to_owned(),
            operation: "create".to_owned(),
            state: StepState::Begun.into(),
        }))
    }

    fn started(pid: u32) -> proto::Progress {
        said(progress::Event::Started(proto::Started { pid }))
    }

    #[test]
    fn the_line_says_what_is_done_and_what_is_in_work() {
        let mut progress = Progress::default();
        assert_eq!(progress.observe(&started(42)), News::Urgent);
        assert_eq!(progress.observe(&started(42)), News::None);
        let rows = [
            (stack_itself(), "0 done"),
            (step("a", "same", StepState::Begun), "0 done"),
            (step("a", "same", StepState::Done), "0 done"),
            (step("logs", "create", StepState::Begun), "0 done, creating aws:s3:Bucket logs"),
            (step("web", "update", StepState::Begun), "0 done, creating aws:s3:Bucket logs and 1 more"),
            (step("logs", "create", StepState::Done), "1 done, updating aws:s3:Bucket web"),
            (step("logs", "create", StepState::Done), "1 done, updating aws:s3:Bucket web"),
            (
                said(progress::Event::Idle(proto::Idle { since: 61_000 })),
                "1 done, updating aws:s3:Bucket web, silent since 00:01:01Z",
            ),
            (step("web", "update", StepState::Failed), "1 done"),
        ];
        for (said, wanted) in rows {
            progress.observe(&said);
            assert_eq!(progress.status().summary, wanted);
        }
        let status = progress.status();
        assert_eq!((status.pid, status.steps_done, status.in_work, status.idle_since), (Some(42), 1, 0, None));
    }

    #[test]
    fn what_a_lying_agent_says_is_bounded() {
        let mut progress = Progress::default();
        for number in 0..1000 {
            progress.observe(&step(&format!("{number}\n{}", "x".repeat(9000)), "create", StepState::Begun));
        }
        assert_eq!(progress.in_work.len(), MOST_IN_WORK);
        let status = progress.status();
        assert!(status.summary.len() < 4 * LONGEST_WORD && !status.summary.contains('\n'), "{}", status.summary);
        let strange = proto::ResourceStep { urn: "no urn".to_owned(), operation: "fold".to_owned(), state: 1 };
        let mut progress = Progress::default();
        progress.observe(&said(progress::Event::Resource(strange)));
        assert_eq!(progress.status().summary, "0 done, fold  no urn");
    }

    #[test]
    fn a_type_is_shown_as_the_cli_shows_it() {
        for (kind, wanted) in [
            ("aws:s3/bucket:Bucket", "aws:s3:Bucket"),
            ("testing:index:Step", "testing:index:Step"),
            ("kubernetes:apps/v1:Deployment", "kubernetes:apps/v1:Deployment"),
            ("odd", "odd"),
        ] {
            assert_eq!(short(kind), wanted);
        }
    }
}

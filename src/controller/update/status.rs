//! Builds the status of an Update. No other module builds this status. All functions are pure.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;

use crate::api::auto::{RunBinding, RunProgress, TerminationEvidence, Update, UpdatePhase, UpdateStatus};
use crate::api::conditions::{self, COMPLETE, ConditionUpdate, FAILED, PROGRESSING, Status, update_reason};
use crate::api::{columns, duration, names};
use crate::controller::update::outcome::RunOutcome;
use crate::controller::update::progress::summary_of_changes;

/// Maximum length of a message in the status, in bytes.
const MAX_MESSAGE: usize = 8 * 1024;
/// Maximum length of each part of the message in a reduced status, in bytes.
const SHORT_MESSAGE: usize = 512;

/// Message of a bound run until the agent reports the process of the Pulumi CLI.
pub const STARTING: &str = "run is starting";

/// Type, status, reason and message of the three conditions.
type DesiredConditions<'a> = [(&'a str, Status, &'a str, &'a str); 3];

fn with_conditions(update: &Update, desired: DesiredConditions<'_>, now: Timestamp) -> UpdateStatus {
    let mut status = update.status.clone().unwrap_or_default();
    let generation = update.metadata.generation.unwrap_or_default();
    for (kind, value, reason, message) in desired {
        let condition = ConditionUpdate { kind, status: value, reason, message };
        conditions::set(&mut status.conditions, &condition, generation, now);
    }
    status.observed_generation = Some(generation);
    status.short_revision = update.spec.artifact.as_ref().and_then(|artifact| columns::revision(&artifact.revision));
    status
}

/// Returns whether the status contains a report about the run.
pub fn has_report(update: &Update) -> bool {
    update.status.as_ref().is_some_and(|status| !status.conditions.is_empty())
}

/// Returns the status of a run that cannot start yet.
pub fn waiting(update: &Update, reason: &str, message: &str, now: Timestamp) -> UpdateStatus {
    let mut status = open(update, Status::False, reason, message, now);
    status.phase = Some(UpdatePhase::Waiting);
    status
}

/// Returns the status that records a run binding. The controller writes this status before it starts the run.
pub fn bound(update: &Update, binding: &RunBinding, now: Timestamp) -> UpdateStatus {
    let mut status = running(update, None, STARTING, now);
    status.run = Some(binding.clone());
    status.start_time = Some(Time(now));
    status
}

/// Returns the status of a run in progress.
pub fn running(update: &Update, progress: Option<&RunProgress>, message: &str, now: Timestamp) -> UpdateStatus {
    let mut status = open(update, Status::True, update_reason::PROGRESSING, message, now);
    set_progress(&mut status, progress);
    let has_process = status.progress.as_ref().is_some_and(|progress| progress.pid.is_some());
    status.phase = Some(if has_process { UpdatePhase::Running } else { UpdatePhase::Starting });
    status
}

/// Returns the status of a run that is being canceled.
pub fn canceling(update: &Update, progress: Option<&RunProgress>, message: &str, now: Timestamp) -> UpdateStatus {
    let mut status = running(update, progress, message, now);
    status.phase = Some(UpdatePhase::Canceling);
    status
}

/// Returns the status of a run whose outcome is unknown.
pub fn outcome_unknown(update: &Update, progress: Option<&RunProgress>, message: &str, now: Timestamp) -> UpdateStatus {
    let mut status = open(update, Status::Unknown, update_reason::RUN_OUTCOME_UNKNOWN, message, now);
    set_progress(&mut status, progress);
    status.phase = Some(UpdatePhase::OutcomeUnknown);
    status
}

/// Sets the last reported progress. Without such a report, keeps the written progress.
fn set_progress(status: &mut UpdateStatus, progress: Option<&RunProgress>) {
    status.permalink = progress.and_then(|progress| progress.permalink.clone()).or_else(|| status.permalink.take());
    status.progress = progress.cloned().or_else(|| status.progress.take());
}

fn open(update: &Update, progressing: Status, reason: &str, message: &str, now: Timestamp) -> UpdateStatus {
    let open = update_reason::PROGRESSING;
    let message = conditions::shorten(message, MAX_MESSAGE);
    let desired = [
        (PROGRESSING, progressing, reason, message.as_str()),
        (FAILED, Status::False, open, ""),
        (COMPLETE, Status::False, open, ""),
    ];
    with_conditions(update, desired, now)
}

/// Returns the status of a completed run.
pub fn recorded(update: &Update, outcome: &RunOutcome, progress: Option<&RunProgress>, now: Timestamp) -> UpdateStatus {
    let message = conditions::shorten(&outcome.message, MAX_MESSAGE);
    let desired = match outcome.failure {
        None => [
            (PROGRESSING, Status::False, update_reason::COMPLETE, ""),
            (FAILED, Status::False, update_reason::UPDATE_SUCCEEDED, ""),
            (COMPLETE, Status::True, update_reason::UPDATED, ""),
        ],
        Some(reason) => [
            (PROGRESSING, Status::False, "Failed", ""),
            (FAILED, Status::True, reason, message.as_str()),
            (COMPLETE, Status::True, update_reason::UPDATED, ""),
        ],
    };
    let mut status = with_conditions(update, desired, now);
    status.start_time = plausible(outcome.started, update, now).map(Time).or(status.start_time);
    let end = plausible(outcome.ended, update, now).unwrap_or(now);
    status.end_time = Some(Time(end));
    status.duration = status.start_time.as_ref().map(|start| duration::display(end.duration_since(start.0)));
    status.phase = Some(if outcome.failure.is_none() { UpdatePhase::Succeeded } else { UpdatePhase::Failed });
    status.progress = ended(progress.or(status.progress.as_ref()), status.progress.as_ref(), outcome);
    status.message = Some(message).filter(|m| !m.is_empty());
    let reported = progress.and_then(|progress| progress.permalink.clone());
    status.permalink = outcome.permalink.clone().or(reported).or(status.permalink);
    status.project_info = outcome.project.clone().or(status.project_info);
    status.backend = outcome.backend.clone().or(status.backend);
    status.config_inputs = outcome.config_inputs.clone();
    status.ignored_variables = outcome.ignored_variables.clone();
    status.changes = outcome.changes.clone();
    status.plan = outcome.plan.clone();
    status.policy_violations = outcome.policy_violations.clone();
    status.last_output = outcome.last_output.clone();
    status.history = outcome.history.clone();
    status.pending_creates = outcome.pending_creates.clone();
    status.interrupted = outcome.interrupted.then_some(true);
    status.termination_evidence = outcome.evidence;
    status.outputs_unavailable = outcome.outputs_unavailable.then_some(true);
    status.state_was_empty = outcome.state_was_empty.then_some(true);
    status.retry_after_seconds = outcome.retry_after;
    status.outputs = (!outcome.outputs.is_empty()).then(|| names::outputs_secret(&update.name_any()));
    let resolution = update
        .annotations()
        .get(names::ANNOTATION_RESOLVE)
        .filter(|_| outcome.evidence == Some(TerminationEvidence::User));
    status.handled_resolve = resolution.cloned();
    status
}

/// Returns a reduced status of a completed run. The controller writes the reduced status if the API server has
/// rejected the complete status with `error`.
pub fn recorded_without_details(
    update: &Update,
    outcome: &RunOutcome,
    progress: Option<&RunProgress>,
    error: &str,
    now: Timestamp,
) -> UpdateStatus {
    let message = conditions::shorten(&outcome.message, SHORT_MESSAGE);
    let why =
        format!("the API server rejected the details of the result: {}", conditions::shorten(error, SHORT_MESSAGE));
    let message = if message.is_empty() { why } else { format!("{message}; {why}") };
    let brief = RunOutcome {
        message,
        started: None,
        ended: None,
        changes: BTreeMap::new(),
        permalink: None,
        last_output: None,
        pending_creates: Vec::new(),
        policy_violations: None,
        project: None,
        ..outcome.clone()
    };
    // The process ID identifies the lock that the run holds.
    let with_pid = |pid: i64| RunProgress { pid: Some(pid), ..RunProgress::default() };
    let reported = progress.and_then(|progress| progress.pid).map(with_pid);
    let mut status = recorded(update, &brief, reported.as_ref(), now);
    status.progress = status.progress.take().and_then(|progress| progress.pid).map(with_pid);
    status
}

/// Returns the time that the agent reports. Returns `None` if this time is more than one day before the Update was
/// created or more than one day after `now`.
fn plausible(time: Option<Timestamp>, update: &Update, now: Timestamp) -> Option<Timestamp> {
    let day = SignedDuration::from_hours(24);
    let created = update.creation_timestamp().map_or(now, |created| created.0);
    let earliest = created.saturating_sub(day).unwrap_or(Timestamp::MIN);
    let latest = now.saturating_add(day).unwrap_or(Timestamp::MAX);
    time.filter(|time| (earliest..=latest).contains(time))
}

/// Returns the progress of a completed run, without operations in progress. The progress keeps the process ID,
/// because the process ID identifies a lock that the run may have left.
fn ended(last: Option<&RunProgress>, written: Option<&RunProgress>, outcome: &RunOutcome) -> Option<RunProgress> {
    let pid = last.and_then(|last| last.pid).or_else(|| written.and_then(|written| written.pid));
    let changes = summary_of_changes(outcome.changes.iter());
    let steps_done = last.map_or(0, |last| last.steps_done);
    let summary = match last {
        _ if !changes.is_empty() => changes,
        Some(_) => format!("{steps_done} done"),
        None => return None,
    };
    Some(RunProgress { summary, steps_done, pid, ..RunProgress::default() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::auto::UpdateSpec;
    use crate::rpc::proto;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("timestamp in range")
    }

    fn progress(pid: Option<i64>) -> RunProgress {
        RunProgress {
            summary: "3 done, creating aws:s3:Bucket logs".to_owned(),
            steps_done: 3,
            in_work: 1,
            name: Some("logs".to_owned()),
            pid,
            ..RunProgress::default()
        }
    }

    /// Returns an Update with the given status.
    fn with_status(status: UpdateStatus) -> Update {
        let mut update = Update::new("app-1", UpdateSpec::default());
        update.status = Some(status);
        update
    }

    #[test]
    fn the_status_follows_a_run_from_start_to_end() {
        let waiting = waiting(&with_status(UpdateStatus::default()), update_reason::QUEUED, "waiting", at(1));
        assert_eq!(waiting.phase, Some(UpdatePhase::Waiting));
        let bound = bound(&with_status(waiting), &RunBinding::default(), at(2));
        assert_eq!(bound.phase, Some(UpdatePhase::Starting));
        let runs = running(&with_status(bound), Some(&progress(Some(42))), "run in progress", at(3));
        assert_eq!((runs.phase, runs.progress.clone()), (Some(UpdatePhase::Running), Some(progress(Some(42)))));
        // After a restart, the controller has not received the progress yet.
        let runs = running(&with_status(runs), None, "run in progress", at(4));
        assert_eq!((runs.phase, runs.progress.clone()), (Some(UpdatePhase::Running), Some(progress(Some(42)))));
        let changes = [("create".to_owned(), 2), ("same".to_owned(), 1)].into();
        let outcome = RunOutcome::of(&proto::Result {
            outcome: proto::Outcome::Succeeded.into(),
            started: 2_000,
            ended: 65_000,
            changes,
            last_output: "Resources:\n".to_owned(),
            ..proto::Result::default()
        });
        let done = recorded(&with_status(runs), &outcome, Some(&progress(None)), at(66));
        assert_eq!((done.phase, done.duration.as_deref()), (Some(UpdatePhase::Succeeded), Some("1m3s")));
        assert_eq!(
            (done.last_output.as_deref(), done.termination_evidence),
            (Some("Resources:"), Some(TerminationEvidence::Agent))
        );
        let left = done.progress.expect("progress is kept");
        assert_eq!((left.summary.as_str(), left.pid, left.in_work, left.name), ("2 create, 1 same", Some(42), 0, None));
    }

    #[test]
    fn a_run_with_unknown_outcome_is_open_until_a_user_resolves_it() {
        let outcome_unknown =
            outcome_unknown(&with_status(UpdateStatus::default()), Some(&progress(Some(42))), "unknown", at(1));
        let progressing = conditions::find(&outcome_unknown.conditions, PROGRESSING).expect("value is set");
        assert_eq!((progressing.status.as_str(), progressing.reason.as_str()), ("Unknown", "RunOutcomeUnknown"));
        assert!(!conditions::is_true(&outcome_unknown.conditions, COMPLETE));
        let pid = outcome_unknown.progress.as_ref().and_then(|progress| progress.pid);
        assert_eq!(pid, Some(42), "the process ID identifies the lock");
        let mut update = with_status(outcome_unknown);
        update.annotations_mut().insert(names::ANNOTATION_RESOLVE.to_owned(), "app-1=retry".to_owned());
        let ended = recorded(&update, &RunOutcome::resolved("app-1=retry", "unknown"), None, at(2));
        assert_eq!(ended.handled_resolve.as_deref(), Some("app-1=retry"));
        assert_eq!((ended.interrupted, ended.termination_evidence), (Some(true), Some(TerminationEvidence::User)));
        assert!(conditions::is_true(&ended.conditions, COMPLETE));
    }
}

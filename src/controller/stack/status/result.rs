//! Status of a Stack after a run: result, outputs and history.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::ResourceExt;
use serde_json::Value;

use crate::api::auto::{PendingCreates, Update, UpdateKind, UpdateStatus};
use crate::api::conditions::{self, stack_reason, update_reason};
use crate::api::pulumi::{
    CurrentUpdate, LastUpdate, PolicyViolations, PulumiStack, RunInputs, Snapshot, Stack, StackStatus,
};
use crate::api::{bounds, duration, names};
use crate::artifact::Revision;
use crate::controller::stack::backoff::StackBackoff;
use crate::controller::stack::run::RunCandidate;
use crate::controller::stack::status::runs;
use crate::controller::stack::status::state::{State, failure_reason, is_conflict, success_reason, with_state};
use crate::controller::stack::{annotations, approval, drift, identity, orphaned_stacks, pko_migration, schedule};
use crate::source::git::has_git_fields;

/// Maximum length of a failure message in the status, in bytes.
const MAX_MESSAGE: usize = 8 * 1024;
/// Placeholder for secret outputs in the status.
const SECRET: &str = "[secret]";
/// Maximum size of all outputs in the status, in bytes. This limit keeps the complete Stack below the size limit of
/// etcd.
const MAX_STATUS_BYTES: usize = 256 * 1024;
/// Maximum number of outputs in the status, as in the schema. The Secret contains all outputs.
const MAX_OUTPUTS: usize = bounds::ENTRIES as usize;
/// Maximum number of snapshots in the history.
const MAX_SNAPSHOTS: usize = 5;

/// Returns the status with the run's result. If the spec has changed during the run, the conditions stay the same until
/// the next step sets them.
pub fn with_result(stack: &Stack, update: &Update, outputs: Option<&Secret>, now: Timestamp) -> StackStatus {
    let mut status = stack.status.clone().unwrap_or_default();
    let Some(current) = pko_migration::take_run(&mut status, update.spec.kind) else { return status };
    let result = update.status.clone().unwrap_or_default();
    let is_deleted = update.metadata.deletion_timestamp.is_some();
    if result.run.is_none()
        && result.interrupted != Some(true)
        && is_deleted
        && !annotations::is_canceled_by_user(stack, update)
    {
        // The controller revoked the Update before its run started.
        annotations::restore_resolution(&mut status);
        return status;
    }
    status.pending_since = None;
    if drift::is_check(&current) {
        if !requires_action(&result) {
            return with_drift_check(stack, status, &current, update, now);
        }
        // The loss of the state requires a decision, so it is also the result of the last run. The same applies if
        // another Stack manages the Pulumi stack.
        drift::record(stack, &mut status, update, now);
    }
    let previous = status.last_update.take();
    let last = last_update(stack, &current, previous.as_ref(), update, outputs, now);
    let applied = match current.kind {
        UpdateKind::Destroy if last.reason.is_none() => None,
        _ if identity::may_have_changed(update) => {
            last.pulumi_stack.clone().map(|worked_on| identity::applied_by(stack, worked_on))
        }
        _ => identity::recorded(stack),
    };
    let is_confirmed = identity::confirms_state(update);
    identity::record_applied(&mut status, identity::recorded(stack), applied, is_confirmed, &current, now);
    orphaned_stacks::record_lost_state(&mut status, &result, now);
    status.project_info = result.project_info.clone().or(status.project_info);
    if last.reason.is_none() && current.kind == UpdateKind::Up {
        status.last_applied_revision = current.commit.clone();
        status.last_applied_origin_revision = current.origin_revision.clone();
        // If the outputs are not available, the status keeps the previous outputs.
        if outputs_are_known(&result, outputs) {
            status.outputs = masked_outputs(outputs);
        }
    }
    if last.reason.is_none() {
        status.last_handled_refresh_at = annotations::handled_refresh(&current).or(status.last_handled_refresh_at);
    }
    status.policy_violations =
        policy_violations(status.policy_violations.take(), &last, result.policy_violations.clone());
    status.plan = approval::after_run(stack, &current, update, &last, now).map(Box::new);
    add_snapshot(&mut status.history, &current, &result, outcome(&last), now);
    runs::add(&mut status.runs, &current, &last, &result);
    drift::record_correction(stack, &mut status, &current, &last, now);
    status.last_update = Some(last);
    // The controller writes the conditions together with the result. Otherwise, if a user suspended the Stack before
    // the next step, the Stack would keep its previous conditions.
    if Some(current.inputs.generation) == stack.metadata.generation {
        let last = status.last_update.as_ref();
        let state = match last.and_then(|last| last.reason.as_deref()) {
            None if current.save_plan.unwrap_or_default() => State::Working("checking the plan".to_owned()),
            None => State::Done,
            Some(_) if last.is_some_and(|last| last.canceled_by_user.unwrap_or_default()) => State::Canceled,
            Some(reason) => annotations::pending_reason(reason).map_or(State::Failed, State::DecisionRequired),
        };
        return with_state(&Stack { status: Some(status), ..stack.clone() }, &state, now);
    }
    status
}

/// Returns whether the result of a drift check prevents all further runs until a user acts.
fn requires_action(result: &UpdateStatus) -> bool {
    let failed = conditions::find(&result.conditions, conditions::FAILED).filter(|failed| failed.status == "True");
    let reasons = [update_reason::STACK_NOT_FOUND, update_reason::DUPLICATE_STACK];
    failed.is_some_and(|failed| reasons.contains(&failed.reason.as_str()))
}

/// Returns whether the controller knows the outputs of a run, except the values of some secret outputs. `outputs` is the
/// Secret with the outputs. Also returns `true` if the run has no outputs.
pub fn outputs_are_known(result: &UpdateStatus, outputs: Option<&Secret>) -> bool {
    outputs.is_some() || (result.outputs.is_none() && result.outputs_unavailable != Some(true))
}

/// Returns the policy violations after a run. The previous violations stay in the status after a failed run without
/// violations, and after a run that evaluates no policies. Such a run may not have evaluated all resources. A
/// successful destroy removes the violations together with the resources.
fn policy_violations(
    before: Option<PolicyViolations>,
    last: &LastUpdate,
    reported: Option<PolicyViolations>,
) -> Option<PolicyViolations> {
    let evaluates = |kind: &UpdateKind| last.kind.as_deref() == Some(kind.as_str());
    match (reported, last.reason.is_none()) {
        (Some(reported), _) => Some(reported),
        (None, true) if [UpdateKind::Up, UpdateKind::Preview, UpdateKind::Destroy].iter().any(evaluates) => None,
        (None, _) => before,
    }
}

/// Returns the status after a drift check. The record of the last run stays the same.
fn with_drift_check(
    stack: &Stack,
    mut status: StackStatus,
    current: &CurrentUpdate,
    update: &Update,
    now: Timestamp,
) -> StackStatus {
    drift::record(stack, &mut status, update, now);
    // A drift check evaluates the policies only if it previews the program.
    let violations = update.status.as_ref().and_then(|result| result.policy_violations.clone());
    status.policy_violations = violations.or(status.policy_violations);
    if Some(current.inputs.generation) != stack.metadata.generation {
        return status;
    }
    with_state(&Stack { status: Some(status), ..stack.clone() }, &State::Done, now)
}

/// Returns the record of a completed run.
fn last_update(
    stack: &Stack,
    current: &CurrentUpdate,
    previous: Option<&LastUpdate>,
    update: &Update,
    outputs: Option<&Secret>,
    now: Timestamp,
) -> LastUpdate {
    let result = update.status.clone().unwrap_or_default();
    let failed = conditions::find(&result.conditions, conditions::FAILED).filter(|c| c.status == "True");
    let pulumi_stack = identity::reported(stack, current, &result);
    let not_found = failed.filter(|failed| failed.reason == update_reason::STACK_NOT_FOUND);
    let is_removed = identity::was_removed_before(stack, current.kind, previous, &pulumi_stack);
    // A Stack without resources has nothing to destroy, so its destroy succeeds even if the Pulumi stack does not
    // exist.
    let failed = failed.filter(|_| not_found.is_none() || (identity::has_applied(stack) && !is_removed));
    let (candidate, backoff) = (RunCandidate::of_current(current), StackBackoff::of(&stack.spec));
    LastUpdate {
        name: Some(update.name_any()),
        kind: Some(current.kind.as_str().to_owned()),
        state: Some(if failed.is_some() { "failed" } else { "succeeded" }.to_owned()),
        reason: failed.map(|f| f.reason.clone()),
        canceled_by_user: failed.filter(|failed| is_canceled_by_user(stack, update, failed)).map(|_| true),
        message: match (not_found, is_removed) {
            (Some(_), true) => Some(removed_before(&pulumi_stack)),
            (Some(not_found), false) if failed.is_some() => {
                Some(not_found_message(stack, &not_found.message, &pulumi_stack))
            }
            _ => message(&result, failed, outputs),
        },
        retry_after_seconds: result.retry_after_seconds.filter(|_| failed.is_some()),
        inputs: RunInputs {
            config_inputs: current.inputs.config_inputs.clone().or_else(|| result.config_inputs.clone()),
            ..current.inputs.clone()
        },
        last_attempted_commit: recorded(stack, current.commit.clone()),
        last_successful_commit: match (failed, current.kind) {
            // A preview applies no revision.
            (Some(_), _) | (None, UpdateKind::Preview) => previous.and_then(|p| p.last_successful_commit.clone()),
            (None, _) => recorded(stack, current.commit.clone()),
        },
        source: current.source.clone().map(Box::new),
        run_config_inputs: changed_config_inputs(current, &result),
        ignored_variables: result.ignored_variables.clone(),
        failures: match failed {
            Some(failed) => schedule::failures_after(previous, &candidate, &failed.reason, &backoff),
            None => failures_of_plan(previous, current, &candidate),
        },
        interruptions: schedule::interruptions_after(previous, &candidate, failed.map(|f| f.reason.as_str())),
        conflicts: conflicts_after(previous, failed, &result),
        stack_may_be_removed: failed.filter(|_| may_be_removed(previous, update)).map(|_| true),
        pending_creates: pending_creates_after(current, failed.map(|f| f.reason.as_str()), result.interrupted),
        permalink: result.permalink,
        changes: result.changes,
        plan: current.plan.clone().map(Box::new),
        pulumi_stack: Some(pulumi_stack),
        last_resync_time: Some(Time(now)),
    }
}

/// Returns the number of failures after a successful run. A run that saves a plan does not reset the number, because
/// the execution of the plan can fail again. For example, an output can change with each run.
fn failures_of_plan(previous: Option<&LastUpdate>, current: &CurrentUpdate, candidate: &RunCandidate) -> i64 {
    let saves_plan = current.save_plan.unwrap_or_default();
    let is_same = saves_plan && schedule::is_repetition(previous, candidate);
    previous.filter(|_| is_same).map_or(0, |previous| previous.failures)
}

/// Returns the reason of the condition `Ready` for a run's result.
fn outcome(last: &LastUpdate) -> &'static str {
    match last.reason.as_deref() {
        None => success_reason(Some(last)),
        Some(update_reason::UPDATE_CONFLICT) => stack_reason::UPDATE_CONFLICT,
        Some(_) if last.canceled_by_user.unwrap_or_default() => stack_reason::CANCELED,
        Some(reason) => annotations::pending_reason(reason).unwrap_or_else(|| failure_reason(Some(last))),
    }
}

/// Returns the revision in the format of the Pulumi Kubernetes Operator. For a Git repository that the controller
/// polls, this format contains only the commit hash.
fn recorded(stack: &Stack, revision: Option<String>) -> Option<String> {
    let commit =
        |revision: String| Revision::parse(&revision).checksum().map_or_else(|| revision.clone(), str::to_owned);
    if has_git_fields(&stack.spec) { revision.map(commit) } else { revision }
}

/// Returns the cause of a failure, or information about a successful run.
fn message(result: &UpdateStatus, failed: Option<&Condition>, outputs: Option<&Secret>) -> Option<String> {
    let gone = result.outputs.as_ref().filter(|_| outputs.is_none() && failed.is_none());
    let gone = gone.map(|name| format!("outputs Secret {name} not found"));
    let of_failure = || failed.map(|failed| failed.message.as_str());
    let message = result.message.as_deref().or_else(of_failure).or(gone.as_deref())?;
    Some(conditions::shorten(message, MAX_MESSAGE))
}

/// Returns whether a user canceled the run and the failure requires no user decision.
fn is_canceled_by_user(stack: &Stack, update: &Update, failed: &Condition) -> bool {
    annotations::pending_reason(&failed.reason).is_none() && annotations::is_canceled_by_user(stack, update)
}

/// Returns the number of consecutive runs that found the same lock. A run's message contains the lock's holder and
/// time, so runs with equal messages found the same lock.
fn conflicts_after(previous: Option<&LastUpdate>, failed: Option<&Condition>, result: &UpdateStatus) -> i64 {
    if failed.is_none_or(|failed| failed.reason != update_reason::UPDATE_CONFLICT) {
        return 0;
    }
    let message = message(result, failed, None);
    let before = previous.filter(|previous| is_conflict(previous) && previous.message == message);
    before.map_or(0, |previous| previous.conflicts.max(1)).saturating_add(1)
}

/// Returns whether this failed destroy, or an earlier destroy, may have removed the Pulumi stack.
fn may_be_removed(previous: Option<&LastUpdate>, update: &Update) -> bool {
    let was_before = previous.is_some_and(|previous| previous.stack_may_be_removed == Some(true));
    identity::may_have_removed(update) || (update.spec.kind == UpdateKind::Destroy && was_before)
}

/// Returns the configuration hash that the run used. Returns `None` if `status.currentUpdate` contains the same hash.
fn changed_config_inputs(current: &CurrentUpdate, result: &UpdateStatus) -> Option<String> {
    let recorded = current.inputs.config_inputs.as_ref()?;
    result.config_inputs.clone().filter(|read| read != recorded)
}

/// Returns the message about a destroy that succeeds although the Pulumi stack does not exist.
fn removed_before(looked_up: &PulumiStack) -> String {
    format!("{looked_up} not found: already removed by an earlier, interrupted destroy")
}

/// Returns the message about a missing Pulumi stack. If the status records resources in another Pulumi stack, the
/// message also names that Pulumi stack.
fn not_found_message(stack: &Stack, message: &str, looked_up: &PulumiStack) -> String {
    match identity::recorded(stack).filter(|applied| identity::differ(applied, looked_up)) {
        Some(applied) => format!("{message}; this Stack last updated {applied}"),
        None => message.to_owned(),
    }
}

/// Returns the policy for pending creates in the next run. A successful run clears the policy. A failure without an
/// interruption keeps the previous policy, unless the failure requires a decision about pending creates. A preview
/// keeps the previous policy, because a preview does not resolve pending creates.
fn pending_creates_after(
    current: &CurrentUpdate,
    failure: Option<&str>,
    interrupted: Option<bool>,
) -> Option<PendingCreates> {
    let before = current.pending_creates;
    if current.kind == UpdateKind::Preview {
        return before;
    }
    match failure? {
        update_reason::RUN_OUTCOME_UNKNOWN | update_reason::PENDING_CREATES => Some(PendingCreates::Stop),
        // The run did not start, so the user's earlier decision still applies.
        update_reason::UPDATE_CONFLICT | update_reason::RUN_REFUSED if before.is_some() => before,
        _ if interrupted == Some(true) => Some(PendingCreates::Stop),
        _ => before,
    }
}

/// Converts the outputs in a Secret to the outputs in the status. `[secret]` replaces the values of secret outputs, even
/// of those whose values the Secret does not contain. If the outputs exceed the maximum size, a reference to the Secret replaces the largest values.
fn masked_outputs(outputs: Option<&Secret>) -> BTreeMap<String, Value> {
    let Some(secret) = outputs else { return BTreeMap::new() };
    let secret_keys: Vec<String> = secret
        .annotations()
        .get(names::ANNOTATION_SECRETS)
        .and_then(|text| serde_json::from_str(text).ok())
        .unwrap_or_default();
    let size = |(key, bytes): &(&String, &ByteString)| match secret_keys.contains(key) {
        true => SECRET.len(),
        false => bytes.0.len(),
    };
    let mut all: Vec<_> = secret.data.iter().flatten().collect();
    all.sort_by_key(size);
    let mut remaining = MAX_STATUS_BYTES;
    let value = |output: (&String, &ByteString)| {
        let (key, bytes) = output;
        remaining = remaining.saturating_sub(size(&output));
        let value = match secret_keys.contains(key) {
            true => Value::from(SECRET),
            false if remaining == 0 => Value::from(format!("[too large: see Secret {}]", secret.name_any())),
            false => serde_json::from_slice(&bytes.0).unwrap_or(Value::Null),
        };
        (key.clone(), value)
    };
    let mut shown: BTreeMap<String, Value> = all.into_iter().take(MAX_OUTPUTS).map(value).collect();
    for key in &secret_keys {
        if shown.len() < MAX_OUTPUTS {
            shown.entry(key.clone()).or_insert_with(|| Value::from(SECRET));
        }
    }
    shown
}

/// Adds a completed run to the history. If the history contains a snapshot with the same artifact and result, moves
/// this snapshot to the first position and increases its count.
fn add_snapshot(
    history: &mut Vec<Snapshot>,
    run: &CurrentUpdate,
    result: &UpdateStatus,
    outcome: &str,
    now: Timestamp,
) {
    let Some(digest) = run.inputs.digest.clone() else { return };
    let is_same = |known: &Snapshot| known.digest == digest && known.last_reconciled_status == outcome;
    let before = history.iter().position(is_same).map(|at| history.remove(at));
    let snapshot = Snapshot {
        first_reconciled: before.as_ref().map_or(Time(now), |before| before.first_reconciled.clone()),
        last_reconciled: Time(now),
        last_reconciled_duration: duration::display(run_duration(result)),
        last_reconciled_status: outcome.to_owned(),
        total_reconciliations: before.map_or(0, |before| before.total_reconciliations).saturating_add(1),
        last_run: Some(run.name.clone()).filter(|name| !name.is_empty()),
        metadata: [("revision", &run.commit), ("originRevision", &run.origin_revision)]
            .into_iter()
            .filter_map(|(key, value)| Some((key.to_owned(), value.clone()?)))
            .collect(),
        digest,
    };
    history.insert(0, snapshot);
    history.truncate(MAX_SNAPSHOTS);
}

/// Returns the duration of a run, or zero if the run did not start.
fn run_duration(result: &UpdateStatus) -> SignedDuration {
    match (&result.start_time, &result.end_time) {
        (Some(start), Some(end)) => end.0.duration_since(start.0),
        _ => SignedDuration::ZERO,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::artifact::Digest;

    #[test]
    fn secret_outputs_are_masked_and_large_outputs_are_omitted() {
        let text = |length: usize| format!("\"{}\"", "x".repeat(length)).into_bytes();
        let values = [
            ("token", b"\"hidden\"".to_vec()),
            ("hidden", text(400 * 1024)),
            ("count", b"3".to_vec()),
            ("half", text(200 * 1024)),
            ("more", text(220 * 1024)),
        ];
        let mut secret = Secret::default();
        secret.metadata.name = Some("app-1-stack-outputs".to_owned());
        let secrets = json!(["token", "hidden", "unknown"]).to_string();
        secret.metadata.annotations = Some([(names::ANNOTATION_SECRETS.to_owned(), secrets)].into());
        secret.data = Some(values.map(|(key, value)| (key.to_owned(), ByteString(value))).into());
        let mut shown = masked_outputs(Some(&secret));
        assert_eq!(shown.remove("half").and_then(|half| half.as_str().map(str::len)), Some(200 * 1024));
        let expected = json!({
            "token": "[secret]", "hidden": "[secret]", "unknown": "[secret]", "count": 3,
            "more": "[too large: see Secret app-1-stack-outputs]",
        });
        assert_eq!(json!(shown), expected);
        assert!(masked_outputs(None).is_empty());
        let many = (0..2000).map(|number| (format!("o{number}"), ByteString(b"1".to_vec()))).collect();
        assert_eq!(masked_outputs(Some(&Secret { data: Some(many), ..Secret::default() })).len(), MAX_OUTPUTS);
    }

    #[test]
    fn violations_are_kept_until_a_run_has_evaluated_all_policies() {
        let violations = |mandatory| Some(PolicyViolations { mandatory, ..PolicyViolations::default() });
        let last = |kind: &str, reason: Option<&str>| LastUpdate {
            kind: Some(kind.to_owned()),
            reason: reason.map(str::to_owned),
            ..LastUpdate::default()
        };
        let rows = [
            (last("up", None), None, None),
            (last("preview", None), None, None),
            (last("destroy", None), None, None),
            (last("refresh", None), None, violations(1)),
            (last("up", Some("UpdateConflict")), None, violations(1)),
            (last("up", Some("PolicyViolation")), violations(2), violations(2)),
            (last("up", None), violations(3), violations(3)),
        ];
        for (last, reported, expected) in rows {
            assert_eq!(policy_violations(violations(1), &last, reported), expected, "{last:?}");
        }
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn run(content: &str) -> CurrentUpdate {
        CurrentUpdate {
            inputs: RunInputs { digest: Some(Digest::of(content.as_bytes())), ..RunInputs::default() },
            commit: Some(format!("latest@{content}")),
            origin_revision: Some("main@sha1:a".to_owned()),
            ..CurrentUpdate::default()
        }
    }

    fn brief(history: &[Snapshot]) -> Vec<String> {
        let line = |s: &Snapshot| {
            format!("{} {} {}", s.metadata["revision"], s.last_reconciled_status, s.total_reconciliations)
        };
        history.iter().map(line).collect()
    }

    #[test]
    fn a_repeated_artifact_and_outcome_updates_its_history_entry() {
        let mut history = Vec::new();
        let ended =
            UpdateStatus { start_time: Some(Time(at(100))), end_time: Some(Time(at(162))), ..Default::default() };
        let runs = [("a", "Done"), ("a", "Failed"), ("b", "Done"), ("a", "Done"), ("a", "Done")];
        for (second, (digest, outcome)) in (1..).zip(runs) {
            add_snapshot(&mut history, &run(digest), &ended, outcome, at(second));
        }
        assert_eq!(brief(&history), ["latest@a Done 3", "latest@b Done 1", "latest@a Failed 1"]);
        let newest = &history[0];
        assert_eq!((newest.first_reconciled.0, newest.last_reconciled.0), (at(1), at(5)));
        assert_eq!(newest.last_reconciled_duration, "1m2s");
        let metadata: Vec<(&str, &str)> = newest.metadata.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        assert_eq!(metadata, [("originRevision", "main@sha1:a"), ("revision", "latest@a")]);
    }

    #[test]
    fn the_history_keeps_the_newest_five_entries() {
        let mut history = Vec::new();
        for (second, digest) in (1..).zip(["a", "b", "c", "d", "e", "f", "g"]) {
            add_snapshot(&mut history, &run(digest), &UpdateStatus::default(), "Done", at(second));
        }
        assert_eq!(
            brief(&history),
            ["latest@g Done 1", "latest@f Done 1", "latest@e Done 1", "latest@d Done 1", "latest@c Done 1"]
        );
        assert_eq!(history[0].last_reconciled_duration, "0s", "the duration is unknown");
    }
}

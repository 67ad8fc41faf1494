//! Selects the next action for an Update. All functions are pure: they use no client and no clock.

use std::net::IpAddr;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

use crate::api::auto::{RunBinding, RunProgress, TerminationEvidence, Update, UpdateKind};
use crate::api::conditions::{self, update_reason};
use crate::api::{duration, names, resolve};
use crate::controller::first_report;
use crate::controller::stack::Restriction;
use crate::controller::update::attach_target::address;
use crate::controller::update::attachments::RunState;
use crate::controller::update::deadline;
use crate::controller::update::interruptions::Disruption;
use crate::controller::update::observe::{Observed, Owner, binding, is_cancel_requested, is_held_by_stack};
use crate::controller::update::outcome::RunOutcome;
use crate::controller::update::plans::PlanFile;
use crate::controller::update::pod_mark;
use crate::controller::update::pod_termination::{self, End, Recorded};
use crate::controller::update::readiness::{not_ready, policy_packs_mismatch, source_mismatch};
use crate::controller::update::request;
use crate::controller::update::request::{RunTimeout, TimeoutSource};
use crate::controller::update::status;
use crate::controller::workspace::is_pko_pod;
use crate::rpc::proto;

/// Time for which the controller waits for the termination reason of the pod after the run has completed. The agent
/// exits at most 30 seconds after the run has completed.
const EXPLANATION_TIMEOUT: SignedDuration = SignedDuration::from_secs(60);
/// Interval between two checks whether the Stack of a deleted or expired Update still exists. An existing Stack must
/// record the result of the Update before the Update can be deleted.
const OWNER_CHECK_INTERVAL: SignedDuration = SignedDuration::from_secs(60);

/// Next action for an Update.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Add the finalizer to a user-created Update, so that Kubernetes keeps the Update until its run has completed.
    AddFinalizer,
    /// Report that the run cannot start yet, with the given reason and message.
    Wait(&'static str, String),
    /// Report that the run cannot start until the Secrets and ConfigMaps in the given message exist. If the observed
    /// state does not contain the result of the check, check the references and decide again.
    AwaitReferences(String),
    /// Mark the pod and record the binding. The run must not start before these writes have succeeded.
    RecordBinding(RunBinding),
    /// Attach to the bound run. Start the run if the agent has no record of the run.
    Attach(RunBinding),
    /// Report that the run is in progress, with the given message.
    Await(String),
    /// Report the progress of the run after the given time, because a short run may end before.
    AwaitShortRun(SignedDuration),
    /// Report that the agent delays the start of the run for the given reason.
    Hold(String),
    /// Report that the outcome of the run is unknown, with the given cause.
    OutcomeUnknown(String),
    /// Cancel the run.
    Cancel,
    /// Delete the pod, because the agent has not ended the run. Contains the reason.
    DeletePod(String),
    /// Delete the pod, because its node is being removed. The agent interrupts the run, and the Stack repeats it.
    LeaveNode(Disruption),
    /// Tell the agent that the kubelet kills the containers of the pod after this number of seconds.
    EndWithPod(u32),
    /// Record the result of the completed run in the status.
    Record(Box<RunOutcome>),
    /// Remove the run metadata from the pod, because the result is recorded. Also remove the finalizer from an Update
    /// without the Stack finalizer.
    Release,
    /// Remove the Stack finalizer from an Update that is being deleted, because the Stack no longer exists.
    Abandon,
    /// Keep the completed Update, and requeue it after the given time.
    Keep(SignedDuration),
    /// Delete the Update, because its TTL has expired.
    Expire,
    Nothing,
}

impl Action {
    /// Returns the name of the action for the log. The name excludes the values that the action contains, because
    /// outputs can be secret.
    pub fn name(&self) -> &'static str {
        match self {
            Action::AddFinalizer => "AddFinalizer",
            Action::Wait(..) => "Wait",
            Action::AwaitReferences(_) => "AwaitReferences",
            Action::RecordBinding(_) => "RecordBinding",
            Action::Attach(_) => "Attach",
            Action::Await(_) => "Await",
            Action::AwaitShortRun(_) => "AwaitShortRun",
            Action::Hold(_) => "Hold",
            Action::OutcomeUnknown(_) => "OutcomeUnknown",
            Action::Cancel => "Cancel",
            Action::DeletePod(_) => "DeletePod",
            Action::LeaveNode(_) => "LeaveNode",
            Action::EndWithPod(_) => "EndWithPod",
            Action::Record(_) => "Record",
            Action::Release => "Release",
            Action::Abandon => "Abandon",
            Action::Keep(_) => "Keep",
            Action::Expire => "Expire",
            Action::Nothing => "Nothing",
        }
    }
}

/// Selects the next action from the observed state.
pub fn decide(observed: &Observed, now: Timestamp) -> Action {
    let update = &observed.update;
    if update.is_complete() {
        return completed(observed, now);
    }
    match binding(update) {
        Some(binding) => decide_bound(observed, binding, now),
        None if update.is_started_by_operator() => pko_run(observed),
        None if update.metadata.deletion_timestamp.is_some() => Action::Record(Box::new(RunOutcome::failed(
            update_reason::CANCELED,
            "the Update was deleted before the run started",
        ))),
        None if is_cancel_requested(update) => Action::Record(Box::new(RunOutcome::failed(
            update_reason::CANCELED,
            "the run was canceled before it started",
        ))),
        None if !update.finalizers().iter().any(|f| f == names::UPDATE_FINALIZER) => Action::AddFinalizer,
        None => waiting(observed),
    }
}

/// Selects the action for an Update whose result is recorded.
fn completed(observed: &Observed, now: Timestamp) -> Action {
    let update = &observed.update;
    let has_finalizer = update.finalizers().iter().any(|f| f == names::UPDATE_FINALIZER);
    let is_held = is_held_by_stack(update);
    // Until the Stack has recorded the result, it would regard the deletion as a cancellation by a user.
    let delays_ttl = is_held && observed.stack != Owner::Gone && update.spec.ttl_after_completed.is_some();
    let is_marked = observed.pod.as_ref().is_some_and(|pod| pod_mark::is_of(pod, update));
    match update.metadata.deletion_timestamp {
        _ if has_finalizer && (is_marked || !is_held) => Action::Release,
        Some(_) if is_held && observed.stack == Owner::Gone => Action::Abandon,
        // The periodic requeue is necessary, because deleting the Stack does not requeue the Update.
        Some(_) if is_held => Action::Keep(OWNER_CHECK_INTERVAL),
        None if delays_ttl => Action::Keep(OWNER_CHECK_INTERVAL),
        Some(_) => Action::Nothing,
        None => expiry(update, now),
    }
}

/// Selects the action for a run that the Pulumi Kubernetes Operator started. The agent reports only to the operator,
/// so the controller regards the run as completed when the pod no longer exists.
fn pko_run(observed: &Observed) -> Action {
    if observed.pod.as_ref().is_some_and(is_pko_pod) {
        let message = "the Pulumi Kubernetes Operator started the run; waiting for the deletion of the pod of the run";
        return Action::Await(message.to_owned());
    }
    let why = "the Pulumi Kubernetes Operator started the run, and its pod no longer exists";
    Action::Record(Box::new(RunOutcome::interrupted(why, TerminationEvidence::Container, None)))
}

/// Selects the action for a completed Update, which the controller deletes after its TTL.
fn expiry(update: &Update, now: Timestamp) -> Action {
    let ttl = update.spec.ttl_after_completed.as_deref().and_then(duration::seconds);
    let conditions = update.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    let completed = conditions::find(conditions, conditions::COMPLETE).map(|complete| complete.last_transition_time.0);
    let (Some(ttl), Some(completed)) = (ttl, completed) else { return Action::Nothing };
    let ttl = SignedDuration::from_secs(i64::try_from(ttl).unwrap_or(i64::MAX));
    match ttl.saturating_sub(now.duration_since(completed)) {
        left if left.is_positive() => Action::Keep(left),
        _ => Action::Expire,
    }
}

/// Selects the action for a bound run. A bound run executes either in the pod that its binding names or not at all.
fn decide_bound(observed: &Observed, binding: &RunBinding, now: Timestamp) -> Action {
    match &observed.run_state {
        Some(RunState::Ended(result)) if awaits_termination_reason(observed, binding, result, now) => {
            return Action::Await("run ended with its pod; waiting for the cluster to report the reason".to_owned());
        }
        Some(RunState::Ended(result)) => {
            return Action::Record(Box::new(outcome_of_result(observed, binding, result, now)));
        }
        // A report from the agent takes precedence over other evidence. After the deadline of the run, only a report
        // from the agent in the bound pod takes precedence.
        Some(RunState::Running | RunState::Held(_))
            if is_on_time(observed, now) || is_in_bound_pod(observed, binding) =>
        {
            return interruption(observed, binding, now)
                .unwrap_or_else(|| from_agent_report(observed, binding, None, now));
        }
        _ => {}
    }
    let id = observed.update.uid().unwrap_or_default();
    let pod_name = observed.update.pod_name();
    let run = Recorded { id: &id, binding, pod_name: &pod_name, now };
    match pod_termination::judge(run, observed.pod.as_ref(), &observed.node) {
        End::Proven(outcome) => proven_end(observed, binding, outcome, now),
        End::Unknown(cause) => outcome_unknown(&observed.update, &cause),
        End::Open(known) => from_agent_report(observed, binding, known.as_deref(), now),
    }
}

/// Returns the action for a run in progress whose pod is being deleted or whose node is being removed. Without this
/// action, a PodDisruptionBudget would block the eviction of the pod until the machine is gone, and the agent would not
/// know that it has less time than the grace period of the pod.
fn interruption(observed: &Observed, binding: &RunBinding, now: Timestamp) -> Option<Action> {
    let pod = observed.pod.as_ref().filter(|_| observed.run_state == Some(RunState::Running))?;
    if !is_in_bound_pod(observed, binding) || is_end_requested(observed) {
        return None;
    }
    match &pod.metadata.deletion_timestamp {
        Some(end) => {
            let left = end.0.duration_since(now).as_secs();
            u32::try_from(left).ok().filter(|left| *left > 0).map(Action::EndWithPod)
        }
        None => observed.disruption.clone().map(Action::LeaveNode),
    }
}

/// Selects the action for a run whose end the state of the pod or the node proves.
fn proven_end(observed: &Observed, binding: &RunBinding, outcome: Box<RunOutcome>, now: Timestamp) -> Action {
    if is_end_requested(observed) {
        return Action::Record(outcome);
    }
    let cause = pod_termination::cause(binding, observed.pod.as_ref());
    // A termination message contains neither the changes nor the plan, without which a preview has no result.
    let is_preview = observed.update.spec.kind == UpdateKind::Preview;
    let outcome = if is_preview && outcome.failure.is_none() {
        let why = "the pod ended before the controller read the result of the preview";
        RunOutcome::interrupted(why, TerminationEvidence::Container, outcome.ended)
    } else {
        *outcome
    };
    let outcome = outcome.terminated_with_pod().with_cause(cause);
    Action::Record(Box::new(with_deadline(observed, outcome, now)))
}

/// Selects the action for a run of which the agent in the bound pod has no record. `not_started` is the outcome of a
/// run that has not started. A run that has reported progress had started, and its journal was lost.
fn without_record(observed: &Observed, binding: &RunBinding, not_started: RunOutcome, now: Timestamp) -> Action {
    let update = &observed.update;
    let Some(pod) = observed.pod.as_ref().filter(|_| progress(observed).is_some()) else {
        return Action::Record(Box::new(not_started));
    };
    let (id, pod_name) = (update.uid().unwrap_or_default(), update.pod_name());
    let run = Recorded { id: &id, binding, pod_name: &pod_name, now };
    match pod_termination::judge_without_journal(run, pod) {
        Ok(outcome) => proven_end(observed, binding, outcome, now),
        Err(cause) => deletion_after_deadline(observed, now).unwrap_or_else(|| outcome_unknown(update, &cause)),
    }
}

/// Returns whether the run has not exceeded its deadline. A run without a deadline is always on time.
fn is_on_time(observed: &Observed, now: Timestamp) -> bool {
    deadline::end_expired(&observed.update, observed.timeouts, observed.pod.as_ref(), now).is_none()
}

/// Returns whether the observed pod is the pod in the binding of the run.
fn is_in_bound_pod(observed: &Observed, binding: &RunBinding) -> bool {
    observed.pod.as_ref().and_then(|pod| pod.uid()).as_deref() == Some(binding.pod_uid.as_str())
}

/// Returns whether the agent may start the run if the agent has no record of the run.
pub fn may_start(observed: &Observed, now: Timestamp) -> bool {
    let is_expired = deadline::start_expired(&observed.update, observed.timeouts, now).is_some();
    // Without the plan, the run could make unapproved changes.
    let has_plan = observed.update.spec.plan.is_none() || matches!(observed.plan, PlanFile::Found(_));
    !is_expired && !is_end_requested(observed) && has_plan && observed.forbidden.is_none()
}

/// Combines the result that the agent reports with the cause that the cluster reports.
fn outcome_of_result(observed: &Observed, binding: &RunBinding, result: &proto::Result, now: Timestamp) -> RunOutcome {
    let pod = observed.pod.as_ref();
    let spec = &observed.update.spec;
    let outcome = RunOutcome::of(result).of_stack(spec, result.outcome());
    let is_ending = result.pod_terminated || pod_termination::is_pod_ending(binding, pod);
    let with_its_pod = !is_end_requested(observed) && is_ending;
    let outcome = if with_its_pod { with_deadline(observed, outcome.terminated_with_pod(), now) } else { outcome };
    let outcome = match timeout_that_ended(observed, result) {
        Some(source) => outcome.with_timeout_advice(source),
        None => outcome,
    };
    outcome.with_cause(pod_termination::cause(binding, pod))
}

/// If an interrupted run ended after its deadline, adds to the message that the controller deleted the pod.
fn with_deadline(observed: &Observed, outcome: RunOutcome, now: Timestamp) -> RunOutcome {
    let (pod, ended) = (observed.pod.as_ref(), outcome.ended.map_or(now, |ended| ended.min(now)));
    match deadline::end_expired(&observed.update, observed.timeouts, pod, ended) {
        Some(timeout) if outcome.failure == Some(update_reason::ABORTED) => outcome.after_deadline(&timeout),
        _ => outcome,
    }
}

/// Returns which setting defines the timeout that ended the run, or `None` if no timeout ended the run.
fn timeout_that_ended(observed: &Observed, result: &proto::Result) -> Option<TimeoutSource> {
    let RunTimeout { duration: limit, source } = request::timeout(&observed.update, observed.timeouts);
    let lasted = Duration::from_millis(u64::try_from(result.ended.saturating_sub(result.started)).unwrap_or_default());
    let is_canceled = result.outcome() == proto::Outcome::Canceled && !result.pod_terminated;
    // The timeout starts when the agent accepts the run.
    let has_expired = !limit.is_zero() && lasted + Duration::from_secs(1) >= limit;
    (has_expired && is_canceled && !is_end_requested(observed)).then_some(source)
}

/// Returns whether the controller must wait for the termination reason of the pod. A deletion is visible immediately.
/// The kubelet reports an eviction only after the containers have terminated. The agent delays its exit, so that the
/// controller can read the result. The agent is not trusted, so the wait ends at the deadline of the run.
fn awaits_termination_reason(
    observed: &Observed,
    binding: &RunBinding,
    result: &proto::Result,
    now: Timestamp,
) -> bool {
    let pod = observed.pod.as_ref();
    let is_explained = pod_termination::is_pod_ending(binding, pod) || pod_termination::cause(binding, pod).is_some();
    // The agent reports the end, which can be in the future. Without `abs`, the wait would then last until that time.
    let since = Timestamp::from_millisecond(result.ended).map(|ended| now.duration_since(ended).abs());
    let is_recent = since.is_ok_and(|since| since < EXPLANATION_TIMEOUT) && is_on_time(observed, now);
    result.pod_terminated && !is_end_requested(observed) && !is_explained && is_recent
}

/// Returns whether a user canceled the run, either with the annotation or by deleting the Update.
fn is_end_requested(observed: &Observed) -> bool {
    let update = &observed.update;
    let is_deleted = update.metadata.deletion_timestamp.is_some() && observed.stack != Owner::Deleting;
    is_deleted || is_cancel_requested(update)
}

/// Returns the action for a run that may still be in progress. The run stays open until there is evidence that it has
/// ended, or until a user resolves the run.
fn outcome_unknown(update: &Update, cause: &str) -> Action {
    let name = update.name_any();
    let how = format!(
        "If the run has ended, set the annotation {} to {name}=retry, {name}=clear or {name}=abandon",
        names::ANNOTATION_RESOLVE
    );
    let Some(value) = update.annotations().get(names::ANNOTATION_RESOLVE) else {
        return Action::OutcomeUnknown(format!("{cause}. {how}"));
    };
    match resolve::parse(value) {
        Ok(resolution) if resolution.update == name => Action::Record(Box::new(RunOutcome::resolved(value, cause))),
        Ok(resolution) => {
            Action::OutcomeUnknown(format!("{cause}. {how} (the annotation names {})", resolution.update))
        }
        Err(what) => Action::OutcomeUnknown(format!("{cause}. {how} (the annotation value {what})")),
    }
}

/// Returns the deletion of the pod if the run has exceeded its deadline.
fn deletion_after_deadline(observed: &Observed, now: Timestamp) -> Option<Action> {
    let timeout = deadline::end_expired(&observed.update, observed.timeouts, observed.pod.as_ref(), now)?;
    Some(Action::DeletePod(format!("the run exceeded its timeout of {timeout}, and the agent did not end it")))
}

/// Selects the action for a run that may be in progress, based on the state that the attached task reports.
fn from_agent_report(observed: &Observed, binding: &RunBinding, known: Option<&str>, now: Timestamp) -> Action {
    let cancels = is_end_requested(observed);
    let update = &observed.update;
    let is_open = match &observed.run_state {
        Some(RunState::Connecting | RunState::Running | RunState::Unreachable(_)) => true,
        // Otherwise, a task attaches first, because the agent may have ended the run while no controller was running.
        None => address(observed).is_none(),
        Some(_) => false,
    };
    if is_open && let Some(deletion) = deletion_after_deadline(observed, now) {
        return deletion;
    }
    match &observed.run_state {
        None => Action::Attach(binding.clone()),
        Some(RunState::NeverStarted) => without_record(observed, binding, not_started(observed, binding, now), now),
        Some(RunState::Rejected(why)) => {
            let message = format!("run rejected by the agent: {why}");
            without_record(observed, binding, RunOutcome::failed(update_reason::UPDATE_FAILED, &message), now)
        }
        Some(RunState::PreconditionFailed(why)) => {
            let message = format!("failed to start the run: {why}");
            without_record(observed, binding, RunOutcome::failed(update_reason::RUN_REFUSED, &message), now)
        }
        // A new task attaches to the run, but does not start it.
        Some(RunState::Connecting | RunState::Held(_) | RunState::Unreachable(_))
            if observed.task_may_start && !may_start(observed, now) =>
        {
            Action::Attach(binding.clone())
        }
        Some(RunState::Held(why)) => Action::Hold(why.clone()),
        Some(RunState::Unreachable(_) | RunState::Connecting) if has_moved(observed) => Action::Attach(binding.clone()),
        Some(RunState::Running | RunState::Unreachable(_)) if cancels => Action::Cancel,
        Some(RunState::Unreachable(why)) => {
            let known = known.map(|known| format!("; {known}")).unwrap_or_default();
            Action::Await(format!("agent is unreachable: {why}{known}"))
        }
        Some(RunState::Connecting | RunState::Running | RunState::Ended(_)) => first_report::delay_of_run(update, now)
            .map_or_else(|| Action::Await(open_run_message(observed, binding)), Action::AwaitShortRun),
    }
}

/// Returns the outcome of a run that the attached task was not allowed to start.
fn not_started(observed: &Observed, binding: &RunBinding, now: Timestamp) -> RunOutcome {
    let (update, timeouts) = (&observed.update, observed.timeouts);
    if is_end_requested(observed) {
        return RunOutcome::failed(update_reason::CANCELED, "the run was canceled before it started");
    }
    if let Some(timeout) = deadline::start_expired(update, timeouts, now) {
        let message = format!("failed to start the run within its timeout of {timeout}");
        return RunOutcome::failed(update_reason::RUN_REFUSED, &message);
    }
    if let PlanFile::Unavailable(why) = &observed.plan {
        return RunOutcome::failed(update_reason::PLAN_VIOLATED, why);
    }
    if let Some(why) = &observed.forbidden {
        return RunOutcome::failed(update_reason::SPEC_INVALID, why);
    }
    let request = |workspace| request::run(update, workspace, binding, Vec::new(), timeouts);
    let why = match observed.workspace.as_ref().map(request) {
        None => format!("Workspace {} not found", update.spec.workspace_name),
        Some(Err(error)) => error.to_string(),
        Some(Ok(_)) => "a requirement was not met when the controller attached to the run".to_owned(),
    };
    RunOutcome::failed(update_reason::RUN_REFUSED, &format!("failed to start the run: {why}"))
}

/// Returns the message about an open run. The deletion of a namespace deletes the pod and the Update of the run, and
/// then waits until the agent has ended the run. The message about such a run names the pod. For other runs whose agent
/// reports the progress, `observe` does not read the pod.
fn open_run_message(observed: &Observed, binding: &RunBinding) -> String {
    let is_terminating = |pod: &&Pod| is_in_bound_pod(observed, binding) && pod.metadata.deletion_timestamp.is_some();
    match observed.pod.as_ref().filter(is_terminating) {
        Some(pod) => format!("pod {} is terminating; waiting for the agent to end the run", pod.name_any()),
        None if has_process(observed) => "run in progress".to_owned(),
        None => status::STARTING.to_owned(),
    }
}

/// Returns whether the attached task or the status contains the process ID of the Pulumi CLI. Until then, the status
/// keeps the message of the recorded binding, so the controller does not write the status.
fn has_process(observed: &Observed) -> bool {
    progress(observed).is_some_and(|progress| progress.pid.is_some())
}

/// Returns the last progress that the agent has reported to the attached task or to an earlier task.
fn progress(observed: &Observed) -> Option<&RunProgress> {
    let written = || observed.update.status.as_ref().and_then(|status| status.progress.as_ref());
    observed.progress.as_ref().or_else(written)
}

/// Returns whether the pod has a new IP address, for example because its sandbox was recreated.
fn has_moved(observed: &Observed) -> bool {
    let ip = observed.pod.as_ref().and_then(|pod| pod.status.as_ref()?.pod_ip.as_deref()?.parse::<IpAddr>().ok());
    ip.is_some() && observed.agent_ip.is_some() && ip != observed.agent_ip
}

fn waiting(observed: &Observed) -> Action {
    let update = &observed.update;
    let name = &update.spec.workspace_name;
    if let Err(error) = request::check(update) {
        return Action::Record(Box::new(RunOutcome::failed(update_reason::SPEC_INVALID, &error.to_string())));
    }
    if let PlanFile::Unavailable(why) = &observed.plan {
        return Action::Record(Box::new(RunOutcome::failed(update_reason::PLAN_VIOLATED, why)));
    }
    if let Some(preceding) = &observed.preceding_update {
        return Action::Wait(update_reason::QUEUED, format!("waiting for Update {preceding} of the same Workspace"));
    }
    if let Some(why) = &observed.forbidden {
        return Action::Record(Box::new(RunOutcome::failed(update_reason::SPEC_INVALID, why)));
    }
    match &observed.restriction {
        Some(Restriction::Waiting(held)) => return Action::Wait(held.reason, held.message.clone()),
        Some(Restriction::Invalid(message)) => return Action::Wait(update_reason::OUTSIDE_SCHEDULE, message.clone()),
        None => {}
    }
    let Some(workspace) = &observed.workspace else {
        return Action::Wait(update_reason::WORKSPACE_NOT_FOUND, format!("Workspace {name} not found"));
    };
    if let Some(refusal) = source_mismatch(workspace, update) {
        return Action::Record(Box::new(RunOutcome::failed(update_reason::SPEC_INVALID, &refusal)));
    }
    if let Some(why) = policy_packs_mismatch(workspace, update) {
        return Action::Record(Box::new(RunOutcome::failed(update_reason::RUN_REFUSED, &why)));
    }
    if let Some(why) = not_ready(workspace, observed) {
        return Action::Wait(update_reason::WORKSPACE_NOT_READY, format!("Workspace {name} {why}"));
    }
    match observed.pod.as_ref().and_then(|pod| request::binding(update, workspace, pod, observed.timeouts)) {
        Some(_) if request::exceeds_protocol_version(update, workspace) => {
            let why = "has an agent that does not support all options of this run; waiting for a new pod";
            Action::Wait(update_reason::WORKSPACE_NOT_READY, format!("Workspace {name} {why}"))
        }
        Some(binding) => with_references(observed, binding),
        None => Action::Wait(update_reason::WORKSPACE_NOT_READY, format!("agent of Workspace {name} is not ready")),
    }
}

/// Returns `Action::RecordBinding` if all referenced Secrets and ConfigMaps exist.
fn with_references(observed: &Observed, binding: RunBinding) -> Action {
    let Some(checked) = &observed.references else {
        return Action::AwaitReferences("waiting for the check of the referenced Secrets and ConfigMaps".to_owned());
    };
    let namespace = observed.update.namespace().unwrap_or_default();
    match checked.missing_message(&namespace) {
        Some(message) => Action::AwaitReferences(message),
        None => {
            let empty_references = checked.empty.iter().cloned().collect();
            Action::RecordBinding(RunBinding { empty_references, ..binding })
        }
    }
}

#[cfg(test)]
mod tests;

//! Performs the actions of an Update reconciliation, including all its writes.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;

use crate::api::auto::{ArtifactReference, RunBinding, Update, UpdateStatus};
use crate::api::conditions::{self, update_reason};
use crate::api::names;
use crate::controller::first_report;
use crate::controller::references::{Waiter, request_mounts};
use crate::controller::stack::stack_of;
use crate::controller::update::attach_target::address;
use crate::controller::update::attachments::{RunState, Target};
use crate::controller::update::context::Context;
use crate::controller::update::decide::{Action, may_start};
use crate::controller::update::events::{end_event, with_revision};
use crate::controller::update::history::{self, Stored as StoredHistory};
use crate::controller::update::interruptions::Disruption;
use crate::controller::update::observe::{Observed, binding, is_held_by_stack, is_of_stack};
use crate::controller::update::outcome::RunOutcome;
use crate::controller::update::plans::PlanFile;
use crate::controller::update::queue::run_in;
use crate::controller::update::request::interrupted_runs;
use crate::controller::update::result_files::{self, Files};
use crate::controller::update::run_slot::{self, Slot, Waiting};
use crate::controller::update::{pod_mark, request, stack_tags, status};
use crate::rpc::proto;
use crate::runtime::events::{Event, EventKind};
use crate::runtime::failpoint;
use crate::runtime::reconcile::ReconcileError;
use crate::runtime::run_limiter::Run;
use crate::runtime::writes::WriteError;

/// Requeue interval of an Update that neither a watch nor the attached task requeues earlier.
const WATCHED_REQUEUE_INTERVAL: Duration = Duration::from_secs(30);
/// Requeue interval of a queued run that waits for the preceding run to complete. The events about the preceding Update
/// requeue the run earlier. A user can create thousands of Updates for a Workspace, so the interval is long.
const QUEUED_REQUEUE_INTERVAL: Duration = Duration::from_secs(120);
/// Requeue interval while the agent reports the progress of the run. The attached task requeues the Update earlier
/// after each change.
const REPORTED_REQUEUE_INTERVAL: Duration = Duration::from_secs(120);
/// Requeue interval of a run whose outcome is unknown.
const UNKNOWN_OUTCOME_REQUEUE_INTERVAL: Duration = Duration::from_secs(30);
/// Requeue interval of a run that the agent interrupts, because its pod is being deleted.
const INTERRUPTION_REQUEUE_INTERVAL: Duration = Duration::from_secs(5);
/// Reason of the event about a run that the controller interrupts, because its node is being removed.
const NODE_DISRUPTED: &str = "NodeDisrupted";
/// Requeue interval after a cancellation request to the agent has failed.
const CANCEL_REQUEUE_INTERVAL: Duration = Duration::from_secs(5);
/// Grace period in seconds for deleting a pod after the deadline of its run. The period is short, because the run
/// already had time for a graceful cancellation.
const DELETION_GRACE_SECONDS: u32 = 60;
/// Requeue interval after the API server has rejected the mark of the pod, or has forbidden creating the Secret with the
/// outputs or the plan. No watch event reports when the API server allows the request again.
const REJECTED_REQUEUE_INTERVAL: Duration = Duration::from_secs(30);
/// Requeue interval while a task stores a completed run in the history. The task requeues the Update earlier when it
/// has stored the run.
const HISTORY_REQUEUE_INTERVAL: Duration = Duration::from_secs(10);

/// Next step of the reconciliation after an action.
#[derive(Debug)]
pub enum Next {
    /// Perform another step immediately with the current Update.
    Again(Box<Update>),
    /// End the reconciliation. Requeue the Update when it changes, or after the given time.
    Done(Option<Duration>),
}

pub async fn act(
    observed: &Observed,
    action: Action,
    context: &Context,
    now: Timestamp,
) -> Result<Next, ReconcileError> {
    let update = &observed.update;
    match action {
        Action::AddFinalizer => {
            context.writer.add_finalizer(update, names::UPDATE_FINALIZER).await?;
            let namespace = update.namespace().unwrap_or_default();
            let live = context.reader.get_opt::<Update>(&namespace, &update.name_any()).await?;
            Ok(live.map_or(Next::Done(None), |update| Next::Again(Box::new(update))))
        }
        Action::Wait(reason, message) => {
            // The run cannot start, so it must not keep a slot that it acquired for an earlier pod.
            context.forget(update);
            context.writer.status(update, &status::waiting(update, reason, &message, now)).await?;
            let queued = reason == update_reason::QUEUED;
            Ok(Next::Done(Some(if queued { QUEUED_REQUEUE_INTERVAL } else { WATCHED_REQUEUE_INTERVAL })))
        }
        Action::AwaitReferences(message) => await_references(observed, &message, context, now).await,
        Action::RecordBinding(binding) => record_binding(observed, &binding, context, now).await,
        Action::Attach(binding) => attach(observed, &binding, context, now).await,
        Action::Await(message) => {
            let status = status::running(update, observed.progress.as_ref(), &message, now);
            context.writer.status(update, &status).await?;
            let is_reporting = observed.run_state == Some(RunState::Running);
            Ok(Next::Done(Some(if is_reporting { REPORTED_REQUEUE_INTERVAL } else { WATCHED_REQUEUE_INTERVAL })))
        }
        Action::AwaitShortRun(left) => Ok(Next::Done(Some(left.unsigned_abs()))),
        Action::Hold(why) => {
            let status = status::waiting(update, update_reason::INTERACTIVE_SESSION, &why, now);
            context.writer.status(update, &status).await?;
            Ok(Next::Done(Some(WATCHED_REQUEUE_INTERVAL)))
        }
        Action::OutcomeUnknown(cause) => report_unknown_outcome(observed, &cause, context, now).await,
        Action::Cancel => cancel(observed, context, now).await,
        Action::DeletePod(why) => delete_pod(observed, &why, context, now).await,
        Action::LeaveNode(disruption) => leave_node(observed, &disruption, context, now).await,
        Action::EndWithPod(seconds) => end_with_pod(observed, seconds, context, now).await,
        Action::Record(outcome) => store_and_record(observed, *outcome, context, now).await,
        Action::Release => release(observed, context).await,
        Action::Abandon => {
            context.forget(update);
            context.writer.remove_finalizers(update, &[names::STACK_FINALIZER]).await?;
            Ok(Next::Done(None))
        }
        Action::Keep(wait) => {
            context.forget(update);
            Ok(Next::Done(Some(wait.unsigned_abs())))
        }
        Action::Expire => expire(update, context).await,
        Action::Nothing => {
            context.forget(update);
            Ok(Next::Done(None))
        }
    }
}

/// Reports the missing objects, and requeues the Update when the objects exist. Also makes the kubelet update the
/// mounted volumes, so that the mount directory of a deleted object is empty until the object exists again.
async fn await_references(
    observed: &Observed,
    message: &str,
    context: &Context,
    now: Timestamp,
) -> Result<Next, ReconcileError> {
    let update = &observed.update;
    context.forget(update);
    if !request::waits_for_references(update)
        && let Some(pod) = &observed.pod
    {
        request_mounts(pod, &context.writer, now).await?;
    }
    warn_of_wait(update, update_reason::REFERENCE_NOT_FOUND, message, context, now).await?;
    let missing = observed.references.as_ref().map(|checked| checked.missing.as_slice()).unwrap_or_default();
    let waiter = Waiter::Update(ObjectRef::from_obj(update));
    context.references.register(&update.namespace().unwrap_or_default(), missing, &waiter);
    Ok(Next::Done(Some(WATCHED_REQUEUE_INTERVAL)))
}

/// Reports why the run waits. Publishes a Warning event if the status changes, and returns whether it changes.
async fn warn_of_wait(
    update: &Update,
    reason: &str,
    message: &str,
    context: &Context,
    now: Timestamp,
) -> Result<bool, ReconcileError> {
    let is_new = context.writer.status(update, &status::waiting(update, reason, message, now)).await?.is_some();
    if is_new {
        let event = Event::new(update, EventKind::Warning, reason, message);
        context.events.publish(with_revision(update, event));
    }
    Ok(is_new)
}

async fn expire(update: &Update, context: &Context) -> Result<Next, ReconcileError> {
    context.forget(update);
    context.writer.delete_if_unchanged(update).await?;
    let kept = update.spec.ttl_after_completed.as_deref().unwrap_or_default();
    let message = format!("deleted Update {} after its TTL of {kept}", update.name_any());
    context.events.publish(with_revision(update, Event::new(update, EventKind::Normal, "UpdateExpired", message)));
    Ok(Next::Done(None))
}

/// Marks the pod, and then records the run binding in the status. The run must not start before both writes have
/// succeeded.
///
/// No deadline applies to a run without a binding, so the slot becomes free if a write fails. A tenant can make each
/// attempt fail, for example with a pod whose annotations have the maximum size.
async fn record_binding(
    observed: &Observed,
    binding: &RunBinding,
    context: &Context,
    now: Timestamp,
) -> Result<Next, ReconcileError> {
    let update = &observed.update;
    let uid = update.uid().unwrap_or_default();
    let Some(pod) = &observed.pod else { return Ok(Next::Done(Some(WATCHED_REQUEUE_INTERVAL))) };
    let Slot { permit, group, warnings } = match run_slot::acquire(observed, pod, context) {
        Ok(slot) => slot,
        Err(waiting) => return report_slot_wait(update, waiting, context, now).await,
    };
    // The binding contains the concurrency group. A restarted controller then counts the open run in the same group,
    // even if the annotation of the namespace has changed.
    let binding = &RunBinding { concurrency_group: group, ..binding.clone() };
    let workspace = observed.workspace.as_ref();
    let is_pinned = workspace.and_then(|workspace| workspace.spec.eviction_protection);
    let is_pinned = is_pinned.unwrap_or(context.eviction_protection);
    if let Err(error) = pod_mark::mark(pod, update, is_pinned, &context.writer).await {
        drop(permit);
        return mark_failed(update, pod, is_pinned, error, context, now).await;
    }
    failpoint::hit("update-pod-marked");
    context.hold_slot(update, permit, now);
    let written = context.writer.status(update, &status::bound(update, binding, now)).await.inspect_err(|error| {
        // If the binding may be recorded, the next reconciliation reads the Update and frees or keeps the slot.
        if !error.may_be_applied() {
            context.attachments.detach(&uid);
        }
    })?;
    let next = Next::Again(Box::new(written.unwrap_or_else(|| update.clone())));
    let waited = update.creation_timestamp().map(|created| now.duration_since(created.0)).unwrap_or_default();
    let waited = Duration::try_from(waited).unwrap_or_default();
    let kind = update.spec.kind.as_str();
    context.metrics.runs().started(kind, waited);
    let (stack, revision, node) = (stack_name(update), revision(binding.artifact.as_ref()), &binding.node_name);
    tracing::info!(stack, revision, "type" = kind, node, waited_seconds = waited.as_secs(), "run started");
    run_slot::report(update, &warnings, context);
    failpoint::hit("update-bound");
    Ok(next)
}

/// Reports that the run waits for a slot. For a Stack's run, only the status of the Stack contains this report
/// ([`RunQueue`](crate::controller::update::RunQueue)). Otherwise, each queued run would require another API write.
async fn report_slot_wait(
    update: &Update,
    Waiting { message, requeue_interval, warnings }: Waiting,
    context: &Context,
    now: Timestamp,
) -> Result<Next, ReconcileError> {
    if is_of_stack(update) && warnings.is_empty() && !status::has_report(update) {
        return Ok(Next::Done(Some(requeue_interval)));
    }
    if let Some(left) = first_report::delay_of_slot_wait(update, now) {
        return Ok(Next::Done(Some(left.unsigned_abs())));
    }
    if context.writer.status(update, &status::waiting(update, update_reason::QUEUED, &message, now)).await?.is_some() {
        run_slot::report(update, &warnings, context);
    }
    Ok(Next::Done(Some(requeue_interval)))
}

/// Reports that the API server rejected the mark of the pod. Any other error is probably temporary, so the
/// reconciliation is retried without a report.
async fn mark_failed(
    update: &Update,
    pod: &Pod,
    is_pinned: bool,
    error: WriteError,
    context: &Context,
    now: Timestamp,
) -> Result<Next, ReconcileError> {
    let Some(message) = pod_mark::rejection(pod, is_pinned, &error) else { return Err(error.into()) };
    if warn_of_wait(update, update_reason::POD_PATCH_REJECTED, &message, context, now).await? {
        tracing::warn!(error = &error as &dyn std::error::Error, "the API server rejected the mark of the pod");
    }
    Ok(Next::Done(Some(REJECTED_REQUEUE_INTERVAL)))
}

/// Attaches a task to the bound run. The task starts the run only if the agent has no record of the run.
async fn attach(
    observed: &Observed,
    binding: &RunBinding,
    context: &Context,
    now: Timestamp,
) -> Result<Next, ReconcileError> {
    let update = &observed.update;
    let (Some(pod), Some(address)) = (&observed.pod, address(observed)) else {
        return Ok(Next::Done(Some(WATCHED_REQUEUE_INTERVAL)));
    };
    let siblings = context.siblings(update);
    let share = context.share_of(&update.namespace().unwrap_or_default()).await;
    let permit = context.run_limiter.adopt(&Run { share, ..run_in(pod, update, &siblings) });
    context.hold_slot(update, permit, now);
    let interrupted = interrupted_runs(update, &siblings);
    // If a user has deleted the Workspace, or has changed it to an invalid spec, the task attaches without starting the
    // run.
    let workspace = observed.workspace.as_ref();
    let request = workspace.and_then(|w| request::run(update, w, binding, interrupted, context.timeouts).ok());
    let may_start = request.is_some() && may_start(observed, now);
    let attach_only = || proto::RunRequest { id: update.uid().unwrap_or_default(), ..proto::RunRequest::default() };
    let request = request.unwrap_or_else(attach_only);
    let plan = match &observed.plan {
        PlanFile::Found(plan) => plan.clone(),
        PlanFile::NotNeeded | PlanFile::Unavailable(_) => Vec::new(),
    };
    let stack_tags = stack_tags::of(update, &context.cluster_name);
    let request = context.traces.add_to(update, proto::RunRequest { stack_tags, plan, ..request });
    context.attachments.attach(Target { update: ObjectRef::from_obj(update), address, request, may_start });
    Ok(Next::Done(Some(WATCHED_REQUEUE_INTERVAL)))
}

async fn cancel(observed: &Observed, context: &Context, now: Timestamp) -> Result<Next, ReconcileError> {
    let update = &observed.update;
    let uid = update.uid().unwrap_or_default();
    let is_requested = update.annotations().contains_key(names::ANNOTATION_CANCEL_REQUESTED);
    if !is_requested && let Some(address) = address(observed) {
        if let Err(error) = context.attachments.cancel(&address, &uid).await {
            let message = format!("failed to cancel the run: {error}");
            let status = status::canceling(update, observed.progress.as_ref(), &message, now);
            context.writer.status(update, &status).await?;
            return Ok(Next::Done(Some(CANCEL_REQUEUE_INTERVAL)));
        }
        let mark = [(names::ANNOTATION_CANCEL_REQUESTED.to_owned(), Some(now.to_string()))].into();
        context.writer.annotate(update, &mark).await?;
    }
    let status = status::canceling(update, observed.progress.as_ref(), "canceling the run", now);
    context.writer.status(update, &status).await?;
    Ok(Next::Done(Some(WATCHED_REQUEUE_INTERVAL)))
}

/// Deletes the pod of a run that the agent has not ended. The termination of the container then proves that the run has
/// ended. The status names the reason before the pod is deleted, but a tenant can make each status write fail, so a
/// failed write does not prevent the deletion.
async fn delete_pod(observed: &Observed, why: &str, context: &Context, now: Timestamp) -> Result<Next, ReconcileError> {
    let update = &observed.update;
    let Some(pod) = &observed.pod else { return Ok(Next::Done(Some(WATCHED_REQUEUE_INTERVAL))) };
    let message = format!("{why}; deleting pod {}", pod.name_any());
    let status = status::canceling(update, observed.progress.as_ref(), &message, now);
    let written = context.writer.status(update, &status).await;
    let left = pod.metadata.deletion_grace_period_seconds;
    if pod.metadata.deletion_timestamp.is_none() || left.is_none_or(|left| left > i64::from(DELETION_GRACE_SECONDS)) {
        let event = Event::new(update, EventKind::Warning, update_reason::TIMEOUT_EXCEEDED, message);
        context.events.publish(with_revision(update, event));
        let namespace = pod.namespace().unwrap_or_default();
        let (name, uid) = (pod.name_any(), pod.uid().unwrap_or_default());
        context.writer.delete_within::<Pod>(&namespace, &name, &uid, DELETION_GRACE_SECONDS).await?;
    }
    written?;
    Ok(Next::Done(Some(WATCHED_REQUEUE_INTERVAL)))
}

/// Deletes the pod of a run whose node is being removed. The agent then interrupts the run and saves the state, and the
/// next pod starts on another node. The deletion ignores the PodDisruptionBudget of the Workspace. A tenant can make each
/// status write fail, so a failed write does not prevent the deletion.
async fn leave_node(
    observed: &Observed,
    disruption: &Disruption,
    context: &Context,
    now: Timestamp,
) -> Result<Next, ReconcileError> {
    let update = &observed.update;
    let Some(pod) = &observed.pod else { return Ok(Next::Done(Some(WATCHED_REQUEUE_INTERVAL))) };
    let message = format!("{}; deleting pod {} to interrupt the run", disruption.cause, pod.name_any());
    let status = status::running(update, observed.progress.as_ref(), &message, now);
    let written = context.writer.status(update, &status).await;
    context.events.publish(with_revision(update, Event::new(update, EventKind::Warning, NODE_DISRUPTED, message)));
    let (namespace, name, uid) = (pod.namespace().unwrap_or_default(), pod.name_any(), pod.uid().unwrap_or_default());
    match disruption.seconds {
        Some(seconds) => context.writer.delete_within::<Pod>(&namespace, &name, &uid, seconds).await?,
        None => context.writer.delete::<Pod>(&namespace, &name, Some(&uid)).await?,
    }
    written?;
    Ok(Next::Done(Some(INTERRUPTION_REQUEUE_INTERVAL)))
}

/// Tells the agent how much time is left until the kubelet kills its container. A repeated call has no effect, because
/// the agent keeps the earliest time of the forced cancellation.
async fn end_with_pod(
    observed: &Observed,
    seconds: u32,
    context: &Context,
    now: Timestamp,
) -> Result<Next, ReconcileError> {
    let update = &observed.update;
    let message = "the pod is being deleted, and the agent interrupts the run";
    let status = status::running(update, observed.progress.as_ref(), message, now);
    let written = context.writer.status(update, &status).await;
    if let Some(address) = address(observed) {
        let sent = context.attachments.end_with_pod(&address, &update.uid().unwrap_or_default(), seconds).await;
        if let Err(error) = sent {
            tracing::warn!(error = &error as &dyn std::error::Error, "failed to pass the grace period to the agent");
        }
    }
    written?;
    Ok(Next::Done(Some(INTERRUPTION_REQUEUE_INTERVAL)))
}

/// Reports a run whose outcome is unknown, and keeps the run open. Releases the slot if the deadline of the run has
/// passed. A restarted controller attaches no task to such a run, so no task reports that the agent is unreachable.
/// Stops the attached task and releases the slot if the pod no longer exists.
async fn report_unknown_outcome(
    observed: &Observed,
    cause: &str,
    context: &Context,
    now: Timestamp,
) -> Result<Next, ReconcileError> {
    let update = &observed.update;
    let is_new = |status: &UpdateStatus| {
        let progressing = conditions::find(&status.conditions, conditions::PROGRESSING);
        progressing.is_none_or(|progressing| progressing.reason != update_reason::RUN_OUTCOME_UNKNOWN)
    };
    let is_new = update.status.as_ref().is_none_or(is_new);
    context.writer.status(update, &status::outcome_unknown(update, observed.progress.as_ref(), cause, now)).await?;
    if is_new {
        let event = Event::new(update, EventKind::Warning, update_reason::RUN_OUTCOME_UNKNOWN, cause);
        context.events.publish(with_revision(update, event));
    }
    // The task contains the process ID, so it stops only after the write.
    let bound_to = binding(update).map(|binding| binding.pod_uid.as_str());
    if observed.pod.as_ref().and_then(|pod| pod.metadata.uid.as_deref()) != bound_to {
        context.attachments.detach(&update.uid().unwrap_or_default());
    }
    context.attachments.release_expired_slot(&update.uid().unwrap_or_default(), now);
    Ok(Next::Done(Some(UNKNOWN_OUTCOME_REQUEUE_INTERVAL)))
}

/// Stores the outputs and the plan in Secrets and the run in the history, and then records the result. The controller
/// writes the Secrets first: a preview fails if the controller cannot store its plan, and the history must contain this
/// result.
async fn store_and_record(
    observed: &Observed,
    outcome: RunOutcome,
    context: &Context,
    now: Timestamp,
) -> Result<Next, ReconcileError> {
    let (update, workspace) = (&observed.update, observed.workspace.as_ref());
    let uid = update.uid().unwrap_or_default();
    if context.history.as_ref().is_some_and(|history| history.is_storing(&uid)) {
        return Ok(Next::Done(Some(HISTORY_REQUEUE_INTERVAL)));
    }
    failpoint::hit("update-result-seen");
    let outcome = match result_files::store(update, observed.pod.as_ref(), outcome, context, now).await? {
        Files::Stored(outcome) => *outcome,
        Files::NotYet(message) => {
            let status = status::running(update, observed.progress.as_ref(), &message, now);
            context.writer.status(update, &status).await?;
            return Ok(Next::Done(Some(REJECTED_REQUEUE_INTERVAL)));
        }
    };
    failpoint::hit("update-outputs-written");
    // Only the agent of a completed run returns the transcript.
    let agent = address(observed).filter(|_| matches!(observed.run_state, Some(RunState::Ended(_))));
    let stored = context.history.as_ref().map(|history| history.store(update, workspace, &outcome, agent));
    let history = match stored {
        None | Some(StoredHistory::Never) => None,
        Some(StoredHistory::NotYet) => return Ok(Next::Done(Some(HISTORY_REQUEUE_INTERVAL))),
        Some(StoredHistory::Done(history)) => Some(history),
    };
    let outcome = outcome.with_history(history);
    record(observed, &outcome, context, now).await
}

/// Records the result in the Update status, and reports the completed run.
async fn record(
    observed: &Observed,
    outcome: &RunOutcome,
    context: &Context,
    now: Timestamp,
) -> Result<Next, ReconcileError> {
    let (update, progress) = (&observed.update, observed.progress.as_ref());
    let mut status = status::recorded(update, outcome, progress, now);
    let written = match context.writer.status(update, &status).await {
        // Without this fallback, the run would stay open forever if the API server rejected its result.
        Err(error) if error.is_content_rejected() => {
            tracing::warn!(error = &error as &dyn std::error::Error, "recording a rejected result without details");
            status = status::recorded_without_details(update, outcome, progress, &error.to_string(), now);
            context.writer.status(update, &status).await?
        }
        written => written?,
    };
    // The run has ended. If the next step fails, its retries must not delay other runs.
    context.attachments.release_slot(&update.uid().unwrap_or_default());
    let next = Next::Again(Box::new(written.unwrap_or_else(|| update.clone())));
    report_end(update, &status, outcome.failure.unwrap_or("Succeeded"), context);
    history::report(update, outcome, &context.events);
    let steps = context.attachments.steps(&update.uid().unwrap_or_default());
    context.traces.record(update, &status, steps.as_deref());
    end_event(update, outcome).into_iter().for_each(|event| context.events.publish(with_revision(update, event)));
    failpoint::hit("update-recorded");
    Ok(next)
}

/// Reports the completed run in the metrics and in the log after the result has been written.
fn report_end(update: &Update, status: &UpdateStatus, outcome: &'static str, context: &Context) {
    let (started, ended) = (status.start_time.as_ref(), status.end_time.as_ref());
    let lasted = started.zip(ended).map(|(started, ended)| ended.0.duration_since(started.0)).unwrap_or_default();
    let kind = update.spec.kind.as_str();
    // A run that never started has no duration.
    if status.run.is_some() {
        context.metrics.runs().ended(kind, outcome, Duration::try_from(lasted).unwrap_or_default());
    }
    let (stack, revision) = (stack_name(update), revision(update.artifact()));
    let duration = status.duration.as_deref().unwrap_or_default();
    tracing::info!(stack, revision, "type" = kind, outcome, duration, "run finished");
}

/// Returns the name of the Stack that owns an Update, or the name of the Workspace if a user created the Update.
fn stack_name(update: &Update) -> String {
    stack_of(update).unwrap_or_else(|| update.spec.workspace_name.clone())
}

fn revision(artifact: Option<&ArtifactReference>) -> &str {
    artifact.map(|artifact| artifact.revision.as_str()).unwrap_or_default()
}

/// Acknowledges the result to the agent, which can then delete its journal. Afterwards, removes the metadata of the run
/// from the pod. Also removes the finalizer of the Update, unless the Stack controller removes it.
async fn release(observed: &Observed, context: &Context) -> Result<Next, ReconcileError> {
    let update = &observed.update;
    // After a crash, the next process releases an Update only while the pod is marked or the finalizer is present.
    context.traces.release(update);
    // The slot is free even if the pod cannot be unmarked, for example because a user changes the pod continuously. The
    // reconciliation retries the write as long as the pod is marked.
    context.forget(update);
    if let Some(pod) = observed.pod.as_ref().filter(|pod| pod_mark::is_of(pod, update)) {
        if let Some(address) = address(observed) {
            context.attachments.acknowledge(address, update.uid().unwrap_or_default());
        }
        failpoint::hit("update-acknowledged");
        pod_mark::unmark(pod, &context.writer).await?;
    }
    failpoint::hit("update-pod-unmarked");
    if !is_held_by_stack(update) {
        context.writer.remove_finalizers(update, &[names::UPDATE_FINALIZER]).await?;
        return Ok(Next::Done(None));
    }
    // The Stack of an Update that is being deleted may no longer exist.
    let is_deleted = update.metadata.deletion_timestamp.is_some();
    Ok(if is_deleted { Next::Again(Box::new(update.clone())) } else { Next::Done(None) })
}

#[cfg(test)]
mod tests;

//! Performs the actions of a Stack reconciliation. Within the Stack controller, only this module and its helpers write
//! to the API server.

use std::time::Duration;

use jiff::Timestamp;
use kube::ResourceExt;

use crate::api::auto::{Update, Workspace};
use crate::api::conditions::stack_reason;
use crate::api::names;
use crate::api::pulumi::{CurrentUpdate, Stack, StackStatus};
use crate::controller::first_report::{delay_after_apply, with_due_time};
use crate::controller::stack::action::{Action, Settled};
use crate::controller::stack::context::Context;
use crate::controller::stack::duplicate_stacks::Obstacle;
use crate::controller::stack::observed::Observed;
use crate::controller::stack::run_events::{self, with_last_revision};
use crate::controller::stack::status::{self, State};
use crate::controller::stack::step::{
    FIRST_START_CHECK, Next, REJECTED_RETRY, WATCHED_RETRY, next_step, requeue, suspended, write, write_rejected,
};
use crate::controller::stack::waiting::stall;
use crate::controller::stack::{
    build_update, deletion, drift, expiry, fetch, old_updates, output_objects, ownership, pko_migration, waiting,
    write_outputs,
};
use crate::controller::update::TraceContext;
use crate::runtime::events::{Event, EventKind};
use crate::runtime::failpoint;
use crate::runtime::reconcile::ReconcileError;
use crate::runtime::run_limiter::SlotWait;
use crate::runtime::writes::{Created, WriteError};

/// Requeue interval while the Workspace is being deleted. A watch event normally requeues the Stack earlier.
const DELETION_RETRY: Duration = Duration::from_secs(10);

pub async fn act(
    observed: &Observed,
    action: Action,
    context: &Context,
    now: Timestamp,
) -> Result<Next, ReconcileError> {
    let stack = &observed.stack;
    match action {
        Action::TakeOver => take_over(stack, context).await,
        Action::AdoptBaseline(status) => next_step(stack, &status, context).await,
        Action::ReplaceWorkspace(desired) => replace_workspace(observed, &desired, context, now).await,
        Action::WaitForDependents(message, wait) => {
            requeue(stack, &State::Working(message), Some(wait.unsigned_abs()), context, now).await
        }
        Action::AddFinalizer => add_finalizer(stack, context).await,
        Action::DiscardUpdate(message) => discard_update(observed, message, context, now).await,
        Action::ForgetUpdate => next_step(stack, &status::without_current_update(stack, false), context).await,
        Action::RecordLostRun(current) => record_lost_run(observed, &current, context, now).await,
        Action::CreateUpdate(current) => Box::pin(create_recorded_update(observed, &current, context, now)).await,
        Action::RevokeUpdate(message) => revoke_update(observed, message, context, now).await,
        Action::AwaitUpdate(message) => requeue(stack, &State::Working(message), None, context, now).await,
        Action::DelayReport(left) => Ok(Next::Rest(Some(left.unsigned_abs()))),
        Action::ReportUnknownOutcome(message) => {
            requeue(stack, &State::OutcomeUnknown(stack_reason::RUN_OUTCOME_UNKNOWN, message), None, context, now).await
        }
        Action::ForwardResolution(resolution) => forward_resolution(observed, resolution, context).await,
        Action::CancelUpdate(value) => cancel_update(observed, value, context).await,
        Action::CancelDriftCheck => cancel_drift_check(observed, context, now).await,
        Action::RejectCancel(value, message) => reject_cancel(stack, value, message, context).await,
        Action::RecordResult => record_result(observed, context, now).await,
        Action::Invalid(message) => stall(stack, waiting::INVALID, message, context, now).await,
        Action::Denied(denied) => waiting::deny(stack, &denied, context, now).await,
        Action::WaitForSource(message, retry) => {
            requeue(stack, &State::SourceUnavailable(message), retry, context, now).await
        }
        Action::SourceStalled(message) => requeue(stack, &State::SourceStalled(message), None, context, now).await,
        Action::Conflict(message) => stall(stack, waiting::CONFLICT, message, context, now).await,
        Action::AwaitSource(message) => fetch::await_source(stack, message, context, now).await,
        Action::Fetch(resolved) => fetch::fetch(observed, &resolved, context, now).await,
        Action::FetchPolicyPack(pack) => fetch::fetch_policy_pack(observed, &pack, context, now).await,
        Action::ApplyWorkspace(desired, message) => apply_workspace(observed, &desired, message, context, now).await,
        Action::WaitForWorkspace(message) => wait_for_workspace(observed, message, context, now).await,
        Action::WakeWorkspace(message) => waiting::wake_workspace(observed, message, context, now).await,
        Action::WorkspaceFailed(message) => stall(stack, waiting::WORKSPACE_FAILED, message, context, now).await,
        Action::VersionTooLow(message) => requeue(stack, &State::VersionTooLow(message), None, context, now).await,
        Action::Start(current) => Box::pin(start(observed, &current, context, now)).await,
        Action::WaitForDependencies(message, stale) => {
            waiting::wait_for_dependencies(stack, message, &stale, context, now).await
        }
        // The expression can read the status of the Stack, so a status write would require another evaluation.
        Action::AwaitExpression => Ok(Next::Rest(Some(context.requeue_dependency))),
        Action::AwaitApproval(message) => waiting::await_approval(observed, message, context, now).await,
        Action::ReportRejection(message) => waiting::report_rejection(observed, message, context, now).await,
        Action::AwaitPermission(held) => waiting::await_permission(observed, held, context, now).await,
        Action::AwaitConfirmation(message) => stall(stack, waiting::DESTROY_UNCONFIRMED, message, context, now).await,
        Action::AnnounceExpiry(message) => waiting::announce_expiry(stack, &message, context, now).await,
        Action::Expire(message) => expire(stack, &message, context, now).await,
        Action::RecordBaseline(first) => next_step(stack, &status::with_first_inputs(stack, &first), context).await,
        Action::ReclaimWorkspace => reclaim_workspace(observed, context, now).await,
        Action::Settled(settled) => settle(observed, settled, context, now).await,
        Action::RemoveFinalizer => remove_finalizer(observed, context, now).await,
    }
}

/// Records the current values of the Flux annotations, and then renames the field managers of the Pulumi Kubernetes
/// Operator. The rename is the last step, because the controller repeats the migration until no field manager has an
/// old name.
async fn take_over(stack: &Stack, context: &Context) -> Result<Next, ReconcileError> {
    let written = write(stack, &pko_migration::adopted(stack), context).await?;
    let stack = written.unwrap_or_else(|| stack.clone());
    let taken = context.writer.take_over(&stack).await?;
    tracing::info!("took over the Stack from the Pulumi Kubernetes Operator");
    Ok(Next::Again(Box::new(taken.unwrap_or(stack))))
}

async fn add_finalizer(stack: &Stack, context: &Context) -> Result<Next, ReconcileError> {
    context.writer.add_finalizer(stack, names::STACK_FINALIZER).await?;
    let namespace = stack.namespace().unwrap_or_default();
    let live = context.reader.get_opt::<Stack>(&namespace, &stack.name_any()).await?;
    Ok(live.map_or(Next::Rest(None), |stack| Next::Again(Box::new(stack))))
}

/// Records the run in the status of the Stack, and then creates the Update. If the process crashes between these two
/// writes, the next reconciliation creates the same Update.
async fn start(
    observed: &Observed,
    current: &CurrentUpdate,
    context: &Context,
    now: Timestamp,
) -> Result<Next, ReconcileError> {
    let stack = &observed.stack;
    let applied_by_others = match context.duplicates.begin(stack, current) {
        Ok(applied) => applied,
        Err(Obstacle::FirstRun(other)) => {
            let message = format!("waiting for the first run of Stack {other}, which can use the same Pulumi stack");
            return requeue(stack, &State::Working(message), None, context, now).await;
        }
        Err(Obstacle::TooMany) => {
            let message = format!(
                "too many other Stacks have applied a stack {} that can be the same; set spec.backend, set another \
                 spec.stack, or move this Stack to another namespace",
                stack.spec.stack
            );
            return stall(stack, waiting::CONFLICT, message, context, now).await;
        }
    };
    let current = CurrentUpdate { applied_by_others, ..current.clone() };
    let recorded = record_run(observed, &current, context, now).await;
    let (current, wait, written) = recorded.inspect_err(|_| context.duplicates.abandon(stack))?;
    let current = &current;
    let update = recorded_update(&written, observed, current, context, now)?;
    let (kind, revision) = (current.kind.as_str(), current.commit.as_deref().unwrap_or_default());
    tracing::info!(update = current.name, "type" = kind, revision, cause = current.message, "run requested");
    let begun = run_events::begun(stack, current);
    let orphaned = run_events::orphan_event(stack, current);
    begun.into_iter().chain(orphaned).for_each(|event| context.events.publish(event));
    for (reason, warning) in fetch::warnings(observed) {
        let event = Event::new(stack, EventKind::Warning, reason, warning);
        let origin = current.origin_revision.as_deref();
        context.events.publish(run_events::with_revisions(event, current.commit.as_deref(), origin));
    }
    failpoint::hit("stack-run-recorded");
    let next = create_update(&written, &update, (current, wait.as_ref()), context, now).await?;
    old_updates::release_and_delete_if_many(next, observed, context).await
}

/// Records the run in the status of the Stack. Returns the recorded run, the reason why it will wait for a slot, and the
/// written Stack.
async fn record_run(
    observed: &Observed,
    current: &CurrentUpdate,
    context: &Context,
    now: Timestamp,
) -> Result<(CurrentUpdate, Option<SlotWait>, Stack), ReconcileError> {
    let stack = &observed.stack;
    let current =
        build_update::with_spec_digest(stack, current).map_err(|error| ReconcileError::stalled(error.to_string()))?;
    let record = |wait: Option<&SlotWait>| {
        with_due_time(stack, observed.workspace.as_ref(), status::started(stack, &current, wait, now), now)
    };
    let wait = forecast_wait(observed, &current, record(None), context)?;
    let recorded = record(wait.as_ref());
    match write(stack, &recorded, context).await? {
        Some(written) => Ok((current, wait, written)),
        None => Err(ReconcileError::stalled("failed to record the run: the status did not change")),
    }
}

/// Returns the reason why a run will wait for a slot. `recorded` is the status that records the run.
fn forecast_wait(
    observed: &Observed,
    current: &CurrentUpdate,
    recorded: StackStatus,
    context: &Context,
) -> Result<Option<SlotWait>, ReconcileError> {
    let stack = Stack { status: Some(recorded), ..observed.stack.clone() };
    let update = build_update::update(&stack, current).map_err(|error| ReconcileError::stalled(error.to_string()))?;
    Ok(context.run_queue.forecast(&update, &observed.updates, &observed.run_settings.run_share))
}

/// Records the expiry of the Stack, and then deletes the Stack.
async fn expire(stack: &Stack, message: &str, context: &Context, now: Timestamp) -> Result<Next, ReconcileError> {
    let recorded = write(stack, &expiry::expired(stack, message, now), context).await?;
    if recorded.is_some() {
        let event = Event::new(stack, EventKind::Normal, "StackExpired", message);
        context.events.publish(with_last_revision(stack, event));
    }
    failpoint::hit("stack-expired");
    context.writer.delete_if_unchanged(recorded.as_ref().unwrap_or(stack)).await?;
    Ok(Next::Rest(Some(WATCHED_RETRY)))
}

/// Removes the recorded run from the status, because another client has created or changed its Update. The controller
/// then records the run again, under a different name.
async fn discard_update(
    observed: &Observed,
    message: String,
    context: &Context,
    now: Timestamp,
) -> Result<Next, ReconcileError> {
    let stack = &observed.stack;
    let Some(update) = &observed.update else { return Ok(Next::Rest(None)) };
    let next = next_step(stack, &status::without_discarded_run(stack, update, now), context).await?;
    let event = Event::new(stack, EventKind::Warning, "UpdateDiscarded", message);
    context.events.publish(with_last_revision(stack, event));
    Ok(next)
}

/// Deletes the Update unless its run has started. First annotates the Update, because the controller treats the
/// deletion of an Update without this annotation as a cancellation by a user.
async fn revoke_update(
    observed: &Observed,
    message: String,
    context: &Context,
    now: Timestamp,
) -> Result<Next, ReconcileError> {
    if let Some(update) = observed.update.as_ref().filter(|u| u.metadata.deletion_timestamp.is_none()) {
        if !update.annotations().contains_key(names::ANNOTATION_REVOKED) {
            let mark = [(names::ANNOTATION_REVOKED.to_owned(), Some(message))].into();
            context.writer.annotate(update, &mark).await?;
            return Ok(Next::Again(Box::new(observed.stack.clone())));
        }
        context.writer.delete_if_unchanged(update).await?;
    }
    requeue(&observed.stack, &State::Working(message), None, context, now).await
}

/// Copies the user's decision to the Update, because only the Update controller can end a run.
async fn forward_resolution(
    observed: &Observed,
    resolution: String,
    context: &Context,
) -> Result<Next, ReconcileError> {
    if let Some(update) = &observed.update {
        let mark = [(names::ANNOTATION_RESOLVE.to_owned(), Some(resolution))].into();
        context.writer.annotate(update, &mark).await?;
    }
    Ok(Next::Rest(Some(WATCHED_RETRY)))
}

/// Cancels the run, and then records the value of `pulumi.com/cancel` as handled. If the process crashes between these
/// two writes, the next reconciliation annotates the Update again, which has no effect.
async fn cancel_update(observed: &Observed, value: String, context: &Context) -> Result<Next, ReconcileError> {
    if let Some(update) = &observed.update {
        let mark = [(names::ANNOTATION_CANCEL.to_owned(), Some(value.clone()))].into();
        context.writer.annotate(update, &mark).await?;
    }
    next_step(&observed.stack, &status::with_handled_cancel(&observed.stack, value), context).await
}

/// Reports that the annotation `pulumi.com/cancel` cancels no run, and records its value as handled.
async fn reject_cancel(
    stack: &Stack,
    value: String,
    message: String,
    context: &Context,
) -> Result<Next, ReconcileError> {
    let event = Event::new(stack, EventKind::Warning, "NothingToCancel", message);
    context.events.publish(with_last_revision(stack, event));
    next_step(stack, &status::with_handled_cancel(stack, value), context).await
}

/// Cancels the drift check, because another run is due. That run starts after the drift check has ended.
async fn cancel_drift_check(observed: &Observed, context: &Context, now: Timestamp) -> Result<Next, ReconcileError> {
    if let Some(update) = observed.update.as_ref().filter(|u| !u.annotations().contains_key(names::ANNOTATION_CANCEL)) {
        let mark = [(names::ANNOTATION_CANCEL.to_owned(), Some(drift::SUPERSEDED.to_owned()))].into();
        context.writer.annotate(update, &mark).await?;
    }
    let message = "canceling the drift check, because another run is due".to_owned();
    requeue(&observed.stack, &State::Working(message), None, context, now).await
}

/// Returns the recorded run's Update, and adds the Update's trace ID to the log lines. `stack` contains the recorded
/// run, and can be newer than the Stack in `observed`.
fn recorded_update(
    stack: &Stack,
    observed: &Observed,
    current: &CurrentUpdate,
    context: &Context,
    now: Timestamp,
) -> Result<Update, ReconcileError> {
    let update = build_update::update(stack, current).map_err(|error| ReconcileError::stalled(error.to_string()))?;
    let update = context.arrivals.add_to_update(stack, observed.workspace.as_ref(), current, update, now);
    if let Some(trace) = TraceContext::of_stack(&update).filter(|_| context.arrivals.is_enabled()) {
        tracing::Span::current().record("trace_id", tracing::field::display(trace.trace()));
    }
    Ok(update)
}

async fn create_recorded_update(
    observed: &Observed,
    current: &CurrentUpdate,
    context: &Context,
    now: Timestamp,
) -> Result<Next, ReconcileError> {
    let stack = &observed.stack;
    if let Some(status) = status::of_possible_run(stack, current, now) {
        let stack = Stack { status: Some(status), ..stack.clone() };
        let current = stack.status.as_ref().and_then(|status| status.current_update.as_deref()).unwrap_or(current);
        let current = build_update::with_spec_digest(&stack, current);
        let current = current.map_err(|error| ReconcileError::stalled(error.to_string()))?;
        return next_step(&observed.stack, &status::with_current_update(&stack, current), context).await;
    }
    let update = recorded_update(stack, observed, current, context, now)?;
    create_update(stack, &update, (current, None), context, now).await
}

/// Records the result of a run whose Update no longer exists.
async fn record_lost_run(
    observed: &Observed,
    current: &CurrentUpdate,
    context: &Context,
    now: Timestamp,
) -> Result<Next, ReconcileError> {
    let update = status::lost_update(&observed.stack, current, now);
    let update = update.map_err(|error| ReconcileError::stalled(error.to_string()))?;
    let observed = Observed { update: Some(update), ..observed.clone() };
    Box::pin(record_result(&observed, context, now)).await
}

/// Creates the Update of a recorded run. `wait` is the reason for a wait that the record contains.
async fn create_update(
    stack: &Stack,
    update: &Update,
    (current, wait): (&CurrentUpdate, Option<&SlotWait>),
    context: &Context,
    now: Timestamp,
) -> Result<Next, ReconcileError> {
    let created = match context.writer.create(update).await {
        Ok(created) => created,
        Err(error) => {
            let rejected = CurrentUpdate { rejected: Some(true), ..current.clone() };
            let status = status::with_current_update(stack, rejected);
            return write_rejected(stack, status, error, context, now).await;
        }
    };
    failpoint::hit("stack-update-created");
    if let (Created::New(created), Some(wait)) = (&created, wait) {
        context.run_queue.record_displayed(created, wait);
    }
    match created {
        Created::New(created) => match build_update::with_created(current, &created) {
            None => Ok(Next::Rest(Some(if wait.is_some() { WATCHED_RETRY } else { FIRST_START_CHECK }))),
            Some(admitted) => next_step(stack, &status::with_current_update(stack, admitted), context).await,
        },
        // A previous reconciliation or another client has already created the Update.
        Created::Existing(_) => Ok(Next::Again(Box::new(stack.clone()))),
    }
}

async fn record_result(observed: &Observed, context: &Context, now: Timestamp) -> Result<Next, ReconcileError> {
    let stack = &observed.stack;
    let Some(update) = &observed.update else { return Ok(Next::Rest(None)) };
    let status = status::with_result(stack, update, observed.outputs.as_ref(), now);
    let status = write_outputs::write(observed, update, status, context, now).await?;
    let recorded = stack.status.as_ref().and_then(|status| status.current_update.as_deref());
    if status.last_update == stack.status.as_ref().and_then(|s| s.last_update.clone()) {
        let next = next_step(stack, &status, context).await?;
        // If the controller published the event before the write, each retry of a failed write would publish the event
        // again.
        if recorded.is_some_and(drift::is_check) {
            run_events::checked(stack, &status).into_iter().for_each(|event| context.events.publish(event));
        }
        return Ok(next);
    }
    let result = update.status.as_ref();
    let planned = result.and_then(|result| result.plan.as_ref());
    let violations = result.and_then(|result| result.policy_violations.as_ref());
    let events = run_events::recorded(stack, &status, planned, violations);
    // The controller emits this event before it writes the status. If the process crashed between the write and a later
    // event, no reconciliation would emit the event. If the write fails, the retry emits the event again.
    output_objects::event(stack, &status).into_iter().for_each(|event| context.events.publish(event));
    failpoint::hit("stack-result-seen");
    let next = next_step(stack, &status, context).await?;
    if let Some(latency) = status::of_new_artifact(stack, &status, now) {
        context.metrics.runs().recorded(latency.kind, latency.has_succeeded, latency.time);
    }
    events.into_iter().for_each(|event| context.events.publish(event));
    if update.status.as_ref().is_some_and(|status| status.outputs_unavailable == Some(true)) {
        let why = status.last_update.as_ref().and_then(|last| last.message.as_deref());
        let why = why.unwrap_or("the outputs of the run are not available");
        let event = Event::new(stack, EventKind::Warning, "StackOutputRetrievalFailure", why);
        context.events.publish(with_last_revision(stack, event));
    }
    failpoint::hit("stack-result-absorbed");
    Ok(next)
}

async fn apply_workspace(
    observed: &Observed,
    desired: &Workspace,
    message: String,
    context: &Context,
    now: Timestamp,
) -> Result<Next, ReconcileError> {
    let stack = &observed.stack;
    match put_workspace(observed, desired, context, now).await {
        Ok(applied) => {
            failpoint::hit("stack-workspace-applied");
            match delay_after_apply(stack, observed.workspace.as_ref(), &applied, now) {
                Some(left) => Ok(Next::Rest(Some(left.unsigned_abs()))),
                None => requeue(stack, &State::Working(message), None, context, now).await,
            }
        }
        Err(error) => workspace_rejected(stack, error, context, now).await,
    }
}

/// Reports that the Stack waits for its Workspace.
async fn wait_for_workspace(
    observed: &Observed,
    message: String,
    context: &Context,
    now: Timestamp,
) -> Result<Next, ReconcileError> {
    let stack = &observed.stack;
    let status = status::with_state(stack, &State::Working(message), now);
    write(stack, &with_due_time(stack, observed.workspace.as_ref(), status, now), context).await?;
    Ok(Next::Rest(Some(WATCHED_RETRY)))
}

/// Replaces the Workspace. Writes no status, because the state of the Stack does not change.
async fn replace_workspace(
    observed: &Observed,
    desired: &Workspace,
    context: &Context,
    now: Timestamp,
) -> Result<Next, ReconcileError> {
    match put_workspace(observed, desired, context, now).await {
        Ok(_) => Ok(Next::Again(Box::new(observed.stack.clone()))),
        Err(error) => workspace_rejected(&observed.stack, error, context, now).await,
    }
}

/// Applies the Workspace, and returns it. First takes over the ownership of the fields that the Pulumi Kubernetes
/// Operator applied. The apply then removes the fields that the Stack does not set.
async fn put_workspace(
    observed: &Observed,
    desired: &Workspace,
    context: &Context,
    now: Timestamp,
) -> Result<Workspace, WriteError> {
    let live = observed.workspace.as_ref();
    if let Some(workspace) = live {
        context.writer.take_over(workspace).await?;
    }
    let with_times = context.arrivals.workspace_with_times(&observed.stack, live, desired, now);
    let applied = context.writer.apply::<Workspace>(with_times.as_ref().unwrap_or(desired)).await?;
    context.mutated_workspaces.record(desired, &applied);
    Ok(applied)
}

async fn workspace_rejected(
    stack: &Stack,
    error: WriteError,
    context: &Context,
    now: Timestamp,
) -> Result<Next, ReconcileError> {
    if error.is_invalid() && !error.is_denied_by_admission() {
        let message = match stack.spec.workspace_template {
            Some(_) => format!("invalid spec or spec.workspaceTemplate: {error}"),
            None => format!("invalid spec: {error}"),
        };
        return requeue(stack, &State::Invalid(message), Some(REJECTED_RETRY), context, now).await;
    }
    write_rejected(stack, stack.status.clone().unwrap_or_default(), error, context, now).await
}

/// Deletes the Workspace after the status reports success.
async fn reclaim_workspace(observed: &Observed, context: &Context, now: Timestamp) -> Result<Next, ReconcileError> {
    let stack = &observed.stack;
    let next = requeue(stack, &State::Done, Some(WATCHED_RETRY), context, now).await?;
    if let Some(workspace) = &observed.workspace {
        context.writer.delete_if_unchanged(workspace).await?;
        let message =
            format!("deleted Workspace {} after the run: spec.workspaceReclaimPolicy is Delete", workspace.name_any());
        let event = Event::new(stack, EventKind::Normal, "WorkspaceDeleted", message);
        context.events.publish(with_last_revision(stack, event));
    }
    Ok(next)
}

async fn settle(
    observed: &Observed,
    settled: Settled,
    context: &Context,
    now: Timestamp,
) -> Result<Next, ReconcileError> {
    if let (Settled::Done(_), Some(Ok(resolved))) = (&settled, &observed.source)
        && let Some(status) = status::with_new_revision(&observed.stack, &resolved.revision)
    {
        return next_step(&observed.stack, &status, context).await;
    }
    let (state, known) = match settled {
        Settled::Done(again) => (State::Done, again.map(|wait| wait.unsigned_abs())),
        Settled::Suspended => (suspended(observed), None),
        Settled::DeletionSuspended => (State::DeletionSuspended, None),
        Settled::FailedPermanently => (State::FailedPermanently, None),
        Settled::DecisionRequired(reason) => (State::DecisionRequired(reason), None),
        Settled::Abandoned => (State::Abandoned, None),
        Settled::Canceled => (State::Canceled, None),
        Settled::RetryAfter(wait) => (State::Failed, Some(wait.unsigned_abs())),
    };
    let next = requeue(&observed.stack, &state, known, context, now).await?;
    old_updates::release_and_delete(next, observed, context).await
}

/// Waits until the Workspace and the Updates of the Stack no longer exist. Reports the cause if the deletion takes
/// longer than usual. `retry` is the requeue interval before this report.
async fn await_deletion(
    observed: &Observed,
    retry: Duration,
    context: &Context,
    now: Timestamp,
) -> Result<Next, ReconcileError> {
    match deletion::delayed_by(observed, now) {
        Some(message) => requeue(&observed.stack, &State::Working(message), Some(DELETION_RETRY), context, now).await,
        None => Ok(Next::Rest(Some(retry))),
    }
}

/// Deletes the Updates and the Workspace of the Stack, and then removes the finalizer of the Stack.
async fn remove_finalizer(observed: &Observed, context: &Context, now: Timestamp) -> Result<Next, ReconcileError> {
    let stack = &observed.stack;
    for update in &observed.updates {
        if update.finalizers().iter().any(|f| f == names::STACK_FINALIZER) {
            context.writer.remove_finalizers(update.as_ref(), &[names::STACK_FINALIZER]).await?;
        }
        if update.metadata.deletion_timestamp.is_none() {
            old_updates::delete(update, context).await?;
        }
    }
    if let Some(workspace) = observed.workspace.as_ref().filter(|workspace| ownership::owns(stack, workspace)) {
        if workspace.metadata.deletion_timestamp.is_none() {
            let namespace = workspace.namespace().unwrap_or_default();
            let uid = workspace.uid();
            context.writer.delete::<Workspace>(&namespace, &workspace.name_any(), uid.as_deref()).await?;
        }
        return await_deletion(observed, DELETION_RETRY, context, now).await;
    }
    if !observed.updates.is_empty() {
        return await_deletion(observed, Duration::from_secs(1), context, now).await;
    }
    failpoint::hit("stack-let-go");
    if stack.finalizers().iter().any(|f| f == names::STACK_FINALIZER) {
        run_events::left_behind(stack).into_iter().for_each(|event| context.events.publish(event));
        context.writer.remove_finalizers(stack, &[names::STACK_FINALIZER]).await?;
    }
    Ok(Next::Rest(None))
}

#[cfg(test)]
mod tests;

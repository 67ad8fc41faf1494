//! The only writes of a Stack's reconcile.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::ObjectMeta;
use kube::{Resource, ResourceExt};

use crate::api::auto::{Update, UpdateKind, UpdateSpec, Workspace};
use crate::api::conditions::stack_reason;
use crate::api::names;
use crate::api::pulumi::{CurrentUpdate, Stack, StackStatus};
use crate::artifact::FetchError;
use crate::controller::stack::decide::{Action, Settled, artifact_of};
use crate::controller::stack::observe::Observed;
use crate::controller::stack::status::{self, State};
use crate::controller::stack::{Context, plan};
use crate::controller::update::dead_run;
use crate::runtime::drive::ReconcileError;
use crate::runtime::events::{Event, EventKind};
use crate::runtime::failpoint;
use crate::runtime::writes::WriteError;
use crate::source::Resolved;
use crate::telemetry::metrics::FetchResult;

/// How soon a source that is not there is looked at again, if no watch says so before.
const SOURCE_RETRY: Duration = Duration::from_secs(30);
/// How soon something is looked at again that a watch normally announces.
const WATCHED_RETRY: Duration = Duration::from_secs(60);
/// How soon something is tried again that the API server has forbidden; nothing tells when it would allow it.
const REFUSED_RETRY: Duration = Duration::from_secs(30);
/// How many Updates of a Stack are kept.
const KEPT_UPDATES: usize = 5;

/// What comes after a step.
#[derive(Debug)]
pub enum Next {
    /// Another pass at once, with the Stack as it is now.
    Again(Box<Stack>),
    /// Nothing to do until something changes, or this time has passed.
    Rest(Option<Duration>),
}

/// Does one step.
pub async fn act(
    observed: &Observed,
    action: Action,
    context: &Context,
    now: Timestamp,
) -> Result<Next, ReconcileError> {
    let stack = &observed.stack;
    match action {
        Action::AddFinalizer => {
            context.writer.add_finalizer(stack, names::STACK_FINALIZER).await?;
            let namespace = stack.namespace().unwrap_or_default();
            let live = context.reader.get_opt::<Stack>(&namespace, &stack.name_any()).await?;
            Ok(live.map_or(Next::Rest(None), |stack| Next::Again(Box::new(stack))))
        }
        Action::ForgetUpdate => again(stack, &status::forgotten(stack), context).await,
        Action::CreateUpdate(current) => create_update(stack, &current, context, now).await,
        Action::RevokeUpdate(message) => revoke_update(observed, message, context, now).await,
        Action::AwaitUpdate(message) => rest(stack, &State::Working(message), Some(WATCHED_RETRY), context, now).await,
        Action::Doubt(doubt) => {
            rest(stack, &State::InDoubt(stack_reason::RUN_OUTCOME_UNKNOWN, doubt), Some(WATCHED_RETRY), context, now)
                .await
        }
        Action::Answer(answer) => hand_on(observed, answer, context).await,
        Action::Absorb => absorb(observed, context, now).await,
        Action::Invalid(message) => {
            context.events.publish(Event::new(stack, EventKind::Warning, "StackConfigInvalid", message.as_str()));
            rest(stack, &State::Invalid(message), None, context, now).await
        }
        Action::WaitForSource(message) => {
            rest(stack, &State::SourceUnavailable(message), Some(SOURCE_RETRY), context, now).await
        }
        Action::Fetch(resolved) => fetch(stack, &resolved, context, now).await,
        Action::ApplyWorkspace(wanted, message) => apply_workspace(stack, &wanted, message, context, now).await,
        Action::WaitForWorkspace(message) => {
            rest(stack, &State::Working(message), Some(WATCHED_RETRY), context, now).await
        }
        Action::WorkspaceFailed(message) => {
            rest(stack, &State::WorkspaceFailed(message), Some(WATCHED_RETRY), context, now).await
        }
        Action::Start(current) => start(observed, &current, context, now).await,
        Action::Settled(settled) => settle(observed, settled, context, now).await,
        Action::LetGo => let_go(observed, context).await,
    }
}

/// Writes a status and goes on with what the API has then.
async fn again(stack: &Stack, status: &StackStatus, context: &Context) -> Result<Next, ReconcileError> {
    let written = context.writer.status(stack, status).await?;
    Ok(Next::Again(Box::new(written.unwrap_or_else(|| stack.clone()))))
}

/// Writes how the Stack stands and rests.
async fn rest(
    stack: &Stack,
    state: &State,
    after: Option<Duration>,
    context: &Context,
    now: Timestamp,
) -> Result<Next, ReconcileError> {
    context.writer.status(stack, &status::with_state(stack, state, now)).await?;
    Ok(Next::Rest(after))
}

/// The run is announced in the status before its Update is made: whoever comes next makes the same one.
async fn start(
    observed: &Observed,
    current: &CurrentUpdate,
    context: &Context,
    now: Timestamp,
) -> Result<Next, ReconcileError> {
    let stack = &observed.stack;
    let Some(written) = context.writer.status(stack, &status::started(stack, current, now)).await? else {
        return Err(ReconcileError::stalled("the announcement of a run changed nothing in the status"));
    };
    let event = Event::new(stack, EventKind::Normal, "StackUpdateDetected", current.message.as_str());
    context.events.publish(with_revision(event, current.commit.as_deref()));
    failpoint::hit("stack-announced");
    create_update(&written, current, context, now).await
}

/// The Update goes only if it still has not started. Its end is absorbed like that of any other.
async fn revoke_update(
    observed: &Observed,
    message: String,
    context: &Context,
    now: Timestamp,
) -> Result<Next, ReconcileError> {
    if let Some(update) = observed.update.as_ref().filter(|u| u.metadata.deletion_timestamp.is_none()) {
        context.writer.delete_as_seen(update).await?;
    }
    rest(&observed.stack, &State::Working(message), Some(WATCHED_RETRY), context, now).await
}

/// A person's answer to the open run goes to its Update: only that one's controller ends it.
async fn hand_on(observed: &Observed, answer: String, context: &Context) -> Result<Next, ReconcileError> {
    if let Some(update) = &observed.update {
        let mark = [(names::ANNOTATION_RESOLVE.to_owned(), Some(answer))].into();
        context.writer.annotate(update, &mark).await?;
    }
    Ok(Next::Rest(Some(WATCHED_RETRY)))
}

async fn create_update(
    stack: &Stack,
    current: &CurrentUpdate,
    context: &Context,
    now: Timestamp,
) -> Result<Next, ReconcileError> {
    let update = update_object(stack, current);
    if let Err(error) = context.writer.create(&update).await {
        return refused(stack, error, context, now).await;
    }
    failpoint::hit("stack-update-created");
    Ok(Next::Rest(Some(WATCHED_RETRY)))
}

/// The Update of an announced run. Its two finalizers are there from the first moment: it cannot go away before its run
/// has ended and its result is in the Stack's status.
fn update_object(stack: &Stack, current: &CurrentUpdate) -> Update {
    let owner = OwnerReference {
        api_version: Stack::api_version(&()).into_owned(),
        kind: Stack::kind(&()).into_owned(),
        name: stack.name_any(),
        uid: stack.uid().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    };
    let spec = UpdateSpec {
        workspace_name: stack.name_any(),
        stack_name: stack.spec.stack.clone(),
        kind: current.kind,
        artifact: artifact_of(current),
        message: Some(current.message.clone()),
        refresh: stack.spec.refresh.filter(|_| current.kind == UpdateKind::Up),
        timeout: stack.spec.timeout.clone(),
        idle_timeout: stack.spec.idle_timeout.clone(),
        lock_recovery: stack.spec.lock_recovery,
        pending_creates: current.pending_creates,
    };
    let metadata = ObjectMeta {
        name: Some(current.name.clone()),
        namespace: stack.namespace(),
        labels: Some(plan::labels(stack)),
        owner_references: Some(vec![owner]),
        finalizers: Some(vec![names::UPDATE_FINALIZER.to_owned(), names::STACK_FINALIZER.to_owned()]),
        ..ObjectMeta::default()
    };
    Update { metadata, spec, status: None }
}

async fn absorb(observed: &Observed, context: &Context, now: Timestamp) -> Result<Next, ReconcileError> {
    let stack = &observed.stack;
    let Some(update) = &observed.update else { return Ok(Next::Rest(None)) };
    let status = status::absorbed(stack, update, observed.outputs.as_ref(), now);
    if status.last_update == stack.status.as_ref().and_then(|s| s.last_update.clone()) {
        return again(stack, &status, context).await;
    }
    let last = status.last_update.as_ref();
    let event = match last.filter(|l| l.state.as_deref() != Some("succeeded")) {
        None => Event::new(stack, EventKind::Normal, "StackCreated", "Successfully updated stack"),
        Some(failed) => {
            let cause = failed.message.as_deref().unwrap_or("unknown");
            let message = format!("Failed to update stack: {cause}");
            Event::new(stack, EventKind::Warning, "StackUpdateFailure", message)
        }
    };
    let event = with_revision(event, last.and_then(|l| l.last_attempted_commit.as_deref()));
    failpoint::hit("stack-result-seen");
    let next = again(stack, &status, context).await?;
    context.events.publish(event);
    failpoint::hit("stack-result-absorbed");
    Ok(next)
}

/// Fetches into the store. A source that changes in the meantime is read again before the next try.
async fn fetch(stack: &Stack, resolved: &Resolved, context: &Context, now: Timestamp) -> Result<Next, ReconcileError> {
    let what = format!("fetching revision {}", resolved.revision);
    match context.fetcher.fetch(&resolved.url, &resolved.digest).await {
        Ok(fetched) => {
            let result = if fetched.downloaded { FetchResult::Fetched } else { FetchResult::Cached };
            context.metrics.artifact_fetch(result);
            failpoint::hit("stack-artifact-stored");
            context.artifact_arrived(&stack.namespace().unwrap_or_default(), &stack.name_any());
            Ok(Next::Again(Box::new(stack.clone())))
        }
        Err(error) => {
            context.metrics.artifact_fetch(FetchResult::Failed);
            let message = format!("{what} failed: {error}");
            let event = Event::new(stack, EventKind::Warning, stack_reason::SOURCE_UNAVAILABLE, message.as_str());
            context.events.publish(event);
            let next = rest(stack, &State::SourceUnavailable(message), Some(retry_after(&error)), context, now).await?;
            // Tried again later each time: all of it is downloaded, and it will hardly be another the next time.
            if error.is_about_content() { Err(ReconcileError::transient(error)) } else { Ok(next) }
        }
    }
}

/// A server that asks for patience gets it; the fetcher bounds what it may ask for.
fn retry_after(error: &FetchError) -> Duration {
    error.retry_after().map_or(SOURCE_RETRY, |wait| wait.max(Duration::from_secs(1)))
}

async fn apply_workspace(
    stack: &Stack,
    wanted: &Workspace,
    message: String,
    context: &Context,
    now: Timestamp,
) -> Result<Next, ReconcileError> {
    match context.writer.apply::<Workspace>(wanted).await {
        Ok(_) => {
            failpoint::hit("stack-workspace-applied");
            rest(stack, &State::Working(message), Some(WATCHED_RETRY), context, now).await
        }
        Err(error) if error.is_invalid() => {
            let message = format!("the Workspace made of spec.workspaceTemplate is refused: {error}");
            rest(stack, &State::Invalid(message), None, context, now).await
        }
        Err(error) => refused(stack, error, context, now).await,
    }
}

/// What a run needs could not be made. That the API server forbids it (a quota, a policy, a missing right) is said, and tried
/// again: it is not the Stack that is wrong.
async fn refused(stack: &Stack, error: WriteError, context: &Context, now: Timestamp) -> Result<Next, ReconcileError> {
    if !error.is_forbidden() {
        return Err(error.into());
    }
    tracing::warn!(error = &error as &dyn std::error::Error, "the API server forbids what a run needs");
    let state = match error.is_namespace_terminating() {
        true => State::NamespaceTerminating(format!(
            "{error}. No run can start in a namespace that is being terminated. Destroy what the stack has made with the \
             Pulumi CLI, if it shall go, and remove the finalizer {} from the Stack",
            names::STACK_FINALIZER
        )),
        false => State::WorkspaceFailed(error.to_string()),
    };
    rest(stack, &state, Some(REFUSED_RETRY), context, now).await
}

async fn settle(
    observed: &Observed,
    settled: Settled,
    context: &Context,
    now: Timestamp,
) -> Result<Next, ReconcileError> {
    let (state, after) = match settled {
        Settled::Done => (State::Done, None),
        Settled::Suspended => (State::Suspended, None),
        Settled::DeletionSuspended => (State::DeletionSuspended, None),
        Settled::GivenUp => (State::GivenUp, None),
        Settled::OutcomeUnknown => (State::Unanswered(stack_reason::RUN_OUTCOME_UNKNOWN), None),
        Settled::PendingCreates => (State::Unanswered(stack_reason::PENDING_CREATES), None),
        Settled::Abandoned => (State::Abandoned, None),
        Settled::RetryAfter(wait) => (State::Failed, Some(wait.unsigned_abs())),
    };
    let next = rest(&observed.stack, &state, after, context, now).await?;
    tidy_updates(observed, context, KEPT_UPDATES).await?;
    Ok(next)
}

/// Lets go of Updates whose result is in the status, and removes all but the newest.
async fn tidy_updates(observed: &Observed, context: &Context, kept: usize) -> Result<(), ReconcileError> {
    let mut complete: Vec<_> = observed.updates.iter().filter(|u| u.is_complete()).collect();
    complete.sort_by_key(|u| std::cmp::Reverse((u.creation_timestamp(), u.name_any())));
    for update in &complete {
        match context.writer.remove_finalizer(update.as_ref(), names::STACK_FINALIZER).await {
            // Its own controller lets go of it at this moment; that wakes this Stack again.
            Err(error) if error.is_invalid() || error.is_conflict() => {}
            other => other?,
        }
    }
    let older = complete.into_iter().skip(kept).filter(|u| u.metadata.deletion_timestamp.is_none());
    for update in older.filter(|u| !may_hold_a_lock(&observed.stack, u)) {
        delete_update(update, context).await?;
    }
    Ok(())
}

/// Whether a lock may be left that is known by this Update alone: until a run has succeeded.
fn may_hold_a_lock(stack: &Stack, update: &Update) -> bool {
    let last = stack.status.as_ref().and_then(|status| status.last_update.as_ref());
    last.is_some_and(|last| last.pending_creates.is_some()) && dead_run(update).is_some()
}

async fn delete_update(update: &Update, context: &Context) -> Result<(), ReconcileError> {
    let namespace = update.namespace().unwrap_or_default();
    context.writer.delete::<Update>(&namespace, &update.name_any(), update.uid().as_deref()).await?;
    Ok(())
}

/// Everything of ours goes away: Updates, Workspace, then the finalizer.
async fn let_go(observed: &Observed, context: &Context) -> Result<Next, ReconcileError> {
    let stack = &observed.stack;
    for update in &observed.updates {
        if update.finalizers().iter().any(|f| f == names::STACK_FINALIZER) {
            context.writer.remove_finalizer(update.as_ref(), names::STACK_FINALIZER).await?;
        }
        if update.metadata.deletion_timestamp.is_none() {
            delete_update(update, context).await?;
        }
    }
    if let Some(workspace) = &observed.workspace {
        if workspace.metadata.deletion_timestamp.is_none() {
            let namespace = workspace.namespace().unwrap_or_default();
            let uid = workspace.uid();
            context.writer.delete::<Workspace>(&namespace, &workspace.name_any(), uid.as_deref()).await?;
        }
        return Ok(Next::Rest(Some(Duration::from_secs(10))));
    }
    if !observed.updates.is_empty() {
        return Ok(Next::Rest(Some(Duration::from_secs(1))));
    }
    failpoint::hit("stack-let-go");
    if stack.finalizers().iter().any(|f| f == names::STACK_FINALIZER) {
        context.writer.remove_finalizer(stack, names::STACK_FINALIZER).await?;
    }
    Ok(Next::Rest(None))
}

/// Flux names the revision in an annotation of the event, under the object's own group.
fn with_revision(event: Event, revision: Option<&str>) -> Event {
    match revision {
        Some(revision) => event.with("pulumi.com/revision", revision),
        None => event,
    }
}

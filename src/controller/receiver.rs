//! StackReceiver controller: derives the webhook path from the token, if the type has a token, and publishes either the
//! path or the reason why no path is available.
//!
//! The module [`crate::receiver`] serves the webhooks in each replica.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;
use kube::runtime::reflector::store::Writer as StoreWriter;

use crate::api::conditions::{self, ConditionUpdate, READY, RECONCILING, STALLED, Status, receiver_reason};
use crate::api::duration;
use crate::api::names::ANNOTATION_REQUESTED_AT;
use crate::api::pulumi::{NoToken, ReceiverType, StackReceiver, StackReceiverStatus};
use crate::runtime::controller::Start;
use crate::runtime::events::{Event, EventKind, Events};
use crate::runtime::reads::{ReadError, Reader};
use crate::runtime::reconcile::{Outcome, ReconcileError};
use crate::runtime::work_queue::Urgency;
use crate::runtime::writes::Writer;

/// Dependencies of a StackReceiver reconciliation.
#[derive(Clone)]
pub struct Context {
    pub reader: Reader,
    pub writer: Writer,
    pub events: Events,
    /// Whether this controller serves webhooks.
    pub is_served: bool,
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context").finish_non_exhaustive()
    }
}

/// Runs the controller until it is stopped.
pub async fn controller(start: Start<StoreWriter<StackReceiver>>, context: Arc<Context>) {
    start.run(strip_unused_fields, |_| (), |_| Urgency::Normal, Vec::new(), reconcile, context).await;
}

/// Removes the fields that the cache does not need. Each reconciliation reads its StackReceiver from the API server.
fn strip_unused_fields(receiver: &mut StackReceiver) {
    receiver.spec.resources.clear();
    receiver.status = None;
}

async fn reconcile(receiver: Arc<StackReceiver>, context: Arc<Context>) -> Result<Outcome, ReconcileError> {
    let namespace = receiver.namespace().unwrap_or_default();
    let live = context.reader.get_opt::<StackReceiver>(&namespace, &receiver.name_any()).await?;
    let Some(live) = live.filter(|live| live.metadata.deletion_timestamp.is_none()) else {
        return Ok(Outcome::Settled);
    };
    let path = observe(&live, &context).await?;
    let action = decide(&live, context.is_served, path);
    let status = status_after(&live, &action, Timestamp::now());
    if context.writer.status(&live, &status).await?.is_some() {
        publish_event(&live, &status, &context.events);
    }
    Ok(match action {
        Action::Leave | Action::NotServed => Outcome::Settled,
        Action::Await { requeue, .. } | Action::Publish { requeue, .. } => Outcome::After(requeue),
    })
}

/// Reads the token and returns the path. If the API server denies the request, returns the error message as the reason
/// for the status.
async fn observe(receiver: &StackReceiver, context: &Context) -> Result<Result<String, NoToken>, ReconcileError> {
    if receiver.spec.kind == ReceiverType::GenericOidc {
        return Ok(Ok(receiver.path_without_token()));
    }
    let namespace = receiver.namespace().unwrap_or_default();
    let name = match receiver.secret_name() {
        Ok(name) => name,
        Err(why) => return Ok(Err(why)),
    };
    match context.reader.get_opt::<Secret>(&namespace, name).await {
        Ok(secret) => Ok(receiver.token(secret).map(|token| receiver.path(&token))),
        Err(error @ ReadError::Refused { .. }) => Ok(Err(NoToken::Unreadable(error.to_string()))),
        Err(error) => Err(error.into()),
    }
}

/// Publishes an event if the condition `Ready` changes. The event excludes the path: alert providers forward events
/// to chats, and the path alone authenticates requests to a receiver of type `generic`.
fn publish_event(receiver: &StackReceiver, status: &StackReceiverStatus, events: &Events) {
    let Some(ready) = conditions::find(&status.conditions, READY) else { return };
    let before = receiver.status.as_ref().and_then(|status| conditions::find(&status.conditions, READY));
    if before.is_some_and(|before| (&before.status, &before.message) == (&ready.status, &ready.message)) {
        return;
    }
    let (kind, reason, message) = if ready.status == Status::True.as_str() {
        (EventKind::Normal, receiver_reason::SUCCEEDED, "webhook path is available in status.webhookPath".to_owned())
    } else {
        (EventKind::Warning, receiver_reason::FAILED, ready.message.clone())
    };
    events.publish(Event::new(receiver, kind, reason, message));
}

/// Requeue interval while the token is missing. The controller does not watch Secrets.
const TOKEN_RETRY: Duration = Duration::from_secs(30);
/// Minimum requeue interval in seconds, which limits how often the controller reads the Secret.
const MIN_INTERVAL: u64 = 10;
/// Requeue interval in seconds if `spec.interval` is invalid. The CRD schema normally rejects an invalid interval.
const DEFAULT_INTERVAL: u64 = 600;

/// Next action for a StackReceiver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Keep the conditions and the path of a suspended StackReceiver.
    Leave,
    /// Report that this controller does not serve webhooks.
    NotServed,
    /// Report that the token is not available for the reason `why`, and requeue the StackReceiver after `requeue`.
    Await { why: String, requeue: Duration },
    /// Publish the webhook path, and requeue the StackReceiver after `requeue`.
    Publish { path: String, requeue: Duration },
}

/// Selects the next action based on the StackReceiver and its path.
pub fn decide(receiver: &StackReceiver, is_served: bool, path: Result<String, NoToken>) -> Action {
    if receiver.is_suspended() {
        return Action::Leave;
    }
    if !is_served {
        return Action::NotServed;
    }
    match path {
        Ok(path) => Action::Publish { path, requeue: interval(receiver) },
        Err(why) => Action::Await { why: why.to_string(), requeue: TOKEN_RETRY },
    }
}

fn interval(receiver: &StackReceiver) -> Duration {
    let seconds = duration::seconds(&receiver.spec.interval).unwrap_or(DEFAULT_INTERVAL);
    Duration::from_secs(seconds.max(MIN_INTERVAL))
}

/// Returns the status of a StackReceiver after an action.
pub fn status_after(receiver: &StackReceiver, action: &Action, now: Timestamp) -> StackReceiverStatus {
    let mut status = receiver.status.clone().unwrap_or_default();
    let generation = receiver.metadata.generation.unwrap_or_default();
    status.observed_generation = Some(generation);
    if let Some(request) = receiver.annotations().get(ANNOTATION_REQUESTED_AT) {
        status.last_handled_reconcile_at = Some(request.clone());
    }
    let (is_ready, reason, message) = match action {
        Action::Leave => return status,
        Action::NotServed => (Status::False, receiver_reason::NOT_SERVED, not_served()),
        Action::Await { why, .. } => (Status::False, receiver_reason::TOKEN_NOT_FOUND, why.clone()),
        Action::Publish { path, .. } => {
            (Status::True, receiver_reason::SUCCEEDED, format!("Receiver initialized for path: {path}"))
        }
    };
    status.webhook_path = match action {
        Action::Publish { path, .. } => Some(path.clone()),
        Action::Leave | Action::NotServed | Action::Await { .. } => None,
    };
    let mut set = |kind, status_of_kind, reason| {
        let condition = ConditionUpdate { kind, status: status_of_kind, reason, message: &message };
        conditions::set(&mut status.conditions, &condition, generation, now);
    };
    set(READY, is_ready, reason);
    match action {
        Action::NotServed => set(STALLED, Status::True, reason),
        Action::Await { .. } => set(RECONCILING, Status::True, receiver_reason::PROGRESSING_WITH_RETRY),
        Action::Leave | Action::Publish { .. } => {}
    }
    if !matches!(action, Action::NotServed) {
        conditions::remove(&mut status.conditions, STALLED);
    }
    if !matches!(action, Action::Await { .. }) {
        conditions::remove(&mut status.conditions, RECONCILING);
    }
    status.summary = conditions::summary(&status.conditions);
    status
}

fn not_served() -> String {
    "controller does not serve webhooks; start it with --receiver-addr=:9292".to_owned()
}

#[cfg(test)]
mod tests;

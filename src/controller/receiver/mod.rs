//! StackReceiver controller: publishes the webhook path derived from the token, or reports in the status why there is none.
//!
//! All replicas serve the webhooks themselves, in the module [`crate::receiver`].

mod decide;
mod status;

use std::sync::Arc;

use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::runtime::Controller;
use kube::runtime::reflector::store::Writer as StoreWriter;
use kube::{Client, ResourceExt};

use crate::api::conditions::{self, READY, Status, receiver_reason};
use crate::api::pulumi::{NoToken, ReceiverToken, StackReceiver, StackReceiverStatus};
use crate::controller::receiver::decide::{Action, decide};
use crate::runtime::events::{Event, EventKind, Events};
use crate::runtime::reads::{ReadError, Reader};
use crate::runtime::reconcile::{Outcome, ReconcileError, ReconcileRunner, no_errors};
use crate::runtime::scope::Scope;
use crate::runtime::watch;
use crate::runtime::writes::Writer;

/// Dependencies of a StackReceiver reconcile.
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

/// Runs the controller until `shutdown` completes.
pub async fn controller(
    client: Client,
    scope: &Scope,
    store: StoreWriter<StackReceiver>,
    runner: Arc<ReconcileRunner>,
    context: Arc<Context>,
    shutdown: impl Future<Output = ()> + Send + Sync + 'static,
) {
    let receivers = store.as_reader();
    let stream = watch::changes(scope.api(client), scope.own_kinds(), cut_down, store, runner.clone(), |_| ());
    Controller::for_stream(stream, receivers)
        .graceful_shutdown_on(shutdown)
        .run(
            move |receiver, context| {
                let runner = runner.clone();
                let object = receiver.clone();
                // Boxed only on start: all due reconciles wait here for a slot, and waiting ones must stay small.
                let work = async move { Box::pin(reconcile(object, context)).await };
                async move { runner.run(receiver.as_ref(), work).await }
            },
            no_errors,
            context,
        )
        .for_each(|_| std::future::ready(()))
        .await;
}

/// Removes the fields that the cache does not need. Each reconcile reads the live object.
fn cut_down(receiver: &mut StackReceiver) {
    receiver.spec.resources.clear();
    receiver.status = None;
}

async fn reconcile(receiver: Arc<StackReceiver>, context: Arc<Context>) -> Result<Outcome, ReconcileError> {
    let namespace = receiver.namespace().unwrap_or_default();
    let live = context.reader.get_opt::<StackReceiver>(&namespace, &receiver.name_any()).await?;
    let Some(live) = live.filter(|live| live.metadata.deletion_timestamp.is_none()) else {
        return Ok(Outcome::Settled);
    };
    let token = observe(&live, &context).await?;
    let action = decide(&live, context.is_served, &token);
    let status = status::after(&live, &action, Timestamp::now());
    if context.writer.status(&live, &status).await?.is_some() {
        announce(&live, &status, &context.events);
    }
    Ok(match action {
        Action::Leave | Action::NotServed => Outcome::Settled,
        Action::Await { requeue, .. } | Action::Publish { requeue, .. } => Outcome::After(requeue),
    })
}

/// Reads the token. If the API server refuses the read, the user sees the reason in the status.
async fn observe(
    receiver: &StackReceiver,
    context: &Context,
) -> Result<Result<ReceiverToken, NoToken>, ReconcileError> {
    let namespace = receiver.namespace().unwrap_or_default();
    match context.reader.get_opt::<Secret>(&namespace, &receiver.spec.secret_ref.name).await {
        Ok(secret) => Ok(receiver.token(secret)),
        Err(error @ ReadError::Refused { .. }) => Ok(Err(NoToken::Unreadable(error.to_string()))),
        Err(error) => Err(error.into()),
    }
}

/// Publishes an event when the Ready condition changes. The event omits the path: events are forwarded to chats, and the path
/// alone authorizes callers that do not sign their requests.
fn announce(receiver: &StackReceiver, status: &StackReceiverStatus, events: &Events) {
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

#[cfg(test)]
mod tests;

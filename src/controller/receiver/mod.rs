//! StackReceiver: gives each the path that belongs to its token, and says in its status what keeps it from having one.
//!
//! Calls to that path are taken elsewhere, in the room `receiver`, and by every replica.

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

/// What a StackReceiver's reconcile works with.
#[derive(Clone)]
pub struct Context {
    pub reader: Reader,
    pub writer: Writer,
    pub events: Events,
    /// Whether this controller takes webhooks at all.
    pub is_served: bool,
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context").finish_non_exhaustive()
    }
}

/// Runs the controller until it is told to end.
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
                // On the heap once it begins: all that are due wait for a slot here.
                let work = async move { Box::pin(reconcile(object, context)).await };
                async move { runner.run(receiver.as_ref(), work).await }
            },
            no_errors,
            context,
        )
        .for_each(|_| std::future::ready(()))
        .await;
}

/// A reconcile reads the StackReceiver anew.
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
        Action::Await { again, .. } | Action::Publish { again, .. } => Outcome::After(again),
    })
}

/// The only read. That the Secret may not be read is an answer, and the user has to hear it.
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

/// Says what is new. The path is not in it: events go to chats, and for a caller without a signature the path is all that
/// it has to know.
fn announce(receiver: &StackReceiver, status: &StackReceiverStatus, events: &Events) {
    let Some(ready) = conditions::find(&status.conditions, READY) else { return };
    let before = receiver.status.as_ref().and_then(|status| conditions::find(&status.conditions, READY));
    if before.is_some_and(|before| (&before.status, &before.message) == (&ready.status, &ready.message)) {
        return;
    }
    let (kind, reason, message) = if ready.status == Status::True.as_str() {
        (EventKind::Normal, receiver_reason::SUCCEEDED, "the path of the webhook is in status.webhookPath".to_owned())
    } else {
        (EventKind::Warning, receiver_reason::FAILED, ready.message.clone())
    };
    events.publish(Event::new(receiver, kind, reason, message));
}

#[cfg(test)]
mod tests;

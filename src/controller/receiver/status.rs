//! Builds the status of a StackReceiver. No other module does. Pure functions.

use jiff::Timestamp;
use kube::ResourceExt;

use crate::api::conditions::{self, Claim, READY, RECONCILING, STALLED, Status, receiver_reason};
use crate::api::names::ANNOTATION_REQUESTED_AT;
use crate::api::pulumi::{StackReceiver, StackReceiverStatus};
use crate::controller::receiver::decide::Action;

/// Returns the status of a StackReceiver after an action.
pub fn after(receiver: &StackReceiver, action: &Action, now: Timestamp) -> StackReceiverStatus {
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
        let claim = Claim { kind, status: status_of_kind, reason, message: &message };
        conditions::set(&mut status.conditions, &claim, generation, now);
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

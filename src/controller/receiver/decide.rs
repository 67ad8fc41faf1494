//! Decides the next action for a StackReceiver. Pure functions.

use std::time::Duration;

use crate::api::duration;
use crate::api::pulumi::{NoToken, ReceiverToken, StackReceiver};

/// Requeue interval for a missing token. Secrets are not watched.
const TOKEN_RETRY: Duration = Duration::from_secs(30);
/// Minimum requeue interval in seconds. A shorter interval would only read the Secret more often.
const MIN_INTERVAL: u64 = 10;
/// Requeue interval in seconds for an unparsable `spec.interval`, which the schema rejects.
const DEFAULT_INTERVAL: u64 = 600;

/// Next action for a StackReceiver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// The receiver is suspended: keep its conditions and path.
    Leave,
    /// This controller does not serve webhooks.
    NotServed,
    /// The token is not available, for the reason `why`. Requeue after `requeue`.
    Await { why: String, requeue: Duration },
    /// The token is available: publish the webhook path and requeue after `requeue`.
    Publish { path: String, requeue: Duration },
}

/// Decides the next action from the StackReceiver and the token in its Secret.
pub fn decide(receiver: &StackReceiver, is_served: bool, token: &Result<ReceiverToken, NoToken>) -> Action {
    if receiver.is_suspended() {
        return Action::Leave;
    }
    if !is_served {
        return Action::NotServed;
    }
    match token {
        Ok(token) => Action::Publish { path: receiver.path(token), requeue: interval(receiver) },
        Err(why) => Action::Await { why: why.to_string(), requeue: TOKEN_RETRY },
    }
}

fn interval(receiver: &StackReceiver) -> Duration {
    let seconds = duration::seconds(&receiver.spec.interval).unwrap_or(DEFAULT_INTERVAL);
    Duration::from_secs(seconds.max(MIN_INTERVAL))
}

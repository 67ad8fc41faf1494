//! What is to be said of a StackReceiver. Pure.

use std::time::Duration;

use crate::api::duration;
use crate::api::pulumi::{NoToken, ReceiverToken, StackReceiver};

/// Nobody watches Secrets: one that is missing is looked for again after this long.
const LOOK_AGAIN: Duration = Duration::from_secs(30);
/// The shortest interval: less would only read the Secret all the time.
const MIN_INTERVAL: u64 = 10;
/// For an interval that cannot be read, which the schema does not let through.
const DEFAULT_INTERVAL: u64 = 600;

/// What becomes of a StackReceiver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// It is suspended: it stays as it was.
    Leave,
    /// This controller takes no webhooks.
    NotServed,
    /// There is no token yet.
    Await { why: String, again: Duration },
    /// This is its path, until there is another token.
    Publish { path: String, again: Duration },
}

/// What is to be said of a StackReceiver as it is now, with what its Secret holds.
pub fn decide(receiver: &StackReceiver, is_served: bool, token: &Result<ReceiverToken, NoToken>) -> Action {
    if receiver.is_suspended() {
        return Action::Leave;
    }
    if !is_served {
        return Action::NotServed;
    }
    match token {
        Ok(token) => Action::Publish { path: receiver.path(token), again: interval(receiver) },
        Err(why) => Action::Await { why: why.to_string(), again: LOOK_AGAIN },
    }
}

fn interval(receiver: &StackReceiver) -> Duration {
    let seconds = duration::seconds(&receiver.spec.interval).unwrap_or(DEFAULT_INTERVAL);
    Duration::from_secs(seconds.max(MIN_INTERVAL))
}

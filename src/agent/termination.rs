//! Shutdown of the agent: ends the running operation, writes its result to the termination message, and waits until the
//! controller records it.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tokio::time::{Instant, timeout_at};

use super::cancellation;
use super::journal::JournalRecord;
use super::operations::Operations;

/// Time that the agent waits for its results to be recorded.
const LINGER: Duration = Duration::from_secs(30);
/// Maximum size of a termination message in bytes, set by Kubernetes.
const MAX_LOG: usize = 4096;
/// Maximum size of the result's message in bytes. With six bytes per character in JSON, the other fields still fit into
/// [`MAX_LOG`].
const MAX_MESSAGE: usize = 600;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct TerminationMessage<'a> {
    id: &'a str,
    outcome: &'a str,
    message: &'a str,
    /// Whether the state can contain pending operations.
    interrupted: bool,
}

/// Ends the running operation and waits until its results are recorded, at most for the grace period and the linger
/// time.
pub async fn terminate(operations: &Arc<Operations>, grace: Duration, log: &Path) {
    let begin = Instant::now();
    operations.terminate();
    operations.tasks.close();
    if timeout_at(begin + grace.saturating_sub(cancellation::reserve(grace)), operations.tasks.wait()).await.is_err() {
        tracing::error!("the operation did not end within the termination grace period");
    }
    let pending = operations.journal.unacknowledged();
    let Some(last) = pending.last() else { return };
    if let Err(error) = std::fs::write(log, message(last)) {
        tracing::warn!(path = %log.display(), %error, "failed to write the termination message");
    }
    tracing::info!(operations = pending.len(), "waiting for results to be recorded");
    let end = Instant::now() + LINGER;
    for record in &pending {
        let mut state = record.watch();
        if timeout_at(end, state.wait_for(|state| state.acknowledged)).await.is_err() {
            tracing::warn!(operation = record.request().id, "timed out waiting for the result to be recorded");
            return;
        }
    }
}

fn message(record: &JournalRecord) -> Vec<u8> {
    let Some(result) = record.result() else { return Vec::new() };
    let end = result.message.floor_char_boundary(MAX_MESSAGE);
    let message = TerminationMessage {
        id: &record.request().id,
        outcome: result.outcome().as_str_name(),
        message: result.message.get(..end).unwrap_or_default(),
        interrupted: result.interrupted,
    };
    let mut text = serde_json::to_vec(&message).unwrap_or_default();
    text.truncate(MAX_LOG);
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::journal::{Journal, Request};
    use crate::rpc::proto;

    #[test]
    fn the_termination_message_is_json_within_the_kubernetes_size_limit() {
        let directory = tempfile::tempdir().unwrap();
        let journal = Journal::open(directory.path()).unwrap();
        let request = Request { id: "one".into(), ..Request::default() };
        let record = journal.begin(request).unwrap();
        let outcome = proto::Outcome::Canceled.into();
        journal.finish(&record, proto::Result { outcome, message: "\u{1}".repeat(9000), ..Default::default() });
        let text = message(&record);
        assert!(text.len() <= MAX_LOG, "{}", text.len());
        let parsed: serde_json::Value = serde_json::from_slice(&text).unwrap();
        assert_eq!((parsed["id"].as_str(), parsed["outcome"].as_str()), (Some("one"), Some("OUTCOME_CANCELED")));
        assert_eq!(parsed["interrupted"].as_bool(), Some(false));
    }
}

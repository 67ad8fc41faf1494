//! Deletes expired runs, including the runs of deleted Stacks.

use std::time::Duration;

use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use super::error::HistoryError;
use super::retention;
use super::store::HistoryStore;

/// Delay before the leader's first cleanup. The controller is busiest immediately after its start.
const FIRST: Duration = Duration::from_secs(60);
const INTERVAL: Duration = Duration::from_secs(3600);
/// Maximum number of objects that one batch deletes.
const BATCH: usize = 1000;

impl HistoryStore {
    /// Deletes expired runs every hour until the controller shuts down. Only the leader may call this function.
    pub async fn clean_up(self, end: CancellationToken) {
        let mut wait = FIRST;
        loop {
            tokio::select! {
                () = end.cancelled() => return,
                () = tokio::time::sleep(wait) => {}
            }
            tokio::select! {
                () = end.cancelled() => return,
                cleaned = self.clean_up_once(Timestamp::now()) => if let Err(error) = cleaned {
                    tracing::warn!(error = &error as &dyn std::error::Error, "failed to clean up the history of runs");
                },
            }
            wait = INTERVAL;
        }
    }

    async fn clean_up_once(&self, now: Timestamp) -> Result<(), HistoryError> {
        let expired = match self.retention().max_age.is_zero() {
            true => Ok(()),
            false => self.delete_where(BATCH, |object| retention::is_expired(object, self.retention(), now)).await,
        };
        // Enforces the maximum size even if deleting an expired object fails.
        self.enforce_size().await.and(expired)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{File, Retention, RunName};
    use super::*;
    use crate::telemetry::metrics::Metrics;

    #[tokio::test]
    async fn expired_runs_of_deleted_stacks_are_deleted() {
        let retention = Retention { max_runs: 9, max_age: Duration::from_secs(3600), max_size: None };
        let history = HistoryStore::in_memory("p", retention, Metrics::default());
        let run = RunName { namespace: "apps".to_owned(), kind: "up", ..RunName::default() };
        history.write(&run, File::Summary, Vec::new()).await.unwrap();
        let now = Timestamp::now();
        history.clean_up_once(now).await.unwrap();
        assert!(history.read(&run, File::Summary).await.unwrap().is_some());
        history.clean_up_once(now + Duration::from_secs(7200)).await.unwrap();
        assert!(history.read(&run, File::Summary).await.unwrap().is_none());
    }
}

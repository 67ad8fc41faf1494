//! Reads the transcript of a run from the agent, and writes the run files to the history.

use std::time::Duration;

use bytes::Bytes;
use jiff::Timestamp;
use serde::Deserialize;

use super::summary::FileEntry;
use super::{HistoryWriter, Job};
use crate::history::{File, HistoryError};
use crate::rpc::client::{AgentAddress, RpcError};
use crate::rpc::proto::TranscriptPart;
use crate::rpc::transcript::PARTS;
use crate::runtime::failpoint;

/// Limits for a transfer. At the rate limit of 1 MiB per second, the read timeout permits a transcript of 15 MiB.
const LIMITS: TransferLimits = TransferLimits {
    read: Duration::from_secs(15),
    write: Duration::from_secs(30),
    delays: &[Duration::from_secs(1), Duration::from_secs(4)],
};
/// Limits for a transfer while the storage is unavailable.
const OUTAGE_LIMITS: TransferLimits =
    TransferLimits { read: Duration::from_secs(3), write: Duration::from_secs(2), delays: &[] };
/// Time for which a run waits for a free slot while the controller stores other runs.
const SLOT_TIMEOUT: Duration = Duration::from_secs(30);

/// Timeouts and retry delays for a transfer.
struct TransferLimits {
    /// Timeout for reading the transcript from the agent.
    read: Duration,
    /// Timeout for writing all files, including retries.
    write: Duration,
    /// Delays between the attempts to write a file.
    delays: &'static [Duration],
}

/// Fields of a stored summary that a new process reads.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct StoredSummary {
    #[serde(default)]
    transcript_missing: Option<String>,
}

/// File that belongs to a run, and its content.
type Content = (File, Bytes);

impl HistoryWriter {
    /// Stores a run. Returns the reason if the transcript is missing, or an error if the run could not be stored.
    pub(super) async fn transfer(&self, job: &Job) -> Result<Option<String>, String> {
        let slot = tokio::time::timeout(SLOT_TIMEOUT, self.0.slots.acquire(&job.run.namespace)).await;
        let _slot = match slot {
            Ok(Ok(slot)) => slot,
            Ok(Err(busy)) => return Err(format!("too many runs of the namespace end at the same time: {busy}")),
            Err(_) => {
                return Err(format!("timed out after {} s while other runs were being stored", SLOT_TIMEOUT.as_secs()));
            }
        };
        self.read_and_write(job, if self.is_in_outage() { &OUTAGE_LIMITS } else { &LIMITS }).await
    }

    async fn read_and_write(&self, job: &Job, limits: &TransferLimits) -> Result<Option<String>, String> {
        if job.agent.is_none()
            && let Ok(Some(kept)) = tokio::time::timeout(limits.read, self.stored(job)).await
        {
            return Ok(kept.transcript_missing);
        }
        let (mut files, missing) = match &job.agent {
            None => (Vec::new(), job.has_run.then(|| "the transcript was lost with the pod".to_owned())),
            Some(agent) => match tokio::time::timeout(limits.read, self.transcript(agent, &job.uid)).await {
                Ok(Ok(files)) => (files, None),
                Ok(Err(error)) => (Vec::new(), Some(format!("failed to read the transcript: {error}"))),
                Err(_) => {
                    let seconds = limits.read.as_secs();
                    (Vec::new(), Some(format!("the agent did not return the transcript within {seconds} s")))
                }
            },
        };
        failpoint::hit("update-transcript-read");
        if !job.plan.is_empty() {
            files.push((File::Plan, job.plan.clone().into()));
        }
        let entries = files.iter().map(|(file, content)| FileEntry::new(*file, content.len())).collect();
        let summary = job.summary.with_files(entries, missing.clone());
        // The task writes the summary last, so a run that has a summary is stored completely.
        let summary = serde_json::to_vec_pretty(&summary).map_err(|error| error.to_string())?;
        files.push((File::Summary, summary.into()));
        match tokio::time::timeout(limits.write, self.write_all(job, files, limits.delays)).await {
            Ok(Ok(())) => self.ended_outage(),
            Ok(Err(error)) => return Err(self.failed_write(&error)),
            Err(_) => return Err(self.failed_write(&HistoryError::Timeout(limits.write))),
        }
        failpoint::hit("update-history-written");
        Ok(missing)
    }

    /// Returns the summary if a previous process has stored a valid summary of the run. Without the agent, a new
    /// summary would not contain more information. The caller replaces an invalid summary.
    async fn stored(&self, job: &Job) -> Option<StoredSummary> {
        let content = self.0.store.read(&job.run, File::Summary).await.ok()??;
        serde_json::from_slice(&content).ok()
    }

    /// Reads the parts of the transcript from the agent. Older agents do not provide transcripts.
    async fn transcript(&self, address: &AgentAddress, uid: &str) -> Result<Vec<Content>, RpcError> {
        let agent = self.0.agents.connect(address).await?;
        let mut files = Vec::new();
        for part in PARTS {
            let content = agent.transcript(uid, part).await?;
            if let Some(file) = file_of(part).filter(|_| !content.is_empty()) {
                files.push((file, content.into()));
            }
        }
        Ok(files)
    }

    async fn write_all(&self, job: &Job, files: Vec<Content>, delays: &[Duration]) -> Result<(), HistoryError> {
        for (file, content) in files {
            let mut delays = delays.iter();
            loop {
                match (self.0.store.write(&job.run, file, content.clone()).await, delays.next()) {
                    (Ok(()), _) => break,
                    (Err(error), None) => return Err(error),
                    (Err(_), Some(delay)) => tokio::time::sleep(*delay).await,
                }
            }
        }
        Ok(())
    }

    /// Deletes the Stack's runs that exceed the retention limits. An error is not fatal, because the controller
    /// repeats the deletion after the next run.
    pub(super) async fn delete_old(&self, job: &Job) {
        if let Err(error) = self.0.store.enforce_limits(&job.run, Timestamp::now()).await {
            tracing::warn!(error = &error as &dyn std::error::Error, "failed to delete old runs from the history");
        }
    }
}

fn file_of(part: TranscriptPart) -> Option<File> {
    match part {
        TranscriptPart::Output => Some(File::Output),
        TranscriptPart::Events => Some(File::Events),
        TranscriptPart::Steps => Some(File::Steps),
        TranscriptPart::Unspecified => None,
    }
}

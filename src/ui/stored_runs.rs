//! Reads the stored output and changes of runs, for users who may read a Stack's run history.

use std::io::Read as _;
use std::time::Duration;

use flate2::read::MultiGzDecoder;
use k8s_openapi::api::core::v1::Namespace;
use kube::Client;
use serde::Deserialize;
use tokio::sync::Semaphore;

use super::error::UiError;
use super::permissions::{self, Permission};
use super::row::Key;
use super::users::User;
use crate::api::pulumi::RunRecord;
use crate::history::{self, File, HistoryStore};
use crate::runtime::reads::{ReadError, Reader};
use crate::text::printable;

/// Timeout of a read of a namespace.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of runs that the UI reads concurrently.
const MAX_READS: usize = 4;
/// Maximum size of a run's output on a page, in bytes.
const MAX_OUTPUT: u64 = 512 * 1024;
/// Maximum size of a run's changes that the page parses, in bytes.
const MAX_CHANGES: u64 = 256 * 1024;
/// Maximum number of changed resources on a page.
const MAX_RESOURCES: usize = 500;

/// Reads stored runs.
pub(super) struct StoredRuns {
    reader: Reader,
    store: Option<HistoryStore>,
    reads: Semaphore,
}

/// Stored data of a run.
#[derive(Debug, Default, PartialEq)]
pub(super) struct StoredRun {
    pub(super) output: Option<String>,
    pub(super) changes: Vec<ChangedResource>,
}

/// Result of reading a stored run.
#[derive(Debug, Default)]
pub(super) enum Stored {
    Found(StoredRun),
    /// The history does not contain the run.
    #[default]
    Missing,
    /// The user may not read the history.
    Forbidden,
}

impl Stored {
    /// Returns the run's stored data.
    pub(super) fn run(&self) -> Option<&StoredRun> {
        match self {
            Stored::Found(run) => Some(run),
            Stored::Missing | Stored::Forbidden => None,
        }
    }
}

/// Resource that a run has changed.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
pub(super) struct ChangedResource {
    pub(super) operation: String,
    pub(super) urn: String,
    #[serde(default)]
    pub(super) failed: bool,
    /// Paths of the properties that differ.
    #[serde(default)]
    pub(super) properties: Vec<String>,
}

impl StoredRuns {
    /// Creates the reader. `client` has the controller's identity, because users may lack permission to read a
    /// namespace's creation time.
    pub(super) fn new(client: Client, store: Option<HistoryStore>) -> Self {
        let store = store.map(|store| store.for_readers());
        StoredRuns { reader: Reader::new(client, TIMEOUT), store, reads: Semaphore::new(MAX_READS) }
    }

    /// Returns a run's stored data.
    ///
    /// # Errors
    /// Returns an error if the storage or the API server does not respond.
    pub(super) async fn read(&self, user: &User, key: &Key, run: &RunRecord) -> Result<Stored, UiError> {
        let (Some(store), Some(directory)) =
            (&self.store, run.history_url.as_deref().and_then(|url| directory(url, key)))
        else {
            return Ok(Stored::Missing);
        };
        if !permissions::may(user, &Permission::for_history(key)).await? {
            return Ok(Stored::Forbidden);
        }
        // A user in a new namespace must not read the runs from a deleted namespace with the same name.
        let namespace = self.reader.get_cluster_metadata_opt::<Namespace>(&key.0).await;
        let namespace = namespace.map_err(|error| of_controller(&error))?;
        let created = namespace.and_then(|namespace| namespace.metadata.creation_timestamp);
        let summary = format!("{directory}/{}", File::Summary.name());
        if !created.is_some_and(|created| history::is_since(&summary, created.0)) {
            return Ok(Stored::Missing);
        }
        let _slot = self.reads.try_acquire().map_err(|_| UiError::Busy)?;
        let output = store.read_object(&format!("{directory}/{}", File::Output.name())).await?;
        let changes = store.read_object(&format!("{directory}/{}", File::Steps.name())).await?;
        Ok(Stored::Found(StoredRun {
            output: output.map(|content| unpack(&content, MAX_OUTPUT)),
            changes: changes.map(|content| resources(&unpack(&content, MAX_CHANGES))).unwrap_or_default(),
        }))
    }
}

/// Returns the error for a failed request that the controller has sent with its own identity. Logs the API server's
/// message instead of showing the message to the user. The function does not return the API server's status code,
/// because the user's session must not end if the API server rejects the controller's token.
fn of_controller(error: &ReadError) -> UiError {
    tracing::warn!(error = error as &dyn std::error::Error, "failed to read a namespace for the web UI");
    let cause = "the controller failed to read the namespace; see its log".to_owned();
    UiError::Failed { request: "read the stored run".to_owned(), cause }
}

/// Returns a run's directory in the history, or `None` if the URL does not belong to a run of the Stack.
fn directory(url: &str, (namespace, name): &Key) -> Option<String> {
    let is_safe = |part: &str| {
        let is_safe = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
        !part.is_empty() && !part.starts_with('.') && part.chars().all(is_safe)
    };
    let mut parts: Vec<&str> = url.rsplit('/').take(4).collect();
    parts.reverse();
    let is_of_stack = parts.first() == Some(&namespace.as_str()) && parts.get(1) == Some(&name.as_str());
    (is_of_stack && parts.len() == 4 && parts.iter().all(|part| is_safe(part))).then(|| parts.join("/"))
}

/// Decompresses the beginning of a file, and removes characters that can mislead a reader.
fn unpack(content: &[u8], max_length: u64) -> String {
    let mut text = Vec::new();
    // If the file is damaged, the text ends with the last readable byte.
    let is_complete = MultiGzDecoder::new(content).take(max_length).read_to_end(&mut text).is_ok();
    let is_cut = u64::try_from(text.len()).unwrap_or(u64::MAX) >= max_length || !is_complete;
    let text = printable(&String::from_utf8_lossy(&text));
    if is_cut { format!("{text}\n…") } else { text }
}

/// Returns the resources in a file with one JSON object per line. Ignores incomplete lines.
fn resources(text: &str) -> Vec<ChangedResource> {
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).take(MAX_RESOURCES).collect()
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    #[test]
    fn an_error_of_the_controller_does_not_end_the_session_of_the_user() {
        let refused = ReadError::Refused {
            request: "read the metadata of Namespace apps".to_owned(),
            code: 401,
            reason: "Unauthorized".to_owned(),
            message: "system:serviceaccount:flux-system:pulumi-controller".to_owned(),
        };
        let error = of_controller(&refused);
        assert!(matches!(error, UiError::Failed { .. }) && !error.to_string().contains("serviceaccount"), "{error}");
    }

    #[test]
    fn the_directory_of_a_run_belongs_to_its_stack() {
        let key = ("apps".to_owned(), "web".to_owned());
        let run = "apps/web/uid/20261126T184207Z-up-9f8e";
        assert_eq!(directory(&format!("s3://runs/team/{run}"), &key).as_deref(), Some(run));
        assert_eq!(directory(&format!("file:///data/history/{run}"), &key).as_deref(), Some(run));
        for url in ["s3://runs/other/web/uid/run", "apps/web/uid", "s3://runs/apps/web/../run", ""] {
            assert_eq!(directory(url, &key), None, "{url}");
        }
    }

    #[test]
    fn a_stored_text_is_bounded_and_a_damaged_text_is_cut() {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(b"Updating\x1b[31m (dev)\nDone\n").unwrap();
        let content = encoder.finish().unwrap();
        assert_eq!(unpack(&content, 1000), "Updating\u{fffd}[31m (dev)\nDone\n");
        assert_eq!(unpack(&content, 8), "Updating\n…");
        assert!(unpack(b"not compressed", 1000).ends_with('…'));
    }

    #[test]
    fn only_complete_lines_describe_resources() {
        let text = "{\"operation\":\"update\",\"urn\":\"u\",\"type\":\"t\",\"failed\":true,\"properties\":[\"a\"]}\n… 5 bytes\n{\"op";
        let expected = ChangedResource {
            operation: "update".to_owned(),
            urn: "u".to_owned(),
            failed: true,
            properties: vec!["a".to_owned()],
        };
        assert_eq!(resources(text), [expected]);
    }
}

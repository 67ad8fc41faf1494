//! Counts the controller's API writes in the API server's audit log.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;
use tokio::time::{Instant, sleep};

const PAUSE: Duration = Duration::from_secs(1);

/// Reads the audit log incrementally.
pub struct ApiWrites {
    path: PathBuf,
    read: u64,
}

impl ApiWrites {
    /// Starts to count at the current end of the audit log. Requires a cluster that the tests have started.
    pub fn from_now() -> ApiWrites {
        let folder = std::env::var("CLUSTER_RUN_DIR").expect("only a cluster of the tests has an audit log");
        let path = PathBuf::from(folder).join("logs/audit.log");
        let read = std::fs::metadata(&path).expect("the API server writes an audit log").len();
        ApiWrites { path, read }
    }

    /// Returns the number of writes since the last call, grouped by verb and resource, such as `patch stacks/status`.
    /// Ignores writes to the controller's lease.
    pub fn take_new(&mut self) -> BTreeMap<String, usize> {
        let mut file = File::open(&self.path).expect("the audit log is readable");
        let length = file.metadata().expect("the audit log exists").len();
        if length < self.read {
            // The API server has rotated the log.
            self.read = 0;
        }
        file.seek(SeekFrom::Start(self.read)).expect("the audit log can be read");
        let mut text = String::new();
        file.read_to_string(&mut text).expect("the audit log can be read");
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        self.read += whole as u64;
        let mut writes = BTreeMap::new();
        for line in text.get(..whole).unwrap_or_default().lines() {
            let event: Value = serde_json::from_str(line).expect("a line of the audit log is JSON");
            let word = |path: &str| event.pointer(path).and_then(Value::as_str).unwrap_or_default().to_owned();
            let resource = word("/objectRef/resource");
            if resource == "leases" {
                continue;
            }
            let subresource = word("/objectRef/subresource");
            let slash = if subresource.is_empty() { "" } else { "/" };
            *writes.entry(format!("{} {resource}{slash}{subresource}", word("/verb"))).or_insert(0) += 1;
        }
        writes
    }

    /// Waits until the controller has written nothing for the duration `quiet`. Panics after the timeout `limit`.
    pub async fn until_quiet(&mut self, quiet: Duration, limit: Duration) {
        drop(self.take_until_quiet(quiet, limit).await);
    }

    /// Waits until the controller has written nothing for the duration `quiet`, and returns the number of writes since
    /// the last call. Panics after the timeout `limit`.
    pub async fn take_until_quiet(&mut self, quiet: Duration, limit: Duration) -> BTreeMap<String, usize> {
        let mut all = BTreeMap::new();
        let (began, mut last) = (Instant::now(), Instant::now());
        while last.elapsed() < quiet {
            let writes = self.take_new();
            if !writes.is_empty() {
                last = Instant::now();
                let counts = format_counts(&writes);
                assert!(began.elapsed() < limit, "the controller still writes after {limit:?}: {counts}");
            }
            for (write, number) in writes {
                *all.entry(write).or_insert(0) += number;
            }
            sleep(PAUSE).await;
        }
        all
    }
}

/// Formats the counts as a list.
pub fn format_counts(writes: &BTreeMap<String, usize>) -> String {
    match writes.is_empty() {
        true => "none".to_owned(),
        false => writes.iter().map(|(write, number)| format!("{number} × {write}")).collect::<Vec<_>>().join(", "),
    }
}

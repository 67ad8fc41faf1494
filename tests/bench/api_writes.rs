//! What the controller writes to the API, from the API server's audit log.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;
use tokio::time::{Instant, sleep};

const PAUSE: Duration = Duration::from_secs(1);

/// The log, read from a place on.
pub struct ApiWrites {
    path: PathBuf,
    read: u64,
}

impl ApiWrites {
    /// Writes from now on. Only our own node has the log.
    pub fn from_now() -> ApiWrites {
        let folder = std::env::var("CLUSTER_RUN_DIR").expect("only our own node has an audit log");
        let path = PathBuf::from(folder).join("logs/audit.log");
        let read = std::fs::metadata(&path).expect("the API server writes an audit log").len();
        ApiWrites { path, read }
    }

    /// `patch stacks/status`, and so on, with their number, since the last look. Not those of the controller's Lease.
    pub fn news(&mut self) -> BTreeMap<String, usize> {
        let mut file = File::open(&self.path).expect("the audit log can be opened");
        let length = file.metadata().expect("the audit log is there").len();
        if length < self.read {
            // It was closed at its largest size, and begun anew.
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

    /// Waits until nothing was written for a while.
    pub async fn until_quiet(&mut self, quiet: Duration, limit: Duration) {
        let (began, mut last) = (Instant::now(), Instant::now());
        while last.elapsed() < quiet {
            let writes = self.news();
            if !writes.is_empty() {
                last = Instant::now();
                assert!(began.elapsed() < limit, "the controller still writes after {limit:?}: {}", sentence(&writes));
            }
            sleep(PAUSE).await;
        }
    }
}

/// As words.
pub fn sentence(writes: &BTreeMap<String, usize>) -> String {
    match writes.is_empty() {
        true => "none".to_owned(),
        false => writes.iter().map(|(write, number)| format!("{number} × {write}")).collect::<Vec<_>>().join(", "),
    }
}

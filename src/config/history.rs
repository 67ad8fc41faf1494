//! Settings of the run history.

use std::net::SocketAddr;
use std::time::Duration;

use crate::cli::ManagerFlags;
use crate::history::{HistoryUrl, Retention};
use crate::telemetry::redact;

/// Directory of the default history in the controller's storage.
const DEFAULT_DIRECTORY: &str = "history";
/// Minimum size of the run history on a volume, in bytes. A history of this size can contain a few very large runs.
const MIN_SIZE: u64 = 16 * 1024 * 1024;

/// Validated settings of the run history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistoryConfig {
    pub url: HistoryUrl,
    pub retention: Retention,
    /// Address of the history endpoint, if enabled.
    pub address: Option<SocketAddr>,
}

/// Invalid flag: its name, its value and the valid values.
pub(super) type Invalid = (&'static str, String, String);

/// Returns the settings, or `None` if the history is disabled.
pub(super) fn of_flags(
    flags: &ManagerFlags,
    max_age: Duration,
    address: Option<SocketAddr>,
) -> Result<Option<HistoryConfig>, Invalid> {
    let url = match flags.history_url.as_deref().map(str::trim) {
        Some("") if address.is_some() => {
            return Err(("history-addr", flags.history_addr.clone(), "0 if --history-url is empty".to_owned()));
        }
        Some("") => return Ok(None),
        Some(text) => text
            .parse::<HistoryUrl>()
            .map_err(|error| ("history-url", redact::url_credentials(text).into_owned(), error.to_string()))?,
        None => HistoryUrl::of_directory(&flags.storage_path.join(DEFAULT_DIRECTORY)).ok_or_else(|| {
            let valid = "an absolute path, because the directory contains the history of runs (--history-url)";
            ("storage-path", flags.storage_path.display().to_string(), valid.to_owned())
        })?,
    };
    if !(1..=Retention::MOST_RUNS).contains(&flags.history_max_runs) {
        let valid = format!("a number from 1 to {}", Retention::MOST_RUNS);
        return Err(("history-max-runs", flags.history_max_runs.to_string(), valid));
    }
    if flags.history_max_size < MIN_SIZE {
        return Err(("history-max-size", flags.history_max_size.to_string(), format!("at least {MIN_SIZE}")));
    }
    let max_size = url.is_volume().then_some(flags.history_max_size);
    let retention = Retention { max_runs: flags.history_max_runs, max_age, max_size };
    Ok(Some(HistoryConfig { url, retention, address }))
}

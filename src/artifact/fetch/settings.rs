//! Settings for fetching artifacts.

use std::path::PathBuf;
use std::time::Duration;

use super::super::limits::Limits;
use super::hosts::AllowedHosts;

/// Settings for fetching artifacts.
#[derive(Clone, Debug)]
pub struct FetchSettings {
    /// Hosts that artifacts are fetched from.
    pub allowed_hosts: AllowedHosts,
    /// Replaces the whole `host:port` of every URL but source-watcher's, for a controller that runs outside of the
    /// cluster. Flux takes it from `SOURCE_CONTROLLER_LOCALHOST`.
    pub source_controller_host: Option<String>,
    /// The same for the URLs of source-watcher. Flux takes it from `SOURCE_WATCHER_LOCALHOST`.
    pub source_watcher_host: Option<String>,
    /// File with PEM certificates that https servers are verified against. Default: those of the system.
    pub certificate_authorities: Option<PathBuf>,
    /// Whether a namespace is denied artifacts in Flux's storage that belong to another namespace. Default: no.
    pub own_namespace_only: bool,
    /// Maximum size of a download in bytes. Default 256 MiB.
    pub download_bytes: u64,
    /// Timeout for opening a connection. Default 5 s.
    pub connect_timeout: Duration,
    /// Maximum time without data from the server. Default 30 s.
    pub idle_timeout: Duration,
    /// Maximum duration of a download. Default 4 min: shorter than the timeout of a reconcile, so that the reconcile can report it.
    pub overall_timeout: Duration,
}

impl FetchSettings {
    /// The defaults with these allowed hosts.
    pub fn new(allowed_hosts: AllowedHosts) -> Self {
        Self {
            allowed_hosts,
            source_controller_host: None,
            source_watcher_host: None,
            certificate_authorities: None,
            own_namespace_only: false,
            download_bytes: Limits::default().download_bytes,
            connect_timeout: Duration::from_secs(5),
            idle_timeout: Duration::from_secs(30),
            overall_timeout: Duration::from_secs(240),
        }
    }

    /// The host that replaces the host of this URL, by Flux's rule.
    pub(super) fn replacement(&self, url: &url::Url) -> Option<&str> {
        let watcher = url.host_str().is_some_and(|host| host.starts_with("source-watcher"));
        if watcher { self.source_watcher_host.as_deref() } else { self.source_controller_host.as_deref() }
    }
}

//! Settings for fetching artifacts.

use std::path::PathBuf;
use std::time::Duration;

use super::super::limits::Limits;
use super::hosts::AllowedHosts;

/// Settings for fetching artifacts.
#[derive(Clone, Debug)]
pub struct FetchSettings {
    /// Hosts from which artifacts may be fetched.
    pub allowed_hosts: AllowedHosts,
    /// Replaces `host:port` in every URL except those of source-watcher, for a controller that runs outside the cluster. Flux reads
    /// it from `SOURCE_CONTROLLER_LOCALHOST`.
    pub source_controller_host: Option<String>,
    /// Replaces `host:port` in the URLs of source-watcher. Flux reads it from `SOURCE_WATCHER_LOCALHOST`.
    pub source_watcher_host: Option<String>,
    /// File with PEM certificates for verifying https servers. Default: the system certificates.
    pub certificate_authorities: Option<PathBuf>,
    /// Whether a namespace is denied artifacts in the storage of Flux that belong to another namespace. Default: false.
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
    /// Returns the default settings with these allowed hosts.
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

    /// Returns the replacement for the host of this URL, using the same rule as Flux.
    pub(super) fn replacement(&self, url: &url::Url) -> Option<&str> {
        let watcher = url.host_str().is_some_and(|host| host.starts_with("source-watcher"));
        if watcher { self.source_watcher_host.as_deref() } else { self.source_controller_host.as_deref() }
    }
}

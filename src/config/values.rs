//! Error for invalid flags, and parsers for value types that several flags share.

use std::fmt::Display;
use std::net::{Ipv6Addr, SocketAddr};
use std::time::Duration;

use jiff::SignedDuration;
use thiserror::Error;
use url::Url;

/// Invalid flag or environment variable. The message contains the name and the valid values.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("{0}")]
pub struct ConfigError(pub(super) String);

pub(super) fn unset(flag: &str, variable: &str, valid: &str) -> ConfigError {
    ConfigError(format!("--{flag} or {variable} must be set to the {valid}"))
}

pub(super) fn invalid(flag: &str, value: impl Display, valid: impl Display) -> ConfigError {
    ConfigError(format!("invalid --{flag}={value}: must be {valid}"))
}

/// Parses an address in the Go format. `:8080` is the port 8080 on all local addresses. Returns `None` for `0` or an
/// empty value.
pub fn address(flag: &'static str, value: &str) -> Result<Option<SocketAddr>, ConfigError> {
    if value.is_empty() || value == "0" {
        return Ok(None);
    }
    let parsed = match value.strip_prefix(':') {
        Some(port) => port.parse().ok().map(|port: u16| SocketAddr::from((Ipv6Addr::UNSPECIFIED, port))),
        None => value.parse().ok(),
    };
    parsed.map(Some).ok_or_else(|| invalid(flag, value, "IP:PORT, :PORT, or 0 to disable"))
}

/// Parses a duration in the Go format, such as `1m30s`.
pub(super) fn duration(flag: &'static str, value: &str) -> Result<Duration, ConfigError> {
    let parsed = value.parse::<SignedDuration>().ok().and_then(|duration| Duration::try_from(duration).ok());
    parsed.ok_or_else(|| invalid(flag, value, "a duration such as 35s, 750ms or 1m30s"))
}

pub(super) fn require_at_least(flag: &'static str, minimum: u64, value: u64) -> Result<(), ConfigError> {
    if value < minimum { Err(invalid(flag, value, format!("at least {minimum}"))) } else { Ok(()) }
}

/// Valid formats of a host, for error messages.
const HOST: &str = "HOST or HOST:PORT without scheme and path";

pub(super) fn artifact_host(value: &str) -> Result<String, ConfigError> {
    let host = value.trim().to_ascii_lowercase();
    let error = || ConfigError(format!("invalid host {value:?} in --artifact-hosts: must be {HOST}"));
    if is_host(&host) { Ok(host) } else { Err(error()) }
}

/// Validates a host that replaces the hosts of artifact URLs. Returns `None` for an empty value.
pub(super) fn localhost(variable: &'static str, value: Option<String>) -> Result<Option<String>, ConfigError> {
    match value.filter(|host| !host.is_empty()) {
        Some(value) if !is_host(&value) => Err(ConfigError(format!("invalid {variable}={value:?}: must be {HOST}"))),
        host => Ok(host),
    }
}

/// Returns whether `text` is a host with an optional port and without other parts of a URL.
fn is_host(text: &str) -> bool {
    let url = Url::parse(&format!("http://{text}"));
    let plain = !text.contains(|c: char| c.is_whitespace() || matches!(c, '/' | '?' | '#' | '@' | '\\'));
    plain && url.is_ok_and(|url| url.has_host())
}

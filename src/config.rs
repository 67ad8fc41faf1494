//! The manager's settings, validated, and every limit that is not a flag.

use std::net::{Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use thiserror::Error;

use crate::cli::ManagerFlags;
use crate::telemetry::logging::{LogEncoding, LogLevel};

/// How long one request to the API server may take.
pub const API_TIMEOUT: Duration = Duration::from_secs(30);
/// How long one reconcile may take. It never waits for a run.
pub const RECONCILE_TIMEOUT: Duration = Duration::from_secs(5 * 60);
/// How often the agent of a workspace at rest is asked for its status.
pub const AGENT_STATUS_INTERVAL: Duration = Duration::from_secs(2 * 60);
/// How long the process goes on after it was told to end, until reconciles that are going on are done.
pub const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(8);
/// The smallest store of artifacts that is of any use.
const SMALLEST_STORAGE: u64 = 16 * 1024 * 1024;

/// What is wrong with the flags.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum ConfigError {
    #[error("--{flag}={value}: not an address; give HOST:PORT, :PORT, or 0 for none")]
    Address { flag: &'static str, value: String },
    #[error("--{flag} must be at least {least}, but is {value}")]
    TooSmall { flag: &'static str, least: u64, value: u64 },
    #[error("RUNTIME_NAMESPACE is not set; set it to the namespace in which the controller runs")]
    NoRuntimeNamespace,
    #[error("--{flag} is not set; {help}")]
    Missing { flag: &'static str, help: &'static str },
    #[error("--artifact-hosts: {value:?} is not a host; give HOST or HOST:PORT without a scheme or a path")]
    ArtifactHost { value: String },
    #[error("SOURCE_CONTROLLER_LOCALHOST={value:?} is not a host; give HOST:PORT without a scheme or a path")]
    SourceControllerLocalhost { value: String },
}

/// The manager's settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManagerConfig {
    /// Where metrics are served, if anywhere.
    pub metrics_address: Option<SocketAddr>,
    /// Where health is served, if anywhere.
    pub health_address: Option<SocketAddr>,
    pub log_level: LogLevel,
    pub log_encoding: LogEncoding,
    /// Reconciles at the same time, for each kind.
    pub concurrent: u16,
    /// The namespace in which the controller runs.
    pub runtime_namespace: String,
    /// The only namespace that is watched, if it is only one.
    pub watch_namespace: Option<String>,
    /// Label selector of the controller's own kinds.
    pub watch_label_selector: Option<String>,
    pub storage_path: PathBuf,
    /// In bytes.
    pub storage_size: u64,
    /// Image of this binary.
    pub agent_image: String,
    /// Image of workspaces that name none.
    pub default_workspace_image: String,
    /// Pulumi runs that may be open at the same time.
    pub max_concurrent_runs: usize,
    /// Those of them that may be open on one node.
    pub max_concurrent_runs_per_node: usize,
    /// Hosts of artifacts, in lower case, besides the Services of the controller's namespace.
    pub artifact_hosts: Vec<String>,
    /// The host that stands in for the one in artifacts' URLs.
    pub source_controller_localhost: Option<String>,
}

impl ManagerConfig {
    /// Makes sense of the flags, or says what is wrong with them.
    pub fn from_flags(flags: ManagerFlags) -> Result<Self, ConfigError> {
        if flags.runtime_namespace.is_empty() {
            return Err(ConfigError::NoRuntimeNamespace);
        }
        if flags.agent_image.is_empty() {
            let help = "workspace pods copy the agent from it; set it to the image of the controller";
            return Err(ConfigError::Missing { flag: "agent-image", help });
        }
        at_least("concurrent", 1, u64::from(flags.concurrent))?;
        at_least("max-concurrent-runs", 1, flags.max_concurrent_runs as u64)?;
        at_least("max-concurrent-runs-per-node", 1, flags.max_concurrent_runs_per_node as u64)?;
        at_least("storage-size", SMALLEST_STORAGE, flags.storage_size)?;
        let artifact_hosts = flags.artifact_hosts.iter().filter(|host| !host.trim().is_empty());
        let localhost = flags.source_controller_localhost.filter(|host| !host.is_empty());
        if let Some(value) = localhost.as_ref().filter(|host| !is_host(host)) {
            return Err(ConfigError::SourceControllerLocalhost { value: value.clone() });
        }
        Ok(ManagerConfig {
            metrics_address: address("metrics-addr", &flags.metrics_addr)?,
            health_address: address("health-addr", &flags.health_addr)?,
            log_level: flags.log.log_level,
            log_encoding: flags.log.log_encoding,
            concurrent: flags.concurrent,
            watch_namespace: (!flags.watch_all_namespaces).then(|| flags.runtime_namespace.clone()),
            runtime_namespace: flags.runtime_namespace,
            watch_label_selector: Some(flags.watch_label_selector.trim().to_owned()).filter(|text| !text.is_empty()),
            storage_path: flags.storage_path,
            storage_size: flags.storage_size,
            agent_image: flags.agent_image,
            default_workspace_image: flags.default_workspace_image,
            max_concurrent_runs: flags.max_concurrent_runs,
            max_concurrent_runs_per_node: flags.max_concurrent_runs_per_node,
            artifact_hosts: artifact_hosts.map(|host| artifact_host(host)).collect::<Result<_, _>>()?,
            source_controller_localhost: localhost,
        })
    }
}

/// An address as Go writes it: `:8080` is the port on all addresses, `0` or nothing is none.
pub fn address(flag: &'static str, value: &str) -> Result<Option<SocketAddr>, ConfigError> {
    if value.is_empty() || value == "0" {
        return Ok(None);
    }
    let parsed = match value.strip_prefix(':') {
        Some(port) => port.parse().ok().map(|port: u16| SocketAddr::from((Ipv6Addr::UNSPECIFIED, port))),
        None => value.parse().ok(),
    };
    parsed.map(Some).ok_or_else(|| ConfigError::Address { flag, value: value.to_owned() })
}

fn at_least(flag: &'static str, least: u64, value: u64) -> Result<(), ConfigError> {
    if value < least { Err(ConfigError::TooSmall { flag, least, value }) } else { Ok(()) }
}

fn artifact_host(value: &str) -> Result<String, ConfigError> {
    let host = value.trim().to_ascii_lowercase();
    if is_host(&host) { Ok(host) } else { Err(ConfigError::ArtifactHost { value: value.to_owned() }) }
}

/// A host, perhaps with a port, and nothing else of a URL.
fn is_host(text: &str) -> bool {
    let url = url::Url::parse(&format!("http://{text}"));
    let plain = !text.contains(|c: char| c.is_whitespace() || matches!(c, '/' | '?' | '#' | '@' | '\\'));
    plain && url.is_ok_and(|url| url.has_host())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{CommandLine, Role};

    const NEEDED: [&str; 2] = ["--runtime-namespace=flux-system", "--agent-image=example.org/controller:v1"];

    fn config(arguments: &[&str]) -> Result<ManagerConfig, ConfigError> {
        let all = std::iter::once("pulumi-controller").chain(arguments.iter().copied());
        match CommandLine::try_parse_from(all).unwrap().into_role() {
            Role::Manager(flags) => ManagerConfig::from_flags(flags),
            other => panic!("{other:?}"),
        }
    }

    fn with(argument: &str) -> Result<ManagerConfig, ConfigError> {
        config(&[NEEDED[0], NEEDED[1], argument])
    }

    #[test]
    fn the_defaults_are_those_of_flux() {
        let config = config(&NEEDED).unwrap();
        assert_eq!(config.metrics_address, Some("[::]:8080".parse().unwrap()));
        assert_eq!(config.health_address, Some("[::]:9440".parse().unwrap()));
        assert_eq!((config.watch_namespace, config.watch_label_selector), (None, None));
        assert_eq!(config.runtime_namespace, "flux-system");
    }

    #[test]
    fn one_namespace_is_the_controllers_own() {
        assert_eq!(with("--watch-all-namespaces=false").unwrap().watch_namespace.as_deref(), Some("flux-system"));
    }

    #[test]
    fn what_is_wrong_is_said_with_what_to_do() {
        let cases = [
            ("--metrics-addr=nowhere", "--metrics-addr=nowhere: not an address; give HOST:PORT, :PORT, or 0 for none"),
            ("--health-addr=:99999", "--health-addr=:99999: not an address; give HOST:PORT, :PORT, or 0 for none"),
            ("--concurrent=0", "--concurrent must be at least 1, but is 0"),
            ("--max-concurrent-runs=0", "--max-concurrent-runs must be at least 1, but is 0"),
            ("--max-concurrent-runs-per-node=0", "--max-concurrent-runs-per-node must be at least 1, but is 0"),
            ("--storage-size=100", "--storage-size must be at least 16777216, but is 100"),
            (
                "--artifact-hosts=http://a/b",
                "--artifact-hosts: \"http://a/b\" is not a host; give HOST or HOST:PORT without a scheme or a path",
            ),
            (
                "--source-controller-localhost=a b",
                "SOURCE_CONTROLLER_LOCALHOST=\"a b\" is not a host; give HOST:PORT without a scheme or a path",
            ),
        ];
        for (argument, wanted) in cases {
            assert_eq!(with(argument).map(|_| ()).unwrap_err().to_string(), wanted);
        }
        assert_eq!(config(&[NEEDED[1]]), Err(ConfigError::NoRuntimeNamespace));
        assert!(config(&[NEEDED[0]]).unwrap_err().to_string().starts_with("--agent-image is not set"));
    }

    #[test]
    fn addresses_are_read_as_go_writes_them() {
        for (text, wanted) in [
            ("", None),
            ("0", None),
            (":80", Some("[::]:80")),
            ("127.0.0.1:80", Some("127.0.0.1:80")),
            ("[::1]:80", Some("[::1]:80")),
        ] {
            let wanted = wanted.map(|wanted| wanted.parse().unwrap());
            assert_eq!(address("metrics-addr", text), Ok(wanted), "{text}");
        }
    }

    #[test]
    fn hosts_of_artifacts_are_compared_in_lower_case() {
        let config = with("--artifact-hosts=Minio.Storage.svc:9000,, 10.0.0.1").unwrap();
        assert_eq!(config.artifact_hosts, ["minio.storage.svc:9000", "10.0.0.1"]);
    }
}

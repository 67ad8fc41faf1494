//! Validated settings and fixed limits of the manager.

mod concurrency_groups;
mod history;
mod mutual_tls;
mod otlp;
mod policy_packs;
mod selector;
mod storage;
mod ui;
mod values;
mod watch;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use jiff::SignedDuration;
use kube::core::Selector;
use sha2::{Digest, Sha256};
use url::Url;

use crate::api::names;
use crate::artifact;
use crate::cli::ManagerFlags;
use crate::telemetry::logging::{LogEncoding, LogLevel};
use crate::telemetry::traces;

pub use history::HistoryConfig;
pub use mutual_tls::MutualTlsConfig;
pub use policy_packs::ClusterPolicyPack;
pub use storage::StorageConfig;
pub use ui::{OidcConfig, UiConfig};
pub use values::{ConfigError, address};
use values::{artifact_host, duration, invalid, localhost, require_at_least, unset};
use watch::{label_selector, watch_namespace, watched_inputs};

/// Timeout for a request to the API server.
pub const API_TIMEOUT: Duration = Duration::from_secs(30);
/// Timeout of a reconciliation. A reconciliation never waits for a run.
pub const RECONCILE_TIMEOUT: Duration = Duration::from_secs(5 * 60);
/// Minimum interval at which the controller polls an idle agent's status.
pub const AGENT_STATUS_INTERVAL: Duration = Duration::from_secs(2 * 60);
/// Interval at which the controller checks the objects that a sleeping Workspace references.
pub const SLEEP_CHECK_INTERVAL: Duration = Duration::from_secs(10 * 60);
/// Minimum delay before the controller removes the pod of an idle Workspace.
pub const MIN_IDLE_AFTER: SignedDuration = SignedDuration::from_secs(60);
/// Grace period for reconciliations after the shutdown has started. The period is short, because a reconciliation never
/// waits for a run and the next leader repeats an aborted reconciliation.
pub const RECONCILES_END: Duration = Duration::from_secs(4);
/// Grace period for background tasks after all reconciliations have ended. During this period, the controller writes
/// the queued events and completes requests.
pub const TASKS_END: Duration = Duration::from_secs(2);
/// Time for which the webhook server accepts calls after the shutdown has started. Proxies still send calls to the
/// replica until they have received the new endpoints of the Service, and Git providers do not repeat rejected calls.
pub const WEBHOOKS_END: Duration = Duration::from_secs(2);
/// Maximum jitter of the retry period, as a fraction of the period. The jitter prevents replicas from trying to acquire
/// the Lease at the same time.
pub const LEASE_RETRY_JITTER: f64 = 0.2;
/// Name of the Lease that a controller without a label selector uses.
const DEFAULT_LEASE_NAME: &str = "pulumi-controller-leader-election";
/// Maximum length of the cluster name in bytes, which is the Pulumi Cloud limit for tag values.
const MAX_CLUSTER_NAME: usize = 256;
/// Minimum size of the artifact storage, in bytes.
const MIN_STORAGE_SIZE: u64 = 16 * 1024 * 1024;

/// Settings of the leader election.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaderElection {
    /// Name of the Lease in the controller's namespace. Each shard has a separate Lease.
    pub lease_name: String,
    /// Lease duration in whole seconds. Other replicas acquire the Lease if they observe no renewal for this duration.
    pub lease_duration: Duration,
    /// Deadline for the leader's writes, relative to the start of its last successful renewal. The deadline is shorter
    /// than `lease_duration`.
    pub renew_deadline: Duration,
    /// Interval between attempts to acquire or renew the Lease.
    pub retry_period: Duration,
    /// Whether to release the Lease on shutdown.
    pub release: bool,
}

/// Settings of the trace export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceExport {
    /// Collector that receives the controller's spans.
    pub collector: traces::Settings,
    /// Endpoint that receives the Pulumi CLI's spans, without credentials.
    pub workspace_endpoint: Option<String>,
}

/// Validated settings of the manager.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManagerConfig {
    /// Address of the metrics endpoint, if enabled.
    pub metrics_address: Option<SocketAddr>,
    /// Address of the health endpoint, if enabled.
    pub health_address: Option<SocketAddr>,
    /// Whether the metrics endpoint serves CPU profiles.
    pub enable_pprof: bool,
    /// URL of notification-controller, if configured.
    pub events_address: Option<Url>,
    /// Address of the webhook endpoint, if enabled.
    pub receiver_address: Option<SocketAddr>,
    /// Settings of the web UI, if enabled.
    pub ui: Option<UiConfig>,
    pub log_level: LogLevel,
    pub log_encoding: LogEncoding,
    /// Maximum number of concurrent reconciliations per kind.
    pub concurrent: u16,
    /// Namespace of the controller.
    pub runtime_namespace: String,
    /// Namespace to watch. `None` means all namespaces.
    pub watch_namespace: Option<String>,
    /// Label selector of the Stacks, Workspaces, Updates, Programs and StackReceivers to watch. `None` means all
    /// objects.
    pub watch_label_selector: Option<String>,
    /// Label selector of the Secrets and ConfigMaps whose changes start a run. `None` if changes to Secrets and
    /// ConfigMaps start no runs.
    pub watched_inputs: Option<Selector>,
    /// Settings of the leader election. `None` if leader election is disabled.
    pub leader_election: Option<LeaderElection>,
    /// Whether the controller is paused and starts no runs.
    pub is_paused: bool,
    /// Destroy limit: how many Stacks with resources users can delete without confirmation during a period, and the
    /// period. A maximum of zero disables the limit.
    pub max_destroys: (usize, SignedDuration),
    /// Maximum random deviation from a Stack's interval, in percent.
    pub interval_jitter: u8,
    /// Default ServiceAccount of workspace pods.
    pub default_service_account: Option<String>,
    /// ServiceAccounts that pods may use, as `name` or `namespace/name`. Empty means all ServiceAccounts.
    pub allowed_service_accounts: Vec<String>,
    /// Secret in the pod's namespace that contains the default access token for Pulumi Cloud.
    pub default_access_token_secret: Option<String>,
    /// Whether to reject pods that violate the Pod Security Standard `restricted` or have labels that network policies
    /// commonly select.
    pub restrict_workspace_pods: bool,
    /// Whether the controller, instead of the cluster, sets the user and the group of workspace pods.
    pub assign_workspace_user: bool,
    /// Whether the controller protects the pods of open runs from evictions, if the Workspace does not decide.
    pub eviction_protection: bool,
    /// Whether to reject references to other namespaces.
    pub no_cross_namespace_refs: bool,
    /// Source kinds whose artifacts have the same content if they have the same revision, even if their digests differ.
    pub same_revision_kinds: Vec<String>,
    /// Policy packs that the controller adds to all Stacks.
    pub policy_packs: Vec<ClusterPolicyPack>,
    /// Requeue interval for unmet dependencies and unavailable sources.
    pub requeue_dependency: Duration,
    /// Minimum and maximum delay after a failed reconciliation.
    pub retry_delays: (Duration, Duration),
    pub storage_path: PathBuf,
    /// Maximum size of the artifact storage, in bytes.
    pub storage_size: u64,
    /// History of runs, if enabled.
    pub history: Option<HistoryConfig>,
    /// Size limits of an artifact.
    pub artifact_limits: artifact::Limits,
    /// Directory with the host keys and CA certificates for all Git repositories.
    pub git_trust_path: PathBuf,
    /// Image that contains this binary.
    pub agent_image: String,
    /// Default image of workspace pods.
    pub default_workspace_image: String,
    /// Delay before the controller removes the pod of an idle Workspace without `spec.idle.after`. `None` means never.
    pub default_workspace_idle_after: Option<SignedDuration>,
    /// Settings for the data that an idle Workspace keeps.
    pub storage: StorageConfig,
    /// Maximum number of idle pods in each pool. Zero disables pools.
    pub max_idle_pods: usize,
    /// Maximum number of concurrent Pulumi runs.
    pub max_concurrent_runs: usize,
    /// Maximum number of concurrent runs per namespace.
    pub max_concurrent_runs_per_namespace: usize,
    /// Maximum number of concurrent runs per node.
    pub max_concurrent_runs_per_node: usize,
    /// Limits for the concurrency groups that namespaces can share, by group name.
    pub concurrency_groups: BTreeMap<String, u32>,
    /// Default timeout of a run, in whole seconds. If the value is zero, only the maximum timeout limits the run.
    pub default_run_timeout: Duration,
    /// Maximum timeout of a run, in whole seconds. Zero disables the maximum.
    pub max_run_timeout: Duration,
    /// Cluster name that the controller writes to the tags of Pulumi stacks. If the name is empty, the controller sets
    /// no tag.
    pub cluster_name: String,
    /// Settings of the trace export. `None` if the controller exports no traces.
    pub traces: Option<TraceExport>,
    /// Additional hosts that can serve artifacts, in lower case. Services in the controller's namespace are always
    /// allowed.
    pub artifact_hosts: Vec<String>,
    /// Host that replaces the host in artifact URLs, except the URLs of source-watcher.
    pub source_controller_localhost: Option<String>,
    /// Host that replaces the host in the artifact URLs of source-watcher.
    pub source_watcher_localhost: Option<String>,
    /// Settings of SPIFFE mutual TLS, if a flag authorizes a server.
    pub mutual_tls: Option<MutualTlsConfig>,
}

impl ManagerConfig {
    /// Validates the flags. The error message contains the invalid flag.
    pub fn from_flags(flags: ManagerFlags) -> Result<Self, ConfigError> {
        require_set_flags(&flags)?;
        require_at_least("concurrent", 1, u64::from(flags.concurrent))?;
        let runs_per_namespace = runs_per_namespace(&flags)?;
        let (default_run_timeout, max_run_timeout) = run_timeouts(&flags)?;
        let artifact_limits = artifact_limits(&flags)?;
        let watch_namespace = watch_namespace(&flags)?;
        let leader_election = flags.enable_leader_election.then(|| leader_election(&flags)).transpose()?;
        Ok(ManagerConfig {
            leader_election,
            retry_delays: retry_delays(&flags)?,
            max_destroys: max_destroys(&flags)?,
            history: history(&flags)?,
            mutual_tls: mutual_tls::mutual_tls(&flags)?,
            ui: ui(&flags)?,
            traces: traces(&flags)?,
            storage: StorageConfig::from_flags(&flags)?,
            watched_inputs: watched_inputs(&flags)?,
            metrics_address: metrics_address(&flags)?,
            health_address: address("health-addr", &flags.health_addr)?,
            enable_pprof: flags.enable_pprof,
            events_address: events_address(&flags.events_addr)?,
            is_paused: flags.pause,
            interval_jitter: flags.interval_jitter_percentage,
            default_service_account: Some(flags.default_service_account).filter(|name| !name.is_empty()),
            allowed_service_accounts: accounts(flags.allowed_service_accounts)?,
            default_access_token_secret: access_token_secret(flags.default_access_token_secret)?,
            restrict_workspace_pods: flags.restrict_workspace_pods,
            assign_workspace_user: flags.assign_workspace_user,
            eviction_protection: flags.eviction_protection,
            policy_packs: cluster_policy_packs(&flags.policy_packs)?,
            requeue_dependency: requeue_dependency(&flags.requeue_dependency)?,
            no_cross_namespace_refs: flags.no_cross_namespace_refs,
            same_revision_kinds: flags.same_revision_kinds.into_iter().filter(|kind| !kind.trim().is_empty()).collect(),
            receiver_address: address("receiver-addr", &flags.receiver_addr)?,
            log_level: flags.log.log_level,
            log_encoding: flags.log.log_encoding,
            concurrent: flags.concurrent,
            watch_namespace,
            runtime_namespace: flags.runtime_namespace,
            watch_label_selector: label_selector(&flags.watch_label_selector)?,
            storage_path: flags.storage_path,
            storage_size: flags.storage_size,
            artifact_limits,
            git_trust_path: flags.git_trust_path,
            agent_image: flags.agent_image,
            default_workspace_idle_after: idle_after(&flags.default_workspace_idle_after)?,
            default_workspace_image: flags.default_workspace_image,
            max_idle_pods: flags.max_idle_pods,
            max_concurrent_runs: flags.max_concurrent_runs,
            max_concurrent_runs_per_namespace: runs_per_namespace,
            max_concurrent_runs_per_node: flags.max_concurrent_runs_per_node,
            concurrency_groups: concurrency_groups(&flags.concurrency_groups)?,
            default_run_timeout,
            max_run_timeout,
            cluster_name: cluster_name(&flags.cluster_name)?,
            artifact_hosts: artifact_hosts(&flags.artifact_hosts)?,
            source_controller_localhost: localhost("SOURCE_CONTROLLER_LOCALHOST", flags.source_controller_localhost)?,
            source_watcher_localhost: localhost("SOURCE_WATCHER_LOCALHOST", flags.source_watcher_localhost)?,
        })
    }
}

/// Checks that the required flags are set. These flags have no default.
fn require_set_flags(flags: &ManagerFlags) -> Result<(), ConfigError> {
    if flags.runtime_namespace.is_empty() {
        return Err(unset("runtime-namespace", "RUNTIME_NAMESPACE", "namespace of the controller"));
    }
    if flags.agent_image.is_empty() {
        return Err(unset("agent-image", "AGENT_IMAGE", "image of the controller"));
    }
    Ok(())
}

/// Returns the address of the metrics endpoint, which also serves CPU profiles.
fn metrics_address(flags: &ManagerFlags) -> Result<Option<SocketAddr>, ConfigError> {
    let found = address("metrics-addr", &flags.metrics_addr)?;
    if flags.enable_pprof && found.is_none() {
        return Err(ConfigError(
            "--enable-pprof requires --metrics-addr: this endpoint serves the profiles".to_owned(),
        ));
    }
    Ok(found)
}

/// Validates the limits for concurrent runs, and returns the limit per namespace. By default, one namespace
/// can occupy at most half of the run slots, rounded up.
fn runs_per_namespace(flags: &ManagerFlags) -> Result<usize, ConfigError> {
    require_at_least("max-concurrent-runs", 1, flags.max_concurrent_runs as u64)?;
    require_at_least("max-concurrent-runs-per-node", 1, flags.max_concurrent_runs_per_node as u64)?;
    let default = || flags.max_concurrent_runs.div_ceil(2);
    let runs_per_namespace = flags.max_concurrent_runs_per_namespace.unwrap_or_else(default);
    require_at_least("max-concurrent-runs-per-namespace", 1, runs_per_namespace as u64)?;
    Ok(runs_per_namespace)
}

/// Returns the delay before the controller removes the pod of an idle Workspace, or `None` if the value is empty or
/// zero.
fn idle_after(value: &str) -> Result<Option<SignedDuration>, ConfigError> {
    if value.is_empty() || value == "0" {
        return Ok(None);
    }
    let flag = "default-workspace-idle-after";
    match SignedDuration::try_from(duration(flag, value)?) {
        Ok(after) if after.is_zero() => Ok(None),
        Ok(after) if after >= MIN_IDLE_AFTER => Ok(Some(after)),
        _ => Err(invalid(flag, value, "0s or at least 1m")),
    }
}

fn concurrency_groups(values: &[String]) -> Result<BTreeMap<String, u32>, ConfigError> {
    concurrency_groups::parse(values).map_err(|(value, why)| invalid("concurrency-groups", value, why))
}

/// Validates the cluster name, which becomes a tag value in Pulumi Cloud.
fn cluster_name(value: &str) -> Result<String, ConfigError> {
    let name = value.trim();
    if name.len() > MAX_CLUSTER_NAME || name.contains(char::is_control) {
        let valid = format!("at most {MAX_CLUSTER_NAME} bytes without control characters");
        return Err(invalid("cluster-name", name.escape_debug(), valid));
    }
    Ok(name.to_owned())
}

/// Returns the trace export settings, or `None` if the collector endpoint is empty. Error messages do not
/// contain the values, because a value can be a URL with credentials.
fn traces(flags: &ManagerFlags) -> Result<Option<TraceExport>, ConfigError> {
    let (endpoint, for_cli) = (flags.otlp_endpoint.trim(), flags.workspace_otlp_endpoint.trim());
    let invalid = |flag: &str, valid: &str| ConfigError(format!("invalid --{flag}: must be {valid}"));
    let workspace_endpoint = otlp::cli_endpoint(for_cli).map_err(|valid| invalid("workspace-otlp-endpoint", valid))?;
    if endpoint.is_empty() && workspace_endpoint.is_some() {
        return Err(ConfigError("--workspace-otlp-endpoint requires --otlp-endpoint".to_owned()));
    }
    if endpoint.is_empty() {
        return Ok(None);
    }
    let collector = otlp::settings(endpoint, &flags.otlp_headers).map_err(|valid| invalid("otlp-endpoint", valid))?;
    Ok(Some(TraceExport { collector, workspace_endpoint }))
}

/// Validates ServiceAccounts in the form `name` or `namespace/name`.
fn accounts(given: Vec<String>) -> Result<Vec<String>, ConfigError> {
    let trimmed = given.iter().map(|account| account.trim()).filter(|account| !account.is_empty());
    let check = |account: &str| match account.split('/').collect::<Vec<_>>().as_slice() {
        [name] | [_, name] if !name.is_empty() && !account.starts_with('/') => Ok(account.to_owned()),
        _ => Err(ConfigError(format!(
            "invalid ServiceAccount {account:?} in --allowed-service-accounts: must be NAME or NAMESPACE/NAME"
        ))),
    };
    trimmed.map(check).collect()
}

/// Returns the policy packs that the controller adds to all Stacks.
fn cluster_policy_packs(values: &[String]) -> Result<Vec<ClusterPolicyPack>, ConfigError> {
    policy_packs::parse(values)
        .map_err(|(value, why)| ConfigError(format!("invalid policy pack {value:?} in --policy-packs: {why}")))
}

/// Validates the name of the Secret that contains the default access token. Returns `None` if the name is empty.
fn access_token_secret(name: String) -> Result<Option<String>, ConfigError> {
    if name.is_empty() || names::is_object_name(&name) {
        return Ok(Some(name).filter(|name| !name.is_empty()));
    }
    Err(invalid("default-access-token-secret", &name, "the name of a Secret"))
}

fn events_address(value: &str) -> Result<Option<Url>, ConfigError> {
    if value.is_empty() {
        return Ok(None);
    }
    let url = Url::parse(value).ok().filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
    let example = "http://notification-controller.flux-system.svc.cluster.local./";
    url.map(Some).ok_or_else(|| invalid("events-addr", value, format!("an http or https URL, such as {example}")))
}

fn leader_election(flags: &ManagerFlags) -> Result<LeaderElection, ConfigError> {
    let lease = &flags.leader_election_lease_duration;
    let lease_duration = duration("leader-election-lease-duration", lease)?;
    if lease_duration.is_zero() || lease_duration.subsec_nanos() != 0 {
        return Err(invalid("leader-election-lease-duration", lease, "in whole seconds, at least 1s"));
    }
    let renew_deadline = duration("leader-election-renew-deadline", &flags.leader_election_renew_deadline)?;
    if lease_duration <= renew_deadline {
        return Err(invalid("leader-election-lease-duration", lease, "longer than --leader-election-renew-deadline"));
    }
    let retry_period = duration("leader-election-retry-period", &flags.leader_election_retry_period)?;
    if retry_period.is_zero() || renew_deadline <= retry_period.mul_f64(1.0 + LEASE_RETRY_JITTER) {
        let valid = "longer than --leader-election-retry-period plus 20 %, and the retry period must not be 0s";
        return Err(invalid("leader-election-renew-deadline", &flags.leader_election_renew_deadline, valid));
    }
    let lease_name = lease_name(flags.watch_label_selector.trim());
    let release = flags.leader_election_release_on_cancel;
    Ok(LeaderElection { lease_name, lease_duration, renew_deadline, retry_period, release })
}

/// Returns the name of the Lease. As in Flux, the controllers for different shards have different Leases.
fn lease_name(selector: &str) -> String {
    if selector.is_empty() {
        return DEFAULT_LEASE_NAME.to_owned();
    }
    let hash = hex::encode(Sha256::digest(selector));
    format!("{DEFAULT_LEASE_NAME}-{}", hash.get(..8).unwrap_or_default())
}

fn retry_delays(flags: &ManagerFlags) -> Result<(Duration, Duration), ConfigError> {
    let min_delay = duration("min-retry-delay", &flags.min_retry_delay)?;
    let max_delay = duration("max-retry-delay", &flags.max_retry_delay)?;
    if min_delay.is_zero() {
        return Err(invalid("min-retry-delay", &flags.min_retry_delay, "longer than 0s"));
    }
    if max_delay < min_delay {
        return Err(invalid("max-retry-delay", &flags.max_retry_delay, "at least --min-retry-delay"));
    }
    Ok((min_delay, max_delay))
}

fn requeue_dependency(value: &str) -> Result<Duration, ConfigError> {
    let flag = "requeue-dependency";
    match duration(flag, value)? {
        wait if wait < Duration::from_secs(1) => Err(invalid(flag, value, "at least 1s")),
        wait => Ok(wait),
    }
}

/// Returns how many Stacks with resources users can delete without confirmation during a period, and the period.
fn max_destroys(flags: &ManagerFlags) -> Result<(usize, SignedDuration), ConfigError> {
    let (flag, value) = ("max-destroys-interval", &flags.max_destroys_interval);
    let interval = duration(flag, value)?;
    if interval < Duration::from_secs(1) {
        return Err(invalid(flag, value, "at least 1s"));
    }
    let interval = SignedDuration::try_from(interval).map_err(|_| invalid(flag, value, "shorter"))?;
    Ok((flags.max_destroys, interval))
}

/// Returns the run history settings, or `None` if the history is disabled.
fn history(flags: &ManagerFlags) -> Result<Option<HistoryConfig>, ConfigError> {
    let address = address("history-addr", &flags.history_addr)?;
    let settings = history::of_flags(flags, history_max_age(flags)?, address);
    settings.map_err(|(flag, value, valid)| invalid(flag, value, valid))
}

fn artifact_hosts(hosts: &[String]) -> Result<Vec<String>, ConfigError> {
    hosts.iter().filter(|host| !host.trim().is_empty()).map(|host| artifact_host(host)).collect()
}

/// Returns the web UI settings, or `None` if the web UI is disabled.
fn ui(flags: &ManagerFlags) -> Result<Option<UiConfig>, ConfigError> {
    let settings = ui::of_flags(&flags.ui, address("ui-addr", &flags.ui.ui_addr)?);
    settings.map_err(|(flag, value, valid)| invalid(flag, value, valid))
}

/// Returns the maximum age of a run in the history. Zero disables the limit.
fn history_max_age(flags: &ManagerFlags) -> Result<Duration, ConfigError> {
    let (flag, value) = ("history-max-age", flags.history_max_age.as_str());
    match if value == "0" { Duration::ZERO } else { duration(flag, value)? } {
        age if !age.is_zero() && age < Duration::from_secs(3600) => Err(invalid(flag, value, "at least 1h, or 0")),
        age => Ok(age),
    }
}

/// Returns the default and the maximum timeout of a run.
fn run_timeouts(flags: &ManagerFlags) -> Result<(Duration, Duration), ConfigError> {
    let default = run_timeout("default-run-timeout", &flags.default_run_timeout)?;
    Ok((default, run_timeout("max-run-timeout", &flags.max_run_timeout)?))
}

/// Parses a run timeout and rounds it up to whole seconds, because the agent protocol has a resolution of one second.
/// If the function rounded a short timeout down to zero, the timeout would be disabled.
fn run_timeout(flag: &'static str, value: &str) -> Result<Duration, ConfigError> {
    if value == "0" {
        return Ok(Duration::ZERO);
    }
    let timeout = duration(flag, value)?;
    Ok(Duration::from_secs(timeout.as_secs() + u64::from(timeout.subsec_nanos() > 0)))
}

fn artifact_limits(flags: &ManagerFlags) -> Result<artifact::Limits, ConfigError> {
    let (download_bytes, unpacked_bytes) = (flags.artifact_max_size, flags.artifact_max_unpacked_size);
    require_at_least("storage-size", MIN_STORAGE_SIZE, flags.storage_size)?;
    require_at_least("artifact-max-size", 1, download_bytes)?;
    require_at_least("artifact-max-unpacked-size", 1, unpacked_bytes)?;
    if flags.storage_size < download_bytes {
        let minimum = format!("at least --artifact-max-size={download_bytes}");
        return Err(invalid("storage-size", flags.storage_size, minimum));
    }
    Ok(artifact::Limits { download_bytes, unpacked_bytes, ..artifact::Limits::default() })
}

#[cfg(test)]
mod tests;

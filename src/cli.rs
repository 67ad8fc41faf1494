//! Command line of the controller. The module [`crate::config`] validates the values of the flags.

mod ui;

use std::path::PathBuf;

use clap::{ArgAction, Args, Parser, Subcommand};

use crate::api::names;
use crate::telemetry::logging::{LogEncoding, LogLevel};

pub use self::ui::UiFlags;

/// Flux-native Kubernetes controller for Pulumi.
// As in Flux, the last value of a repeated flag applies, because a kustomize patch can only append an argument to the
// arguments of the base.
#[derive(Debug, Parser)]
#[command(name = "pulumi-controller", version, args_conflicts_with_subcommands = true, args_override_self = true)]
pub struct CommandLine {
    #[command(subcommand)]
    pub role: Option<Role>,

    /// Flags of the manager, which is the default role.
    #[command(flatten)]
    pub manager: ManagerFlags,
}

impl CommandLine {
    /// Returns the role from the command line, or the manager if the command line contains no role.
    pub fn into_role(self) -> Role {
        self.role.unwrap_or(Role::Manager(self.manager))
    }
}

/// Role of the process.
#[derive(Debug, Subcommand)]
#[expect(clippy::large_enum_variant, reason = "a process creates only one value of this type")]
pub enum Role {
    /// Run the controllers of Stacks, Workspaces, Updates, Programs and StackReceivers (default).
    Manager(ManagerFlags),
    /// Run the first process of the container `pulumi` in a workspace pod. This process starts the agent as its child.
    Agent(AgentFlags),
    /// Copy this binary to the share volume, in an init container of a workspace pod.
    Bootstrap(BootstrapFlags),
    /// Receive the source in an init container of a workspace pod, before user-defined init containers start.
    Fetch(FetchFlags),
    /// Start a program on behalf of the agent in a workspace pod. Internal.
    #[command(hide = true)]
    Launch(LaunchFlags),
    /// Evaluate a CEL expression from stdin, in a child process of the manager. Internal.
    #[command(hide = true)]
    Evaluate,
    /// Communicate with a Git server or pack a fetched commit, in a child process of the manager. Internal.
    #[command(hide = true)]
    Git,
    /// Compare the schemas that the API server serves with the schemas of this version, in a child process of the
    /// manager. Internal.
    #[command(hide = true)]
    CompareSchemas,
    /// Print the CustomResourceDefinitions.
    Crds,
}

/// Flags for logging.
#[derive(Clone, Copy, Debug, Args)]
pub struct LogFlags {
    /// Log level.
    #[arg(long, value_enum, default_value_t)]
    pub log_level: LogLevel,

    /// Log format.
    #[arg(long, value_enum, default_value_t)]
    pub log_encoding: LogEncoding,
}

/// Flags of the manager, with the names that Flux uses.
#[derive(Clone, Debug, Args)]
pub struct ManagerFlags {
    /// Address of the metrics endpoint. `0` disables the endpoint.
    #[arg(long, default_value = ":8080", value_name = "HOST:PORT")]
    pub metrics_addr: String,

    /// Address of the health endpoint. `0` disables the endpoint.
    #[arg(long, default_value = ":9440", value_name = "HOST:PORT")]
    pub health_addr: String,

    /// Serve CPU profiles at the path `/debug/pprof/profile` of the metrics endpoint, without authentication.
    #[arg(long, default_value_t = false, action = ArgAction::Set, num_args = 0..=1, require_equals = true,
          default_missing_value = "true")]
    pub enable_pprof: bool,

    /// URL of the Flux notification-controller that receives this controller's events.
    #[arg(long, default_value = "", value_name = "URL")]
    pub events_addr: String,

    /// Address of the webhook endpoint for StackReceivers. `0` disables the endpoint.
    #[arg(long, default_value = "0", value_name = "HOST:PORT")]
    pub receiver_addr: String,

    #[command(flatten)]
    pub ui: UiFlags,

    #[command(flatten)]
    pub log: LogFlags,

    /// Maximum number of concurrent reconciliations per kind. Updates with an open run have the same number of separate
    /// slots. The maximum for Workspaces is fixed.
    #[arg(long, default_value_t = 4)]
    pub concurrent: u16,

    /// Watch all namespaces. If `false`, watch only the namespace in `--watch-namespace`.
    #[arg(long, default_value_t = true, action = ArgAction::Set, num_args = 0..=1, require_equals = true,
          default_missing_value = "true")]
    pub watch_all_namespaces: bool,

    /// Namespace to watch with `--watch-all-namespaces=false`. Default: the controller's namespace.
    #[arg(long, default_value = "", value_name = "NAMESPACE")]
    pub watch_namespace: String,

    /// Label selector for the Stacks, Workspaces, Updates, Programs and StackReceivers to watch. Default: all objects.
    #[arg(long, default_value = "")]
    pub watch_label_selector: String,

    /// Label selector for the Secrets and ConfigMaps to watch. A change to a watched object starts a run of each Stack
    /// that references the object.
    #[arg(long, default_value = "reconcile.fluxcd.io/watch=Enabled")]
    pub watch_configs_label_selector: String,

    /// Comma-separated list of feature gates. With `DisableConfigWatchers=true`, changes to labeled Secrets and
    /// ConfigMaps do not start runs.
    #[arg(long, value_delimiter = ',', value_name = "NAME=BOOL")]
    pub feature_gates: Vec<String>,

    /// Start no new runs, for example during an incident. Open runs continue. The namespace annotation
    /// `pulumi.com/pause` has the same effect for one namespace.
    #[arg(long, default_value_t = false, action = ArgAction::Set, num_args = 0..=1, require_equals = true,
          default_missing_value = "true")]
    pub pause: bool,

    /// Maximum number of Stacks with resources to destroy that users can delete within `--max-destroys-interval`. If
    /// users delete more Stacks, the destroy of each of these Stacks waits until a user confirms the destroy with the
    /// annotation `pulumi.com/confirm-destroy`. When the controller checks the limit for a Stack, it counts the
    /// deletions in each other namespace only up to half of the limit, rounded up. `0` disables the limit.
    #[arg(long, default_value_t = 0, value_name = "NUMBER")]
    pub max_destroys: usize,

    /// Period to which `--max-destroys` applies.
    #[arg(long, default_value = "10m", value_name = "DURATION")]
    pub max_destroys_interval: String,

    /// Maximum random deviation from a Stack's interval, in percent. The deviation distributes the runs over time. `0`
    /// disables the deviation.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u8).range(0..100), value_name = "PERCENT")]
    pub interval_jitter_percentage: u8,

    /// Default ServiceAccount of workspace pods, in the pod's namespace.
    #[arg(long, default_value = "", value_name = "NAME")]
    pub default_service_account: String,

    /// ServiceAccounts that workspace pods may use: `NAME` in every namespace, or `NAMESPACE/NAME` in one namespace.
    /// Default: all ServiceAccounts.
    #[arg(long, value_delimiter = ',', value_name = "[NAMESPACE/]NAME")]
    pub allowed_service_accounts: Vec<String>,

    /// Secret in the pod's namespace that contains the access token for Pulumi Cloud in the key `accessToken`. The
    /// agent uses the token if the Stack or the Workspace sets no credentials for Pulumi Cloud and the Secret exists.
    #[arg(long, default_value = "", value_name = "NAME")]
    pub default_access_token_secret: String,

    /// Reject a Workspace whose pod, including `podTemplate`, violates the Pod Security Standard `restricted` or has a
    /// label that network policies commonly select, such as `app`.
    #[arg(long, default_value_t = false, action = ArgAction::Set, num_args = 0..=1, require_equals = true,
          default_missing_value = "true")]
    pub restrict_workspace_pods: bool,

    /// Set the user and the group of workspace pods with the security profile `restricted` to 1000. With `false`, the
    /// cluster sets them, for example the SecurityContextConstraints of OpenShift.
    #[arg(long, default_value_t = true, action = ArgAction::Set, num_args = 0..=1, require_equals = true,
          default_missing_value = "true")]
    pub assign_workspace_user: bool,

    /// Protect workspace pods from evictions during a run, with a PodDisruptionBudget and with annotations for the Cluster
    /// Autoscaler and Karpenter. Without this protection, a node drain interrupts the runs on the node.
    #[arg(long, default_value_t = true, action = ArgAction::Set, num_args = 0..=1, require_equals = true,
          default_missing_value = "true")]
    pub eviction_protection: bool,

    /// Reject references to sources and Stacks in other namespaces.
    #[arg(long, default_value_t = true, action = ArgAction::Set, num_args = 0..=1, require_equals = true,
          default_missing_value = "true")]
    pub no_cross_namespace_refs: bool,

    /// Source kinds whose artifacts have the same content if they have the same revision. For these kinds, a new digest
    /// of the same revision does not start a run. The format is `KIND` for the Flux source kinds, and `KIND.GROUP` for
    /// other kinds. The revision must contain a checksum. If the list is empty, every new digest starts a run.
    #[arg(long, value_delimiter = ',', default_value = "GitRepository", value_name = "KINDS")]
    pub same_revision_kinds: Vec<String>,

    /// Policy packs that the updates and previews of all Stacks enforce. The directory defaults to the root of the
    /// artifact. The format of the kind is `KIND` for the Flux source kinds, and `KIND.GROUP` for other kinds.
    #[arg(long, value_delimiter = ',', value_name = "KIND/NAMESPACE/NAME[:DIR]")]
    pub policy_packs: Vec<String>,

    /// Requeue interval for unmet dependencies and unavailable sources.
    #[arg(long, default_value = "30s", value_name = "DURATION")]
    pub requeue_dependency: String,

    /// Enable leader election. Only the leader reconciles objects.
    #[arg(long, default_value_t = false, action = ArgAction::Set, num_args = 0..=1, require_equals = true,
          default_missing_value = "true")]
    pub enable_leader_election: bool,

    /// Duration of the Lease. Another replica acquires the Lease if it has observed no renewal for this time.
    #[arg(long, default_value = "35s", value_name = "DURATION")]
    pub leader_election_lease_duration: String,

    /// Deadline for renewals of the Lease. A leader that misses the deadline stops its writes and exits.
    #[arg(long, default_value = "30s", value_name = "DURATION")]
    pub leader_election_renew_deadline: String,

    /// Interval between attempts to acquire or renew the Lease.
    #[arg(long, default_value = "5s", value_name = "DURATION")]
    pub leader_election_retry_period: String,

    /// Release the Lease on shutdown, so that another replica can become the leader immediately.
    #[arg(long, default_value_t = true, action = ArgAction::Set, num_args = 0..=1, require_equals = true,
          default_missing_value = "true")]
    pub leader_election_release_on_cancel: bool,

    /// Initial backoff of an object after a failed reconciliation. The backoff doubles with each further failure.
    #[arg(long, default_value = "750ms", value_name = "DURATION")]
    pub min_retry_delay: String,

    /// Maximum backoff of an object after failed reconciliations.
    #[arg(long, default_value = "15m", value_name = "DURATION")]
    pub max_retry_delay: String,

    /// Directory of the artifact storage.
    #[arg(long, default_value = "/data")]
    pub storage_path: PathBuf,

    /// Maximum size of the artifact storage, in bytes. The volume must also have space for three concurrent Git
    /// fetches. Each fetch requires up to 592 MiB plus the maximum artifact size.
    #[arg(long, default_value_t = 1024 * 1024 * 1024, value_name = "BYTES")]
    pub storage_size: u64,

    /// URL of the run history: `s3://BUCKET/PREFIX`, `gs://BUCKET/PREFIX`, `az://CONTAINER/PREFIX` or
    /// `file:///DIRECTORY`. If the URL is empty, the controller stores no history. Default: the directory `history` in
    /// `--storage-path`. Without a persistent volume, this directory is lost with the pod.
    #[arg(long, value_name = "URL")]
    pub history_url: Option<String>,

    /// Maximum number of runs per type that the history keeps for a Stack, from 1 to 200.
    #[arg(long, default_value_t = 20, value_name = "NUMBER")]
    pub history_max_runs: usize,

    /// Maximum age of a run in the history. The limit also applies to the runs of deleted Stacks. `0` disables the
    /// limit.
    #[arg(long, default_value = "720h", value_name = "DURATION")]
    pub history_max_age: String,

    /// Maximum size of the run history on a volume, in bytes. The limit does not apply to a run history in object
    /// storage.
    #[arg(long, default_value_t = 128 * 1024 * 1024, value_name = "BYTES")]
    pub history_max_size: u64,

    /// Address of the HTTP endpoint for the run history. The endpoint checks the permissions of the user, but does not
    /// encrypt the connection. `0` disables the endpoint.
    #[arg(long, default_value = "0", value_name = "HOST:PORT")]
    pub history_addr: String,

    /// Maximum size of an artifact that the controller downloads, or packs from a Git repository, in bytes.
    #[arg(long, default_value_t = 256 * 1024 * 1024, value_name = "BYTES")]
    pub artifact_max_size: u64,

    /// Maximum unpacked size of an artifact, in bytes.
    #[arg(long, default_value_t = 1024 * 1024 * 1024, value_name = "BYTES")]
    pub artifact_max_unpacked_size: u64,

    /// Directory with SSH host keys (`known_hosts`) and CA certificates (`ca.crt`) for the Git repositories of all
    /// Stacks. The controller also trusts the CA certificates for the OIDC issuers of StackReceivers. Both files are
    /// optional.
    #[arg(long, default_value = "/etc/pulumi-controller/git", value_name = "DIRECTORY")]
    pub git_trust_path: PathBuf,

    /// Image that contains this binary, for the init containers of workspace pods.
    #[arg(long, default_value = "", env = "AGENT_IMAGE", value_name = "IMAGE")]
    pub agent_image: String,

    /// Default image of workspace pods. For the security profile `baseline`, the controller removes the suffix
    /// `-nonroot`.
    #[arg(long, default_value = "pulumi/pulumi:latest-nonroot", value_name = "IMAGE")]
    pub default_workspace_image: String,

    /// Delay before the controller removes the pod of an idle Workspace, for Workspaces without `spec.idle.after`. A
    /// Workspace is idle if it has no open run and no interactive session. The next run creates the pod again. The
    /// minimum is `1m`. Default: never.
    #[arg(long, default_value = "", value_name = "DURATION")]
    pub default_workspace_idle_after: String,

    /// Data that a Workspace without `spec.idle.keep` keeps while it has no pod: `Nothing` or `Caches`.
    #[arg(long, default_value = "Nothing", value_name = "KEEP")]
    pub default_workspace_idle_keep: String,

    /// PersistentVolumeClaim for the dependency cache, in each namespace with Workspaces that keep their caches.
    #[arg(long, default_value = "pulumi-cache", value_name = "NAME")]
    pub workspace_cache_claim: String,

    /// Maximum total size of the archives in a dependency cache, in bytes. The agents evict the least recently used
    /// archives.
    #[arg(long, default_value_t = names::CACHE_SIZE, value_name = "BYTES")]
    pub workspace_cache_size: u64,

    /// Maximum number of idle pods in each pool. The namespace annotation `pulumi.com/idle-pods` sets the number of
    /// idle pods. A pool contains idle pods of one namespace with the same pod template. A Workspace that wakes up
    /// takes a pod from the pool. `0` disables pools.
    #[arg(long, default_value_t = 0)]
    pub max_idle_pods: usize,

    /// Maximum number of concurrent runs.
    #[arg(long, default_value_t = 10)]
    pub max_concurrent_runs: usize,

    /// Maximum number of concurrent runs per namespace. Default: half of `--max-concurrent-runs`, rounded up.
    #[arg(long)]
    pub max_concurrent_runs_per_namespace: Option<usize>,

    /// Maximum number of concurrent runs per node. At most half of the runs on a node, rounded up, can belong to one
    /// namespace. A run uses about one CPU for most of its duration.
    #[arg(long, default_value_t = 6)]
    pub max_concurrent_runs_per_node: usize,

    /// Concurrency groups that namespaces can share, as NAME=LIMIT, such as `aws-prod=2`. The namespace annotation
    /// `pulumi.com/concurrency-groups` lists the groups that a namespace shares. Default: each concurrency group
    /// belongs to one namespace.
    #[arg(long, value_delimiter = ',', value_name = "NAME=LIMIT,...")]
    pub concurrency_groups: Vec<String>,

    /// Default timeout of a run, for Stacks and Updates without `spec.timeout`. The agent gracefully cancels a run that
    /// exceeds the timeout. With `0`, only `--max-run-timeout` limits the duration of these runs.
    #[arg(long, default_value = "3h", value_name = "DURATION")]
    pub default_run_timeout: String,

    /// Maximum timeout of a run. The maximum applies if the timeout of a run is longer, or is disabled with `0s`. `0`
    /// disables the maximum.
    #[arg(long, default_value = "24h", value_name = "DURATION")]
    pub max_run_timeout: String,

    /// Name of the cluster, at most 256 bytes. In Pulumi Cloud, each Pulumi stack has the tag `kubernetes:cluster` with
    /// this name. Default: no tag.
    #[arg(long, default_value = "", value_name = "NAME")]
    pub cluster_name: String,

    /// URL of an OpenTelemetry collector that receives the traces of all runs over OTLP/HTTP, such as
    /// `http://collector:4318`. Default: no traces.
    #[arg(long, env = "OTEL_EXPORTER_OTLP_ENDPOINT", default_value = "", value_name = "URL")]
    pub otlp_endpoint: String,

    /// Headers for requests to the collector, in the format `NAME=VALUE,…` with percent-encoded values. To keep
    /// credentials out of the arguments, set the environment variable from a Secret.
    #[arg(long, env = "OTEL_EXPORTER_OTLP_HEADERS", default_value = "", hide_env_values = true)]
    pub otlp_headers: String,

    /// URL to which the Pulumi CLI in workspace pods exports its own spans, such as `grpc://collector:4317`. Every
    /// Pulumi program can read the URL and send spans to the collector. Requires `--otlp-endpoint`. Default: the CLI
    /// exports no spans.
    #[arg(long, default_value = "", value_name = "URL")]
    pub workspace_otlp_endpoint: String,

    /// Additional hosts from which the controller may fetch artifacts. Services in the controller's namespace are
    /// always allowed.
    #[arg(long, value_delimiter = ',', value_name = "HOST")]
    pub artifact_hosts: Vec<String>,

    /// SPIFFE ID of an artifact server from which the controller may fetch artifacts: an exact SPIFFE ID, a prefix that
    /// ends with `/`, or a trust domain such as `spiffe://example.org`. The trust domain `self` is the trust domain of
    /// the controller. Can be repeated. If the flag is set, the controller uses SPIFFE mutual TLS for all artifacts.
    #[arg(long, value_name = "SPIFFE_ID")]
    pub authorized_artifact_server_spiffe_id: Vec<String>,

    /// SPIFFE ID of an event server to which the controller may send events, in the same format. Can be repeated. If
    /// the flag is set, the controller uses SPIFFE mutual TLS for all requests to `--events-addr`.
    #[arg(long, value_name = "SPIFFE_ID")]
    pub authorized_event_server_spiffe_id: Vec<String>,

    /// Socket of the SPIFFE Workload API, such as `unix:///spiffe-workload-api/spire-agent.sock`. Required for SPIFFE
    /// mutual TLS.
    #[arg(long, env = "SPIFFE_ENDPOINT_SOCKET", default_value = "", value_name = "URI")]
    pub spiffe_endpoint_socket: String,

    /// Namespace of the controller.
    #[arg(long, env = "RUNTIME_NAMESPACE", default_value = "", hide_default_value = true)]
    pub runtime_namespace: String,

    /// Host that replaces the host in artifact URLs, except the URLs of source-watcher. Set this flag if the controller
    /// runs outside the cluster.
    #[arg(long, env = "SOURCE_CONTROLLER_LOCALHOST", value_name = "HOST:PORT")]
    pub source_controller_localhost: Option<String>,

    /// Host that replaces the host in the artifact URLs of source-watcher. Set this flag if the controller runs outside
    /// the cluster.
    #[arg(long, env = "SOURCE_WATCHER_LOCALHOST", value_name = "HOST:PORT")]
    pub source_watcher_localhost: Option<String>,
}

/// Flags for the roles in a workspace pod.
#[derive(Clone, Debug, Args)]
pub struct PodFlags {
    /// Mount path of the volume that the pod's containers share.
    #[arg(long, default_value = names::SHARE_DIRECTORY)]
    pub share: PathBuf,

    /// Directory with the agent's certificate, key and CA bundle.
    #[arg(long, default_value = names::TLS_DIRECTORY)]
    pub tls_directory: PathBuf,

    /// Address of the gRPC service.
    #[arg(long, default_value_t = format!(":{}", names::AGENT_PORT), value_name = "HOST:PORT")]
    pub address: String,

    /// UID of the pod.
    #[arg(long, env = "POD_UID", default_value = "", hide_default_value = true)]
    pub pod_uid: String,
}

/// Flags of the agent.
#[derive(Clone, Debug, Args)]
pub struct AgentFlags {
    /// Run the agent itself instead of its parent process.
    #[arg(long)]
    pub child: bool,

    #[command(flatten)]
    pub pod: PodFlags,

    /// Address of the readiness endpoint.
    #[arg(long, default_value_t = format!(":{}", names::AGENT_HEALTH_PORT), value_name = "HOST:PORT")]
    pub health_address: String,

    /// Path of the file from which the kubelet reads the termination message.
    #[arg(long, default_value = "/dev/termination-log")]
    pub termination_log: PathBuf,

    /// Name of the pod.
    #[arg(long, env = "POD_NAME", default_value = "", hide_default_value = true)]
    pub pod_name: String,

    /// Termination grace period of the pod, in seconds.
    #[arg(long, env = "POD_TERMINATION_GRACE_SECONDS", default_value_t = names::TERMINATION_GRACE_SECONDS,
          value_name = "SECONDS")]
    pub termination_grace_seconds: u64,

    /// Delay before the agent determines the CLI version, in seconds.
    #[arg(long, default_value_t = 120, value_name = "SECONDS")]
    pub version_after_seconds: u64,

    /// Mount path of the volume with the dependency cache. Without this directory, the agent uses no cache.
    #[arg(long, env = "DEPENDENCY_CACHE_DIRECTORY", default_value = names::CACHE_DIRECTORY, value_name = "DIRECTORY")]
    pub cache_directory: PathBuf,

    /// Maximum total size of the archives in the dependency cache, in bytes.
    #[arg(long, env = names::CACHE_SIZE_VARIABLE, default_value_t = names::CACHE_SIZE, value_name = "BYTES")]
    pub cache_size: u64,

    #[command(flatten)]
    pub log: LogFlags,
}

/// Flags for the role that copies the binary to the share volume.
#[derive(Clone, Debug, Args)]
pub struct BootstrapFlags {
    /// Destination of the copy.
    #[arg(long, value_name = "FILE")]
    pub to: PathBuf,

    /// Path of the project directory. If the directory does not exist, the role creates it.
    #[arg(long, value_name = "DIRECTORY")]
    pub project: Option<PathBuf>,

    /// Mount path of the share volume.
    #[arg(long, default_value = names::SHARE_DIRECTORY, value_name = "DIRECTORY")]
    pub share: PathBuf,

    /// Name of the Workspace, for a persistent share volume. The role fails if the volume belongs to another Workspace.
    #[arg(long, value_name = "NAME")]
    pub owner: Option<String>,

    /// Delete the source of the previous pod from a persistent share volume.
    #[arg(long)]
    pub discard_source: bool,
}

/// Flags for the init container that receives the source.
#[derive(Clone, Debug, Args)]
pub struct FetchFlags {
    #[command(flatten)]
    pub pod: PodFlags,

    #[command(flatten)]
    pub log: LogFlags,
}

/// Arguments for the role that starts a program.
#[derive(Clone, Debug, Args)]
pub struct LaunchFlags {
    /// Program and its arguments.
    #[arg(last = true, required = true, value_name = "ARGS")]
    pub arguments: Vec<std::ffi::OsString>,
}

#[cfg(test)]
mod tests;

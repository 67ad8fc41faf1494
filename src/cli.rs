//! The command line: what was typed. What it means is in [`crate::config`].

use std::path::PathBuf;

use clap::{ArgAction, Args, Parser, Subcommand};

use crate::api::names;
use crate::telemetry::logging::{LogEncoding, LogLevel};

/// The Flux controller for Pulumi.
#[derive(Debug, Parser)]
#[command(name = "pulumi-controller", version, args_conflicts_with_subcommands = true)]
pub struct CommandLine {
    #[command(subcommand)]
    pub role: Option<Role>,

    /// Flags of the manager, the role that is taken when none is named.
    #[command(flatten)]
    pub manager: ManagerFlags,
}

impl CommandLine {
    /// The role that was named, or the manager.
    pub fn into_role(self) -> Role {
        self.role.unwrap_or(Role::Manager(self.manager))
    }
}

/// What the binary is to be.
#[derive(Debug, Subcommand)]
#[expect(clippy::large_enum_variant, reason = "there is one in the life of a process")]
pub enum Role {
    /// The controller of Stacks, Workspaces, Updates, Programs and StackReceivers (the default).
    Manager(ManagerFlags),
    /// In a workspace pod: the first process, with the agent as its child.
    Agent(AgentFlags),
    /// In a workspace pod's init container: copies this binary to where the agent's container finds it.
    Bootstrap(BootstrapFlags),
    /// In a workspace pod's init container: takes the source, for the user's init containers that come after it.
    Fetch(FetchFlags),
    /// In a workspace pod: starts a program, for the agent only.
    #[command(hide = true)]
    Launch(LaunchFlags),
    /// In a child process of the manager: evaluates an expression from stdin, for the manager only.
    #[command(hide = true)]
    Evaluate,
    /// In a child process of the manager: talks to a Git server or packs what it has sent, for the manager only.
    #[command(hide = true)]
    Git,
    /// In a child process of the manager: compares served schemas with those of this version, for the manager only.
    #[command(hide = true)]
    CompareSchemas,
    /// Prints the CustomResourceDefinitions.
    Crds,
}

/// How the process logs.
#[derive(Clone, Copy, Debug, Args)]
pub struct LogFlags {
    /// Verbosity of the log.
    #[arg(long, value_enum, default_value_t)]
    pub log_level: LogLevel,

    /// Format of the log.
    #[arg(long, value_enum, default_value_t)]
    pub log_encoding: LogEncoding,
}

/// Flags of the manager, named as Flux names them.
#[derive(Clone, Debug, Args)]
pub struct ManagerFlags {
    /// Address of the metrics endpoint; `0` for none.
    #[arg(long, default_value = ":8080", value_name = "HOST:PORT")]
    pub metrics_addr: String,

    /// Address of the health endpoint; `0` for none.
    #[arg(long, default_value = ":9440", value_name = "HOST:PORT")]
    pub health_addr: String,

    /// Serve CPU profiles of the controller at `/debug/pprof/profile` of the metrics endpoint, to anyone who can connect to it.
    #[arg(long, default_value_t = false, action = ArgAction::Set, num_args = 0..=1, require_equals = true,
          default_missing_value = "true")]
    pub enable_pprof: bool,

    /// URL that events are posted to: that of Flux's notification-controller.
    #[arg(long, default_value = "", value_name = "URL")]
    pub events_addr: String,

    /// Address at which StackReceivers take webhooks; `0` for none.
    #[arg(long, default_value = "0", value_name = "HOST:PORT")]
    pub receiver_addr: String,

    #[command(flatten)]
    pub log: LogFlags,

    /// How many objects of each kind are reconciled at the same time.
    #[arg(long, default_value_t = 4)]
    pub concurrent: u16,

    /// Watch all namespaces; otherwise only the one that the controller runs in.
    #[arg(long, default_value_t = true, action = ArgAction::Set, num_args = 0..=1, require_equals = true,
          default_missing_value = "true")]
    pub watch_all_namespaces: bool,

    /// Namespace to watch with `--watch-all-namespaces=false`. Default: the one that the controller runs in.
    #[arg(long, default_value = "", value_name = "NAMESPACE")]
    pub watch_namespace: String,

    /// Watch only the Stacks, Workspaces, Updates, Programs and StackReceivers with these labels, as a label selector.
    #[arg(long, default_value = "")]
    pub watch_label_selector: String,

    /// Run a Stack when a Secret or a ConfigMap with these labels that it refers to has changed, as a label selector.
    #[arg(long, default_value = "reconcile.fluxcd.io/watch=Enabled")]
    pub watch_configs_label_selector: String,

    /// Switches, such as `DisableConfigWatchers=true`: then no label makes a change of a Secret or a ConfigMap a reason to run.
    #[arg(long, value_delimiter = ',', value_name = "NAME=BOOL")]
    pub feature_gates: Vec<String>,

    /// By how many percent the interval of a Stack may be longer or shorter, so that not all run at once; `0` for none.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u8).range(0..100), value_name = "PERCENT")]
    pub interval_jitter_percentage: u8,

    /// ServiceAccount of workspace pods whose Stack or Workspace names none, in their own namespace.
    #[arg(long, default_value = "", value_name = "NAME")]
    pub default_service_account: String,

    /// ServiceAccounts that workspace pods may run as: `NAME` in every namespace, `NAMESPACE/NAME` in one. Default: all.
    #[arg(long, value_delimiter = ',', value_name = "[NAMESPACE/]NAME")]
    pub allowed_service_accounts: Vec<String>,

    /// Refuse Workspaces whose pods, merged with `podTemplate`, do not meet the Pod Security Standard `restricted`, or carry labels
    /// that network policies select by, such as `app`.
    #[arg(long, default_value_t = false, action = ArgAction::Set, num_args = 0..=1, require_equals = true,
          default_missing_value = "true")]
    pub restrict_workspace_pods: bool,

    /// Refuse Stacks that name sources or other Stacks of other namespaces.
    #[arg(long, default_value_t = true, action = ArgAction::Set, num_args = 0..=1, require_equals = true,
          default_missing_value = "true")]
    pub no_cross_namespace_refs: bool,

    /// Kinds of sources whose artifacts have the same content if their revision is the same: another digest of it does not start a run.
    /// `KIND` of Flux's own sources, or `KIND.GROUP`. The revision has to have a checksum; empty for none.
    #[arg(long, value_delimiter = ',', default_value = "GitRepository", value_name = "KINDS")]
    pub same_revision_kinds: Vec<String>,

    /// How soon a Stack looks again at what it waits for, a source or another Stack, if nothing tells it sooner.
    #[arg(long, default_value = "30s", value_name = "DURATION")]
    pub requeue_dependency: String,

    /// Elect a leader among the replicas, so that only one writes at a time.
    #[arg(long, default_value_t = false, action = ArgAction::Set, num_args = 0..=1, require_equals = true,
          default_missing_value = "true")]
    pub enable_leader_election: bool,

    /// How long a replica waits before it takes the Lease of a leader that has stopped renewing it.
    #[arg(long, default_value = "35s", value_name = "DURATION")]
    pub leader_election_lease_duration: String,

    /// How long the leader tries to renew its Lease before it gives up and writes nothing any more.
    #[arg(long, default_value = "30s", value_name = "DURATION")]
    pub leader_election_renew_deadline: String,

    /// The pause between two attempts to take or to renew the Lease.
    #[arg(long, default_value = "5s", value_name = "DURATION")]
    pub leader_election_retry_period: String,

    /// Let go of the Lease at the end, so that another replica leads at once.
    #[arg(long, default_value_t = true, action = ArgAction::Set, num_args = 0..=1, require_equals = true,
          default_missing_value = "true")]
    pub leader_election_release_on_cancel: bool,

    /// The wait after the first failed reconcile of an object; it doubles with each further one.
    #[arg(long, default_value = "750ms", value_name = "DURATION")]
    pub min_retry_delay: String,

    /// The longest wait after a failed reconcile of an object.
    #[arg(long, default_value = "15m", value_name = "DURATION")]
    pub max_retry_delay: String,

    /// Directory in which artifacts are kept.
    #[arg(long, default_value = "/data")]
    pub storage_path: PathBuf,

    /// How many bytes of artifacts are kept. The volume holds Git repositories that are being fetched as well: up to three, each with
    /// 592 MiB and an artifact of the largest size.
    #[arg(long, default_value_t = 1024 * 1024 * 1024, value_name = "BYTES")]
    pub storage_size: u64,

    /// The largest artifact that is fetched, or made of a Git repository, in bytes.
    #[arg(long, default_value_t = 256 * 1024 * 1024, value_name = "BYTES")]
    pub artifact_max_size: u64,

    /// What an artifact may come to when it is unpacked, in bytes.
    #[arg(long, default_value_t = 1024 * 1024 * 1024, value_name = "BYTES")]
    pub artifact_max_unpacked_size: u64,

    /// Directory with `known_hosts` and `ca.crt`: SSH host keys and certificate authorities that are trusted for the Git repositories
    /// of all Stacks. Neither has to be there.
    #[arg(long, default_value = "/etc/pulumi-controller/git", value_name = "DIRECTORY")]
    pub git_trust_path: PathBuf,

    /// Image of this binary, for the init container of workspace pods.
    #[arg(long, default_value = "", env = "AGENT_IMAGE", value_name = "IMAGE")]
    pub agent_image: String,

    /// Image of workspace pods that name none; with the security profile `baseline` without `-nonroot` at its end.
    #[arg(long, default_value = "pulumi/pulumi:latest-nonroot", value_name = "IMAGE")]
    pub default_workspace_image: String,

    /// Maximum number of Pulumi runs that are open at the same time.
    #[arg(long, default_value_t = 10)]
    pub max_concurrent_runs: usize,

    /// Maximum number of open runs of one namespace. Default: half of `--max-concurrent-runs`, rounded up.
    #[arg(long)]
    pub max_concurrent_runs_per_namespace: Option<usize>,

    /// Maximum number of open runs on one node. A run uses a CPU for most of its time.
    #[arg(long, default_value_t = 4)]
    pub max_concurrent_runs_per_node: usize,

    /// Maximum duration of a run whose Stack or Update has no `spec.timeout`; a run that takes longer is canceled
    /// gracefully. `0` for none.
    #[arg(long, default_value = "3h", value_name = "DURATION")]
    pub default_run_timeout: String,

    /// Upper limit for the duration of every run, also of one whose `spec.timeout` is longer or `0s`. `0` for none.
    #[arg(long, default_value = "24h", value_name = "DURATION")]
    pub max_run_timeout: String,

    /// Hosts from which artifacts may be fetched, besides Services in the controller's own namespace.
    #[arg(long, value_delimiter = ',', value_name = "HOST")]
    pub artifact_hosts: Vec<String>,

    /// Namespace in which the controller runs.
    #[arg(long, env = "RUNTIME_NAMESPACE", default_value = "", hide_default_value = true)]
    pub runtime_namespace: String,

    /// Host that stands in for the one in the URL of every artifact, for a controller outside of the cluster.
    #[arg(long, env = "SOURCE_CONTROLLER_LOCALHOST", value_name = "HOST:PORT")]
    pub source_controller_localhost: Option<String>,

    /// The same for artifacts of source-watcher.
    #[arg(long, env = "SOURCE_WATCHER_LOCALHOST", value_name = "HOST:PORT")]
    pub source_watcher_localhost: Option<String>,
}

/// Flags of what runs in the pod of a workspace.
#[derive(Clone, Debug, Args)]
pub struct PodFlags {
    /// Directory that is shared with the other containers of the pod.
    #[arg(long, default_value = names::SHARE_DIRECTORY)]
    pub share: PathBuf,

    /// Directory with the agent's certificate, its key, and the authorities that it trusts.
    #[arg(long, default_value = names::TLS_DIRECTORY)]
    pub tls_directory: PathBuf,

    /// Address of the service.
    #[arg(long, default_value_t = format!(":{}", names::AGENT_PORT), value_name = "HOST:PORT")]
    pub address: String,

    /// UID of the pod.
    #[arg(long, env = "POD_UID", default_value = "", hide_default_value = true)]
    pub pod_uid: String,
}

/// Flags of the agent.
#[derive(Clone, Debug, Args)]
pub struct AgentFlags {
    /// Be the agent itself, and not the process that watches over it.
    #[arg(long)]
    pub child: bool,

    #[command(flatten)]
    pub pod: PodFlags,

    /// Address of the readiness endpoint.
    #[arg(long, default_value_t = format!(":{}", names::AGENT_HEALTH_PORT), value_name = "HOST:PORT")]
    pub health_address: String,

    /// File for the last words, which the kubelet reads.
    #[arg(long, default_value = "/dev/termination-log")]
    pub termination_log: PathBuf,

    /// Name of the pod.
    #[arg(long, env = "POD_NAME", default_value = "", hide_default_value = true)]
    pub pod_name: String,

    /// How long the pod has to end, in seconds, as its specification says.
    #[arg(long, env = "POD_TERMINATION_GRACE_SECONDS", default_value_t = names::TERMINATION_GRACE_SECONDS,
          value_name = "SECONDS")]
    pub termination_grace_seconds: u64,

    /// How long the agent leaves the CLI alone, in seconds, before it asks for its version.
    #[arg(long, default_value_t = 120, value_name = "SECONDS")]
    pub version_after_seconds: u64,

    #[command(flatten)]
    pub log: LogFlags,
}

/// Flags of the copy into the shared directory.
#[derive(Clone, Debug, Args)]
pub struct BootstrapFlags {
    /// Where the copy goes.
    #[arg(long, value_name = "FILE")]
    pub to: PathBuf,

    /// Path of the project's directory; it is created empty unless it exists.
    #[arg(long, value_name = "DIRECTORY")]
    pub project: Option<PathBuf>,
}

/// Flags of the init container that takes the source.
#[derive(Clone, Debug, Args)]
pub struct FetchFlags {
    #[command(flatten)]
    pub pod: PodFlags,

    #[command(flatten)]
    pub log: LogFlags,
}

/// What is to be started.
#[derive(Clone, Debug, Args)]
pub struct LaunchFlags {
    /// The program and its arguments.
    #[arg(last = true, required = true, value_name = "ARGS")]
    pub arguments: Vec<std::ffi::OsString>,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn parse(arguments: &[&str]) -> Result<Role, String> {
        let all = std::iter::once("pulumi-controller").chain(arguments.iter().copied());
        CommandLine::try_parse_from(all).map(CommandLine::into_role).map_err(|error| error.to_string())
    }

    fn manager(arguments: &[&str]) -> ManagerFlags {
        match parse(arguments) {
            Ok(Role::Manager(flags)) => flags,
            other => panic!("not the manager: {other:?}"),
        }
    }

    #[test]
    fn the_declaration_is_sound() {
        CommandLine::command().debug_assert();
    }

    #[test]
    fn without_a_role_it_is_the_manager() {
        let flags = manager(&[]);
        assert_eq!((flags.metrics_addr.as_str(), flags.health_addr.as_str()), (":8080", ":9440"));
        assert_eq!((flags.concurrent, flags.interval_jitter_percentage), (4, 5));
        assert!(parse(&["--interval-jitter-percentage=100"]).is_err());
        assert_eq!((flags.max_concurrent_runs, flags.max_concurrent_runs_per_node), (10, 4));
        assert_eq!((flags.max_concurrent_runs_per_namespace, flags.default_run_timeout.as_str()), (None, "3h"));
        assert!(flags.watch_all_namespaces);
        assert_eq!(manager(&["--concurrent=7"]).concurrent, 7);
        assert_eq!(manager(&["manager", "--concurrent", "8"]).concurrent, 8);
    }

    #[test]
    fn t1_flags_are_written_as_in_flux() {
        for (arguments, all) in [
            (&["--watch-all-namespaces"][..], true),
            (&["--watch-all-namespaces=true"], true),
            (&["--watch-all-namespaces=false"], false),
        ] {
            assert_eq!(manager(arguments).watch_all_namespaces, all, "{arguments:?}");
        }
        assert!(!manager(&[]).enable_pprof && manager(&["--enable-pprof"]).enable_pprof);
        assert!(!manager(&[]).enable_leader_election && manager(&[]).leader_election_release_on_cancel);
        assert!(manager(&["--enable-leader-election"]).enable_leader_election);
        assert!(!manager(&["--leader-election-release-on-cancel=false"]).leader_election_release_on_cancel);
        let flags = manager(&["--log-level=debug", "--log-encoding=console", "--artifact-hosts=a.svc,b:80"]);
        assert_eq!((flags.log.log_level, flags.log.log_encoding), (LogLevel::Debug, LogEncoding::Console));
        assert_eq!(flags.artifact_hosts, ["a.svc", "b:80"]);
        assert!(parse(&["--log-level=loud"]).unwrap_err().contains("loud"));
    }

    /// Flags that all of Flux's controllers have, with their defaults there.
    const FLUXS: [(&str, &str); 30] = [
        ("concurrent", "4"),
        ("default-service-account", ""),
        ("enable-leader-election", "false"),
        ("events-addr", ""),
        ("feature-gates", ""),
        ("health-addr", ":9440"),
        ("http-retry", "9"),
        ("insecure-kubeconfig-exec", "false"),
        ("insecure-kubeconfig-tls", "false"),
        ("interval-jitter-percentage", "5"),
        ("kube-api-burst", "300"),
        ("kube-api-qps", "50"),
        ("leader-election-lease-duration", "35s"),
        ("leader-election-release-on-cancel", "true"),
        ("leader-election-renew-deadline", "30s"),
        ("leader-election-retry-period", "5s"),
        ("log-encoding", "json"),
        ("log-level", "info"),
        ("max-retry-delay", "15m"),
        ("metrics-addr", ":8080"),
        ("min-retry-delay", "750ms"),
        ("no-cross-namespace-refs", "false"),
        ("requeue-dependency", "30s"),
        ("storage-path", "/data"),
        ("token-cache-max-duration", "1h"),
        ("token-cache-max-size", "100"),
        ("watch-all-namespaces", "true"),
        ("watch-configs-label-selector", "reconcile.fluxcd.io/watch=Enabled"),
        ("watch-label-selector", ""),
        ("storage-adv-addr", ""),
    ];
    /// Those of them whose function is not here. Requests to the API server are throttled by the server; an artifact that cannot be
    /// fetched is tried again by the next reconcile; tokens are kept with the repository that they are for; no other cluster is
    /// written to; artifacts are not served to others.
    const NOT_OURS: [&str; 8] = [
        "http-retry",
        "insecure-kubeconfig-exec",
        "insecure-kubeconfig-tls",
        "kube-api-burst",
        "kube-api-qps",
        "storage-adv-addr",
        "token-cache-max-duration",
        "token-cache-max-size",
    ];

    #[test]
    fn t1_flags_that_flux_has_too_have_its_names_and_its_defaults() {
        let command = CommandLine::command();
        for (name, default) in FLUXS {
            let argument = command.get_arguments().find(|argument| argument.get_long() == Some(name));
            let found = argument.map(|argument| {
                let values = argument.get_default_values().iter().map(|value| value.to_string_lossy());
                values.collect::<Vec<_>>().join(",")
            });
            let wanted = match name {
                _ if NOT_OURS.contains(&name) => None,
                // Here a tenant is kept to its own namespace unless somebody says otherwise.
                "no-cross-namespace-refs" => Some("true"),
                _ => Some(default),
            };
            assert_eq!(found.as_deref(), wanted, "--{name}");
        }
    }

    #[test]
    fn t1_a_flag_without_a_function_is_refused() {
        for name in NOT_OURS {
            let error = parse(&[&format!("--{name}=1")]).unwrap_err();
            assert!(error.contains(&format!("unexpected argument '--{name}")), "{error}");
        }
    }

    #[test]
    fn the_other_roles_have_flags_of_their_own() {
        match parse(&["agent", "--child", "--share", "/s"]) {
            Ok(Role::Agent(flags)) => {
                assert!(flags.child);
                assert_eq!((flags.pod.share, flags.pod.address.as_str()), (PathBuf::from("/s"), ":50051"));
            }
            other => panic!("{other:?}"),
        }
        match parse(&["launch", "--", "pulumi", "up", "--yes"]) {
            Ok(Role::Launch(flags)) => assert_eq!(flags.arguments, ["pulumi", "up", "--yes"]),
            other => panic!("{other:?}"),
        }
        assert!(matches!(parse(&["fetch"]), Ok(Role::Fetch(flags)) if flags.pod.address == ":50051"));
        assert!(matches!(parse(&["bootstrap", "--to", "/share/agent"]), Ok(Role::Bootstrap(_))));
        assert!(matches!(parse(&["crds"]), Ok(Role::Crds)));
        assert!(parse(&["bootstrap"]).unwrap_err().contains("--to"));
        assert!(parse(&["launch"]).is_err());
    }
}

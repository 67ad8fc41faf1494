//! Tests for the flags and their defaults.

use clap::CommandFactory;

use super::*;

fn parse(arguments: &[&str]) -> Result<Role, String> {
    let all = std::iter::once("pulumi-controller").chain(arguments.iter().copied());
    CommandLine::try_parse_from(all).map(CommandLine::into_role).map_err(|error| error.to_string())
}

fn manager(arguments: &[&str]) -> ManagerFlags {
    match parse(arguments) {
        Ok(Role::Manager(flags)) => flags,
        other => panic!("expected the manager role, got {other:?}"),
    }
}

#[test]
fn the_command_line_definition_is_valid() {
    CommandLine::command().debug_assert();
}

#[test]
fn the_default_role_is_the_manager() {
    let flags = manager(&[]);
    assert_eq!((flags.metrics_addr.as_str(), flags.health_addr.as_str()), (":8080", ":9440"));
    assert_eq!((flags.concurrent, flags.interval_jitter_percentage), (4, 5));
    assert!(parse(&["--interval-jitter-percentage=100"]).is_err());
    assert_eq!((flags.max_concurrent_runs, flags.max_concurrent_runs_per_node), (10, 6));
    assert_eq!((flags.max_concurrent_runs_per_namespace, flags.default_run_timeout.as_str()), (None, "3h"));
    assert!(flags.watch_all_namespaces);
    assert_eq!(manager(&["--concurrent=7"]).concurrent, 7);
    assert_eq!(manager(&["manager", "--concurrent", "8"]).concurrent, 8);
}

#[test]
fn flags_have_the_same_syntax_as_in_flux() {
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

#[test]
fn the_last_value_of_a_repeated_flag_applies() {
    let repeated = ["manager", "--log-level=info", "--log-level=debug", "--enable-leader-election"];
    let repeated = [&repeated[..], &["--enable-leader-election=false", "--artifact-hosts=a", "--artifact-hosts=b"]];
    let flags = manager(&repeated.concat());
    assert_eq!((flags.log.log_level, flags.enable_leader_election), (LogLevel::Debug, false));
    assert_eq!(flags.artifact_hosts, ["a", "b"], "the values of a list are combined");
}

/// Flags that all Flux controllers have, with their defaults in Flux.
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
/// Flux flags that have no equivalent in this controller. The controller needs no rate limit for requests, because the
/// API server throttles requests. The controller needs no retries of fetches, because the next reconciliation retries a
/// failed fetch. The controller caches tokens per repository, accesses no other clusters, and serves no artifacts to
/// other programs.
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
fn shared_flags_have_the_names_and_defaults_of_flux() {
    let command = CommandLine::command();
    for (name, default) in FLUXS {
        let argument = command.get_arguments().find(|argument| argument.get_long() == Some(name));
        let found = argument.map(|argument| {
            let values = argument.get_default_values().iter().map(|value| value.to_string_lossy());
            values.collect::<Vec<_>>().join(",")
        });
        let expected = match name {
            _ if NOT_OURS.contains(&name) => None,
            // By default, the controller isolates namespaces from each other, unlike Flux.
            "no-cross-namespace-refs" => Some("true"),
            _ => Some(default),
        };
        assert_eq!(found.as_deref(), expected, "--{name}");
    }
}

#[test]
fn an_unsupported_flux_flag_is_rejected() {
    for name in NOT_OURS {
        let error = parse(&[&format!("--{name}=1")]).unwrap_err();
        assert!(error.contains(&format!("unexpected argument '--{name}")), "{error}");
    }
}

#[test]
fn the_other_roles_have_their_own_flags() {
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

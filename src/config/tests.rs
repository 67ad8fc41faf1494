//! Tests for the validation of flags.

use std::ffi::OsStr;

use clap::{CommandFactory, Parser};

use super::*;
use crate::api::auto::IdleKeep;
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
fn the_configuration_defaults_match_flux() {
    let config = config(&NEEDED).unwrap();
    assert_eq!(config.metrics_address, Some("[::]:8080".parse().unwrap()));
    assert_eq!(config.health_address, Some("[::]:9440".parse().unwrap()));
    assert_eq!((config.watch_namespace, config.watch_label_selector), (None, None));
    assert_eq!(config.runtime_namespace, "flux-system");
    assert_eq!((config.leader_election, config.events_address), (None, None));
    assert_eq!(config.artifact_limits, artifact::Limits::default());
    assert_eq!(config.retry_delays, (Duration::from_millis(750), Duration::from_secs(900)));
    let election = with("--enable-leader-election").unwrap().leader_election.unwrap();
    let seconds = Duration::from_secs;
    assert_eq!((election.lease_duration, election.renew_deadline), (seconds(35), seconds(30)));
    assert_eq!((election.retry_period, election.release), (seconds(5), true));
}

#[test]
fn by_default_a_namespace_gets_half_of_the_run_slots_rounded_up() {
    let of = |argument: &str| with(argument).unwrap().max_concurrent_runs_per_namespace;
    assert_eq!(config(&NEEDED).unwrap().max_concurrent_runs_per_namespace, 5);
    assert_eq!((of("--max-concurrent-runs=1"), of("--max-concurrent-runs=7")), (1, 4));
    assert_eq!(of("--max-concurrent-runs-per-namespace=9"), 9);
}

#[test]
fn the_default_run_timeout_is_three_hours() {
    let of = |argument: &str| with(argument).unwrap().default_run_timeout.as_secs();
    assert_eq!(config(&NEEDED).unwrap().default_run_timeout.as_secs(), 3 * 3600);
    assert_eq!((of("--default-run-timeout=0"), of("--default-run-timeout=0s")), (0, 0));
    assert_eq!((of("--default-run-timeout=1h30m"), of("--default-run-timeout=500ms")), (5400, 1));
}

#[test]
fn the_default_maximum_run_timeout_is_one_day() {
    let of = |argument: &str| with(argument).unwrap().max_run_timeout.as_secs();
    assert_eq!(config(&NEEDED).unwrap().max_run_timeout.as_secs(), 24 * 3600);
    assert_eq!((of("--max-run-timeout=0"), of("--max-run-timeout=2h")), (0, 7200));
}

#[test]
fn workspaces_fall_asleep_by_default_only_if_configured() {
    let of = |value: &str| with(&format!("--default-workspace-idle-after={value}"));
    assert_eq!(config(&NEEDED).unwrap().default_workspace_idle_after, None);
    for (value, expected) in [("", None), ("0", None), ("0s", None), ("1m", Some(60)), ("1h30m", Some(5400))] {
        let expected = expected.map(SignedDuration::from_secs);
        assert_eq!(of(value).unwrap().default_workspace_idle_after, expected, "{value}");
    }
    for value in ["59s", "500ms", "-1h", "never"] {
        let error = of(value).unwrap_err().to_string();
        assert!(error.contains("--default-workspace-idle-after"), "{error}");
    }
}

#[test]
fn idle_workspaces_keep_nothing_by_default() {
    let cache_claim = "pulumi-cache".to_owned();
    let default = StorageConfig { keep: IdleKeep::Nothing, cache_claim, cache_size: 10 << 30 };
    assert_eq!(config(&NEEDED).unwrap().storage, default);
    let caches = with("--default-workspace-idle-keep=Caches").unwrap().storage;
    assert_eq!(caches, StorageConfig { keep: IdleKeep::Caches, ..default });
    for (flag, valid) in [
        ("--default-workspace-idle-keep=Volume", "Nothing or Caches"),
        ("--default-workspace-idle-keep=", "Nothing or Caches"),
        ("--workspace-cache-claim=A", "the name of a PersistentVolumeClaim"),
    ] {
        assert_eq!(with(flag).unwrap_err().to_string(), format!("invalid {flag}: must be {valid}"));
    }
}

#[test]
fn pods_have_a_default_service_account_only_if_configured() {
    assert_eq!(config(&NEEDED).unwrap().default_service_account, None);
    let config = with("--default-service-account=tenant").unwrap();
    assert_eq!(config.default_service_account.as_deref(), Some("tenant"));
}

#[test]
fn traces_are_disabled_by_default() {
    assert_eq!(config(&NEEDED).unwrap().traces, None);
    let endpoint = "--otlp-endpoint=http://otel:4318";
    let traces = with(endpoint).unwrap().traces.unwrap();
    assert_eq!(traces.collector.endpoint.as_str(), "http://otel:4318/v1/traces");
    let cli = "--workspace-otlp-endpoint=grpc://otel:4317";
    let both = config(&[NEEDED[0], NEEDED[1], endpoint, cli]).unwrap().traces.unwrap();
    assert_eq!(both.workspace_endpoint.as_deref(), Some("grpc://otel:4317"));
    let error = with(cli).unwrap_err().to_string();
    assert_eq!(error, "--workspace-otlp-endpoint requires --otlp-endpoint");
    let error = with("--otlp-endpoint=http://me:secret@otel").unwrap_err().to_string();
    assert!(error.starts_with("invalid --otlp-endpoint: must be") && !error.contains("secret"), "{error}");
}

#[test]
fn policy_packs_of_the_cluster_are_a_comma_separated_list() {
    let of = |value: &str| with(&format!("--policy-packs={value}")).map(|config| config.policy_packs.len());
    assert_eq!(config(&NEEDED).unwrap().policy_packs, []);
    assert_eq!(of("GitRepository/flux-system/a:house,OCIRepository/flux-system/b"), Ok(2));
    let error = of("house").unwrap_err().to_string();
    let format = "must be KIND/NAMESPACE/NAME or KIND/NAMESPACE/NAME:DIR";
    assert_eq!(error, format!("invalid policy pack \"house\" in --policy-packs: {format}"));
}

#[test]
fn the_cluster_name_is_a_valid_value_of_a_tag() {
    let of = |name: &str| with(&format!("--cluster-name={name}")).map(|config| config.cluster_name);
    assert_eq!(config(&NEEDED).unwrap().cluster_name, "");
    assert_eq!(of(" prod-eu ").unwrap(), "prod-eu");
    assert_eq!(of(&"c".repeat(256)).unwrap().len(), 256);
    for name in ["c".repeat(257), "a\u{1b}b".to_owned()] {
        let error = of(&name).unwrap_err().to_string();
        assert!(error.contains("--cluster-name=") && error.contains("at most 256 bytes"), "{error}");
    }
}

#[test]
fn by_default_only_a_git_repository_revision_identifies_the_content() {
    assert_eq!(config(&NEEDED).unwrap().same_revision_kinds, ["GitRepository"]);
    let kinds = |argument: &str| with(argument).unwrap().same_revision_kinds;
    assert!(kinds("--same-revision-kinds=").is_empty());
    let two = ["GitRepository", "Report.artifacts.example.com"];
    assert_eq!(kinds("--same-revision-kinds=GitRepository,Report.artifacts.example.com"), two);
}

#[test]
fn objects_with_the_flux_watch_label_are_watched_by_default() {
    let watched = |argument: &str| with(argument).unwrap().watched_inputs.map(|selector| selector.to_string());
    assert_eq!(watched("--feature-gates=").as_deref(), Some("reconcile.fluxcd.io/watch=Enabled"));
    assert_eq!(watched("--watch-configs-label-selector=team in (a,b)").as_deref(), Some("team in (a,b)"));
    assert_eq!(
        watched("--feature-gates=DisableConfigWatchers=false").as_deref(),
        Some("reconcile.fluxcd.io/watch=Enabled")
    );
    assert_eq!(watched("--feature-gates=DisableConfigWatchers=true"), None);
}

#[test]
fn by_default_the_history_is_on_the_volume_of_the_controller() {
    let history = config(&NEEDED).unwrap().history.unwrap();
    assert_eq!(history.url.base(), "file:///data/history");
    let days = history.retention.max_age.as_secs() / 86_400;
    assert_eq!((history.retention.max_runs, days, history.retention.max_size), (20, 30, Some(128 * 1024 * 1024)));
    assert_eq!(with("--history-url=").unwrap().history, None);
    let cloud = with("--history-url=s3://runs/team?region=eu-central-1").unwrap().history.unwrap();
    assert_eq!((cloud.url.base().as_str(), cloud.retention.max_size), ("s3://runs/team", None));
}

#[test]
fn invalid_settings_of_the_history_are_rejected() {
    let error = |argument: &str| with(argument).unwrap_err().to_string();
    assert!(error("--history-url=runs").contains("s3://BUCKET/PREFIX"), "{}", error("--history-url=runs"));
    let hidden = error("--history-url=s3://key:word@runs");
    assert!(!hidden.contains("word@") && hidden.contains("workload identity"), "{hidden}");
    for number in [0, 201] {
        let message = error(&format!("--history-max-runs={number}"));
        assert!(message.contains("a number from 1 to 200"), "{message}");
    }
    assert_eq!(with("--history-max-runs=200").unwrap().history.unwrap().retention.max_runs, 200);
    assert!(error("--history-max-size=1").contains("at least 16777216"));
    assert!(error("--history-max-age=1m").contains("at least 1h"));
    assert_eq!(with("--history-max-age=0").unwrap().history.unwrap().retention.max_age, Duration::ZERO);
}

#[test]
fn events_are_sent_to_the_address_that_flux_uses() {
    let address = "http://notification-controller.flux-system.svc.cluster.local./";
    let config = with(&format!("--events-addr={address}")).unwrap();
    assert_eq!(config.events_address.map(String::from).as_deref(), Some(address));
}

#[test]
fn webhooks_are_served_only_if_configured() {
    assert_eq!(config(&NEEDED).unwrap().receiver_address, None);
    assert_eq!(with("--receiver-addr=:9292").unwrap().receiver_address, Some("[::]:9292".parse().unwrap()));
    assert!(with("--receiver-addr=webhooks").is_err());
}

#[test]
fn flags_accept_durations_in_go_format() {
    for (text, milliseconds) in
        [("35s", 35_000), ("750ms", 750), ("1m30s", 90_000), ("1.5h", 5_400_000), ("1h2m3s", 3_723_000)]
    {
        assert_eq!(duration("min-retry-delay", text), Ok(Duration::from_millis(milliseconds)), "{text}");
    }
    for text in ["", "35", "-5s", "5 parsecs", "s"] {
        assert!(duration("min-retry-delay", text).is_err(), "{text:?}");
    }
}

#[test]
fn each_shard_has_its_own_lease() {
    let name = |selector: &str| {
        let selector = format!("--watch-label-selector={selector}");
        let config = config(&[NEEDED[0], NEEDED[1], "--enable-leader-election", &selector]).unwrap();
        config.leader_election.unwrap().lease_name
    };
    assert_eq!(name(""), "pulumi-controller-leader-election");
    // The suffix is the output of `printf '%s' 'sharding.fluxcd.io/key=shard1' | sha256sum | cut -c 1-8`.
    assert_eq!(name("sharding.fluxcd.io/key=shard1"), "pulumi-controller-leader-election-73fdc1be");
    assert_ne!(name("sharding.fluxcd.io/key=shard2"), name("sharding.fluxcd.io/key=shard1"));
}

#[test]
fn inconsistent_leader_election_and_retry_timings_are_rejected() {
    let refusal = |arguments: &[&str]| {
        let all = [&NEEDED[..], &["--enable-leader-election"], arguments].concat();
        config(&all).unwrap_err().to_string()
    };
    let cases: [(&[&str], &str); 5] = [
        (
            &["--leader-election-lease-duration=30s"],
            "invalid --leader-election-lease-duration=30s: must be longer than --leader-election-renew-deadline",
        ),
        (
            &["--leader-election-lease-duration=35.5s"],
            "invalid --leader-election-lease-duration=35.5s: must be in whole seconds, at least 1s",
        ),
        (
            &["--leader-election-renew-deadline=6s"],
            "invalid --leader-election-renew-deadline=6s: must be longer than --leader-election-retry-period plus 20 %, \
             and the retry period must not be 0s",
        ),
        (
            &["--leader-election-retry-period=soon"],
            "invalid --leader-election-retry-period=soon: must be a duration such as 35s, 750ms or 1m30s",
        ),
        (&["--max-retry-delay=500ms"], "invalid --max-retry-delay=500ms: must be at least --min-retry-delay"),
    ];
    for (arguments, expected) in cases {
        assert_eq!(refusal(arguments), expected);
    }
}

#[test]
fn the_single_watched_namespace_defaults_to_the_runtime_namespace() {
    assert_eq!(with("--watch-all-namespaces=false").unwrap().watch_namespace.as_deref(), Some("flux-system"));
}

#[test]
fn configuration_errors_explain_how_to_fix_them() {
    let cases = [
        ("--metrics-addr=nowhere", "invalid --metrics-addr=nowhere: must be IP:PORT, :PORT, or 0 to disable"),
        ("--health-addr=:99999", "invalid --health-addr=:99999: must be IP:PORT, :PORT, or 0 to disable"),
        (
            "--events-addr=notification-controller",
            "invalid --events-addr=notification-controller: must be an http or https URL, such as \
             http://notification-controller.flux-system.svc.cluster.local./",
        ),
        (
            "--watch-configs-label-selector=a b",
            "invalid requirement \"a b\" in --watch-configs-label-selector: must be a label requirement such as \
             reconcile.fluxcd.io/watch=Enabled",
        ),
        (
            "--feature-gates=DisableConfigWatchers=true,ExternalArtifact=true",
            "invalid feature gate \"ExternalArtifact=true\" in --feature-gates: must be DisableConfigWatchers=true or \
             DisableConfigWatchers=false",
        ),
        (
            "--feature-gates=DisableConfigWatchers",
            "invalid feature gate \"DisableConfigWatchers\" in --feature-gates: must be DisableConfigWatchers=true or \
             DisableConfigWatchers=false",
        ),
        ("--concurrent=0", "invalid --concurrent=0: must be at least 1"),
        ("--max-concurrent-runs=0", "invalid --max-concurrent-runs=0: must be at least 1"),
        ("--max-concurrent-runs-per-namespace=0", "invalid --max-concurrent-runs-per-namespace=0: must be at least 1"),
        (
            "--default-run-timeout=soon",
            "invalid --default-run-timeout=soon: must be a duration such as 35s, 750ms or 1m30s",
        ),
        ("--max-concurrent-runs-per-node=0", "invalid --max-concurrent-runs-per-node=0: must be at least 1"),
        ("--artifact-max-size=0", "invalid --artifact-max-size=0: must be at least 1"),
        ("--artifact-max-unpacked-size=0", "invalid --artifact-max-unpacked-size=0: must be at least 1"),
        (
            "--artifact-max-size=2000000000",
            "invalid --storage-size=1073741824: must be at least --artifact-max-size=2000000000",
        ),
        ("--storage-size=100", "invalid --storage-size=100: must be at least 16777216"),
        (
            "--artifact-hosts=http://a/b",
            "invalid host \"http://a/b\" in --artifact-hosts: must be HOST or HOST:PORT without scheme and path",
        ),
        (
            "--source-controller-localhost=a b",
            "invalid SOURCE_CONTROLLER_LOCALHOST=\"a b\": must be HOST or HOST:PORT without scheme and path",
        ),
        (
            "--source-watcher-localhost=http://a",
            "invalid SOURCE_WATCHER_LOCALHOST=\"http://a\": must be HOST or HOST:PORT without scheme and path",
        ),
    ];
    for (argument, expected) in cases {
        assert_eq!(with(argument).map(|_| ()).unwrap_err().to_string(), expected);
    }
    for (given, expected) in [
        (NEEDED[1], "--runtime-namespace or RUNTIME_NAMESPACE must be set to the namespace of the controller"),
        (NEEDED[0], "--agent-image or AGENT_IMAGE must be set to the image of the controller"),
    ] {
        assert_eq!(config(&[given]).unwrap_err().to_string(), expected);
    }
}

#[test]
fn flags_accept_addresses_in_go_format() {
    for (text, expected) in [
        ("", None),
        ("0", None),
        (":80", Some("[::]:80")),
        ("127.0.0.1:80", Some("127.0.0.1:80")),
        ("[::1]:80", Some("[::1]:80")),
    ] {
        let expected = expected.map(|expected| expected.parse().unwrap());
        assert_eq!(address("metrics-addr", text), Ok(expected), "{text}");
    }
}

#[test]
fn artifact_host_replacements_come_from_flags_or_the_environment() {
    let hosts = |arguments: &[&str]| {
        let config = config(&[&NEEDED[..], arguments].concat()).unwrap();
        (config.source_controller_localhost, config.source_watcher_localhost)
    };
    let host = |text: &str| Some(text.to_owned());
    let (controller, watcher) =
        ("--source-controller-localhost=localhost:8080", "--source-watcher-localhost=[::1]:8081");
    assert_eq!(hosts(&[]), (None, None));
    assert_eq!(hosts(&[controller]), (host("localhost:8080"), None));
    assert_eq!(hosts(&[watcher]), (None, host("[::1]:8081")));
    assert_eq!(hosts(&[controller, watcher]), (host("localhost:8080"), host("[::1]:8081")));
    assert_eq!(hosts(&["--source-controller-localhost=", "--source-watcher-localhost="]), (None, None));
    let command = CommandLine::command();
    for (flag, variable) in [
        ("source-controller-localhost", "SOURCE_CONTROLLER_LOCALHOST"),
        ("source-watcher-localhost", "SOURCE_WATCHER_LOCALHOST"),
    ] {
        let argument = command.get_arguments().find(|argument| argument.get_long() == Some(flag));
        assert_eq!(argument.and_then(|argument| argument.get_env()), Some(OsStr::new(variable)), "--{flag}");
    }
}

#[test]
fn a_flag_that_authorizes_a_server_enables_mutual_tls() {
    assert_eq!(with("--spiffe-endpoint-socket=unix:///run/agent.sock").unwrap().mutual_tls, None);
    let given = |socket: &str| {
        let arguments = [NEEDED[0], NEEDED[1], "--authorized-artifact-server-spiffe-id=spiffe://self/a"];
        let socket = format!("--spiffe-endpoint-socket={socket}");
        config(&[&arguments[..], &["--authorized-artifact-server-spiffe-id=spiffe://b/", &socket]].concat())
    };
    let found = given("unix:///run/agent.sock").unwrap().mutual_tls.unwrap();
    let ids = ["spiffe://self/a", "spiffe://b/"].map(|id| id.parse().unwrap());
    assert_eq!((found.artifact_servers, found.event_servers), (ids.to_vec(), vec![]));
    assert_eq!(found.endpoint, "unix:///run/agent.sock");
    let error = given("/run/agent.sock").unwrap_err().to_string();
    let start = "invalid --spiffe-endpoint-socket=/run/agent.sock: must be a URI such as unix:///spiffe-workload-api/";
    assert!(error.starts_with(start), "{error}");
    for (argument, expected) in [
        (
            "--authorized-artifact-server-spiffe-id=source-controller",
            "invalid --authorized-artifact-server-spiffe-id=source-controller: must be a SPIFFE ID, a prefix that ends \
             with /, or a trust domain such as spiffe://example.org: scheme is missing or invalid",
        ),
        (
            "--authorized-event-server-spiffe-id=spiffe://self",
            "--spiffe-endpoint-socket or SPIFFE_ENDPOINT_SOCKET must be set to the socket of the SPIFFE Workload API",
        ),
    ] {
        assert_eq!(with(argument).map(|_| ()).unwrap_err().to_string(), expected);
    }
}

#[test]
fn artifact_hosts_are_lowercased() {
    let config = with("--artifact-hosts=Minio.Storage.svc:9000,, 10.0.0.1").unwrap();
    assert_eq!(config.artifact_hosts, ["minio.storage.svc:9000", "10.0.0.1"]);
}

#[test]
fn a_single_namespace_other_than_the_runtime_namespace_can_be_watched() {
    let with = |more: &[&str]| config(&[&NEEDED[..], more].concat());
    let watched = |more: &[&str]| with(more).unwrap().watch_namespace;
    assert_eq!(watched(&[]), None);
    let own = with(&[]).unwrap().runtime_namespace;
    assert_eq!(watched(&["--watch-all-namespaces=false"]), Some(own));
    assert_eq!(watched(&["--watch-all-namespaces=false", "--watch-namespace=team-a"]).as_deref(), Some("team-a"));
    let error = with(&["--watch-namespace=team-a"]).unwrap_err().to_string();
    assert_eq!(error, "--watch-namespace=team-a requires --watch-all-namespaces=false");
    let error = with(&["--watch-all-namespaces=false", "--watch-namespace=team-a,team-b"]).unwrap_err().to_string();
    assert_eq!(error, "invalid --watch-namespace=team-a,team-b: must be the name of one namespace");
}

#[test]
fn the_label_selector_of_the_watched_objects_is_valid() {
    let of = |selector: &str| with(&format!("--watch-label-selector={selector}"));
    assert_eq!(of(" ").unwrap().watch_label_selector, None);
    for selector in ["!sharding.fluxcd.io/key", "team in (a, b),tier!=test", "priority>5"] {
        assert_eq!(of(selector).unwrap().watch_label_selector.as_deref(), Some(selector));
    }
    let error = of("tier=test,team in a").unwrap_err().to_string();
    assert!(error.starts_with("invalid requirement \"team in a\" in --watch-label-selector: "), "{error}");
}

#[test]
fn endpoints_without_an_address_or_data_are_rejected() {
    let error = |arguments: [&str; 2]| config(&[&NEEDED[..], &arguments].concat()).unwrap_err().to_string();
    let expected = "invalid --history-addr=:9293: must be 0 if --history-url is empty";
    assert_eq!(error(["--history-url=", "--history-addr=:9293"]), expected);
    let expected = "--enable-pprof requires --metrics-addr: this endpoint serves the profiles";
    assert_eq!(error(["--enable-pprof", "--metrics-addr=0"]), expected);
}

#[test]
fn the_default_access_token_secret_is_an_object_name() {
    let with = |flag: &str| config(&[&NEEDED[..], &[flag]].concat());
    let found = |flag: &str| with(flag).unwrap().default_access_token_secret;
    assert_eq!(found("--default-access-token-secret="), None);
    assert_eq!(found("--default-access-token-secret=pulumi-cloud").as_deref(), Some("pulumi-cloud"));
    let error = with("--default-access-token-secret=team-a/pulumi").unwrap_err().to_string();
    assert!(error.contains("--default-access-token-secret") && error.contains("the name of a Secret"), "{error}");
}

#[test]
fn allowed_service_accounts_have_a_name_and_an_optional_namespace() {
    let with = |flag: &str| config(&[&NEEDED[..], &[flag]].concat());
    assert_eq!(with("--restrict-workspace-pods").unwrap().allowed_service_accounts, [""; 0]);
    let found = with("--allowed-service-accounts=pulumi, team-a/deployer,").unwrap().allowed_service_accounts;
    assert_eq!(found, ["pulumi", "team-a/deployer"]);
    for wrong in ["/pulumi", "team-a/", "a/b/c"] {
        let error = with(&format!("--allowed-service-accounts={wrong}")).unwrap_err().to_string();
        assert!(error.contains(wrong) && error.contains("must be NAME or NAMESPACE/NAME"), "{error}");
    }
}

#[test]
fn the_sign_in_with_oidc_needs_an_issuer_a_client_and_the_url_of_the_ui() {
    let of = |arguments: &[&str]| config(&[&NEEDED, arguments].concat());
    assert_eq!(config(&NEEDED).unwrap().ui, None);
    let plain = of(&["--ui-addr=:9294"]).unwrap().ui.unwrap();
    assert_eq!((plain.address, plain.oidc), ("[::]:9294".parse().unwrap(), None));
    let (address, issuer) = ("--ui-addr=:9294", "--ui-oidc-issuer=https://login.example.com");
    let (client, url) = ("--ui-oidc-client-id=pulumi", "--ui-url=https://pulumi.example.com");
    let oidc = of(&[address, issuer, client, url]).unwrap().ui.and_then(|ui| ui.oidc).unwrap();
    assert_eq!(oidc.issuer, "https://login.example.com");
    assert_eq!(oidc.redirect.as_str(), "https://pulumi.example.com/sign-in/oidc/callback");
    assert_eq!(oidc.scopes, ["openid", "email", "profile"]);
    assert_eq!((oidc.client_secret_file, oidc.ca_file), (None, None));
    let files = ["--ui-oidc-client-secret-file=/etc/ui/secret", "--ui-oidc-ca-file=/etc/ui/ca.crt"];
    let oidc = of(&[address, issuer, client, url, files[0], files[1]]).unwrap().ui.and_then(|ui| ui.oidc).unwrap();
    assert_eq!(oidc.client_secret_file.as_deref(), Some("/etc/ui/secret".as_ref()));
    assert_eq!(oidc.ca_file.as_deref(), Some("/etc/ui/ca.crt".as_ref()));
    let rows = [
        (vec![issuer, client, url], "without --ui-addr"),
        (vec![address, issuer, client], "invalid --ui-url="),
        (vec![address, issuer, url], "invalid --ui-oidc-client-id="),
        (vec![address, client, url, "--ui-oidc-issuer=http://login.example.com"], "an https URL"),
        (vec![address, issuer, client, "--ui-url=https://example.com/pulumi"], "without a path"),
        (vec![address, issuer, client, url, "--ui-oidc-scopes=email"], "contains openid"),
    ];
    for (arguments, expected) in rows {
        let error = of(&arguments).unwrap_err().to_string();
        assert!(error.contains(expected), "{arguments:?}: {error}");
    }
}

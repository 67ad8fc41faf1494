use super::*;
use crate::rpc::proto::{AppliedByOther, Artifact, OidcLogin, PulumiStack, Settings};

/// Returns a request without newer features.
fn plain_request() -> RunRequest {
    RunRequest {
        kind: OperationKind::Up.into(),
        settings: Some(Settings {
            config: vec![ConfigItem { key: "a".to_owned(), value: "1".to_owned(), ..ConfigItem::default() }],
            ..Settings::default()
        }),
        options: Some(RunOptions::default()),
        lock_recovery: true,
        ..RunRequest::default()
    }
}

#[test]
fn requests_with_newer_features_require_a_newer_agent() {
    let plain = plain_request();
    assert_eq!(required_version(&plain), 0);
    let config = |item| Some(Settings { config: vec![item], ..Settings::default() });
    let rows = [
        ("a preview", RunRequest { kind: OperationKind::Preview.into(), ..plain.clone() }),
        (
            "targets",
            RunRequest {
                options: Some(RunOptions { targets: vec!["urn".to_owned()], ..RunOptions::default() }),
                ..plain.clone()
            },
        ),
        ("a time limit", RunRequest { timeout_seconds: 1, ..plain.clone() }),
        ("pending creates", RunRequest { pending_creates: 1, ..plain.clone() }),
        (
            "config in a file",
            RunRequest {
                settings: config(ConfigItem { file: "/f".to_owned(), ..ConfigItem::default() }),
                ..plain.clone()
            },
        ),
        (
            "secret config",
            RunRequest { settings: config(ConfigItem { secret: true, ..ConfigItem::default() }), ..plain.clone() },
        ),
        (
            "a Pulumi ESC environment",
            RunRequest {
                settings: Some(Settings { environments: vec!["e".to_owned()], ..Settings::default() }),
                ..plain.clone()
            },
        ),
    ];
    for (name, request) in rows {
        assert_eq!(required_version(&request), 1, "{name}");
    }
    let settings = Settings { policy_packs: vec![PolicyPack::default()], ..Settings::default() };
    let with_packs = RunRequest { settings: Some(settings), ..plain.clone() };
    assert_eq!(required_version(&with_packs), 7, "older agents have no policy packs");
    let saves = RunOptions { save_plan: true, ..RunOptions::default() };
    let previews_refresh = RunOptions { preview_of: PreviewOf::Refresh.into(), ..RunOptions::default() };
    for options in [saves, previews_refresh] {
        let preview = OperationKind::Preview.into();
        let request = RunRequest { kind: preview, options: Some(options), ..plain.clone() };
        assert_eq!(required_version(&request), 6, "older agents preview an up without a plan");
    }
    assert_eq!(required_version(&RunRequest { plan: vec![1], ..plain.clone() }), 6, "older agents ignore the plan");
    let login = RunRequest { oidc_login: Some(OidcLogin::default()), ..plain.clone() };
    assert_eq!(required_version(&login), 5, "older agents do not log in");
    let destroy = RunRequest { kind: OperationKind::Destroy.into(), ..plain };
    assert_eq!(required_version(&destroy), 2, "older agents report a missing Pulumi stack as destroyed");
    let applied = RunRequest { applied_stack: Some(PulumiStack::default()), ..destroy };
    assert_eq!(required_version(&applied), 4, "older agents destroy a Pulumi stack that is not the applied stack");
    for kind in [OperationKind::Up, OperationKind::Preview] {
        let guarded = RunRequest { kind: kind.into(), ..applied.clone() };
        assert_eq!(required_version(&guarded), 9, "older agents create a missing applied stack");
        let permitted = RunRequest { create_stack: true, ..guarded };
        assert!(required_version(&permitted) < 9, "older agents also create the stack");
    }
}

#[test]
fn older_agents_run_in_the_pulumi_stacks_of_other_stacks() {
    for kind in [OperationKind::Up, OperationKind::Preview, OperationKind::Refresh, OperationKind::Destroy] {
        let applied_by_others = vec![AppliedByOther::default()];
        let request = RunRequest { kind: kind.into(), applied_by_others, ..plain_request() };
        assert_eq!(required_version(&request), 10, "{kind:?}");
    }
}

#[test]
fn older_agents_reject_variables_that_the_agent_resolves() {
    let rows = [
        (Source::Value("1".to_owned()), false, 0),
        (Source::Template("$(B)".to_owned()), false, 8),
        (Source::Inherited(true), false, 8),
        (Source::File("/f".to_owned()), true, 8),
    ];
    for (source, optional, expected) in rows {
        let variable = EnvironmentVariable { name: "A".to_owned(), source: Some(source), optional };
        let request = RunRequest { environment: vec![variable.clone()], ..plain_request() };
        assert_eq!(required_version(&request), expected, "{variable:?}");
    }
}

fn settings(stack: &str, config: &[(&str, &str)]) -> Settings {
    let config = config.iter().map(|(key, value)| ConfigItem {
        key: (*key).into(),
        value: (*value).into(),
        ..ConfigItem::default()
    });
    Settings { stack: stack.into(), config: config.collect(), ..Settings::default() }
}

#[test]
fn the_order_of_config_items_does_not_change_the_settings_digest() {
    let one = settings("dev", &[("a:x", "1"), ("a:y", "2")]);
    let other = settings("dev", &[("a:y", "2"), ("a:x", "1")]);
    assert_eq!(settings_digest(&one), settings_digest(&other));
}

#[test]
fn every_difference_in_content_changes_the_settings_digest() {
    let all = [
        settings("dev", &[]),
        settings("prod", &[]),
        settings("dev", &[("a:x", "1")]),
        settings("dev", &[("a:x", "2")]),
        settings("dev", &[("a:x1", "")]),
        settings("deva:x1", &[]),
        settings("dev", &[("a:x", "1"), ("a:y", "1")]),
    ];
    let with = |change: fn(&mut ConfigItem)| {
        let mut settings = settings("dev", &[("a:x", "1")]);
        change(&mut settings.config[0]);
        settings
    };
    let others: [fn(&mut ConfigItem); 5] = [
        |item| item.file = "f".to_owned(),
        |item| item.variable = "f".to_owned(),
        |item| item.json = true,
        |item| item.path = true,
        |item| item.secret = true,
    ];
    let imports = |names: &[&str]| {
        let environments = names.iter().map(|name| (*name).to_owned()).collect();
        Settings { environments, ..settings("dev", &[]) }
    };
    let imports = [imports(&["a"]), imports(&["b"]), imports(&["a", "b"]), imports(&["b", "a"])];
    let pack = |name: &str, digest: &str, directory: &str, config: &str| {
        let artifact = Some(Artifact { digest: digest.to_owned(), directory: directory.to_owned() });
        let pack = PolicyPack { name: name.to_owned(), artifact, config: config.to_owned() };
        Settings { policy_packs: vec![pack], ..settings("dev", &[]) }
    };
    let packs = [
        pack("a", "", "", ""),
        pack("", "a", "", ""),
        pack("", "", "a", ""),
        pack("", "", "", "a"),
        pack("", "", "", ""),
    ];
    let all: Vec<Settings> = all.into_iter().chain(others.map(with)).chain(imports).chain(packs).collect();
    let digests: std::collections::BTreeSet<String> = all.iter().map(settings_digest).collect();
    assert_eq!(digests.len(), all.len());
}

#[test]
fn the_settings_digest_is_the_same_in_each_version() {
    assert_eq!(
        settings_digest(&settings("dev", &[("a:x", "\"1\"")])),
        "sha256:3a77114f00ff4fd6c3fc577124f42a7660770a5e40337dc30fa106cf0e24ac54"
    );
}

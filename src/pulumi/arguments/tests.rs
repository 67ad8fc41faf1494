use super::*;

fn line(arguments: &[OsString]) -> String {
    arguments.iter().map(|argument| argument.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

fn operation(kind: OperationKind) -> Operation<'static> {
    let event_log = Path::new("/share/events");
    let (plan, save_plan, options) = (None, None, Options::default());
    Operation { kind, stack: "dev", event_log, refresh: false, message: None, plan, save_plan, options }
}

#[test]
fn runs_are_non_interactive_and_write_an_event_log() {
    let version = env!("CARGO_PKG_VERSION");
    let up = format!(
        "--non-interactive --color=never up --yes --skip-preview --suppress-progress --exec-kind=auto.local \
         --exec-agent=pulumi-controller/{version} --event-log=/share/events --stack=dev"
    );
    assert_eq!(line(&arguments(&operation(OperationKind::Up))), up);
    let rows = [
        (Destroy, "destroy --yes --skip-preview"),
        (Refresh, "refresh --yes --skip-preview"),
        (Preview, "preview --diff"),
        (PreviewDestroy, "destroy --preview-only --diff"),
        (PreviewRefresh, "refresh --preview-only --diff"),
        (DriftCheck, "refresh --preview-only"),
    ];
    for (kind, words) in rows {
        assert_eq!(line(&arguments(&operation(kind))), up.replace("up --yes --skip-preview", words));
    }
}

#[test]
fn refresh_and_message_flags_are_passed_if_they_are_set() {
    let operation = Operation { refresh: true, message: Some("--yes, \"now\""), ..operation(OperationKind::Up) };
    let arguments = arguments(&operation);
    assert!(arguments.contains(&"--refresh=true".into()), "{arguments:?}");
    assert!(arguments.contains(&"--message=--yes, \"now\"".into()), "{arguments:?}");
}

#[test]
fn only_an_up_follows_a_plan_and_only_its_preview_saves_one() {
    for kind in [Up, Destroy, Preview, PreviewDestroy, PreviewRefresh, Refresh, DriftCheck] {
        let file = Some(Path::new("/s/plan"));
        let arguments = line(&arguments(&Operation { plan: file, save_plan: file, refresh: true, ..operation(kind) }));
        assert_eq!(arguments.contains("--plan=/s/plan --event-log="), kind == Up, "{arguments}");
        assert_eq!(arguments.contains("--save-plan=/s/plan --event-log="), kind == Preview, "{arguments}");
        let refreshes = [Up, Destroy, Preview, PreviewDestroy].contains(&kind);
        assert_eq!(arguments.contains("--refresh=true"), refreshes, "{arguments}");
    }
}

#[test]
fn only_an_up_and_its_preview_enforce_policy_packs() {
    let pack = |number: u32| PolicyPack {
        directory: format!("/share/policies/{number}").into(),
        config: format!("/share/config-{number}.json").into(),
    };
    let packs = [pack(1), pack(2)];
    for kind in [Up, Destroy, Preview, PreviewDestroy, PreviewRefresh, Refresh, DriftCheck] {
        let options = Options { policy_packs: &packs, ..Options::default() };
        let arguments = line(&arguments(&Operation { options, ..operation(kind) }));
        let expected = "--policy-pack=/share/policies/1 --policy-pack-config=/share/config-1.json \
                        --policy-pack=/share/policies/2 --policy-pack-config=/share/config-2.json ";
        assert_eq!(arguments.contains(expected), matches!(kind, Up | Preview), "{arguments}");
    }
}

#[test]
fn each_command_has_only_the_options_that_it_supports() {
    let urns = ["urn:a".to_owned(), "urn:*,b".to_owned()];
    let options = Options {
        targets: &urns,
        target_dependents: true,
        replace: &urns,
        parallel: Some(3),
        continue_on_error: true,
        expect_no_changes: true,
        remove: true,
        run_program: true,
        log_level: 3,
        policy_packs: &[],
    };
    let targets = "--logtostderr --logflow --verbose=3 --parallel=3 --target=urn:a --target=urn:*,b";
    for (kind, expected) in [
        (
            OperationKind::Up,
            format!(
                "--target-dependents=true --continue-on-error=true --expect-no-changes=true {targets} \
                 --replace=urn:a --replace=urn:*,b"
            ),
        ),
        (
            OperationKind::Destroy,
            format!("--target-dependents=true --continue-on-error=true --remove=true --run-program=true {targets}"),
        ),
        (
            OperationKind::Preview,
            format!("--target-dependents=true --expect-no-changes=true {targets} --replace=urn:a --replace=urn:*,b"),
        ),
        (OperationKind::PreviewDestroy, format!("--target-dependents=true --run-program=true {targets}")),
        (OperationKind::Refresh, format!("--expect-no-changes=true --run-program=true {targets}")),
        (OperationKind::PreviewRefresh, format!("--expect-no-changes=true --run-program=true {targets}")),
        (OperationKind::DriftCheck, format!("--run-program=true {targets}")),
    ] {
        assert_eq!(line(&options.flags(kind, false)), expected);
        assert_eq!(line(&Options::default().flags(kind, true)), "");
    }
}

#[test]
fn each_command_that_refreshes_the_state_runs_the_program_if_requested() {
    let options = Options { run_program: true, ..Options::default() };
    for kind in [Up, Destroy, Preview, PreviewDestroy, PreviewRefresh, Refresh, DriftCheck] {
        for refresh in [false, true] {
            let arguments = line(&arguments(&Operation { options: options.clone(), refresh, ..operation(kind) }));
            let expected = refresh || !matches!(kind, Up | Preview);
            assert_eq!(arguments.matches("--run-program=true").count(), usize::from(expected), "{arguments}");
        }
    }
}

#[test]
fn no_value_is_parsed_as_a_flag() {
    let operation = Operation {
        stack: "--help",
        event_log: Path::new("-x"),
        message: Some("-y"),
        plan: Some(Path::new("-x")),
        ..operation(OperationKind::Up)
    };
    let file = Path::new("-x");
    let small = [
        stack_init("--help", Some("-y")),
        stack_select("--help"),
        stack_select_or_init("--help", None),
        stack_output("--help"),
        stack_export("--help", file),
        stack_import("--help", file),
        cancel("--help"),
    ];
    for arguments in [arguments(&operation)].into_iter().chain(small) {
        assert!(arguments.contains(&"--stack=--help".into()), "{arguments:?}");
        assert!(!arguments.iter().any(|argument| argument == "--help" || argument == "-x" || argument == "-y"));
    }
}

#[test]
fn helper_commands_have_the_expected_arguments() {
    let organization = OidcLogin {
        url: "https://api",
        token_file: "/t",
        organization: "acme",
        team: "",
        user: "",
        expiration_seconds: 600,
    };
    let table = [
        (stack_init("o/p/dev", None), "stack init --no-select --stack=o/p/dev"),
        (stack_init("dev", Some("awskms://a")), "stack init --no-select --stack=dev --secrets-provider=awskms://a"),
        (stack_select("dev"), "stack select --stack=dev"),
        (stack_select_or_init("dev", None), "stack select --create --stack=dev"),
        (
            stack_select_or_init("dev", Some("passphrase")),
            "stack select --create --stack=dev --secrets-provider=passphrase",
        ),
        (stack_output("dev"), "stack output --json --show-secrets --stack=dev"),
        (stack_export("dev", Path::new("/s/state")), "stack export --stack=dev --file=/s/state"),
        (stack_import("dev", Path::new("/s/state")), "stack import --stack=dev --file=/s/state"),
        (cancel("dev"), "cancel --yes --stack=dev"),
        (set_secret("dev", false, "-a"), "config set --secret --stack=dev -- -a"),
        (set_secret("dev", true, "a.b"), "config set --secret --stack=dev --path -- a.b"),
        (version(), "version"),
        (install(), "install"),
        (project_plugins(), "plugin ls --project --json"),
        (
            oidc_login(&organization),
            "login --cloud-url=https://api --oidc-token=file:///t --oidc-org=acme --oidc-expiration=600s",
        ),
        (
            oidc_login(&OidcLogin { team: "ops", ..organization }),
            "login --cloud-url=https://api --oidc-token=file:///t --oidc-org=acme --oidc-team=ops --oidc-expiration=600s",
        ),
        (
            oidc_login(&OidcLogin { user: "jane", ..organization }),
            "login --cloud-url=https://api --oidc-token=file:///t --oidc-org=acme --oidc-user=jane --oidc-expiration=600s",
        ),
    ];
    for (arguments, expected) in table {
        assert_eq!(line(&arguments), format!("--non-interactive --color=never {expected}"));
    }
}

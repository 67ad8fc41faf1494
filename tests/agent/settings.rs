//! Tests the settings of a Pulumi stack: secrets, paths, values from files, and environments.

use std::collections::BTreeSet;
use std::path::Path;

use pulumi_controller::rpc::proto::{self, ConfigItem, Outcome};
use pulumi_controller::rpc::protocol::settings_digest;

use crate::harness::{TOKEN, Workspace, archive, has_pulumi, outputs};

const PROGRAM: &str = "
name: example
runtime: yaml
config:
  token: {type: string, default: none}
  list: {type: array, items: {type: string}, default: []}
outputs:
  token: ${token}
  list: ${list}
  size: ${pulumi.stack}
";

fn item(key: &str, value: &str) -> ConfigItem {
    ConfigItem { key: key.into(), value: value.into(), ..ConfigItem::default() }
}

fn secret(item: ConfigItem) -> ConfigItem {
    ConfigItem { secret: true, ..item }
}

fn at_path(item: ConfigItem) -> ConfigItem {
    ConfigItem { path: true, ..item }
}

async fn request(workspace: &Workspace, config: &[ConfigItem], environments: &[&str]) -> proto::RunRequest {
    let environments = environments.iter().map(|name| (*name).to_owned()).collect();
    let settings = proto::Settings { stack: "dev".into(), config: config.to_vec(), environments, ..Default::default() };
    let request = workspace.request(&[]).await;
    proto::RunRequest { settings_digest: settings_digest(&settings), settings: Some(settings), ..request }
}

fn file(path: &Path) -> ConfigItem {
    ConfigItem { file: path.display().to_string(), ..ConfigItem::default() }
}

/// Returns the encrypted values from a stack's settings file.
fn encrypted(text: &str) -> BTreeSet<String> {
    let after = |line: &str| Some(line.split_once("secure: ")?.1.trim_matches('"').to_owned());
    text.lines().filter_map(after).collect()
}

/// Script that replaces the CLI for a Pulumi stack whose configuration is in an ESC environment.
const REMOTE_CONFIG: &str = r#"case "$*" in
*" up "*) echo "warning: config file Pulumi.dev.yaml exists but will be ignored because this stack uses remote config" >&2;;
esac"#;

#[tokio::test]
async fn the_message_of_a_run_states_that_the_cli_ignored_the_configuration() {
    let workspace = Workspace::start_with(Some(REMOTE_CONFIG), &[]).await;
    workspace.put(PROGRAM).await;
    for (config, expected) in [(vec![item("token", "\"a\"")], true), (vec![], false)] {
        let result = workspace.run_to_end(&request(&workspace, &config, &[]).await).await;
        assert_eq!(result.outcome(), Outcome::Succeeded, "{}", result.message);
        let is_noted = result.message.contains("the Pulumi CLI ignored the configuration of the Stack");
        assert_eq!(is_noted, expected, "{}", result.message);
    }
}

#[tokio::test]
async fn a_run_that_would_omit_a_resource_because_of_a_config_key_does_not_start() {
    let workspace = Workspace::start_with(Some("exit 0"), &[]).await;
    workspace.put("name: example\nruntime: yaml\nresources:\n  web: {type: 'testing:index:Step'}\n").await;
    let with_key = request(&workspace, &[item("web", "\"x\"")], &[]).await;
    let result = workspace.run_to_end(&with_key).await;
    assert_eq!(result.outcome(), Outcome::Failed, "{}", result.message);
    assert!(result.message.contains("a key with the name of a resource: web."), "{}", result.message);
    let result = workspace.run_to_end(&request(&workspace, &[item("size", "\"x\"")], &[]).await).await;
    assert_eq!(result.outcome(), Outcome::Succeeded, "{}", result.message);
    // A destroy does not run the program.
    let destroy = request(&workspace, &[item("web", "\"x\"")], &[]).await;
    let destroy = proto::RunRequest { kind: proto::OperationKind::Destroy.into(), ..destroy };
    let result = workspace.run_to_end(&destroy).await;
    assert_eq!(result.outcome(), Outcome::Succeeded, "{}", result.message);
}

#[tokio::test]
async fn secrets_are_encrypted_once_and_are_visible_only_to_the_program() {
    if !has_pulumi("secrets_are_encrypted_once_and_are_visible_only_to_the_program") {
        return;
    }
    let workspace = Workspace::start().await;
    workspace.put(PROGRAM).await;
    let token = workspace.path("secrets/token");
    let config = [
        secret(ConfigItem { key: "token".into(), ..file(&token) }),
        secret(at_path(item("list[0]", "\"first-hidden\""))),
        at_path(item("list[1]", "\"second\"")),
        secret(item("object", "{\"deep\": \"third-hidden\"}")),
    ];
    let settings_file = || std::fs::read_to_string(workspace.path("share/workspace/Pulumi.dev.yaml")).unwrap();
    let run = async || {
        let request = request(&workspace, &config, &[]).await;
        let result = workspace.run_to_end(&request).await;
        assert_eq!(result.outcome(), Outcome::Succeeded, "{}", result.message);
        result
    };
    let result = run().await;
    let found = outputs(&result);
    assert_eq!(found["token"], (format!("{TOKEN:?}").as_str(), true));
    assert_eq!(found["list"], ("[\"first-hidden\",\"second\"]", true));
    let first = settings_file();
    let hidden = [TOKEN, "first-hidden", "third-hidden"];
    assert!(!hidden.iter().any(|text| first.contains(text)), "{first}");
    assert_eq!(first.matches("secure:").count(), 3, "{first}");

    run().await;
    assert_eq!(settings_file(), first, "no value is encrypted again");
    workspace.put(&format!("{PROGRAM}  more: 1\n")).await;
    run().await;
    assert_eq!(encrypted(&settings_file()), encrypted(&first), "encrypted values are kept in the next source");

    std::fs::write(&token, "rotated-token").unwrap();
    let result = run().await;
    assert_eq!(outputs(&result)["token"], ("\"rotated-token\"", true));
    assert_ne!(encrypted(&settings_file()), encrypted(&first));

    let none = request(&workspace, &[], &[]).await;
    let result = workspace.run_to_end(&none).await;
    assert_eq!((outputs(&result)["token"].0, outputs(&result)["list"].0), ("\"none\"", "[]"));
    assert!(!settings_file().contains("secure:"), "{}", settings_file());
    let log = workspace.log();
    assert!(!hidden.iter().any(|text| log.contains(text)) && !log.contains("rotated-token"), "{log}");
}

#[tokio::test]
async fn secrets_are_encrypted_in_a_settings_directory_outside_the_project() {
    if !has_pulumi("secrets_are_encrypted_in_a_settings_directory_outside_the_project") {
        return;
    }
    let workspace = Workspace::start().await;
    let program = format!("stackConfigDir: ../stacks{PROGRAM}");
    let (artifact, archive) = archive(&[("app/Pulumi.yaml", &program), ("stacks/Pulumi.dev.yaml", "config: {}\n")]);
    let artifact = proto::Artifact { directory: "app".into(), ..artifact };
    workspace.put_archive(artifact, archive).await.unwrap();
    let request = request(&workspace, &[secret(item("token", "\"hidden\""))], &[]).await;
    let result = workspace.run_to_end(&request).await;
    assert_eq!(result.outcome(), Outcome::Succeeded, "{}", result.message);
    assert_eq!(outputs(&result)["token"], ("\"hidden\"", true));
    let settings_file = std::fs::read_to_string(workspace.path("share/source/stacks/Pulumi.dev.yaml")).unwrap();
    assert_eq!(encrypted(&settings_file).len(), 1, "{settings_file}");
}

/// Returns a script that records each command line, because any user on the node can read the command lines of
/// processes, and then runs the CLI. The script runs `before` first.
fn recording_cli(before: &str) -> String {
    let path = std::env::var_os("PATH").unwrap();
    let cli = std::env::split_paths(&path).map(|place| place.join("pulumi")).find(|cli| cli.is_file()).unwrap();
    format!("tr '\\0' ' ' </proc/$$/cmdline >>\"$HOME/commands\"\n{before}\nexec {} \"$@\"", cli.display())
}

#[tokio::test]
async fn one_command_encrypts_all_secrets_if_the_cli_supports_it() {
    if !has_pulumi("one_command_encrypts_all_secrets_if_the_cli_supports_it") {
        return;
    }
    let values = ["hidden", "hidden\n\n", "", " hidden\r\n", "hidden=\"'$(x)", "hidden\\,\u{fc}"];
    // A CLI before version 3.208 ignores the variable with the values.
    for (before, expected) in [("", (1, 0)), ("unset PULUMI_OPTION_JSON", (1, values.len()))] {
        let workspace = Workspace::start_with(Some(&recording_cli(before)), &[]).await;
        let keys: Vec<String> = (0..values.len()).map(|number| format!("key{number}")).collect();
        let types: String = keys.iter().map(|key| format!("  {key}: {{type: string}}\n")).collect();
        let results: String = keys.iter().map(|key| format!("  {key}: ${{{key}}}\n")).collect();
        workspace.put(&format!("name: example\nruntime: yaml\nconfig:\n{types}outputs:\n{results}")).await;
        let values: Vec<String> = values.iter().map(|value| serde_json::to_string(value).unwrap()).collect();
        let config: Vec<_> = keys.iter().zip(&values).map(|(key, value)| secret(item(key, value))).collect();
        let request = request(&workspace, &config, &[]).await;
        workspace.run(&request).await.unwrap();
        let (result, progress) = workspace.result(&request.id).await;
        assert_eq!(result.outcome(), Outcome::Succeeded, "{}", result.message);
        let found = outputs(&result);
        for (key, value) in keys.iter().zip(&values) {
            let reported: serde_json::Value = serde_json::from_str(found[key.as_str()].0).unwrap();
            assert_eq!(reported.to_string(), serde_json::from_str::<serde_json::Value>(value).unwrap().to_string());
        }
        let commands = std::fs::read_to_string(workspace.path("home/commands")).unwrap();
        let count = |command: &str| commands.matches(command).count();
        let counts = (count("config set-all --stack=dev"), count("config set --secret --stack=dev"));
        assert_eq!(counts, expected, "{commands}");
        assert!(!commands.contains("hidden") && !workspace.log().contains("hidden"), "{commands}");
        let steps: Vec<_> = progress.into_iter().filter_map(|progress| progress.event).collect();
        let step = proto::progress::Event::Step("encrypting 6 secret configuration values".to_owned());
        assert!(steps.contains(&step), "{steps:?}");
    }
}

#[tokio::test]
async fn secrets_are_unchanged_and_never_appear_on_a_command_line() {
    if !has_pulumi("secrets_are_unchanged_and_never_appear_on_a_command_line") {
        return;
    }
    let workspace = Workspace::start_with(Some(&recording_cli("")), &[]).await;
    workspace.put(PROGRAM).await;
    let large = "x".repeat(200 * 1024);
    for value in ["hidden", "", "-----BEGIN KEY-----\nhidden\n", "hidden\n\n", " hidden\r", "hidden=\"'$(x)", &large] {
        let token = serde_json::to_string(value).unwrap();
        let config = [secret(item("token", &token)), secret(at_path(item("list[0]", "\"first-hidden\"")))];
        let result = workspace.run_to_end(&request(&workspace, &config, &[]).await).await;
        assert_eq!(result.outcome(), Outcome::Succeeded, "{}", result.message);
        let found = outputs(&result);
        let reported: String = serde_json::from_str(found["token"].0).unwrap();
        assert!(reported == value, "{value:?} became {reported:?}");
        assert_eq!(found["list"], ("[\"first-hidden\"]", true));
    }
    let commands = std::fs::read_to_string(workspace.path("home/commands")).unwrap();
    let sets = |key: &str| commands.matches(&format!("config set --secret --stack=dev {key}")).count();
    assert_eq!((sets("-- token"), sets("--path -- list[0]")), (7, 1), "a value is encrypted only when it changes");
    assert!(!commands.contains("hidden") && commands.len() < large.len(), "{commands}");
}

#[tokio::test]
async fn the_agent_and_its_child_processes_leave_no_core_dumps() {
    let cli = "case \"$*\" in *up*) cat /proc/self/limits >\"$HOME/limits\";; esac";
    let workspace = Workspace::start_with(Some(cli), &[]).await;
    workspace.put(PROGRAM).await;
    workspace.run_to_end(&workspace.request(&[]).await).await;
    let of = |pid: u32| std::fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
    let of_cli = std::fs::read_to_string(workspace.path("home/limits")).unwrap();
    for (whose, limits) in [("init", of(workspace.init_pid())), ("agent", of(workspace.agent_pid())), ("CLI", of_cli)] {
        let core = limits.lines().find(|line| line.starts_with("Max core file size")).unwrap();
        let words: Vec<&str> = core.split_whitespace().collect();
        assert_eq!(words[4..6], ["0", "0"], "{whose}: {core}");
    }
}

#[tokio::test]
async fn a_missing_file_is_reported_before_a_run_and_cli_errors_are_results() {
    if !has_pulumi("a_missing_file_is_reported_before_a_run_and_cli_errors_are_results") {
        return;
    }
    let workspace = Workspace::start().await;
    workspace.put(PROGRAM).await;
    let missing = ConfigItem { key: "token".into(), ..file(&workspace.path("secrets/none")) };
    let refusal = workspace.run(&request(&workspace, &[missing], &[]).await).await.unwrap_err();
    assert!(refusal.is_precondition() && refusal.message.contains("failed to read config key token"), "{refusal}");

    // The CLI reports that environments require Pulumi Cloud.
    let result = workspace.run_to_end(&request(&workspace, &[], &["org/env"]).await).await;
    assert_eq!(result.outcome(), Outcome::Failed);
    assert!(result.message.to_lowercase().contains("environments"), "{}", result.message);
}

//! Tests for failures of the Pulumi CLI. The message of each failure contains the cause and a remedy.

use pulumi_controller::rpc::proto::environment_variable::Source;
use pulumi_controller::rpc::proto::{self, Outcome, RunRequest};

use crate::harness::{Workspace, has_pulumi, variable};

const GOOD: &str = "name: example\nruntime: yaml\noutputs: {a: 1}\n";

/// Runs a program, and returns the result of the run.
async fn run(workspace: &Workspace, program: &str, change: impl Fn(&mut RunRequest)) -> proto::Result {
    workspace.deliver(&[("Pulumi.yaml", program)]).await.unwrap();
    let mut request = workspace.request(&[]).await;
    change(&mut request);
    workspace.run_to_end(&request).await
}

fn without(name: &'static str) -> impl Fn(&mut RunRequest) {
    move |request| request.environment.retain(|variable| variable.name != name)
}

fn assert_result(result: &proto::Result, outcome: Outcome, words: &[&str]) {
    assert_eq!(result.outcome(), outcome, "{}", result.message);
    for word in words {
        assert!(result.message.contains(word), "{word:?} is not in: {}", result.message);
    }
}

#[tokio::test]
async fn missing_backend_and_secrets_settings_are_reported_with_their_field() {
    if !has_pulumi("missing_backend_and_secrets_settings_are_reported_with_their_field") {
        return;
    }
    let workspace = Workspace::start().await;
    let result = run(&workspace, GOOD, without("PULUMI_CONFIG_PASSPHRASE")).await;
    assert_result(&result, Outcome::Failed, &["passphrase must be set", "spec.envSecrets"]);

    let result = run(&workspace, GOOD, |_| {}).await;
    assert_result(&result, Outcome::Succeeded, &[]);
    let wrong = |request: &mut RunRequest| {
        let other = variable("PULUMI_CONFIG_PASSPHRASE", Source::Value("another".into()));
        request.environment.push(other);
    };
    let result = run(&workspace, GOOD, wrong).await;
    assert_result(&result, Outcome::Failed, &["incorrect passphrase", "passphrase of the stack", "spec.envSecrets"]);

    let result = run(&workspace, GOOD, without("PULUMI_BACKEND_URL")).await;
    let words = ["PULUMI_ACCESS_TOKEN must be set", "spec.backend", "spec.envRefs"];
    assert_result(&result, Outcome::InvalidAccessToken, &words);
}

#[tokio::test]
async fn a_backend_with_the_legacy_layout_must_be_upgraded() {
    if !has_pulumi("a_backend_with_the_legacy_layout_must_be_upgraded") {
        return;
    }
    let workspace = Workspace::start().await;
    let stacks = workspace.path("state/.pulumi/stacks");
    std::fs::create_dir_all(&stacks).unwrap();
    std::fs::write(stacks.join("dev.json"), r#"{"version": 3, "checkpoint": {"stack": "dev", "latest": null}}"#)
        .unwrap();
    let result = run(&workspace, GOOD, |_| {}).await;
    assert_result(&result, Outcome::BackendUpgradeRequired, &["Legacy DIY state is ", "run `pulumi state upgrade`"]);
}

#[tokio::test]
async fn program_errors_are_reported_with_location_or_missing_setting() {
    if !has_pulumi("program_errors_are_reported_with_location_or_missing_setting") {
        return;
    }
    let workspace = Workspace::start().await;
    let table: [(&str, &[&str]); 5] = [
        ("outputs:\n  one: 1\n  broken: ${nothing.here}\n", &["\"nothing\" could not be found", "Pulumi.yaml line 5"]),
        ("resources:\n  step: 5\n", &["Pulumi.yaml:4,", "must be an object"]),
        (
            "config:\n  size: {type: string}\noutputs:\n  size: ${size}\n",
            &["missing configuration value 'size'", "spec.config", "spec.secretsRef"],
        ),
        (
            "configuration:\n  size: {type: String}\noutputs:\n  size: ${size}\n",
            &["missing required configuration variable 'size'", "Pulumi.yaml line 4", "spec.configRef"],
        ),
        (
            "resources:\n  pet: {type: 'absent:RandomPet'}\n",
            &["no resource plugin 'pulumi-resource-absent'", "use an image with this plugin"],
        ),
    ];
    for (program, words) in table {
        let result = run(&workspace, &format!("name: example\nruntime: yaml\n{program}"), |_| {}).await;
        assert_result(&result, Outcome::Failed, words);
    }
}

//! Tests previews that save a plan, and runs that follow a plan.

use std::io::Read;

use pulumi_controller::rpc::proto::environment_variable::Source;
use pulumi_controller::rpc::proto::{self, ConfigItem, OperationKind, Outcome, PreviewOf, RunOptions};
use pulumi_controller::rpc::protocol::settings_digest;

use crate::harness::{Workspace, has_pulumi, outputs, variable};

const PROGRAM: &str = "
name: example
runtime: yaml
config:
  size: {type: string, default: small}
  key: {type: string, default: none}
resources:
  first:
    type: testing:index:Step
    properties: {name: first, value: \"${size}\"}
  second:
    type: testing:index:Step
    properties: {name: second, value: one, secretValue: \"${key}\"}
outputs:
  size: ${first.value}
";

fn secret(value: &str) -> ConfigItem {
    ConfigItem { key: "key".into(), value: format!("{value:?}"), secret: true, ..ConfigItem::default() }
}

/// Returns a request with these options and with a secret configuration value.
async fn request(workspace: &Workspace, kind: OperationKind, options: RunOptions, key: &str) -> proto::RunRequest {
    let settings = proto::Settings { stack: "dev".into(), config: vec![secret(key)], ..Default::default() };
    let request = workspace.request(&[]).await;
    let (settings_digest, settings) = (settings_digest(&settings), Some(settings));
    proto::RunRequest { kind: kind.into(), options: Some(options), settings_digest, settings, ..request }
}

/// Saves the plan of a preview.
async fn plan(workspace: &Workspace, of: PreviewOf) -> proto::Result {
    let options = RunOptions { save_plan: true, preview_of: of.into(), ..RunOptions::default() };
    let preview = request(workspace, OperationKind::Preview, options, "first-secret").await;
    let result = workspace.run_to_end(&preview).await;
    assert_eq!(result.outcome(), Outcome::Succeeded, "{}", result.message);
    assert_no_plan_file(workspace, &preview.id);
    result
}

/// Runs an operation with a plan.
async fn follow(workspace: &Workspace, kind: OperationKind, plan: &proto::Result) -> proto::Result {
    let request = request(workspace, kind, RunOptions::default(), "first-secret").await;
    let request = proto::RunRequest { plan: plan.plan.clone(), ..request };
    let result = workspace.run_to_end(&request).await;
    assert_no_plan_file(workspace, &request.id);
    result
}

async fn up(workspace: &Workspace) {
    let up = request(workspace, OperationKind::Up, RunOptions::default(), "first-secret").await;
    let result = workspace.run_to_end(&up).await;
    assert_eq!(result.outcome(), Outcome::Succeeded, "{}", result.message);
}

fn assert_no_plan_file(workspace: &Workspace, id: &str) {
    let journal = workspace.path("share/operations").join(id);
    let names: Vec<_> = std::fs::read_dir(&journal).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    let request = std::fs::read_to_string(journal.join("request.json")).unwrap();
    assert!(!request.contains("\"plan"), "{request}");
    assert!(names.iter().any(|name| name == "result") && !names.iter().any(|name| name == "plan.json"), "{names:?}");
}

fn text(plan: &proto::Result) -> String {
    let mut text = String::new();
    flate2::read::GzDecoder::new(plan.plan.as_slice()).read_to_string(&mut text).unwrap();
    text
}

fn steps(result: &proto::Result) -> Vec<String> {
    let describe = |step: &proto::PlannedStep| {
        let name = step.urn.rsplit("::").next().unwrap();
        format!("{} {name} {}", step.operation, step.properties.join(",")).trim_end().to_owned()
    };
    assert_eq!(result.planned_step_count as usize, result.planned_steps.len());
    let mut steps: Vec<String> = result.planned_steps.iter().map(describe).collect();
    steps.sort();
    steps
}

#[tokio::test]
async fn a_saved_plan_is_applied_in_a_new_pod_and_contains_no_plain_secrets() {
    if !has_pulumi("a_saved_plan_is_applied_in_a_new_pod_and_contains_no_plain_secrets") {
        return;
    }
    let workspace = Workspace::start().await;
    workspace.put(PROGRAM).await;
    for (program, expected) in [
        (PROGRAM.to_owned(), ["create first", "create second"].as_slice()),
        (PROGRAM.replace("value: one", "value: two"), &["update second value"]),
        (PROGRAM.replace("value: one", "value: two, replaceKey: x"), &["replace second replaceKey"]),
    ] {
        workspace.put(&program).await;
        let saved = plan(&workspace, PreviewOf::Up).await;
        assert_eq!(steps(&saved), expected);
        assert!(!saved.last_output.contains("plan.json"), "{}", saved.last_output);
        assert!(!text(&saved).contains("first-secret") && text(&saved).contains("ciphertext"), "{}", text(&saved));
        // Simulates a new pod, in which the CLI rewrites the settings file with the encryption salt.
        std::fs::remove_dir_all(workspace.path("share/settings")).unwrap_or_default();
        std::fs::remove_file(workspace.path("share/workspace/Pulumi.dev.yaml")).unwrap();
        workspace.put(&format!("{program}  pod: new\n")).await;
        workspace.put(&program).await;
        let result = follow(&workspace, OperationKind::Up, &saved).await;
        assert_eq!(result.outcome(), Outcome::Succeeded, "{}", result.message);
        assert_eq!(outputs(&result)["size"].0, "\"small\"");
        assert!(result.planned_steps.is_empty() && result.plan.is_empty());
    }
    let saved = plan(&workspace, PreviewOf::Up).await;
    assert_eq!(steps(&saved), Vec::<String>::new());
    assert!(!workspace.log().contains("first-secret"));
}

#[tokio::test]
async fn each_deviation_from_a_plan_ends_the_run() {
    if !has_pulumi("each_deviation_from_a_plan_ends_the_run") {
        return;
    }
    let workspace = Workspace::start().await;
    let planned = PROGRAM.replace("value: one", "value: two");
    let third = "  third:\n    type: testing:index:Step\n    properties: {name: third}\noutputs:";
    let with_third = planned.replace("outputs:", third);
    let without_second = format!("{}outputs:\n  size: ${{first.value}}\n", planned.split("  second:").next().unwrap());
    let other_output = planned.replace("size: ${first.value}", "size: ${first.value}\n  other: 5");
    for (name, previewed, applied, words) in [
        (
            "property",
            &planned,
            &planned.replace("two", "three"),
            "second: property value differs from its planned value",
        ),
        (
            "kept property",
            &planned,
            &planned.replace("${size}", "x"),
            "first: property value (planned: keep, found: change)",
        ),
        ("addition", &planned, &with_third, "third: operation create, but the plan contains no such operation"),
        (
            "removal",
            &planned,
            &without_second,
            "testing:index:Step second: operation delete, but the planned operation is update",
        ),
        ("missing creation", &with_third, &planned, "third: the planned operation did not take place"),
        ("missing deletion", &without_second, &planned, "second: the plan deletes this resource, but the run keeps it"),
        ("output", &planned, &other_output, "the outputs of the stack differ from the outputs in the plan"),
    ] {
        workspace.put(PROGRAM).await;
        up(&workspace).await;
        workspace.put(previewed).await;
        let saved = plan(&workspace, PreviewOf::Up).await;
        workspace.put(applied).await;
        let result = follow(&workspace, OperationKind::Up, &saved).await;
        assert_eq!(result.outcome(), Outcome::PlanViolated, "{name}: {}", result.message);
        assert!(result.message.contains(words), "{name}: {}", result.message);
        assert!(result.message.contains("the controller makes a new plan"), "{name}: {}", result.message);
        assert!(!result.interrupted, "{name}");
    }
}

#[tokio::test]
async fn changes_of_the_state_and_of_secrets_after_the_plan_are_deviations() {
    if !has_pulumi("changes_of_the_state_and_of_secrets_after_the_plan_are_deviations") {
        return;
    }
    let workspace = Workspace::start().await;
    workspace.put(PROGRAM).await;
    up(&workspace).await;
    let planned = PROGRAM.replace("value: one", "value: two");
    workspace.put(&planned).await;
    let saved = plan(&workspace, PreviewOf::Up).await;

    let changed = request(&workspace, OperationKind::Up, RunOptions::default(), "other-secret").await;
    let changed = proto::RunRequest { plan: saved.plan.clone(), ..changed };
    let result = workspace.run_to_end(&changed).await;
    assert_eq!(result.outcome(), Outcome::PlanViolated, "{}", result.message);
    assert!(
        result.message.contains("second: property secretValue (planned: keep, found: change)"),
        "{}",
        result.message
    );

    let third = "  third:\n    type: testing:index:Step\n    properties: {name: third}\noutputs:";
    workspace.put(&PROGRAM.replace("outputs:", third)).await;
    up(&workspace).await;
    workspace.put(&planned).await;
    let result = follow(&workspace, OperationKind::Up, &saved).await;
    assert_eq!(result.outcome(), Outcome::PlanViolated, "{}", result.message);
    let words = "testing:index:Step third: operation delete, but the plan contains no such operation";
    assert!(result.message.contains(words), "{}", result.message);

    let options = RunOptions { save_plan: true, ..RunOptions::default() };
    let preview = request(&workspace, OperationKind::Preview, options, "planned\n\nlong-secret-line").await;
    let saved = workspace.run_to_end(&preview).await;
    let other = request(&workspace, OperationKind::Up, RunOptions::default(), "second-secret").await;
    let result = workspace.run_to_end(&proto::RunRequest { plan: saved.plan, ..other }).await;
    assert_eq!(result.outcome(), Outcome::PlanViolated, "{}", result.message);
    let words = "second: property secretValue differs from its planned value";
    assert!(result.message.contains(words), "{}", result.message);
    let reported = format!("{}{result:?}", workspace.log());
    // Since version 3.274, the CLI redacts the secrets in its error, so the agent need not hide the rest of the output.
    // The CLI prints the error a second time at the end of its output.
    let is_redacted_by_cli = workspace.log().matches("violates plan: properties changed: ~~secretValue").count() == 2;
    assert!(is_redacted_by_cli || reported.contains("the rest of the output is hidden"), "{reported}");
    for secret in ["first-secret", "second-secret", "other-secret", "long-secret-line"] {
        assert!(!reported.contains(secret), "{secret}: {reported}");
    }
}

#[tokio::test]
async fn an_invalid_plan_and_an_operation_without_plans_are_rejected() {
    if !has_pulumi("an_invalid_plan_and_an_operation_without_plans_are_rejected") {
        return;
    }
    let workspace = Workspace::start().await;
    workspace.put(PROGRAM).await;
    let garbage = proto::Result { plan: b"garbage".to_vec(), ..proto::Result::default() };
    for kind in [OperationKind::Up, OperationKind::Destroy] {
        let result = follow(&workspace, kind, &garbage).await;
        assert_eq!(result.outcome(), Outcome::Failed);
        assert!(result.message.contains("the compressed plan of the request is invalid"), "{}", result.message);
    }
    let preview = request(&workspace, OperationKind::Preview, RunOptions::default(), "x").await;
    let refusal = workspace.run(&proto::RunRequest { plan: vec![1], ..preview }).await.unwrap_err();
    assert!(refusal.is_refusal() && refusal.message.contains("only an up or a destroy"), "{refusal}");
}

#[tokio::test]
async fn a_large_plan_is_applied_and_a_larger_plan_is_rejected() {
    if !has_pulumi("a_large_plan_is_applied_and_a_larger_plan_is_rejected") {
        return;
    }
    let workspace = Workspace::start().await;
    let noise = |number: usize| -> String { (0..number).map(|_| uuid::Uuid::new_v4().to_string()).collect() };
    // A plan contains the property `value` twice, as a resource input and as a resource output. Each UUID in this
    // property has 15 bytes of entropy.
    let program = |size: usize| PROGRAM.replace("value: one", &format!("value: {}", noise(size)));
    workspace.put(&program(24_000)).await;
    let options = RunOptions { save_plan: true, ..RunOptions::default() };
    let preview = request(&workspace, OperationKind::Preview, options, "first-secret").await;
    let result = workspace.run_to_end(&preview).await;
    assert_eq!(result.outcome(), Outcome::Failed);
    assert!(result.message.contains("exceeds the limit of 716800 bytes: split the stack"), "{}", result.message);
    assert!(result.plan.is_empty() && result.planned_steps.is_empty());

    workspace.put(&program(16_000)).await;
    let saved = plan(&workspace, PreviewOf::Up).await;
    assert!(saved.plan.len() > 450 * 1024, "{}", saved.plan.len());
    let result = follow(&workspace, OperationKind::Up, &saved).await;
    assert_eq!(result.outcome(), Outcome::Succeeded, "{}", result.message);
}

#[tokio::test]
async fn a_destroy_deletes_only_the_planned_resources() {
    if !has_pulumi("a_destroy_deletes_only_the_planned_resources") {
        return;
    }
    let workspace = Workspace::start().await;
    workspace.put(PROGRAM).await;
    up(&workspace).await;
    let options = RunOptions { preview_of: PreviewOf::Destroy.into(), ..RunOptions::default() };
    let preview = request(&workspace, OperationKind::Preview, options, "first-secret").await;
    let result = workspace.run_to_end(&preview).await;
    assert_eq!(steps(&result), ["delete first", "delete second"], "{}", result.message);
    assert!(result.plan.is_empty());
    let saved = plan(&workspace, PreviewOf::Destroy).await;
    assert_eq!(steps(&saved), ["delete first", "delete second"]);
    assert_eq!(saved.changes.get("delete"), Some(&3), "{:?}", saved.changes);
    let urns: Vec<String> = serde_json::from_str(&text(&saved)).unwrap();
    assert!(urns.is_sorted() && urns.iter().any(|urn| urn.ends_with("::first")), "{urns:?}");

    let third = "  third:\n    type: testing:index:Step\n    properties: {name: third}\noutputs:";
    let without_first = PROGRAM.replace("  first:\n", "  other:\n").replace("${first.value}", "none");
    workspace.put(&without_first.replace("outputs:", third)).await;
    up(&workspace).await;
    let result = follow(&workspace, OperationKind::Destroy, &saved).await;
    assert_eq!(result.outcome(), Outcome::PlanViolated, "{}", result.message);
    let words =
        ["not in the plan: ", "::other, ", "::third; only in the plan: ", "::first\n(the controller makes a new plan)"];
    assert!(words.iter().all(|words| result.message.contains(words)), "{}", result.message);
    assert!(!result.interrupted && workspace.exec("pulumi stack export").contains("Step::third"));

    let saved = plan(&workspace, PreviewOf::Destroy).await;
    let result = follow(&workspace, OperationKind::Destroy, &saved).await;
    assert_eq!(result.outcome(), Outcome::Succeeded, "{}", result.message);
    assert_eq!(result.changes.get("delete"), Some(&4), "{:?}", result.changes);
    let result = follow(&workspace, OperationKind::Destroy, &saved).await;
    assert_eq!(result.outcome(), Outcome::PlanViolated, "an empty stack: {}", result.message);
}

#[tokio::test]
async fn the_preview_of_a_refresh_reports_drift_and_changes_no_state() {
    if !has_pulumi("the_preview_of_a_refresh_reports_drift_and_changes_no_state") {
        return;
    }
    let workspace = Workspace::start().await;
    workspace.put(PROGRAM).await;
    up(&workspace).await;
    let refresh = async |variables: &[(&str, &str)]| {
        let options = RunOptions { preview_of: PreviewOf::Refresh.into(), ..RunOptions::default() };
        let mut preview = request(&workspace, OperationKind::Preview, options, "first-secret").await;
        let values = variables.iter().map(|(name, value)| variable(name, Source::Value((*value).to_owned())));
        preview.environment.extend(values);
        let result = workspace.run_to_end(&preview).await;
        assert_eq!(result.outcome(), Outcome::Succeeded, "{}", result.message);
        result
    };
    let state = || workspace.exec("pulumi stack export");
    let before = state();
    assert_eq!(steps(&refresh(&[]).await), Vec::<String>::new());
    let drifted = refresh(&[("PROVIDER_DRIFTED", "first"), ("PROVIDER_GONE", "second")]).await;
    assert_eq!(steps(&drifted), ["delete second", "update first value"]);
    assert_eq!(drifted.planned_steps[0].operation, "delete", "deletions are first");
    assert!(drifted.plan.is_empty() && drifted.outputs.is_empty());
    assert_eq!(state(), before);
}

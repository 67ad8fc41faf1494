//! Tests policy packs in TypeScript and Python. A pack has its own source or is part of the program's source, or a
//! Pulumi Cloud organization requires the pack. Pulumi does not support policy packs in Go.

use pulumi_controller::api::pulumi::{EnforcementLevel, PolicyPack, PolicyViolations, SourceReference, Stack};
use serde_json::{Value, json};

use super::{destroy, first_outputs, npm, outputs_of, program_files, replaced, set_environment, stack};
use super::{template, until_message, with_languages};
use crate::approvals::{approve, permit, until_awaiting};
use crate::harness::{File, Scene, WaitLimit, is_done, run};
use crate::pulumi_cloud::cloud_with_token;
use crate::runs_parts::exec;
use crate::sleeping::until_asleep;

/// Pushes a resource that the mandatory policy forbids, and then a resource that the policy permits.
async fn check(scene: &Scene, files: &[File], path: &str) {
    let source = scene.source("app").await;
    source.push(files).await;
    let mut stack = stack(scene, &source);
    set_environment(&mut stack, &[("PULUMI_OPTION_POLICY_PACK", "policy")]);
    let main = scene.start(stack).await;
    let (_, message) = until_message(&main, "allowed-values").await;
    assert!(message.contains("the value is forbidden"), "{message}");

    let second = source.push(&replaced(files, path, "\"forbidden\"", "\"allowed\"")).await;
    assert_eq!(outputs_of(&main, &second).await, json!({"value": "allowed"}));
    destroy(&main).await;
}

#[test]
fn a_typescript_policy_pack_prevents_a_forbidden_resource() {
    run("policy-ts", async |scene| {
        check(scene, &[npm("npm-extended"), program_files("policy-typescript")].concat(), "index.ts").await;
    });
}

#[test]
fn a_python_policy_pack_prevents_a_forbidden_resource() {
    run("policy-py", async |scene| check(scene, &program_files("policy-python"), "__main__.py").await);
}

/// Publishes the policy pack in the program's `policy` directory to a Pulumi Cloud organization, which then requires
/// the pack for all its stacks. During a run, the CLI downloads the pack and installs the pack's dependencies.
async fn check_required(scene: &Scene, files: &[File], path: &str, install: &str) {
    let (cloud, _) = cloud_with_token(scene).await;
    let source = scene.source("app").await;
    let first = source.push(files).await;
    let mut stack = scene.stack_in_cloud("main", &source, &cloud, "policy");
    with_languages(&mut stack);
    let main = scene.start(stack).await;
    assert_eq!(first_outputs(&main, &first).await, json!({"value": "forbidden"}), "no policy pack is required");

    let organization = &cloud.organization;
    let publish = format!(
        "cp -r /share/workspace/policy /tmp/values && cd /tmp/values && {install} && \
         pulumi policy publish {organization} && pulumi policy enable {organization}/values latest"
    );
    exec(scene, "main", &["sh", "-c", &publish]).await;
    let changed = replaced(files, path, "\"stored\"", "\"renamed\"");
    source.push(&changed).await;
    let (_, message) = until_message(&main, "allowed-values").await;
    assert!(message.contains("the value is forbidden"), "{message}");

    let allowed = source.push(&replaced(&changed, path, "\"forbidden\"", "\"allowed\"")).await;
    assert_eq!(outputs_of(&main, &allowed).await, json!({"value": "allowed"}));
    destroy(&main).await;
}

#[test]
fn a_typescript_policy_pack_of_the_organization_prevents_a_forbidden_resource() {
    run("policy-cloud-ts", async |scene| {
        check_required(scene, &typescript_files(), "index.ts", "npm install --no-audit --no-fund").await;
    });
}

#[test]
fn a_python_policy_pack_of_the_organization_prevents_a_forbidden_resource() {
    run("policy-cloud-py", async |scene| {
        let install = "python3 -m venv venv && venv/bin/pip install --requirement requirements.txt";
        check_required(scene, &python_files(), "__main__.py", install).await;
    });
}

/// Splits the files into the program files, and the policy pack files in the directory `policy`.
fn split(files: Vec<File>) -> (Vec<File>, Vec<File>) {
    let (pack, program): (Vec<File>, Vec<File>) = files.into_iter().partition(|file| file.path.starts_with("policy/"));
    let moved = |file: File| File { path: file.path.replacen("policy/", "", 1), ..file };
    (program, pack.into_iter().map(moved).collect())
}

/// Returns the policy pack whose source is the GitRepository `policies`.
fn pack_of_stack(enforcement_level: Option<EnforcementLevel>) -> PolicyPack {
    let source_ref =
        SourceReference { kind: "GitRepository".to_owned(), name: "policies".to_owned(), ..SourceReference::default() };
    PolicyPack { name: "values".to_owned(), source_ref, enforcement_level, ..PolicyPack::default() }
}

fn violations(stack: &Stack) -> Option<PolicyViolations> {
    stack.status.as_ref()?.policy_violations.clone()
}

/// Enforces a policy pack from its own source. The pack is first advisory and then mandatory. Finally, a new version of
/// the pack permits the value. `path` is the policy pack's program file. If `sleeps` is true, the Workspace sleeps when
/// the policy pack becomes mandatory.
async fn check_source(scene: &Scene, files: Vec<File>, path: &str, sleeps: bool) {
    let (program, pack) = split(files);
    let (source, policies) = (scene.source("app").await, scene.source("policies").await);
    policies.push(&pack).await;
    let first = source.push(&program).await;
    let mut stack = stack(scene, &source);
    stack.spec.policy_packs = vec![pack_of_stack(Some(EnforcementLevel::Advisory))];
    if sleeps {
        template(&mut stack)["idle"] = json!({"after": "1m"});
    }
    let main = scene.start(stack).await;
    assert_eq!(first_outputs(&main, &first).await, json!({"value": "forbidden"}));
    let found = violations(&main.get().await).expect("an advisory violation");
    assert_eq!((found.mandatory, found.advisory), (0, 1));
    assert_eq!((found.violations[0].policy.as_str(), found.violations[0].pack.as_str()), ("allowed-values", "values"));
    main.until_event("PolicyViolation").await;
    if sleeps {
        until_asleep(scene, "main").await;
    }

    main.change(json!({"spec": {"policyPacks": [pack_of_stack(None)]}})).await;
    let (failed, message) = until_message(&main, "allowed-values").await;
    assert!(message.contains("the value is forbidden"), "{message}");
    let last = failed.status.as_ref().and_then(|status| status.last_update.as_ref()).expect("a run");
    assert_eq!(last.reason.as_deref(), Some("PolicyViolation"));
    assert_eq!(violations(&failed).map(|found| (found.mandatory, found.advisory)), Some((1, 0)));

    policies.push(&replaced(&pack, path, "\"forbidden\"", "\"rejected\"")).await;
    let allows = |stack: &Stack| is_done(stack) && violations(stack).is_none();
    main.until("to apply the new version of the policy pack", WaitLimit::Compilation, allows).await;
    let causes: Vec<String> = main.updates().await.into_iter().filter_map(|update| update.spec.message).collect();
    assert!(causes.iter().any(|cause| cause == "Policy pack values has changed"), "{causes:?}");
    destroy(&main).await;
}

/// Returns a program and its policy pack in TypeScript.
fn typescript_files() -> Vec<File> {
    let program = npm("npm-extended");
    let dependencies = program.iter().find(|file| file.path == "package.json").expect("package.json");
    let mut files = [program.clone(), program_files("policy-typescript")].concat();
    set_content(&mut files, "policy/package.json", |pack| with_dependencies(pack, &dependencies.content));
    files
}

/// Returns a program and its policy pack in Python.
fn python_files() -> Vec<File> {
    let mut files = program_files("policy-python");
    set_content(&mut files, "policy/PulumiPolicy.yaml", |pack| pack.replace("../venv", "venv"));
    files.push(File { path: "policy/requirements.txt".to_owned(), content: "pulumi-policy==1.21.0\n".to_owned() });
    files
}

#[test]
fn a_typescript_policy_pack_from_its_own_source_is_enforced() {
    run("policy-source-ts", async |scene| check_source(scene, typescript_files(), "index.ts", false).await);
}

/// Pushes a forbidden value, whose preview fails, and then approves a plan with a permitted value. `path` is the path
/// of the program file.
async fn check_plan(scene: &Scene, files: Vec<File>, path: &str) {
    permit(scene, "alice").await;
    let (program, pack) = split(files);
    let (source, policies) = (scene.source("app").await, scene.source("policies").await);
    policies.push(&pack).await;
    source.push(&program).await;
    let mut stack = stack(scene, &source);
    stack.spec.policy_packs = vec![pack_of_stack(Some(EnforcementLevel::Mandatory))];
    stack.spec.approval = serde_json::from_value(json!({"mode": "Always"})).expect("approval settings");
    let main = scene.start(stack).await;
    let (_, message) = until_message(&main, "allowed-values").await;
    assert!(message.contains("the value is forbidden"), "the preview of a plan fails: {message}");

    let allowed = source.push(&replaced(&program, path, "\"forbidden\"", "\"allowed\"")).await;
    let plan = until_awaiting(&main, &allowed).await;
    approve(scene, &plan, "alice").await;
    assert_eq!(outputs_of(&main, &allowed).await, json!({"value": "allowed"}));
    let last = main.get().await.status.and_then(|status| status.last_update).expect("a run");
    assert!(last.plan.is_some() && last.inputs.policy_inputs.contains_key("values"), "{last:?}");
}

#[test]
fn a_plan_in_typescript_is_made_and_executed_with_the_policy_packs() {
    run("policy-plan-ts", async |scene| check_plan(scene, typescript_files(), "index.ts").await);
}

#[test]
fn a_plan_in_python_is_made_and_executed_with_the_policy_packs() {
    run("policy-plan-py", async |scene| check_plan(scene, python_files(), "__main__.py").await);
}

#[test]
fn a_python_policy_pack_from_its_own_source_is_enforced() {
    run("policy-source-py", async |scene| check_source(scene, python_files(), "__main__.py", true).await);
}

fn set_content(files: &mut [File], path: &str, change: impl FnOnce(&str) -> String) {
    let file = files.iter_mut().find(|file| file.path == path).unwrap_or_else(|| panic!("{path} does not exist"));
    file.content = change(&file.content);
}

/// Returns the package.json for a policy pack that has the same dependencies as a program.
fn with_dependencies(pack: &str, program: &str) -> String {
    let parse = |text: &str| serde_json::from_str::<Value>(text).expect("valid JSON");
    let (mut pack, mut program) = (parse(pack), parse(program));
    for kind in ["dependencies", "devDependencies"] {
        pack[kind] = program[kind].take();
    }
    pack.to_string()
}

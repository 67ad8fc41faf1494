//! Tests the kubectl plugin with Stacks in a real cluster.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use pulumi_controller::api::names::workspace_pod;
use rmcp::ServiceExt as _;
use rmcp::model::CallToolRequestParams;
use rmcp::transport::TokioChildProcess;
use serde_json::{Value, json};

use crate::approvals::until_awaiting;
use crate::harness::{Poll, Program, Scene, WaitLimit, once, run, try_run_program, wait_until};

const PLUGIN: &str = env!("CARGO_BIN_EXE_kubectl-pulumi");

/// Runs the plugin in the scene's namespace. Returns stdout or, if the plugin fails, stderr.
async fn try_plugin(scene: &Scene, arguments: &[&str]) -> Result<String, String> {
    let namespace = ["--namespace", scene.namespace.as_str(), "--timeout", "50s"];
    let arguments: Vec<&str> = namespace.into_iter().chain(arguments.iter().copied()).collect();
    try_run_program(PLUGIN, &arguments, "").await
}

/// Runs the plugin, and returns stdout. Panics if the plugin fails.
async fn plugin(scene: &Scene, arguments: &[&str]) -> String {
    let result = try_plugin(scene, arguments).await;
    result.unwrap_or_else(|problem| panic!("kubectl pulumi {arguments:?}: {problem}"))
}

/// Returns the row for the Stack `main` in the JSON output of `get`.
async fn row(scene: &Scene) -> Value {
    let list = plugin(scene, &["get", "main", "--output", "json"]).await;
    let list: Value = serde_json::from_str(&list).expect("JSON");
    list[0].clone()
}

fn program(text: &str) -> Program {
    let secret = json!({"fn::secret": "hunter22"});
    Program::new("plugin").step("step", json!({"value": text})).output("text", json!(text)).output("token", secret)
}

#[test]
fn a_user_looks_at_a_stack_and_controls_it_with_the_plugin() {
    run("plugin", async |scene| {
        let source = scene.source("app").await;
        let first = source.push(&program("one").files()).await;
        let main = scene.start(scene.stack("main", &source)).await;
        main.until_applied(&first).await;

        let found = row(scene).await;
        assert_eq!((&found["phase"], &found["revision"]), (&json!("Ready"), &json!(first.revision())), "{found}");
        let tree = plugin(scene, &["tree", "main"]).await;
        for object in ["Workspace/main", "Pod/main-workspace-0", "Update/main-"] {
            assert!(tree.contains(object), "{object}: {tree}");
        }
        let log = plugin(scene, &["logs", "main"]).await;
        assert!(log.contains("Resources:"), "{log}");
        assert!(plugin(scene, &["events", "main"]).await.contains("Stack/main"));
        assert!(plugin(scene, &["history", "main"]).await.contains("Succeeded"));
        assert!(plugin(scene, &["explain", "main"]).await.contains("no run is due"));

        assert_eq!(plugin(scene, &["outputs", "main", "text"]).await, "one\n");
        assert_eq!(plugin(scene, &["outputs", "main", "token"]).await, "[secret]\n");
        assert_eq!(plugin(scene, &["outputs", "main", "token", "--show-secrets"]).await, "hunter22\n");

        plugin(scene, &["suspend", "main"]).await;
        assert_eq!(row(scene).await["phase"], "Suspended");
        let refusal = try_plugin(scene, &["reconcile", "main"]).await.expect_err("the Stack is suspended");
        assert!(refusal.contains("suspended"), "{refusal}");
        plugin(scene, &["resume", "--all", "--wait"]).await;

        let second = source.push(&program("two").files()).await;
        plugin(scene, &["reconcile", "main", "--with-source"]).await;
        main.until_applied(&second).await;
        assert_eq!(main.log.operations().await, once(&["create step", "update step"]));
        plugin(scene, &["reconcile", "main", "--refresh"]).await;
        assert_eq!(main.updates().await.pop().and_then(|update| update.spec.refresh), Some(true));
        let refusal = try_plugin(scene, &["resolve", "main", "--decision", "retry"]).await;
        assert!(refusal.expect_err("no run requires a decision").contains("no selected Stack requires a decision"));
    });
}

#[test]
fn a_user_approves_a_reviewed_plan_and_cancels_a_run_with_the_plugin() {
    run("plugin-approve", async |scene| {
        let source = scene.source("app").await;
        let program = Program::new("plugin").step("slow", json!({"seconds": 120}));
        let commit = source.push(&program.files()).await;
        let mut stack = scene.stack("main", &source);
        stack.spec.approval = serde_json::from_value(json!({"mode": "Always"})).expect("approval settings");
        let main = scene.start(stack).await;
        let plan = until_awaiting(&main, &commit).await;

        assert!(plugin(scene, &["explain", "main"]).await.contains("kubectl pulumi approve"));
        let short = try_plugin(scene, &["approve", "main", "--plan", "0123456789"]).await;
        assert!(short.expect_err("a short digest").contains("its first 32 or more digits"));
        let other = try_plugin(scene, &["approve", "main", "--plan", &"0123456789".repeat(4)]).await;
        assert!(other.expect_err("another plan").contains("review this plan"));
        let refusal = try_plugin(scene, &["approve", "main"]).await.expect_err("there is no terminal");
        assert!(refusal.contains("--plan is required"), "{refusal}");
        plugin(scene, &["approve", "main", "--plan", &plan.digest.to_string()]).await;

        main.log.wait_for("create", "slow", "begin").await;
        plugin(scene, &["cancel", "main"]).await;
        main.until("to be canceled", WaitLimit::Run, |stack| {
            let last = stack.status.as_ref().and_then(|status| status.last_update.as_ref());
            last.and_then(|last| last.reason.as_deref()) == Some("Canceled")
        })
        .await;
        assert_eq!(row(scene).await["phase"], "Stalled");
        assert!(plugin(scene, &["explain", "main"]).await.contains("kubectl pulumi reconcile"));
    });
}

/// Returns the exported state, and the URN of the only `Step` resource in the state.
async fn exported_step(scene: &Scene) -> (String, String) {
    let text = plugin(scene, &["stack", "export", "main"]).await;
    let state: Value = serde_json::from_str(&text).expect("the exported state is JSON");
    let resources = state["deployment"]["resources"].as_array().expect("resources");
    let mut urns = resources.iter().filter_map(|resource| resource["urn"].as_str());
    let urn = urns.find(|urn| urn.contains("testing:index:Step")).unwrap_or_else(|| panic!("no step in {text}"));
    (urn.to_owned(), text)
}

#[test]
fn a_user_previews_a_local_directory_and_changes_the_state_with_the_plugin() {
    run("plugin-state", async |scene| {
        let source = scene.source("app").await;
        let first = source.push(&program("one").files()).await;
        let main = scene.start(scene.stack("main", &source)).await;
        main.until_applied(&first).await;

        plugin(scene, &["diff", "main"]).await;
        let local = tempfile::tempdir().expect("a temporary directory");
        for file in program("two").files() {
            std::fs::write(local.path().join(&file.path), &file.content).expect("the file is written");
        }
        let path = local.path().to_str().expect("UTF-8");
        let changes = try_plugin(scene, &["diff", "main", "--path", path]).await.expect_err("the programs differ");
        assert!(changes.contains("1 resource would change"), "{changes}");
        assert_eq!(main.log.operations().await, once(&["create step"]), "a preview changes no resource");

        let (urn, state) = exported_step(scene).await;
        let rename = ["stack", "state", "rename", "main", &urn, "renamed", "--yes"];
        let refusal = try_plugin(scene, &rename).await.expect_err("the Stack is not suspended");
        assert!(refusal.contains("kubectl pulumi suspend"), "{refusal}");
        plugin(scene, &["suspend", "main"]).await;
        let refusal = try_plugin(scene, &rename[..6]).await.expect_err("there is no terminal");
        assert!(refusal.contains("--yes is required"), "{refusal}");
        plugin(scene, &rename).await;
        assert!(exported_step(scene).await.0.ends_with("::renamed"));

        let file = local.path().join("state.json");
        std::fs::write(&file, state).expect("the file is written");
        plugin(scene, &["stack", "import", "main", file.to_str().expect("UTF-8"), "--yes"]).await;
        assert_eq!(exported_step(scene).await.0, urn, "the import restores the state");
        plugin(scene, &["resume", "main", "--wait"]).await;
        assert_eq!(main.log.operations().await, once(&["create step"]));

        scene.delete::<Pod>(&workspace_pod("main")).await;
        wait_until("the new pod to have no configuration", WaitLimit::Long, async || {
            match try_plugin(scene, &["diff", "main"]).await {
                Err(refusal) if refusal.contains("no run has used the source") => Poll::Found(()),
                other => Poll::NotYet(format!("{other:?}")),
            }
        })
        .await;
        plugin(scene, &["reconcile", "main"]).await;
        plugin(scene, &["diff", "main"]).await;
    });
}

#[test]
fn a_client_of_the_model_context_protocol_reads_and_suspends_a_stack() {
    run("plugin-mcp", async |scene| {
        let source = scene.source("app").await;
        let first = source.push(&program("one").files()).await;
        let main = scene.start(scene.stack("main", &source)).await;
        main.until_applied(&first).await;

        let mut command = tokio::process::Command::new(PLUGIN);
        command.args(["mcp", "--allow-changes", "--timeout", "50s", "--namespace", &scene.namespace]);
        let transport = TokioChildProcess::new(command).expect("the plugin starts");
        let client = limited(().serve(transport)).await.expect("the client connects");
        let call = async |tool: &'static str, arguments: Value| -> String {
            let arguments = serde_json::from_value(arguments).expect("an object");
            let request = CallToolRequestParams::new(tool).with_arguments(arguments);
            let result = limited(client.call_tool(request)).await.expect("the tool responds");
            assert_eq!(result.is_error, Some(false), "{tool}: {result:?}");
            result.content.iter().filter_map(|block| Some(block.as_text()?.text.clone())).collect()
        };
        let list: Value = serde_json::from_str(&call("get", json!({})).await).expect("JSON");
        assert_eq!((&list[0]["name"], &list[0]["phase"]), (&json!("main"), &json!("Ready")), "{list}");
        assert!(call("explain", json!({ "stack": "main" })).await.contains("no run is due"));
        assert!(call("logs", json!({ "stack": "main" })).await.contains("Resources:"));
        let outputs = call("outputs", json!({ "stack": "main" })).await;
        assert!(outputs.contains("[secret]") && !outputs.contains("hunter22"), "{outputs}");
        call("suspend", json!({ "stack": "main" })).await;
        assert_eq!(row(scene).await["phase"], "Suspended");
        limited(client.cancel()).await.expect("the server ends");
    });
}

/// Waits for a response from the MCP server. Panics after a minute.
async fn limited<T>(response: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), response).await.expect("a response of the server within a minute")
}

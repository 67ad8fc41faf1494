//! Tests `kubectl pulumi mcp` with the client from the official Model Context Protocol SDK. The tests have no cluster,
//! so each tool returns a connection error. `tests/e2e/kubectl_plugin.rs` calls the tools with a cluster.

use std::time::Duration;

use anyhow::{Context as _, Result};
use rmcp::model::{CallToolRequestParams, CallToolResult, JsonObject};
use rmcp::service::RunningService;
use rmcp::transport::TokioChildProcess;
use rmcp::{RoleClient, ServiceError, ServiceExt as _};
use serde_json::{Value, json};
use tokio::process::Command;
use tokio::time::timeout;

/// Timeout of a request.
const LIMIT: Duration = Duration::from_secs(60);

type Client = RunningService<RoleClient, ()>;

/// Starts a server with these flags, and connects a client to the server.
async fn connect(flags: &[&str]) -> Result<Client> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kubectl-pulumi"));
    command.env("KUBECONFIG", "/dev/null").env_remove("KUBERNETES_SERVICE_HOST");
    command.args(["mcp", "--timeout", "20s"]).args(flags);
    let transport = TokioChildProcess::new(command)?;
    timeout(LIMIT, ().serve(transport)).await.context("no response to `initialize`")?.context("failed to connect")
}

/// Returns the names of the tools.
async fn names(client: &Client) -> Result<Vec<String>> {
    let tools = timeout(LIMIT, client.list_all_tools()).await.context("no response to `tools/list`")??;
    Ok(tools.iter().map(|tool| tool.name.to_string()).collect())
}

async fn call(client: &Client, tool: &'static str, arguments: Value) -> Result<Result<CallToolResult, ServiceError>> {
    let arguments: JsonObject = serde_json::from_value(arguments)?;
    let request = CallToolRequestParams::new(tool).with_arguments(arguments);
    timeout(LIMIT, client.call_tool(request)).await.context("no response to `tools/call`")
}

fn text(result: &CallToolResult) -> String {
    result.content.iter().filter_map(|block| Some(block.as_text()?.text.clone())).collect()
}

#[tokio::test]
async fn a_client_lists_and_calls_the_tools() -> Result<()> {
    let client = connect(&[]).await?;
    let server = client.peer_info().context("no information about the server")?;
    let name = server.server_info.as_ref().map(|info| info.name.as_str());
    assert_eq!(name, Some("kubectl-pulumi"), "{server:?}");
    let found = names(&client).await?;
    assert_eq!(found, ["get", "explain", "tree", "events", "logs", "history", "outputs", "doctor"]);
    for (tool, arguments) in [("get", json!({})), ("logs", json!({ "stack": "web" })), ("doctor", json!({}))] {
        let result = call(&client, tool, arguments).await??;
        assert_eq!(result.is_error, Some(true), "{tool}: {result:?}");
        assert!(text(&result).contains("failed to connect to the cluster"), "{tool}: {result:?}");
    }
    client.cancel().await?;
    Ok(())
}

#[tokio::test]
async fn changes_and_invalid_arguments_are_rejected() -> Result<()> {
    let client = connect(&[]).await?;
    let invalid = [
        ("explain", json!({}), "missing argument stack"),
        ("explain", json!({ "stack": "--all" }), "must be the name of an object"),
        ("outputs", json!({ "stack": "web", "show_secrets": true }), "unknown argument"),
        ("suspend", json!({ "stack": "web" }), "unknown tool suspend"),
        ("approve", json!({ "stack": "web" }), "unknown tool approve"),
    ];
    for (tool, arguments, expected) in invalid {
        match call(&client, tool, arguments).await? {
            Err(ServiceError::McpError(error)) => assert!(error.message.contains(expected), "{tool}: {error:?}"),
            other => anyhow::bail!("{tool}: expected the error {expected:?}, found {other:?}"),
        }
    }
    client.cancel().await?;

    let client = connect(&["--allow-changes"]).await?;
    let found = names(&client).await?;
    assert!(["reconcile", "suspend", "resume"].iter().all(|name| found.iter().any(|tool| tool == name)), "{found:?}");
    let result = call(&client, "suspend", json!({ "stack": "web" })).await??;
    assert!(text(&result).contains("failed to connect to the cluster"), "{result:?}");
    client.cancel().await?;
    Ok(())
}

//! `mcp`: serves plugin commands as Model Context Protocol (MCP) tools on stdin and stdout.
//!
//! Each call runs the plugin as a child process. A tool therefore has exactly the permissions, the output and the
//! limits of its command. The command output cannot mix with the protocol messages.

mod tools;

use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, Implementation, ListToolsResult,
    PaginatedRequestParams, ServerCapabilities, ServerConfig, Tool,
};
use rmcp::service::RequestContext;
use rmcp::transport::async_rw::AsyncRwTransport;
use rmcp::{ErrorData, RoleServer, ServerHandler, ServiceExt as _};
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::process::Command;
use tokio::sync::Semaphore;

use crate::plugin::args::{GlobalFlags, McpFlags};
use crate::plugin::controller::VERSION;
use crate::plugin::error::PluginError;

/// Maximum size of a client message, in bytes.
const MAX_MESSAGE: usize = 1024 * 1024;
/// Maximum size of a tool's stdout, in bytes.
const MAX_OUTPUT: u64 = 256 * 1024;
/// Maximum size of a tool's stderr, in bytes. The result contains its end, because the last message is the result of the
/// command or the cause of a failure.
const MAX_MESSAGES: usize = 16 * 1024;
/// Maximum size of a piece that the server reads from stderr, in bytes.
const PIECE: u64 = 4 * 1024;
/// Maximum number of concurrent calls. Other calls wait.
const MAX_CALLS: usize = 4;
/// Grace period between the timeout of a command and the termination of its process.
const EXIT_TIME: Duration = Duration::from_secs(10);
/// Exit code of `doctor` if a check has failed. With this exit code, the tool returns the report and not an error.
const UNHEALTHY: i32 = 6;
const INSTRUCTIONS: &str = "Reads the Pulumi stacks that pulumi-controller deploys on Kubernetes. Start with `get`, and \
                            call `explain` for a Stack that is not Ready.";

/// Serves the tools until the client closes stdin.
///
/// # Errors
///
/// Returns an error if the connection to the client fails.
pub async fn run(global: &GlobalFlags, flags: &McpFlags) -> Result<(), PluginError> {
    if std::io::stdin().is_terminal() {
        return Err(PluginError::Usage(
            "stdin is a terminal: an MCP client must start this command, and send its requests to stdin".to_owned(),
        ));
    }
    let program = std::env::current_exe().map_err(|error| {
        PluginError::Failed(format!("failed to find the program of the plugin: {error}; reinstall the plugin"))
    })?;
    let server = Server {
        program,
        flags: tools::global_flags(global),
        timeout: global.timeout + EXIT_TIME,
        allow_changes: flags.allow_changes,
        calls: Arc::new(Semaphore::new(MAX_CALLS)),
    };
    let transport = AsyncRwTransport::<RoleServer, _, _>::new(tokio::io::stdin(), tokio::io::stdout());
    let failed = |why: String| PluginError::Failed(format!("failed to serve the Model Context Protocol: {why}"));
    let transport = transport.with_max_line_length(MAX_MESSAGE);
    let running = server.serve(transport).await.map_err(|error| failed(error.to_string()))?;
    running.waiting().await.map_err(|error| failed(error.to_string()))?;
    Ok(())
}

/// Server of the tools.
struct Server {
    program: PathBuf,
    /// Global flags of the commands.
    flags: Vec<String>,
    /// Maximum duration of a call.
    timeout: Duration,
    allow_changes: bool,
    calls: Arc<Semaphore>,
}

impl ServerHandler for Server {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
            .with_server_info(Implementation::new("kubectl-pulumi", VERSION))
            .with_instructions(INSTRUCTIONS)
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(tools::all(self.allow_changes).map(tools::Definition::tool).collect()))
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        tools::find(name, self.allow_changes).map(tools::Definition::tool)
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let Some(tool) = tools::find(&request.name, self.allow_changes) else {
            let message =
                format!("unknown tool {}: list the tools; --allow-changes adds tools that change Stacks", request.name);
            return Err(ErrorData::invalid_params(message, None));
        };
        let arguments = request.arguments.unwrap_or_default();
        let words = tool.words(&arguments).map_err(|why| ErrorData::invalid_params(why, None))?;
        let result = tokio::select! {
            result = self.call(&words) => result.unwrap_or_else(|cause| Called::failed(&cause)),
            () = context.ct.cancelled() => Called::failed("the client has canceled the call"),
        };
        Ok(result.into_result(tool.name).into())
    }
}

impl Server {
    /// Runs a command of the plugin. If the caller drops the future, Tokio kills the process.
    async fn call(&self, words: &[String]) -> Result<Called, String> {
        let _permit = self.calls.acquire().await.map_err(|error| error.to_string())?;
        let mut command = Command::new(&self.program);
        command.args(&self.flags).args(words).kill_on_drop(true);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child =
            command.spawn().map_err(|error| format!("failed to run {}: {error}", self.program.display()))?;
        let (output, messages) = (child.stdout.take(), child.stderr.take());
        let ended = async { tokio::join!(read(output, MAX_OUTPUT), read_end(messages), child.wait()) };
        let ended = tokio::time::timeout(self.timeout, ended).await;
        let (output, messages, status) = ended.map_err(|_| "the command did not end in time".to_owned())?;
        let status = status.map_err(|error| format!("failed to wait for the command: {error}"))?;
        Ok(Called { output, messages, code: status.code() })
    }
}

/// Process output up to a limit.
#[derive(Debug, Default, PartialEq, Eq)]
struct Output {
    text: String,
    is_cut: bool,
}

/// Reads an output to the end, and keeps the bytes up to a limit.
async fn read(reader: Option<impl AsyncRead + Unpin>, limit: u64) -> Output {
    let mut bytes = Vec::new();
    if let Some(mut reader) = reader {
        // If a read fails, the function keeps the bytes that it has read before the error. The second read discards the
        // rest, because a process cannot continue while its pipe is full.
        let _ = (&mut reader).take(limit + 1).read_to_end(&mut bytes).await;
        let _ = tokio::io::copy(&mut reader, &mut tokio::io::sink()).await;
    }
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let is_cut = bytes.len() > limit;
    bytes.truncate(limit);
    Output { text: String::from_utf8_lossy(&bytes).into_owned(), is_cut }
}

/// Reads the messages to the end, and keeps the last bytes up to the limit.
async fn read_end(reader: Option<impl AsyncRead + Unpin>) -> String {
    let mut bytes = Vec::new();
    let mut is_cut = false;
    if let Some(mut reader) = reader {
        // If a read fails, the function keeps the bytes that it has read before the error.
        while (&mut reader).take(PIECE).read_to_end(&mut bytes).await.is_ok_and(|length| length > 0) {
            let surplus = bytes.len().saturating_sub(MAX_MESSAGES);
            is_cut |= surplus > 0;
            bytes.drain(..surplus);
        }
    }
    let text = String::from_utf8_lossy(&bytes);
    match text.split_once('\n').filter(|_| is_cut) {
        Some((_, lines)) => format!("(earlier messages are missing)\n{lines}"),
        None => text.into_owned(),
    }
}

/// Result of a command.
struct Called {
    output: Output,
    messages: String,
    /// Exit code, or `None` if a signal has terminated the process.
    code: Option<i32>,
}

impl Called {
    fn failed(cause: &str) -> Self {
        Called { output: Output::default(), messages: cause.to_owned(), code: None }
    }

    /// Returns the tool result: stdout and the messages on stderr. The messages of a successful command can limit its
    /// output, for example to the Stacks that the plugin can parse. A report of `doctor` contains all messages.
    fn into_result(self, tool: &str) -> CallToolResult {
        let is_report = tool == "doctor" && self.code == Some(UNHEALTHY);
        let is_success = self.code == Some(0) || is_report;
        let mut content = Vec::new();
        if !self.output.text.is_empty() {
            content.push(ContentBlock::text(self.output.text));
        }
        if self.output.is_cut {
            let limit = MAX_OUTPUT / 1024;
            content.push(ContentBlock::text(format!("The output exceeds {limit} KiB, and its end is missing.")));
        }
        if content.is_empty() || (!is_report && !self.messages.is_empty()) {
            content.push(ContentBlock::text(self.messages));
        }
        if is_success { CallToolResult::success(content) } else { CallToolResult::error(content) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(result: &CallToolResult) -> Vec<&str> {
        result.content.iter().filter_map(|block| Some(block.as_text()?.text.as_str())).collect()
    }

    fn called(output: &str, is_cut: bool, messages: &str, code: Option<i32>) -> Called {
        Called { output: Output { text: output.to_owned(), is_cut }, messages: messages.to_owned(), code }
    }

    #[test]
    fn the_result_contains_the_output_and_the_cause_of_a_failure() {
        let result = called("[]", false, "", Some(0)).into_result("get");
        assert_eq!((texts(&result), result.is_error), (vec!["[]"], Some(false)));
        let result = called("[]", false, "! ignoring Stack apps/web", Some(0)).into_result("get");
        assert_eq!((texts(&result), result.is_error), (vec!["[]", "! ignoring Stack apps/web"], Some(false)));
        let result = called("", false, "Stack suspended", Some(0)).into_result("suspend");
        assert_eq!((texts(&result), result.is_error), (vec!["Stack suspended"], Some(false)));
        let result = called("", false, "does not exist", Some(3)).into_result("get");
        assert_eq!((texts(&result), result.is_error), (vec!["does not exist"], Some(true)));
        let result = called("{}", false, "1 check has failed", Some(6)).into_result("doctor");
        assert_eq!((texts(&result), result.is_error), (vec!["{}"], Some(false)), "the report is the result");
        let result = called("a", true, "", Some(0)).into_result("logs");
        assert_eq!(texts(&result), ["a", "The output exceeds 256 KiB, and its end is missing."]);
        assert_eq!(Called::failed("canceled").into_result("get").is_error, Some(true));
    }

    #[tokio::test]
    async fn an_output_is_read_up_to_the_limit() {
        let output = |text: &str, is_cut: bool| Output { text: text.to_owned(), is_cut };
        assert_eq!(read(Some(&b"abc"[..]), 3).await, output("abc", false));
        assert_eq!(read(Some(&b"abcd"[..]), 3).await, output("abc", true));
        assert_eq!(read(None::<&[u8]>, 3).await, Output::default());
    }

    #[tokio::test]
    async fn the_last_messages_are_kept() {
        assert_eq!(read_end(Some(&b"one\ntwo\n"[..])).await, "one\ntwo\n");
        assert_eq!(read_end(None::<&[u8]>).await, "");
        let long = format!("{}\u{2717} the cause\n", "\u{25ce} running\n".repeat(MAX_MESSAGES));
        let kept = read_end(Some(long.as_bytes())).await;
        assert!(kept.starts_with("(earlier messages are missing)\n\u{25ce} running\n"), "{kept}");
        assert!(kept.ends_with("\u{25ce} running\n\u{2717} the cause\n"), "{kept}");
        assert!(kept.len() <= MAX_MESSAGES + 100);
    }
}

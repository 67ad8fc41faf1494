//! Command line of the plugin. The command and flag names follow the `flux` CLI. `docs/kubectl-plugin.md` documents all
//! of them.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use pulumi_controller::api::{duration, resolve};
use pulumi_controller::view::decisions;
use serde::Serialize;

/// Work with the Stacks of pulumi-controller.
#[derive(Debug, Parser)]
#[command(name = "kubectl-pulumi", bin_name = "kubectl pulumi", version)]
pub struct CommandLine {
    #[command(flatten)]
    pub global: GlobalFlags,

    #[command(subcommand)]
    pub command: Command,
}

/// Flags of all commands.
#[derive(Clone, Debug, Args)]
pub struct GlobalFlags {
    /// Namespace. Default: the namespace of the current context.
    #[arg(short, long, global = true, value_name = "NAMESPACE")]
    pub namespace: Option<String>,

    /// Context of the kubeconfig. Default: the current context.
    #[arg(long, global = true, value_name = "NAME")]
    pub context: Option<String>,

    /// Path of the kubeconfig. Default: the variable KUBECONFIG, or `.kube/config` in the home directory.
    #[arg(long, global = true, value_name = "PATH")]
    pub kubeconfig: Option<PathBuf>,

    /// Timeout of the command, such as `30s` or `10m`. `logs --follow` has no timeout after the run has started.
    #[arg(long, global = true, default_value = "5m", value_name = "DURATION", value_parser = parse_duration)]
    pub timeout: Duration,

    /// Format of the output.
    #[arg(short, long, global = true, value_enum, default_value_t, value_name = "FORMAT")]
    pub output: Format,
}

/// Format of the output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Text for users.
    #[default]
    Text,
    /// JSON for programs.
    Json,
    /// YAML for programs.
    Yaml,
}

/// A command of the plugin.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// List Stacks with their phase, age, revision, drift and the reason why they wait.
    Get(ListFlags),
    /// Show the objects of a Stack: its source, its dependencies, its Workspace and pod, and its Updates.
    Tree(StackName),
    /// Print the log of a run.
    Logs(LogFlags),
    /// List the events of a Stack and of its Workspace, pod and Updates.
    Events(EventFlags),
    /// Request a run for each selected Stack, and wait for the results.
    Reconcile(ReconcileFlags),
    /// Cancel the open or queued run of a Stack.
    Cancel(CancelFlags),
    /// Suspend Stacks. An open run continues.
    Suspend(Selection),
    /// Resume suspended Stacks.
    Resume(ResumeFlags),
    /// Approve the plan of a Stack.
    Approve(DecisionFlags),
    /// Reject the plan of a Stack.
    Reject(DecisionFlags),
    /// Print the outputs of a Stack.
    Outputs(OutputFlags),
    /// List the last runs of a Stack.
    History(StackName),
    /// Explain the state of a Stack, and show the next step.
    Explain(StackName),
    /// Resolve runs that require a decision: unknown outcomes, pending creates, and destroys whose Pulumi stack does
    /// not exist.
    Resolve(ResolveFlags),
    /// Preview the current source or a local directory in the workspace pod of a Stack.
    Diff(DiffFlags),
    /// Export, import and change the Pulumi state of a Stack.
    #[command(subcommand)]
    Stack(StackCommand),
    /// Check the cluster, the controller, your permissions and the Stacks.
    Doctor(DoctorFlags),
    /// Free the pods of ended runs after the controller was removed.
    FreePods(FreePodsFlags),
    /// Serve plugin commands as Model Context Protocol (MCP) tools on stdin and stdout.
    Mcp(McpFlags),
    /// Print the completion script for kubectl, which completes the commands, flags and Stacks of this plugin.
    Completion,
    /// Print the plugin and controller versions.
    Version,
    /// Print completions for kubectl. Internal.
    #[command(name = "__complete", hide = true)]
    Complete(CompleteFlags),
}

/// Name of a Stack.
#[derive(Clone, Debug, Args)]
pub struct StackName {
    /// Name of the Stack.
    #[arg(value_name = "STACK")]
    pub stack: String,
}

/// Flags of `get`.
#[derive(Clone, Debug, Args)]
pub struct ListFlags {
    /// Names of the Stacks. Default: all Stacks in the namespace.
    #[arg(value_name = "STACK")]
    pub stacks: Vec<String>,

    /// Label selector of the Stacks.
    #[arg(short = 'l', long, value_name = "LABELS")]
    pub selector: Option<String>,

    /// List the Stacks in all namespaces.
    #[arg(short = 'A', long)]
    pub all_namespaces: bool,
}

/// Selection of Stacks to change.
#[derive(Clone, Debug, Default, Args)]
pub struct Selection {
    /// Names of the Stacks.
    #[arg(value_name = "STACK")]
    pub stacks: Vec<String>,

    /// Label selector of the Stacks.
    #[arg(short = 'l', long, value_name = "LABELS")]
    pub selector: Option<String>,

    /// Select all Stacks in the namespace.
    #[arg(long)]
    pub all: bool,

    /// Select Stacks of all namespaces. Requires `--all` or `--selector`.
    #[arg(short = 'A', long)]
    pub all_namespaces: bool,
}

/// Flags of `logs`.
#[derive(Clone, Debug, Args)]
pub struct LogFlags {
    /// Name of the Stack.
    #[arg(value_name = "STACK")]
    pub stack: String,

    /// Name of the Update that records the run. Default: the open run or, if no run is open, the last run.
    #[arg(value_name = "RUN")]
    pub run: Option<String>,

    /// Print new lines until the run completes.
    #[arg(short, long)]
    pub follow: bool,

    /// Number of lines from the end of the log. Default: all lines of the run, at most 10 MiB.
    #[arg(long, value_name = "LINES", value_parser = clap::value_parser!(i64).range(0..=1_000_000))]
    pub tail: Option<i64>,

    /// Print all unmodified log lines from the pod during the run, including the agent's lines.
    #[arg(long)]
    pub raw: bool,
}

/// Flags of `events`.
#[derive(Clone, Debug, Args)]
pub struct EventFlags {
    /// Name of the Stack. Default: the Stacks, Workspaces, Updates and Programs in the namespace.
    #[arg(value_name = "STACK")]
    pub stack: Option<String>,
}

/// Flags of `reconcile`.
#[derive(Clone, Debug, Args)]
pub struct ReconcileFlags {
    #[command(flatten)]
    pub selection: Selection,

    /// Reconcile the source of each Stack before the run, and wait until the source is ready.
    #[arg(long)]
    pub with_source: bool,

    /// Refresh the state in the requested run, even if `spec.refresh` is not set.
    #[arg(long)]
    pub refresh: bool,

    /// Do not wait for the results.
    #[arg(long)]
    pub no_wait: bool,
}

/// Flags of `cancel`.
#[derive(Clone, Debug, Args)]
pub struct CancelFlags {
    /// Name of the Stack.
    #[arg(value_name = "STACK")]
    pub stack: String,

    /// Name of the Update to cancel. Default: the open or queued run.
    #[arg(value_name = "RUN")]
    pub run: Option<String>,
}

/// Flags of `resume`.
#[derive(Clone, Debug, Args)]
pub struct ResumeFlags {
    #[command(flatten)]
    pub selection: Selection,

    /// Wait until the Stacks are Ready.
    #[arg(long)]
    pub wait: bool,
}

/// Flags of `approve` and `reject`.
#[derive(Clone, Debug, Args)]
pub struct DecisionFlags {
    /// Name of the Stack.
    #[arg(value_name = "STACK")]
    pub stack: String,

    /// Digest of the plan that you have reviewed, or its first digits: at least 32 for `approve`, and at least 8 for
    /// `reject`. Default: the plugin shows the current plan in the terminal, and asks for confirmation.
    #[arg(long, value_name = "DIGEST")]
    pub plan: Option<String>,

    /// Reason for the decision. Other users can read the reason.
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
}

/// Flags of `outputs`.
#[derive(Clone, Debug, Args)]
pub struct OutputFlags {
    /// Name of the Stack.
    #[arg(value_name = "STACK")]
    pub stack: String,

    /// Name of an output. If set, the plugin prints only this output's value.
    #[arg(value_name = "OUTPUT")]
    pub name: Option<String>,

    /// Print the values of secret outputs. Requires permission to read Secrets in the namespace.
    #[arg(long)]
    pub show_secrets: bool,
}

/// Flags of `resolve`.
#[derive(Clone, Debug, Args)]
pub struct ResolveFlags {
    #[command(flatten)]
    pub selection: Selection,

    /// Decision about the runs.
    #[arg(long, value_enum, value_name = "DECISION")]
    pub decision: Decision,

    /// Print the decisions without applying them.
    #[arg(long)]
    pub dry_run: bool,
}

/// Decision about a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Decision {
    /// Run again. Does not change the state before the run.
    Retry,
    /// Create the missing Pulumi stack and all resources again.
    Create,
    /// Remove the pending creates from the state, then run again.
    Clear,
    /// Start no run until an input of the Stack changes.
    Abandon,
}

impl Decision {
    /// Returns the decision's name in the `pulumi.com/resolve` annotation.
    pub fn as_str(self) -> &'static str {
        decisions::word(self.into())
    }
}

impl From<Decision> for resolve::Decision {
    fn from(decision: Decision) -> Self {
        match decision {
            Decision::Retry => resolve::Decision::Retry,
            Decision::Create => resolve::Decision::Create,
            Decision::Clear => resolve::Decision::Clear,
            Decision::Abandon => resolve::Decision::Abandon,
        }
    }
}

/// Flags of `diff`.
#[derive(Clone, Debug, Args)]
pub struct DiffFlags {
    /// Name of the Stack.
    #[arg(value_name = "STACK")]
    pub stack: String,

    /// Local directory to preview instead of the current source: either the root of the source or the project
    /// directory.
    #[arg(long, value_name = "DIRECTORY")]
    pub path: Option<PathBuf>,

    /// Refresh the state before the preview. The preview does not save the refreshed state.
    #[arg(long)]
    pub refresh: bool,
}

/// A command that reads or changes the state of a Pulumi stack.
#[derive(Debug, Subcommand)]
pub enum StackCommand {
    /// Print the state of the Pulumi stack.
    Export(ExportFlags),
    /// Replace the state of the Pulumi stack.
    Import(ImportFlags),
    /// Change a resource in the state.
    #[command(subcommand)]
    State(StateCommand),
}

/// A command that changes one resource in the state.
#[derive(Debug, Subcommand)]
pub enum StateCommand {
    /// Delete a resource from the state. The actual resource does not change.
    Delete(DeleteFlags),
    /// Remove the protection from a resource.
    Unprotect(UnprotectFlags),
    /// Rename a resource.
    Rename(RenameFlags),
}

/// Flags of `stack export`.
#[derive(Clone, Debug, Args)]
pub struct ExportFlags {
    /// Name of the Stack.
    #[arg(value_name = "STACK")]
    pub stack: String,

    /// Print secret values in plain text.
    #[arg(long)]
    pub show_secrets: bool,
}

/// Flags of `stack import`.
#[derive(Clone, Debug, Args)]
pub struct ImportFlags {
    /// Name of the Stack.
    #[arg(value_name = "STACK")]
    pub stack: String,

    /// File with the state, in the `stack export` format.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,

    /// Import the state even if the Pulumi CLI finds errors in it.
    #[arg(long)]
    pub force: bool,

    /// Do not ask for confirmation.
    #[arg(short, long)]
    pub yes: bool,
}

/// Flags of `stack state delete`.
#[derive(Clone, Debug, Args)]
pub struct DeleteFlags {
    /// Name of the Stack.
    #[arg(value_name = "STACK")]
    pub stack: String,

    /// URN of the resource.
    #[arg(value_name = "URN")]
    pub urn: String,

    /// Delete the resource even if it is protected.
    #[arg(long)]
    pub force: bool,

    /// Also delete the resources that depend on the resource.
    #[arg(long)]
    pub target_dependents: bool,

    /// Do not ask for confirmation.
    #[arg(short, long)]
    pub yes: bool,
}

/// Flags of `stack state unprotect`.
#[derive(Clone, Debug, Args)]
pub struct UnprotectFlags {
    /// Name of the Stack.
    #[arg(value_name = "STACK")]
    pub stack: String,

    /// URN of the resource.
    #[arg(value_name = "URN")]
    pub urn: String,

    /// Do not ask for confirmation.
    #[arg(short, long)]
    pub yes: bool,
}

/// Flags of `stack state rename`.
#[derive(Clone, Debug, Args)]
pub struct RenameFlags {
    /// Name of the Stack.
    #[arg(value_name = "STACK")]
    pub stack: String,

    /// URN of the resource.
    #[arg(value_name = "URN")]
    pub urn: String,

    /// New name of the resource.
    #[arg(value_name = "NAME")]
    pub name: String,

    /// Do not ask for confirmation.
    #[arg(short, long)]
    pub yes: bool,
}

/// Flags of `mcp`.
#[derive(Clone, Debug, Args)]
pub struct McpFlags {
    /// Also serve the tools that change Stacks: `reconcile`, `suspend` and `resume`.
    #[arg(long)]
    pub allow_changes: bool,
}

/// Flags of `doctor`.
#[derive(Clone, Debug, Args)]
pub struct DoctorFlags {
    /// Check the Stacks in all namespaces.
    #[arg(short = 'A', long)]
    pub all_namespaces: bool,

    /// List only what you must change in the Stacks before you migrate from the Pulumi Kubernetes Operator.
    #[arg(long)]
    pub migration: bool,
}

/// Flags of `free-pods`.
#[derive(Clone, Debug, Args)]
pub struct FreePodsFlags {
    /// Free the pods in all namespaces.
    #[arg(short = 'A', long)]
    pub all_namespaces: bool,

    /// Print the pods without freeing them.
    #[arg(long)]
    pub dry_run: bool,
}

/// Arguments of the internal completion command.
#[derive(Clone, Debug, Args)]
pub struct CompleteFlags {
    /// Command-line words after `kubectl pulumi`. The last word is incomplete.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub words: Vec<String>,
}

/// Returns the exit code for an invalid command line, or for a command line that requests help.
pub fn exit_code(error: &clap::Error, words: &[OsString]) -> u8 {
    match error.use_stderr() {
        false => 0,
        // Exit code 2 of `diff` means that there are changes.
        true if words.iter().any(|word| word == "diff") => 1,
        true => 2,
    }
}

/// Maximum value of `--timeout`, in seconds: seven days.
const MAX_TIMEOUT: u64 = 7 * 24 * 60 * 60;

/// Parses a duration in the Flux format.
fn parse_duration(text: &str) -> Result<Duration, String> {
    match duration::seconds(text) {
        Some(seconds @ 1..=MAX_TIMEOUT) => Ok(Duration::from_secs(seconds)),
        _ => Err("must be a duration from 1s to 168h, such as 30s, 10m or 1h".to_owned()),
    }
}

#[cfg(test)]
mod tests;

//! `stack`: exports, imports and changes the Pulumi state of a Stack. The Pulumi CLI runs in the workspace pod, which
//! has access to the backend and to the credentials.

use std::io::{IsTerminal as _, Read as _};
use std::path::Path;

use kube::ResourceExt as _;
use pulumi_controller::api::pulumi::Stack;
use pulumi_controller::text::printable_line;
use serde_json::Value;

use crate::plugin::args::{ExportFlags, StackCommand, StateCommand};
use crate::plugin::cluster::Cluster;
use crate::plugin::confirm::{self, Question};
use crate::plugin::error::PluginError;
use crate::plugin::exec::{self, MAX_OUTPUT, Process, printable_output};
use crate::plugin::pod_cli::PodCommand;
use crate::plugin::progress::{Progress, write_error};
use crate::plugin::screen::{self, escaped_json};
use crate::plugin::select::full_name;
use crate::plugin::workspace_pod::{self, Effect};

/// Maximum length of a CLI argument, such as a URN or a name, in bytes.
const MAX_URN: usize = 4096;

/// Runs a command that reads or changes the state of a Pulumi stack.
///
/// # Errors
///
/// Returns an error if the Stack's state does not permit the command, if the user declines, if the CLI fails, or if a
/// request fails.
pub async fn run(cluster: &Cluster, command: &StackCommand) -> Result<(), PluginError> {
    let (name, is_confirmed, change) = match command {
        StackCommand::Export(flags) => return Box::pin(export(cluster, flags)).await,
        StackCommand::Import(flags) => {
            let state = StateFile::read(&flags.file)?;
            (&flags.stack, flags.yes, Change::Import { state, force: flags.force })
        }
        StackCommand::State(StateCommand::Delete(flags)) => {
            let urn = checked("URN", &flags.urn)?;
            let (force, dependents) = (flags.force, flags.target_dependents);
            (&flags.stack, flags.yes, Change::Delete { urn, force, dependents })
        }
        StackCommand::State(StateCommand::Unprotect(flags)) => {
            (&flags.stack, flags.yes, Change::Unprotect { urn: checked("URN", &flags.urn)? })
        }
        StackCommand::State(StateCommand::Rename(flags)) => {
            let (urn, name) = (checked("URN", &flags.urn)?, checked("NAME", &flags.name)?);
            (&flags.stack, flags.yes, Change::Rename { urn, name })
        }
    };
    Box::pin(apply(cluster, name, is_confirmed, &change)).await
}

/// Prints the state.
async fn export(cluster: &Cluster, flags: &ExportFlags) -> Result<(), PluginError> {
    let found = workspace_pod::find(cluster, &flags.stack, "export the state", Effect::Read);
    let (stack, pod) = Box::pin(found).await?;
    let mut arguments = on_stack(&["stack", "export"], &stack);
    if flags.show_secrets {
        arguments.push("--show-secrets".to_owned());
    }
    let is_terminal = std::io::stdout().is_terminal();
    let print = |line: &[u8]| match is_terminal {
        true => screen::write(escaped_json(&String::from_utf8_lossy(line)).as_bytes()),
        false => screen::write(line),
    };
    call(cluster, &pod, "pulumi stack export", &arguments, None, print).await
}

/// Asks the user for confirmation, and changes the state.
async fn apply(cluster: &Cluster, name: &str, is_confirmed: bool, change: &Change<'_>) -> Result<(), PluginError> {
    let what = change.what();
    let (shown, _) = Box::pin(workspace_pod::find(cluster, name, what, Effect::Change)).await?;
    let mut cluster = cluster.clone();
    if !is_confirmed {
        confirm::ask(&Question {
            description: &change.describe(&shown),
            question: "Change the state?",
            without_terminal: "--yes is required without a terminal",
            declined: format!("the state of Stack {} is unchanged", full_name(&shown)),
        })?;
        cluster = cluster.with_new_deadline();
    }
    let cluster = &cluster;
    // Check again, because another user can have resumed or changed the Stack while the command waited for the
    // confirmation. With another spec, the command would change the state of another Pulumi stack.
    let (stack, pod) = Box::pin(workspace_pod::find(cluster, name, what, Effect::Change)).await?;
    if !is_unchanged(&shown, &stack) {
        let name = full_name(&stack);
        return Err(PluginError::NotReady(format!(
            "failed to {what} of Stack {name}: the Stack was changed during the confirmation; retry the command"
        )));
    }
    let mut progress = Progress::new();
    progress.action(&format!("changing the state of Stack {}", full_name(&stack)));
    let print = |line: &[u8]| screen::write(printable_output(line).as_bytes());
    call(cluster, &pod, &change.command(), &change.arguments(&stack), change.input(), print).await?;
    progress.success("state changed");
    let namespace = stack.namespace().unwrap_or_default();
    progress.note(&format!("the Stack stays suspended; to continue, run: kubectl pulumi resume -n {namespace} {name}"));
    Ok(())
}

/// Returns whether two reads have returned the same Stack with the same spec.
fn is_unchanged(before: &Stack, now: &Stack) -> bool {
    let version = |stack: &Stack| (stack.uid(), stack.metadata.generation);
    version(before) == version(now)
}

/// Calls the CLI in the workspace pod.
async fn call(
    cluster: &Cluster,
    pod: &str,
    name: &str,
    arguments: &[String],
    input: Option<&[u8]>,
    print: impl FnMut(&[u8]) -> Result<(), PluginError>,
) -> Result<(), PluginError> {
    let command = PodCommand::call(arguments).command_line(cluster, input.map_or(0, <[u8]>::len));
    let process = Process { namespace: cluster.namespace(), pod, name, command, input };
    let print_error = |line: &[u8]| {
        write_error(&printable_output(line));
        Ok(())
    };
    match exec::run(cluster, &process, print, print_error).await? {
        0 => Ok(()),
        code => Err(PluginError::Failed(format!(
            "`{name}` failed in Pod {}/{pod} with exit code {code}; the cause is above",
            cluster.namespace()
        ))),
    }
}

/// State in a file.
#[derive(Debug)]
struct StateFile {
    /// Path for messages.
    path: String,
    content: Vec<u8>,
    /// Number of resources.
    resources: usize,
}

impl StateFile {
    fn read(path: &Path) -> Result<Self, PluginError> {
        let name = path.display().to_string();
        let failed =
            |error: std::io::Error| PluginError::Failed(format!("failed to read the state in {name}: {error}"));
        let mut content = Vec::new();
        let file = std::fs::File::open(path).map_err(failed)?;
        file.take(MAX_OUTPUT + 1).read_to_end(&mut content).map_err(failed)?;
        StateFile::parse(&name, content)
    }

    fn parse(path: &str, content: Vec<u8>) -> Result<Self, PluginError> {
        let invalid = |why: &str| {
            PluginError::Usage(format!(
                "invalid state in {path}: {why}; use the output of: kubectl pulumi stack export"
            ))
        };
        if u64::try_from(content.len()).unwrap_or(u64::MAX) > MAX_OUTPUT {
            return Err(invalid("the file is too large"));
        }
        let state: Value = serde_json::from_slice(&content).map_err(|error| invalid(&error.to_string()))?;
        let deployment = state.get("deployment").and_then(Value::as_object);
        let deployment = deployment.ok_or_else(|| invalid("the object `deployment` is missing"))?;
        let resources = deployment.get("resources").and_then(Value::as_array).map(Vec::len).unwrap_or_default();
        Ok(StateFile { path: path.to_owned(), content, resources })
    }
}

/// Change to the state.
enum Change<'a> {
    Import { state: StateFile, force: bool },
    Delete { urn: &'a str, force: bool, dependents: bool },
    Unprotect { urn: &'a str },
    Rename { urn: &'a str, name: &'a str },
}

impl Change<'_> {
    /// Returns the verb that describes the change in messages.
    fn what(&self) -> &'static str {
        match self {
            Change::Import { .. } => "import the state",
            Change::Delete { .. } | Change::Unprotect { .. } | Change::Rename { .. } => "change the state",
        }
    }

    fn words(&self) -> [&'static str; 2] {
        match self {
            Change::Import { .. } => ["stack", "import"],
            Change::Delete { .. } => ["state", "delete"],
            Change::Unprotect { .. } => ["state", "unprotect"],
            Change::Rename { .. } => ["state", "rename"],
        }
    }

    /// Returns the CLI command without its arguments.
    fn command(&self) -> String {
        format!("pulumi {}", self.words().join(" "))
    }

    /// Returns the CLI arguments. Values follow `--`, so the CLI does not parse them as flags.
    fn arguments(&self, stack: &Stack) -> Vec<String> {
        let mut arguments = on_stack(&self.words(), stack);
        let (switches, values): (Vec<&str>, Vec<&str>) = match *self {
            Change::Import { force, .. } => (force.then_some("--force").into_iter().collect(), Vec::new()),
            Change::Delete { urn, force, dependents } => {
                let switches = [(force, "--force"), (dependents, "--target-dependents")];
                let switches = switches.iter().filter(|(is_set, _)| *is_set).map(|(_, switch)| *switch);
                (std::iter::once("--yes").chain(switches).collect(), vec!["--", urn])
            }
            Change::Unprotect { urn } => (vec!["--yes"], vec!["--", urn]),
            Change::Rename { urn, name } => (vec!["--yes"], vec!["--", urn, name]),
        };
        arguments.extend(switches.into_iter().chain(values).map(str::to_owned));
        arguments
    }

    fn input(&self) -> Option<&[u8]> {
        match self {
            Change::Import { state, .. } => Some(&state.content),
            Change::Delete { .. } | Change::Unprotect { .. } | Change::Rename { .. } => None,
        }
    }

    /// Describes the change for the confirmation prompt.
    fn describe(&self, stack: &Stack) -> String {
        let mut lines = vec![("pulumi stack", stack.spec.stack.clone()), ("command", self.command())];
        match self {
            Change::Import { state, .. } => {
                lines.push(("state", format!("{} with {} resources", state.path, state.resources)));
            }
            Change::Delete { urn, dependents, .. } => {
                let more = if *dependents { " and the resources that depend on it" } else { "" };
                lines.push(("resource", format!("{urn}{more}")));
            }
            Change::Unprotect { urn } => lines.push(("resource", (*urn).to_owned())),
            Change::Rename { urn, name } => {
                lines.extend([("resource", (*urn).to_owned()), ("new name", (*name).to_owned())]);
            }
        }
        let lines = lines.iter().map(|(name, value)| format!("  {name}: {}\n", printable_line(value)));
        let (namespace, name) = (stack.namespace().unwrap_or_default(), stack.name_any());
        format!(
            "State of Stack {}\n{}For a backup, first run: kubectl pulumi stack export -n {namespace} {name}\n",
            full_name(stack),
            lines.collect::<String>()
        )
    }
}

/// Returns the arguments of a CLI command for a Stack's Pulumi stack.
fn on_stack(words: &[&str], stack: &Stack) -> Vec<String> {
    let words = words.iter().map(|word| (*word).to_owned());
    words.chain(["--non-interactive".to_owned(), format!("--stack={}", stack.spec.stack)]).collect()
}

/// Returns an argument for the CLI, or an error if the argument is not valid.
fn checked<'a>(what: &str, value: &'a str) -> Result<&'a str, PluginError> {
    let is_valid = !value.is_empty() && value.len() <= MAX_URN && !value.chars().any(char::is_control);
    let is_valid = is_valid && (what != "URN" || value.starts_with("urn:pulumi:"));
    is_valid.then_some(value).ok_or_else(|| {
        PluginError::Usage(format!(
            "invalid {what} {}: copy it from: kubectl pulumi stack export",
            printable_line(&value.chars().take(100).collect::<String>())
        ))
    })
}

#[cfg(test)]
mod tests;

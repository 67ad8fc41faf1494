//! The commands of the plugin.

mod cancel;
mod decide;
mod diff;
mod doctor;
mod events;
mod explain;
mod free_pods;
mod get;
mod history;
mod logs;
mod mcp;
mod outputs;
mod reconcile;
mod resolve;
mod stack;
mod suspend;
mod tree;
mod version;

use crate::plugin::args::{Command, CommandLine};
use crate::plugin::cluster::Cluster;
use crate::plugin::completion;
use crate::plugin::error::PluginError;
use crate::plugin::screen;

/// Runs the command that the command line selects.
///
/// # Errors
///
/// Returns an error with a message for the user.
pub async fn run(line: CommandLine) -> Result<(), PluginError> {
    let is_diff = matches!(line.command, Command::Diff(_));
    Box::pin(execute(line)).await.map_err(|error| match error {
        // Exit code 2 of `diff` means that there are changes.
        PluginError::Usage(message) if is_diff => PluginError::Failed(message),
        error => error,
    })
}

async fn execute(line: CommandLine) -> Result<(), PluginError> {
    let CommandLine { global, command } = line;
    match command {
        Command::Completion => return screen::write(completion::SCRIPT.as_bytes()),
        // The completion of commands and flags needs no connection to a cluster.
        Command::Complete(flags) => return completion::complete(&global, &flags.words).await,
        Command::Version => return version::run(Cluster::connect(&global).await, global.output).await,
        // The MCP server needs no cluster connection, because each tool connects to the cluster and reports connection
        // errors.
        Command::Mcp(flags) => return Box::pin(mcp::run(&global, &flags)).await,
        _ => {}
    }
    let cluster = Cluster::connect(&global).await?;
    let format = global.output;
    // The futures contain complete objects, such as Stacks. Box the futures to keep the stack small.
    match command {
        Command::Get(flags) => Box::pin(get::run(&cluster, &flags, format)).await,
        Command::Tree(flags) => Box::pin(tree::run(&cluster, &flags.stack, format)).await,
        Command::Logs(flags) => Box::pin(logs::run(&cluster, &flags)).await,
        Command::Events(flags) => Box::pin(events::run(&cluster, flags.stack.as_deref(), format)).await,
        Command::Reconcile(flags) => Box::pin(reconcile::run(&cluster, &flags)).await,
        Command::Cancel(flags) => Box::pin(cancel::run(&cluster, &flags)).await,
        Command::Suspend(selection) => Box::pin(suspend::suspend(&cluster, &selection)).await,
        Command::Resume(flags) => Box::pin(suspend::resume(&cluster, &flags)).await,
        Command::Approve(flags) => Box::pin(decide::approve(&cluster, &flags)).await,
        Command::Reject(flags) => Box::pin(decide::reject(&cluster, &flags)).await,
        Command::Outputs(flags) => Box::pin(outputs::run(&cluster, &flags, format)).await,
        Command::History(flags) => Box::pin(history::run(&cluster, &flags.stack, format)).await,
        Command::Explain(flags) => Box::pin(explain::run(&cluster, &flags.stack, format)).await,
        Command::Resolve(flags) => Box::pin(resolve::run(&cluster, &flags, format)).await,
        Command::Diff(flags) => Box::pin(diff::run(&cluster, &flags)).await,
        Command::Stack(command) => Box::pin(stack::run(&cluster, &command)).await,
        Command::FreePods(flags) => Box::pin(free_pods::run(&cluster, &flags, format)).await,
        Command::Doctor(flags) => Box::pin(doctor::run(&cluster, &flags, format)).await,
        Command::Completion | Command::Complete(_) | Command::Version | Command::Mcp(_) => Ok(()),
    }
}

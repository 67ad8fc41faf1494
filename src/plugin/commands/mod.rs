//! The commands of the plugin.

mod cancel;
mod decide;
mod doctor;
mod events;
mod explain;
mod get;
mod history;
mod logs;
mod outputs;
mod reconcile;
mod resolve;
mod suspend;
mod tree;
mod version;

use crate::plugin::args::{Command, CommandLine};
use crate::plugin::cluster::Cluster;
use crate::plugin::completion;
use crate::plugin::error::PluginError;
use crate::plugin::screen;

/// Runs the command of a command line.
///
/// # Errors
///
/// Returns an error with a message for the user.
pub async fn run(line: CommandLine) -> Result<(), PluginError> {
    let CommandLine { global, command } = line;
    match command {
        Command::Completion => return screen::write(completion::SCRIPT.as_bytes()),
        // A completion without a cluster still completes commands and flags.
        Command::Complete(flags) => return completion::complete(&global, &flags.words).await,
        Command::Version => return version::run(Cluster::connect(&global).await, global.output).await,
        _ => {}
    }
    let cluster = Cluster::connect(&global).await?;
    let format = global.output;
    match command {
        Command::Get(flags) => get::run(&cluster, &flags, format).await,
        Command::Tree(flags) => tree::run(&cluster, &flags.stack, format).await,
        Command::Logs(flags) => Box::pin(logs::run(&cluster, &flags)).await,
        Command::Events(flags) => events::run(&cluster, flags.stack.as_deref(), format).await,
        Command::Reconcile(flags) => Box::pin(reconcile::run(&cluster, &flags)).await,
        Command::Cancel(flags) => cancel::run(&cluster, &flags).await,
        Command::Suspend(selection) => suspend::suspend(&cluster, &selection).await,
        Command::Resume(flags) => suspend::resume(&cluster, &flags).await,
        Command::Approve(flags) => decide::approve(&cluster, &flags).await,
        Command::Reject(flags) => decide::reject(&cluster, &flags).await,
        Command::Outputs(flags) => outputs::run(&cluster, &flags, format).await,
        Command::History(flags) => history::run(&cluster, &flags.stack, format).await,
        Command::Explain(flags) => explain::run(&cluster, &flags.stack, format).await,
        Command::Resolve(flags) => resolve::run(&cluster, &flags, format).await,
        Command::Doctor(flags) => Box::pin(doctor::run(&cluster, &flags, format)).await,
        Command::Completion | Command::Complete(_) | Command::Version => Ok(()),
    }
}

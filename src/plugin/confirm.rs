//! Asks the user for confirmation in the terminal.

use std::io::{BufRead as _, IsTerminal as _, Write as _};

use pulumi_controller::text::printable;

use crate::plugin::error::PluginError;

/// A question about a change.
pub struct Question<'a> {
    /// Description of the change. Each line ends with a line break.
    pub description: &'a str,
    pub question: &'a str,
    /// Error message if there is no terminal. The message names a flag that replaces the confirmation, or another
    /// alternative.
    pub without_terminal: &'a str,
    /// Message if the user declines.
    pub declined: String,
}

/// Shows the description of a change, and asks the user for confirmation.
///
/// # Errors
///
/// Returns an error if there is no terminal, or if the user does not answer `yes`.
pub fn ask(question: &Question<'_>) -> Result<(), PluginError> {
    if !std::io::stdin().is_terminal() || !std::io::stderr().is_terminal() {
        return Err(PluginError::Usage(question.without_terminal.to_owned()));
    }
    let failed = |error: std::io::Error| PluginError::Failed(format!("failed to ask for the decision: {error}"));
    let mut out = std::io::stderr().lock();
    let description = printable(question.description);
    write!(out, "{description}\n{} Only `yes` continues: ", question.question).map_err(failed)?;
    out.flush().map_err(failed)?;
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer).map_err(failed)?;
    match answer.trim() {
        "yes" => Ok(()),
        _ => Err(PluginError::Failed(format!("aborted: {}", question.declined))),
    }
}

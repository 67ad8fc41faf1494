//! Progress of a command on stderr. In a terminal, each new state replaces the last line. Otherwise, for example in CI,
//! each state is a new line.

use std::io::{IsTerminal as _, Write as _};

use pulumi_controller::text::printable;

/// Maximum length of the line with the current state, in characters. A longer line would wrap, and the plugin cannot
/// replace a wrapped line.
const MAX_LINE: usize = 78;

/// Prints the progress of a command.
pub struct Progress {
    is_live: bool,
    /// Current state, without its symbol.
    state: Option<String>,
}

impl Progress {
    /// Creates a printer that writes to stderr.
    pub fn new() -> Self {
        Progress { is_live: std::io::stderr().is_terminal(), state: None }
    }

    /// Prints the start of an action.
    pub fn action(&mut self, text: &str) {
        self.line("►", text);
    }

    /// Prints a success.
    pub fn success(&mut self, text: &str) {
        self.line("✔", text);
    }

    /// Prints information that requires no action.
    pub fn note(&mut self, text: &str) {
        self.line("ℹ", text);
    }

    /// Prints a warning. A warning does not change the exit code.
    pub fn warning(&mut self, text: &str) {
        self.line("!", text);
    }

    /// Prints the failure of one object. The command continues with the other objects.
    pub fn failure(&mut self, text: &str) {
        self.line("✗", text);
    }

    /// Shows the current state of the awaited object if the state has changed.
    pub fn state(&mut self, text: &str) {
        if self.state.as_deref() == Some(text) {
            return;
        }
        self.state = Some(text.to_owned());
        write_error(&state_line(text, self.is_live));
    }

    fn line(&mut self, symbol: &str, text: &str) {
        let clear = if self.is_live && self.state.take().is_some() { CLEAR } else { "" };
        self.state = None;
        write_error(&format!("{clear}{symbol} {}\n", printable(text)));
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.is_live && self.state.is_some() {
            write_error("\n");
        }
    }
}

/// Escape sequence that moves the cursor to the start of the line, and clears the line.
const CLEAR: &str = "\r\u{1b}[2K";

fn state_line(text: &str, is_live: bool) -> String {
    let first = printable(text.lines().next().unwrap_or_default());
    if is_live {
        let short: String = first.chars().take(MAX_LINE).collect();
        format!("{CLEAR}◎ {short}")
    } else {
        format!("◎ {first}\n")
    }
}

/// Writes to stderr. Ignores errors, because the plugin has no other output to report them. The macro `eprintln` would
/// panic if the reader of stderr has closed its pipe.
pub fn write_error(text: &str) {
    let mut out = std::io::stderr().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_is_one_short_line_in_a_terminal_and_a_plain_line_elsewhere() {
        assert_eq!(state_line("running\nmore", false), "◎ running\n");
        assert_eq!(state_line("running", true), "\r\u{1b}[2K◎ running");
        assert_eq!(state_line(&"x".repeat(200), true).chars().filter(|c| *c == 'x').count(), MAX_LINE);
        assert_eq!(state_line("a\u{1b}[31m", false), "◎ a\u{fffd}[31m\n");
    }
}

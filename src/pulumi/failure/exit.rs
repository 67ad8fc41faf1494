//! Exit status of the CLI.

use std::ops::RangeInclusive;

/// Exit code of the CLI (since version 3.227) after a second signal has forced the cancellation.
pub const EXIT_CANCELED: i32 = 8;
/// Exit code of a Go program after a panic.
const EXIT_PANIC: i32 = 2;
/// Exit codes with which a shell reports that a signal killed a process: 128 plus the number of the signal.
const SIGNAL_CODES: RangeInclusive<i32> = 129..=192;

/// Exit status of the CLI process: an exit code or a signal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Exit {
    pub code: Option<i32>,
    pub signal: Option<i32>,
}

impl Exit {
    /// Returns whether the CLI reported success.
    pub fn success(&self) -> bool {
        self.code == Some(0) && self.signal.is_none()
    }

    /// Returns whether the CLI was killed or forced to end. The CLI has then not unlocked the stack. A shell script
    /// that starts the CLI reports the signal that killed the CLI as an exit code.
    pub fn is_interrupted(&self) -> bool {
        self.signal.is_some() || self.code.is_some_and(|code| code == EXIT_CANCELED || SIGNAL_CODES.contains(&code))
    }

    /// Returns whether the CLI was interrupted or ended with a panic, so that it has not unlocked the stack.
    pub fn has_crashed(&self) -> bool {
        self.is_interrupted() || self.code == Some(EXIT_PANIC)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_signal_or_a_forced_cancellation_interrupts_the_cli() {
        let rows = [
            (Some(0), None, false, false),
            (Some(1), None, false, false),
            (Some(EXIT_PANIC), None, false, true),
            (Some(6), None, false, false),
            (Some(EXIT_CANCELED), None, true, true),
            (Some(128 + 9), None, true, true),
            (Some(255), None, false, false),
            (None, Some(9), true, true),
        ];
        for (code, signal, interrupted, crashed) in rows {
            let exit = Exit { code, signal };
            assert_eq!((exit.is_interrupted(), exit.has_crashed()), (interrupted, crashed), "{exit:?}");
        }
    }
}

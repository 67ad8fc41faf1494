//! Exit status of the CLI.

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
}

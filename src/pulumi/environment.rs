//! The environment that the CLI is given besides the user's own.

use std::ffi::{OsStr, OsString};
use std::path::Path;

/// The variables to set for every call of the CLI. They are set after the user's, so that they win.
pub fn engine_environment(home: &Path, user: &str) -> Vec<(OsString, OsString)> {
    todo!()
}

/// Whether a variable must not reach the CLI: `PULUMI_OPTION_<FLAG>` sets any flag behind our back.
pub fn is_scrubbed(name: &OsStr) -> bool {
    todo!()
}

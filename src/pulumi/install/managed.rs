//! Properties of an installation that depend on the package manager.

use std::path::PathBuf;

pub(super) const LOCAL_DEPENDENCY: &str = "a dependency is a local path, whose content may have changed";
pub(super) const NO_LOCK: &str = "no lock file";

/// Properties of an installation that depend on the package manager.
#[derive(Debug, Default)]
pub(super) struct Managed {
    pub(super) name: String,
    /// Reason why the installation must run every time.
    pub(super) reinstall_reason: Option<String>,
    pub(super) trees: Vec<PathBuf>,
    pub(super) exact: bool,
    pub(super) works_without_trees: bool,
}

//! Properties of an installation that depend on the package manager.

use std::path::PathBuf;

pub(super) const LOCAL_DEPENDENCY: &str = "a dependency is a local path, and what is there may have changed";
pub(super) const NO_LOCK: &str = "there is no lock file";

/// Properties of an installation that depend on the package manager.
#[derive(Debug, Default)]
pub(super) struct Managed {
    pub(super) name: String,
    /// Reason why the installation must run every time.
    pub(super) hindrance: Option<String>,
    pub(super) trees: Vec<PathBuf>,
    pub(super) exact: bool,
    pub(super) works_without_trees: bool,
}

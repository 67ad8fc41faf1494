//! What a package manager does for a project.

use std::path::PathBuf;

pub(super) const LOCAL_DEPENDENCY: &str = "a dependency is a local path, and what is there may have changed";
pub(super) const NO_LOCK: &str = "there is no lock file";

/// What a package manager does for a project.
#[derive(Debug, Default)]
pub(super) struct Managed {
    pub(super) name: String,
    /// Why it has to run every time.
    pub(super) hindrance: Option<String>,
    pub(super) trees: Vec<PathBuf>,
    pub(super) exact: bool,
    pub(super) works_without_trees: bool,
}

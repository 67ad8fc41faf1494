//! Settings for following repositories.

use std::path::PathBuf;

use crate::artifact;
use crate::source::git::limits::Limits;
use crate::source::git::slots::Slots;
use crate::subprocess::Subprocess;

/// Settings for following repositories.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Directory for fetched files until they are packed. Nothing else uses it.
    pub work: PathBuf,
    /// Directory with the optional files `known_hosts` and `ca.crt` for all Stacks.
    pub trust: PathBuf,
    pub limits: Limits,
    /// Limits of an artifact of a repository.
    pub artifact_limits: artifact::Limits,
    /// All followers of repositories share them.
    pub slots: Slots,
    /// Starts the processes that read the data of servers.
    pub subprocess: Subprocess,
}

//! Settings for polling Git repositories.

use std::path::PathBuf;

use crate::artifact;
use crate::source::git::limits::Limits;
use crate::source::git::slots::Slots;
use crate::subprocess::Subprocess;

/// Settings for polling Git repositories.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Directory for fetched files until they are packed. It must not be used for anything else.
    pub work: PathBuf,
    /// Directory with the optional files `known_hosts` and `ca.crt` for all Stacks.
    pub trust: PathBuf,
    pub limits: Limits,
    /// Limits of an artifact built from a repository.
    pub artifact_limits: artifact::Limits,
    /// Slots that all followers of repositories share.
    pub slots: Slots,
    /// Starts the processes that parse data from servers.
    pub subprocess: Subprocess,
}

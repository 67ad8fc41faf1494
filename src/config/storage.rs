//! Settings for the storage that Workspaces keep while they have no pod.

use super::values::{ConfigError, invalid};
use crate::api::auto::IdleKeep;
use crate::api::names;
use crate::cli::ManagerFlags;

/// Defaults for the data that an idle Workspace keeps, and the dependency cache settings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StorageConfig {
    /// Default of `spec.idle.keep`.
    pub keep: IdleKeep,
    /// Default of `spec.idle.claim` for caches.
    pub cache_claim: String,
    /// Maximum total size of the archives in a cache, in bytes.
    pub cache_size: u64,
}

impl StorageConfig {
    pub(super) fn from_flags(flags: &ManagerFlags) -> Result<Self, ConfigError> {
        let (keep, claim) = (&flags.default_workspace_idle_keep, &flags.workspace_cache_claim);
        // `Volume` requires a separate PersistentVolumeClaim for each Workspace.
        let parsed = IdleKeep::parse(keep).filter(|keep| *keep != IdleKeep::Volume);
        let keep = parsed.ok_or_else(|| invalid("default-workspace-idle-keep", keep, "Nothing or Caches"))?;
        if !names::is_object_name(claim) {
            return Err(invalid("workspace-cache-claim", claim, "the name of a PersistentVolumeClaim"));
        }
        Ok(StorageConfig { keep, cache_claim: claim.clone(), cache_size: flags.workspace_cache_size })
    }
}

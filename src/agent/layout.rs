//! Where things are below the share volume.

use std::io;
use std::path::{Path, PathBuf};

use crate::api::names;

/// The name of the directory with the unpacked source.
pub const SOURCE_DIRECTORY: &str = "source";

/// The paths of one workspace. Everything but the Secrets lies on one file system, so that renames are atomic.
#[derive(Clone, Debug)]
pub struct Layout {
    root: PathBuf,
    secrets: PathBuf,
    config_maps: PathBuf,
}

impl Layout {
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Layout {
            root: root.into(),
            secrets: names::SECRETS_DIRECTORY.into(),
            config_maps: names::CONFIG_MAPS_DIRECTORY.into(),
        }
    }

    /// With Secrets that are mounted elsewhere.
    #[cfg(test)]
    pub fn with_secrets(self, secrets: impl Into<PathBuf>) -> Self {
        Layout { secrets: secrets.into(), ..self }
    }

    /// With ConfigMaps that are mounted elsewhere.
    #[cfg(test)]
    pub fn with_config_maps(self, config_maps: impl Into<PathBuf>) -> Self {
        Layout { config_maps: config_maps.into(), ..self }
    }

    /// A directory for each mounted Secret, with a file for each of its keys.
    pub fn secrets(&self) -> &Path {
        &self.secrets
    }

    /// A directory for each mounted ConfigMap, in the same way.
    pub fn config_maps(&self) -> &Path {
        &self.config_maps
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Variables that init containers have left for the CLI, one `NAME=value` a line.
    pub fn env_file(&self) -> PathBuf {
        self.root.join(names::ENV_FILE)
    }

    /// The unpacked archive. A real directory, exchanged as a whole.
    pub fn source(&self) -> PathBuf {
        self.root.join(SOURCE_DIRECTORY)
    }

    /// A symbolic link to the project's directory in the source.
    pub fn workspace(&self) -> PathBuf {
        self.root.join("workspace")
    }

    /// Where archives are received and unpacked; empty while nothing is being put in place.
    pub fn staging(&self) -> PathBuf {
        self.root.join("staging")
    }

    /// The source before the present one.
    pub fn previous(&self) -> PathBuf {
        self.root.join("previous")
    }

    /// What is in place: see [`super::source`].
    pub fn source_record(&self) -> PathBuf {
        self.root.join("source.json")
    }

    /// The journal: a directory per operation.
    pub fn operations(&self) -> PathBuf {
        self.root.join("operations")
    }

    /// What the stack settings are rebuilt from.
    pub fn settings(&self) -> PathBuf {
        self.root.join("settings")
    }

    /// The home directory where the image's own cannot be written to.
    pub fn home(&self) -> PathBuf {
        self.root.join("home")
    }

    /// Makes the directories that the agent needs from its first moment.
    pub fn create(&self) -> io::Result<()> {
        for directory in [self.staging(), self.operations(), self.settings()] {
            std::fs::create_dir_all(directory)?;
        }
        Ok(())
    }
}

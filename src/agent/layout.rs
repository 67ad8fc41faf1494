//! Paths on the share volume.

use std::io;
use std::path::{Path, PathBuf};

use crate::api::names;

/// Name of the directory with the unpacked source.
pub const SOURCE_DIRECTORY: &str = "source";

/// Paths of a workspace. All paths are in one file system, except the mount paths of Secrets, ConfigMaps and the
/// dependency cache. Renames between these paths are therefore atomic.
#[derive(Clone, Debug)]
pub struct Layout {
    root: PathBuf,
    secrets: PathBuf,
    config_maps: PathBuf,
    default_access_token: PathBuf,
    cache: PathBuf,
}

impl Layout {
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Layout {
            root: root.into(),
            secrets: names::SECRETS_DIRECTORY.into(),
            config_maps: names::CONFIG_MAPS_DIRECTORY.into(),
            default_access_token: Path::new(names::ACCESS_TOKEN_DIRECTORY).join(names::ACCESS_TOKEN_KEY),
            cache: names::CACHE_DIRECTORY.into(),
        }
    }

    /// Replaces the mount path of the cache volume.
    pub fn with_cache(self, cache: impl Into<PathBuf>) -> Self {
        Layout { cache: cache.into(), ..self }
    }

    /// Replaces the parent directory of the mounted Secrets.
    #[cfg(test)]
    pub fn with_secrets(self, secrets: impl Into<PathBuf>) -> Self {
        Layout { secrets: secrets.into(), ..self }
    }

    /// Replaces the parent directory of the mounted ConfigMaps.
    #[cfg(test)]
    pub fn with_config_maps(self, config_maps: impl Into<PathBuf>) -> Self {
        Layout { config_maps: config_maps.into(), ..self }
    }

    /// Replaces the path of the default access token file.
    #[cfg(test)]
    pub fn with_default_access_token(self, file: impl Into<PathBuf>) -> Self {
        Layout { default_access_token: file.into(), ..self }
    }

    /// Returns the parent directory of the mounted Secrets. Each Secret has a subdirectory with one file per key.
    pub fn secrets(&self) -> &Path {
        &self.secrets
    }

    /// Returns the parent directory of the mounted ConfigMaps. Each ConfigMap has a subdirectory with one file per key.
    pub fn config_maps(&self) -> &Path {
        &self.config_maps
    }

    /// Returns the file that contains the default access token for Pulumi Cloud. The file does not exist if the
    /// controller has no default token, or if the Secret with the token does not exist.
    pub fn default_access_token(&self) -> &Path {
        &self.default_access_token
    }

    /// Returns the mount path of the dependency cache volume, which the pods of a namespace share. This path does not
    /// exist if the Workspace has no cache.
    pub fn cache(&self) -> &Path {
        &self.cache
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Returns the file that contains the variables from init containers. Each line has the form `NAME=value`.
    pub fn env_file(&self) -> PathBuf {
        self.root.join(names::ENV_FILE)
    }

    /// Returns the directory of the unpacked source. This directory is not a symbolic link.
    pub fn source(&self) -> PathBuf {
        self.root.join(SOURCE_DIRECTORY)
    }

    /// Returns the symbolic link to the project directory in the source. The CLI uses the path to identify a project,
    /// so runs and users with a shell in the pod must use the same path.
    pub fn workspace(&self) -> PathBuf {
        self.root.join("workspace")
    }

    /// Returns the directory in which programs run, and in which the agent installs dependencies. If the project is in
    /// a subdirectory, this directory is the real path in the source instead of the symbolic link. Package managers
    /// search for files such as `../library` and `../package.json` relative to this directory.
    pub fn program(&self) -> PathBuf {
        let (workspace, source) = (self.workspace(), self.source());
        match (workspace.canonicalize(), source.canonicalize()) {
            (Ok(project), Ok(root)) => match project.strip_prefix(root) {
                Ok(directory) if !directory.as_os_str().is_empty() => source.join(directory),
                _ => workspace,
            },
            _ => workspace,
        }
    }

    /// Returns the directory in which the agent receives and unpacks archives. The directory is empty unless the agent
    /// is installing a source or storing its dependencies in the cache.
    pub fn staging(&self) -> PathBuf {
        self.root.join("staging")
    }

    /// Returns the directory of the source that a trial has replaced. The directory exists only until the end of the
    /// trial.
    pub fn replaced(&self) -> PathBuf {
        self.root.join("replaced")
    }

    /// Returns the directory of the previous source.
    pub fn previous(&self) -> PathBuf {
        self.root.join("previous")
    }

    /// Returns the directory of the policy packs, which contains one directory per pack.
    pub fn policy_packs(&self) -> PathBuf {
        self.root.join("policies")
    }

    /// Returns the file that records the current source: see [`super::source`].
    pub fn source_record(&self) -> PathBuf {
        self.root.join("source.json")
    }

    /// Returns the owner file of a persistent share volume, which contains the name of the owning Workspace. This file
    /// does not exist on a volume that is deleted together with the pod.
    pub fn owner(&self) -> PathBuf {
        self.root.join("owner")
    }

    /// Returns the directory of the journal, which contains one directory per operation.
    pub fn operations(&self) -> PathBuf {
        self.root.join("operations")
    }

    /// Returns the directory with the data from which the agent rebuilds the settings of the stack.
    pub fn settings(&self) -> PathBuf {
        self.root.join("settings")
    }

    /// Returns the home directory that the CLI uses if the image's home directory is not writable.
    pub fn home(&self) -> PathBuf {
        self.root.join("home")
    }

    /// Returns the default of `PULUMI_HOME`: see [`super::home`].
    pub fn pulumi_home(&self) -> PathBuf {
        self.root.join(names::PULUMI_HOME)
    }

    /// Returns the directory for temporary files if the image's directory is not writable.
    pub fn temporary(&self) -> PathBuf {
        self.root.join(names::TEMPORARY_DIRECTORY)
    }

    /// Returns the default directory of Go's build cache, which survives a restart of the container.
    pub fn go_build_cache(&self) -> PathBuf {
        self.root.join("cache/go-build")
    }

    /// Returns the directory of Go's build cache on the dependency cache volume. Several processes can use this
    /// directory at the same time, so the agent does not pack it into an archive.
    pub fn shared_go_build_cache(&self) -> PathBuf {
        self.cache.join("go-build")
    }

    /// Returns the default directory of Go's module cache.
    pub fn go_module_cache(&self) -> PathBuf {
        self.root.join("cache/go-modules")
    }

    /// Creates the directories that the agent needs when it starts.
    pub fn create(&self) -> io::Result<()> {
        for directory in [self.staging(), self.operations(), self.settings(), self.policy_packs()] {
            std::fs::create_dir_all(directory)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_in_a_subdirectory_runs_in_the_source_directory() {
        let directory = tempfile::tempdir().unwrap();
        let layout = Layout::new(directory.path());
        assert_eq!(layout.program(), layout.workspace());
        std::fs::create_dir_all(layout.source().join("apps/web")).unwrap();
        for (target, expected) in [
            ("source", layout.workspace()),
            ("source/apps/web", layout.source().join("apps/web")),
            ("/", layout.workspace()),
        ] {
            std::os::unix::fs::symlink(target, layout.workspace()).unwrap();
            assert_eq!(layout.program(), expected, "{target}");
            std::fs::remove_file(layout.workspace()).unwrap();
        }
    }
}

//! The project file: `Pulumi.yaml`, `Pulumi.yml` or `Pulumi.json`.

use std::path::{Path, PathBuf};

use super::settings::Format;

#[derive(Debug, thiserror::Error)]
pub enum ProjectError {
    #[error("there is no Pulumi.yaml, Pulumi.yml or Pulumi.json in {}", directory.display())]
    Missing { directory: PathBuf },
    #[error("cannot read {}", file.display())]
    Read { file: PathBuf, source: std::io::Error },
    #[error("{} is larger than {limit} bytes", file.display())]
    TooLarge { file: PathBuf, limit: u64 },
    #[error("{} is not valid YAML: {reason}", file.display())]
    Syntax { file: PathBuf, reason: String },
    #[error("{} has no `name`: give the project one", file.display())]
    NoName { file: PathBuf },
    #[error("{} has no `runtime`: give it one, such as `yaml` or `nodejs`", file.display())]
    NoRuntime { file: PathBuf },
}

/// What is to be known of a project before its program runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Project {
    /// The project file.
    pub file: PathBuf,
    pub name: String,
    /// `yaml`, `nodejs`, `python`, `go`, ...
    pub runtime: String,
    /// As written; null when there are none.
    pub runtime_options: serde_json::Value,
    /// Directory or file of the program, relative to the project.
    pub main: Option<String>,
    /// Where the settings files of the stacks are, relative to the project.
    pub stack_config_directory: Option<String>,
    /// Whether `packages` names any.
    pub has_packages: bool,
    /// Whether `plugins` names any.
    pub has_plugins: bool,
}

impl Project {
    /// Reads the project file of a directory.
    pub fn read(directory: &Path) -> Result<Project, ProjectError> {
        todo!()
    }

    /// Reads a project file's text; `file` is what errors name.
    pub fn parse(file: &Path, text: &str) -> Result<Project, ProjectError> {
        todo!()
    }

    /// Whether `pulumi install` has anything to do.
    pub fn needs_install(&self) -> bool {
        todo!()
    }

    /// How the settings files of its stacks are written.
    pub fn settings_format(&self) -> Format {
        todo!()
    }

    /// Where a stack's settings file is, relative to the project.
    pub fn settings_path(&self, stack: &str) -> PathBuf {
        todo!()
    }
}

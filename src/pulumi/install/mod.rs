//! Plans `pulumi install` for a project, and determines whether another installation could change the installed
//! dependencies.
//!
//! A new source reuses the dependencies of the previous source without an installation only if all installation inputs
//! are known and unchanged (see [`InstallPlan::carry`]). Otherwise, the agent runs `pulumi install`, because a
//! dependency could be outdated.

pub mod go;
mod nodejs;
mod package_manager;
pub mod plugins;
pub mod python;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::project::Project;
use package_manager::{LOCAL_DEPENDENCY, ManagerProperties, inside, is_path, text};

pub use package_manager::{Carry, Files, ProjectInSource};

/// An installation, and the conditions under which the agent skips the installation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstallPlan {
    /// The record that the caller stores after the installation.
    pub installed: Installed,
    /// Reason why the installation must run even if the key is unchanged. `None` if an unchanged key permits skipping
    /// the installation.
    pub reinstall_reason: Option<String>,
    /// Directories that contain the dependencies, relative to the source root. Directories outside the source are not
    /// in the list.
    pub trees: Vec<PathBuf>,
    /// Whether the source already contains a directory with dependencies. The caller determines this and removes the
    /// directory from `trees`.
    pub contains_trees: bool,
    /// How to reuse the dependencies of the previous source if the installation inputs have changed.
    pub carry_after_change: Carry,
    pub works_without_trees: bool,
    /// Modules and toolchains in Go's module cache that a Go project uses.
    pub modules: BTreeSet<go::Module>,
}

/// Record of the dependencies that are installed for a source.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Installed {
    /// Digest of all installation inputs.
    pub key: String,
    /// Name of the package manager, such as `npm` or `uv`. If the package manager is unknown, the name of the runtime.
    pub manager: String,
}

impl InstallPlan {
    /// Returns how to reuse the dependencies of the previous source.
    ///
    /// The installed packages can be copied only if the package manager removes unneeded packages, or if the
    /// installation inputs are unchanged.
    pub fn carry(&self, before: Option<&Installed>) -> Carry {
        let Some(before) = before else { return Carry::Nothing };
        let is_equal = before.key == self.installed.key;
        match &self.reinstall_reason {
            None if is_equal => Carry::Move,
            _ if before.manager != self.installed.manager => Carry::Nothing,
            _ if is_equal => Carry::Copy,
            _ => self.carry_after_change,
        }
    }
}

/// Returns the paths of all files in the source that can affect the installation.
pub fn files(project_in_source: ProjectInSource<'_>) -> Vec<PathBuf> {
    let names: &[&str] = match project_in_source.project.runtime.as_str() {
        "nodejs" | "bun" => &nodejs::FILES,
        "python" => &python::FILES,
        "go" => &go::FILES,
        _ => return Vec::new(),
    };
    let directories = project_in_source.directories();
    directories.iter().flat_map(|directory| names.iter().map(|name| directory.join(name))).collect()
}

/// Plans an installation. `imports` contains the packages that a Go module's files import. `cli` is the version of the
/// CLI, or empty if the version is unknown.
pub fn plan(
    project_in_source: ProjectInSource<'_>,
    files: &Files,
    imports: &BTreeSet<String>,
    cli: &str,
) -> InstallPlan {
    let project = project_in_source.project;
    let mut properties = match project.runtime.as_str() {
        "yaml" => {
            ManagerProperties { name: "yaml".to_owned(), works_without_trees: true, ..ManagerProperties::default() }
        }
        "nodejs" | "bun" => nodejs::properties(project_in_source, files),
        "python" => python::properties(project_in_source, files),
        "go" => go::properties(files),
        other => ManagerProperties {
            name: other.to_owned(),
            reinstall_reason: Some(format!("unknown inputs of an installation for runtime {other}")),
            ..ManagerProperties::default()
        },
    };
    // The CLI writes generated packages to this directory.
    properties.trees.extend(inside(&project_in_source.directory.join("sdks")).filter(|_| project.has_packages()));
    let unknown_cli = cli.is_empty().then(|| "unknown CLI version".to_owned());
    InstallPlan {
        installed: Installed {
            key: key(project_in_source, &properties.name, files, imports, cli),
            manager: properties.name,
        },
        reinstall_reason: properties.reinstall_reason.or_else(|| package_reinstall_reason(project)).or(unknown_cli),
        trees: properties.trees,
        contains_trees: false,
        carry_after_change: properties.carry_after_change,
        works_without_trees: properties.works_without_trees,
        modules: go::modules(files),
    }
}

fn key(
    project_in_source: ProjectInSource<'_>,
    manager: &str,
    files: &Files,
    imports: &BTreeSet<String>,
    cli: &str,
) -> String {
    let project = project_in_source.project;
    let files: BTreeMap<_, _> =
        files.iter().map(|(path, content)| (path.to_string_lossy(), hex::encode(Sha256::digest(content)))).collect();
    let all = json!({
        "cli": cli,
        "directory": project_in_source.directory.to_string_lossy(),
        "runtime": project.runtime,
        "options": project.runtime_options,
        "main": project.main,
        "packages": project.packages,
        "plugins": project.plugins,
        "manager": manager,
        "files": files,
        "imports": imports,
    });
    hex::encode(Sha256::digest(all.to_string()))
}

/// If the packages and plugins in the project file require an installation for each source, returns the reason.
fn package_reinstall_reason(project: &Project) -> Option<String> {
    for package in values(&project.packages) {
        let (source, version) = match package {
            Value::String(text) => {
                text.split_once('@').map_or((text.as_str(), ""), |(source, version)| (source, version))
            }
            package => (text(package, "source"), text(package, "version")),
        };
        if is_path(source) {
            return Some(LOCAL_DEPENDENCY.to_owned());
        }
        if version.is_empty() {
            return Some(format!("package {source} has no version"));
        }
    }
    let mut plugins = values(&project.plugins).filter_map(Value::as_array).flatten();
    plugins.any(|plugin| !text(plugin, "path").is_empty()).then(|| LOCAL_DEPENDENCY.to_owned())
}

fn values(object: &Value) -> impl Iterator<Item = &Value> {
    object.as_object().into_iter().flat_map(|object| object.values())
}

#[cfg(test)]
mod tests;

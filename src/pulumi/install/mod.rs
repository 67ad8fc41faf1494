//! What `pulumi install` would do for a project, and whether doing it again could make a difference.
//!
//! The dependencies of the source in place are taken over without an installation only when everything that decides the
//! result is equal and nothing that decides it can be overlooked: see [`Plan::carry`]. What is not known for certain costs an
//! installation, never a wrong dependency.

mod local;
mod managed;
mod nodejs;
mod python;
mod subject;

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::project::Project;
use managed::{LOCAL_DEPENDENCY, Managed};
use subject::{inside, text};

pub use subject::{Files, Subject};
/// What an installation would do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// What is written down of it once it is done.
    pub installed: Installed,
    /// Why an equal key says nothing; none when it says that the result would be equal.
    pub never_skipped: Option<String>,
    /// Where the dependencies go, relative to the source's root: as far as they are in the source.
    pub trees: Vec<PathBuf>,
    /// Whether an installation takes away what an earlier one left and nobody wants any more.
    pub exact: bool,
    /// Whether the project works without any of the trees.
    pub works_without_trees: bool,
}

/// What was installed for a source.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Installed {
    /// A digest of everything that decides the result.
    pub key: String,
    /// The package manager, as far as it is known.
    pub manager: String,
}

/// What becomes of the dependencies of the source before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carry {
    /// They are those of the new source too: nothing is to be installed.
    Move,
    /// An installation goes on from a copy of them.
    Copy,
    Nothing,
}

impl Plan {
    /// What to do with the dependencies of the source before.
    ///
    /// A copy is only worked on where leftovers do no harm: by a manager that takes them away, or when nothing was taken out
    /// of the manifest.
    pub fn carry(&self, before: Option<&Installed>) -> Carry {
        let Some(before) = before else { return Carry::Nothing };
        let is_equal = before.key == self.installed.key;
        match &self.never_skipped {
            None if is_equal => Carry::Move,
            _ if before.manager == self.installed.manager && (self.exact || is_equal) => Carry::Copy,
            _ => Carry::Nothing,
        }
    }
}

/// The paths in the source at which files may be that decide what is installed.
pub fn files(subject: Subject<'_>) -> Vec<PathBuf> {
    let names: &[&str] = match subject.project.runtime.as_str() {
        "nodejs" | "bun" => &nodejs::FILES,
        "python" => &python::FILES,
        _ => return Vec::new(),
    };
    let directories = subject.directories();
    directories.iter().flat_map(|directory| names.iter().map(|name| directory.join(name))).collect()
}

/// Plans an installation. `cli` is the version of the CLI; empty when it is not known.
pub fn plan(subject: Subject<'_>, files: &Files, cli: &str) -> Plan {
    let project = subject.project;
    let mut managed = match project.runtime.as_str() {
        "yaml" => Managed { name: "yaml".to_owned(), works_without_trees: true, ..Managed::default() },
        "nodejs" | "bun" => nodejs::managed(subject, files),
        "python" => python::managed(subject, files),
        other => Managed {
            name: other.to_owned(),
            hindrance: Some(format!("what an installation for the runtime {other} depends on is not known")),
            ..Managed::default()
        },
    };
    // Where the CLI puts the packages that it generates.
    managed.trees.extend(inside(&subject.directory.join("sdks")).filter(|_| project.has_packages()));
    let unknown_cli = cli.is_empty().then(|| "the version of the CLI is not known".to_owned());
    Plan {
        installed: Installed { key: key(subject, &managed.name, files, cli), manager: managed.name },
        never_skipped: managed.hindrance.or_else(|| hindrance_of_packages(project)).or(unknown_cli),
        trees: managed.trees,
        exact: managed.exact,
        works_without_trees: managed.works_without_trees,
    }
}

fn key(subject: Subject<'_>, manager: &str, files: &Files, cli: &str) -> String {
    let project = subject.project;
    let files: BTreeMap<_, _> =
        files.iter().map(|(path, content)| (path.to_string_lossy(), hex::encode(Sha256::digest(content)))).collect();
    let all = json!({
        "cli": cli,
        "directory": subject.directory.to_string_lossy(),
        "runtime": project.runtime,
        "options": project.runtime_options,
        "main": project.main,
        "packages": project.packages,
        "plugins": project.plugins,
        "manager": manager,
        "files": files,
    });
    hex::encode(Sha256::digest(all.to_string()))
}

/// The packages and plugins that the project file names.
fn hindrance_of_packages(project: &Project) -> Option<String> {
    for package in values(&project.packages) {
        let (source, version) = match package {
            Value::String(text) => {
                text.split_once('@').map_or((text.as_str(), ""), |(source, version)| (source, version))
            }
            package => (text(package, "source"), text(package, "version")),
        };
        if local::is_path(source) {
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

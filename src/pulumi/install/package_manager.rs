//! Types and functions that all package managers share: the project and its files, installation properties, and the
//! detection of local dependencies. The files of a local dependency can change without a change to the lock file.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use serde_json::Value;

use crate::pulumi::project::Project;

pub(super) const LOCAL_DEPENDENCY: &str = "a dependency has a local path, so its content may have changed";
pub(super) const NO_LOCK: &str = "no lock file";

/// How a new source reuses the dependencies of the previous source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Carry {
    /// Moves the dependencies to the new source without an installation, because the installation inputs are unchanged.
    Move,
    /// Copies the dependencies to the new source and runs the installation.
    Copy,
    /// Copies the virtual environment without the project's packages, and runs the installation.
    /// [`is_in_empty_environment`](super::python::is_in_empty_environment) selects the files to copy.
    CopyEnvironment,
    #[default]
    Nothing,
}

/// Installation properties that depend on the package manager.
#[derive(Debug, Default)]
pub(super) struct ManagerProperties {
    pub(super) name: String,
    /// Reason why each source requires an installation, if any.
    pub(super) reinstall_reason: Option<String>,
    pub(super) trees: Vec<PathBuf>,
    pub(super) carry_after_change: Carry,
    pub(super) works_without_trees: bool,
}

/// Maps the path in the source to the content of each file that affects the installation: manifests, lock files and
/// package manager settings.
pub type Files = BTreeMap<PathBuf, Vec<u8>>;

/// A project in a source.
#[derive(Clone, Copy, Debug)]
pub struct ProjectInSource<'a> {
    pub project: &'a Project,
    /// Path of the project directory in the source.
    pub directory: &'a Path,
}

impl ProjectInSource<'_> {
    /// Returns a runtime option, or an empty string if the option is not set.
    pub(super) fn option(&self, name: &str) -> &str {
        text(&self.project.runtime_options, name)
    }

    /// Returns the directories in which package managers search for their files. These are the program directory, the
    /// project directory, and all parents up to the source root.
    pub fn directories(&self) -> Vec<PathBuf> {
        // `main` is a directory or a file.
        let main = inside(&self.directory.join(self.project.main.as_deref().unwrap_or_default()));
        let starts = main.into_iter().chain(inside(self.directory));
        let mut directories: Vec<PathBuf> = Vec::new();
        for start in starts {
            for directory in start.ancestors() {
                if !directories.iter().any(|known| known == directory) {
                    directories.push(directory.to_owned());
                }
            }
        }
        directories
    }
}

/// Returns the normalized path, or `None` if the path is outside the source.
pub(super) fn inside(path: &Path) -> Option<PathBuf> {
    let mut normal = PathBuf::new();
    for component in path.components() {
        match component {
            Component::Normal(name) => normal.push(name),
            Component::CurDir => {}
            Component::ParentDir => {
                if !normal.pop() {
                    return None;
                }
            }
            Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    Some(normal)
}

/// Returns the files with these names in any directory.
pub(super) fn named<'a>(files: &'a Files, names: &'a [&str]) -> impl Iterator<Item = (&'a Path, &'a [u8])> {
    let is_named = move |path: &Path| path.file_name().is_some_and(|name| names.iter().any(|desired| name == *desired));
    files.iter().filter(move |(path, _)| is_named(path)).map(|(path, content)| (path.as_path(), content.as_slice()))
}

pub(super) fn text<'a>(object: &'a Value, field: &str) -> &'a str {
    object.get(field).and_then(Value::as_str).unwrap_or_default()
}

/// Schemes that mark local paths in manifests and lock files.
const SCHEMES: [&str; 6] = ["file:", "link:", "portal:", "workspace:", "patch:", "exec:"];

/// TOML keys that precede a path or mark a dependency as local.
const TOML_KEYS: [&str; 5] = ["path=", "directory=", "editable=", "workspace=true", "develop=true"];

/// Returns whether a dependency specification is a local path.
pub(super) fn is_path(text: &str) -> bool {
    text.starts_with(['.', '/', '~']) || contains_local_path(text)
}

/// Returns whether a string contains one of [`SCHEMES`] at the start of a word.
pub(super) fn contains_local_path(text: &str) -> bool {
    SCHEMES.iter().any(|scheme| has_word(text, scheme))
}

/// Returns whether a TOML manifest or lock file contains a local dependency.
pub(super) fn toml_contains_local_path(text: &str) -> bool {
    let text: String = text.chars().filter(|c| !matches!(c, ' ' | '\t')).collect();
    let others = text.match_indices("virtual=\"").any(|(at, word)| {
        // `virtual = "."` is the project itself, which the package manager does not install.
        !text.get(at + word.len()..).is_some_and(|rest| rest.starts_with(".\""))
    });
    others
        || contains_local_path(&text)
        || TOML_KEYS.iter().any(|key| has_word(&text, key))
        || ["type=\"directory\"", "type=\"file\"", "[tool.uv.workspace]"].iter().any(|words| text.contains(words))
}

/// Returns whether a string contains `word` at a position that does not directly follow a letter, a digit, `_` or `-`.
fn has_word(text: &str, word: &str) -> bool {
    let continues = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-');
    text.match_indices(word).any(|(at, _)| !text.get(..at).is_some_and(|before| before.ends_with(continues)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn local_paths_are_distinguished_from_package_names() {
        for (text, expected) in [
            ("file:../sibling", true),
            ("npm:left-pad@1.0.0", false),
            ("workspace:*", true),
            ("\"foo@link:./foo\"", true),
            ("profile:x", false),
            ("./shared", true),
            ("../sibling", true),
            ("/opt/shared", true),
            ("~/shared", true),
            ("^1.0.0", false),
            ("@scope/name", false),
        ] {
            assert_eq!(is_path(text), expected, "{text}");
        }
    }

    #[test]
    fn local_paths_in_toml_are_found() {
        for (text, expected) in [
            ("shared = { path = \"../sibling\" }", true),
            ("source = { editable = \".\" }", true),
            ("source = { virtual = \".\" }", false),
            ("source = { virtual = \"member\" }", true),
            ("shared = { workspace = true }", true),
            ("[tool.uv.workspace]", true),
            ("type = \"directory\"", true),
            ("dependencies = [\"a @ file:///a\"]", true),
            ("pythonpath = \"src\"", false),
            ("dependencies = [\"pulumi>=3\"]\nfiles = [{file = \"a.whl\", hash = \"x\"}]", false),
        ] {
            assert_eq!(toml_contains_local_path(text), expected, "{text}");
        }
    }
}

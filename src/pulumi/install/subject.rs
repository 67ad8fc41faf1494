//! A project in a source and the files that affect its installation.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use serde_json::Value;

use crate::pulumi::project::Project;

/// Existing files that affect the installation (manifests, lock files and settings of package managers), by their paths in the
/// source.
pub type Files = BTreeMap<PathBuf, Vec<u8>>;

/// A project in a source.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    pub project: &'a Project,
    /// Directory of the project in the source.
    pub directory: &'a Path,
}

impl Subject<'_> {
    /// Returns an option of the runtime, or an empty string if it is not set.
    pub(super) fn option(&self, name: &str) -> &str {
        text(&self.project.runtime_options, name)
    }

    /// Returns the directories that package managers search for their files: the directories of the program and of the project,
    /// and all their parents up to the source's root.
    pub(super) fn directories(&self) -> Vec<PathBuf> {
        // `main` may name a directory or a file.
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

/// Returns the normalized path, if it stays inside the source.
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
    let is_named = move |path: &Path| path.file_name().is_some_and(|name| names.iter().any(|wanted| name == *wanted));
    files.iter().filter(move |(path, _)| is_named(path)).map(|(path, content)| (path.as_path(), content.as_slice()))
}

pub(super) fn text<'a>(object: &'a Value, field: &str) -> &'a str {
    object.get(field).and_then(Value::as_str).unwrap_or_default()
}

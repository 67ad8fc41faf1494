//! Finds the imports of all Go files in a module.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use crate::pulumi::install::{Files, ProjectInSource, go};

/// Maximum number of files and directories in a module.
const MAX_ENTRIES: usize = 20_000;
/// Maximum number of bytes that the agent reads from a file. The import declarations are at the start of a file.
const MAX_IMPORTS_BYTES: u64 = 256 * 1024;

/// Returns the imports of all Go files in a project's module. Returns an empty set if the project is not a Go project
/// or has no `go.mod`.
pub(super) fn of_module(
    tree: &Path,
    project_in_source: ProjectInSource<'_>,
    files: &Files,
) -> io::Result<BTreeSet<String>> {
    let has_module = |directory: &&PathBuf| files.contains_key(&directory.join("go.mod"));
    let directories = project_in_source.directories();
    match directories.iter().find(has_module).filter(|_| project_in_source.project.runtime == "go") {
        Some(root) => in_directory(&tree.join(root)),
        None => Ok(BTreeSet::new()),
    }
}

fn in_directory(root: &Path) -> io::Result<BTreeSet<String>> {
    let mut imports = BTreeSet::new();
    let (mut pending, mut entries) = (vec![root.to_owned()], 0);
    while let Some(directory) = pending.pop() {
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            entries += 1;
            if entries > MAX_ENTRIES {
                return Err(io::Error::other(format!("the module has more than {MAX_ENTRIES} files and directories")));
            }
            let (kind, name) = (entry.file_type()?, entry.file_name());
            let is_go_file = Path::new(&name).extension().is_some_and(|extension| extension == "go");
            if kind.is_dir() && !go::is_ignored_directory(&name.to_string_lossy()) {
                pending.push(entry.path());
            } else if is_go_file && (kind.is_file() || (kind.is_symlink() && entry.path().is_file())) {
                // The Go command also compiles a file that is a symbolic link.
                let mut beginning = Vec::new();
                File::open(entry.path())?.take(MAX_IMPORTS_BYTES).read_to_end(&mut beginning)?;
                imports.extend(go::imports(&String::from_utf8_lossy(&beginning)).into_iter().map(str::to_owned));
            }
        }
    }
    Ok(imports)
}

//! Reads the files that determine an installation from an unpacked source.

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use super::carry::is_directory;
use crate::artifact::Directory;
use crate::pulumi::install::{self, Files, Plan, Subject};
use crate::pulumi::project::Project;

/// Maximum size of a file in bytes. Lock files of large projects have several megabytes.
const MAX_FILE: u64 = 32 * 1024 * 1024;

/// Plans the installation for a project in an unpacked source. `cli` is the version of the CLI; empty if unknown.
pub fn plan(tree: &Path, directory: &Directory, project: &Project, cli: &str) -> Plan {
    let subject = Subject { project, directory: Path::new(directory.as_str()) };
    let mut files = Files::new();
    let mut unreadable = None;
    for path in install::files(subject) {
        match read(&tree.join(&path)) {
            Ok(Some(content)) => {
                files.insert(path, content);
            }
            Ok(None) => {}
            Err(error) => unreadable = Some(format!("failed to read {}: {error}", path.display())),
        }
    }
    let mut plan = install::plan(subject, &files, cli);
    // Directories that the source itself contains are not carried over.
    plan.trees.retain(|path| {
        !exists(&tree.join(path)) && path.parent().is_none_or(|parent| is_directory(&tree.join(parent)))
    });
    plan.never_skipped = unreadable.or(plan.never_skipped);
    plan
}

fn exists(path: &PathBuf) -> bool {
    std::fs::symlink_metadata(path).is_ok()
}

/// Returns the content of a file, or `None` if the file does not exist.
fn read(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let file = match std::fs::File::open(path) {
        Ok(file) => file,
        // A component of the path can be a file.
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        Err(error) => return Err(error),
    };
    let mut content = Vec::new();
    file.take(MAX_FILE + 1).read_to_end(&mut content)?;
    if content.len() as u64 > MAX_FILE {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("file exceeds {MAX_FILE} bytes")));
    }
    Ok(Some(content))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn planned(files: &[&str]) -> Plan {
        let tree = tempfile::tempdir().unwrap();
        for path in files {
            let path = tree.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "{}").unwrap();
        }
        let project = Project::parse(Path::new("Pulumi.yaml"), "name: a\nruntime: nodejs").unwrap();
        plan(tree.path(), &"infra".parse().unwrap(), &project, "v3.259.0")
    }

    #[test]
    fn inputs_are_read_up_to_the_root_and_vendored_trees_are_kept() {
        let alone = planned(&["infra/package.json", "package-lock.json"]);
        assert_eq!(alone.never_skipped, None);
        assert_eq!(alone.trees, [Path::new("infra/node_modules"), Path::new("node_modules")]);
        let vendored = planned(&["infra/package.json", "package-lock.json", "infra/node_modules/a/package.json"]);
        assert_eq!(vendored.trees, [Path::new("node_modules")]);
        let odd = planned(&["infra/package.json", "package-lock.json/inner"]);
        assert!(odd.never_skipped.is_some_and(|why| why.contains("failed to read package-lock.json")));
    }
}

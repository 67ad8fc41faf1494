//! Moves or copies the dependencies of the previous source to a new source.

use std::fs::{self, File, FileTimes};
use std::io;
use std::path::{Path, PathBuf};

use crate::agent::durable;

/// Returns the elements of `paths` that are directories in the source.
pub fn existing_directories(source: &Path, paths: &[PathBuf]) -> Vec<PathBuf> {
    paths.iter().filter(|path| is_directory(&source.join(path))).cloned().collect()
}

/// Moves directories from one source to another. The function skips directories that already exist in the target
/// source, so that the agent can repeat the call after a crash.
pub fn move_all(from: &Path, to: &Path, paths: &[PathBuf]) -> io::Result<()> {
    for path in paths {
        let (from, to) = (from.join(path), to.join(path));
        if is_directory(&from) && fs::symlink_metadata(&to).is_err() {
            durable::rename(&from, &to)?;
        }
    }
    Ok(())
}

/// Options of [`copy_all`].
#[derive(Clone, Copy)]
pub struct Copying {
    /// Whether to create hard links to package files instead of copies: see [`is_package_file`]. Copying thousands of
    /// files can take longer than an installation.
    pub links: bool,
    /// Returns whether to copy the file or directory at this path. The path is relative to the copied directory.
    pub selects: fn(&Path) -> bool,
}

/// Copies directories from one source to another. After an error, the function removes all copies.
pub fn copy_all(
    from: &Path,
    to: &Path,
    paths: &[PathBuf],
    copying: Copying,
    is_stopped: impl Fn() -> bool,
) -> io::Result<()> {
    let copied = paths.iter().try_for_each(|path| copy(&from.join(path), &to.join(path), copying, &is_stopped));
    if copied.is_err() {
        remove_all(to, paths)?;
    }
    copied
}

pub fn remove_all(source: &Path, paths: &[PathBuf]) -> io::Result<()> {
    paths.iter().try_for_each(|path| durable::remove(&source.join(path)))
}

/// Returns whether the path is a directory. A symbolic link is not a directory.
pub(super) fn is_directory(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_dir())
}

/// Copies a directory with its modes, modification times and symbolic links. Python and npm detect outdated files by
/// their modification times.
fn copy(from: &Path, to: &Path, copying: Copying, is_stopped: &impl Fn() -> bool) -> io::Result<()> {
    // Uses a loop, because recursion into a deep tree would overflow the thread's stack.
    let mut pending = vec![PathBuf::new()];
    let mut directories = Vec::new();
    while let Some(inner) = pending.pop() {
        fs::create_dir(to.join(&inner))?;
        for entry in fs::read_dir(from.join(&inner))? {
            if is_stopped() {
                return Err(io::ErrorKind::Interrupted.into());
            }
            let entry = entry?;
            let (kind, path) = (entry.file_type()?, inner.join(entry.file_name()));
            if !(copying.selects)(&path) {
                continue;
            }
            if kind.is_dir() {
                pending.push(path);
            } else if kind.is_symlink() {
                std::os::unix::fs::symlink(fs::read_link(entry.path())?, to.join(&path))?;
            } else if kind.is_file() {
                let (from, to) = (entry.path(), to.join(&path));
                if !copying.links || !is_package_file(&path) || fs::hard_link(&from, &to).is_err() {
                    copy_file(&from, &to)?;
                }
            }
        }
        directories.push(inner);
    }
    // Sets the modes and times of the directories after all entries are copied, starting with the innermost
    // directories. Creating an entry changes the directory's modification time, and the mode of a directory can forbid
    // new entries.
    for inner in directories.iter().rev() {
        let metadata = fs::metadata(from.join(inner))?;
        let directory = File::open(to.join(inner))?;
        directory.set_permissions(metadata.permissions())?;
        directory.set_times(FileTimes::new().set_modified(metadata.modified()?))?;
    }
    Ok(())
}

/// Returns whether a file is part of an installed package. `path` is relative to the dependency directory, such as
/// `node_modules` or `venv`.
///
/// If an installation fails, the agent restores the previous source. A hard link to a file of the previous source is
/// therefore safe only if no program changes the file in place. Package managers and Python replace package files
/// instead of changing them in place. pnpm and uv rely on this behavior when they install packages as hard links to
/// files in their caches. Package managers and Python change other files in place, for example
/// `node_modules/.package-lock.json`, `venv/pyvenv.cfg` and `venv/bin/activate`. In addition, project scripts such as
/// patch-package can change package files in place.
fn is_package_file(path: &Path) -> bool {
    let mut components = path.components().map(|component| component.as_os_str().to_string_lossy());
    let (Some(first), Some(_)) = (components.next(), components.next()) else { return false };
    match first.starts_with('.') {
        // pnpm stores packages in `node_modules/.pnpm/NAME/node_modules`.
        true => components.next().is_some_and(|third| third == "node_modules"),
        false => first != "bin",
    }
}

fn copy_file(from: &Path, to: &Path) -> io::Result<()> {
    fs::copy(from, to)?;
    let modified = fs::metadata(from)?.modified()?;
    File::open(to)?.set_times(FileTimes::new().set_modified(modified))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    use super::*;
    use crate::pulumi::install::python::is_in_empty_environment;

    fn tree() -> tempfile::TempDir {
        let tree = tempfile::tempdir().unwrap();
        let package = tree.path().join("node_modules/left-pad");
        fs::create_dir_all(&package).unwrap();
        fs::write(package.join("index.js"), "1").unwrap();
        fs::set_permissions(package.join("index.js"), fs::Permissions::from_mode(0o444)).unwrap();
        std::os::unix::fs::symlink("left-pad/index.js", tree.path().join("node_modules/link")).unwrap();
        let old = FileTimes::new().set_modified(std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000));
        File::open(package.join("index.js")).unwrap().set_times(old).unwrap();
        File::open(&package).unwrap().set_times(old).unwrap();
        tree
    }

    fn all(links: bool) -> Copying {
        Copying { links, selects: |_| true }
    }

    #[test]
    fn a_copy_preserves_metadata_and_links() {
        let (from, to) = (tree(), tempfile::tempdir().unwrap());
        let paths = [PathBuf::from("node_modules")];
        copy_all(from.path(), to.path(), &paths, all(false), || false).unwrap();
        for name in ["node_modules/left-pad", "node_modules/left-pad/index.js"] {
            let [one, other] = [from.path(), to.path()].map(|root| fs::metadata(root.join(name)).unwrap());
            assert_eq!((one.mode(), one.mtime()), (other.mode(), other.mtime()), "{name}");
        }
        assert_eq!(fs::read_link(to.path().join("node_modules/link")).unwrap(), Path::new("left-pad/index.js"));
    }

    #[test]
    fn only_package_files_become_hard_links() {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let files = [
            ("node_modules/left-pad/index.js", true),
            ("node_modules/@pulumi/pulumi/index.js", true),
            ("node_modules/.pnpm/a@1/node_modules/a/index.js", true),
            ("venv/lib/python3.12/site-packages/six.py", true),
            ("node_modules/.package-lock.json", false),
            ("node_modules/.cache/a/index.js", false),
            ("node_modules/.pnpm/lock.yaml", false),
            ("venv/pyvenv.cfg", false),
            ("venv/bin/activate", false),
        ];
        for (file, _) in files {
            let path = from.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, file).unwrap();
        }
        for links in [true, false] {
            let to = to.path().join(links.to_string());
            fs::create_dir(&to).unwrap();
            copy_all(from.path(), &to, &["node_modules", "venv"].map(PathBuf::from), all(links), || false).unwrap();
            for (file, is_package_file) in files {
                let [one, other] = [from.path(), &to].map(|root| fs::metadata(root.join(file)).unwrap());
                assert_eq!(one.ino() == other.ino(), links && is_package_file, "{file}");
                assert_eq!(fs::read_to_string(to.join(file)).unwrap(), file);
            }
        }
    }

    #[test]
    fn only_selected_files_are_copied() {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for file in ["venv/lib/python3.12/site-packages/pip/main.py", "venv/lib/python3.12/site-packages/six.py"] {
            fs::create_dir_all(from.path().join(file).parent().unwrap()).unwrap();
            fs::write(from.path().join(file), file).unwrap();
        }
        let copying = Copying { links: true, selects: is_in_empty_environment };
        copy_all(from.path(), to.path(), &[PathBuf::from("venv")], copying, || false).unwrap();
        let packages = to.path().join("venv/lib/python3.12/site-packages");
        assert!(packages.join("pip/main.py").is_file() && !packages.join("six.py").exists());
    }

    #[test]
    fn a_canceled_copy_leaves_no_files() {
        let (from, to) = (tree(), tempfile::tempdir().unwrap());
        copy_all(from.path(), to.path(), &[PathBuf::from("node_modules")], all(true), || true).unwrap_err();
        assert_eq!(fs::read_dir(to.path()).unwrap().count(), 0);
    }

    #[test]
    fn moving_a_tree_preserves_inodes_and_is_idempotent() {
        let (from, to) = (tree(), tempfile::tempdir().unwrap());
        let paths = [PathBuf::from("node_modules"), PathBuf::from("absent")];
        let inode = fs::metadata(from.path().join("node_modules")).unwrap().ino();
        for _ in 0..2 {
            move_all(from.path(), to.path(), &paths).unwrap();
            assert_eq!(fs::metadata(to.path().join("node_modules")).unwrap().ino(), inode);
        }
        assert_eq!(existing_directories(to.path(), &paths), [PathBuf::from("node_modules")]);
        assert!(existing_directories(from.path(), &paths).is_empty());
    }
}

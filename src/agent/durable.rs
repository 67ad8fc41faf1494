//! Crash-safe file operations: after a crash, a file has either its old or its new content.

use std::fs::{File, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::thread::ScopedJoinHandle;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// Mode bits that permit the owner of a directory to list, add and remove entries.
const OWNER_ALL: u32 = 0o700;
/// Maximum number of files and directories in a tree that the agent syncs individually. If a tree has more files and
/// directories, the agent syncs the whole file system.
const MAX_SYNCS: usize = 256;
/// Number of concurrent syncs. Concurrent syncs are faster, because a journaling file system combines them into one
/// commit.
const CONCURRENT_SYNCS: usize = 8;
/// File in which the kernel lists the mounts of this process.
const MOUNTS: &str = "/proc/self/mountinfo";
/// Maximum number of bytes of [`MOUNTS`] that the agent reads.
const MAX_MOUNTS: u64 = 1024 * 1024;
/// Index of the mount point in a line of [`MOUNTS`].
const MOUNT_POINT: usize = 4;

/// Replaces a file atomically: writes and syncs a temporary file, and then renames this file to `path`. Only the owner
/// can read the file.
pub fn write_atomically(path: &Path, content: &[u8]) -> io::Result<()> {
    let directory =
        path.parent().ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "path has no parent directory"))?;
    let mut file = tempfile::NamedTempFile::new_in(directory)?;
    file.write_all(content)?;
    file.as_file().sync_all()?;
    file.persist(path).map_err(|error| error.error)?;
    sync_directory(directory)
}

/// Opens a file that a program may have replaced. The call never blocks, even if the file is a named pipe without a
/// writer.
///
/// # Errors
///
/// Returns an error if `path` is a symbolic link or not a regular file.
pub fn open_file(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::new(io::ErrorKind::InvalidData, "not a regular file")),
    }
}

/// Syncs all files and directories of a tree to the disk. For a large tree, the function syncs the whole file system
/// instead, because this is faster than many individual syncs.
pub fn sync_tree(tree: &Path) -> io::Result<()> {
    let Some(paths) = paths_to_sync(tree)? else { return sync_filesystem(tree) };
    let share = paths.len().div_ceil(CONCURRENT_SYNCS).max(1);
    std::thread::scope(|scope| {
        let sync_all = |paths: &[PathBuf]| paths.iter().try_for_each(|path| sync(path));
        let syncs: Vec<_> = paths.chunks(share).map(|paths| scope.spawn(move || sync_all(paths))).collect();
        let join = |sync: ScopedJoinHandle<'_, io::Result<()>>| {
            sync.join().unwrap_or_else(|_| Err(io::Error::other("a sync panicked")))
        };
        syncs.into_iter().try_for_each(join)
    })
}

/// Syncs the whole file system that contains `path` to the disk.
pub fn sync_filesystem(path: &Path) -> io::Result<()> {
    Ok(rustix::fs::syncfs(File::open(path)?)?)
}

/// Returns the files and directories of a tree, or `None` if the tree has more than [`MAX_SYNCS`]. The list omits
/// symbolic links, because a sync of a directory includes its symbolic links.
fn paths_to_sync(tree: &Path) -> io::Result<Option<Vec<PathBuf>>> {
    let mut paths = vec![tree.to_owned()];
    let mut directories = vec![tree.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(&directory)? {
            let entry = entry?;
            let kind = entry.file_type()?;
            if kind.is_symlink() {
                continue;
            }
            if paths.len() == MAX_SYNCS {
                return Ok(None);
            }
            paths.push(entry.path());
            if kind.is_dir() {
                directories.push(entry.path());
            }
        }
    }
    Ok(Some(paths))
}

/// Syncs the entries of a directory to the disk.
pub fn sync_directory(directory: &Path) -> io::Result<()> {
    sync(directory).map_err(described(format!("failed to sync {}", directory.display()), directory))
}

/// Syncs a file or a directory to the disk.
fn sync(path: &Path) -> io::Result<()> {
    let file = File::open(path)?;
    match file.sync_all() {
        // Some file systems, such as SMB, cannot sync a directory.
        Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) && file.metadata()?.is_dir() => Ok(()),
        synced => synced,
    }
}

/// Renames a file or a directory.
///
/// # Errors
///
/// The error names the paths and the file system, because some file systems do not support each operation.
pub fn rename(from: &Path, to: &Path) -> io::Result<()> {
    let action = || format!("failed to rename {} to {}", from.display(), to.display());
    std::fs::rename(from, to).map_err(|error| described(action(), from)(error))
}

/// Creates a symbolic link.
///
/// # Errors
///
/// The error names the path and the file system, because some file systems do not support symbolic links.
pub fn symlink(target: &Path, link: &Path) -> io::Result<()> {
    let action = format!("failed to create the symbolic link {}", link.display());
    std::os::unix::fs::symlink(target, link).map_err(described(action, link))
}

/// Returns a function that adds the failed action and the file system of `path` to an error.
fn described(action: String, path: &Path) -> impl FnOnce(io::Error) -> io::Error {
    move |error| {
        let mounts = File::open(MOUNTS).and_then(|file| {
            let mut mounts = String::new();
            file.take(MAX_MOUNTS).read_to_string(&mut mounts).map(|_| mounts)
        });
        let file_system = mounts.ok().and_then(|mounts| file_system(&mounts, path).map(str::to_owned));
        let place = file_system.map(|name| format!(" on the file system {name}")).unwrap_or_default();
        io::Error::new(error.kind(), format!("{action}{place}: {error}"))
    }
}

/// Returns the type of the file system that contains `path`, such as `nfs4`, from the content of [`MOUNTS`].
fn file_system<'a>(mounts: &'a str, path: &Path) -> Option<&'a str> {
    let mounts = mounts.lines().filter_map(|line| {
        let (mount, file_system) = line.split_once(" - ")?;
        Some((Path::new(mount.split(' ').nth(MOUNT_POINT)?), file_system.split(' ').next()?))
    });
    // The last of several mounts at the same path hides the others.
    let containing = mounts.filter(|(mount_point, _)| path.starts_with(mount_point));
    containing.max_by_key(|(mount_point, _)| mount_point.components().count()).map(|(_, file_system)| file_system)
}

/// Removes a file, a symbolic link or a directory tree, including directories without write permission. The function
/// succeeds if `path` does not exist.
pub fn remove(path: &Path) -> io::Result<()> {
    let removed = match std::fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_dir() => remove_tree(path),
        Ok(_) => std::fs::remove_file(path),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Removes a directory tree. The function moves each subdirectory directly into `tree` before it removes the entries of
/// the subdirectory. A recursive function would fail for a deep tree, because the thread's stack, the number of open
/// files and the path length are limited.
fn remove_tree(tree: &Path) -> io::Result<()> {
    let prefix = format!(".removed-{}", uuid::Uuid::new_v4());
    let mut moved = 0_u64;
    let mut pending = vec![tree.to_owned()];
    while let Some(directory) = pending.last().cloned() {
        let mut is_empty = true;
        permit_changes(&directory)?;
        for entry in std::fs::read_dir(&directory)? {
            let entry = entry?;
            if entry.file_name().to_string_lossy().starts_with(&prefix) {
                is_empty = false;
                continue;
            }
            if !entry.file_type()?.is_dir() {
                std::fs::remove_file(entry.path())?;
                continue;
            }
            // A rename of a directory requires write permission for the directory.
            permit_changes(&entry.path())?;
            let target = tree.join(format!("{prefix}-{moved}"));
            std::fs::rename(entry.path(), &target)?;
            moved += 1;
            pending.push(target);
            is_empty = false;
        }
        if is_empty {
            std::fs::remove_dir(&directory)?;
            pending.pop();
        }
    }
    Ok(())
}

/// Permits the owner of a directory to list, add and remove its entries.
fn permit_changes(directory: &Path) -> io::Result<()> {
    let mode = std::fs::symlink_metadata(directory)?.permissions().mode();
    if mode & OWNER_ALL == OWNER_ALL {
        return Ok(());
    }
    std::fs::set_permissions(directory, Permissions::from_mode(mode | OWNER_ALL))
}

/// Returns the content of a file as a string, or `None` if the file does not exist.
pub fn read_if_exists(path: &Path) -> io::Result<Option<String>> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_atomic_write_replaces_content_and_leaves_no_temporary_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("record");
        write_atomically(&path, b"one").unwrap();
        write_atomically(&path, b"two").unwrap();
        assert_eq!(read_if_exists(&path).unwrap().as_deref(), Some("two"));
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn the_file_system_of_a_path_is_that_of_its_innermost_mount() {
        let mounts = "22 1 254:1 / / rw,relatime - overlay overlay rw\n\
                      31 22 0:50 / /share rw,relatime shared:9 - nfs4 server:/share rw\n\
                      32 31 0:51 / /share/home rw - tmpfs tmpfs rw\n\
                      33 31 0:52 / /share/home rw - fuse.gcsfuse bucket rw\n\
                      invalid\n";
        for (path, expected) in [
            ("/share/source", Some("nfs4")),
            ("/share", Some("nfs4")),
            ("/shared", Some("overlay")),
            ("/share/home/.pulumi", Some("fuse.gcsfuse")),
            ("relative", None),
        ] {
            assert_eq!(file_system(mounts, Path::new(path)), expected, "{path}");
        }
    }

    #[test]
    fn a_failed_rename_names_the_paths_and_the_file_system() {
        let directory = tempfile::tempdir().unwrap();
        let (from, to) = (directory.path().join("absent"), directory.path().join("to"));
        let error = rename(&from, &to).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        let start = format!("failed to rename {} to {} on the file system ", from.display(), to.display());
        assert!(error.to_string().starts_with(&start), "{error}");
        let error = symlink(&to, &to.join("in/absent")).unwrap_err().to_string();
        assert!(error.contains("failed to create the symbolic link") && error.contains("in/absent"), "{error}");
    }

    #[test]
    fn trees_of_any_size_are_synced_without_following_links() {
        let directory = tempfile::tempdir().unwrap();
        let tree = directory.path().join("tree");
        std::fs::create_dir_all(tree.join("inner")).unwrap();
        std::fs::write(tree.join("inner/file"), "content").unwrap();
        std::os::unix::fs::symlink("/nonexistent", tree.join("broken")).unwrap();
        let mut few = paths_to_sync(&tree).unwrap().unwrap();
        few.sort();
        assert_eq!(few, [tree.clone(), tree.join("inner"), tree.join("inner/file")]);
        sync_tree(&tree).unwrap();
        for number in 0..MAX_SYNCS {
            std::fs::write(tree.join(format!("{number}")), "").unwrap();
        }
        assert_eq!(paths_to_sync(&tree).unwrap(), None);
        sync_tree(&tree).unwrap();
        assert_eq!(sync_tree(&tree.join("absent")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn remove_deletes_trees_that_are_deeper_than_a_path_permits() {
        let directory = tempfile::tempdir().unwrap();
        let tree = directory.path().join("tree");
        std::fs::create_dir(&tree).unwrap();
        // Creates each directory at a short path, and then moves the previous directory into it.
        for _ in 0..20_000 {
            let parent = directory.path().join("parent");
            std::fs::create_dir(&parent).unwrap();
            std::fs::write(parent.join("file"), "").unwrap();
            std::fs::rename(&tree, parent.join("inner")).unwrap();
            std::fs::rename(&parent, &tree).unwrap();
        }
        remove(&tree).unwrap();
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    fn remove_deletes_files_links_and_trees_but_not_link_targets() {
        let directory = tempfile::tempdir().unwrap();
        let tree = directory.path().join("tree");
        std::fs::create_dir_all(tree.join("inner")).unwrap();
        let link = directory.path().join("link");
        std::os::unix::fs::symlink(&tree, &link).unwrap();
        remove(&link).unwrap();
        assert!(tree.join("inner").is_dir());
        remove(&tree).unwrap();
        remove(&tree).unwrap();
        assert!(!tree.exists());
    }

    #[test]
    fn read_only_trees_are_removed_without_changing_symlink_targets() {
        let directory = tempfile::tempdir().unwrap();
        let (tree, outside) = (directory.path().join("tree"), directory.path().join("outside"));
        std::fs::create_dir_all(tree.join("closed/inner")).unwrap();
        std::fs::create_dir(&outside).unwrap();
        std::fs::write(tree.join("closed/inner/file"), "x").unwrap();
        std::os::unix::fs::symlink(&outside, tree.join("closed/link")).unwrap();
        for (closed, mode) in [(tree.join("closed/inner"), 0o555), (tree.join("closed"), 0o000), (outside, 0o555)] {
            std::fs::set_permissions(closed, Permissions::from_mode(mode)).unwrap();
        }
        // The root user can remove the tree even without `permit_changes`, so the test calls this function directly.
        permit_changes(&tree.join("closed")).unwrap();
        let mode = |path: &str| directory.path().join(path).metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!(mode("tree/closed"), 0o700);
        remove(&tree).unwrap();
        assert_eq!((tree.exists(), mode("outside")), (false, 0o555));
    }
}

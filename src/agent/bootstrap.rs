//! The `bootstrap` role of an init container. The role copies this executable to the share volume, so that the agent
//! can run in any Pulumi image. The role also creates the container's working directory.

use std::fs::{File, Permissions};
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::durable;
use super::layout::{Layout, SOURCE_DIRECTORY};

const OWN_EXECUTABLE: &str = "/proc/self/exe";
const MODE: u32 = 0o755;
/// Mode of the empty source directory. With the security profile `baseline`, the `pulumi` container can have another
/// user than this init container. The directory is in the share volume, which all users of the pod can write to.
const SOURCE_MODE: u32 = 0o777;
const BUFFER: usize = 256 * 1024;
/// Maximum length of the owner in an error message, in characters.
const MAX_OWNER: usize = 100;
/// Maximum number of bytes that the agent reads from a volume's owner file. The name of a Workspace is never longer.
const MAX_OWNER_BYTES: u64 = 4096;

#[derive(Debug, thiserror::Error)]
pub enum BootstrapError {
    #[error("failed to read this executable")]
    Read(#[source] io::Error),
    #[error("failed to copy this executable to {}", path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error("failed to create the project directory {}", path.display())]
    Project { path: PathBuf, source: io::Error },
    #[error("failed to prepare the persistent volume {}", path.display())]
    Volume { path: PathBuf, source: io::Error },
    #[error(
        "the persistent volume belongs to the Workspace {found}: use another PersistentVolumeClaim, or remove {} from the volume",
        path.display()
    )]
    Owner { found: String, path: PathBuf },
}

/// Prepares a persistent share volume for a new pod of the Workspace `owner`. If two Workspaces shared a volume, their
/// pods would replace each other's source. Each volume therefore belongs to a single Workspace.
///
/// Removes the variables file that the previous pod's init containers wrote. If `discards_source` is true, the init
/// containers also wrote the source, and the function removes it, too.
pub fn prepare_volume(share: &Path, owner: &str, discards_source: bool) -> Result<(), BootstrapError> {
    let failed = |source| BootstrapError::Volume { path: share.to_owned(), source };
    let layout = Layout::new(share);
    let path = layout.owner();
    match read_owner(&path).map_err(failed)? {
        None => durable::write_atomically(&path, owner.as_bytes()).map_err(failed)?,
        Some(found) if found == owner => {}
        Some(found) => {
            let found = found.chars().take(MAX_OWNER).collect();
            return Err(BootstrapError::Owner { found, path });
        }
    }
    let source = discards_source.then(|| [layout.source_record(), layout.workspace()]);
    let mut stale = std::iter::once(layout.env_file()).chain(source.into_iter().flatten());
    stale.try_for_each(|path| durable::remove(&path)).map_err(failed)
}

/// Returns the owner of a share volume, or `None` if the volume has no owner file. A program in the pod can change the
/// owner file.
fn read_owner(path: &Path) -> io::Result<Option<String>> {
    let mut owner = Vec::new();
    match durable::open_file(path).and_then(|file| file.take(MAX_OWNER_BYTES).read_to_end(&mut owner)) {
        Ok(_) => Ok(Some(String::from_utf8_lossy(&owner).into_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Copies this executable to `to`, unless `to` is already an executable copy.
pub fn bootstrap(to: &Path) -> Result<(), BootstrapError> {
    copy(Path::new(OWN_EXECUTABLE), to)
}

/// Creates `project` as a symbolic link to an empty directory, unless `project` is already a directory or a link to a
/// directory. The function replaces a dangling link, because the container cannot start without a working directory.
pub fn make_project(project: &Path) -> Result<(), BootstrapError> {
    let make = || {
        if project.is_dir() {
            return Ok(());
        }
        durable::remove(project)?;
        let source = Path::new(SOURCE_DIRECTORY);
        let directory = project.with_file_name(source);
        std::fs::create_dir_all(&directory)?;
        std::fs::set_permissions(&directory, Permissions::from_mode(SOURCE_MODE))?;
        durable::symlink(source, project)
    };
    make().map_err(|source| BootstrapError::Project { path: project.to_owned(), source })
}

fn copy(from: &Path, to: &Path) -> Result<(), BootstrapError> {
    let written = |source| BootstrapError::Write { path: to.to_owned(), source };
    let mut executable = File::open(from).map_err(BootstrapError::Read)?;
    if is_same(&mut executable, to).map_err(BootstrapError::Read)? {
        return Ok(());
    }
    let directory = to.parent().ok_or_else(|| written(io::Error::other("path has no parent directory")))?;
    std::fs::create_dir_all(directory).map_err(written)?;
    let mut executable = File::open(from).map_err(BootstrapError::Read)?;
    let mut file = tempfile::NamedTempFile::new_in(directory).map_err(written)?;
    io::copy(&mut executable, &mut file).map_err(written)?;
    file.as_file().set_permissions(Permissions::from_mode(MODE)).map_err(written)?;
    file.as_file().sync_all().map_err(written)?;
    file.persist(to).map_err(|error| written(error.error))?;
    durable::sync_directory(directory).map_err(written)
}

/// Returns whether `to` is executable and has the content of `executable`. Returns `false` if `to` is unreadable, so
/// that the caller replaces `to`.
fn is_same(executable: &mut File, to: &Path) -> io::Result<bool> {
    let Ok(mut there) = durable::open_file(to) else { return Ok(false) };
    let Ok(metadata) = there.metadata() else { return Ok(false) };
    if metadata.len() != executable.metadata()?.len() || metadata.permissions().mode() & MODE != MODE {
        return Ok(false);
    }
    let Ok(found) = digest(&mut there) else { return Ok(false) };
    Ok(found == digest(executable)?)
}

fn digest(file: &mut File) -> io::Result<Vec<u8>> {
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; BUFFER];
    loop {
        let length = file.read(&mut buffer)?;
        if length == 0 {
            return Ok(hasher.finalize().to_vec());
        }
        hasher.update(buffer.get(..length).unwrap_or_default());
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn the_copied_agent_is_executable_and_a_second_bootstrap_keeps_it() {
        let directory = tempfile::tempdir().unwrap();
        let to = directory.path().join("bin/pulumi-controller");
        bootstrap(&to).unwrap();
        let first = std::fs::metadata(&to).unwrap();
        assert_eq!(first.permissions().mode() & 0o777, MODE);
        assert_eq!(first.len(), std::fs::metadata(OWN_EXECUTABLE).unwrap().len());
        bootstrap(&to).unwrap();
        assert_eq!(std::fs::metadata(&to).unwrap().ino(), first.ino());
    }

    #[test]
    fn the_project_directory_is_created_once_and_existing_content_is_kept() {
        let directory = tempfile::tempdir().unwrap();
        let project = directory.path().join("workspace");
        for _ in 0..2 {
            make_project(&project).unwrap();
            assert_eq!(std::fs::read_link(&project).unwrap(), Path::new("source"));
            assert!(project.is_dir());
        }
        let mode = std::fs::metadata(directory.path().join("source")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, SOURCE_MODE, "the container can have another user");
        std::fs::remove_dir(directory.path().join("source")).unwrap();
        std::fs::remove_file(&project).unwrap();
        std::os::unix::fs::symlink("/nowhere", &project).unwrap();
        make_project(&project).unwrap();
        assert!(project.is_dir(), "a dangling link is replaced");
        std::fs::remove_file(&project).unwrap();
        std::fs::create_dir(&project).unwrap();
        make_project(&project).unwrap();
        assert!(!project.is_symlink(), "a directory of the init containers is kept");
    }

    #[test]
    fn a_persistent_volume_belongs_to_one_workspace() {
        let share = tempfile::tempdir().unwrap();
        let fill = || {
            for file in [".env", "source.json", "marker"] {
                std::fs::write(share.path().join(file), "x").unwrap();
            }
            std::fs::create_dir_all(share.path().join("workspace/inner")).unwrap();
        };
        let left = || {
            let files = [".env", "source.json", "workspace", "marker"];
            files.into_iter().filter(|file| share.path().join(file).exists()).collect::<Vec<_>>()
        };
        fill();
        prepare_volume(share.path(), "app", false).unwrap();
        assert_eq!(left(), ["source.json", "workspace", "marker"], "the source is kept");
        fill();
        prepare_volume(share.path(), "app", true).unwrap();
        assert_eq!(left(), ["marker"], "the source is discarded");
        let error = prepare_volume(share.path(), "other", false).unwrap_err().to_string();
        assert!(error.starts_with("the persistent volume belongs to the Workspace app: use another"), "{error}");
        assert!(error.contains(&share.path().join("owner").display().to_string()), "{error}");
    }

    #[test]
    fn a_named_pipe_on_a_persistent_volume_is_an_error() {
        let share = tempfile::tempdir().unwrap();
        let owner = share.path().join("owner");
        assert!(std::process::Command::new("mkfifo").arg(&owner).status().unwrap().success());
        let error = prepare_volume(share.path(), "app", false).unwrap_err();
        assert!(matches!(&error, BootstrapError::Volume { source, .. } if source.to_string() == "not a regular file"));
        std::fs::remove_file(&owner).unwrap();
        std::os::unix::fs::symlink("/dev/zero", &owner).unwrap();
        assert!(matches!(prepare_volume(share.path(), "app", false), Err(BootstrapError::Volume { .. })));
    }

    #[test]
    fn a_file_of_equal_length_but_different_content_is_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let (from, to) = (directory.path().join("from"), directory.path().join("to"));
        std::fs::write(&from, "new").unwrap();
        std::fs::write(&to, "old").unwrap();
        std::fs::set_permissions(&to, Permissions::from_mode(MODE)).unwrap();
        copy(&from, &to).unwrap();
        assert_eq!(std::fs::read_to_string(&to).unwrap(), "new");
    }
}

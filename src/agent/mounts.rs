//! Secrets and ConfigMaps that the pod mounts: one directory for each object, with one file for each key.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::Instant;

use super::layout::Layout;
use super::refusal::Refusal;

/// Interval at which an empty directory is checked.
const POLL: Duration = Duration::from_millis(100);

/// Waits until none of these directories is empty. The kubelet mounts an empty directory for a missing object and fills
/// it some time after the object is created.
pub async fn wait(layout: &Layout, directories: &[String], limit: Duration) -> Result<(), Refusal> {
    let end = Instant::now() + limit;
    loop {
        let Some(empty) = directories.iter().map(Path::new).find(|directory| keys(directory).is_empty()) else {
            return Ok(());
        };
        if Instant::now() >= end {
            let object = described(layout, empty);
            let directory = empty.display();
            return Err(Refusal::Precondition(format!(
                "{object} is not mounted at {directory} after {}s: check the kubelet of the pod's node, and whether \
                 {object} still exists",
                limit.as_secs()
            )));
        }
        tokio::time::sleep(POLL).await;
    }
}

/// Returns the files of all keys in ascending order.
pub fn keys(directory: &Path) -> Vec<PathBuf> {
    let mut keys: Vec<PathBuf> = entries(directory).filter(|key| !is_kubelet_internal(key)).collect();
    keys.sort();
    keys
}

/// Returns the kind and name of the object that is mounted at a directory.
pub fn described(layout: &Layout, directory: &Path) -> String {
    for (kind, root) in [("Secret", layout.secrets()), ("ConfigMap", layout.config_maps())] {
        if let Ok(name) = directory.strip_prefix(root) {
            return format!("{kind} {:?}", name.to_string_lossy());
        }
    }
    directory.display().to_string()
}

/// Returns the paths in a directory; none if it cannot be read.
pub fn entries(directory: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    std::fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path())
}

/// Returns whether a path is internal to the kubelet, which keeps mounted files behind links whose names begin with two
/// dots.
pub fn is_kubelet_internal(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.as_bytes().starts_with(b".."))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(20);

    fn layout(directory: &tempfile::TempDir) -> Layout {
        Layout::new(directory.path()).with_secrets(directory.path().join("secrets"))
    }

    /// Mounts an object like the kubelet, with or without a key.
    fn mount(layout: &Layout, name: &str, key: Option<&str>) -> String {
        let directory = layout.secrets().join(name);
        std::fs::create_dir_all(directory.join("..2026")).unwrap();
        std::os::unix::fs::symlink("..2026", directory.join("..data")).unwrap();
        if let Some(key) = key {
            std::fs::write(directory.join("..2026").join(key), "value").unwrap();
            std::os::unix::fs::symlink(format!("..data/{key}"), directory.join(key)).unwrap();
        }
        directory.to_str().unwrap().to_owned()
    }

    #[tokio::test(start_paused = true)]
    async fn a_mount_that_stays_empty_is_rejected_with_its_object_name() {
        let directory = tempfile::tempdir().unwrap();
        let layout = layout(&directory);
        let required = [mount(&layout, "aws", Some("id")), mount(&layout, "absent", None)];
        wait(&layout, &required[..1], LIMIT).await.unwrap();
        let begun = Instant::now();
        let refusal = wait(&layout, &required, LIMIT).await.unwrap_err();
        assert!(begun.elapsed() >= LIMIT);
        assert!(matches!(refusal, Refusal::Precondition(_)), "the next run can succeed");
        assert!(refusal.to_string().starts_with("Secret \"absent\" is not mounted at "), "{refusal}");
    }

    #[tokio::test(start_paused = true)]
    async fn wait_returns_once_a_mounted_directory_is_filled() {
        let directory = tempfile::tempdir().unwrap();
        let layout = layout(&directory);
        let required = [mount(&layout, "aws", None)];
        let fill = async {
            tokio::time::sleep(Duration::from_secs(3)).await;
            std::fs::write(Path::new(&required[0]).join("..2026/id"), "value").unwrap();
            std::os::unix::fs::symlink("..data/id", Path::new(&required[0]).join("id")).unwrap();
        };
        let begun = Instant::now();
        let (waited, ()) = tokio::join!(wait(&layout, &required, LIMIT), fill);
        waited.unwrap();
        assert!(begun.elapsed() < Duration::from_secs(4));
    }
}

//! Tests for the detection of changed files.

use std::os::unix::fs::symlink;
use std::path::PathBuf;

use super::*;

/// Replaces the files of a volume as the kubelet does, which renames the link `..data`.
fn put(volume: &Path, version: &str) {
    std::fs::create_dir(volume.join(version)).unwrap();
    std::fs::write(volume.join(version).join("key"), version).unwrap();
    symlink(version, volume.join("..data_tmp")).unwrap();
    std::fs::rename(volume.join("..data_tmp"), volume.join("..data")).unwrap();
}

fn until_changed(watch: &FileWatch, directory: &Path, before: Option<Version>) {
    let began = Instant::now();
    loop {
        let version = watch.version([directory]);
        if version != before {
            return;
        }
        assert!(began.elapsed() < Duration::from_secs(1), "no change is detected");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn replacing_a_volume_is_detected_as_change_but_reading_it_is_not() {
    let volume = tempfile::tempdir().unwrap();
    put(volume.path(), "..1");
    symlink("..data/key", volume.path().join("key")).unwrap();
    let watch = FileWatch::new();
    let first = watch.version([volume.path()]);
    assert!(first.is_some(), "an inotify instance is available");
    assert_eq!(std::fs::read_to_string(volume.path().join("key")).unwrap(), "..1");
    assert_eq!(watch.version([volume.path()]), first);
    put(volume.path(), "..2");
    until_changed(&watch, volume.path(), first);
    assert_eq!(std::fs::read_to_string(volume.path().join("key")).unwrap(), "..2");
}

#[test]
fn a_change_in_any_watched_directory_is_detected() {
    let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let watch = FileWatch::new();
    let before = watch.version([one.path(), other.path()]);
    std::fs::write(other.path().join("known_hosts"), "a").unwrap();
    until_changed(&watch, one.path(), before);
}

#[test]
fn a_directory_that_replaces_another_is_watched() {
    let parent = tempfile::tempdir().unwrap();
    let directory = parent.path().join("mount");
    std::fs::create_dir(&directory).unwrap();
    let watch = FileWatch::new();
    let before = watch.version([directory.as_path()]);
    std::fs::remove_dir(&directory).unwrap();
    until_changed(&watch, parent.path(), before);
    assert_eq!(watch.version([directory.as_path()]), None, "a missing directory has no version");
    std::fs::create_dir(&directory).unwrap();
    let again = watch.version([directory.as_path()]);
    assert!(again.is_some());
    std::fs::write(directory.join("file"), "a").unwrap();
    until_changed(&watch, &directory, again);
}

#[test]
fn no_value_is_cached_if_no_watch_is_available() {
    let unavailable = FileWatch(Arc::new(Shared { watcher: None, changes: Arc::default() }));
    let directory = tempfile::tempdir().unwrap();
    let missing = PathBuf::from("/nonexistent");
    for version in [unavailable.version([directory.path()]), FileWatch::new().version([missing.as_path()])] {
        let cached = Cached::default();
        cached.keep(version, 7);
        assert_eq!((version, cached.find(version)), (None, None));
    }
}

#[test]
fn a_cached_value_is_invalid_when_the_version_changes() {
    let cached = Cached::default();
    cached.keep(Some(Version(1)), "one");
    assert_eq!((cached.find(Some(Version(1))), cached.find(Some(Version(2)))), (Some("one"), None));
    cached.keep(None, "two");
    assert_eq!(cached.find(Some(Version(1))), None);
}

#[tokio::test(start_paused = true)]
async fn a_cached_value_is_valid_for_at_most_one_minute() {
    let (cached, version) = (Cached::default(), Some(Version(1)));
    cached.keep(version, "one");
    tokio::time::advance(MAX_AGE - Duration::from_secs(1)).await;
    assert_eq!(cached.find(version), Some("one"));
    tokio::time::advance(Duration::from_secs(1)).await;
    assert_eq!(cached.find(version), None);
}

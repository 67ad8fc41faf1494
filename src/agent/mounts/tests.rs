use super::*;

const LIMIT: Duration = Duration::from_secs(20);

fn layout(directory: &tempfile::TempDir) -> Layout {
    Layout::new(directory.path()).with_secrets(directory.path().join("secrets"))
}

/// Mounts an object as the kubelet does. If `key` is `None`, the object has no keys.
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
async fn the_error_for_a_mount_that_stays_empty_names_its_object() {
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
async fn the_wait_ends_when_the_mounted_directory_is_filled() {
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

struct Place(tempfile::TempDir);

impl Place {
    fn new(key: &str) -> Self {
        let place = Place(tempfile::tempdir().unwrap());
        place.write(INPUTS_KEY_FILE, key);
        place
    }

    fn write(&self, name: &str, content: &str) {
        std::fs::write(self.0.path().join(name), content).unwrap();
    }

    fn hash(&self, names: &[&str]) -> String {
        let files: Vec<String> = names.iter().map(|name| self.0.path().join(name).display().to_string()).collect();
        InputHasher::new(self.0.path(), FileWatch::new()).hashes(&files, &[]).files.unwrap_or_default()
    }
}

const KEY: &str = "0123456789abcdef0123456789abcdef";

#[test]
fn input_hashes_are_equal_only_if_the_contents_are_equal() {
    let place = Place::new(KEY);
    let absent = place.hash(&["a", "b"]);
    place.write("a", "");
    let empty = place.hash(&["a", "b"]);
    place.write("a", "one");
    let one = place.hash(&["a", "b"]);
    assert_eq!(one, place.hash(&["a", "b"]));
    place.write("b", "two");
    let both = place.hash(&["a", "b"]);
    place.write("a", "onetwo");
    place.write("b", "");
    let moved = place.hash(&["a", "b"]);
    let hashes = [&absent, &empty, &one, &both, &moved, &place.hash(&["a"])];
    for (number, hash) in hashes.iter().enumerate() {
        assert_eq!(hash.len(), 64);
        assert!(!hashes[..number].contains(hash), "{number}");
    }
    place.write("a", "one");
    place.write("b", "two");
    assert_eq!(place.hash(&["a", "b"]), both, "reverted contents have their previous hash");
}

#[test]
fn mounted_files_are_read_again_only_after_they_change() {
    let place = Place::new(KEY);
    let outside = tempfile::tempdir().unwrap();
    let target = outside.path().join("target");
    std::fs::write(&target, "one").unwrap();
    std::os::unix::fs::symlink(&target, place.0.path().join("key")).unwrap();
    let inputs = InputHasher::new(place.0.path(), FileWatch::new());
    let files = [place.0.path().join("key").display().to_string()];
    let hash = || inputs.hashes(&files, &[]).files.unwrap();
    let before = hash();
    // The watch cannot detect this change, because the file is outside the watched directory. An unchanged hash
    // therefore proves that the hasher has not read the file again.
    std::fs::write(&target, "two").unwrap();
    assert_eq!(hash(), before);
    place.write("other", "");
    let began = std::time::Instant::now();
    while hash() == before {
        assert!(began.elapsed() < Duration::from_secs(1), "the change is not detected");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn the_input_hash_is_stable_across_versions_and_depends_on_the_key() {
    let hash = |key: &str| hash_files(key.as_bytes(), &["/nonexistent/a".to_owned()]).unwrap();
    assert_eq!(hash(KEY), "a3dce3629cab9d025de1610f550348c40289bc629dd0285b62d99033b9999450");
    assert_ne!(hash(KEY), hash("another key"));
}

#[test]
fn a_directory_hash_changes_with_each_of_its_keys() {
    let place = Place::new(KEY);
    let directory = place.0.path().join("aws");
    let requested = [directory.display().to_string(), place.0.path().join("gone").display().to_string()];
    let hashes = || InputHasher::new(place.0.path(), FileWatch::new()).hashes(&[], &requested).directories;
    assert!(hashes().is_empty(), "the Secret is not mounted");
    std::fs::create_dir(&directory).unwrap();
    let mut seen = Vec::new();
    let steps: [(&str, Option<&str>); 5] =
        [("..data", Some("x")), ("id", Some("one")), ("secret", Some("two")), ("id", Some("three")), ("secret", None)];
    let empty = hashes()[&requested[0]].clone();
    for (key, content) in steps {
        match content {
            Some(content) => std::fs::write(directory.join(key), content).unwrap(),
            None => std::fs::remove_file(directory.join(key)).unwrap(),
        }
        let hashes = hashes();
        assert_eq!(hashes.len(), 1, "a missing directory has no hash");
        seen.push(hashes[&requested[0]].clone());
    }
    assert_eq!(seen[0], empty, "the kubelet's internal entries are not keys");
    let different: std::collections::BTreeSet<&String> = seen.iter().collect();
    assert_eq!(different.len(), 5, "{seen:?}");
}

#[test]
fn no_input_hash_is_reported_without_files_or_without_a_key() {
    let place = Place::new(KEY);
    assert_eq!(place.hash(&[]), "");
    place.write(INPUTS_KEY_FILE, "short");
    assert_eq!(place.hash(&["a"]), "");
    std::fs::remove_file(place.0.path().join(INPUTS_KEY_FILE)).unwrap();
    assert_eq!(place.hash(&["a"]), "");
    let directory = Place::new(KEY);
    assert_eq!(directory.hash(&["."]), "", "a directory is not a value");
}

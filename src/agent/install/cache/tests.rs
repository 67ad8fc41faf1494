use std::fs::FileTimes;
use std::os::unix::fs::symlink;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use super::selection::installed_plugins;
use super::*;
use crate::pulumi::install::go::modules_in_sum;

const KEY: &str = "0123456789abcdef";
const PLUGIN: &str = "resource-random-v4.16.7";

/// Cache volume and pod directories for a test.
struct Pod {
    volume: PathBuf,
    cache: DependencyCache,
    places: Places,
    root: tempfile::TempDir,
}

impl Pod {
    fn new(volume: &Path) -> Self {
        let root = tempfile::tempdir().unwrap();
        let source = root.path().join("source");
        fs::create_dir_all(source.join("infra")).unwrap();
        let places = Places {
            source,
            trees: vec!["infra/node_modules".into(), "venv".into()],
            plugins: root.path().join("home/plugins"),
            stored_plugins: Vec::new(),
            go_modules: Some(root.path().join("cache/go-modules")),
            stored_modules: modules_in_sum("example.com/a v1.0.0 h1:x=").into_iter().collect(),
            environment: "python 3.11".to_owned(),
        };
        let cache = open(volume, 1 << 30);
        Pod { volume: volume.to_owned(), cache, places, root }
    }

    /// Returns a pod with installed dependencies.
    fn installed(volume: &Path) -> Self {
        let mut pod = Pod::new(volume);
        let root = pod.root.path();
        for (path, content) in [
            ("source/infra/node_modules/left-pad/index.js", "pad"),
            ("source/venv/lib/six.py", "six"),
            ("source/Pulumi.yaml", "name: app"),
            ("home/plugins/resource-random-v4.16.7/pulumi-resource-random", "random"),
            ("home/plugins/resource-random-v4.16.7.lock", ""),
            ("home/plugins/resource-aws-v7.0.0/pulumi-resource-aws", "aws"),
            ("home/plugins/resource-aws-v7.0.0.partial", ""),
            ("cache/go-modules/example.com/a@v1.0.0/a.go", "package a"),
            ("cache/go-modules/example.com/a@v0.9.0/a.go", "package a"),
        ] {
            fs::create_dir_all(root.join(path).parent().unwrap()).unwrap();
            fs::write(root.join(path), content).unwrap();
        }
        fs::create_dir(root.join("source/venv/bin")).unwrap();
        symlink("/usr/bin/python3", root.join("source/venv/bin/python")).unwrap();
        let old = FileTimes::new().set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000));
        File::open(root.join("source/venv/lib/six.py")).unwrap().set_times(old).unwrap();
        pod.places.stored_plugins = installed_plugins(&pod.places.plugins).unwrap();
        pod
    }

    fn restore(&self) -> Result<bool, String> {
        self.restore_until(&|| false)
    }

    fn restore_until(&self, is_stopped: IsStopped<'_>) -> Result<bool, String> {
        let staging = tempfile::tempdir_in(self.root.path()).unwrap();
        let restored = self.cache.restore(KEY, &self.places, staging.path(), is_stopped);
        restored.map_err(|error| error.to_string())
    }

    fn read(&self, path: &str) -> Option<String> {
        fs::read_to_string(self.root.path().join(path)).ok()
    }

    /// Returns the file names in a cache directory.
    fn cached(&self, directory: &str) -> Vec<String> {
        names(&self.volume.join(FORMAT).join(directory))
    }
}

fn open(volume: &Path, max_bytes: u64) -> DependencyCache {
    let layout = Layout::new(volume.join("unused")).with_cache(volume);
    DependencyCache::open(&layout, max_bytes).unwrap()
}

fn names(directory: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Returns the path of the archive that contains the source's directories.
fn source_archive(pod: &Pod) -> PathBuf {
    let entry = pod.cache.entry(KEY).unwrap().unwrap();
    pod.cache.archive(&entry.parts.iter().find(|part| part.place == Place::Source).unwrap().archive)
}

#[test]
fn another_pod_restores_the_stored_dependencies() {
    let volume = tempfile::tempdir().unwrap();
    let first = Pod::installed(volume.path());
    assert_eq!(first.restore(), Ok(false), "the cache is empty");
    assert!(first.cache.store(KEY, &first.places).unwrap());
    assert!(!first.cache.store(KEY, &first.places).unwrap(), "the cache contains the entry");
    assert!(first.cached("locks").is_empty() && first.cached("temporary").is_empty());
    assert_eq!(first.cached("archives").len(), 3);

    let second = Pod::new(volume.path());
    assert_eq!(second.restore(), Ok(true));
    assert_eq!(second.read("source/infra/node_modules/left-pad/index.js").as_deref(), Some("pad"));
    assert_eq!(second.read("source/venv/lib/six.py").as_deref(), Some("six"));
    assert_eq!(second.read("source/Pulumi.yaml"), None, "the cache contains only dependencies");
    assert_eq!(second.read(&format!("home/plugins/{PLUGIN}/pulumi-resource-random")).as_deref(), Some("random"));
    assert_eq!(names(&second.places.plugins), [PLUGIN], "incomplete plugins are not stored");
    assert_eq!(second.read("cache/go-modules/example.com/a@v1.0.0/a.go").as_deref(), Some("package a"));
    assert_eq!(second.read("cache/go-modules/example.com/a@v0.9.0/a.go"), None, "go.sum does not list this version");
    let root = second.root.path();
    let link = fs::read_link(root.join("source/venv/bin/python")).unwrap();
    assert_eq!(link, Path::new("/usr/bin/python3"));
    let modified = fs::metadata(root.join("source/venv/lib/six.py")).unwrap().modified().unwrap();
    assert_eq!(modified, SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000), "Python compares this time");
}

#[test]
fn installations_with_the_same_plugin_share_its_archive() {
    let volume = tempfile::tempdir().unwrap();
    let pod = Pod::installed(volume.path());
    let yaml = Places { trees: Vec::new(), go_modules: None, ..pod.places.clone() };
    assert!(pod.cache.store("a", &yaml).unwrap() && pod.cache.store("b", &yaml).unwrap());
    assert_eq!((pod.cached("archives").len(), pod.cached("entries").len()), (1, 3));
}

#[test]
fn a_plugin_of_another_environment_is_not_reused() {
    let volume = tempfile::tempdir().unwrap();
    let first = Pod::installed(volume.path());
    let only_plugins = |pod: &Pod| Places { trees: Vec::new(), go_modules: None, ..pod.places.clone() };
    assert!(first.cache.store("first", &only_plugins(&first)).unwrap());
    let second = Pod::installed(volume.path());
    fs::write(second.places.plugins.join(PLUGIN).join("pulumi-resource-random"), "other").unwrap();
    let places = Places { environment: "python 3.12".to_owned(), ..only_plugins(&second) };
    assert!(second.cache.store(KEY, &places).unwrap());
    let third = Pod::new(volume.path());
    assert_eq!(third.restore(), Ok(true));
    assert_eq!(third.read(&format!("home/plugins/{PLUGIN}/pulumi-resource-random")).as_deref(), Some("other"));
}

#[test]
fn a_damaged_archive_is_removed_and_stored_again() {
    let damages: [fn(Vec<u8>) -> Vec<u8>; 4] = [
        |mut archive| {
            archive[20] ^= 1;
            archive
        },
        |archive| archive[..archive.len() / 2].to_vec(),
        |_| Vec::new(),
        |archive| [archive, vec![0; 10]].concat(),
    ];
    for damage in damages {
        let volume = tempfile::tempdir().unwrap();
        let first = Pod::installed(volume.path());
        first.cache.store(KEY, &first.places).unwrap();
        let archive = source_archive(&first);
        fs::write(&archive, damage(fs::read(&archive).unwrap())).unwrap();

        let second = Pod::new(volume.path());
        let error = second.restore().unwrap_err();
        assert!(error.contains("is damaged: its digest is sha256:"), "{error}");
        assert!(!archive.exists());
        assert_eq!(second.restore(), Ok(false), "the entry was removed");
        assert_eq!(names(&second.places.source), ["infra"], "no file of a damaged archive is used");
        assert!(names(&second.places.source.join("infra")).is_empty());
        assert!(first.cache.store(KEY, &first.places).unwrap());
        assert_eq!(second.restore(), Ok(true));
    }
}

#[test]
fn a_damaged_entry_is_removed() {
    let archive = Digest::of(b"a");
    let part = |place: Place| Part { place, archive: archive.clone() };
    let valid = |parts: Vec<Part>| serde_json::to_vec(&Entry { parts }).unwrap();
    for (content, message) in [
        (b"{".to_vec(), "EOF while parsing"),
        (Vec::new(), "EOF while parsing"),
        (br#"{"parts": [{"place": "source", "archive": "../../etc/passwd"}]}"#.to_vec(), "has no algorithm"),
        (valid(vec![part(Place::Plugin("../../x".into()))]), "\"../../x\" is not the name of a plugin"),
        (valid(vec![part(Place::Plugin("resource-a/b".into()))]), "is not the name of a plugin"),
        (valid(vec![part(Place::Plugin(".resource-a".into()))]), "is not the name of a plugin"),
        (valid(vec![part(Place::Source); MAX_PARTS + 1]), "more than 64 archives"),
        (valid(vec![part(Place::Source), part(Place::Source)]), "two archives have the same place"),
        (valid(vec![part(Place::Source)]), ".tar.gz does not exist"),
    ] {
        let volume = tempfile::tempdir().unwrap();
        let pod = Pod::new(volume.path());
        let path = pod.cache.entry_path(KEY);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        let error = pod.restore().unwrap_err();
        assert!(error.contains(message), "{error}");
        assert!(!path.exists(), "{message}");
        assert_eq!(pod.restore(), Ok(false));
    }
}

#[test]
fn existing_modules_are_not_replaced() {
    let volume = tempfile::tempdir().unwrap();
    let first = Pod::installed(volume.path());
    first.cache.store(KEY, &first.places).unwrap();
    fs::write(source_archive(&first), "an archive that the agent does not read").unwrap();
    let error = first.restore().unwrap_err();
    assert!(error.ends_with("go-modules already exists"), "{error}");
    assert_eq!(first.cached("archives").len(), 3, "the entry is valid");
}

#[test]
fn a_stopped_restoration_places_no_files_and_keeps_the_entry() {
    let volume = tempfile::tempdir().unwrap();
    let first = Pod::installed(volume.path());
    first.cache.store(KEY, &first.places).unwrap();
    let second = Pod::new(volume.path());
    let calls = AtomicUsize::new(0);
    // Stops before the first read of an archive, during the reads, and after the last read.
    let mut checks = 0;
    while second.restore_until(&|| calls.fetch_add(1, Ordering::Relaxed) >= checks).is_err() {
        assert_eq!(names(&second.places.source), ["infra"]);
        assert!(names(&second.places.source.join("infra")).is_empty());
        assert!(!second.places.plugins.join(PLUGIN).exists());
        assert_eq!((first.cached("entries").len(), first.cached("archives").len()), (2, 3));
        calls.store(0, Ordering::Relaxed);
        checks += 1;
    }
    assert!(checks > 3);
    assert_eq!(second.read("source/venv/lib/six.py").as_deref(), Some("six"));
}

#[test]
fn concurrent_agents_store_one_entry() {
    let volume = tempfile::tempdir().unwrap();
    let pods: Vec<Pod> = (0..4).map(|_| Pod::installed(volume.path())).collect();
    let stored = std::thread::scope(|scope| {
        let stores: Vec<_> =
            pods.iter().map(|pod| scope.spawn(move || pod.cache.store(KEY, &pod.places).unwrap())).collect();
        stores.into_iter().map(|store| store.join().unwrap()).filter(|stored| *stored).count()
    });
    assert!(stored >= 1, "at least one agent stores the entry");
    assert_eq!(Pod::new(volume.path()).restore(), Ok(true));
    assert!(pods[0].cached("locks").is_empty() && pods[0].cached("temporary").is_empty());
}

#[test]
fn the_lock_of_a_killed_agent_expires() {
    let volume = tempfile::tempdir().unwrap();
    let pod = Pod::installed(volume.path());
    let lock = volume.path().join(FORMAT).join("locks").join(KEY);
    fs::create_dir_all(lock.parent().unwrap()).unwrap();
    let file = File::create(&lock).unwrap();
    assert!(!pod.cache.store(KEY, &pod.places).unwrap(), "another agent is storing the entry");
    file.set_modified(SystemTime::now() - Duration::from_secs(31 * 60)).unwrap();
    assert!(pod.cache.store(KEY, &pod.places).unwrap());
    assert!(!lock.exists());
}

#[test]
fn unused_archives_and_their_entries_are_evicted() {
    let volume = tempfile::tempdir().unwrap();
    let pod = Pod::installed(volume.path());
    let only_source = Places { stored_plugins: Vec::new(), go_modules: None, ..pod.places.clone() };
    assert!(pod.cache.store("old", &only_source).unwrap());
    let [old] = <[String; 1]>::try_from(pod.cached("archives")).unwrap();
    let old = volume.path().join(FORMAT).join("archives").join(old);
    File::open(&old).unwrap().set_modified(SystemTime::UNIX_EPOCH).unwrap();
    let build = volume.path().join("go-build/00");
    fs::create_dir_all(&build).unwrap();
    for file in ["in-use", "unused"] {
        fs::write(build.join(file), [0; 4096]).unwrap();
    }
    File::open(build.join("unused")).unwrap().set_modified(SystemTime::UNIX_EPOCH).unwrap();

    let size = fs::metadata(&old).unwrap().len();
    fs::write(pod.places.source.join("venv/lib/six.py"), "seven").unwrap();
    let small = open(volume.path(), size + 100);
    assert!(small.store("new", &only_source).unwrap());
    assert_eq!(pod.cached("entries"), ["new.json"]);
    assert!(!old.exists());
    assert_eq!(names(&build), ["in-use"], "the build cache exceeds the limit");
    assert!(open(volume.path(), 0).evict().is_ok());
    assert!(pod.cached("entries").is_empty() && pod.cached("archives").is_empty());
}

#[test]
fn archives_are_evicted_even_if_the_build_cache_is_unreadable() {
    let volume = tempfile::tempdir().unwrap();
    let pod = Pod::installed(volume.path());
    assert!(pod.cache.store(KEY, &pod.places).unwrap());
    fs::write(volume.path().join("go-build"), "not a directory").unwrap();
    open(volume.path(), 0).evict().unwrap_err();
    assert!(pod.cached("entries").is_empty() && pod.cached("archives").is_empty());
}

#[test]
fn an_archive_that_exceeds_the_limit_evicts_no_other_archives() {
    let volume = tempfile::tempdir().unwrap();
    let pod = Pod::installed(volume.path());
    let only_source = Places { stored_plugins: Vec::new(), go_modules: None, ..pod.places.clone() };
    let cache = open(volume.path(), 32 * 1024);
    assert!(cache.store("small", &only_source).unwrap());
    let incompressible: Vec<u8> = (0..64 * 1024).map(|_| fastrand::u8(..)).collect();
    fs::write(pod.places.source.join("venv/lib/six.py"), incompressible).unwrap();
    let error = cache.store("large", &only_source).unwrap_err().to_string();
    assert!(error.contains("--workspace-cache-size"), "{error}");
    assert_eq!(pod.cached("entries"), ["small.json"]);
    assert!(pod.cached("temporary").is_empty() && pod.cached("locks").is_empty());
}

#[test]
fn a_use_requires_only_permission_to_write_the_file() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let long_ago = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
    file.as_file().set_times(FileTimes::new().set_modified(long_ago).set_accessed(long_ago)).unwrap();
    touch(file.as_file());
    let metadata = file.as_file().metadata().unwrap();
    assert!(metadata.modified().unwrap() > long_ago);
    // The kernel requires the owner of the file for a change of only one of these times.
    assert_eq!(metadata.modified().unwrap(), metadata.accessed().unwrap());
}

#[test]
fn a_read_only_cache_is_used() {
    let volume = tempfile::tempdir().unwrap();
    let first = Pod::installed(volume.path());
    first.cache.store(KEY, &first.places).unwrap();
    let second = Pod::new(volume.path());
    for directory in ["archives", "entries"] {
        let directory = volume.path().join(FORMAT).join(directory);
        let mut permissions = fs::metadata(&directory).unwrap().permissions();
        permissions.set_readonly(true);
        fs::set_permissions(&directory, permissions).unwrap();
    }
    assert_eq!(second.restore(), Ok(true));
}

/// Kills the agent at each failpoint of [`DependencyCache::store`]. The agent runs in a child process that executes
/// only this test.
#[test]
#[cfg(debug_assertions)]
fn a_killed_agent_leaves_no_incomplete_entry() {
    const VOLUME: &str = "TEST_DEPENDENCY_CACHE";
    if let Some(volume) = std::env::var_os(VOLUME) {
        let pod = Pod::installed(Path::new(&volume));
        pod.cache.store(KEY, &pod.places).unwrap();
        return;
    }
    for (failpoint, is_stored) in [("dependency-cache-archives", false), ("dependency-cache-entry", true)] {
        let volume = tempfile::tempdir().unwrap();
        let marker = format!("/tmp/failpoint-{failpoint}");
        let _ = fs::remove_file(&marker);
        let status = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "agent::install::cache::tests::a_killed_agent_leaves_no_incomplete_entry"])
            .env(VOLUME, volume.path())
            .env("FAILPOINTS", failpoint)
            .output()
            .unwrap()
            .status;
        fs::remove_file(&marker).unwrap();
        assert_eq!(status.code(), None, "{failpoint}: ended by a signal");
        let lock = volume.path().join(FORMAT).join("locks").join(KEY);
        assert!(lock.exists(), "{failpoint}");
        assert_eq!(Pod::new(volume.path()).restore(), Ok(is_stored), "{failpoint}");
        File::open(&lock).unwrap().set_modified(SystemTime::UNIX_EPOCH).unwrap();
        let pod = Pod::installed(volume.path());
        assert_eq!(pod.cache.store(KEY, &pod.places).unwrap(), !is_stored, "{failpoint}");
        assert_eq!(Pod::new(volume.path()).restore(), Ok(true), "{failpoint}");
        pod.cache.evict().unwrap();
        assert!(!lock.exists(), "{failpoint}");
    }
}

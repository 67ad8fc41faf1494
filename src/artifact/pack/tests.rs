//! Tests for packing directories and individual entries.

use std::collections::BTreeMap;
use std::os::unix::fs::symlink;

use proptest::prelude::*;
use tempfile::TempDir;

use super::*;
use crate::artifact::{unpack, unpack_dependencies};

fn packed(directory: &Path) -> Vec<u8> {
    let mut archive = Vec::new();
    pack(directory, &mut archive).unwrap();
    archive
}

fn sample() -> TempDir {
    let directory = TempDir::new().unwrap();
    let root = directory.path();
    fs::create_dir_all(root.join("b/deep")).unwrap();
    fs::write(root.join("b/deep/file"), "content").unwrap();
    fs::write(root.join("run"), "#!").unwrap();
    fs::set_permissions(root.join("run"), fs::Permissions::from_mode(0o4755)).unwrap();
    symlink("b/deep/file", root.join("a link")).unwrap();
    fs::write(root.join("long".repeat(50)), "").unwrap();
    symlink(format!("../{}", "long".repeat(50)), root.join("b/long link")).unwrap();
    directory
}

/// Describes each entry in a directory tree: its kind, its executable bit, and its content or target.
fn describe(directory: &Path, root: &Path, into: &mut BTreeMap<PathBuf, String>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let metadata = fs::symlink_metadata(&path).unwrap();
        let description = if metadata.is_symlink() {
            format!("link {:?}", fs::read_link(&path).unwrap())
        } else if metadata.is_dir() {
            describe(&path, root, into);
            "directory".to_owned()
        } else {
            format!("file {} {:?}", metadata.permissions().mode() & 0o100, fs::read(&path).unwrap())
        };
        into.insert(path.strip_prefix(root).unwrap().to_owned(), description);
    }
}

fn description(root: &Path) -> BTreeMap<PathBuf, String> {
    let mut into = BTreeMap::new();
    describe(root, root, &mut into);
    into
}

#[test]
fn packing_equal_trees_produces_equal_bytes() {
    let (one, other) = (sample(), sample());
    let file = File::open(other.path().join("run")).unwrap();
    file.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
    fs::set_permissions(other.path().join("b/deep"), fs::Permissions::from_mode(0o700)).unwrap();
    assert_eq!(packed(one.path()), packed(other.path()));
    fs::write(other.path().join("run"), "!#").unwrap();
    assert_ne!(packed(one.path()), packed(other.path()));
}

#[test]
fn dependencies_keep_their_times_and_links_and_nothing_is_written_through_a_link() {
    let (from, to, outside) = (TempDir::new().unwrap(), TempDir::new().unwrap(), TempDir::new().unwrap());
    let venv = from.path().join("app/venv");
    fs::create_dir_all(&venv).unwrap();
    fs::write(venv.join("six.py"), "six").unwrap();
    fs::write(from.path().join("app/main.py"), "main").unwrap();
    let modified = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000);
    File::open(venv.join("six.py")).unwrap().set_modified(modified).unwrap();
    symlink("/usr/bin/python3", venv.join("python")).unwrap();
    let directories = ["app/venv".into()];
    let mut archive = Vec::new();
    pack_dependencies(from.path(), &directories, &mut archive, &Limits::default()).unwrap();
    unpack_dependencies(&archive[..], to.path(), &Limits::default()).unwrap();
    let unpacked = to.path().join("app/venv");
    assert_eq!(fs::read_link(unpacked.join("python")).unwrap(), Path::new("/usr/bin/python3"));
    assert_eq!(fs::metadata(unpacked.join("six.py")).unwrap().modified().unwrap(), modified);
    assert!(!to.path().join("app/main.py").exists());
    let error = unpack(&archive[..], TempDir::new().unwrap().path(), &Limits::default()).unwrap_err().to_string();
    assert!(error.contains("target must not be absolute"), "{error}");
    let small = Limits { unpacked_bytes: 2, ..Limits::default() };
    let error = pack_dependencies(from.path(), &directories, io::sink(), &small).unwrap_err().to_string();
    assert!(error.contains("exceed the limit of 2 bytes"), "{error}");

    let mut builder = Builder::new(GzEncoder::new(Vec::new(), Compression::fast()));
    builder.append_link(&mut header(EntryType::Symlink, 0o777, 0), "link", outside.path()).unwrap();
    builder.append_data(&mut header(EntryType::Regular, 0o600, 4), "link/file", &b"evil"[..]).unwrap();
    let hostile = builder.into_inner().and_then(GzEncoder::finish).unwrap();
    let error =
        unpack_dependencies(&hostile[..], TempDir::new().unwrap().path(), &Limits::default()).unwrap_err().to_string();
    assert!(error.contains("is below \"link\", which is a symbolic link"), "{error}");
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0);
}

#[test]
fn a_packed_file_has_stable_bytes_and_can_be_unpacked() {
    let (archive, to) = (pack_file("Pulumi.yaml", b"name: app\n").unwrap(), TempDir::new().unwrap());
    assert_eq!(archive, pack_file("Pulumi.yaml", b"name: app\n").unwrap());
    unpack(&archive[..], to.path(), &Limits::default()).unwrap();
    assert_eq!(fs::read(to.path().join("Pulumi.yaml")).unwrap(), b"name: app\n");
}

#[test]
fn packed_entries_are_sorted_and_independent_of_the_machine() {
    let archive = packed(sample().path());
    let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(&archive[..]));
    let mut names = Vec::new();
    for entry in archive.entries().unwrap() {
        let entry = entry.unwrap();
        let header = entry.header();
        assert_eq!((header.uid().unwrap(), header.gid().unwrap(), header.mtime().unwrap()), (0, 0, 0));
        let name = entry.path().unwrap().into_owned();
        names.push((name.to_string_lossy().into_owned(), header.mode().unwrap()));
    }
    let long = "long".repeat(50);
    let expected = [
        ("a link", 0o777),
        ("b", 0o750),
        ("b/deep", 0o750),
        ("b/deep/file", 0o600),
        ("b/long link", 0o777),
        (long.as_str(), 0o600),
        ("run", 0o700),
    ];
    assert_eq!(names, expected.map(|(name, mode)| (name.to_owned(), mode)));
}

#[test]
fn a_packed_tree_is_unchanged_after_unpacking() {
    let (from, to) = (sample(), TempDir::new().unwrap());
    let mut archive = Vec::new();
    assert_eq!(pack(from.path(), &mut archive).unwrap(), Packed { files: 3, bytes: 9 });
    unpack(&archive[..], to.path(), &Limits::default()).unwrap();
    assert_eq!(description(from.path()), description(to.path()));
}

#[test]
fn files_that_unpacking_would_reject_are_rejected() {
    type Prepare = fn(&Path);
    let cases: [(Prepare, &str); 4] = [
        (
            |root| symlink("/etc/passwd", root.join("link")).unwrap(),
            "\"link\" to \"/etc/passwd\": target must not be absolute",
        ),
        (|root| symlink("..", root.join("link")).unwrap(), "must not leave the archive"),
        (|root| fs::write(root.join("a\\b"), "").unwrap(), "\"a\\\\b\": name must not contain a backslash"),
        (|root| drop(std::os::unix::net::UnixListener::bind(root.join("socket")).unwrap()), "socket: must be a file"),
    ];
    for (prepare, message) in cases {
        let directory = TempDir::new().unwrap();
        prepare(directory.path());
        let error = pack(directory.path(), io::sink()).unwrap_err().to_string();
        assert!(error.contains(message), "expected {message}: {error}");
    }
    let error = pack(Path::new("/not/there"), io::sink()).unwrap_err().to_string();
    assert!(error.contains("failed to pack /not/there"), "{error}");
}

#[test]
fn a_write_error_during_packing_is_returned() {
    struct Full;
    impl Write for Full {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::Error::other("no space left"))
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let error = pack(sample().path(), Full).unwrap_err().to_string();
    assert!(error.contains("no space left"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn any_tree_is_unchanged_after_packing_and_unpacking(
        files in prop::collection::btree_map("[a-zA-Z0-9 ä\n]{1,8}(/[a-z.]{3,60}){0,3}",
            (prop::collection::vec(any::<u8>(), 0..2000), any::<bool>()), 0..12)
    ) {
        let (from, to) = (TempDir::new().unwrap(), TempDir::new().unwrap());
        for (name, (content, executable)) in &files {
            let path = from.path().join(name);
            // Skips a file if its name contains ".." or if a directory has the same name.
            if name.contains("..") || fs::create_dir_all(path.parent().unwrap()).is_err() || path.is_dir() {
                continue;
            }
            fs::write(&path, content).unwrap();
            let mode = if *executable { 0o755 } else { 0o640 };
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        }
        let archive = packed(from.path());
        unpack(&archive[..], to.path(), &Limits::default()).unwrap();
        prop_assert_eq!(description(from.path()), description(to.path()));
        prop_assert_eq!(archive, packed(to.path()));
    }
}

fn made(limits: Limits) -> Result<Vec<u8>, PackError> {
    let mut archive = Archive::new(Vec::new(), limits);
    archive.append_directory(b"bin")?;
    archive.append_file(b"bin/run", true, b"#!")?;
    archive.append_file(b"Pulumi.yaml", false, b"name: app\n")?;
    archive.append_link(b"bin/again", b"run")?;
    Ok(archive.finish()?.0)
}

#[test]
fn equal_entries_give_equal_bytes_that_can_be_unpacked() {
    let archive = made(Limits::default()).unwrap();
    assert_eq!(archive, made(Limits::default()).unwrap());
    let to = TempDir::new().unwrap();
    unpack(&archive[..], to.path(), &Limits::default()).unwrap();
    assert_eq!(std::fs::read(to.path().join("bin/again")).unwrap(), b"#!");
    let mode = std::fs::metadata(to.path().join("bin/run")).unwrap().permissions().mode();
    assert_ne!(mode & 0o100, 0, "the file is executable");
}

#[test]
fn entries_that_unpacking_would_reject_are_rejected() {
    let mut archive = Archive::new(io::sink(), Limits::default());
    assert!(archive.append_file(b"../x", false, b"").unwrap_err().to_string().contains(".."));
    assert!(archive.append_link(b"a", b"/etc/passwd").unwrap_err().to_string().contains("must not be absolute"));
    let few = Limits { entries: 2, ..Limits::default() };
    assert!(made(few).unwrap_err().to_string().contains("limit of 2 entries"));
    let small = Limits { unpacked_bytes: 3, ..Limits::default() };
    assert!(made(small).unwrap_err().to_string().contains("limit of 3 bytes"));
}

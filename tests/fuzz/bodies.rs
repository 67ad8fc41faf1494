//! Calls the parsers of untrusted bytes, and checks their invariants. The fuzz targets call these functions with
//! generated inputs, and `tests/fuzz_corpora` calls them with the committed inputs.

use std::collections::BTreeSet;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path};

use flate2::Compression;
use flate2::write::GzEncoder;
use pulumi_controller::artifact::{Digest, Directory, Limits, Revision, UnpackError, Unpacked, unpack};
use pulumi_controller::pulumi::events::{EngineEvent, EventError, LineSplitter};
use pulumi_controller::pulumi::failure::{self, exit::Exit};
use pulumi_controller::pulumi::run_summary::RunSummary;

/// Names and functions of the fuzz targets.
pub const BODIES: [(&str, fn(&[u8])); 6] = [
    ("archive", archive),
    ("gzip", gzip),
    ("digest", digest),
    ("directory", directory),
    ("event-log", event_log),
    ("revision", revision),
];

/// Returns limits that are low enough for the fuzzer to reach.
fn limits() -> Limits {
    Limits {
        unpacked_bytes: 256 * 1024,
        entries: 40,
        depth: 6,
        name_bytes: 120,
        component_bytes: 40,
        ratio: 100,
        ratio_free_bytes: 128 * 1024,
        ..Limits::default()
    }
}

/// Compresses and unpacks a tar stream, so that the fuzzer mutates the stream and not the compressed bytes.
pub fn archive(tar: &[u8]) {
    gzip(&compress(tar));
}

pub fn compress(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).expect("write to memory");
    encoder.finish().expect("write to memory")
}

/// Unpacks a compressed archive.
pub fn gzip(bytes: &[u8]) {
    let _ = unpacked(bytes, &limits());
}

/// Unpacks an archive to a directory next to a file that must not change. Checks the directory and the file even if the
/// function rejects the archive.
pub fn unpacked(bytes: &[u8], limits: &Limits) -> Result<Unpacked, UnpackError> {
    const OUTSIDE_CONTENT: &str = "unchanged content";
    let place = tempfile::tempdir().expect("a temporary directory");
    let (into, witness) = (place.path().join("into"), place.path().join("witness"));
    std::fs::create_dir(&into).expect("a directory");
    std::fs::write(&witness, OUTSIDE_CONTENT).expect("a file");
    let result = unpack(bytes, &into, limits);
    let entries: BTreeSet<_> =
        std::fs::read_dir(place.path()).expect("a directory").flatten().map(|e| e.file_name()).collect();
    assert_eq!(entries.len(), 2, "a file was written outside of the directory: {entries:?}");
    assert_eq!(std::fs::read_to_string(&witness).expect("the witness file exists"), OUTSIDE_CONTENT);
    let mut found = Found::default();
    found.walk(&into, &into, 0, limits);
    assert!(found.entries <= limits.entries, "{} entries", found.entries);
    assert!(found.bytes <= limits.unpacked_bytes, "{} bytes", found.bytes);
    if let Ok(unpacked) = &result {
        assert_eq!(unpacked.files, found.files);
        assert!(unpacked.bytes >= found.bytes, "{unpacked:?}, but found {} bytes", found.bytes);
    }
    result
}

#[derive(Default)]
struct Found {
    entries: u64,
    files: u64,
    bytes: u64,
}

impl Found {
    fn walk(&mut self, root: &Path, directory: &Path, depth: usize, limits: &Limits) {
        assert!(depth <= limits.depth, "{} is too deep", directory.display());
        for entry in std::fs::read_dir(directory).expect("readable directory") {
            let path = entry.expect("readable entry").path();
            let metadata = std::fs::symlink_metadata(&path).expect("metadata of the entry");
            self.entries += 1;
            if metadata.is_dir() {
                self.walk(root, &path, depth + 1, limits);
            } else if metadata.is_symlink() {
                let target = std::fs::read_link(&path).expect("readable link");
                stays_inside(root, &path, &target);
            } else {
                assert!(metadata.is_file(), "{} is neither a file nor a directory nor a link", path.display());
                assert_eq!(metadata.permissions().mode() & 0o7022, 0, "{}", path.display());
                self.files += 1;
                self.bytes += metadata.len();
            }
        }
    }
}

/// Checks that a link does not lead out of the root. First checks the path of the link, and then the resolved target if
/// the target exists. The first check is correct only if the path contains no other links.
fn stays_inside(root: &Path, link: &Path, target: &Path) {
    let mut depth = link.strip_prefix(root).expect("path below the root").components().count() as i64 - 1;
    for component in target.components() {
        match component {
            Component::ParentDir => depth -= 1,
            Component::Normal(_) => depth += 1,
            Component::CurDir => {}
            Component::RootDir | Component::Prefix(_) => depth = -1,
        }
        assert!(depth >= 0, "{} links to {} outside of the root", link.display(), target.display());
    }
    if let Ok(real) = link.canonicalize() {
        let root = root.canonicalize().expect("canonical root");
        assert!(real.starts_with(root), "{} links to {} outside of the root", link.display(), real.display());
    }
}

pub fn digest(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    match text.parse::<Digest>() {
        Ok(digest) => {
            assert_eq!(digest.to_string(), text);
            assert_eq!(digest.hex().len(), digest.algorithm().hex_digits());
            assert!(digest.verify(&digest) && !digest.verify(&Digest::of(b"other bytes")));
        }
        Err(error) => is_readable(&error.to_string()),
    }
}

pub fn directory(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    match text.parse::<Directory>() {
        Ok(directory) => {
            let inside = directory.under(Path::new("/root"));
            assert!(inside.starts_with("/root"), "{}", inside.display());
            assert!(inside.components().all(|c| !matches!(c, Component::ParentDir | Component::CurDir)));
            assert_eq!(directory.to_string().parse(), Ok(directory));
        }
        Err(error) => is_readable(&error.to_string()),
    }
}

pub fn revision(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let revision = Revision::parse(text);
    assert_eq!(revision.as_str(), text);
    assert!(revision.short().len() <= text.len());
    for part in [revision.name(), revision.algorithm(), revision.checksum()].into_iter().flatten() {
        assert!(text.contains(part), "{part:?} is not in {text:?}");
    }
}

/// Checks that the result does not depend on how the event log is divided into chunks, and that the result has a
/// limited size.
pub fn event_log(bytes: &[u8]) {
    const MAX_LINE: usize = 4 * 1024;
    let whole = lines(std::iter::once(bytes), MAX_LINE);
    assert_eq!(whole, lines(bytes.chunks(7), MAX_LINE));
    let mut run = RunSummary::default();
    for event in whole.into_iter().filter_map(|line| EngineEvent::parse(&line.ok()?).ok()) {
        run.observe(&event);
    }
    let errors: usize = run.errors().iter().map(|error| error.message.len() + error.urn.len()).sum();
    let words: usize = run.program_stderr().iter().map(|words| words.len()).sum();
    assert!(errors <= 16 * 1024 && words <= 8 * 1024, "{errors} bytes of errors, {words} of words");
    for exit in [Exit { code: Some(255), signal: None }, Exit { code: None, signal: Some(9) }] {
        let failure = failure::classify(exit, "", "", &run);
        assert!(failure.message.len() <= 8 * 1024);
        assert!(failure.message.chars().all(|c| !c.is_control() || "\n\t".contains(c)), "{:?}", failure.message);
    }
}

fn lines<'a>(pieces: impl Iterator<Item = &'a [u8]>, longest: usize) -> Vec<Result<Vec<u8>, EventError>> {
    let mut splitter = LineSplitter::new(longest);
    pieces.flat_map(|piece| splitter.push(piece)).collect()
}

/// Checks that a message with untrusted text has a limited size and no control characters.
fn is_readable(message: &str) {
    assert!(message.len() <= 4096, "{} bytes", message.len());
    assert!(message.chars().all(|character| !character.is_control()), "{message:?}");
}

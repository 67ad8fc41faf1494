mod tar_stream;

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;

use flate2::Compression;
use flate2::write::GzEncoder;
use proptest::prelude::*;
use tar::{Builder, Header};
use tempfile::TempDir;

use super::*;
use tar_stream::{Tar, gzip};

/// A destination directory, next to files that no archive may modify.
struct Place(TempDir);

impl Place {
    fn new() -> Self {
        let place = Self(TempDir::new().unwrap());
        fs::create_dir(place.destination()).unwrap();
        fs::write(place.0.path().join("sentinel"), "untouched").unwrap();
        place
    }

    fn destination(&self) -> PathBuf {
        self.0.path().join("into")
    }

    fn unpack(&self, archive: &[u8], limits: &Limits) -> Result<Unpacked, UnpackError> {
        let result = unpack(archive, &self.destination(), limits);
        let mut around: Vec<_> = fs::read_dir(self.0.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        around.sort();
        assert_eq!(around, ["into", "sentinel"], "a file was written outside the directory");
        assert_eq!(fs::read_to_string(self.0.path().join("sentinel")).unwrap(), "untouched");
        result
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.destination().join(name)).unwrap()
    }

    fn mode(&self, name: &str) -> u32 {
        fs::symlink_metadata(self.destination().join(name)).unwrap().permissions().mode() & 0o7777
    }
}

fn refusal(archive: &[u8], limits: &Limits) -> String {
    Place::new().unpack(archive, limits).expect_err("should be rejected").to_string()
}

#[test]
fn files_directories_and_links_inside_the_archive_are_unpacked() {
    let place = Place::new();
    let archive = Tar::default()
        .directory("./")
        .directory("./empty/")
        .file("./Pulumi.yaml", b"name: app")
        .header(b'0', b"bin/run", b"", 2, 0o755)
        .content(b"hi")
        .link("bin/latest", "run")
        .link("bin/up", "../Pulumi.yaml")
        .link("dangling", "not/there")
        .entry(0, b"old", b"", b"x")
        .entry(0, b"old directory/", b"", b"")
        .end();
    let unpacked = place.unpack(&archive, &Limits::default()).unwrap();
    assert_eq!(unpacked, Unpacked { files: 3, bytes: 12 });
    assert_eq!(place.read("Pulumi.yaml"), "name: app");
    assert_eq!(place.read("bin/latest"), "hi");
    assert_eq!(place.read("bin/up"), "name: app");
    assert_eq!(fs::read_link(place.destination().join("dangling")).unwrap(), Path::new("not/there"));
    assert!(place.destination().join("empty").is_dir() && place.destination().join("old directory").is_dir());
}

#[test]
fn only_the_executable_bit_of_a_file_mode_is_kept() {
    let place = Place::new();
    let archive = Tar::default()
        .header(b'5', b"closed", b"", 0, 0o000)
        .header(b'0', b"closed/plain", b"", 0, 0o6400)
        .header(b'0', b"closed/run", b"", 0, 0o4711)
        .end();
    place.unpack(&archive, &Limits::default()).unwrap();
    for (name, of_owner) in [("closed", 0o700), ("closed/plain", 0o600), ("closed/run", 0o700)] {
        // Ignores the permission bits for the group and for others, which depend on the umask.
        assert_eq!(place.mode(name) & 0o7722, of_owner, "{name}");
    }
    assert_eq!(place.mode("closed/plain") & 0o111, 0);
}

#[test]
fn long_names_in_gnu_and_pax_format_are_supported() {
    let long = format!("{}/{}/file", "a".repeat(120), "b".repeat(120));
    let place = Place::new();
    let archive = Tar::default()
        .entry(b'L', b"././@LongLink", b"", format!("{long}\0").as_bytes())
        .file("cut", b"gnu")
        .pax(&[("path", &format!("{long}.pax")), ("mtime", "1.5"), ("SCHILY.xattr.a", "b\nc")])
        .file("cut", b"pax")
        .entry(b'K', b"././@LongLink", b"", format!("{long}\0").as_bytes())
        .link("gnu", "cut")
        .pax(&[("linkpath", &long)])
        .link("pax", "cut")
        .entry(b'g', b"pax_global_header", b"", b"21 comment=1a2b3c4d5\n")
        .file("last", b"")
        .end();
    place.unpack(&archive, &Limits::default()).unwrap();
    assert_eq!(place.read(&long), "gnu");
    assert_eq!(place.read(&format!("{long}.pax")), "pax");
    assert_eq!(fs::read_link(place.destination().join("gnu")).unwrap(), Path::new(&long));
    assert_eq!(fs::read_link(place.destination().join("pax")).unwrap(), Path::new(&long));
    assert!(!place.destination().join("cut").exists());
}

#[test]
fn the_later_of_two_entries_with_the_same_name_is_kept() {
    let place = Place::new();
    let archive = Tar::default().file("a", b"first, longer").directory("d").file("a", b"second").directory("d").end();
    assert_eq!(place.unpack(&archive, &Limits::default()).unwrap().files, 1);
    assert_eq!(place.read("a"), "second");
}

#[test]
fn an_entry_with_a_hostile_name_is_rejected() {
    let table = [
        ("../outside", "entry name \"../outside\" must not contain \"..\""),
        ("a/../../outside", "must not contain \"..\""),
        ("..", "must not contain \"..\""),
        ("/outside", "entry name \"/outside\" must not be absolute"),
        ("a\\b", "must not contain a backslash"),
        ("", "must not be empty"),
    ];
    for (name, message) in table {
        for kind in [b'0', b'5', b'2'] {
            let error = refusal(&Tar::default().entry(kind, name.as_bytes(), b"x", b"").end(), &Limits::default());
            assert!(error.contains("entry name") && error.contains(message), "{name}: {error}");
        }
    }
    let error = refusal(&Tar::default().pax(&[("path", "a\0b")]).file("x", b"").end(), &Limits::default());
    assert!(error.contains("must not contain a NUL"), "{error}");
    let error = refusal(&Tar::default().pax(&[("path", "../a")]).file("x", b"").end(), &Limits::default());
    assert!(error.contains("must not contain \"..\""), "{error}");
}

#[test]
fn the_error_for_an_unsupported_entry_names_its_type() {
    let table = [
        (b'1', "a hard link"),
        (b'3', "a character device"),
        (b'4', "a block device"),
        (b'6', "a named pipe"),
        (b'7', "a contiguous file"),
        (b'S', "a sparse file"),
        (b'X', "of unknown type 'X'"),
        (b'Z', "of unknown type 'Z'"),
    ];
    for (kind, message) in table {
        let archive = Tar::default().file("target", b"x").entry(kind, b"thing", b"target", b"").end();
        let error = refusal(&archive, &Limits::default());
        assert!(error.contains("\"thing\" is ") && error.contains(message), "{error}");
    }
    let sparse = Tar::default().pax(&[("GNU.sparse.major", "1")]).file("thing", b"").end();
    assert!(refusal(&sparse, &Limits::default()).contains("a sparse file"));
    assert!(refusal(&Tar::default().link(".", "x").end(), &Limits::default()).contains("in place of the root"));
    assert!(refusal(&Tar::default().file("./", b"x").end(), &Limits::default()).contains("name of a directory"));
}

#[test]
fn a_link_out_of_the_archive_is_rejected() {
    let table = [
        ("link", "/etc/passwd", "must not be absolute"),
        ("link", "../sentinel", "must not leave the archive"),
        ("a/b/link", "../../../sentinel", "must not leave the archive"),
        ("a/link", "b/../../../sentinel", "must not contain \"..\" after a name"),
        ("link", "", "must not be empty"),
        ("link", "a\\b", "must not contain a backslash"),
    ];
    for (name, target, message) in table {
        let error = refusal(&Tar::default().link(name, target).end(), &Limits::default());
        assert!(error.contains("invalid archive: symbolic link") && error.contains(message), "{target}: {error}");
    }
}

#[test]
fn writing_through_links_or_over_entries_of_another_type_is_rejected() {
    let table = [
        (
            Tar::default().directory("d").link("l", "d").file("l/x", b""),
            "\"l/x\" is below \"l\", which is a symbolic link",
        ),
        (Tar::default().link("l", ".").link("l/m", "x"), "below \"l\", which is a symbolic link"),
        (
            Tar::default().link("l", "f").file("l", b""),
            "\"l\" has the same name as an earlier entry, which is a symbolic link",
        ),
        (
            Tar::default().directory("d").link("l", "d").directory("l"),
            "\"l\" has the same name as an earlier entry, which is a symbolic link",
        ),
        (Tar::default().file("f", b"").link("f", "x"), "\"f\" has the same name as an earlier entry, which is a file"),
        (Tar::default().file("f", b"").directory("f"), "\"f\" has the same name as an earlier entry, which is a file"),
        (Tar::default().file("f", b"").file("f/x", b""), "\"f/x\" is below \"f\", which is a file"),
        (
            Tar::default().directory("d").file("d", b""),
            "\"d\" has the same name as an earlier entry, which is a directory",
        ),
        (
            Tar::default().file("d/x", b"").link("d", "e"),
            "\"d\" has the same name as an earlier entry, which is a directory",
        ),
    ];
    for (archive, message) in table {
        let error = refusal(&archive.end(), &Limits::default());
        assert!(error.contains(message), "expected {message}: {error}");
    }
}

#[test]
fn the_size_limit_counts_decompressed_bytes_exactly() {
    let archive = Tar::default().file("a", &[b'x'; 600]).file("b", b"y").end();
    // The exact size includes two headers, 1024 and 512 bytes of padded content, and two empty blocks at the end.
    let exact = Limits { unpacked_bytes: 512 + 1024 + 512 + 512 + 1024, ..Limits::default() };
    Place::new().unpack(&archive, &exact).unwrap();
    let one_less = Limits { unpacked_bytes: exact.unpacked_bytes - 1, ..exact };
    let error = refusal(&archive, &one_less);
    assert!(error.contains("limit of 3583 decompressed bytes"), "{error}");
    let first_only = Limits { unpacked_bytes: 1000, ..Limits::default() };
    assert!(refusal(&archive, &first_only).contains("in entry \"a\""));
}

#[test]
fn a_decompression_bomb_is_stopped_early() {
    let limits = Limits { ratio: 50, ratio_free_bytes: 100_000, ..Limits::default() };
    let error = refusal(&Tar::default().file("zeros", &vec![0; 4_000_000]).end(), &limits);
    assert!(error.contains("more than 50 times its size in entry \"zeros\""), "{error}");
    let place = Place::new();
    let archive = Tar::default().file("zeros", &vec![0; 90_000]).end();
    place.unpack(&archive, &limits).expect("a small archive of zeros is harmless");
    // Unpacking must also terminate if the archive consists of many gzip members without content.
    let empty_members = gzip(b"").repeat(1000);
    assert!(matches!(Place::new().unpack(&empty_members, &limits), Err(UnpackError::Truncated)));
}

#[test]
fn the_number_depth_and_name_length_of_entries_are_limited() {
    let limits = Limits { entries: 4, depth: 3, name_bytes: 20, component_bytes: 10, ..Limits::default() };
    let place = Place::new();
    place.unpack(&Tar::default().file("a/b/c", b"").file("d", b"").end(), &limits).unwrap();
    let table = [
        (Tar::default().file("a/b/c", b"").file("d", b"").file("e", b""), "limit of 4 entries"),
        (
            Tar::default().file("a", b"").file("a", b"").file("a", b"").file("a", b"").file("a", b""),
            "limit of 4 entries",
        ),
        (Tar::default().file("a/b/c/d", b""), "more than 3 levels deep, but has 4"),
        (Tar::default().file("abcdefghijk", b""), "more than 10 bytes, but has a component of 11"),
        (Tar::default().file("abcdefghij/abcdefghij", b""), "exceed 20 bytes, but has 21"),
        (Tar::default().link("a", &"b/".repeat(11)), "exceed 20 bytes, but has 22"),
    ];
    for (archive, message) in table {
        let error = refusal(&archive.end(), &limits);
        assert!(error.contains(message), "expected {message}: {error}");
    }
}

#[test]
fn a_survey_reports_only_exceeded_limits() {
    let limits =
        Limits { entries: 2, unpacked_bytes: 40_000, ratio: 50, ratio_free_bytes: 20_000, ..Limits::default() };
    let named = Tar::default().directory("./").file("a", b"").pax(&[("path", "b")]).file("short", b"");
    let many = Tar::default().file("a", b"").file("b", b"").file("c", b"").file("d", b"");
    let noise: Vec<u8> = (0..50_000_u32).map(|number| (number.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let table = [
        ("the root and two entries, one with an extension header", named, None),
        ("four entries", many, Some("limit of 2 entries")),
        (
            "too large",
            Tar::default().file("noise", &noise),
            Some("limit of 40000 decompressed bytes (--artifact-max-unpacked-size) in entry \"noise\""),
        ),
        ("a bomb", Tar::default().file("zeros", &[0; 30_000]), Some("possible decompression bomb")),
        ("a hostile name", Tar::default().file("../evil", b""), None),
    ];
    for (what, tar, words) in table {
        let found = survey(&tar.end()[..], &limits).err().map(|error| error.to_string());
        match words {
            None => assert_eq!(found, None, "{what}"),
            Some(words) => assert!(found.as_deref().is_some_and(|found| found.contains(words)), "{what}: {found:?}"),
        }
    }
    assert!(survey(&b"garbage"[..], &limits).is_ok(), "only `unpack` reports errors other than exceeded limits");
}

#[test]
fn unbounded_or_inconsistent_extension_headers_are_rejected() {
    let table = [
        (Tar::default().header(b'x', b"pax", b"", 300_000, 0o644), "extension header of 300000 bytes"),
        (Tar::default().header(b'L', b"long", b"", usize::MAX >> 2, 0o644), "extension header of"),
        (Tar::default().entry(b'x', b"pax", b"", b"nonsense"), "malformed PAX header"),
        (Tar::default().pax(&[("size", "10")]).file("a", b"four"), "\"a\" has two sizes"),
        (Tar::default().pax(&[("size", "ten")]).file("a", b"four"), "size is not a number"),
        (Tar::default().pax(&[("path", "a")]), "after an extension header"),
        (
            Tar::default().entry(b'g', b"global", b"", b"9 path=a\n").file("b", b""),
            "global PAX header must not set \"path\"",
        ),
    ];
    for (archive, message) in table {
        let error = refusal(&archive.end(), &Limits::default());
        assert!(error.contains(message), "expected {message}: {error}");
    }
    let same_size = Tar::default().pax(&[("size", "4")]).file("a", b"four").end();
    Place::new().unpack(&same_size, &Limits::default()).unwrap();
}

#[test]
fn an_archive_truncated_at_any_length_is_rejected() {
    let whole = Tar::default().file("a", &[7; 2000]).file("b", b"y").end();
    for length in 0..whole.len() {
        let error =
            Place::new().unpack(&whole[..length], &Limits::default()).expect_err("should be rejected as truncated");
        assert!(matches!(error, UnpackError::Truncated | UnpackError::Broken { .. }), "{length}: {error}");
    }
    // Truncates the archive before the compression, so that the gzip stream itself is complete.
    let plain = Tar::default().file("a", &[7; 2000]).file("b", b"y").0;
    for length in [0, 100, 512, 1000, 2560, 2700, plain.len()] {
        let error = refusal(&gzip(&plain[..length]), &Limits::default());
        assert!(error.contains("truncated before the end-of-archive marker"), "{length}: {error}");
    }
}

#[test]
fn damaged_archives_and_trailing_garbage_are_rejected() {
    let whole = Tar::default().file("a", b"content").end();
    let mut wrong_sum = whole.clone();
    let end = wrong_sum.len();
    wrong_sum[end - 6] ^= 1;
    let garbage = [&whole[..], b"garbage after the end of the stream"].concat();
    let second_archive = [&whole[..], &whole[..]].concat();
    let mut header_sum = Tar::default().file("a", b"content").0;
    header_sum[150] ^= 1;
    let table = [
        (wrong_sum, "not a valid tar.gz"),
        (garbage, "not a valid tar.gz"),
        (second_archive, "data after the end-of-archive marker"),
        (gzip(&header_sum), "checksum"),
        (b"PK\x03\x04 a zip file".to_vec(), "not a valid tar.gz"),
        (
            gzip(b"name: this is just a compressed text, longer than nothing").to_vec(),
            "truncated before the end-of-archive marker",
        ),
    ];
    for (archive, message) in table {
        let error = refusal(&archive, &Limits::default());
        assert!(error.contains(message), "expected {message}: {error}");
    }
    let padded = Tar(Tar::default().file("a", b"x").0.into_iter().chain([0; 10240]).collect()).end();
    Place::new().unpack(&padded, &Limits::default()).expect("padding is valid");
}

#[test]
fn the_destination_must_be_an_empty_directory() {
    let archive = Tar::default().file("a", b"x").end();
    let place = Place::new();
    let root = place.0.path();
    symlink("into", root.join("link")).unwrap();
    for (into, message) in [("missing", "No such file"), ("link", "not a directory"), ("sentinel", "not a directory")] {
        let error = unpack(&archive[..], &root.join(into), &Limits::default()).unwrap_err().to_string();
        assert!(error.contains(message) && error.contains(into), "{error}");
    }
    fs::write(root.join("into/file"), "").unwrap();
    let error = unpack(&archive[..], &root.join("into"), &Limits::default()).unwrap_err().to_string();
    assert!(error.contains("not empty"), "{error}");
}

/// Asserts that every symbolic link resolves to a path inside `root`.
fn assert_links_stay_inside(directory: &Path, root: &Path) {
    for entry in fs::read_dir(directory).unwrap() {
        let entry = entry.unwrap();
        if let Ok(real) = fs::canonicalize(entry.path()) {
            assert!(real.starts_with(root), "{:?} leads to {real:?}", entry.path());
        }
        if entry.file_type().unwrap().is_dir() {
            assert_links_stay_inside(&entry.path(), root);
        }
    }
}

fn names() -> impl Strategy<Value = String> {
    prop::collection::vec(prop_oneof!["[abc]", Just("..".to_owned()), Just(".".to_owned()), Just(String::new())], 1..5)
        .prop_map(|parts| parts.join("/"))
}

proptest! {
    #[test]
    fn arbitrary_bytes_are_rejected(bytes in prop::collection::vec(any::<u8>(), 0..2000), packed: bool) {
        let archive = if packed { gzip(&bytes) } else { bytes };
        prop_assert!(Place::new().unpack(&archive, &Limits::default()).is_err());
    }

    #[test]
    fn a_damaged_archive_never_writes_outside_the_destination(position in 0_usize..4096, byte: u8) {
        let mut plain = Tar::default().pax(&[("path", "x/y")]).file("a", b"content").link("l", "a").directory("d").0;
        let length = plain.len();
        plain[position % length] = byte;
        plain.extend_from_slice(&[0; 1024]);
        let _ = Place::new().unpack(&gzip(&plain), &Limits::default());
    }
}

proptest! {
    // Limits the number of cases, because each case unpacks dozens of archives.
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn no_order_of_entries_writes_outside_the_destination(
        entries in prop::collection::vec((0..3_u8, names(), names()), 1..12)
    ) {
        let place = Place::new();
        // Keeps only the entries that `unpack` accepts, so that the archive contains no entry that makes `unpack` fail.
        let mut kept = Tar::default();
        for (kind, name, target) in entries {
            let next = Tar(kept.0.clone());
            let next = match kind {
                0 => next.file(&name, b"x"),
                1 => next.directory(&name),
                _ => next.link(&name, &target),
            };
            if Place::new().unpack(&Tar(next.0.clone()).end(), &Limits::default()).is_ok() {
                kept = next;
            }
        }
        place.unpack(&kept.end(), &Limits::default()).unwrap();
        let root = fs::canonicalize(place.destination()).unwrap();
        assert_links_stay_inside(&root, &root);
    }
}

#[test]
fn archives_created_by_the_tar_library_are_unpacked() {
    let mut builder = Builder::new(GzEncoder::new(Vec::new(), Compression::fast()));
    let mut header = Header::new_ustar();
    header.set_size(5);
    header.set_mode(0o600);
    builder.append_data(&mut header, "directory/file", &b"hello"[..]).unwrap();
    let archive = builder.into_inner().unwrap().finish().unwrap();
    let place = Place::new();
    place.unpack(&archive, &Limits::default()).unwrap();
    assert_eq!(place.read("directory/file"), "hello");
}

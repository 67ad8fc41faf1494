//! Seeds for the corpora: malicious archives, intact and damaged event logs from real runs, and almost valid digests.
//! The end-to-end tests use the same archives as sources.

use tar::{EntryType, Header};

use crate::bodies::compress;

/// Expected result when the agent unpacks an archive.
#[derive(Clone, Copy, Debug)]
pub enum Expected {
    Taken,
    /// The function rejects the archive with a message that contains these words.
    Refused(&'static [&'static str]),
}

/// A tar stream in a corpus.
pub struct Archive {
    pub name: &'static str,
    pub tar: Vec<u8>,
    pub expected: Expected,
}

/// File names and contents of the seeds for a fuzz target.
pub type Seeds = Vec<(String, Vec<u8>)>;

pub fn all() -> Vec<(&'static str, Seeds)> {
    let tars = archives().into_iter().map(|archive| (format!("{}.tar", archive.name), archive.tar));
    vec![
        ("archive", tars.collect()),
        ("gzip", gzip()),
        ("digest", texts(&digests())),
        ("directory", texts(&DIRECTORIES)),
        ("event-log", event_logs()),
        ("revision", texts(&REVISIONS)),
    ]
}

/// A tar stream. The type writes each header itself, because libraries refuse to write invalid archives. The stream
/// starts with a valid project, so only the fault in the stream prevents a run.
struct Tar(Vec<u8>);

impl Tar {
    fn new() -> Tar {
        let project = "name: hostile\nruntime: yaml\noutputs:\n  taken: \"yes\"\n";
        Tar(Vec::new()).entry(EntryType::Regular, b"Pulumi.yaml", b"", project.as_bytes())
    }

    fn entry(self, kind: EntryType, name: &[u8], link: &[u8], content: &[u8]) -> Tar {
        self.header(kind, name, link, content.len()).content(content)
    }

    fn header(mut self, kind: EntryType, name: &[u8], link: &[u8], size: usize) -> Tar {
        let mut header = Header::new_gnu();
        let old = header.as_old_mut();
        old.name.iter_mut().zip(name).for_each(|(to, from)| *to = *from);
        old.linkname.iter_mut().zip(link).for_each(|(to, from)| *to = *from);
        header.set_entry_type(kind);
        header.set_size(size as u64);
        header.set_mode(0o644);
        header.set_cksum();
        self.0.extend_from_slice(header.as_bytes());
        self
    }

    fn content(mut self, content: &[u8]) -> Tar {
        self.0.extend_from_slice(content);
        self.0.resize(self.0.len().next_multiple_of(512), 0);
        self
    }

    fn file(self, name: &str) -> Tar {
        self.entry(EntryType::Regular, name.as_bytes(), b"", b"evil\n")
    }

    fn link(self, name: &str, target: &str) -> Tar {
        self.entry(EntryType::Symlink, name.as_bytes(), target.as_bytes(), b"")
    }

    /// Adds a pax header with one record, which applies to the next entry.
    fn extended(self, key: &str, value: &str) -> Tar {
        let rest = format!(" {key}={value}\n");
        let length = (1..).find(|length: &usize| length.to_string().len() + rest.len() == *length).unwrap_or_default();
        self.entry(EntryType::XHeader, b"pax", b"", format!("{length}{rest}").as_bytes())
    }

    fn end(mut self) -> Vec<u8> {
        self.0.resize(self.0.len() + 1024, 0);
        self.0
    }
}

pub fn archives() -> Vec<Archive> {
    let refused = |name, tar: Tar, words| Archive { name, tar: tar.end(), expected: Expected::Refused(words) };
    let taken = |name, tar: Tar| Archive { name, tar: tar.end(), expected: Expected::Taken };
    let kind = |kind| Tar::new().entry(kind, b"evil", b"", b"");
    let mut archives = vec![
        taken(
            "good",
            Tar::new().entry(EntryType::Directory, b"a/", b"", b"").file("a/b").link("a/c", "../Pulumi.yaml"),
        ),
        taken("good-long-name", Tar::new().extended("path", &["a-long-name"; 12].join("/")).file("short")),
        refused("parent", Tar::new().file("../evil"), &["\"../evil\"", "must not contain \"..\""]),
        refused("parent-inside", Tar::new().file("a/../../evil"), &["\"a/../../evil\"", "must not contain \"..\""]),
        refused("absolute", Tar::new().file("/etc/evil"), &["\"/etc/evil\"", "absolute"]),
        refused("backslash", Tar::new().file("a\\evil"), &["evil", "backslash"]),
        refused("nul", Tar::new().extended("path", "evil\0name").file("a"), &["evil", "NUL"]),
        refused("character-device", kind(EntryType::Char), &["\"evil\"", "character device"]),
        refused("block-device", kind(EntryType::Block), &["\"evil\"", "block device"]),
        refused("fifo", kind(EntryType::Fifo), &["\"evil\"", "named pipe"]),
        refused(
            "hard-link",
            Tar::new().entry(EntryType::Link, b"evil", b"/etc/passwd", b""),
            &["\"evil\"", "hard link"],
        ),
        refused("unknown-type", kind(EntryType::new(b'Z')), &["\"evil\"", "unknown type 'Z'"]),
        refused("sparse", Tar::new().extended("GNU.sparse.major", "1").file("evil"), &["\"evil\"", "sparse"]),
        refused("link-absolute", Tar::new().link("evil", "/etc"), &["\"evil\" to \"/etc\"", "absolute"]),
        refused("link-out", Tar::new().link("evil", "../../etc"), &["\"evil\" to \"../../etc\"", "leave the archive"]),
        refused("link-up-behind-a-name", Tar::new().link("evil", "a/../../b"), &["\"evil\"", "after a name"]),
        refused(
            "write-through-a-link",
            Tar::new().link("evil", ".").file("evil/through"),
            &["\"evil/through\"", "below \"evil\", which is a symbolic link"],
        ),
        refused("file-over-a-link", Tar::new().link("evil", "a").file("evil"), &["\"evil\"", "a symbolic link"]),
        refused("directory-over-a-file", Tar::new().file("evil").file("evil/b"), &["\"evil/b\"", "which is a file"]),
        refused("too-deep", Tar::new().extended("path", &["d"; 65].join("/")).file("a"), &["has 65"]),
        refused("too-long", Tar::new().extended("path", &"long/".repeat(220)).file("a"), &["has 1100"]),
        refused("too-long-a-name", Tar::new().extended("path", &"n".repeat(256)).file("a"), &["component of 256"]),
        refused("two-sizes", Tar::new().extended("size", "9").file("evil"), &["\"evil\"", "two sizes"]),
        refused("record-without-end", Tar::new().entry(EntryType::XHeader, b"x", b"", b"99 path=a\n"), &["malformed"]),
        refused(
            "renames-all",
            Tar::new().entry(EntryType::XGlobalHeader, b"g", b"", b"12 path=evil").file("a"),
            &["PAX header"],
        ),
        refused(
            "endless-header",
            Tar::new().header(EntryType::GNULongName, b"x", b"", 1 << 30),
            &["extension header of 1073741824 bytes"],
        ),
    ];
    let truncated = Tar::new().header(EntryType::Regular, b"evil", b"", 4096).content(b"half");
    archives.push(Archive { name: "truncated", tar: truncated.0, expected: Expected::Refused(&["truncated"]) });
    archives.push(Archive { name: "without-end", tar: Tar::new().0, expected: Expected::Refused(&["truncated"]) });
    let mut behind = Tar::new().end();
    behind.extend_from_slice(&[b'x'; 512]);
    let expected = Expected::Refused(&["after the end-of-archive marker"]);
    archives.push(Archive { name: "more-behind-its-end", tar: behind, expected });
    archives
}

fn gzip() -> Seeds {
    let good = compress(&Tar::new().end());
    let zeros = Tar::new().header(EntryType::Regular, b"zeros", b"", 1 << 20).content(&vec![0; 1 << 20]);
    let mut seeds = vec![
        ("good.tar.gz".to_owned(), good.clone()),
        ("zeros.tar.gz".to_owned(), compress(&zeros.end())),
        ("truncated.tar.gz".to_owned(), good.get(..good.len() / 2).unwrap_or_default().to_vec()),
        ("without-checksum.tar.gz".to_owned(), good.get(..good.len() - 8).unwrap_or_default().to_vec()),
        ("plain.tar".to_owned(), Tar::new().end()),
        ("empty".to_owned(), Vec::new()),
        ("only-magic".to_owned(), vec![0x1f, 0x8b]),
    ];
    let mut twice = good.clone();
    twice.extend_from_slice(&good);
    seeds.push(("two-members.tar.gz".to_owned(), twice));
    let mut damaged = good;
    if let Some(byte) = damaged.iter_mut().rev().nth(6) {
        *byte ^= 0xff;
    }
    seeds.push(("wrong-checksum.tar.gz".to_owned(), damaged));
    seeds
}

fn digests() -> Vec<(&'static str, String)> {
    let of = |algorithm: &str, digits: usize| format!("{algorithm}:{}", "0a".repeat(digits / 2));
    vec![
        ("sha256", of("sha256", 64)),
        ("sha384", of("sha384", 96)),
        ("sha512", of("sha512", 128)),
        ("sha1", of("sha1", 40)),
        ("md5", of("md5", 32)),
        ("unknown", of("crc32", 64)),
        ("empty", String::new()),
        ("no-algorithm", "0a".repeat(32)),
        ("upper-case", of("sha256", 64).to_uppercase()),
        ("too-short", of("sha256", 62)),
        ("two-colons", format!("sha256:{}", of("sha256", 64))),
    ]
}

const DIRECTORIES: [(&str, &str); 7] = [
    ("root", "."),
    ("nested", "./infrastructure//app/"),
    ("out", "../secrets"),
    ("out-behind-a-name", "app/../../secrets"),
    ("absolute", "/etc"),
    ("backslash", "app\\..\\secrets"),
    ("nul", "app\0"),
];

const REVISIONS: [(&str, &str); 7] = [
    ("git", "main@sha1:1a2b3c4d5e6f708192a3b4c5d6e7f8091a2b3c4d"),
    ("oci", "latest@sha256:0a0b0c"),
    ("bucket", "sha256:0a0b0c"),
    ("branch-with-at", "me@home@sha1:1a2b3c4d"),
    ("no-checksum", "main@sha1:"),
    ("chart", "6.0.3+1"),
    ("empty", ""),
];

fn texts(texts: &[(impl AsRef<str>, impl AsRef<str>)]) -> Seeds {
    texts.iter().map(|(name, text)| (name.as_ref().to_owned(), text.as_ref().as_bytes().to_vec())).collect()
}

/// Returns event logs from real runs, and event logs that a malicious program could write.
fn event_logs() -> Seeds {
    let failed = include_bytes!("../../src/pulumi/testdata/failed.events.jsonl");
    let mut damaged = failed.to_vec();
    damaged.truncate(failed.len() * 2 / 3);
    damaged.extend_from_slice(b"\n\n\xff\xfe\x00\n");
    damaged.extend_from_slice(failed);
    let many: String = (0..200)
        .map(|number| {
            format!(
                "{{\"diagnosticEvent\":{{\"severity\":\"error\",\"message\":\"<{{%fg 1%}}>{number}\\u001b[2J\"}}}}\n"
            )
        })
        .collect();
    let mut seeds: Seeds = ["succeeded", "program-failed", "canceled", "destroyed", "refreshed"]
        .iter()
        .zip([
            &include_bytes!("../../src/pulumi/testdata/succeeded.events.jsonl")[..],
            include_bytes!("../../src/pulumi/testdata/program-failed.events.jsonl"),
            include_bytes!("../../src/pulumi/testdata/canceled.events.jsonl"),
            include_bytes!("../../src/pulumi/testdata/destroyed.events.jsonl"),
            include_bytes!("../../src/pulumi/testdata/refreshed.events.jsonl"),
        ])
        .map(|(name, log)| (format!("{name}.jsonl"), log.to_vec()))
        .collect();
    seeds.push(("failed.jsonl".to_owned(), failed.to_vec()));
    seeds.push(("damaged.jsonl".to_owned(), damaged));
    seeds.push(("many-errors.jsonl".to_owned(), many.into_bytes()));
    seeds.push(("deep.jsonl".to_owned(), format!("{{\"a\":{}\n", "[".repeat(4000)).into_bytes()));
    seeds.push(("endless-line.jsonl".to_owned(), vec![b'x'; 10_000]));
    seeds.push(("no-newline.jsonl".to_owned(), b"{\"cancelEvent\":{}}".to_vec()));
    seeds
}

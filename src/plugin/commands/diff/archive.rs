//! Packs a local directory for a preview in a workspace pod, without the files that Git or Flux ignores.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;
use ignore::WalkBuilder;
use k8s_openapi::jiff::Timestamp;
use tar::{Builder, EntryType, Header};

use crate::plugin::error::PluginError;

/// Maximum number of entries.
const MAX_ENTRIES: u64 = 20_000;
/// Maximum total size of the files, in bytes.
const MAX_BYTES: u64 = 100 * 1024 * 1024;

/// Archive of a local directory.
pub struct Archive {
    /// Compressed tar archive.
    pub bytes: Vec<u8>,
    files: u64,
    /// Total size of the files, in bytes.
    size: u64,
}

impl Archive {
    /// Describes the number and the total size of the files.
    pub fn describe(&self) -> String {
        format!("{} files with {} KiB", self.files, self.size.div_ceil(1024))
    }
}

/// Packs a directory. In the archive, the file at the path `settings` contains `content` instead of its own content.
///
/// # Errors
///
/// Returns an error if a file cannot be read, or if the directory exceeds a limit.
pub fn pack(root: &Path, settings: &str, content: &[u8]) -> Result<Archive, PluginError> {
    let mut packing = Packing {
        root,
        builder: Builder::new(GzEncoder::new(Vec::new(), Compression::default())),
        now: u64::try_from(Timestamp::now().as_second()).unwrap_or_default(),
        entries: 0,
        files: 0,
        size: 0,
    };
    let settings = PathBuf::from(settings);
    for entry in walk(root) {
        let entry = entry.map_err(|error| packing.failed(&error.to_string()))?;
        let path = entry.path().strip_prefix(root).unwrap_or_else(|_| entry.path()).to_owned();
        if path.as_os_str().is_empty() || path == settings {
            continue;
        }
        packing.append(&path)?;
    }
    packing.file(&settings, content, 0o600)?;
    packing.finish()
}

/// Returns the directory entries that neither Git nor Flux ignores.
fn walk(root: &Path) -> ignore::Walk {
    let mut walk = WalkBuilder::new(root);
    // The archive must not contain files that Git ignores, because these files often contain secrets. The ignore rules
    // in `.git/info/exclude` and in the user's global ignore file also apply.
    walk.hidden(false).ignore(false).require_git(false);
    walk.add_custom_ignore_filename(".sourceignore");
    walk.filter_entry(|entry| entry.file_name() != ".git");
    walk.build()
}

struct Packing<'a> {
    root: &'a Path,
    builder: Builder<GzEncoder<Vec<u8>>>,
    /// Modification time of all entries, in seconds since 1970.
    now: u64,
    entries: u64,
    files: u64,
    size: u64,
}

impl Packing<'_> {
    /// Appends a file, a directory or a symbolic link to the archive. Ignores entries of other types, such as sockets.
    fn append(&mut self, path: &Path) -> Result<(), PluginError> {
        let full = self.root.join(path);
        let metadata = std::fs::symlink_metadata(&full).map_err(|error| self.failed_at(path, &error.to_string()))?;
        let kind = metadata.file_type();
        if kind.is_dir() {
            let mut header = self.header(EntryType::Directory, 0o755, 0);
            let appended = self.builder.append_data(&mut header, path, std::io::empty());
            appended.map_err(|error| self.failed_at(path, &error.to_string()))?;
        } else if kind.is_symlink() {
            let target = std::fs::read_link(&full).map_err(|error| self.failed_at(path, &error.to_string()))?;
            let mut header = self.header(EntryType::Symlink, 0o777, 0);
            let appended = self.builder.append_link(&mut header, path, target);
            appended.map_err(|error| self.failed_at(path, &error.to_string()))?;
        } else if kind.is_file() {
            let content = self.read(&full).map_err(|error| self.failed_at(path, &error.to_string()))?;
            return self.file(path, &content, mode(&metadata));
        } else {
            return Ok(());
        }
        self.count(0)
    }

    /// Reads a file up to the size limit, because the file can grow while the command reads it.
    fn read(&self, path: &Path) -> std::io::Result<Vec<u8>> {
        let mut content = Vec::new();
        std::fs::File::open(path)?.take(MAX_BYTES.saturating_sub(self.size) + 1).read_to_end(&mut content)?;
        Ok(content)
    }

    fn file(&mut self, path: &Path, content: &[u8], mode: u32) -> Result<(), PluginError> {
        let size = u64::try_from(content.len()).unwrap_or(u64::MAX);
        self.files += 1;
        self.count(size)?;
        let mut header = self.header(EntryType::Regular, mode, size);
        let appended = self.builder.append_data(&mut header, path, content);
        appended.map_err(|error| self.failed_at(path, &error.to_string()))
    }

    fn header(&self, kind: EntryType, mode: u32, size: u64) -> Header {
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_size(size);
        header.set_mtime(self.now);
        header
    }

    /// Adds an entry to the totals. Returns an error if a total exceeds its limit.
    fn count(&mut self, size: u64) -> Result<(), PluginError> {
        self.entries += 1;
        self.size = self.size.saturating_add(size);
        if self.entries <= MAX_ENTRIES && self.size <= MAX_BYTES {
            return Ok(());
        }
        Err(PluginError::Usage(format!(
            "invalid --path={}: the directory contains more than {MAX_ENTRIES} files or {} MiB; exclude files with \
             .gitignore or .sourceignore",
            self.root.display(),
            MAX_BYTES / 1024 / 1024
        )))
    }

    fn failed(&self, cause: &str) -> PluginError {
        PluginError::Failed(format!("failed to pack {}: {cause}", self.root.display()))
    }

    fn failed_at(&self, path: &Path, cause: &str) -> PluginError {
        self.failed(&format!("{}: {cause}", path.display()))
    }

    fn finish(self) -> Result<Archive, PluginError> {
        let root = self.root.display().to_string();
        let bytes = self.builder.into_inner().and_then(GzEncoder::finish);
        let bytes = bytes.map_err(|error| PluginError::Failed(format!("failed to pack {root}: {error}")))?;
        Ok(Archive { bytes, files: self.files, size: self.size })
    }
}

/// Returns the file mode for the archive.
#[cfg(unix)]
fn mode(metadata: &std::fs::Metadata) -> u32 {
    use std::os::unix::fs::PermissionsExt as _;
    if metadata.permissions().mode() & 0o111 == 0 { 0o644 } else { 0o755 }
}

/// Returns the file mode for the archive. All files are executable, because Windows does not record this permission.
#[cfg(not(unix))]
fn mode(_: &std::fs::Metadata) -> u32 {
    0o755
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::plugin::reference_tests::assert_text;

    /// Returns the path and the content of each file in an archive.
    fn content(archive: &Archive) -> BTreeMap<String, String> {
        let mut unpacked = tar::Archive::new(flate2::read::GzDecoder::new(archive.bytes.as_slice()));
        let entries = unpacked.entries().unwrap().map(Result::unwrap);
        let files = entries.filter(|entry| entry.header().entry_type().is_file());
        files
            .map(|mut entry| {
                let mut text = String::new();
                entry.read_to_string(&mut text).unwrap();
                (entry.path().unwrap().to_string_lossy().into_owned(), text)
            })
            .collect()
    }

    #[test]
    fn ignored_files_are_not_packed_and_the_settings_are_replaced() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write(".git/HEAD", "ref: x");
        write(".git/info/exclude", "/token\n");
        write("token", "secret");
        write(".gitignore", "node_modules/\n*.log\n!kept.log\n");
        write(".sourceignore", "/docs\n");
        write("node_modules/a/index.js", "a");
        write("docs/guide.md", "guide");
        write("infra/debug.log", "log");
        write("infra/kept.log", "kept");
        write("infra/.env", "A=1");
        write("infra/Pulumi.dev.yaml", "config: {}");
        write("infra/index.ts", "export {}");
        let archive = pack(root.path(), "infra/Pulumi.dev.yaml", b"{}").unwrap();
        let expected = [
            (".gitignore", "node_modules/\n*.log\n!kept.log\n"),
            (".sourceignore", "/docs\n"),
            ("infra/.env", "A=1"),
            ("infra/Pulumi.dev.yaml", "{}"),
            ("infra/index.ts", "export {}"),
            ("infra/kept.log", "kept"),
        ];
        let expected = expected.map(|(path, text)| (path.to_owned(), text.to_owned()));
        assert_eq!(content(&archive), BTreeMap::from(expected));
        assert_eq!(archive.describe(), "6 files with 1 KiB");
        let example = Archive { bytes: Vec::new(), files: 34, size: 120 * 1024 };
        assert_text(&format!("✔ packed {}\n", example.describe()));
    }

    #[test]
    fn a_directory_beyond_the_limits_is_rejected() {
        let root = tempfile::tempdir().unwrap();
        let file = std::fs::File::create(root.path().join("large")).unwrap();
        file.set_len(MAX_BYTES + 1).unwrap();
        let error = pack(root.path(), "Pulumi.dev.yaml", b"{}").err().unwrap();
        assert_eq!(error.exit_code(), 2);
        assert!(error.to_string().contains("more than 20000 files or 100 MiB"), "{error}");
    }
}

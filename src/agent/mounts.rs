//! Secrets and ConfigMaps that the kubelet mounts in the pod. Each object has a directory with one file per key.
//!
//! To detect changes to these objects, the controller compares the keyed hashes that [`InputHasher`] computes. There is
//! one hash for all files with configuration values, and one hash per directory. A hash does not reveal the contents of
//! the files. [`InputHasher`] reads the files again only after a change.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use tokio::time::Instant;

use super::layout::Layout;
use super::refusal::Refusal;
use crate::file_watch::{Cached, FileWatch};
use crate::rpc::server_tls::INPUTS_KEY_FILE;

/// Interval at which [`wait`] checks an empty directory.
const POLL: Duration = Duration::from_millis(100);
/// Maximum size of a Secret or ConfigMap in bytes, which Kubernetes enforces.
const MAX_VALUE: u64 = 1024 * 1024;
/// Minimum length of the hash key in bytes. A shorter key is not secure.
const MIN_KEY: usize = 32;
const MAX_KEY: u64 = 1024;
/// Maximum number of reads. The kubelet can replace the files during a read, so the agent reads the files until two
/// consecutive reads have the same result.
const MAX_READS: usize = 4;

/// Waits until all these directories have entries. For a missing object, the kubelet mounts an empty directory. After a
/// client creates the object, the kubelet fills the directory with a delay.
pub async fn wait(layout: &Layout, directories: &[String], limit: Duration) -> Result<(), Refusal> {
    let end = Instant::now() + limit;
    loop {
        let Some(empty) = directories.iter().map(Path::new).find(|directory| keys(directory).is_empty()) else {
            return Ok(());
        };
        if Instant::now() >= end {
            let object = describe(layout, empty);
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

/// Returns the kind and the name of the object that is mounted at a directory.
pub fn describe(layout: &Layout, directory: &Path) -> String {
    for (kind, root) in [("Secret", layout.secrets()), ("ConfigMap", layout.config_maps())] {
        if let Ok(name) = directory.strip_prefix(root) {
            return format!("{kind} {:?}", name.to_string_lossy());
        }
    }
    directory.display().to_string()
}

/// Returns the paths in a directory, or no paths if the directory is unreadable.
pub fn entries(directory: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    std::fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path())
}

/// Returns whether a path is internal to the kubelet. The kubelet stores mounted files in directories whose names begin
/// with two dots. Each key is a symbolic link to one of these files.
pub fn is_kubelet_internal(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.as_bytes().starts_with(b".."))
}

/// Keyed hashes of file contents. A hash is missing if a file or the hash key is unreadable.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hashes {
    /// Hash of all requested files.
    pub files: Option<String>,
    /// Hash of each requested directory.
    pub directories: HashMap<String, String>,
}

/// Computes keyed hashes of mounted Secrets and ConfigMaps.
pub struct InputHasher {
    /// File with the hash key, which all pods of the Workspace share. Without the hash key, a client cannot use a hash
    /// to verify a guessed value.
    key_file: PathBuf,
    watch: FileWatch,
    last: Cached<Hashed>,
}

/// Hashes, together with the paths of the hashed files and directories.
#[derive(Clone, Debug)]
struct Hashed {
    files: Vec<String>,
    directories: Vec<String>,
    hashes: Hashes,
}

impl InputHasher {
    /// Creates a hasher with the hash key from `tls_directory`, which also contains the agent's certificate.
    pub fn new(tls_directory: &Path, watch: FileWatch) -> Self {
        InputHasher { key_file: tls_directory.join(INPUTS_KEY_FILE), watch, last: Cached::default() }
    }

    /// Returns the current hashes of these files and directories. The function reads the contents only if a file may
    /// have changed.
    pub fn hashes(&self, files: &[String], directories: &[String]) -> Hashes {
        if files.is_empty() && directories.is_empty() {
            return Hashes::default();
        }
        let parents = files.iter().map(Path::new).chain([self.key_file.as_path()]).filter_map(Path::parent);
        let version = self.watch.version(parents.chain(directories.iter().map(Path::new)));
        if let Some(last) = self.last.find(version)
            && last.files == files
            && last.directories == directories
        {
            return last.hashes;
        }
        let hashes = self.read_hashes(files, directories);
        if hashes != Hashes::default() {
            let (files, directories) = (files.to_vec(), directories.to_vec());
            self.last.keep(version, Hashed { files, directories, hashes: hashes.clone() });
        }
        hashes
    }

    fn read_hashes(&self, files: &[String], directories: &[String]) -> Hashes {
        let key = match read(&self.key_file, MAX_KEY) {
            Ok(Some(key)) if key.len() >= MIN_KEY => key,
            other => {
                let found = other.map(|key| key.map(|key| key.len()));
                tracing::warn!(file = %self.key_file.display(), ?found, "no valid hash key: changes to Secrets and ConfigMaps are not detected");
                return Hashes::default();
            }
        };
        let read_all = || {
            let of_directory = |directory: &String| Some((directory.clone(), hash_files(&key, &keys_of(directory)?)?));
            Hashes {
                files: if files.is_empty() { None } else { hash_files(&key, files) },
                directories: directories.iter().filter_map(of_directory).collect(),
            }
        };
        let mut before = read_all();
        for _ in 1..MAX_READS {
            let now = read_all();
            if now == before {
                return now;
            }
            before = now;
        }
        Hashes::default()
    }
}

/// Returns the key paths of a mounted Secret or ConfigMap, or `None` if the directory is unreadable. The list omits
/// entries that are internal to the kubelet: see [`is_kubelet_internal`].
fn keys_of(directory: &str) -> Option<Vec<String>> {
    let entries = std::fs::read_dir(directory).ok()?;
    let names = entries.map(|entry| entry.ok()?.file_name().into_string().ok()).collect::<Option<Vec<_>>>()?;
    let mut keys: Vec<String> =
        names.iter().filter(|name| !name.starts_with("..")).map(|name| format!("{directory}/{name}")).collect();
    keys.sort();
    Some(keys)
}

/// Hashes the contents of files. Do not change the algorithm, because different hashes would trigger a run for every
/// Stack.
fn hash_files(key: &[u8], files: &[String]) -> Option<String> {
    let mut hash = Hmac::<Sha256>::new_from_slice(key).ok()?;
    let mut add = |part: &[u8]| {
        hash.update(&(part.len() as u64).to_be_bytes());
        hash.update(part);
    };
    for file in files {
        add(file.as_bytes());
        match read(Path::new(file), MAX_VALUE) {
            Ok(Some(content)) => {
                add(b"is");
                add(&content);
            }
            Ok(None) => add(b"is not there"),
            Err(error) => {
                tracing::warn!(file, %error, "failed to read an input file");
                return None;
            }
        }
    }
    Some(hex::encode(hash.finalize().into_bytes()))
}

/// Reads at most `limit` bytes from a file. Returns `None` if the file does not exist.
fn read(file: &Path, limit: u64) -> io::Result<Option<Vec<u8>>> {
    let mut content = Vec::new();
    match File::open(file).and_then(|file| file.take(limit).read_to_end(&mut content)) {
        Ok(_) => Ok(Some(content)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests;

//! Detects changes in mounted Secrets and ConfigMaps with keyed hashes: one hash for the files from which the
//! configuration is read, and one for each directory. A hash reveals nothing about the contents.
//!
//! The files are read on request, which is rare. A watch would not be faster, because the controller polls for changes,
//! and all pods of a node with the same user share a small number of inotify watches.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::rpc::server_tls::INPUTS_KEY_FILE;

/// Maximum size of a Secret or ConfigMap in bytes, set by Kubernetes.
const MAX_VALUE: u64 = 1024 * 1024;
/// Minimum length of the key in bytes. A shorter key is not secure.
const MIN_KEY: usize = 32;
const MAX_KEY: u64 = 1024;
/// Maximum number of reads until two consecutive ones agree: the kubelet can replace the files at the same time.
const MAX_READS: usize = 4;

/// Keyed hashes of contents. A hash is absent if it cannot be computed.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Hashes {
    /// Hash of all requested files.
    pub files: Option<String>,
    /// Hash of each requested directory.
    pub directories: HashMap<String, String>,
}

/// Computes keyed hashes of mounted Secrets and ConfigMaps.
pub struct Inputs {
    /// Key of the Workspace, shared by all its pods. Without the key, a hash cannot be used to test guesses of a value.
    key_file: PathBuf,
}

impl Inputs {
    /// Uses the key in the directory of the agent's certificate.
    pub fn new(tls_directory: &Path) -> Self {
        Inputs { key_file: tls_directory.join(INPUTS_KEY_FILE) }
    }

    /// Returns the hashes of the current contents of these files and directories.
    pub fn hashes(&self, files: &[String], directories: &[String]) -> Hashes {
        if files.is_empty() && directories.is_empty() {
            return Hashes::default();
        }
        let key = match read(&self.key_file, MAX_KEY) {
            Ok(Some(key)) if key.len() >= MIN_KEY => key,
            other => {
                let found = other.map(|key| key.map(|key| key.len()));
                tracing::warn!(file = %self.key_file.display(), ?found, "no valid key: changes of Secrets and ConfigMaps are not detected");
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

/// Returns the keys of a mounted Secret or ConfigMap. The kubelet keeps mounted files behind links whose names begin
/// with two dots.
fn keys_of(directory: &str) -> Option<Vec<String>> {
    let entries = std::fs::read_dir(directory).ok()?;
    let names = entries.map(|entry| entry.ok()?.file_name().into_string().ok()).collect::<Option<Vec<_>>>()?;
    let mut keys: Vec<String> =
        names.iter().filter(|name| !name.starts_with("..")).map(|name| format!("{directory}/{name}")).collect();
    keys.sort();
    Some(keys)
}

/// Hashes the contents of files. This algorithm must not change: new hashes would make every Stack run once.
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

/// Reads at most `limit` bytes of a file; `None` if the file does not exist.
fn read(file: &Path, limit: u64) -> io::Result<Option<Vec<u8>>> {
    let mut content = Vec::new();
    match File::open(file).and_then(|file| file.take(limit).read_to_end(&mut content)) {
        Ok(_) => Ok(Some(content)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            Inputs::new(self.0.path()).hashes(&files, &[]).files.unwrap_or_default()
        }
    }

    const KEY: &str = "0123456789abcdef0123456789abcdef";

    #[test]
    fn input_digests_are_equal_only_for_equal_contents() {
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
        assert_eq!(place.hash(&["a", "b"]), both, "reverted contents have their old hash");
    }

    #[test]
    fn the_input_digest_is_stable_across_versions_and_depends_on_the_key() {
        let hash = |key: &str| hash_files(key.as_bytes(), &["/nonexistent/a".to_owned()]).unwrap();
        assert_eq!(hash(KEY), "a3dce3629cab9d025de1610f550348c40289bc629dd0285b62d99033b9999450");
        assert_ne!(hash(KEY), hash("another key"));
    }

    #[test]
    fn a_directory_digest_changes_with_any_of_its_keys() {
        let place = Place::new(KEY);
        let directory = place.0.path().join("aws");
        let requested = [directory.display().to_string(), place.0.path().join("gone").display().to_string()];
        let hashes = || Inputs::new(place.0.path()).hashes(&[], &requested).directories;
        assert!(hashes().is_empty(), "it is not mounted");
        std::fs::create_dir(&directory).unwrap();
        let mut seen = Vec::new();
        let steps: [(&str, Option<&str>); 5] = [
            ("..data", Some("x")),
            ("id", Some("one")),
            ("secret", Some("two")),
            ("id", Some("three")),
            ("secret", None),
        ];
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
        assert_eq!(seen[0], empty, "names of the kubelet are not keys");
        let different: std::collections::BTreeSet<&String> = seen.iter().collect();
        assert_eq!(different.len(), 5, "{seen:?}");
    }

    #[test]
    fn no_digest_is_reported_without_files_or_without_a_key() {
        let place = Place::new(KEY);
        assert_eq!(place.hash(&[]), "");
        place.write(INPUTS_KEY_FILE, "short");
        assert_eq!(place.hash(&["a"]), "");
        std::fs::remove_file(place.0.path().join(INPUTS_KEY_FILE)).unwrap();
        assert_eq!(place.hash(&["a"]), "");
        let directory = Place::new(KEY);
        assert_eq!(directory.hash(&["."]), "", "a directory is not a value");
    }
}

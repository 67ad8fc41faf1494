//! Records which namespaces may read an artifact: those with a source that produced it. A digest is not a secret, so knowing it
//! grants no access.
//!
//! A file per artifact, with one namespace per line, preserves the grants across restarts.

use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::PathBuf;

/// Maximum number of namespaces per artifact. A new grant beyond it replaces the oldest one, whose source then has to produce the
/// artifact again.
const MAX_NAMESPACES: usize = 1024;

/// Namespaces that may read one artifact.
#[derive(Debug)]
pub(super) struct Grants {
    path: PathBuf,
    namespaces: Vec<String>,
}

impl Grants {
    /// Reads the grants of an earlier process. An unreadable file grants nothing.
    pub(super) fn read(path: PathBuf) -> Self {
        let text = fs::read_to_string(&path).unwrap_or_default();
        // An interrupted write leaves an incomplete line without a newline.
        let whole = text.rsplit_once('\n').map(|(lines, _)| lines).unwrap_or_default();
        let namespaces =
            whole.lines().filter(|line| !line.is_empty()).take(MAX_NAMESPACES).map(str::to_owned).collect();
        Grants { path, namespaces }
    }

    pub(super) fn has(&self, namespace: &str) -> bool {
        self.namespaces.iter().any(|granted| granted == namespace)
    }

    /// Adds a namespace, first to the file and then in memory, so that the grant survives a restart.
    pub(super) fn add(&mut self, namespace: &str) -> io::Result<()> {
        if self.has(namespace) {
            return Ok(());
        }
        if self.namespaces.len() >= MAX_NAMESPACES {
            self.namespaces.remove(0);
            self.namespaces.push(namespace.to_owned());
            return fs::write(
                &self.path,
                self.namespaces.iter().map(|granted| format!("{granted}\n")).collect::<String>(),
            );
        }
        let mut file = OpenOptions::new().create(true).append(true).open(&self.path)?;
        file.write_all(format!("{namespace}\n").as_bytes())?;
        self.namespaces.push(namespace.to_owned());
        Ok(())
    }

    /// Removes all grants of the artifact.
    pub(super) fn remove(&self) -> io::Result<()> {
        match fs::remove_file(&self.path) {
            Err(cause) if cause.kind() != ErrorKind::NotFound => Err(cause),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grants_survive_a_restart_and_a_truncated_line_grants_nothing() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("sha256-1");
        let mut grants = Grants::read(path.clone());
        assert!(!grants.has("team-a"));
        for namespace in ["team-a", "team-b", "team-a"] {
            grants.add(namespace).expect("written");
        }
        assert_eq!(fs::read_to_string(&path).expect("a file"), "team-a\nteam-b\n");
        fs::write(&path, "team-a\nteam-bc").expect("written");
        let again = Grants::read(path.clone());
        assert_eq!([again.has("team-a"), again.has("team-b"), again.has("team-bc")], [true, false, false]);
        again.remove().expect("removed");
        assert!(!Grants::read(path).has("team-a"));
        again.remove().expect("removing it again succeeds");
    }

    #[test]
    fn the_oldest_grant_is_evicted_at_the_limit() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("sha256-1");
        let mut grants = Grants::read(path.clone());
        (0..=MAX_NAMESPACES).for_each(|number| grants.add(&format!("n{number}")).expect("written"));
        for grants in [grants, Grants::read(path)] {
            assert_eq!((grants.namespaces.len(), grants.has("n0"), grants.has("n1024")), (MAX_NAMESPACES, false, true));
        }
    }
}

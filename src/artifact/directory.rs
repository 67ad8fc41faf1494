//! A directory inside an artifact, for example the directory that contains a Pulumi program.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use super::quote::quoted;

/// Maximum length of a directory path, in bytes. The value equals the default length limit for entry names in an
/// archive.
const MAX_LENGTH: usize = 1024;

/// A normalized relative path of a directory: `./a/./b/` becomes `a/b`, and the root of the artifact is the empty
/// string. The path cannot point outside the artifact. As in the Pulumi Kubernetes Operator, a path with a leading
/// slash is also relative to the root of the artifact.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Directory(String);

/// The reason why a string is not a valid directory path inside an artifact.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DirectoryError {
    #[error("directory {directory} must not contain \"..\"")]
    Parent { directory: String },
    #[error("directory {directory} must not contain a backslash")]
    Backslash { directory: String },
    #[error("directory {directory} must not contain a NUL character")]
    Nul { directory: String },
    #[error("directory {directory} must not exceed {MAX_LENGTH} bytes, but has {length}")]
    TooLong { directory: String, length: usize },
}

impl Directory {
    /// Returns the root of the artifact.
    pub fn root() -> Self {
        Self::default()
    }

    pub fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the normalized path, which is empty for the root.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the path of this directory after the artifact is unpacked into `root`.
    pub fn under(&self, root: &Path) -> PathBuf {
        if self.is_root() { root.to_owned() } else { root.join(&self.0) }
    }
}

impl FromStr for Directory {
    type Err = DirectoryError;

    fn from_str(text: &str) -> Result<Self, DirectoryError> {
        let directory = || quoted(text);
        if text.len() > MAX_LENGTH {
            return Err(DirectoryError::TooLong { directory: directory(), length: text.len() });
        }
        if text.contains('\0') {
            return Err(DirectoryError::Nul { directory: directory() });
        }
        if text.contains('\\') {
            return Err(DirectoryError::Backslash { directory: directory() });
        }
        let components: Vec<&str> = text.split('/').filter(|part| !matches!(*part, "" | ".")).collect();
        if components.contains(&"..") {
            return Err(DirectoryError::Parent { directory: directory() });
        }
        Ok(Self(components.join("/")))
    }
}

/// Formats the root as `.`. Parsing `.` returns the root again.
impl fmt::Display for Directory {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(if self.is_root() { "." } else { &self.0 })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_source_directory_is_normalized() {
        let table = [
            ("", ""),
            (".", ""),
            ("./", ""),
            (".//.", ""),
            ("a", "a"),
            ("./a/./b/", "a/b"),
            ("a//b", "a/b"),
            ("/", ""),
            ("/a/b", "a/b"),
            ("..a/b..", "..a/b.."),
            ("infra/größe", "infra/größe"),
        ];
        for (text, normal) in table {
            let directory: Directory = text.parse().unwrap();
            assert_eq!(directory.as_str(), normal, "{text}");
            assert_eq!(directory.to_string().parse(), Ok(directory));
        }
    }

    #[test]
    fn the_error_for_an_invalid_directory_states_the_reason() {
        let long = "a/".repeat(600);
        let table = [
            ("/..", "must not contain \"..\""),
            ("..", "directory \"..\" must not contain \"..\""),
            ("a/../b", "must not contain \"..\""),
            ("a/..", "must not contain \"..\""),
            ("a\\b", "must not contain a backslash"),
            ("a\0b", "must not contain a NUL"),
            (long.as_str(), "has 1200"),
        ];
        for (text, message) in table {
            let error = text.parse::<Directory>().expect_err(text).to_string();
            assert!(error.contains(message), "{text}: {error}");
        }
    }

    #[test]
    fn a_directory_is_resolved_under_the_unpack_root() {
        let root = Path::new("/share/source");
        assert_eq!(Directory::root().under(root), root);
        assert_eq!("a/b".parse::<Directory>().unwrap().under(root), Path::new("/share/source/a/b"));
    }

    proptest! {
        #[test]
        fn any_text_is_a_directory_inside_the_root_or_is_rejected(text in "[a./\\\\\0\n]*|.*") {
            if let Ok(directory) = text.parse::<Directory>() {
                prop_assert!(!directory.as_str().starts_with('/'));
                prop_assert!(directory.as_str().split('/').all(|part| part != ".." && part != "."));
                prop_assert_eq!(directory.as_str().parse::<Directory>(), Ok(directory.clone()));
            }
        }
    }
}

//! The revision of an artifact in the Flux format (RFC-0005): `[<name>@]<algorithm>:<checksum>`.

use std::fmt;

/// Number of checksum characters that messages contain.
const SHORT_CHECKSUM: usize = 8;

/// The revision of an artifact. The artifact's producer chooses the format, so every string is a valid revision. A
/// string without a checksum is a name. Two revisions are equal if their strings are equal.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Revision {
    text: String,
    name: Option<String>,
    checksum: Option<(String, String)>,
}

impl Revision {
    /// Parses a revision. The checksum follows the last `@`, because branch names can contain `@`.
    pub fn parse(text: &str) -> Self {
        let (name, checksum) = match text.rsplit_once('@') {
            Some((name, rest)) if split_checksum(rest).is_some() => (name, split_checksum(rest)),
            None if split_checksum(text).is_some() => ("", split_checksum(text)),
            _ => (text, None),
        };
        Self { text: text.to_owned(), name: (!name.is_empty()).then(|| name.to_owned()), checksum }
    }

    /// Returns the original string.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns the name before the checksum: a branch, a tag or a version. Returns `None` if the revision contains no
    /// name.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Returns the checksum algorithm, for example `sha1` for a Git commit or `sha256` for an OCI manifest.
    pub fn algorithm(&self) -> Option<&str> {
        self.checksum.as_ref().map(|(algorithm, _)| algorithm.as_str())
    }

    /// Returns the digits of the checksum, for example a complete Git commit hash.
    pub fn checksum(&self) -> Option<&str> {
        self.checksum.as_ref().map(|(_, digits)| digits.as_str())
    }

    /// Returns the revision with a short checksum for messages, for example `main@sha1:1a2b3c4d`.
    pub fn short(&self) -> String {
        let Some((algorithm, digits)) = &self.checksum else { return self.text.clone() };
        let digits: String = digits.chars().take(SHORT_CHECKSUM).collect();
        match &self.name {
            Some(name) => format!("{name}@{algorithm}:{digits}"),
            None => format!("{algorithm}:{digits}"),
        }
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.text)
    }
}

fn split_checksum(text: &str) -> Option<(String, String)> {
    let (algorithm, digits) = text.split_once(':')?;
    (!algorithm.is_empty() && !digits.is_empty()).then(|| (algorithm.to_owned(), digits.to_owned()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_flux_revision_format_is_parsed() {
        let commit = "1a2b3c4d5e6f708192a3b4c5d6e7f8091a2b3c4d";
        let table = [
            (format!("main@sha1:{commit}"), Some("main"), Some("sha1"), Some(commit), "main@sha1:1a2b3c4d"),
            (format!("v1.2.3@sha1:{commit}"), Some("v1.2.3"), Some("sha1"), Some(commit), "v1.2.3@sha1:1a2b3c4d"),
            (
                format!("refs/pull/420/head@sha1:{commit}"),
                Some("refs/pull/420/head"),
                Some("sha1"),
                Some(commit),
                "refs/pull/420/head@sha1:1a2b3c4d",
            ),
            (format!("me@home@sha1:{commit}"), Some("me@home"), Some("sha1"), Some(commit), "me@home@sha1:1a2b3c4d"),
            (format!("sha1:{commit}"), None, Some("sha1"), Some(commit), "sha1:1a2b3c4d"),
            (format!("@sha1:{commit}"), None, Some("sha1"), Some(commit), "sha1:1a2b3c4d"),
            ("latest@sha256:abc".to_owned(), Some("latest"), Some("sha256"), Some("abc"), "latest@sha256:abc"),
            ("6.0.3+1".to_owned(), Some("6.0.3+1"), None, None, "6.0.3+1"),
            ("me@home".to_owned(), Some("me@home"), None, None, "me@home"),
            ("main@sha1:".to_owned(), Some("main@sha1:"), None, None, "main@sha1:"),
            (String::new(), None, None, None, ""),
        ];
        for (text, name, algorithm, checksum, short) in table {
            let revision = Revision::parse(&text);
            assert_eq!(
                (revision.name(), revision.algorithm(), revision.checksum(), revision.short().as_str()),
                (name, algorithm, checksum, short),
                "{text}"
            );
        }
    }

    proptest! {
        #[test]
        fn any_text_is_a_valid_revision_and_is_preserved(text in ".*") {
            let revision = Revision::parse(&text);
            prop_assert_eq!(revision.to_string(), text.clone());
            prop_assert!(revision.short().len() <= text.len());
        }
    }
}

//! Resolves a branch, tag, commit or version range to a commit. This module performs no I/O.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::source::git::budget::one_line;
use crate::source::git::error::GitError;
use crate::source::git::semver_range::SemverRange;

/// Maximum number of names that a message lists.
const MAX_LISTED: usize = 10;
/// Maximum length of a branch or tag name, in bytes.
const MAX_NAME: usize = 1024;
/// Prefix of full tag names.
const TAGS: &str = "refs/tags/";

/// A Git reference from a follower's spec.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Reference {
    /// The short or full name of a branch or tag.
    Name(String),
    /// The complete hash of a commit.
    Commit(String),
    /// A version range, which resolves to the tag with the highest version in the range.
    Semver(SemverRange),
}

/// A reference in the server's response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    pub name: String,
    /// Hash of the commit. For an annotated tag, the hash of the commit to which the tag points.
    pub commit: String,
}

/// The commit to which a reference resolves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tip {
    /// The short name of a branch or tag, or the full name of another reference. `None` for a commit hash.
    pub name: Option<String>,
    pub commit: String,
    /// Whether `name` is a tag name.
    pub is_tag: bool,
}

impl Tip {
    /// Returns whether the commit has the format of a hash and whether the name contains only characters that are safe
    /// to display.
    pub fn is_well_formed(&self) -> bool {
        let is_hash = matches!(self.commit.len(), 40 | 64) && self.commit.bytes().all(|b| b.is_ascii_hexdigit());
        let is_name = |name: &String| name.len() <= MAX_NAME && !name.contains(char::is_control);
        is_hash && self.name.as_ref().is_none_or(is_name)
    }

    /// Returns the revision in the Flux format, for example `main@sha1:…`.
    pub fn revision(&self) -> String {
        let algorithm = if self.commit.len() == 64 { "sha256" } else { "sha1" };
        match &self.name {
            Some(name) => format!("{name}@{algorithm}:{}", self.commit),
            None => format!("{algorithm}:{}", self.commit),
        }
    }
}

impl Reference {
    /// Returns [`Reference::Commit`] if the string is a complete hash, and [`Reference::Name`] otherwise.
    pub fn commit_or_name(text: &str) -> Self {
        let text = text.trim();
        let is_hash = matches!(text.len(), 40 | 64) && text.bytes().all(|b| b.is_ascii_hexdigit());
        if is_hash { Reference::Commit(text.to_ascii_lowercase()) } else { Reference::Name(text.to_owned()) }
    }

    /// Returns the name prefixes of the references to request from the server. The response may also contain other
    /// references.
    pub fn prefixes(&self) -> Vec<String> {
        match self {
            Reference::Name(name) if name.starts_with("refs/") || name == "HEAD" => vec![name.clone()],
            Reference::Name(name) => vec![format!("refs/heads/{name}"), format!("refs/tags/{name}"), name.clone()],
            Reference::Semver(_) => vec![TAGS.to_owned()],
            Reference::Commit(_) => Vec::new(),
        }
    }

    /// Returns the commit to which this reference resolves, or `None` if `listed` does not contain the reference.
    /// Processes one entry of `listed` at a time and keeps only the best match in memory.
    pub fn select(&self, listed: impl IntoIterator<Item = Listed>) -> Option<Tip> {
        match self {
            Reference::Commit(hash) => Some(Tip { name: None, commit: hash.clone(), is_tag: false }),
            Reference::Name(name) => {
                let candidates = [name.clone(), format!("refs/heads/{name}"), format!("refs/tags/{name}")];
                let rank = |entry: &Listed| candidates.iter().position(|full| entry.name == *full);
                let found = listed.into_iter().filter_map(|entry| Some((rank(&entry)?, entry)));
                let (_, found) = found.min_by_key(|(rank, _)| *rank)?;
                let is_tag = found.name.starts_with(TAGS);
                Some(Tip { name: Some(short(&found.name).to_owned()), commit: found.commit, is_tag })
            }
            Reference::Semver(range) => {
                let tags = listed.into_iter().filter_map(|entry| {
                    let tag = entry.name.strip_prefix(TAGS)?.to_owned();
                    Some((tag, entry.commit))
                });
                let (tag, commit) = range.highest(tags)?;
                Some(Tip { name: Some(tag), commit, is_tag: true })
            }
        }
    }

    /// Returns the error for a reference that the server does not list. The message lists existing references.
    pub fn missing(&self, all: impl IntoIterator<Item = Listed>) -> GitError {
        let (what, prefix) = match self {
            Reference::Semver(_) => ("tags", TAGS),
            _ => ("branches", "refs/heads/"),
        };
        let (mut is_empty, mut first, mut more) = (true, Vec::new(), 0_u64);
        for entry in all {
            is_empty = false;
            match entry.name.strip_prefix(prefix) {
                Some(name) if first.len() < MAX_LISTED => first.push(name.to_owned()),
                Some(_) => more += 1,
                None => {}
            }
        }
        if is_empty {
            return GitError::Empty;
        }
        let shown = one_line(&first.join(", "));
        let existing = match (first.is_empty(), more) {
            (true, _) => format!("no {what} exist"),
            (false, 0) => format!("existing {what}: {shown}"),
            (false, more) => format!("existing {what}: {shown} and {more} more"),
        };
        GitError::Reference(format!("repository has no {self}: {existing}"))
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reference::Name(name) => write!(f, "branch or tag {name}"),
            Reference::Commit(hash) => write!(f, "commit {hash}"),
            Reference::Semver(range) => write!(f, "tag in the range {range}"),
        }
    }
}

fn short(name: &str) -> &str {
    name.strip_prefix("refs/heads/").or_else(|| name.strip_prefix(TAGS)).unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
    const B: &str = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb";

    fn listed(entries: &[(&str, &str)]) -> Vec<Listed> {
        entries.iter().map(|(name, commit)| Listed { name: (*name).to_owned(), commit: (*commit).to_owned() }).collect()
    }

    fn name(name: &str) -> Reference {
        Reference::commit_or_name(name)
    }

    #[test]
    fn a_short_or_full_name_is_found_and_a_branch_precedes_a_tag() {
        let all = listed(&[
            ("HEAD", A),
            ("refs/heads/main", A),
            ("refs/heads/feature/x", B),
            ("refs/heads/both", A),
            ("refs/tags/both", B),
            ("refs/tags/v1", B),
            ("refs/pull/7/head", B),
        ]);
        let rows = [
            ("main", format!("main@sha1:{A}")),
            ("refs/heads/main", format!("main@sha1:{A}")),
            ("feature/x", format!("feature/x@sha1:{B}")),
            ("both", format!("both@sha1:{A}")),
            ("refs/tags/both", format!("both@sha1:{B}")),
            ("v1", format!("v1@sha1:{B}")),
            ("refs/pull/7/head", format!("refs/pull/7/head@sha1:{B}")),
            ("HEAD", format!("HEAD@sha1:{A}")),
            (A, format!("sha1:{A}")),
        ];
        for (text, expected) in rows {
            let tip = name(text).select(all.clone()).unwrap_or_else(|| panic!("{text}"));
            assert_eq!(tip.revision(), expected);
            assert_eq!(tip.is_tag, text.ends_with("v1") || text == "refs/tags/both", "{text}");
        }
        assert_eq!(name("x").select(all.clone()), None);
        assert_eq!(name("heads/main").select(all.clone()), None);
    }

    #[test]
    fn only_a_full_length_hash_is_a_commit() {
        assert_eq!(name(&A.to_uppercase()), Reference::Commit(A.to_owned()));
        let most: String = A.chars().skip(1).collect();
        assert_eq!(name(&most), Reference::Name(most));
        let long = "c".repeat(64);
        assert_eq!(name(&long).select([]).map(|tip| tip.revision()), Some(format!("sha256:{long}")));
    }

    #[test]
    fn a_semver_range_selects_the_highest_tag() {
        let all =
            listed(&[("refs/heads/9.0.0", A), ("refs/tags/v1.2.0", A), ("refs/tags/v1.10.0", B), ("refs/tags/x", A)]);
        let range = Reference::Semver(SemverRange::parse("1.x").unwrap());
        assert_eq!(range.select(all.clone()).map(|tip| tip.revision()), Some(format!("v1.10.0@sha1:{B}")));
        let none = Reference::Semver(SemverRange::parse(">=2").unwrap());
        assert_eq!(none.select(all.clone()), None);
        let message = none.missing(all).to_string();
        assert_eq!(message, "repository has no tag in the range >=2: existing tags: v1.2.0, v1.10.0, x");
    }

    #[test]
    fn a_missing_reference_is_reported_with_the_existing_references() {
        let message = |entries: &[(&str, &str)]| name("dev").missing(listed(entries)).to_string();
        assert_eq!(
            message(&[("HEAD", A), ("refs/heads/main", A)]),
            "repository has no branch or tag dev: existing branches: main"
        );
        assert_eq!(message(&[("refs/tags/v1", A)]), "repository has no branch or tag dev: no branches exist");
        assert!(message(&[]).starts_with("repository is empty"));
        let many: Vec<(String, &str)> = (0..12).map(|n| (format!("refs/heads/b{n}"), A)).collect();
        let many: Vec<(&str, &str)> = many.iter().map(|(name, commit)| (name.as_str(), *commit)).collect();
        assert!(message(&many).ends_with("b9 and 2 more"), "{}", message(&many));
    }

    #[test]
    fn invalid_commits_and_reference_names_are_rejected() {
        let tip = |name: Option<&str>, commit: &str| Tip {
            name: name.map(str::to_owned),
            commit: commit.to_owned(),
            is_tag: false,
        };
        assert!(tip(Some("main"), A).is_well_formed() && tip(None, &"c".repeat(64)).is_well_formed());
        for (name, commit) in
            [(None, "a"), (Some("a\nb"), A), (Some("main"), "../../etc"), (Some(&*"a".repeat(2000)), A)]
        {
            assert!(!tip(name, commit).is_well_formed(), "{name:?} {commit}");
        }
    }
}

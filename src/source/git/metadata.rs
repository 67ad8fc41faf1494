//! Git metadata of a source. A state backend can show this metadata in the update history. This module performs no I/O.

use gix_object::CommitRefIter;
use url::Url;

use crate::api::auto::SourceMetadata;
use crate::artifact::{Directory, Revision};
use crate::source::git::reference::Tip;
use crate::source::git::spec::RepositorySpec;
use crate::source::git::url::RepositoryUrl;

/// Maximum number of bytes to read from a string in a commit. This maximum exceeds the limits for all metadata fields.
const MAX_READ: usize = 4096;
/// Prefix of full reference names.
const FULL_NAME: &str = "refs/";
/// Name of the reference that points to the default branch. The branch name itself is unknown.
const DEFAULT_BRANCH: &str = "HEAD";

/// Returns a commit's author, committer and message. Omits invalid strings.
pub(super) fn of_commit(commit: &[u8], hash: gix_hash::Kind) -> SourceMetadata {
    let fields = || CommitRefIter::from_bytes(commit, hash);
    let (author, committer) = (fields().author().ok(), fields().committer().ok());
    let metadata = SourceMetadata {
        message: fields().message().ok().map(|message| text(message.trim_ascii_start())),
        author: author.map(|author| text(author.name)),
        author_email: author.map(|author| text(author.email)),
        committer: committer.map(|committer| text(committer.name)),
        committer_email: committer.map(|committer| text(committer.email)),
        ..SourceMetadata::default()
    };
    metadata.bounded()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes.get(..MAX_READ).unwrap_or(bytes)).into_owned()
}

/// Returns the metadata for a commit in a repository that the controller polls. `commit` contains the commit's author,
/// committer and message, if known.
pub(super) fn of_tip(spec: &RepositorySpec, tip: &Tip, commit: SourceMetadata) -> SourceMetadata {
    let metadata = SourceMetadata {
        repository_url: Some(spec.key.repository.to_string()),
        head: Some(tip.commit.clone()),
        head_name: tip.name.as_deref().and_then(|name| full_name(name, tip.is_tag)),
        directory: Some(directory_name(&spec.directory)),
        ..commit
    };
    metadata.bounded()
}

/// Returns the full name of a branch or tag. Returns `None` for the default branch, whose name is unknown.
pub fn full_name(name: &str, is_tag: bool) -> Option<String> {
    match name {
        DEFAULT_BRANCH => None,
        full if full.starts_with(FULL_NAME) => Some(full.to_owned()),
        tag if is_tag => Some(format!("refs/tags/{tag}")),
        branch => Some(format!("refs/heads/{branch}")),
    }
}

/// Returns the directory in the CLI format, in which `.` is the root.
pub fn directory_name(directory: &Directory) -> String {
    if directory.is_root() { ".".to_owned() } else { directory.as_str().to_owned() }
}

/// Returns the name and the commit from a revision in the Flux format, or the commit from a revision that consists only
/// of the hash. Returns `None` if the revision contains no Git commit hash.
pub fn name_and_commit(revision: &str) -> Option<(Option<String>, String)> {
    let revision = Revision::parse(revision);
    let (name, commit) = match revision.checksum() {
        Some(checksum) => (revision.name(), checksum),
        None => (None, revision.as_str()),
    };
    let is_hash = matches!(commit.len(), 40 | 64) && commit.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_hash.then(|| (name.map(str::to_owned), commit.to_owned()))
}

/// Returns a repository URL without a password. Also removes the user name from an HTTP URL, because the user name can
/// be a token. Returns `None` if the string is not a Git repository URL.
pub fn repository_url(text: &str) -> Option<String> {
    let parsed = match Url::parse(text.trim()) {
        Ok(mut url) if url.password().is_some() => {
            url.set_password(None).ok()?;
            RepositoryUrl::parse(url.as_str())
        }
        _ => RepositoryUrl::parse(text),
    };
    parsed.ok().map(|url| url.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";

    #[test]
    fn the_head_of_a_revision_is_a_commit_and_a_full_reference_name() {
        let long = "b".repeat(64);
        let rows = [
            (format!("main@sha1:{A}"), false, Some((A, Some("refs/heads/main")))),
            (format!("feature/x@sha1:{A}"), false, Some((A, Some("refs/heads/feature/x")))),
            (format!("v1.2.3@sha1:{A}"), true, Some((A, Some("refs/tags/v1.2.3")))),
            (format!("refs/pull/7/head@sha1:{A}"), true, Some((A, Some("refs/pull/7/head")))),
            (format!("main@sha256:{long}"), false, Some((long.as_str(), Some("refs/heads/main")))),
            (format!("HEAD@sha1:{A}"), false, Some((A, None))),
            (format!("sha1:{A}"), false, Some((A, None))),
            (A.to_owned(), false, Some((A, None))),
            ("main@sha1:abc".to_owned(), false, None),
            ("6.0.3+1".to_owned(), false, None),
            (String::new(), false, None),
        ];
        for (revision, is_tag, expected) in rows {
            let found = name_and_commit(&revision).map(|(name, commit)| (commit, name));
            let found = found.map(|(commit, name)| (commit, name.and_then(|name| full_name(&name, is_tag))));
            let found = found.as_ref().map(|(commit, name)| (commit.as_str(), name.as_deref()));
            assert_eq!(found, expected, "{revision}");
        }
    }

    #[test]
    fn the_author_the_committer_and_the_title_of_a_commit_are_read() {
        let commit = |message: &str| {
            let author = "Ada \u{1b} Lovelace <ada@example.com> 1700000000 +0100";
            let committer = "GitHub <noreply@github.com> 1700000001 +0000";
            format!("tree {A}\nparent {A}\nauthor {author}\ncommitter {committer}\n\n{message}")
        };
        let expected = SourceMetadata {
            message: Some("Add a bucket".to_owned()),
            author: Some("Ada  Lovelace".to_owned()),
            author_email: Some("ada@example.com".to_owned()),
            committer: Some("GitHub".to_owned()),
            committer_email: Some("noreply@github.com".to_owned()),
            ..SourceMetadata::default()
        };
        let found = |text: &str| of_commit(text.as_bytes(), gix_hash::Kind::Sha1);
        assert_eq!(found(&commit("Add a bucket\n\nIt stores logs.\n")), expected);
        assert_eq!(found(&commit("\n\nAdd a bucket")), expected);
        let long = found(&commit(&"ä".repeat(100_000))).message;
        assert_eq!(long.map(|message| message.len()), Some(1024), "a long message is truncated");
        assert_eq!(found("nonsense"), SourceMetadata::default());
    }

    #[test]
    fn a_repository_url_contains_no_credentials() {
        let rows = [
            ("https://github.com/acme/web.git", Some("https://github.com/acme/web.git")),
            ("https://me:token@github.com/acme/web", Some("https://github.com/acme/web")),
            ("https://token@github.com/acme/web", Some("https://github.com/acme/web")),
            ("ssh://git:word@github.com/acme/web", Some("ssh://git@github.com/acme/web")),
            ("ssh://git@github.com/acme/web", Some("ssh://git@github.com/acme/web")),
            ("git@github.com:acme/web.git", Some("git@github.com:acme/web.git")),
            ("https://github.com/acme/web?token=word", None),
            ("oci://ghcr.io/acme/web", None),
            ("web", None),
            ("", None),
        ];
        for (text, expected) in rows {
            assert_eq!(repository_url(text).as_deref(), expected, "{text}");
        }
    }
}

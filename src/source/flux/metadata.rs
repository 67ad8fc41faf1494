//! Git metadata for artifacts that Flux sources provide.

use std::collections::BTreeMap;

use kube::api::DynamicObject;
use serde_json::Value;

use crate::api::auto::SourceMetadata;
use crate::artifact::Directory;
use crate::source::git::{directory_name, full_name, name_and_commit, repository_url};

/// Metadata key whose value is the revision from which an artifact was built. Flux copies the metadata from the OCI
/// manifest.
pub(super) const ORIGIN_REVISION: &str = "org.opencontainers.image.revision";
/// Metadata key whose value is the URL of the Git repository from which an artifact was built.
const ORIGIN: &str = "org.opencontainers.image.source";

/// Returns the metadata for an artifact that a GitRepository provides.
pub(super) fn of_repository(object: &DynamicObject, revision: &str, directory: &Directory) -> Option<SourceMetadata> {
    let field = |pointer: &str| object.data.pointer(pointer).and_then(Value::as_str).filter(|text| !text.is_empty());
    // In Flux, the commit takes precedence over the tag. If the spec sets the commit, the name in the revision is a
    // branch.
    let is_tag = field("/spec/ref/commit").is_none()
        && (field("/spec/ref/semver").is_some() || field("/spec/ref/tag").is_some());
    let (name, head) = name_and_commit(revision).unzip();
    let metadata = SourceMetadata {
        repository_url: field("/spec/url").and_then(repository_url),
        head,
        head_name: name.flatten().and_then(|name| full_name(&name, is_tag)),
        directory: Some(directory_name(directory)),
        ..SourceMetadata::default()
    };
    known(metadata)
}

/// Returns the metadata for an artifact that was built from a Git repository, for example an OCI artifact. The metadata
/// contains no directory, because the project's directory in the repository is unknown.
pub(super) fn of_artifact(artifact: &BTreeMap<String, String>) -> Option<SourceMetadata> {
    let (name, head) = artifact.get(ORIGIN_REVISION).and_then(|revision| name_and_commit(revision)).unzip();
    let metadata = SourceMetadata {
        repository_url: artifact.get(ORIGIN).and_then(|url| repository_url(url)),
        head,
        // The revision does not reveal whether the name is a branch or a tag.
        head_name: name.flatten(),
        ..SourceMetadata::default()
    };
    known(metadata)
}

/// Returns the metadata, or `None` if neither the repository nor the commit is known.
fn known(metadata: SourceMetadata) -> Option<SourceMetadata> {
    let metadata = metadata.bounded();
    (metadata.repository_url.is_some() || metadata.head.is_some()).then_some(metadata)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const A: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";

    fn text(text: &str) -> Option<String> {
        Some(text.to_owned())
    }

    #[test]
    fn a_git_repository_reports_url_commit_and_reference() {
        let rows = [
            (json!({"branch": "main"}), format!("main@sha1:{A}"), "refs/heads/main"),
            (json!({"tag": "v1"}), format!("v1@sha1:{A}"), "refs/tags/v1"),
            (json!({"branch": "main", "semver": "1.x"}), format!("1.2.0@sha1:{A}"), "refs/tags/1.2.0"),
            (json!({"branch": "main", "tag": "v1", "commit": A}), format!("main@sha1:{A}"), "refs/heads/main"),
            (json!({"name": "refs/pull/7/head"}), format!("refs/pull/7/head@sha1:{A}"), "refs/pull/7/head"),
            (json!({"branch": "main", "tag": ""}), format!("main@sha1:{A}"), "refs/heads/main"),
        ];
        for (reference, revision, head_name) in rows {
            let spec = json!({"url": "https://github.com/acme/web", "ref": reference});
            let object = serde_json::from_value(json!({"metadata": {"name": "web"}, "spec": spec})).expect("valid");
            let found = of_repository(&object, &revision, &"infra/prod".parse().expect("valid"));
            let expected = SourceMetadata {
                repository_url: text("https://github.com/acme/web"),
                head: text(A),
                head_name: text(head_name),
                directory: text("infra/prod"),
                ..SourceMetadata::default()
            };
            assert_eq!(found, Some(expected), "{reference}");
        }
        let empty = serde_json::from_value(json!({"metadata": {"name": "web"}})).expect("valid");
        assert_eq!(of_repository(&empty, "1", &Directory::root()), None);
    }

    #[test]
    fn an_artifact_in_a_registry_reports_its_repository_and_commit() {
        let url = "https://github.com/acme/web.git";
        let rows = [
            (json!({ORIGIN_REVISION: format!("main@sha1:{A}"), ORIGIN: url}), Some((text(url), text(A), text("main")))),
            (json!({ORIGIN_REVISION: A, ORIGIN: url}), Some((text(url), text(A), None))),
            (json!({ORIGIN: url}), Some((text(url), None, None))),
            (json!({ORIGIN_REVISION: "1.2.0", ORIGIN: "me"}), None),
            (json!({}), None),
        ];
        for (metadata, expected) in rows {
            let artifact = serde_json::from_value(metadata.clone()).expect("a map");
            let found = of_artifact(&artifact);
            assert_eq!(found.map(|found| (found.repository_url, found.head, found.head_name)), expected, "{metadata}");
        }
    }
}

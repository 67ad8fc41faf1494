//! Tests for parsing references and for reading artifacts from a source's status.

use serde_json::json;

use super::*;

const DIGEST: &str = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

fn reference(api_version: Option<&str>, kind: &str, dir: Option<&str>) -> FluxSource {
    let source_ref = SourceReference {
        api_version: api_version.map(str::to_owned),
        kind: kind.to_owned(),
        name: "app".to_owned(),
        namespace: None,
    };
    FluxSource { source_ref, dir: dir.map(str::to_owned) }
}

#[test]
fn a_source_is_selected_by_group_and_kind_regardless_of_version() {
    let rows = [
        (None, "GitRepository", GROUP),
        (None, "OCIRepository", GROUP),
        (None, "Bucket", GROUP),
        (None, "ExternalArtifact", GROUP),
        (Some("source.toolkit.fluxcd.io/v1"), "GitRepository", GROUP),
        (Some("source.toolkit.fluxcd.io/v1beta1"), "Bucket", GROUP),
        (Some("source.toolkit.fluxcd.io/v1beta2"), "OCIRepository", GROUP),
        (Some("source.toolkit.fluxcd.io/v7"), "HelmChart", GROUP),
        (Some("artifacts.example.com/v1alpha1"), "Report", "artifacts.example.com"),
        (Some("artifacts.example.com/v1alpha1"), "Bucket", "artifacts.example.com"),
    ];
    for (api_version, kind, group) in rows {
        let source = reference(api_version, kind, Some("./app/"));
        let parsed = Reference::parse(&source).expect("valid reference");
        let expected = GroupKind::new(group, kind);
        assert_eq!(parsed.kind, expected);
        assert_eq!((parsed.name.as_str(), parsed.directory.as_str()), ("app", "app"));
        assert_eq!(kind_of(&source.source_ref), Some(expected), "a watch on {api_version:?} {kind} requeues the Stack");
    }
}

#[test]
fn an_unresolvable_source_reference_is_invalid() {
    let rows = [
        (
            None,
            "HelmChart",
            None,
            "\"HelmChart\": must be one of GitRepository, OCIRepository, Bucket, ExternalArtifact",
        ),
        (None, "Secret", None, "sourceRef.apiVersion"),
        (Some("v1"), "Secret", None, "\"v1\": must have the form GROUP/VERSION"),
        (Some(""), "GitRepository", None, "must have the form GROUP/VERSION"),
        (Some("/v1"), "GitRepository", None, "must have the form GROUP/VERSION"),
        (Some("group.example.com/"), "Thing", None, "must have the form GROUP/VERSION"),
        (Some("a/b/c"), "Thing", None, "must have the form GROUP/VERSION"),
        (None, "Bucket", Some("../up"), "invalid spec.fluxSource.dir"),
    ];
    for (api_version, kind, dir, expected) in rows {
        match Reference::parse(&reference(api_version, kind, dir)) {
            Err(Unavailable::Invalid(message)) => {
                assert!(message.contains(expected), "{message:?} does not contain {expected:?}")
            }
            other => panic!("{api_version:?} {kind}: {other:?}"),
        }
    }
    for api_version in [None, Some("v1"), Some("")] {
        assert_eq!(kind_of(&reference(api_version, "Secret", None).source_ref), None);
    }
}

fn found(object: Option<serde_json::Value>) -> Found {
    let object = object.map(|status| {
        serde_json::from_value(json!({"metadata": {"name": "app", "generation": 2}, "status": status}))
            .expect("JSON object")
    });
    let resource = ApiResource::erase::<crate::api::pulumi::Stack>(&());
    Found { resource, what: "Bucket apps/app".to_owned(), object }
}

#[test]
fn an_artifact_is_used_regardless_of_the_ready_condition() {
    let resolved = found(Some(json!({
        "observedGeneration": 2,
        "conditions": [{"type": "Ready", "status": "False", "message": "upstream is down"}],
        "artifact": {"url": "http://s/a.tar.gz", "revision": "main@sha1:1", "digest": DIGEST},
    })))
    .artifact(Directory::root());
    assert_eq!(resolved.map(|r| r.revision), Ok("main@sha1:1".to_owned()));
}

#[test]
fn a_source_without_observed_generation_is_accepted() {
    let artifact = json!({"url": "http://s/a.tar.gz", "revision": "latest@sha256:1", "digest": DIGEST});
    for status in [json!({"artifact": artifact}), json!({"observedGeneration": -1, "artifact": artifact})] {
        assert!(found(Some(status)).artifact(Directory::root()).is_ok());
    }
}

#[test]
fn unusable_sources_are_reported_as_not_ready_or_stalled() {
    let artifact = |digest: &str| json!({"url": "http://s/a.tar.gz", "revision": "r", "digest": digest});
    let rows = [
        (None, "does not exist", true),
        (Some(json!({})), "has no artifact yet", false),
        (Some(json!({"artifact": null})), "has no artifact yet", false),
        (
            Some(json!({"conditions": [{"type": "Ready", "status": "False", "message": "auth failed"}]})),
            "has no artifact yet: auth failed",
            false,
        ),
        (
            Some(json!({"conditions": [{"type": "Stalled", "status": "True", "reason": "URLInvalid"}]})),
            "has no artifact yet",
            true,
        ),
        (
            Some(json!({"observedGeneration": 1, "artifact": artifact(DIGEST)})),
            "has no artifact of its current generation",
            false,
        ),
        (
            Some(json!({"observedGeneration": 1, "artifact": artifact(DIGEST), "conditions": [
                {"type": "Ready", "status": "False", "observedGeneration": 2, "message": "couldn't find remote ref"}]})),
            "has no artifact of its current generation yet: couldn't find remote ref",
            false,
        ),
        (Some(json!({"observedGeneration": 2, "artifact": artifact("")})), "invalid artifact of", true),
        (Some(json!({"observedGeneration": 2, "artifact": artifact("sha1:aa")})), "invalid artifact of", true),
        (Some(json!({"artifact": {"url": 1}})), "invalid artifact of Bucket apps/app: status.artifact", true),
        (Some(json!({"artifact": "text"})), "invalid artifact of Bucket apps/app: status.artifact", true),
        (
            Some(
                json!({"artifact": {"url": "u", "revision": "r".repeat(2049), "digest": format!("sha256:{}", "0".repeat(64))}}),
            ),
            "exceeds the limit of 2048 bytes",
            true,
        ),
    ];
    for (status, expected, needs_edit) in rows {
        match found(status).artifact(Directory::root()) {
            Err(error @ (Unavailable::NotYet(_) | Unavailable::Stalled(_))) => {
                let message = error.to_string();
                assert_eq!(matches!(error, Unavailable::Stalled(_)), needs_edit, "{message}");
                assert!(message.contains(expected), "{message:?} does not contain {expected:?}");
                assert!(message.contains("Bucket apps/app"), "{message:?} does not name the source");
            }
            other => panic!("{expected}: {other:?}"),
        }
    }
}

#[test]
fn the_condition_of_an_older_generation_does_not_explain_a_missing_artifact() {
    let artifact = json!({"url": "http://s/a.tar.gz", "revision": "r", "digest": DIGEST});
    let ready = json!({"type": "Ready", "status": "True", "observedGeneration": 1, "message": "stored artifact"});
    let status = json!({"observedGeneration": 1, "artifact": artifact, "conditions": [ready]});
    let error = found(Some(status)).artifact(Directory::root()).expect_err("the artifact is outdated").to_string();
    assert!(error.ends_with("has no artifact of its current generation yet"), "{error}");
}

#[test]
fn the_missing_permission_message_matches_the_shipped_roles() {
    let resource = ApiResource {
        group: "artifacts.example.com".to_owned(),
        version: "v1".to_owned(),
        api_version: "artifacts.example.com/v1".to_owned(),
        kind: "Report".to_owned(),
        plural: "reports".to_owned(),
    };
    let message = missing_permission(&resource, "User \"x\" cannot get resource").to_string();
    let source_reader = include_str!("../../../config/rbac/source-reader.yaml");
    for expected in
        ["User \"x\" cannot get resource", "get, list and watch on reports.artifacts.example.com", LABEL_SOURCE_READER]
    {
        assert!(message.contains(expected), "{message:?} does not contain {expected:?}");
    }
    assert!(
        source_reader.contains(&format!("{LABEL_SOURCE_READER}: \"true\"")),
        "the aggregated ClusterRole selects this label"
    );
    let role = include_str!("../../../config/rbac/flux-sources.yaml");
    for plural in ["gitrepositories", "ocirepositories", "buckets", "externalartifacts"] {
        assert!(role.contains(plural), "{plural} is readable by default");
    }
}

#[test]
fn the_origin_revision_is_read_from_the_artifact_metadata() {
    let origin = |metadata: serde_json::Value| {
        let artifact =
            json!({"url": "http://s/a.tar.gz", "revision": "latest@sha256:1", "digest": DIGEST, "metadata": metadata});
        let status = json!({"observedGeneration": 2, "artifact": artifact});
        found(Some(status)).artifact(Directory::root()).expect("an artifact").origin_revision
    };
    let key = "org.opencontainers.image.revision";
    assert_eq!(
        origin(json!({key: "main@sha1:a", "org.opencontainers.image.source": "x"})).as_deref(),
        Some("main@sha1:a")
    );
    assert_eq!(origin(json!({key: ""})), None);
    assert_eq!(origin(json!({})), None);
}

#[test]
fn the_content_id_depends_on_the_commit_and_the_selected_files() {
    let id = |revision: &str, more: serde_json::Value| {
        let artifact = json!({"url": "http://s/a.tar.gz", "revision": revision, "digest": DIGEST});
        let mut status = json!({"observedGeneration": 2, "artifact": artifact});
        status.as_object_mut().expect("fields").extend(more.as_object().expect("fields").clone());
        found(Some(status)).artifact(Directory::root()).expect("an artifact").content_id
    };
    let commit = "main@sha1:aa";
    let included =
        |revision: &str, digest: &str| json!({"includedArtifacts": [{"revision": revision, "digest": digest}]});
    assert_eq!(id(commit, json!({})).as_deref(), Some("aa"));
    assert_eq!(id(commit, json!({"observedGeneration": 2})), id(commit, json!({})));
    assert_eq!(id("17", json!({})), None, "no checksum");
    let rows = [
        ("another commit", id(commit, json!({})), id("main@sha1:bb", json!({})), false),
        ("other files are ignored", id(commit, json!({})), id(commit, json!({"observedIgnore": "*.md"})), false),
        (
            "an included repository has a new commit",
            id(commit, included("a", "1")),
            id(commit, included("b", "2")),
            false,
        ),
        (
            "an included repository was packed again",
            id(commit, included("a", "1")),
            id(commit, included("a", "2")),
            true,
        ),
    ];
    for (name, one, other, expected) in rows {
        assert_eq!(one == other, expected, "{name}: {one:?} {other:?}");
    }
}

#[test]
fn a_kind_in_a_flag_may_have_a_group_after_a_dot() {
    assert_eq!(parse_kind(" GitRepository"), GroupKind::new(GROUP, "GitRepository"));
    assert_eq!(parse_kind("Report.artifacts.example.com"), GroupKind::new("artifacts.example.com", "Report"));
}

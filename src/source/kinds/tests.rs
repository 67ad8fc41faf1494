//! Tests for looking up kinds in a discovery response.

use serde_json::json;

use super::*;

/// Returns the cache for an API server that serves the Flux sources, a kind in another group, and kinds that cannot be
/// sources.
fn table() -> Table {
    let resource = |plural: &str, kind: &str, scope: &str, verbs: &[&str]| json!({"resource": plural, "responseKind": {"kind": kind}, "scope": scope, "verbs": verbs});
    let all = ["get", "list", "watch", "create"];
    let list = json!({"items": [
        {"metadata": {"name": "source.toolkit.fluxcd.io"}, "versions": [
            {"version": "v1", "resources": [
                resource("gitrepositories", "GitRepository", "Namespaced", &all),
                resource("ocirepositories", "OCIRepository", "Namespaced", &all),
            ]},
            {"version": "v1beta2", "resources": [
                resource("gitrepositories", "GitRepository", "Namespaced", &all),
                resource("buckets", "Bucket", "Namespaced", &all),
            ]},
        ]},
        {"metadata": {"name": "artifacts.example.com"}, "versions": [{"version": "v1alpha1", "resources": [
            resource("charts", "Chart", "Cluster", &all),
            resource("reports", "Report", "Namespaced", &["get", "list"]),
            json!({"resource": "nameless", "scope": "Namespaced", "verbs": all}),
        ]}]},
        {"metadata": {"name": "nothing.example.com"}, "versions": []},
    ]});
    let list = serde_json::from_value(list).expect("valid aggregated discovery");
    Table { served: served(list), ..Table::default() }
}

fn find(group: &str, kind: &str) -> Result<String, Unavailable> {
    let found = table().find(&GroupKind::new(group, kind))?;
    assert_eq!((found.group.as_str(), found.kind.as_str()), (group, kind));
    assert_eq!(found.api_version, format!("{group}/{}", found.version));
    Ok(format!("{} {}", found.plural, found.version))
}

#[test]
fn a_kind_resolves_to_the_preferred_version_of_the_server() {
    let rows = [
        ("GitRepository", "gitrepositories v1"),
        ("OCIRepository", "ocirepositories v1"),
        ("Bucket", "buckets v1beta2"),
    ];
    for (kind, expected) in rows {
        assert_eq!(find("source.toolkit.fluxcd.io", kind), Ok(expected.to_owned()));
    }
}

#[test]
fn an_unserved_kind_is_not_ready_and_an_unsuitable_kind_is_invalid() {
    let not_yet = |text: &str| (false, text.to_owned());
    let invalid = |text: &str| (true, text.to_owned());
    let rows = [
        (
            ("source.toolkit.fluxcd.io", "ExternalArtifact"),
            not_yet(
                "ExternalArtifact.source.toolkit.fluxcd.io: install its CustomResourceDefinition (served kinds of this group: Bucket, GitRepository, OCI",
            ),
        ),
        (
            ("source.toolkit.fluxcd.io", "gitrepository"),
            not_yet("does not serve gitrepository.source.toolkit.fluxcd.io"),
        ),
        (("nowhere.example.com", "Thing"), not_yet("no kinds of this group are served")),
        (("nothing.example.com", "Thing"), not_yet("no kinds of this group are served")),
        (
            ("artifacts.example.com", "Chart"),
            invalid("Chart.artifacts.example.com cannot be the source of a Stack: it is not namespaced"),
        ),
        (("artifacts.example.com", "Report"), invalid("does not support the verb watch")),
    ];
    for ((group, kind), (is_invalid, expected)) in rows {
        let error = find(group, kind).expect_err("should reject the kind");
        assert_eq!(matches!(error, Unavailable::Invalid(_)), is_invalid, "{error:?}");
        assert!(error.to_string().contains(&expected), "{error:?} does not contain {expected:?}");
    }
}

#[test]
fn a_missing_kind_is_reported_once_and_again_when_it_is_served() {
    let flux = |kind: &str| GroupKind::new(crate::source::flux::GROUP, kind);
    let (missing, there) = (flux("ExternalArtifact"), flux("GitRepository"));
    let mut table = table();
    for (looked_for, expected) in [
        (&there, None),
        (&missing, Some(KindChange::Missing)),
        (&missing, None),
        (&there, None),
        (&flux("Nothing"), Some(KindChange::Missing)),
    ] {
        assert_eq!(table.change(looked_for), expected, "{looked_for}");
        assert_eq!(table.find(looked_for).is_ok(), *looked_for == there, "{looked_for}");
    }
    let served = table.served.get(&there).cloned().expect("served kind");
    table.served.insert(missing.clone(), served);
    assert_eq!([table.change(&missing), table.change(&missing)], [Some(KindChange::Served), None]);
    table.served.remove(&missing);
    table.failure = Some("the connection was refused".to_owned());
    assert_eq!(table.change(&missing), None, "unknown");
    table.failure = None;
    assert_eq!(table.change(&missing), Some(KindChange::Missing), "the kind is missing again");
}

#[test]
fn a_failed_discovery_is_not_reported_as_a_missing_kind() {
    let table = Table { failure: Some("the connection was refused".to_owned()), ..table() };
    let expected = GroupKind::new("nowhere.example.com", "Thing");
    let error = table.find(&expected).expect_err("should be unknown").to_string();
    assert!(error.contains("failed to discover Thing"), "{error}");
    assert!(error.contains("the connection was refused"), "{error}");
    assert!(table.find(&GroupKind::new(crate::source::flux::GROUP, "Bucket")).is_ok(), "known kinds stay known");
}

//! Lookup of kinds in a discovery response.

use serde_json::json;

use super::*;

/// Returns the cache for an API server with Flux, another group, and kinds that cannot be sources.
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
    let list = serde_json::from_value(list).expect("it is an answer of aggregated discovery");
    Table { served: served(list), ..Table::default() }
}

fn find(group: &str, kind: &str) -> Result<String, Unavailable> {
    let found = table().find(&GroupKind::new(group, kind))?;
    assert_eq!((found.group.as_str(), found.kind.as_str()), (group, kind));
    assert_eq!(found.api_version, format!("{group}/{}", found.version));
    Ok(format!("{} {}", found.plural, found.version))
}

#[test]
fn a_kind_is_found_in_the_version_that_the_server_prefers() {
    let rows = [
        ("GitRepository", "gitrepositories v1"),
        ("OCIRepository", "ocirepositories v1"),
        ("Bucket", "buckets v1beta2"),
    ];
    for (kind, wanted) in rows {
        assert_eq!(find("source.toolkit.fluxcd.io", kind), Ok(wanted.to_owned()));
    }
}

#[test]
fn a_kind_that_is_not_served_may_come_and_one_that_cannot_be_a_source_is_invalid() {
    let not_yet = |text: &str| (false, text.to_owned());
    let invalid = |text: &str| (true, text.to_owned());
    let rows = [
        (
            ("source.toolkit.fluxcd.io", "ExternalArtifact"),
            not_yet(
                "ExternalArtifact of the group source.toolkit.fluxcd.io; of this group it serves Bucket, GitRepository, OCI",
            ),
        ),
        (("source.toolkit.fluxcd.io", "gitrepository"), not_yet("does not serve gitrepository of the group")),
        (("nowhere.example.com", "Thing"), not_yet("it serves nothing of this group")),
        (("nothing.example.com", "Thing"), not_yet("it serves nothing of this group")),
        (("artifacts.example.com", "Chart"), invalid("Chart of the group artifacts.example.com is not namespaced")),
        (("artifacts.example.com", "Report"), invalid("does not know the verb watch")),
    ];
    for ((group, kind), (is_invalid, wanted)) in rows {
        let error = find(group, kind).expect_err("it is no source");
        assert_eq!(matches!(error, Unavailable::Invalid(_)), is_invalid, "{error:?}");
        assert!(error.to_string().contains(&wanted), "{error:?} does not say {wanted:?}");
    }
}

#[test]
fn a_kind_that_is_missing_is_told_once_and_again_when_it_has_come_and_says_nothing_of_another() {
    let flux = |kind: &str| GroupKind::new(crate::source::flux::GROUP, kind);
    let (missing, there) = (flux("ExternalArtifact"), flux("GitRepository"));
    let mut table = table();
    for (looked_for, wanted) in [
        (&there, None),
        (&missing, Some(ChangeFilter::Missing)),
        (&missing, None),
        (&there, None),
        (&flux("Nothing"), Some(ChangeFilter::Missing)),
    ] {
        assert_eq!(table.news(looked_for), wanted, "{looked_for}");
        assert_eq!(table.find(looked_for).is_ok(), *looked_for == there, "{looked_for}");
    }
    let served = table.served.get(&there).cloned().expect("it is served");
    table.served.insert(missing.clone(), served);
    assert_eq!([table.news(&missing), table.news(&missing)], [Some(ChangeFilter::Served), None]);
    table.served.remove(&missing);
    table.failure = Some("the connection was refused".to_owned());
    assert_eq!(table.news(&missing), None, "nobody knows");
    table.failure = None;
    assert_eq!(table.news(&missing), Some(ChangeFilter::Missing), "it has gone away");
}

#[test]
fn a_server_that_did_not_answer_is_not_said_to_lack_the_kind() {
    let table = Table { failure: Some("the connection was refused".to_owned()), ..table() };
    let wanted = GroupKind::new("nowhere.example.com", "Thing");
    let error = table.find(&wanted).expect_err("it is not known").to_string();
    assert!(error.contains("cannot ask the API server whether it serves Thing"), "{error}");
    assert!(error.contains("the connection was refused"), "{error}");
    assert!(table.find(&GroupKind::new(crate::source::flux::GROUP, "Bucket")).is_ok(), "what was known stays known");
}

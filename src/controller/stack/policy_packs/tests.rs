//! Tests for the policy packs of a Stack.

use super::*;
use crate::api::pulumi::{EnforcementLevel, PolicyExceptionMatch, StackSpec};
use crate::artifact::{Digest, Directory};
use crate::source::Origin;
use crate::source::flux::GROUP;
use crate::source::kinds::GroupKind;

fn pack(name: &str) -> PolicyPack {
    let source_ref =
        SourceReference { kind: "Bucket".to_owned(), name: "policies".to_owned(), ..SourceReference::default() };
    PolicyPack { name: name.to_owned(), source_ref, ..PolicyPack::default() }
}

fn stack(policy_packs: Vec<PolicyPack>) -> Stack {
    let mut stack = Stack::new("web", StackSpec { policy_packs, ..StackSpec::default() });
    stack.metadata.namespace = Some("apps".to_owned());
    stack
}

fn cluster() -> ClusterPack {
    let kind = GroupKind::new(GROUP, "OCIRepository");
    let source = Reference { kind, name: "house".to_owned(), namespace: None, directory: Directory::root() };
    ClusterPack { name: "cluster/house".to_owned(), namespace: "flux-system".to_owned(), source }
}

fn resolved(name: &str, content: &str) -> ResolvedPack {
    let resolved = Resolved {
        origin: Origin::Url("http://source/a.tar.gz".to_owned()),
        revision: "main@sha1:1".to_owned(),
        origin_revision: None,
        metadata: None,
        digest: Digest::of(content.as_bytes()),
        directory: Directory::root(),
        content_id: None,
    };
    let (name, namespace) = (name.to_owned(), "apps".to_owned());
    ResolvedPack { name, namespace, resolved, config: BTreeMap::new(), in_store: true }
}

#[test]
fn a_stack_has_the_packs_of_the_cluster_and_of_its_spec() {
    let config = [("no-public".to_owned(), json!("advisory"))].into();
    let leveled = PolicyPack { enforcement_level: Some(EnforcementLevel::Advisory), config, ..pack("own") };
    let packs = requested(&stack(vec![leveled]), &[cluster()], true).expect("valid packs");
    let found: Vec<_> = packs.iter().map(|pack| (pack.name.as_str(), pack.namespace.as_str())).collect();
    assert_eq!(found, [("cluster/house", "flux-system"), ("own", "apps")]);
    assert_eq!(packs[0].config, BTreeMap::new());
    assert_eq!(json!(packs[1].config), json!({"all": "advisory", "no-public": "advisory"}));
}

fn exception(reason: &str, policy: &str, target: &str) -> PolicyException {
    let matched = PolicyExceptionMatch { policies: vec![policy.to_owned()], targets: vec![target.to_owned()] };
    PolicyException { reason: reason.to_owned(), r#match: vec![matched] }
}

fn excepting(id: &str, exception: PolicyException) -> PolicyPack {
    PolicyPack { exceptions: [(id.to_owned(), exception)].into(), ..pack("own") }
}

const LOGS: &str = "urn:pulumi:dev::web::aws:s3/bucket:Bucket::logs";

#[test]
fn exceptions_require_the_second_format_of_the_configuration_file() {
    let exception = exception("legacy", "no-public", LOGS);
    let leveled = PolicyPack { enforcement_level: Some(EnforcementLevel::Mandatory), ..excepting("EXC-1", exception) };
    let packs = requested(&stack(vec![leveled]), &[], true).expect("valid packs");
    let expected = json!({
        "version": 2,
        "policies": {"all": "mandatory"},
        "exceptions": {
            "EXC-1": {"reason": "legacy", "match": [{"policies": ["no-public"], "targets": [LOGS]}]},
        },
    });
    assert_eq!(json!(packs[0].config), expected);
}

#[test]
fn a_stack_cannot_add_exceptions_to_a_pack_of_the_cluster() {
    let own = excepting("EXC-1", exception("legacy", "no-public", LOGS));
    let packs = requested(&stack(vec![own]), &[cluster()], false).expect("valid packs");
    assert_eq!(packs[0].config, BTreeMap::new(), "only the pack in the spec has the exceptions");
    let repeated = |config: &BTreeMap<String, Value>| ResolvedPack { config: config.clone(), ..resolved("own", "1") };
    let error =
        distinct(vec![resolved("cluster/house", "1"), repeated(&packs[1].config)], 1).expect_err("a repeated pack");
    assert!(error.to_string().contains("which a Stack can neither disable nor configure"), "{error}");
}

#[test]
fn invalid_packs_are_errors_that_name_the_field() {
    let with_dir = |dir: &str| PolicyPack { dir: Some(dir.to_owned()), ..pack("own") };
    let elsewhere = |kind: &str, namespace: Option<&str>| {
        let mut pack = pack("own");
        pack.source_ref.kind = kind.to_owned();
        pack.source_ref.namespace = namespace.map(str::to_owned);
        pack
    };
    let large = PolicyPack { config: [("a".to_owned(), json!("x".repeat(70_000)))].into(), ..pack("own") };
    let configured = |value: Value| PolicyPack { config: [("p".to_owned(), value)].into(), ..pack("own") };
    let rows = [
        (vec![pack("cluster/own")], "invalid spec.policyPacks: a name must"),
        (vec![pack(&"a".repeat(64))], "invalid spec.policyPacks: a name must"),
        (vec![configured(json!("manditory"))], "spec.policyPacks[own].config[p]: the enforcement level \"manditory\""),
        (vec![configured(json!({"enforcementLevel": 1}))], "spec.policyPacks[own].config[p]: enforcementLevel must be"),
        (vec![configured(json!(5))], "spec.policyPacks[own].config[p]: must be an enforcement level or an object"),
        (vec![pack("own"), pack("own")], "spec.policyPacks: duplicate name \"own\""),
        (vec![with_dir("../a")], "spec.policyPacks[own].dir"),
        (vec![with_dir("a,b")], "must not contain commas"),
        (vec![large], "spec.policyPacks[own].config must be at most 65536 bytes"),
        (vec![configured(json!(2))], "invalid spec.policyPacks[own].config[p]: must be an enforcement level or"),
        (vec![excepting("EXC 1", exception("a", "p", LOGS))], "spec.policyPacks[own].exceptions[EXC 1]: the ID must"),
        (vec![excepting("", exception("a", "p", LOGS))], "the ID must consist of"),
        (vec![excepting("a", exception(" ", "p", LOGS))], "spec.policyPacks[own].exceptions[a]: reason is required"),
        (
            vec![excepting("a", PolicyException { reason: "a".to_owned(), r#match: vec![] })],
            "match must contain an entry",
        ),
        (vec![excepting("a", exception("a", "all", LOGS))], "must not contain \"all\""),
        (vec![excepting("a", exception("a", "p", "logs"))], "match[].targets must contain URNs"),
        (vec![excepting("a", exception(&"a".repeat(70_000), "p", LOGS))], "exceptions must be at most 65536 bytes"),
        (vec![elsewhere("Other", None)], "invalid spec.policyPacks[own].sourceRef.kind \"Other\""),
        (vec![elsewhere("Bucket", Some("other"))], "Bucket other/policies is in another namespace"),
    ];
    for (packs, expected) in rows {
        let error = requested(&stack(packs), &[], true).expect_err(expected).to_string();
        assert!(error.contains(expected), "{error}");
    }
    let other = stack(vec![elsewhere("Bucket", Some("other"))]);
    assert_eq!(requested(&other, &[], false).map(|packs| packs.len()), Ok(1), "references are allowed");
}

#[test]
fn a_pack_in_the_spec_cannot_configure_a_pack_of_the_cluster() {
    let in_directory = |name: &str, directory: &str| {
        let mut pack = resolved(name, "1");
        pack.resolved.directory = directory.parse().expect("a valid directory");
        pack
    };
    let configured = |pack: ResolvedPack, level: &str| {
        let config = [("all".to_owned(), json!(level))].into();
        ResolvedPack { config, ..pack }
    };
    let disabled = |pack: ResolvedPack| configured(pack, "disabled");
    let house = || resolved("cluster/house", "1");
    let mandatory = || configured(house(), "mandatory");
    let of_cluster = "those of policy pack cluster/house, which a Stack can neither disable nor configure";
    let of_spec = "invalid spec.policyPacks[b]: the archive and the directory are those of policy pack a, but";
    // Columns: the packs, how many of them are packs of the cluster, and the names of the returned packs or the error.
    let rows: [(Vec<ResolvedPack>, usize, Result<&[&str], &str>); 15] = [
        (vec![house(), disabled(resolved("own", "1"))], 1, Err(of_cluster)),
        (vec![house(), resolved("own", "1")], 1, Ok(&["cluster/house"])),
        (vec![mandatory(), resolved("own", "1")], 1, Ok(&["cluster/house"])),
        (vec![mandatory(), configured(resolved("own", "1"), "mandatory")], 1, Ok(&["cluster/house"])),
        (vec![mandatory(), disabled(resolved("own", "1"))], 1, Err(of_cluster)),
        (vec![house(), resolved("own", "1"), resolved("other", "2")], 1, Ok(&["cluster/house", "other"])),
        (vec![house(), resolved("other", "2"), disabled(resolved("own", "1"))], 1, Err(of_cluster)),
        (vec![house(), disabled(resolved("own", "2"))], 1, Ok(&["cluster/house", "own"])),
        (vec![house(), disabled(in_directory("own", "base"))], 1, Ok(&["cluster/house", "own"])),
        (vec![in_directory("cluster/house", "base"), disabled(in_directory("own", "base"))], 1, Err(of_cluster)),
        (vec![house(), resolved("cluster/mirror", "1")], 2, Ok(&["cluster/house", "cluster/mirror"])),
        (vec![resolved("a", "1"), disabled(resolved("b", "1"))], 0, Err(of_spec)),
        (vec![house(), resolved("a", "2"), disabled(resolved("b", "2"))], 1, Err(of_spec)),
        (vec![resolved("a", "1"), resolved("b", "1")], 0, Ok(&["a", "b"])),
        (vec![], 0, Ok(&[])),
    ];
    for (packs, cluster, expected) in rows {
        let what = format!("{packs:?}");
        let found = distinct(packs, cluster).map_err(|error| error.to_string());
        match (&found, expected) {
            (Err(error), Err(expected)) => assert!(error.contains(expected), "{error}"),
            (Ok(found), Ok(expected)) => {
                let names: Vec<&str> = found.iter().map(|pack| pack.name.as_str()).collect();
                assert_eq!(names, expected, "{what}");
            }
            _ => panic!("{found:?} instead of {expected:?}: {what}"),
        }
    }
    let found = distinct(vec![mandatory(), resolved("own", "1")], 1);
    assert_eq!(found, Ok(vec![mandatory()]), "the configuration of the cluster applies");
}

#[test]
fn a_changed_or_added_pack_starts_a_run_and_a_removed_pack_does_not() {
    let configured = ResolvedPack { config: [("all".to_owned(), json!("advisory"))].into(), ..resolved("a", "1") };
    let repacked = |content: &str| {
        let mut pack = resolved("a", content);
        pack.resolved.content_id = Some("id".to_owned());
        pack
    };
    let rows = [
        (vec![resolved("a", "1")], vec![resolved("a", "1")], None),
        (vec![resolved("a", "1")], vec![resolved("a", "2")], Some("Policy pack a has changed")),
        (vec![resolved("a", "1")], vec![configured], Some("Policy pack a has changed")),
        (vec![resolved("a", "1")], vec![resolved("a", "1"), resolved("b", "1")], Some("Policy pack b was added")),
        (vec![resolved("a", "1")], vec![], None),
        (vec![repacked("1")], vec![repacked("2")], None),
    ];
    for (before, now, expected) in rows {
        assert_eq!(changed(&inputs(&before), &inputs(&now)).as_deref(), expected);
    }
}

#[test]
fn the_packs_of_a_pod_that_is_not_ready_are_fetched() {
    let packs = [resolved("a", "1"), ResolvedPack { in_store: false, ..resolved("b", "1") }];
    assert_eq!(to_fetch(&packs, None).map(|pack| pack.name.as_str()), Some("b"));
    assert_eq!(to_fetch(&packs[..1], None), None);
    let mut workspace = Workspace::new("web", crate::api::auto::WorkspaceSpec::default());
    workspace.spec.policy_packs = artifacts(&packs);
    let condition = json!({
        "type": "Ready", "status": "True", "reason": "Succeeded", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z",
    });
    workspace.status = serde_json::from_value(json!({"conditions": [condition]})).expect("a valid status");
    assert_eq!(to_fetch(&packs, Some(&workspace)), None, "the pod already contains the packs");
    workspace.spec.policy_packs.pop();
    assert!(to_fetch(&packs, Some(&workspace)).is_some());
}

#[test]
fn the_packs_of_the_cluster_are_sources_of_each_stack() {
    let mut stack = stack(vec![pack("own")]);
    stack.spec.policy_packs.extend(in_spec(&[cluster()]));
    let keys = crate::source::named_objects(&stack.spec, "apps");
    let expected = [
        (GroupKind::new(GROUP, "Bucket"), ("apps".to_owned(), "policies".to_owned())),
        (GroupKind::new(GROUP, "OCIRepository"), ("flux-system".to_owned(), "house".to_owned())),
    ];
    assert_eq!(keys, expected);
}

#[test]
fn the_reason_for_a_missing_artifact_names_the_pack() {
    let why = named("own", Unavailable::Stalled("Bucket apps/policies does not exist".to_owned()));
    assert_eq!(why, Unavailable::Stalled("policy pack own: Bucket apps/policies does not exist".to_owned()));
}

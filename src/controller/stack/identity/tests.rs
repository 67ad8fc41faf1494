//! Tests that determine which runs may have created resources, and which Pulumi stack contains these resources.

use serde_json::{Value, json};

use super::*;
use crate::api::pulumi::StackSpec;
use crate::artifact::Digest;

fn stack(status: Value) -> Stack {
    let spec = StackSpec { stack: "dev".to_owned(), backend: Some("s3://a".to_owned()), ..StackSpec::default() };
    let mut stack = Stack::new("app", spec);
    stack.metadata.generation = Some(2);
    stack.status = Some(serde_json::from_value(status).expect("status is set"));
    stack
}

fn pulumi_stack(name: &str, project: Option<&str>, backend: Option<&str>) -> PulumiStack {
    PulumiStack { name: name.to_owned(), project: project.map(str::to_owned), backend: backend.map(str::to_owned) }
}

fn update(kind: &str, status: &Value) -> Update {
    let spec = json!({"workspaceName": "app", "stackName": "dev", "type": kind});
    serde_json::from_value(json!({"metadata": {"name": "app-1"}, "spec": spec, "status": status}))
        .expect("valid Update")
}

#[test]
fn an_interrupted_run_keeps_the_known_applied_stack() {
    let of = |project: Option<&str>, backend: Option<&str>| PulumiStack {
        name: "dev".to_owned(),
        project: project.map(str::to_owned),
        backend: backend.map(str::to_owned),
    };
    let mut stack = Stack::new("app", StackSpec { stack: "dev".to_owned(), ..StackSpec::default() });
    let before = of(Some("web"), Some("s3://a"));
    stack.status = Some(StackStatus { applied_stack: Some(before.clone()), ..StackStatus::default() });
    assert_eq!(applied_by(&stack, of(None, None)), before, "the agent reported no project and no backend");
    assert_eq!(applied_by(&stack, of(Some("web"), None)), before);
    assert_eq!(
        applied_by(&stack, of(None, Some("s3://b"))),
        of(None, Some("s3://b")),
        "the agent reported another Pulumi stack"
    );
    stack.status = None;
    assert_eq!(applied_by(&stack, of(None, None)), of(None, None));
}

#[test]
fn a_run_that_may_have_changed_resources_is_detected() {
    let failed = |more: Value| {
        let failed = json!({"type": "Failed", "status": "True", "reason": "UpdateFailed", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z"});
        let mut status = json!({"conditions": [failed], "terminationEvidence": "Agent"});
        status.as_object_mut().expect("is a map").extend(more.as_object().expect("is a map").clone());
        status
    };
    let rows = [
        ("an up that succeeded", "up", json!({"conditions": []}), true),
        ("an up that failed without changes", "up", failed(json!({"changes": {"same": 3}})), false),
        ("an up that failed after it created a resource", "up", failed(json!({"changes": {"create": 1}})), true),
        ("an interrupted up", "up", failed(json!({"interrupted": true})), true),
        ("an up whose container ended", "up", failed(json!({"terminationEvidence": "Container"})), true),
        ("an up that never started", "up", failed(json!({"terminationEvidence": null})), false),
        ("a preview", "preview", json!({"conditions": [], "changes": {"create": 1}}), false),
        ("a destroy", "destroy", json!({"conditions": []}), false),
    ];
    for (name, kind, status, expected) in rows {
        assert_eq!(may_have_changed(&update(kind, &status)), expected, "{name}");
    }
}

#[test]
fn the_status_determines_whether_a_stack_may_have_resources() {
    let rows = [
        ("no run", json!({}), false),
        (
            "only failed runs",
            json!({"attempts": 3, "lastUpdate": {"type": "up", "state": "failed", "digest": Digest::of(b"a")}}),
            false,
        ),
        (
            "a preview",
            json!({"lastUpdate": {"type": "preview", "state": "succeeded", "digest": Digest::of(b"a")}}),
            false,
        ),
        (
            "an up, and then a failure",
            json!({"appliedStack": {"name": "dev"}, "lastUpdate": {"state": "failed"}}),
            true,
        ),
        ("a record of an earlier version", json!({"lastAppliedRevision": "main@sha1:a"}), true),
        ("outputs", json!({"outputs": {"a": 1}}), true),
        ("an up of the operator", json!({"lastUpdate": {"type": "up", "state": "failed"}}), true),
        ("a run of the operator without a type", json!({"lastUpdate": {"state": "succeeded"}}), true),
        ("a failed destroy of the operator", json!({"lastUpdate": {"type": "destroy", "state": "failed"}}), true),
        ("a preview of the operator", json!({"lastUpdate": {"type": "preview", "state": "succeeded"}}), false),
        (
            "a destroy of the operator that succeeded",
            json!({"outputs": {"a": 1}, "lastUpdate": {"type": "destroy", "state": "succeeded"}}),
            false,
        ),
        (
            "a failed destroy without another record",
            json!({"lastUpdate": {"type": "destroy", "state": "failed", "digest": Digest::of(b"a")}}),
            true,
        ),
        (
            "a destroy that succeeded",
            json!({"lastAppliedRevision": "a", "lastUpdate": {"type": "destroy", "state": "succeeded"}}),
            false,
        ),
    ];
    for (name, status, expected) in rows {
        assert_eq!(has_applied(&stack(status)), expected, "{name}");
    }
}

#[test]
fn the_resources_of_a_status_without_applied_stack_are_in_the_pulumi_stack_of_the_spec() {
    let after = |kind: &str, generation: i64| {
        let last = json!({"type": kind, "state": "succeeded", "generation": generation, "digest": Digest::of(b"a")});
        let project = json!({"name": "web", "runtime": "yaml"});
        json!({"lastAppliedRevision": "a", "lastUpdate": last, "projectInfo": project})
    };
    let with_applied = |mut status: Value| {
        status["appliedStack"] = json!({"name": "prod"});
        status
    };
    let of_spec = || Some(pulumi_stack("dev", Some("web"), Some("s3://a")));
    let rows = [
        ("the current generation", after("up", 2), of_spec()),
        ("an earlier generation, because the deletion increments the generation", after("up", 1), of_spec()),
        ("no resources", after("destroy", 2), None),
        ("appliedStack is set", with_applied(after("up", 1)), Some(pulumi_stack("prod", None, None))),
    ];
    for (name, status, expected) in rows {
        assert_eq!(recorded(&stack(status)), expected, "{name}");
    }
}

#[test]
fn pulumi_stacks_differ_only_if_a_field_set_on_both_differs() {
    let rows = [
        (pulumi_stack("dev", None, None), pulumi_stack("dev", Some("web"), Some("s3://a")), false),
        (pulumi_stack("dev", None, None), pulumi_stack("acme/dev", None, None), false),
        (pulumi_stack("acme/dev", None, None), pulumi_stack("other/dev", None, None), true),
        (pulumi_stack("acme/web/dev", Some("web"), None), pulumi_stack("acme/dev", Some("web"), None), false),
        (pulumi_stack("dev", None, None), pulumi_stack("prod", None, None), true),
        (pulumi_stack("dev", Some("web"), None), pulumi_stack("dev", Some("api"), None), true),
        (pulumi_stack("dev", None, Some("s3://a")), pulumi_stack("dev", None, Some("s3://b")), true),
    ];
    for (one, other, expected) in rows {
        assert_eq!((differ(&one, &other), differ(&other, &one)), (expected, expected), "{one} {other}");
    }
}

#[test]
fn remaining_resources_are_reported_once_for_each_pulumi_stack_change() {
    let of = |backend: &str| pulumi_stack("dev", Some("web"), Some(backend));
    let in_secret = || pulumi_stack("dev", Some("web"), None);
    let status = |applied: Option<PulumiStack>, last: Option<PulumiStack>| StackStatus {
        applied_stack: applied,
        last_update: Some(LastUpdate { pulumi_stack: last, ..LastUpdate::default() }),
        ..StackStatus::default()
    };
    let (a, b, c) = (|| of("s3://a"), || of("s3://b"), || of("s3://c"));
    let previewed = |mut status: StackStatus| {
        status.last_update.as_mut().expect("value is set").kind = Some("preview".to_owned());
        status
    };
    let rows = [
        ("no stack was applied", status(None, Some(a())), b(), None, false),
        ("the stack has not changed", status(Some(a()), Some(a())), a(), None, false),
        ("the backend has changed", status(Some(a()), Some(a())), b(), None, true),
        ("the first run failed", status(Some(a()), Some(b())), b(), None, false),
        ("only a preview used the stack", previewed(status(Some(a()), Some(b()))), b(), None, true),
        ("the spec changed a second time", status(Some(a()), Some(b())), c(), None, true),
        ("the spec was restored", status(Some(a()), Some(b())), a(), None, false),
        ("no record of the last run", status(Some(a()), None), b(), None, true),
        (
            "the agent reports a stack that differs from status.currentUpdate",
            status(Some(a()), Some(a())),
            b(),
            Some(in_secret()),
            true,
        ),
        ("the agent reports the stack in status.currentUpdate", status(Some(a()), Some(a())), b(), Some(b()), false),
    ];
    for (name, status, next, recorded, expected) in rows {
        let found = orphaned_stack(&status, &next, recorded.as_ref());
        assert_eq!(found, expected.then(a).as_ref(), "{name}");
    }
}

#[test]
fn the_backend_reported_by_the_agent_takes_precedence() {
    let stack = Stack::new("app", StackSpec { stack: "dev".to_owned(), ..StackSpec::default() });
    let current = CurrentUpdate {
        pulumi_stack: Some(pulumi_stack("dev", Some("web"), Some("s3://a"))),
        ..CurrentUpdate::default()
    };
    let backend = |result: Option<&str>| {
        let result = UpdateStatus { backend: result.map(str::to_owned), ..UpdateStatus::default() };
        reported(&stack, &current, &result).backend
    };
    assert_eq!(backend(Some("file:///tmp")).as_deref(), Some("file:///tmp"));
    assert_eq!(backend(None).as_deref(), Some("s3://a"));
}

#[test]
fn the_url_of_the_update_determines_the_organization() {
    let stack = Stack::new("app", StackSpec { stack: "dev".to_owned(), ..StackSpec::default() });
    let name = |name: &str, permalink: Option<&str>| {
        let current = CurrentUpdate { pulumi_stack: Some(pulumi_stack(name, None, None)), ..CurrentUpdate::default() };
        let result = UpdateStatus { permalink: permalink.map(str::to_owned), ..UpdateStatus::default() };
        reported(&stack, &current, &result).name
    };
    let link = Some("https://app.pulumi.com/acme/web/dev/updates/7");
    assert_eq!(name("dev", link), "acme/dev");
    assert_eq!(name("other/dev", link), "other/dev");
    assert_eq!(name("prod", link), "prod");
    assert_eq!(name("dev", None), "dev");
}

#[test]
fn the_known_organization_remains_recorded() {
    let mut stack = Stack::new("app", StackSpec { stack: "dev".to_owned(), ..StackSpec::default() });
    let before = pulumi_stack("acme/dev", Some("web"), None);
    stack.status = Some(StackStatus { applied_stack: Some(before.clone()), ..StackStatus::default() });
    assert_eq!(applied_by(&stack, pulumi_stack("dev", None, None)), before);
    let other = pulumi_stack("other/dev", Some("web"), None);
    assert_eq!(applied_by(&stack, other.clone()), other);
}

#[test]
fn the_applied_stack_completes_the_backend_of_the_next_run() {
    let backend = |backend: Option<&str>, name: &str, applied: &str| {
        let applied = pulumi_stack(name, Some("web"), Some(applied));
        let spec = StackSpec { stack: "dev".into(), backend: backend.map(str::to_owned), ..StackSpec::default() };
        let mut stack = Stack::new("app", spec);
        stack.status = Some(StackStatus { applied_stack: Some(applied), ..StackStatus::default() });
        desired(&stack, None).backend
    };
    let known = "s3://a?endpoint=http://minio";
    let rows = [
        ("an endpoint in the environment", Some("s3://a/"), "dev", Some(known)),
        ("a URL in the environment", None, "dev", Some(known)),
        ("another bucket", Some("s3://b"), "dev", Some("s3://b?endpoint=http://minio")),
        ("another endpoint", Some("s3://a?endpoint=other"), "dev", Some("s3://a?endpoint=other")),
        ("another kind of backend", Some("gs://a"), "dev", Some("gs://a")),
        ("another Pulumi stack", None, "prod", None),
    ];
    for (case, url, name, expected) in rows {
        assert_eq!(backend(url, name, known).as_deref(), expected, "{case}");
    }
}

//! Tests for the changes to watched objects that trigger a reconciliation.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::{FutureExt, StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::runtime::reflector::{self, ObjectRef};
use kube::runtime::watcher::Event;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::api::auto::{Update, Workspace};
use crate::api::pulumi::Stack;
use crate::runtime::fake_api::{FakeResponse, client};
use crate::runtime::reconcile::{Outcome, ReconcileRunner};
use crate::runtime::scope::Scope;
use crate::runtime::watch::{LastStates, after_list, changes, only_changes, strip_metadata, strip_update};
use crate::telemetry::metrics::Metrics;

fn workspace(name: &str, version: u32, metadata: Value, status: &str) -> Value {
    let mut object = json!({
        "apiVersion": "auto.pulumi.com/v1alpha1", "kind": "Workspace",
        "metadata": { "name": name, "namespace": "apps", "uid": name, "resourceVersion": version.to_string(),
            "generation": 1, "managedFields": [{ "manager": "someone" }] },
        "spec": {}, "status": { "address": status },
    });
    let merged = object.pointer_mut("/metadata").and_then(Value::as_object_mut).unwrap();
    merged.extend(metadata.as_object().unwrap().clone());
    object
}

fn list(items: &[Value]) -> FakeResponse {
    FakeResponse::Json(
        200,
        json!({ "apiVersion": "v1", "kind": "List", "metadata": { "resourceVersion": "1" }, "items": items }),
    )
}

#[tokio::test]
async fn changes_of_spec_finalizers_or_requests_trigger_a_reconciliation() {
    let requested = |key: &str, value: &str| json!({ "annotations": { key: value, "other": value } });
    let watched = [
        ("MODIFIED", workspace("web", 2, json!({}), "changed")),
        ("MODIFIED", workspace("web", 3, json!({ "annotations": { "other": "x" } }), "")),
        ("MODIFIED", workspace("web", 4, json!({ "finalizers": ["ours"] }), "")),
        ("MODIFIED", workspace("web", 5, json!({ "generation": 2 }), "")),
        ("MODIFIED", workspace("web", 6, requested("reconcile.fluxcd.io/requestedAt", "1"), "")),
        ("MODIFIED", workspace("web", 7, requested("reconcile.fluxcd.io/requestedAt", "1"), "changed")),
        ("MODIFIED", workspace("web", 8, requested("reconcile.fluxcd.io/requestedAt", "2"), "")),
        ("MODIFIED", workspace("web", 9, requested("pulumi.com/reconciliation-request", "2"), "")),
        ("MODIFIED", workspace("web", 10, requested("pulumi.com/resolve", "web-1=retry"), "")),
        ("MODIFIED", workspace("web", 11, requested("reconcile.fluxcd.io/forceAt", "2"), "")),
        ("MODIFIED", workspace("web", 12, requested("pulumi.com/refresh", "2"), "")),
        ("MODIFIED", workspace("web", 13, json!({ "deletionTimestamp": "2026-01-01T00:00:00Z" }), "")),
    ];
    let watches = AtomicUsize::new(0);
    let (client, _log) = client(move |request| {
        if !request.query.contains("watch=true") {
            return list(&[workspace("web", 1, json!({}), "")]);
        }
        if watches.fetch_add(1, Ordering::Relaxed) == 0 {
            FakeResponse::events(watched.clone())
        } else {
            FakeResponse::Silence
        }
    });
    let runner = Arc::new(ReconcileRunner::new::<Workspace>("workspace", Duration::from_secs(5), Metrics::default()));
    let (store, writer) = reflector::store::<Workspace>();
    let stream =
        pin!(changes(Api::all(client), Scope::default().own_kinds(), |_| {}, |_, _| (), writer, runner, |_| ()));
    let seen = stream.map_ok(|object| object.resource_version().unwrap()).take(10).try_collect::<Vec<_>>();
    let seen = tokio::time::timeout(Duration::from_secs(10), seen).await.expect("received all changes").unwrap();
    assert_eq!(seen, ["1", "4", "5", "6", "8", "9", "10", "11", "12", "13"]);
    let kept = store.state();
    assert_eq!(kept[0].resource_version().as_deref(), Some("13"), "the store has every change");
    assert!(kept[0].managed_fields().is_empty());
}

#[tokio::test]
async fn deleted_objects_are_removed_even_if_the_deletion_was_missed() {
    let (lists, watches) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let expired = json!({ "kind": "Status", "code": 410, "reason": "Expired", "message": "too old" });
    let (client, _log) = client(move |request| {
        let object = |name, version| workspace(name, version, json!({}), "");
        match request.query.contains("watch=true") {
            false if lists.fetch_add(1, Ordering::Relaxed) == 0 => {
                list(&[object("a", 1), object("b", 1), object("c", 1)])
            }
            false => list(&[object("c", 1), object("new", 9)]),
            true if watches.fetch_add(1, Ordering::Relaxed) == 0 => {
                FakeResponse::events([("DELETED", object("a", 2)), ("ERROR", expired.clone())])
            }
            true => FakeResponse::Silence,
        }
    });
    let metrics = Metrics::default();
    // The tests use the kind Stack, because individual Workspaces have no metrics.
    let runner = Arc::new(ReconcileRunner::new::<Stack>("workspace", Duration::from_secs(5), metrics.clone()));
    let (_store, writer) = reflector::store::<Workspace>();
    let mut stream = pin!(changes(
        Api::all(client),
        Scope::default().own_kinds(),
        |_| {},
        |_, _| (),
        writer,
        runner.clone(),
        |_| ()
    ));
    let all = async {
        while let Some(change) = stream.next().await {
            let Ok(object) = change else { continue };
            runner.begin(&object);
            runner.run(&object, async { Ok(Outcome::Settled) }).await;
            if object.name_any() == "new" {
                break;
            }
        }
        // The watch removes deleted objects only after the last object of the list.
        let _ = tokio::time::timeout(Duration::from_millis(100), stream.next()).await;
    };
    tokio::time::timeout(Duration::from_secs(20), all).await.expect("the second list is received");
    let text = metrics.encode().unwrap();
    let known = ["a", "b", "c", "new"].map(|name| text.contains(&format!("name=\"{name}\"")));
    assert_eq!(known, [false, false, true, true], "{text}");
}

/// Returns an object whose nesting exceeds the serde_json limit.
fn deep(name: &str, version: u32) -> Value {
    let mut object = workspace(name, version, json!({}), "");
    object["spec"] = json!({ "podTemplate": (0..500).fold(json!({}), |inner, _| json!({ "a": inner })) });
    object
}

#[tokio::test]
async fn an_object_that_cannot_be_parsed_does_not_hide_other_objects() {
    let watched = [
        ("ADDED", deep("other", 2)),
        ("MODIFIED", deep("web", 3)),
        ("MODIFIED", workspace("app", 4, json!({ "generation": 2 }), "")),
        ("DELETED", deep("web", 5)),
        ("DELETED", deep("unknown", 6)),
        ("ADDED", workspace("last", 7, json!({}), "")),
    ];
    let watches = AtomicUsize::new(0);
    let (client, _log) = client(move |request| {
        if !request.query.contains("watch=true") {
            let objects = [workspace("app", 1, json!({}), ""), deep("deep", 1), workspace("web", 1, json!({}), "")];
            return list(&objects);
        }
        if watches.fetch_add(1, Ordering::Relaxed) == 0 {
            FakeResponse::events(watched.clone())
        } else {
            FakeResponse::Silence
        }
    });
    let runner = Arc::new(ReconcileRunner::new::<Workspace>("workspace", Duration::from_secs(5), Metrics::default()));
    let (store, writer) = reflector::store::<Workspace>();
    let seen = Arc::new(std::sync::Mutex::new(Vec::new()));
    let on_event = {
        let seen = seen.clone();
        move |event: &Event<Workspace>| match event {
            Event::Apply(object) | Event::InitApply(object) => seen.lock().unwrap().push(object.name_any()),
            Event::Delete(object) => seen.lock().unwrap().push(format!("-{}", object.name_any())),
            Event::Init | Event::InitDone => {}
        }
    };
    let mut stream =
        pin!(changes(Api::all(client), Scope::default().own_kinds(), |_| {}, |_, _| (), writer, runner, on_event));
    let until_last = async { while stream.next().await.unwrap().unwrap().name_any() != "last" {} };
    tokio::time::timeout(Duration::from_secs(10), until_last).await.expect("readable objects are received");
    assert_eq!(*seen.lock().unwrap(), ["app", "web", "app", "-web", "last"]);
    let mut kept: Vec<String> = store.state().iter().map(|object| object.name_any()).collect();
    kept.sort();
    assert_eq!(kept, ["app", "last"]);
}

#[test]
fn cached_updates_contain_only_the_fields_that_lookups_use() {
    let requested = "reconcile.fluxcd.io/requestedAt";
    let condition = |kind: &str, message: &str| json!({ "type": kind, "status": "True", "reason": "R", "message": message, "lastTransitionTime": "2026-01-01T00:00:00Z" });
    let owner = |api: &str, name: &str| json!({ "apiVersion": api, "kind": "Stack", "name": name, "uid": name });
    let owned = |owners: Value| {
        json!({ "name": "app-1", "namespace": "apps", "uid": "u", "resourceVersion": "7", "finalizers": ["ours", "theirs"],
            "annotations": { requested: "1" }, "labels": { "auto.pulumi.com/workspace-name": "app" },
            "ownerReferences": owners })
    };
    let mut whole = json!({
        "apiVersion": "auto.pulumi.com/v1alpha1", "kind": "Update",
        "metadata": owned(json!([owner("v1", "a"), owner("pulumi.com/v1", "b"), owner("pulumi.com/v1", "c")])),
        "spec": { "workspaceName": "app", "stackName": "dev", "type": "up", "message": "a long story",
            "artifact": { "digest": crate::artifact::Digest::of(b"a"), "revision": "r" }, "source": { "head": "1a2b" },
            "policyPacksDigest": crate::artifact::Digest::of(b"a"), "timeout": "1h", "priority": 3,
            "target": ["urn:a", "urn:b"], "replace": ["urn:a"],
            "appliedStack": { "name": "acme/dev", "project": "web", "backend": "https://api.pulumi.com" },
            "appliedByOthers": [{ "owner": "a", "name": "dev" }, { "owner": "b", "name": "dev" }] },
        "status": { "conditions": [condition("Progressing", "m"), condition("Complete", "m")], "message": "a long story",
            "run": { "podUID": "p", "agentStartID": "a", "settingsDigest": "s", "host": "app-workspace-0",
                "nodeName": "n", "containerID": "c", "emptyReferences": ["Secret/a"], "timeout": "1h0m0s",
                "concurrencyGroup": { "name": "aws", "limit": 2 } },
            "progress": { "summary": "3 done", "stepsDone": 3, "inWork": 0, "pid": 42 }, "phase": "Failed",
            "startTime": "2026-01-01T00:00:00Z", "endTime": "2026-01-01T00:01:00Z", "duration": "1m0s",
            "permalink": "https://app.pulumi.com/acme/web/dev/updates/7", "interrupted": true,
            "terminationEvidence": "Container", "lastOutput": "a long story" },
    });
    let kept = json!({
        "apiVersion": "auto.pulumi.com/v1alpha1", "kind": "Update",
        "metadata": owned(json!([owner("pulumi.com/v1", "b")])),
        "spec": { "workspaceName": "app", "stackName": "dev", "type": "up", "timeout": "1h", "priority": 3,
            "target": [""], "replace": [""], "appliedStack": { "name": "/" }, "appliedByOthers": [{ "owner": "", "name": "" }] },
        "status": { "conditions": [condition("Complete", "")],
            "run": { "podUID": "", "agentStartID": "", "settingsDigest": "", "host": "app-workspace-0",
                "nodeName": "n", "concurrencyGroup": { "name": "aws", "limit": 2 }, "timeout": "1h0m0s" },
            "permalink": "https://app.pulumi.com/acme/web/dev/updates/7", "interrupted": true,
            "terminationEvidence": "Container",
            "progress": { "summary": "", "stepsDone": 0, "inWork": 0, "pid": 42 },
            "startTime": "2026-01-01T00:00:00Z", "endTime": "2026-01-01T00:01:00Z" },
    });
    whole["metadata"]["annotations"]["kubectl.kubernetes.io/last-applied-configuration"] = json!("all of it");
    whole["metadata"]["labels"]["auto.pulumi.com/other"] = json!("");
    whole["metadata"]["managedFields"] = json!([{ "manager": "someone" }]);
    let mut update: Update = serde_json::from_value(whole).unwrap();
    let kept: Update = serde_json::from_value(kept).unwrap();
    strip_metadata(&mut update);
    strip_update(&mut update);
    assert_eq!(serde_json::to_value(&update).unwrap(), serde_json::to_value(&kept).unwrap());
    update.status.as_mut().unwrap().interrupted = None;
    strip_update(&mut update);
    assert_eq!(update.status.unwrap().permalink, None, "only the lock of an interrupted run needs the URL");
}

#[test]
fn a_cached_update_is_small() {
    let stripped = |length: usize, request: &str| {
        let long = "x".repeat(length);
        let mut update: Update = serde_json::from_value(json!({
            "apiVersion": "auto.pulumi.com/v1alpha1", "kind": "Update",
            "metadata": { "name": "app-1", "annotations": { "pulumi.com/resolve": long.clone() + request },
                "ownerReferences": vec![json!({ "apiVersion": "v1", "kind": "A", "name": long, "uid": "u" }); 10] },
            "spec": { "workspaceName": long, "stackName": long, "type": "up", "message": long, "timeout": long,
                "target": vec![long.clone(); 10], "appliedStack": { "name": long, "backend": long } },
            "status": { "conditions": [{ "type": "Complete", "status": "True", "reason": "R", "message": long,
                "lastTransitionTime": "2026-01-01T00:00:00Z" }] },
        }))
        .unwrap();
        strip_update(&mut update);
        update
    };
    let update = stripped(100_000, "a");
    let length = serde_json::to_string(&update).unwrap().len();
    assert!(length < 2500, "{length} bytes");
    assert!(update.spec.workspace_name.len() == 254 && update.spec.stack_name.len() == 1025);
    assert_ne!(update.annotations(), stripped(100_000, "b").annotations(), "the change is visible");
    assert_eq!(stripped(3, "a").annotations()["pulumi.com/resolve"], "xxxa");
}

fn config_map(uid: &str, state: &str) -> ConfigMap {
    let object = json!({"metadata": {"uid": uid, "name": uid}, "data": {"state": state}});
    serde_json::from_value(object).expect("valid ConfigMap")
}

fn state(object: &ConfigMap) -> Option<String> {
    object.data.as_ref()?.get("state").cloned()
}

fn owner(object: &ConfigMap) -> Option<ObjectRef<Stack>> {
    Some(ObjectRef::new(&format!("owner-of-{}", object.name_any())).within("apps"))
}

#[test]
fn only_the_owners_of_changed_and_deleted_objects_are_reported() {
    let mut states = LastStates::default();
    let steps = [
        (Event::Init, ""),
        (Event::InitApply(config_map("a", "1")), "a"),
        (Event::InitApply(config_map("b", "1")), "b"),
        (Event::InitDone, ""),
        (Event::Apply(config_map("a", "1")), ""),
        (Event::Apply(config_map("a", "2")), "a"),
        (Event::Apply(config_map("b", "1")), ""),
        (Event::Delete(config_map("a", "2")), "a"),
        (Event::Apply(config_map("a", "2")), "a"),
        // The watch restarts. The object b was deleted without an event.
        (Event::Init, ""),
        (Event::InitApply(config_map("a", "2")), ""),
        (Event::InitDone, "b"),
        (Event::Apply(config_map("b", "1")), "b"),
        // The list fails and starts again. The object a was deleted without an event.
        (Event::Init, ""),
        (Event::InitApply(config_map("a", "2")), ""),
        (Event::Init, ""),
        (Event::InitApply(config_map("b", "2")), "b"),
        (Event::InitDone, "a"),
        (Event::Init, ""),
        (Event::InitDone, "b"),
        (Event::Init, ""),
        (Event::InitDone, ""),
    ];
    for (number, (event, expected)) in steps.into_iter().enumerate() {
        let expected: Vec<_> = owner(&config_map(expected, "")).into_iter().filter(|_| !expected.is_empty()).collect();
        assert_eq!(states.changed(&event, state, owner), expected, "step {number}: {event:?}");
    }
}

#[tokio::test]
async fn a_missed_deletion_is_reported_without_the_object() {
    let events = [
        Event::Init,
        Event::InitApply(config_map("a", "1")),
        Event::InitApply(config_map("b", "1")),
        Event::InitDone,
        Event::Apply(config_map("a", "1")),
        Event::Delete(config_map("a", "1")),
        Event::Init,
        Event::InitDone,
    ];
    let changes = only_changes(futures::stream::iter(events.map(Ok)), state, owner);
    let names = changes.map_ok(|(owner, object)| (owner.name, object.map(|object| object.name_any())));
    let names: Vec<_> = names.try_collect().await.expect("no error");
    let seen = |name: &str| (format!("owner-of-{name}"), Some(name.to_owned()));
    assert_eq!(names, [seen("a"), seen("b"), seen("a"), ("owner-of-b".to_owned(), None)]);
}

#[tokio::test]
async fn the_objects_of_a_repeated_list_follow_when_the_list_is_complete() {
    let (sender, events) = futures::channel::mpsc::unbounded();
    let mut events = Box::pin(after_list::<ConfigMap>(events));
    let steps = [
        (Event::Init, 1),
        (Event::InitApply(config_map("a", "1")), 1),
        (Event::InitDone, 1),
        (Event::Apply(config_map("a", "2")), 1),
        (Event::Init, 0),
        (Event::InitApply(config_map("b", "1")), 0),
        // The list fails and starts again.
        (Event::Init, 0),
        (Event::InitApply(config_map("a", "2")), 0),
        (Event::InitApply(config_map("b", "1")), 0),
        (Event::InitDone, 4),
        (Event::Delete(config_map("b", "1")), 1),
    ];
    for (number, (event, expected)) in steps.into_iter().enumerate() {
        let text = format!("step {number}: {event:?}");
        sender.unbounded_send(Ok(event)).unwrap();
        let mut received = 0;
        while let Some(Some(event)) = events.next().now_or_never() {
            event.unwrap();
            received += 1;
        }
        assert_eq!(received, expected, "{text}");
    }
}

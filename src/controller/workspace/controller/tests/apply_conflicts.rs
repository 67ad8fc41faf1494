//! Tests for objects that another client changes after each apply. The controller applies such objects a few times,
//! and then reports them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use kube::runtime::watcher::Event;
use serde_json::{Value, json};

use super::*;
use crate::api::auto::Workspace;
use crate::controller::test_parts::TestParts;
use crate::controller::update;
use crate::runtime::fake_api::{FakeResponse, RecordedRequest, apply_json_merge_patch, client};
use crate::runtime::index::StoreWriter as _;
use crate::runtime::requeue;

const WORKSPACE: &str = "/apis/auto.pulumi.com/v1alpha1/namespaces/apps/workspaces/web";

/// Fake API server that stores applied objects and, like a mutating webhook, changes a label of each Service.
fn respond(objects: &Mutex<HashMap<String, Value>>, request: &RecordedRequest) -> FakeResponse {
    let mut objects = objects.lock().unwrap();
    let path = request.path.trim_end_matches("/status");
    match request.method.as_str() {
        "GET" if path.ends_with("/events") => {
            FakeResponse::Json(200, json!({"apiVersion": "v1", "kind": "EventList", "metadata": {}, "items": []}))
        }
        "POST" => FakeResponse::Json(201, request.body.clone()),
        "PATCH" if path == WORKSPACE => {
            let object = objects.get_mut(path).unwrap();
            apply_json_merge_patch(object, &request.body);
            FakeResponse::Json(200, object.clone())
        }
        "PATCH" => {
            let mut object = request.body.clone();
            apply_json_merge_patch(
                &mut object,
                &json!({"metadata": {"uid": path, "generation": 1, "resourceVersion": "1"}}),
            );
            if path.contains("/services/") {
                apply_json_merge_patch(&mut object, &json!({"metadata": {"labels": {"team": "another"}}}));
            }
            if !request.query.contains("dryRun") {
                objects.insert(path.to_owned(), object.clone());
            }
            FakeResponse::Json(200, object)
        }
        _ => match objects.get(path) {
            Some(object) => FakeResponse::Json(200, object.clone()),
            None => FakeResponse::refusal(404, "NotFound"),
        },
    }
}

#[tokio::test]
async fn a_service_rewritten_by_a_webhook_is_reported_and_applied_again() {
    let workspace = json!({
        "apiVersion": "auto.pulumi.com/v1alpha1", "kind": "Workspace",
        "metadata": {
            "name": "web", "namespace": "apps", "uid": "workspace", "resourceVersion": "1", "generation": 1,
            "finalizers": ["finalizer.workspace.auto.pulumi.com"],
        },
        "spec": {
            "artifact": {"digest": format!("sha256:{}", "0".repeat(64)), "revision": "main", "dir": "infra"},
            "serviceTemplate": {"metadata": {"labels": {"team": "ours"}}},
        },
    });
    let objects = Arc::new(Mutex::new(HashMap::from([(WORKSPACE.to_owned(), workspace.clone())])));
    let seen = objects.clone();
    let (client, log) = client(move |request| respond(&seen, request));
    let parts = TestParts::new(client);
    let (updates, mut updates_writer) = update::updates();
    for event in [Event::Init, Event::InitDone] {
        updates_writer.apply(&event);
    }
    let (requeue, _requeues) = requeue::queue();
    let context = Arc::new(context(&parts, updates, requeue));
    let workspace: Arc<Workspace> = Arc::new(serde_json::from_value(workspace).unwrap());
    for _ in 0..10 {
        Box::pin(reconcile(workspace.clone(), context.clone())).await.unwrap();
    }
    let is_apply = |request: &RecordedRequest| {
        request.method == "PATCH" && request.path.contains("/services/") && !request.query.contains("dryRun")
    };
    let applies = log.all().iter().filter(|request| is_apply(request)).count();
    // The count includes the first apply, which creates the object.
    assert_eq!(applies, 6, "{:?}", log.verbs());
    let status = objects.lock().unwrap()[WORKSPACE]["status"].clone();
    let ready = status["conditions"].as_array().unwrap().iter().find(|condition| condition["type"] == "Ready").unwrap();
    let message = ready["message"].as_str().unwrap();
    assert!(message.starts_with("waiting for the pod to be created; "), "{ready}");
    let text = "Service web-workspace: metadata.labels.team (changed by an admission webhook or policy)";
    assert!(message.contains(text), "{ready}");
}

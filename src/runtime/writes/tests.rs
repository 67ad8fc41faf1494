//! Tests for writes to a fake API server, and for leadership.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::Secret;
use proptest::prelude::*;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::api::auto::{Update, UpdateStatus};
use crate::runtime::fake_api::{FakeResponse, Log, RecordedRequest, apply_json_merge_patch, client};
use crate::runtime::writes::{Created, Leadership, WriteError, Writer, difference, without_nulls};
use crate::telemetry::metrics::Metrics;

const PATH: &str = "/apis/auto.pulumi.com/v1alpha1/namespaces/apps/updates/web";
/// Query string of a write whose only parameter is the field manager.
const OURS: &str = "&fieldManager=pulumi-controller";

fn update(status: Value) -> Update {
    serde_json::from_value(json!({
        "apiVersion": "auto.pulumi.com/v1alpha1", "kind": "Update",
        "metadata": { "name": "web", "namespace": "apps", "uid": "u1", "resourceVersion": "7" },
        "spec": { "workspaceName": "web", "stackName": "dev", "type": "up", "artifact": { "digest": crate::artifact::Digest::of(b"a") } },
        "status": status,
    }))
    .unwrap()
}

fn update_with(metadata: Value) -> Update {
    let mut update = update(json!({}));
    let mut merged = serde_json::to_value(&update.metadata).unwrap();
    merged.as_object_mut().unwrap().extend(metadata.as_object().unwrap().clone());
    update.metadata = serde_json::from_value(merged).unwrap();
    update
}

fn writer(respond: impl Fn(&RecordedRequest) -> FakeResponse + Send + Sync + 'static) -> (Writer, Log) {
    let (client, log) = client(respond);
    (Writer::new(client, Duration::from_secs(30), Leadership::sole(), Metrics::default()), log)
}

/// Responds to each request with an Update.
fn accept(_: &RecordedRequest) -> FakeResponse {
    FakeResponse::Json(200, serde_json::to_value(update(json!({}))).unwrap())
}

#[tokio::test]
async fn a_status_patch_contains_only_changes_and_the_resource_version() {
    let (writer, log) = writer(accept);
    let present = update(json!({ "message": "old", "permalink": "https://x", "changes": { "same": 1, "create": 2 } }));
    let mut status = present.status.clone().unwrap();
    status.message = Some("new".into());
    status.permalink = None;
    status.changes.remove("create");
    assert!(writer.status(&present, &status).await.unwrap().is_some());
    let requests = log.all();
    assert_eq!((requests[0].method.as_str(), requests[0].path.as_str()), ("PATCH", format!("{PATH}/status").as_str()));
    assert_eq!(requests[0].query, OURS);
    let difference = json!({ "message": "new", "permalink": null, "changes": { "create": null } });
    assert_eq!(requests[0].body, json!({ "metadata": { "resourceVersion": "7" }, "status": difference }));
}

#[tokio::test]
async fn an_unchanged_status_sends_no_request() {
    let (writer, log) = writer(accept);
    let present = update(json!({ "message": "same", "changes": { "same": 1 } }));
    assert!(writer.status(&present, present.status.as_ref().unwrap()).await.unwrap().is_none());
    assert!(log.all().is_empty());
}

#[tokio::test]
async fn nothing_is_written_without_the_lease() {
    let (client, log) = client(accept);
    let (until, leadership) = Leadership::elected();
    let writer = Writer::new(client, Duration::from_secs(30), leadership, Metrics::default());
    let status = UpdateStatus { message: Some("new".into()), ..UpdateStatus::default() };
    let error = writer.status(&update(json!({})), &status).await.unwrap_err();
    assert!(error.is_not_leader());
    let expected = "failed to write the status of Update apps/web: this process does not hold the Lease";
    assert_eq!(error.to_string(), expected);
    assert!(writer.delete::<Update>("apps", "web", None).await.unwrap_err().is_not_leader());
    assert!(log.all().is_empty());
    until.send_replace(Some(Instant::now() + Duration::from_secs(30)));
    writer.status(&update(json!({})), &status).await.unwrap();
    assert_eq!(log.all().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_request_to_an_unresponsive_server_times_out() {
    let (writer, _) = writer(|_| FakeResponse::Silence);
    let error = writer.delete::<Secret>("apps", "outputs", None).await.unwrap_err();
    assert_eq!(error.to_string(), "failed to delete Secret apps/outputs: API server did not respond within 30 s");
}

#[tokio::test]
async fn write_errors_are_distinguished_and_contain_the_server_message() {
    type Check = fn(&WriteError) -> bool;
    let cases: [(u16, &str, Check); 5] = [
        (409, "Conflict", WriteError::is_conflict),
        (404, "NotFound", WriteError::is_not_found),
        (403, "Forbidden", WriteError::is_forbidden),
        (422, "Invalid", WriteError::is_invalid),
        (400, "BadRequest", WriteError::is_invalid),
    ];
    for (code, reason, check) in cases {
        let (writer, _) = writer(move |_| FakeResponse::refusal(code, reason));
        let error = writer.apply::<Update>(&update(json!({}))).await.unwrap_err();
        assert!(check(&error), "{error}");
        assert_eq!(error.to_string(), format!("failed to apply Update apps/web: it is {reason} ({reason}, {code})"));
        assert_eq!(error.server_message(), Some(format!("it is {reason}").as_str()));
    }
}

#[tokio::test]
async fn an_internal_error_of_a_check_is_classified_by_the_dry_run_of_a_create_request() {
    let unconvertible = "failed to convert new object";
    // Columns: the status codes of the two responses, and whether the content is invalid.
    for (applied, created, is_invalid) in
        [(500, 400, true), (500, 422, true), (500, 409, false), (500, 500, false), (500, 201, false), (503, 400, false)]
    {
        let (writer, log) = writer(move |request| match (request.method.as_str(), created) {
            ("PATCH", _) => FakeResponse::refusal(applied, unconvertible),
            (_, 201) => accept(request),
            (_, code) => FakeResponse::refusal(code, "create"),
        });
        let object = json!({ "metadata": { "name": "web", "namespace": "apps" }, "spec": { "stackName": "dev" } });
        let error = writer.check::<Update>(&object).await.unwrap_err();
        assert_eq!(error.is_invalid(), is_invalid, "{applied} {created}: {error}");
        assert_eq!(error.to_string().contains(unconvertible), !is_invalid, "{applied} {created}: {error}");
        let requests = log.all();
        assert_eq!(requests.len(), if applied == 500 { 2 } else { 1 }, "{applied} {created}");
        if let Some(create) = requests.get(1) {
            assert_eq!((create.method.as_str(), create.path.as_str()), ("POST", PATH.trim_end_matches("/web")));
            assert_eq!(create.query, "&dryRun=All&fieldManager=pulumi-controller");
            assert_eq!(create.body.pointer("/kind"), Some(&json!("Update")));
        }
    }
}

#[tokio::test]
async fn applying_is_forced_and_checking_is_a_dry_run() {
    let (writer, log) = writer(accept);
    let intent = json!({ "metadata": { "name": "web", "namespace": "apps" }, "spec": { "stackName": "dev" } });
    writer.apply::<Update>(&intent).await.unwrap();
    writer.check::<Update>(&intent).await.unwrap();
    let requests = log.all();
    assert_eq!(requests[0].query, "&force=true&fieldManager=pulumi-controller");
    assert_eq!(requests[1].query, "&dryRun=All&force=true&fieldManager=pulumi-controller&fieldValidation=Strict");
    assert_eq!(requests[0].body.pointer("/apiVersion"), Some(&json!("auto.pulumi.com/v1alpha1")));
    assert_eq!(requests[0].body.pointer("/kind"), Some(&json!("Update")));
    let error = writer.apply::<Update>(&json!({ "metadata": { "name": "web" } })).await.unwrap_err();
    assert!(matches!(error, WriteError::Nameless { .. }));
}

#[tokio::test]
async fn creating_an_existing_object_returns_it() {
    let (creator, log) =
        writer(
            |request| {
                if request.method == "POST" { FakeResponse::refusal(409, "AlreadyExists") } else { accept(request) }
            },
        );
    let created = creator.create(&update(json!({}))).await.unwrap();
    assert!(matches!(&created, Created::Existing(update) if update.metadata.uid.as_deref() == Some("u1")));
    assert_eq!(
        log.verbs(),
        ["POST /apis/auto.pulumi.com/v1alpha1/namespaces/apps/updates".to_owned(), format!("GET {PATH}")]
    );

    let gone = |request: &RecordedRequest| match request.method.as_str() {
        "POST" => FakeResponse::refusal(409, "AlreadyExists"),
        _ => FakeResponse::refusal(404, "NotFound"),
    };
    assert!(writer(gone).0.create(&update(json!({}))).await.unwrap_err().is_conflict());
    assert!(matches!(writer(accept).0.create(&update(json!({}))).await.unwrap(), Created::New(_)));
}

#[tokio::test]
async fn a_response_with_invalid_managed_fields_is_not_an_error() {
    let (writer, log) = writer(|_| {
        let mut object = serde_json::to_value(update(json!({}))).unwrap();
        let entry = json!({ "manager": "a", "operation": "Update", "time": "9999-12-31T23:59:59Z" });
        object["metadata"]["managedFields"] = json!([entry]);
        FakeResponse::Json(200, object)
    });
    let present = update(json!({ "message": "old" }));
    let mut status = present.status.clone().unwrap();
    status.message = Some("new".into());
    assert!(writer.status(&present, &status).await.unwrap().is_some());
    let applied: Update = writer.apply(&present).await.unwrap();
    assert_eq!(applied.metadata.managed_fields.map(|entries| entries.len()), Some(1));
    writer.merge::<Update>("apps", "web", &json!({})).await.unwrap();
    writer.add_finalizer(&present, "auto.pulumi.com/test").await.unwrap();
    writer.delete::<Update>("apps", "web", None).await.unwrap();
    let metadata = log.all().into_iter().filter(|request| request.accept.contains("as=PartialObjectMetadata"));
    assert_eq!(metadata.count(), 1, "the finalizer is a change to metadata");
}

#[tokio::test]
async fn a_deletion_is_limited_to_the_uid_and_succeeds_for_a_missing_object() {
    let (writer, log) = writer(|_| FakeResponse::refusal(404, "NotFound"));
    writer.delete::<Update>("apps", "web", Some("u1")).await.unwrap();
    let expected = json!({ "propagationPolicy": "Background", "preconditions": { "uid": "u1" } });
    assert_eq!(log.all()[0].body, expected);
}

#[tokio::test]
async fn finalizer_patches_fail_if_the_object_has_changed() {
    let (writer, log) = writer(accept);
    let uid = json!({ "op": "test", "path": "/metadata/uid", "value": "u1" });
    writer.add_finalizer(&update_with(json!({})), "ours").await.unwrap();
    writer.add_finalizer(&update_with(json!({ "finalizers": ["theirs"] })), "ours").await.unwrap();
    writer.remove_finalizers(&update_with(json!({ "finalizers": ["theirs", "ours"] })), &["ours"]).await.unwrap();
    let all = update_with(json!({ "finalizers": ["one", "theirs", "two"] }));
    writer.remove_finalizers(&all, &["one", "two"]).await.unwrap();
    let bodies: Vec<Value> = log.all().into_iter().map(|request| request.body).collect();
    let expected = [
        json!([uid, { "op": "test", "path": "/metadata/finalizers", "value": null },
            { "op": "add", "path": "/metadata/finalizers", "value": ["ours"] }]),
        json!([uid, { "op": "test", "path": "/metadata/finalizers", "value": ["theirs"] },
            { "op": "add", "path": "/metadata/finalizers/-", "value": "ours" }]),
        json!([uid, { "op": "test", "path": "/metadata/finalizers/1", "value": "ours" },
            { "op": "remove", "path": "/metadata/finalizers/1" }]),
        json!([uid, { "op": "test", "path": "/metadata/finalizers/2", "value": "two" },
            { "op": "remove", "path": "/metadata/finalizers/2" },
            { "op": "test", "path": "/metadata/finalizers/0", "value": "one" },
            { "op": "remove", "path": "/metadata/finalizers/0" }]),
    ];
    assert_eq!(bodies, expected);
    assert!(log.all().iter().all(|request| request.query == OURS), "{:?}", log.all());
    writer.add_finalizer(&update_with(json!({ "finalizers": ["ours"] })), "ours").await.unwrap();
    writer.remove_finalizers(&update_with(json!({})), &["ours"]).await.unwrap();
    assert_eq!(log.all().len(), 4, "no request is made for an unchanged object");
}

#[tokio::test]
async fn removing_a_finalizer_from_a_missing_object_succeeds() {
    let (writer, _) = writer(|_| FakeResponse::refusal(404, "NotFound"));
    writer.remove_finalizers(&update_with(json!({ "finalizers": ["ours"] })), &["ours"]).await.unwrap();
    assert!(writer.add_finalizer(&update_with(json!({})), "ours").await.unwrap_err().is_not_found());
}

#[tokio::test]
async fn only_annotations_that_differ_are_written() {
    let (writer, log) = writer(accept);
    let object = update_with(json!({ "annotations": { "same": "1", "other": "1", "gone": "1" } }));
    let text = |text: &str| Some(text.to_owned());
    let expected = [("same", text("1")), ("other", text("2")), ("gone", None), ("never", None)];
    let expected: BTreeMap<String, Option<String>> = expected.map(|(key, value)| (key.to_owned(), value)).into();
    writer.annotate(&object, &expected).await.unwrap();
    let annotations = json!({ "other": "2", "gone": null });
    assert_eq!(log.all()[0].body, json!({ "metadata": { "annotations": annotations, "uid": "u1" } }));
    assert_eq!(log.all()[0].query, OURS);
    writer.annotate(&object, &BTreeMap::from([("same".to_owned(), text("1"))])).await.unwrap();
    assert_eq!(log.all().len(), 1);
}

#[tokio::test]
async fn a_terminating_namespace_is_distinguished_from_other_errors() {
    for (causes, expected) in
        [(json!([{ "reason": "NamespaceTerminating", "field": "metadata.namespace" }]), true), (json!([]), false)]
    {
        let (writer, _) = writer(move |_| {
            let status = json!({
                "kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Forbidden", "code": 403,
                "message": "secrets \"s\" is forbidden", "details": { "causes": causes },
            });
            FakeResponse::Json(403, status)
        });
        let error = writer.apply::<Update>(&update(json!({}))).await.unwrap_err();
        assert!(error.is_forbidden());
        assert_eq!(error.is_namespace_terminating(), expected, "{error}");
    }
}

#[tokio::test]
async fn field_managers_of_pko_are_renamed_in_one_conditional_patch() {
    let entry = |manager: &str, subresource: &str| {
        json!({ "manager": manager, "operation": "Apply", "subresource": subresource, "apiVersion": "auto.pulumi.com/v1alpha1",
            "fieldsType": "FieldsV1", "fieldsV1": { "f:metadata": {} } })
    };
    let left =
        json!([entry("pulumi-kubernetes-operator", ""), entry("pulumi-kubernetes-operator/update-status", "status")]);
    let (gate, log) = writer(accept);
    let taken = gate.take_over(&update_with(json!({ "managedFields": left }))).await.unwrap();
    assert!(taken.is_some());
    let requests = log.all();
    assert_eq!((requests.len(), requests[0].method.as_str(), requests[0].path.as_str()), (1, "PATCH", PATH));
    assert_eq!(requests[0].query, OURS);
    let metadata = &requests[0].body["metadata"];
    assert_eq!(metadata["resourceVersion"], "7", "the resource version detects concurrent changes");
    let managers: Vec<_> =
        metadata["managedFields"].as_array().unwrap().iter().map(|e| (&e["manager"], &e["operation"])).collect();
    let ours = json!("pulumi-controller");
    assert_eq!(managers, [(&ours, &json!("Apply")), (&ours, &json!("Update"))]);
    assert_eq!(requests[0].body.as_object().unwrap().len(), 1, "spec and status are not written");
}

#[tokio::test]
async fn no_takeover_is_requested_for_fields_that_are_already_owned() {
    let entry = json!([{ "manager": "pulumi-controller", "operation": "Apply" }, { "manager": "kubectl", "operation": "Update" }]);
    let (gate, log) = writer(accept);
    assert!(gate.take_over(&update_with(json!({ "managedFields": entry }))).await.unwrap().is_none());
    assert!(log.all().is_empty());
    let (gate, _) = writer(|_| FakeResponse::refusal(409, "Conflict"));
    let theirs = json!([{ "manager": "pulumi-kubernetes-operator", "operation": "Update" }]);
    assert!(gate.take_over(&update_with(json!({ "managedFields": theirs }))).await.unwrap_err().is_conflict());
}

#[tokio::test(start_paused = true)]
async fn leadership_expires_without_an_explicit_signal() {
    let (until, leadership) = Leadership::elected();
    assert!(!leadership.is_held(), "no leadership before the election");
    until.send_replace(Some(Instant::now() + Duration::from_secs(30)));
    assert!(leadership.is_held());
    tokio::time::advance(Duration::from_secs(30)).await;
    assert!(!leadership.is_held(), "the deadline suffices");
    until.send_replace(Some(Instant::now() + Duration::from_secs(30)));
    assert!(leadership.is_held());
    until.send_replace(None);
    assert!(!leadership.is_held());
    assert!(Leadership::sole().is_held());
}

fn json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![Just(Value::Null), any::<bool>().prop_map(Value::from), (0..3).prop_map(Value::from)];
    leaf.prop_recursive(3, 20, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            prop::collection::btree_map("[abc]", inner, 0..4).prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn applying_the_difference_yields_the_expected_value(present in json(), expected in json()) {
        let present = without_nulls(&present);
        let mut result = present.clone();
        if let Some(patch) = difference(&present, &expected) {
            apply_json_merge_patch(&mut result, &patch);
        }
        prop_assert_eq!(&result, &without_nulls(&expected));
        prop_assert_eq!(difference(&result, &expected), None);
    }
}

/// The API server rejects a patch for a replaced object with the status code 422, like invalid content.
#[tokio::test]
async fn a_write_for_a_replaced_object_is_a_conflict() {
    let server = kube_sim::Server::new(kube_sim::Options::new(1, jiff::Timestamp::UNIX_EPOCH)).unwrap();
    let limit = Duration::from_secs(30);
    let writer = Writer::new(server.client("controller"), limit, Leadership::sole(), Metrics::default());
    let metadata = json!({ "name": "web", "namespace": "default", "finalizers": ["example.com/kept"] });
    let secret = json!({ "apiVersion": "v1", "kind": "Secret", "metadata": metadata });
    let old: Secret = serde_json::from_value(server.create(&secret).unwrap()).unwrap();
    let key = kube_sim::Key::new(kube_sim::GroupResource::new("", "secrets"), Some("default"), "web");
    server.put_unchecked(&key, None, "user");
    server.create(&secret).unwrap();
    let annotations = BTreeMap::from([("example.com/a".to_owned(), Some("1".to_owned()))]);
    let writes = [
        ("annotate", writer.annotate(&old, &annotations).await),
        ("add a finalizer", writer.add_finalizer(&old, "example.com/new").await),
        ("remove a finalizer", writer.remove_finalizers(&old, &["example.com/kept"]).await),
    ];
    for (name, result) in writes {
        let error = result.expect_err(name);
        assert!(error.is_conflict() && !error.is_content_rejected(), "{name}: {error}");
    }
}

//! Tests that compare the schemas of a fake API server.

use std::sync::{Arc, Mutex};

use serde_json::json;

use super::*;
use crate::api::definitions::custom_resource_definitions;
use crate::runtime::fake_api::{FakeResponse, client};

fn object(properties: Value) -> Value {
    json!({"type": "object", "properties": properties})
}

#[test]
fn a_field_missing_from_the_served_schema_is_reported_with_its_path() {
    let text = json!({"type": "string"});
    let any = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let list = |items: &Value| json!({"type": "array", "items": items});
    let map = |values: &Value| json!({"type": "object", "additionalProperties": values});
    let rows = [
        (object(json!({"a": text})), object(json!({"a": text, "b": text})), vec![]),
        (object(json!({"a": text, "b": text})), object(json!({"a": text})), vec!["status.b"]),
        (object(json!({"a": object(json!({"b": text}))})), object(json!({"a": object(json!({}))})), vec!["status.a.b"]),
        (
            object(json!({"a": list(&object(json!({"b": text})))})),
            object(json!({"a": list(&object(json!({"c": text})))})),
            vec!["status.a[].b"],
        ),
        (
            object(json!({"a": map(&object(json!({"b": text})))})),
            object(json!({"a": map(&object(json!({})))})),
            vec!["status.a.*.b"],
        ),
        (object(json!({"a": map(&text)})), object(json!({"a": object(json!({}))})), vec!["status.a.*"]),
        (object(json!({"a": object(json!({"b": text}))})), object(json!({"a": any})), vec![]),
        (object(json!({"a": any})), object(json!({"a": object(json!({}))})), vec!["status.a.*"]),
        (object(json!({"a": any})), object(json!({"a": any})), vec![]),
    ];
    for (ours, served, expected) in rows {
        let (ours, served) = (object(json!({"status": ours})), object(json!({"status": served})));
        assert_eq!(missing_fields(&ours, &served), expected, "{ours} {served}");
    }
}

#[test]
fn no_field_is_missing_from_an_identical_schema() {
    for definition in custom_resource_definitions() {
        let schema = serde_json::to_value(&definition.spec.versions[0].schema).unwrap();
        let ours = &schema["openAPIV3Schema"];
        // An Approval has no status.
        let kind = definition.spec.names.kind.as_str();
        assert_eq!(ours["properties"]["status"].is_object(), kind != "Approval", "{kind}");
        assert_eq!(missing_fields(ours, ours), Vec::<String>::new());
    }
}

/// Returns the OpenAPI document that the fake API server serves for a version. If `is_older` is set, the Workspace
/// status has the fields of an older version.
fn document(path: &str, is_older: bool) -> Option<Value> {
    let mut schemas = Map::new();
    for definition in custom_resource_definitions() {
        let (group, version) = (&definition.spec.group, &definition.spec.versions[0]);
        if path != format!("/openapi/v3/apis/{group}/{}", version.name) {
            continue;
        }
        let kind = &definition.spec.names.kind;
        let mut schema = serde_json::to_value(&version.schema).unwrap()["openAPIV3Schema"].take();
        schema["x-kubernetes-group-version-kind"] = json!([{"group": group, "version": version.name, "kind": kind}]);
        if is_older && kind == "Workspace" {
            let status = schema["properties"]["status"]["properties"].as_object_mut().unwrap();
            status.remove("mountedInputs").expect("field is set");
        }
        schemas.insert(format!("{group}.{kind}"), schema);
    }
    (!schemas.is_empty()).then(|| json!({"openapi": "3.0.0", "components": {"schemas": schemas}}))
}

/// Returns the problems that the comparison finds in the served schemas.
async fn found(client: &Client) -> Vec<String> {
    problems(&served(client, TIMEOUT).await.unwrap()).unwrap()
}

async fn compare(served: &[Served]) -> Result<Vec<String>, String> {
    problems(served).map_err(|error| error.to_string())
}

const TIMEOUT: Duration = Duration::from_secs(5);

#[tokio::test(start_paused = true)]
async fn the_schema_check_waits_until_an_older_crd_is_replaced() {
    let is_older = Arc::new(Mutex::new(true));
    let seen = is_older.clone();
    let (client, log) = client(move |request| match document(&request.path, *seen.lock().unwrap()) {
        Some(document) => FakeResponse::Json(200, document),
        None => FakeResponse::refusal(404, "NotFound"),
    });
    assert_eq!(
        found(&client).await,
        ["CustomResourceDefinition workspaces.auto.pulumi.com is older than this controller and lacks \
             status.mountedInputs"]
    );
    let mut waiting = Box::pin(until_complete_by(&client, TIMEOUT, compare));
    assert!(
        tokio::time::timeout(Duration::from_secs(60), &mut waiting).await.is_err(),
        "should wait for the missing fields"
    );
    *is_older.lock().unwrap() = false;
    tokio::time::timeout(Duration::from_secs(60), waiting).await.expect("completes after the update of the CRD");
    assert!(log.verbs().iter().all(|verb| verb.starts_with("GET /openapi/v3/apis/")));
}

#[tokio::test(start_paused = true)]
async fn the_schema_check_waits_for_an_unserved_crd_but_skips_a_denied_read() {
    let (absent, _) = client(|_| FakeResponse::refusal(404, "NotFound"));
    assert_eq!(found(&absent).await[0], "CustomResourceDefinition stacks.pulumi.com does not serve version v1");
    let (refused, _) = client(|_| FakeResponse::refusal(403, "Forbidden"));
    let done = tokio::time::timeout(Duration::from_secs(60), until_complete_by(&refused, TIMEOUT, compare)).await;
    done.expect("a denied read does not block");
}

#[tokio::test(start_paused = true)]
async fn a_failed_schema_check_is_retried() {
    let (client, _) = client(|_| FakeResponse::refusal(404, "NotFound"));
    let left = Mutex::new(2);
    let compare = async |_: &[Served]| {
        let mut left = left.lock().unwrap();
        if *left == 0 {
            return Ok(Vec::new());
        }
        *left -= 1;
        Err("killed".to_owned())
    };
    let done = tokio::time::timeout(Duration::from_secs(60), until_complete_by(&client, TIMEOUT, compare)).await;
    done.expect("completes once the comparison succeeds");
}

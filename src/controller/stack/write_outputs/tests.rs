//! Tests for writing objects with outputs.

use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use super::*;
use crate::api::pulumi::StackSpec;
use crate::controller::test_parts::TestParts;
use crate::runtime::fake_api::{FakeResponse, RecordedRequest, client};
use crate::runtime::writes::AttemptedWrite;

const PATH: &str = "/api/v1/namespaces/apps/configmaps/settings";

fn stack() -> Stack {
    let mut stack = Stack::new("web", StackSpec::default());
    (stack.metadata.namespace, stack.metadata.uid) = (Some("apps".to_owned()), Some("stack-uid".to_owned()));
    stack
}

fn object() -> ConfigMap {
    let target = serde_json::from_value(json!({"kind": "ConfigMap", "name": "settings"})).unwrap();
    output_objects::config_map(&stack(), &target, [("url".to_owned(), "http://one".to_owned())].into())
}

/// Returns an object as the API server stores it, with this owner.
fn stored(owner: &str, operation: &str) -> Value {
    let managed = json!([{"manager": "pulumi-controller", "operation": operation, "fieldsV1": {"f:data": {}}}]);
    let owner = json!({"apiVersion": "pulumi.com/v1", "kind": "Stack", "name": "web", "uid": owner});
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {
        "name": "settings", "namespace": "apps", "uid": "uid", "resourceVersion": "1", "ownerReferences": [owner],
        "managedFields": managed,
    }})
}

/// Writes the object to an API server that contains the object `before`. If `created` is set, another client creates
/// this object between the read and the write. Returns the result and a list of the writes. The list contains each
/// write's method, the UID in its body, and whether the body contains managed fields.
async fn written(before: Option<Value>, created: Option<Value>) -> (Written, Vec<(String, Value, bool)>) {
    let present = Arc::new(Mutex::new(before));
    let (client, log) = client(move |request: &RecordedRequest| {
        let mut present = present.lock().unwrap();
        match (request.method.as_str(), present.clone()) {
            ("GET", None) => FakeResponse::refusal(404, "NotFound"),
            ("POST", None) => match &created {
                Some(foreign) => {
                    *present = Some(foreign.clone());
                    FakeResponse::refusal(409, "AlreadyExists")
                }
                None => {
                    *present = Some(stored("stack-uid", "Update"));
                    FakeResponse::Json(201, stored("stack-uid", "Update"))
                }
            },
            ("GET" | "PATCH", Some(object)) => FakeResponse::Json(200, object),
            _ => FakeResponse::refusal(500, "InternalError"),
        }
    });
    let parts = TestParts::new(client);
    let result = put(&stack(), object(), &parts.reader, &parts.writer).await.unwrap();
    let writes = log.all().into_iter().filter(|request| request.method != "GET").map(|request| {
        assert!(request.path == PATH || request.method == "POST", "{}", request.path);
        let metadata = &request.body["metadata"];
        (request.method, metadata["uid"].clone(), metadata.get("managedFields").is_some())
    });
    (result, writes.collect())
}

#[tokio::test]
async fn an_object_of_another_owner_is_never_overwritten() {
    let (result, writes) = written(Some(stored("other", "Update")), None).await;
    assert!(result.unwrap_err().contains("ConfigMap settings exists and does not belong to this Stack"));
    assert!(writes.is_empty(), "{writes:?}");
    let (result, writes) = written(None, Some(stored("other", "Update"))).await;
    assert!(result.unwrap_err().contains("does not belong to this Stack"), "created after the read");
    assert_eq!(writes, [("POST".to_owned(), Value::Null, false)]);
}

#[tokio::test]
async fn an_object_is_created_once_and_then_applied_with_its_uid() {
    let applied = ("PATCH".to_owned(), json!("uid"), false);
    let owned = ("PATCH".to_owned(), Value::Null, true);
    let (result, writes) = written(None, None).await;
    assert_eq!(result, Ok(()));
    assert_eq!(writes, [("POST".to_owned(), Value::Null, false), owned, applied.clone()]);
    let (result, writes) = written(Some(stored("stack-uid", "Apply")), None).await;
    assert_eq!((result, writes), (Ok(()), vec![applied]));
}

#[test]
fn a_permanently_rejected_write_does_not_prevent_the_record_of_the_run() {
    let is_final = |code, message: &str| {
        let (kind, namespace, name) = ("Secret".to_owned(), "apps".to_owned(), "outputs".to_owned());
        let attempt = Box::new(AttemptedWrite { verb: "apply", kind, namespace, name });
        let (reason, message) = ("Reason".to_owned(), message.to_owned());
        matches!(refusal(Err(WriteError::Refused { attempt, code, reason, message })), Ok(Err(_)))
    };
    let rows = [
        (403, "no", true),
        (413, "no", true),
        (422, "no", true),
        (500, "etcdserver: request is too large", true),
        (500, "no", false),
        (429, "no", false),
    ];
    for (code, message, expected) in rows {
        assert_eq!(is_final(code, message), expected, "{code} {message}");
    }
}

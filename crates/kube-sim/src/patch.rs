//! JSON patch and JSON merge patch, with the error responses of the API server.

use json_patch::{Patch, PatchOperation, TestOperation};
use serde_json::Value;

use crate::status::Status;

/// Maximum number of operations in a JSON patch.
const MAX_OPERATIONS: usize = 10_000;

/// Applies a JSON patch.
///
/// # Errors
/// Returns status code 400 if the patch is malformed, and 422 if an operation is impossible or a `test` fails.
pub(crate) fn apply_json(object: &Value, patch: &[u8]) -> Result<Value, Status> {
    let Patch(operations) = serde_json::from_slice(patch)
        .map_err(|error| Status::bad_request(&format!("error decoding patch: {error}")))?;
    if operations.len() > MAX_OPERATIONS {
        let message = format!("The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}");
        return Err(Status::new(413, "RequestEntityTooLarge", &message));
    }
    let mut patched = object.clone();
    for operation in operations {
        if is_test_of_missing(&patched, &operation) {
            continue;
        }
        json_patch::patch(&mut patched, &[operation]).map_err(|_| {
            Status::new(422, "Invalid", "the server rejected our request due to an error in our request")
        })?;
    }
    Ok(patched)
}

/// Returns whether the operation tests that an optional field is missing. RFC 6902 knows no such test, but the API server
/// compares a missing field with null.
fn is_test_of_missing(object: &Value, operation: &PatchOperation) -> bool {
    let PatchOperation::Test(TestOperation { path, value }) = operation else { return false };
    let (Some((parent, _)), true) = (path.as_str().rsplit_once('/'), value.is_null()) else { return false };
    object.pointer(path.as_str()).is_none() && object.pointer(parent).is_some_and(Value::is_object)
}

/// Applies a JSON merge patch.
///
/// # Errors
/// Returns status code 400 if the patch is no JSON object.
pub(crate) fn apply_merge(object: &Value, patch: &[u8]) -> Result<Value, Status> {
    let patch: Value = serde_json::from_slice(patch)
        .map_err(|error| Status::bad_request(&format!("error decoding patch: {error}")))?;
    if !patch.is_object() {
        return Err(Status::bad_request("error decoding patch: not a JSON object"));
    }
    let mut patched = object.clone();
    merge(&mut patched, &patch);
    Ok(patched)
}

/// Merges a patch as the API server does, which differs from RFC 7396 in nulls inside of lists: the API server removes
/// the fields of the elements that are null.
fn merge(value: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *value = without_nulls(patch);
        return;
    };
    if !value.is_object() {
        *value = without_nulls(&Value::Object(patch.clone()));
        return;
    }
    let Value::Object(map) = value else { return };
    for (name, change) in patch {
        match map.get_mut(name) {
            _ if change.is_null() => drop(map.remove(name)),
            Some(value) if !value.is_null() => merge(value, change),
            _ => drop(map.insert(name.clone(), without_nulls(change))),
        }
    }
}

fn without_nulls(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let kept = map.iter().filter(|(_, value)| !value.is_null());
            Value::Object(kept.map(|(name, value)| (name.clone(), without_nulls(value))).collect())
        }
        Value::Array(list) => list.iter().map(without_nulls).collect(),
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn json_patches() {
        let object = json!({ "metadata": { "finalizers": ["a"] } });
        let table = [
            (json!([{ "op": "test", "path": "/metadata/labels", "value": null }]), Ok(object.clone())),
            (json!([{ "op": "test", "path": "/metadata/finalizers", "value": null }]), Err(422)),
            (json!([{ "op": "test", "path": "/metadata/labels/a", "value": null }]), Err(422)),
            (json!([{ "op": "test", "path": "/metadata/finalizers/0", "value": "b" }]), Err(422)),
            (
                json!([{ "op": "add", "path": "/metadata/finalizers/-", "value": "b" }]),
                Ok(json!({ "metadata": { "finalizers": ["a", "b"] } })),
            ),
            (json!([{ "op": "remove", "path": "/metadata/labels" }]), Err(422)),
            (json!([{ "op": "unknown", "path": "/a" }]), Err(400)),
            (json!({}), Err(400)),
        ];
        for (patch, expected) in table {
            let result = apply_json(&object, patch.to_string().as_bytes()).map_err(|status| status.code);
            assert_eq!(result, expected, "{patch}");
        }
    }

    #[test]
    fn merge_patches() {
        let object = json!({ "a": 1, "b": { "c": 1 } });
        let patched = apply_merge(&object, br#"{"a": null, "b": {"d": 2}}"#).unwrap();
        assert_eq!(patched, json!({ "b": { "c": 1, "d": 2 } }));
        for invalid in ["[]", "1", "{"] {
            assert_eq!(apply_merge(&object, invalid.as_bytes()).unwrap_err().code, 400);
        }
    }
}

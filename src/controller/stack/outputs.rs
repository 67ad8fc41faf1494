//! The outputs in a Stack's status.

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;
use serde_json::Value;

use crate::api::{bounds, names};

/// Replaces secret outputs in the status.
const SECRET: &str = "[secret]";
/// Maximum size of all outputs in the status, in bytes. It leaves room for other fields below the size limit of etcd.
const MAX_STATUS_BYTES: usize = 256 * 1024;
/// Maximum number of outputs in the status, which the schema limits. The Secret has all outputs.
const MAX_OUTPUTS: usize = bounds::ENTRIES as usize;

/// Returns the outputs of a Secret for the status. Secret values are replaced with `[secret]`. If the outputs exceed the maximum size, the
/// largest values are replaced with a reference to the Secret.
pub(super) fn masked(outputs: Option<&Secret>) -> BTreeMap<String, Value> {
    let Some(secret) = outputs else { return BTreeMap::new() };
    let secret_keys: Vec<String> = secret
        .annotations()
        .get(names::ANNOTATION_SECRETS)
        .and_then(|text| serde_json::from_str(text).ok())
        .unwrap_or_default();
    let size = |(key, bytes): &(&String, &ByteString)| match secret_keys.contains(key) {
        true => SECRET.len(),
        false => bytes.0.len(),
    };
    let mut all: Vec<_> = secret.data.iter().flatten().collect();
    all.sort_by_key(size);
    let mut remaining = MAX_STATUS_BYTES;
    let value = |output: (&String, &ByteString)| {
        let (key, bytes) = output;
        remaining = remaining.saturating_sub(size(&output));
        let value = match secret_keys.contains(key) {
            true => Value::from(SECRET),
            false if remaining == 0 => Value::from(format!("[too large: see Secret {}]", secret.name_any())),
            false => serde_json::from_slice(&bytes.0).unwrap_or(Value::Null),
        };
        (key.clone(), value)
    };
    all.into_iter().take(MAX_OUTPUTS).map(value).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn secret_outputs_are_masked_and_large_ones_are_omitted() {
        let text = |length: usize| format!("\"{}\"", "x".repeat(length)).into_bytes();
        let values = [
            ("token", b"\"hidden\"".to_vec()),
            ("hidden", text(400 * 1024)),
            ("count", b"3".to_vec()),
            ("half", text(200 * 1024)),
            ("more", text(220 * 1024)),
        ];
        let mut secret = Secret::default();
        secret.metadata.name = Some("app-1-stack-outputs".to_owned());
        let secrets = json!(["token", "hidden"]).to_string();
        secret.metadata.annotations = Some([(names::ANNOTATION_SECRETS.to_owned(), secrets)].into());
        secret.data = Some(values.map(|(key, value)| (key.to_owned(), ByteString(value))).into());
        let mut shown = masked(Some(&secret));
        assert_eq!(shown.remove("half").and_then(|half| half.as_str().map(str::len)), Some(200 * 1024));
        let wanted = json!({
            "token": "[secret]", "hidden": "[secret]", "count": 3,
            "more": "[too large: see Secret app-1-stack-outputs]",
        });
        assert_eq!(json!(shown), wanted);
        assert!(masked(None).is_empty());
        let many = (0..2000).map(|number| (format!("o{number}"), ByteString(b"1".to_vec()))).collect();
        assert_eq!(masked(Some(&Secret { data: Some(many), ..Secret::default() })).len(), MAX_OUTPUTS);
    }
}

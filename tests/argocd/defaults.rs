//! Checks that no schema sets defaults in the list items of a spec. Argo CD compares a list as a whole. If the API
//! server added a default to an item, the object would always be out of sync.

use pulumi_controller::api::definitions::custom_resource_definitions;
use serde_json::Value;

/// Collects the paths of all schema fields that have a default.
fn collect(schema: &Value, path: &str, found: &mut Vec<String>) {
    if schema.get("default").is_some() {
        found.push(path.to_owned());
    }
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        collect(field, &format!("{path}.{name}"), found);
    }
    for (part, suffix) in [("items", "[]"), ("additionalProperties", "{}")] {
        if schema[part].is_object() {
            collect(&schema[part], &format!("{path}{suffix}"), found);
        }
    }
}

#[test]
fn no_list_outside_the_status_has_defaults() {
    let mut defaults = Vec::new();
    for crd in custom_resource_definitions() {
        for version in &crd.spec.versions {
            let schema = serde_json::to_value(&version.schema).expect("a JSON object");
            collect(&schema["openAPIV3Schema"], &crd.spec.names.kind, &mut defaults);
        }
    }
    assert!(defaults.contains(&"Stack.spec.lockRecovery".to_owned()), "{defaults:?}");
    let is_status = |path: &str| path.split('.').nth(1) == Some("status");
    let in_lists: Vec<&String> = defaults.iter().filter(|path| path.contains("[]") && !is_status(path)).collect();
    assert!(in_lists.is_empty(), "{in_lists:?}");
}

//! Tests for the conventions and limits of the CustomResourceDefinitions.

use serde_json::Value;

use super::*;
use crate::api::pulumi::{DriftPolicy, StackSpec};
use crate::api::{bounds, duration};

#[test]
fn every_crd_follows_flux_conventions() {
    let crds = custom_resource_definitions();
    let kinds: Vec<&str> = crds.iter().map(|crd| crd.spec.names.kind.as_str()).collect();
    assert_eq!(kinds, ["Stack", "Program", "StackReceiver", "Approval", "Workspace", "Update"]);
    for crd in &crds {
        let kind = &crd.spec.names.kind;
        assert_eq!(crd.spec.scope, "Namespaced", "{kind}");
        assert_eq!(crd.spec.names.categories, Some(vec!["pulumi".to_owned()]), "{kind}");
        for name in ["kustomize.toolkit.fluxcd.io/substitute", "kustomize.toolkit.fluxcd.io/prune"] {
            let value = crd.metadata.annotations.as_ref().and_then(|all| all.get(name));
            assert_eq!(value.map(String::as_str), Some("disabled"), "{kind}: {name}");
        }
        for version in &crd.spec.versions {
            // An Approval is a record without a controller, so it has no status.
            if kind == "Approval" {
                continue;
            }
            let what = format!("{kind} {}", version.name);
            let subresources = version.subresources.as_ref();
            assert!(subresources.is_some_and(|all| all.status.is_some()), "{what}");
            let schema = serde_json::to_value(&version.schema).expect("valid JSON schema");
            let status = &schema["openAPIV3Schema"]["properties"]["status"];
            assert_eq!(status["default"], json!({"observedGeneration": -1}), "{what}");
            assert_eq!(status["properties"]["observedGeneration"]["type"], "integer", "{what}");
            let conditions = &status["properties"]["conditions"];
            assert_eq!(conditions["x-kubernetes-list-map-keys"], json!(["type"]), "{what}");
            assert_ne!(status["nullable"], true, "{what}: the API server does not replace null with the default");
        }
    }
}

#[test]
fn the_last_column_of_each_kind_is_the_age() {
    for crd in custom_resource_definitions() {
        for version in &crd.spec.versions {
            let last = version.additional_printer_columns.as_ref().and_then(|columns| columns.last());
            assert_eq!(
                last.map(|column| column.name.as_str()),
                Some("Age"),
                "{} {}",
                crd.spec.names.kind,
                version.name
            );
        }
    }
}

/// Returns the messages of the CEL rules of a schema.
fn rules(schema: &Value) -> Vec<&str> {
    let rules = schema["x-kubernetes-validations"].as_array().into_iter().flatten();
    rules.filter_map(|rule| rule["message"].as_str()).collect()
}

#[test]
fn both_versions_of_a_stack_have_the_rules_about_their_fields() {
    let stack = custom_resource_definitions().swap_remove(0);
    for (version, of_drift) in stack.spec.versions.iter().zip([&[DriftPolicy::WITHOUT_TIME][..], &[]]) {
        let schema = serde_json::to_value(&version.schema).expect("valid JSON schema");
        let spec = &schema["openAPIV3Schema"]["properties"]["spec"];
        assert!(rules(spec).contains(&StackSpec::EXPIRY_WITHOUT_CHOICE), "{}", version.name);
        assert_eq!(
            rules(&spec["properties"]["drift"]),
            of_drift,
            "{}: the older schema lacks the fields",
            version.name
        );
    }
}

/// Fields that accept any JSON value. The controller checks the size of a template when it reads the template. Only the
/// API server's maximum object size limits the other fields. A `workspaceTemplate` has the fields of a Workspace.
const ANY_JSON: [&str; 11] = [
    "Stack.spec.config{}",
    "Stack.spec.policyPacks[].config{}",
    "Stack.spec.updateTemplate.status",
    "Stack.spec.workspaceTemplate.status",
    "Stack.status.outputs{}",
    "Workspace.spec.podTemplate",
    "Workspace.spec.policyPacks[].config{}",
    "Workspace.spec.resources",
    "Workspace.spec.env[]",
    "Workspace.spec.envFrom[]",
    "Workspace.spec.stacks[].config[].value",
];

fn keeps_unknown_fields(schema: &Value) -> bool {
    schema["x-kubernetes-preserve-unknown-fields"] == true
}

fn description(schema: &Value) -> &str {
    schema["description"].as_str().unwrap_or_default()
}

/// Adds the paths of fields without a size limit to `found`. `repeated` is true for the items of lists.
fn unbounded(path: &str, schema: &Value, repeated: bool, found: &mut Vec<String>) {
    if keeps_unknown_fields(schema) {
        let field = path.replace("Stack.spec.workspaceTemplate.spec.", "Workspace.spec.");
        let is_directive = path.contains(".$");
        let is_rejected = description(schema).starts_with(template_schema::NOT_SUPPORTED);
        let is_program = path.starts_with("Program.program.");
        if !is_directive && !is_rejected && !is_program && !ANY_JSON.contains(&field.as_str()) {
            found.push(format!("{path} accepts any JSON"));
        }
        return;
    }
    if let Some(items) = schema.get("items") {
        if !schema["maxItems"].is_u64() {
            found.push(format!("{path} has no maxItems"));
        }
        unbounded(&format!("{path}[]"), items, true, found);
    }
    if let Some(values) = schema.get("additionalProperties").filter(|values| values.is_object()) {
        if !schema["maxProperties"].is_u64() {
            found.push(format!("{path} has no maxProperties"));
        }
        // The values of a map need no maximum length, because values such as certificates and scripts can be long.
        unbounded(&format!("{path}{{}}"), values, false, found);
    }
    let is_bounded = ["maxLength", "enum", "format", "pattern"].iter().any(|limit| !schema[limit].is_null());
    if repeated && schema["type"] == "string" && !is_bounded {
        found.push(format!("{path} has no maxLength"));
    }
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        unbounded(&format!("{path}.{name}"), property, repeated, found);
    }
}

/// Returns the kind and the schema of each CustomResourceDefinition in its storage version.
fn storage_schemas() -> Vec<(String, Value)> {
    let mut schemas = Vec::new();
    for crd in custom_resource_definitions() {
        for version in crd.spec.versions.iter().filter(|version| version.storage) {
            let mut schema = serde_json::to_value(&version.schema).expect("valid JSON schema");
            schemas.push((crd.spec.names.kind.clone(), schema["openAPIV3Schema"].take()));
        }
    }
    schemas
}

#[test]
fn every_list_and_map_of_the_crds_has_a_limit() {
    let mut found = Vec::new();
    for (kind, schema) in storage_schemas() {
        unbounded(&kind, &schema, false, &mut found);
    }
    assert!(found.is_empty(), "without a limit:\n{}", found.join("\n"));
}

/// Users can create many Updates and Workspaces, and the controller watches all of them.
#[test]
fn every_string_in_the_spec_of_an_update_or_workspace_has_a_limit() {
    let mut found = Vec::new();
    for (kind, schema) in storage_schemas() {
        if matches!(kind.as_str(), "Update" | "Workspace") {
            unbounded(&format!("{kind}.spec"), &schema["properties"]["spec"], true, &mut found);
        }
        if kind == "Update" {
            let spec = &schema["properties"]["spec"]["properties"];
            for duration in ["ttlAfterCompleted", "timeout", "idleTimeout"] {
                assert_eq!(spec[duration]["maxLength"], bounds::DURATION, "{duration}");
            }
            assert_eq!(spec["appliedStack"]["properties"]["backend"]["maxLength"], bounds::PATH);
        }
    }
    assert!(found.is_empty(), "without a limit:\n{}", found.join("\n"));
}

/// Integers without a unit.
const WITHOUT_UNIT: [&str; 6] =
    ["agentProtocolVersion", "generation", "observedGeneration", "pid", "priority", "pulumiLogLevel"];

/// Returns the required parts that a field's description lacks, such as an example.
fn missing(path: &str, schema: &Value, is_required: bool) -> Vec<&'static str> {
    let description = description(schema).replace('\n', " ");
    let contains = |texts: &[&str]| texts.iter().any(|text| description.contains(text));
    let mut missing = Vec::new();
    if !description.ends_with('.') {
        missing.push("a sentence");
    }
    if contains(&[template_schema::NOT_SUPPORTED, "No effect."]) {
        return missing;
    }
    let is_scalar = matches!(schema["type"].as_str(), Some("boolean" | "integer" | "number" | "string"));
    let is_int_or_string = schema["x-kubernetes-int-or-string"] == true;
    if !is_scalar && !is_int_or_string && !contains(&["Example: `", "such as `"]) {
        missing.push("an example");
    }
    // A template copies the description of a field from the object's spec. If the spec requires the field, the
    // description contains no default.
    let is_template = path.contains("Template.");
    let is_setting = !path.contains(".status.") && !is_required && !is_template;
    if is_setting && !contains(&["Default: ", "Absent if", "Required", "the field is absent"]) {
        missing.push("a default");
    }
    let name = path.rsplit('.').next().unwrap_or_default();
    let lower = path.rsplit('.').take(2).collect::<Vec<_>>().join(" ").to_lowercase();
    let is_duration = schema["type"] == "string"
        && schema["format"].is_null()
        && ["duration", "timeout", "interval", "ttl"].iter().any(|word| lower.contains(word));
    let mut code = description.split('`').skip(1).step_by(2);
    if is_duration && !code.any(|code| duration::seconds(code).is_some_and(|seconds| seconds > 0)) {
        missing.push("a duration with a unit");
    }
    let has_unit = contains(&["in seconds", "in bytes", "Number of", "number of"]);
    if schema["type"] == "integer" && !has_unit && !WITHOUT_UNIT.contains(&name) {
        missing.push("a unit");
    }
    missing
}

/// Adds the fields with an incomplete description to `found`.
fn incomplete(path: &str, schema: &Value, found: &mut Vec<String>) {
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        let path = format!("{path}.{name}");
        // For a field of a Kubernetes object, the description is the first sentence of the Kubernetes description.
        if keeps_unknown_fields(schema) {
            if description(property).is_empty() {
                found.push(format!("{path} has no description"));
            }
        } else {
            let required = schema["required"].as_array().into_iter().flatten();
            let is_required = required.into_iter().any(|required| required == name.as_str());
            let missing = missing(&path, property, is_required);
            found.extend(missing.into_iter().map(|part| format!("{path} has no description with {part}")));
        }
        incomplete(&path, property, found);
    }
    for keyword in ["items", "additionalProperties"] {
        if let Some(inner) = schema.get(keyword) {
            incomplete(path, inner, found);
        }
    }
}

#[test]
fn every_field_is_described_with_its_unit_its_default_and_an_example() {
    let mut found = Vec::new();
    for (kind, schema) in storage_schemas() {
        for (part, schema) in schema["properties"].as_object().expect("properties") {
            assert!(!description(schema).is_empty(), "{kind}.{part} has no description");
            incomplete(&format!("{kind}.{part}"), schema, &mut found);
        }
    }
    assert!(found.is_empty(), "{} incomplete descriptions:\n{}", found.len(), found.join("\n"));
}

#[test]
fn an_incomplete_description_is_found() {
    let property = |name: &str, property: Value| json!({"properties": {name: property}});
    let rows = [
        (property("name", json!({"type": "string"})), vec!["a sentence", "a default"]),
        (property("names", json!({"type": "array", "description": "Names. Default: none."})), vec!["an example"]),
        (
            property("timeout", json!({"type": "string", "description": "Limit. Default: none."})),
            vec!["a duration with a unit"],
        ),
        (property("timeout", json!({"type": "string", "description": "Limit. Default: `1m30s`."})), vec![]),
        (property("size", json!({"type": "integer", "description": "Size. Default: 0."})), vec!["a unit"]),
        (property("size", json!({"type": "integer", "description": "Size in bytes. Default: 0."})), vec![]),
    ];
    for (schema, expected) in rows {
        let mut found = Vec::new();
        incomplete("Kind.spec", &schema, &mut found);
        assert_eq!(found.len(), expected.len(), "{schema}: {found:?}");
        for (found, part) in found.iter().zip(&expected) {
            assert!(found.ends_with(part), "{found}: {part}");
        }
    }
}

#[test]
fn stack_versions_have_the_same_fields_and_only_v1_is_stored() {
    let crds = custom_resource_definitions();
    let stack = crds.iter().find(|crd| crd.spec.names.kind == "Stack").expect("CRD Stack");
    let [v1, older] = stack.spec.versions.as_slice() else { panic!("expected two versions") };
    assert_eq!((v1.name.as_str(), v1.served, v1.storage, v1.deprecated), ("v1", true, true, None));
    assert_eq!((older.name.as_str(), older.served, older.storage), ("v1alpha1", true, false));
    let mut shortened = v1.schema.clone();
    shortened.as_mut().and_then(|schema| schema.open_api_v3_schema.as_mut()).map(template_schema::shorten);
    assert_eq!((&shortened, &v1.subresources), (&older.schema, &older.subresources));
    assert_eq!(stack.spec.conversion, None, "both versions have the same fields");
    assert!(crds.iter().filter(|crd| crd.spec.names.kind != "Stack").all(|crd| crd.spec.versions.len() == 1));
}

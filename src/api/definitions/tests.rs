//! Tests of the conventions and limits of the CustomResourceDefinitions.

use serde_json::Value;

use super::*;

#[test]
fn every_crd_follows_flux_conventions() {
    let crds = custom_resource_definitions();
    let kinds: Vec<&str> = crds.iter().map(|crd| crd.spec.names.kind.as_str()).collect();
    assert_eq!(kinds, ["Stack", "Program", "StackReceiver", "Workspace", "Update"]);
    for crd in &crds {
        let kind = &crd.spec.names.kind;
        assert_eq!(crd.spec.scope, "Namespaced", "{kind}");
        assert_eq!(crd.spec.names.categories, Some(vec!["pulumi".to_owned()]), "{kind}");
        let substitute = crd.metadata.annotations.as_ref();
        let substitute = substitute.and_then(|all| all.get("kustomize.toolkit.fluxcd.io/substitute"));
        assert_eq!(substitute.map(String::as_str), Some("disabled"), "{kind}");
        for version in &crd.spec.versions {
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

/// Fields that accept any JSON value. The controller checks the size of templates when it reads them. The size of the
/// other fields is limited only by the maximum size of an object in the API server.
const ANY_JSON: [&str; 10] = [
    "Stack.spec.workspaceTemplate",
    "Stack.spec.updateTemplate",
    "Stack.spec.config{}",
    "Stack.status.outputs{}",
    "Workspace.spec.podTemplate",
    "Workspace.spec.serviceTemplate",
    "Workspace.spec.resources",
    "Workspace.spec.env[]",
    "Workspace.spec.envFrom[]",
    "Workspace.spec.stacks[].config[].value",
];

/// Adds the paths of fields without a size limit to `found`. `repeated` is true for the items of lists.
fn unbounded(path: &str, schema: &Value, repeated: bool, found: &mut Vec<String>) {
    let is_any = schema["x-kubernetes-preserve-unknown-fields"] == true;
    if is_any && !path.starts_with("Program.program.") && !ANY_JSON.contains(&path) {
        found.push(format!("{path} accepts any JSON"));
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
        // The values of a map need no maximum length: values such as certificates and scripts can be long.
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

#[test]
fn every_list_and_map_of_the_crds_has_a_limit() {
    let mut found = Vec::new();
    for crd in custom_resource_definitions() {
        for version in &crd.spec.versions {
            let schema = serde_json::to_value(&version.schema).expect("valid JSON schema");
            unbounded(&crd.spec.names.kind, &schema["openAPIV3Schema"], false, &mut found);
        }
    }
    assert!(found.is_empty(), "without a limit:\n{}", found.join("\n"));
}

#[test]
fn stack_versions_share_one_schema_and_only_v1_is_stored() {
    let crds = custom_resource_definitions();
    let stack = crds.iter().find(|crd| crd.spec.names.kind == "Stack").expect("CRD Stack");
    let [v1, older] = stack.spec.versions.as_slice() else { panic!("expected two versions") };
    assert_eq!((v1.name.as_str(), v1.served, v1.storage, v1.deprecated), ("v1", true, true, None));
    assert_eq!((older.name.as_str(), older.served, older.storage), ("v1alpha1", true, false));
    assert_eq!((&v1.schema, &v1.subresources), (&older.schema, &older.subresources));
    assert_eq!(stack.spec.conversion, None, "both versions have the same schema");
    assert!(crds.iter().filter(|crd| crd.spec.names.kind != "Stack").all(|crd| crd.spec.versions.len() == 1));
}

use super::*;
use crate::api::definitions::custom_resource_definitions;

/// Returns the template schema for an object with this schema.
fn relaxed(mut schema: Value) -> Value {
    relax(&mut schema);
    schema
}

/// Returns the property at a path in a schema. `[]` selects the items of a list.
fn at<'a>(schema: &'a Value, path: &str) -> &'a Value {
    path.split('.').fold(schema, |schema, part| match part.strip_suffix("[]") {
        Some(list) => &schema["properties"][list]["items"],
        None => &schema["properties"][part],
    })
}

/// Returns the schema of `workspaceTemplate`.
fn workspace_template() -> Value {
    let definitions = custom_resource_definitions();
    let stack = definitions.iter().find(|definition| definition.spec.names.kind == "Stack").expect("CRD Stack");
    let schema = serde_json::to_value(&stack.spec.versions[0].schema).expect("valid JSON schema");
    at(&schema["openAPIV3Schema"], "spec.workspaceTemplate").clone()
}

#[test]
fn a_template_requires_no_field_and_permits_null() {
    let item = json!({
        "type": "object",
        "required": ["name", "value"],
        "properties": {"name": {"type": "string"}, "value": {"type": "string", "enum": ["a"], "default": "a"}},
    });
    let object = json!({
        "type": "object",
        "required": ["list"],
        "properties": {
            "list": {
                "type": "array",
                "items": item,
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["name"],
            },
        },
    });
    let template = relaxed(object);
    let list = at(&template, "list");
    assert_eq!((template.get("required"), list.get("x-kubernetes-list-map-keys")), (None, None));
    assert_eq!(list["nullable"], true);
    let item = &list["items"];
    assert_eq!((item.get("required"), at(item, "value").get("default")), (None, None));
    let value = at(item, "value");
    assert_eq!(
        (value.get("enum"), &value["pattern"]),
        (None, &json!("^(a)$")),
        "the API server rejects null in an enum"
    );
}

/// Returns the keys of all objects in a JSON value.
fn keys(value: &Value) -> Vec<&String> {
    match value {
        Value::Object(fields) => fields.keys().chain(fields.values().flat_map(keys)).collect(),
        Value::Array(items) => items.iter().flat_map(keys).collect(),
        _ => Vec::new(),
    }
}

/// If a property had the name of a directive, an upgrade with a strategic merge patch would delete the other properties
/// of the object.
#[test]
fn no_property_is_a_directive_of_a_strategic_merge_patch() {
    for definition in custom_resource_definitions() {
        let definition = serde_json::to_value(&definition).expect("valid JSON");
        let directive = keys(&definition).into_iter().find(|key| key.starts_with('$'));
        assert_eq!(directive, None, "{}", definition["metadata"]["name"]);
    }
}

#[test]
fn objects_of_this_api_reject_unknown_fields_and_kubernetes_objects_keep_them() {
    let template = workspace_template();
    for path in ["metadata", "spec", "spec.git.auth", "spec.stacks[].config[].valueFrom", "spec.serviceTemplate"] {
        let object = at(&template, path);
        assert_eq!(object["type"], "object", "{path}");
        assert_eq!(object.get(PRESERVE_UNKNOWN_FIELDS), None, "{path}");
    }
    let pod = "spec.podTemplate.spec";
    let kept = ["", ".containers[].securityContext.capabilities", ".volumes[].projected.sources[].serviceAccountToken"];
    let kept = kept.map(|path| format!("{pod}{path}"));
    let others = ["spec.resources", "spec.env[].valueFrom.secretKeyRef", "spec.envFrom[]", "spec.podTemplate.metadata"];
    for path in kept.iter().map(String::as_str).chain(others) {
        let object = at(&template, path);
        assert!(object["properties"].as_object().is_some_and(|properties| !properties.is_empty()), "{path}");
        assert_eq!(object[PRESERVE_UNKNOWN_FIELDS], true, "{path}");
    }
}

#[test]
fn quantities_and_ports_accept_integers_and_strings() {
    let template = workspace_template();
    let limits = at(&template, "spec.podTemplate.spec.containers[].resources.limits");
    assert_eq!(limits["additionalProperties"]["x-kubernetes-int-or-string"], true);
    assert_eq!(
        at(&template, "spec.podTemplate.spec.containers[].livenessProbe.httpGet.port")["x-kubernetes-int-or-string"],
        true
    );
}

#[test]
fn a_shortened_schema_has_no_descriptions_and_no_pod_fields() {
    let mut short: JSONSchemaProps = serde_json::from_value(workspace_template()).expect("valid schema");
    shorten(&mut short);
    let short = serde_json::to_value(&short).expect("valid JSON");
    assert_eq!(
        at(&short, "spec.podTemplate"),
        &json!({"type": "object", "nullable": true, PRESERVE_UNKNOWN_FIELDS: true})
    );
    assert!(!short.to_string().contains(r#""description":"#), "{short}");
    assert_eq!(at(&short, "spec.env[].name")["type"], "string");
}

#[test]
fn a_description_is_shortened_to_its_first_sentence() {
    let rows = [
        ("One. Two.", "One."),
        ("Only one", "Only one"),
        ("Names, e.g. a name. Two.", "Names, e.g. a name."),
        ("One\n\nTwo", "One"),
    ];
    for (description, sentence) in rows {
        assert_eq!(first_sentence(description), sentence);
    }
}

//! Schemas of templates. A template is a strategic merge patch that the controller applies to a generated object.
//!
//! A template has the fields of its object, with two differences: no field is required, and `null` deletes a field.
//!
//! The API server removes unknown fields from objects of this API, and returns a warning. If a template contains
//! objects of the Kubernetes API, the API server keeps their unknown fields, because a newer Kubernetes version can
//! support these fields. The controller reports such unknown fields after a dry run.
//!
//! Directives of a strategic merge patch, such as `$patch`, are unknown fields. A template can therefore contain
//! directives only in objects of the Kubernetes API. The schemas must not contain properties that have the name of a
//! directive. A client-side `kubectl apply` and Helm upgrade a CustomResourceDefinition with a strategic merge patch,
//! and would interpret a property `$patch` as a directive.

use k8s_openapi::api::core::v1::{EnvFromSource, EnvVar, PodTemplateSpec, ResourceRequirements};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, SchemaGenerator};
use serde_json::{Value, json};

use crate::api::bounds;

/// Fields of a Workspace that `workspaceTemplate` does not support, because the Stack sets them.
const SET_IN_WORKSPACE: [&str; 3] = ["artifact", "policyPacks", "pulumiCloudOIDC"];

/// Fields of an Update that `updateTemplate` does not support, because the Stack sets them.
const SET_IN_UPDATE: [&str; 16] = [
    "appliedByOthers",
    "appliedStack",
    "artifact",
    "background",
    "concurrencyGroup",
    "createStack",
    "pendingCreates",
    "pendingSince",
    "plan",
    "policyPacksDigest",
    "previewOf",
    "savePlan",
    "source",
    "stackName",
    "type",
    "workspaceName",
];

/// Fields of a Stack whose nested fields the `v1alpha1` schema omits.
const SHORTENED: [&str; 15] = [
    "concurrencyGroup",
    "currentUpdate",
    "drift",
    "git",
    "gitAuth",
    "history",
    "lastUpdate",
    "plan",
    "podTemplate",
    "policyPacks",
    "runs",
    "policyViolations",
    "schedule",
    "stacks",
    "updateTemplate",
];

/// Prefix of a field's description if the controller rejects the field.
pub const NOT_SUPPORTED: &str = "Not supported";

/// Fields of a pod that the schema omits to limit the size of the CustomResourceDefinitions. A pod template cannot
/// contain ephemeral containers. The other fields are volume types that Kubernetes has removed or replaced with CSI
/// drivers.
const OMITTED: [&str; 18] = [
    "awsElasticBlockStore",
    "azureDisk",
    "azureFile",
    "cephfs",
    "cinder",
    "ephemeralContainers",
    "flexVolume",
    "flocker",
    "gcePersistentDisk",
    "gitRepo",
    "glusterfs",
    "photonPersistentDisk",
    "portworxVolume",
    "quobyte",
    "rbd",
    "scaleIO",
    "storageos",
    "vsphereVolume",
];

const PRESERVE_UNKNOWN_FIELDS: &str = "x-kubernetes-preserve-unknown-fields";

/// Adds the fields of Kubernetes objects and of `serviceTemplate` to the spec of a Workspace.
pub fn describe_pods(workspace: &mut JSONSchemaProps) {
    let mut generator = SchemaSettings::openapi3().with(|settings| settings.inline_subschemas = true).into_generator();
    let fields = [
        ("podTemplate", kubernetes::<PodTemplateSpec>(&mut generator)),
        ("resources", kubernetes::<ResourceRequirements>(&mut generator)),
        ("serviceTemplate", json!({"type": "object", "properties": {"metadata": metadata("Service")}})),
    ];
    for (name, schema) in fields {
        describe(workspace, name, schema);
    }
    let mut variable = to_schema(kubernetes::<EnvVar>(&mut generator));
    variable.required = Some(vec!["name".to_owned()]);
    if let Some(name) = variable.properties.as_mut().and_then(|properties| properties.get_mut("name")) {
        (name.min_length, name.max_length, name.nullable) = (Some(1), Some(bounds::KEY.into()), None);
    }
    for (name, item) in [("env", variable), ("envFrom", to_schema(kubernetes::<EnvFromSource>(&mut generator)))] {
        let list = workspace.properties.as_mut().and_then(|properties| properties.get_mut(name));
        if let Some(JSONSchemaPropsOrArray::Schema(items)) = list.and_then(|list| list.items.as_mut()) {
            **items = item;
        }
    }
}

/// Adds the spec fields of a Workspace and an Update to the templates in the spec of a Stack.
pub fn describe_templates(stack: &mut JSONSchemaProps, workspace: &JSONSchemaProps, update: &JSONSchemaProps) {
    describe(stack, "workspaceTemplate", object_template(workspace, &SET_IN_WORKSPACE, "{securityProfile: baseline}"));
    describe(stack, "updateTemplate", object_template(update, &SET_IN_UPDATE, "{parallel: 4}"));
}

/// Replaces the schema of a field, except its description.
fn describe(object: &mut JSONSchemaProps, field: &str, schema: Value) {
    if let Some(property) = object.properties.as_mut().and_then(|properties| properties.get_mut(field)) {
        *property = JSONSchemaProps { description: property.description.take(), ..to_schema(schema) };
    }
}

/// Removes the descriptions from a schema, and the fields of large objects. The shortened schema accepts all objects
/// that the complete schema accepts.
pub fn shorten(schema: &mut JSONSchemaProps) {
    schema.description = None;
    for (name, property) in schema.properties.iter_mut().flatten() {
        shorten(property);
        if SHORTENED.contains(&name.as_str()) {
            remove_fields(property);
        }
    }
    let items = schema.items.iter_mut().filter_map(|items| match items {
        JSONSchemaPropsOrArray::Schema(schema) => Some(schema),
        JSONSchemaPropsOrArray::Schemas(_) => None,
    });
    let values = schema.additional_properties.iter_mut().filter_map(|values| match values {
        JSONSchemaPropsOrBool::Schema(schema) => Some(schema),
        JSONSchemaPropsOrBool::Bool(_) => None,
    });
    items.chain(values).for_each(|schema| shorten(schema));
}

/// Removes the fields of an object, or of a list's objects, from the schema. The remaining schema accepts any
/// fields.
fn remove_fields(schema: &mut JSONSchemaProps) {
    if let Some(JSONSchemaPropsOrArray::Schema(items)) = &mut schema.items {
        return remove_fields(items);
    }
    schema.properties = None;
    // The API server rejects rules about fields that the schema does not contain. The controller checks these fields.
    schema.x_kubernetes_validations = None;
    schema.x_kubernetes_preserve_unknown_fields = Some(true);
}

/// Converts a schema. The conversion cannot fail, because the schema consists of keywords from this file and of valid
/// schemas.
fn to_schema(schema: Value) -> JSONSchemaProps {
    serde_json::from_value(schema).unwrap_or_default()
}

/// Returns the schema of a template for an object with this spec. The schema permits the other fields of a complete
/// object, but the controller ignores them.
fn object_template(spec: &JSONSchemaProps, not_supported: &[&str], example: &str) -> Value {
    let description = format!("Fields to merge into the spec. Default: none. Example: `{example}`.");
    let mut spec = json!(JSONSchemaProps { description: Some(description), ..spec.clone() });
    if let Some(Value::Object(fields)) = spec.get_mut("properties") {
        for (name, field) in fields.iter_mut() {
            if not_supported.contains(&name.as_str()) {
                *field = json!({
                    "description": format!("{NOT_SUPPORTED} in a template, because the Stack sets this field."),
                    PRESERVE_UNKNOWN_FIELDS: true,
                });
            }
        }
    }
    relax(&mut spec);
    make_nullable(&mut spec);
    let ignored = "No effect. Permitted for compatibility with the Pulumi Kubernetes Operator.";
    json!({
        "type": "object",
        "properties": {
            "apiVersion": {"description": ignored, "type": "string", "nullable": true},
            "kind": {"description": ignored, "type": "string", "nullable": true},
            "metadata": metadata("generated object"),
            "spec": spec,
            "status": {"description": ignored, "type": "object", "nullable": true, PRESERVE_UNKNOWN_FIELDS: true},
        },
    })
}

/// Returns the schema for the metadata that a template can set.
fn metadata(object: &str) -> Value {
    let map = |what: &str, example: &str| {
        json!({
            "description": format!("{what} of the {object}, by key. Default: none. Example: `{example}`."),
            "type": "object",
            "additionalProperties": {"type": "string", "nullable": true},
            "maxProperties": bounds::ENTRIES,
            "nullable": true,
        })
    };
    json!({
        "description": format!("Labels and annotations of the {object}. Default: none. Example: `{{labels: {{team: blue}}}}`."),
        "type": "object",
        "properties": {
            "annotations": map("Annotations", "{example.com/contact: blue@example.com}"),
            "labels": map("Labels", "{team: blue}"),
        },
        "nullable": true,
    })
}

/// Converts the schema of an object from this API into its template schema.
fn relax(schema: &mut Value) {
    let Some(schema) = schema.as_object_mut() else { return };
    let keywords =
        ["default", "required", "x-kubernetes-list-map-keys", "x-kubernetes-list-type", "x-kubernetes-validations"];
    for keyword in keywords {
        schema.remove(keyword);
    }
    if schema.get(PRESERVE_UNKNOWN_FIELDS) == Some(&Value::Bool(true)) {
        return;
    }
    if let Some(Value::Object(properties)) = schema.get_mut("properties") {
        for property in properties.values_mut() {
            relax(property);
            make_nullable(property);
        }
    }
    if let Some(values) = schema.get_mut("additionalProperties") {
        relax(values);
        make_nullable(values);
    }
    if let Some(items) = schema.get_mut("items") {
        relax(items);
    }
}

/// Permits `null`, which deletes a field. The function replaces `enum` with `pattern`, because the API server rejects
/// `null` for a field with `enum`.
fn make_nullable(schema: &mut Value) {
    let Some(schema) = schema.as_object_mut() else { return };
    schema.insert("nullable".to_owned(), json!(true));
    if let Some(Value::Array(values)) = schema.remove("enum") {
        let words: Vec<&str> = values.iter().filter_map(Value::as_str).collect();
        schema.insert("pattern".to_owned(), json!(format!("^({})$", words.join("|"))));
    }
}

/// Returns the schema of a Kubernetes type in a template. The schema contains no size limits, because the controller
/// limits the total size of a template.
fn kubernetes<T: JsonSchema>(generator: &mut SchemaGenerator) -> Value {
    let mut schema = T::json_schema(generator).to_value();
    relax_kubernetes(&mut schema);
    schema
}

fn relax_kubernetes(schema: &mut Value) {
    let Some(schema) = schema.as_object_mut() else { return };
    for keyword in ["default", "format", "required"] {
        schema.remove(keyword);
    }
    if let Some(Value::String(description)) = schema.get_mut("description") {
        *description = first_sentence(description).to_owned();
    }
    if let Some(Value::Object(properties)) = schema.get_mut("properties") {
        // A template has only the metadata that users can set.
        let is_metadata = properties.contains_key("managedFields");
        properties.retain(|name, _| match is_metadata {
            true => ["annotations", "labels"].contains(&name.as_str()),
            false => !OMITTED.contains(&name.as_str()),
        });
        for property in properties.values_mut() {
            relax_kubernetes(property);
            make_nullable(property);
        }
        schema.insert(PRESERVE_UNKNOWN_FIELDS.to_owned(), json!(true));
    }
    for (keyword, is_nullable) in [("items", false), ("additionalProperties", true)] {
        let Some(inner) = schema.get_mut(keyword) else { continue };
        relax_kubernetes(inner);
        if let Some(inner) = inner.as_object_mut() {
            // The description of the list or map also describes the items.
            inner.remove("description");
        }
        if is_nullable {
            make_nullable(inner);
        }
    }
}

/// Returns the first sentence of a description. With complete descriptions, a pod template would exceed the maximum
/// size of a CustomResourceDefinition.
fn first_sentence(description: &str) -> &str {
    let paragraph = description.split("\n\n").next().unwrap_or_default();
    let mut starts = paragraph.match_indices(". ").filter_map(|(at, _)| paragraph.get(..=at));
    starts.find(|text| !is_abbreviation(text)).unwrap_or(paragraph).trim_end()
}

fn is_abbreviation(text: &str) -> bool {
    ["e.g.", "i.e.", "etc.", "vs."].iter().any(|abbreviation| text.ends_with(abbreviation))
}

#[cfg(test)]
mod tests;

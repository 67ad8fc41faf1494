//! Pieces of schema that the Rust types alone do not give, and the CRDs as they are installed.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSON, JSONSchemaProps,
};
use kube::CustomResourceExt;
use schemars::{Schema, SchemaGenerator, json_schema};
use serde_json::json;

use crate::api::auto::{Update, Workspace};
use crate::api::pulumi::Stack;

/// A JSON object whose fields the schema does not name: templates, which stay JSON from here to the apply.
pub fn any_object(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "object", "x-kubernetes-preserve-unknown-fields": true})
}

/// A map from names to any JSON value.
pub fn map_of_any(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "additionalProperties": {"x-kubernetes-preserve-unknown-fields": true},
    })
}

/// Any JSON value.
pub fn any_value(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"x-kubernetes-preserve-unknown-fields": true})
}

/// A duration as Flux has it: decimal numbers with a unit, such as `1h30m` or `45s`.
pub fn duration(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "pattern": "^([0-9]+(\\.[0-9]+)?(ms|s|m|h))+$"})
}

/// A list of environment variables, merged by name; each is a core/v1 EnvVar.
pub fn environment(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "items": {
            "type": "object",
            "required": ["name"],
            "properties": {"name": {"type": "string", "minLength": 1}},
            "x-kubernetes-preserve-unknown-fields": true,
        },
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["name"],
    })
}

/// Conditions with the limits that Kubernetes itself puts on them.
pub fn conditions(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "items": {
            "type": "object",
            "required": ["lastTransitionTime", "message", "reason", "status", "type"],
            "properties": {
                "type": {"type": "string", "maxLength": 316},
                "status": {"type": "string", "enum": ["True", "False", "Unknown"]},
                "observedGeneration": {"type": "integer", "format": "int64", "minimum": 0},
                "lastTransitionTime": {"type": "string", "format": "date-time"},
                "reason": {"type": "string", "minLength": 1, "maxLength": 1024, "pattern": "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"},
                "message": {"type": "string", "maxLength": 32768},
            },
        },
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
    })
}

/// Every CRD, as it is installed.
pub fn custom_resource_definitions() -> Vec<CustomResourceDefinition> {
    [Stack::crd(), Workspace::crd(), Update::crd()].into_iter().map(finish).collect()
}

/// A new object says `observedGeneration: -1` until its controller has seen it; without this, tools that wait for
/// readiness take an object nobody has looked at for a ready one.
fn finish(mut crd: CustomResourceDefinition) -> CustomResourceDefinition {
    // Flux's variable substitution would otherwise act on `${...}` in descriptions.
    crd.metadata
        .annotations
        .get_or_insert_default()
        .insert("kustomize.toolkit.fluxcd.io/substitute".to_owned(), "disabled".to_owned());
    for version in &mut crd.spec.versions {
        if let Some(status) = status_schema(version.schema.as_mut().and_then(|s| s.open_api_v3_schema.as_mut())) {
            status.default = Some(JSON(json!({"observedGeneration": -1})));
            status.nullable = None;
        }
    }
    crd
}

fn status_schema(root: Option<&mut JSONSchemaProps>) -> Option<&mut JSONSchemaProps> {
    root?.properties.as_mut()?.get_mut("status")
}

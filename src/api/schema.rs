//! JSON schemas that cannot be derived from Rust types.

use schemars::{Schema, SchemaGenerator, json_schema};
use serde_json::{Value, json};

use crate::api::bounds;

/// Returns the schema of a JSON object with any fields. A template has this schema, because the controller does not
/// parse a template before it merges the template into an object. `template_schema` adds the fields.
pub fn any_object(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "object", "x-kubernetes-preserve-unknown-fields": true})
}

/// Returns the schema of the Pulumi stacks that other Stacks have applied, for the status of a Stack. The descriptions are
/// short, because the definition of a Stack is close to its size limit. The schema of an Update has complete descriptions.
pub fn applied_by_others(_: &mut SchemaGenerator) -> Schema {
    let text = |what: &str, length| json!({"description": what, "type": "string", "maxLength": length});
    let optional =
        |what: &str, length| json!({"description": what, "type": "string", "maxLength": length, "nullable": true});
    json_schema!({
        "type": "array",
        "maxItems": bounds::APPLIED_BY_OTHERS,
        "items": {
            "description": "Pulumi stack.",
            "type": "object",
            "required": ["name", "owner"],
            "properties": {
                "owner": text("Name of the Stack.", bounds::NAME),
                "name": text("Name of the Pulumi stack.", bounds::STACK),
                "project": optional("Name of the project.", bounds::STACK),
                "backend": optional("URL of the backend.", bounds::PATH),
            },
        },
    })
}

/// Returns the schema of a map with arbitrary JSON values.
pub fn map_of_any(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "maxProperties": bounds::ENTRIES,
        "additionalProperties": {"x-kubernetes-preserve-unknown-fields": true},
    })
}

/// Returns the schema of a map with arbitrary JSON values. The API server keeps `null`, so that the controller can report
/// it.
pub fn map_of_any_or_null(generator: &mut SchemaGenerator) -> Schema {
    let mut schema = map_of_any(generator);
    if let Some(values) = schema.get_mut("additionalProperties").and_then(Value::as_object_mut) {
        values.insert("nullable".to_owned(), true.into());
    }
    schema
}

/// Removes the field defaults from the objects in a list. Argo CD compares a list as a whole. If the API server added
/// defaults to the objects, Argo CD would always report the list as out of sync.
pub fn without_defaults(schema: &mut Schema) {
    let properties = schema.get_mut("properties").and_then(Value::as_object_mut);
    for property in properties.into_iter().flat_map(|properties| properties.values_mut()) {
        if let Some(property) = property.as_object_mut() {
            property.remove("default");
        }
    }
}

/// Adds maximum lengths to the schema of a [`PulumiStack`](crate::api::pulumi::PulumiStack).
pub fn bounded_pulumi_stack(schema: &mut Schema) {
    let properties = schema.get_mut("properties").and_then(Value::as_object_mut);
    for (name, property) in properties.into_iter().flatten() {
        let length = match name.as_str() {
            "backend" => bounds::PATH,
            "owner" => bounds::NAME,
            _ => bounds::STACK,
        };
        if let Some(property) = property.as_object_mut() {
            property.insert("maxLength".to_owned(), length.into());
        }
    }
}

/// Returns the schema of any JSON value.
pub fn any_value(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"x-kubernetes-preserve-unknown-fields": true})
}

/// Returns the schema of a duration in the Flux format: decimal numbers with units, such as `1h30m` or `45s`.
pub fn duration(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "pattern": "^([0-9]+(\\.[0-9]+)?(ms|s|m|h))+$"})
}

/// Returns the schema of a duration with a maximum length. The Stack schema has no maximum length, because its size is
/// close to the limit.
pub fn short_duration(generator: &mut SchemaGenerator) -> Schema {
    let mut schema = duration(generator);
    schema.insert("maxLength".to_owned(), bounds::DURATION.into());
    schema
}

/// Returns the schema of a duration of at least a minute.
pub fn duration_of_a_minute(generator: &mut SchemaGenerator) -> Schema {
    let mut schema = short_duration(generator);
    let rule = json!({"rule": "duration(self) >= duration('1m')", "message": "must be at least 1m"});
    schema.insert("x-kubernetes-validations".to_owned(), json!([rule]));
    schema
}

/// Returns the schema of an EnvFromSource list (core/v1). `template_schema` adds the fields of the items.
pub fn environment_sources(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "maxItems": bounds::WORKSPACE_ENV_FROM,
        "items": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
        "x-kubernetes-list-type": "atomic",
    })
}

/// Returns the schema of an EnvVar list (core/v1). `template_schema` adds the fields of the items.
pub fn environment(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "maxItems": bounds::WORKSPACE_ENV,
        "items": {
            "type": "object",
            "required": ["name"],
            "properties": {"name": {"type": "string", "minLength": 1, "maxLength": bounds::KEY}},
            "x-kubernetes-preserve-unknown-fields": true,
        },
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["name"],
    })
}

/// Returns the schema of a condition list, with the size limits that the Kubernetes API uses.
pub fn conditions(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "maxItems": bounds::CONDITIONS,
        "items": {
            "type": "object",
            "required": ["lastTransitionTime", "message", "reason", "status", "type"],
            "properties": {
                "type": {
                    "description": "Type of the condition, such as `Ready`.",
                    "type": "string",
                    "maxLength": 316,
                },
                "status": {
                    "description": "Status of the condition: `True`, `False` or `Unknown`.",
                    "type": "string",
                    "enum": ["True", "False", "Unknown"],
                },
                "observedGeneration": {
                    "description": "Generation of the object for which the condition was determined.",
                    "type": "integer",
                    "format": "int64",
                    "minimum": 0,
                },
                "lastTransitionTime": {
                    "description": "Time at which the status of the condition last changed.",
                    "type": "string",
                    "format": "date-time",
                },
                "reason": {
                    "description": "Reason for the status, as one word for programs.",
                    "type": "string",
                    "minLength": 1,
                    "maxLength": 1024,
                    "pattern": "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$",
                },
                "message": {
                    "description": "Details of the status, as text for users.",
                    "type": "string",
                    "maxLength": 32768,
                },
            },
        },
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
    })
}

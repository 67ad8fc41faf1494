//! Types of objects: one representation for the structural schemas of CustomResourceDefinitions and for the types of the
//! built-in kinds. Pruning, defaulting, validation, CEL rules and server-side apply all use this representation.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value};

use crate::cel::{Rule, RuleError};
use crate::validate::Bounds;

/// Type of the values at one place of an object.
#[derive(Debug, Default)]
pub(crate) struct Schema {
    /// JSON type, or `None` if any value is allowed.
    pub(crate) kind: Option<Kind>,
    pub(crate) properties: BTreeMap<String, Arc<Schema>>,
    /// Type of the values of a map.
    pub(crate) additional: Option<Arc<Schema>>,
    pub(crate) items: Option<Arc<Schema>>,
    pub(crate) preserves_unknown: bool,
    pub(crate) is_embedded_resource: bool,
    pub(crate) is_nullable: bool,
    pub(crate) default: Option<Value>,
    pub(crate) list: ListType,
    pub(crate) is_atomic_map: bool,
    pub(crate) bounds: Bounds,
    pub(crate) rules: Vec<Rule>,
    /// Whether this type or a type below it has rules.
    pub(crate) has_rules: bool,
    /// Whether the value is a Go structure without a pointer, which Go always writes.
    pub(crate) is_always_present: bool,
}

/// JSON type of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Object,
    Array,
    String,
    Integer,
    Number,
    Boolean,
    IntOrString,
}

/// How server-side apply merges a list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum ListType {
    #[default]
    Atomic,
    Set,
    Map(Vec<String>),
}

/// Reason why a schema cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SchemaError {
    /// The schema contains a keyword that the simulation does not implement.
    #[error("{path}: unsupported schema keyword `{keyword}`")]
    Keyword { path: String, keyword: String },
    #[error("{path}: invalid value of `{keyword}`")]
    Value { path: String, keyword: String },
    #[error("{path}: rule `{rule}`: {source}")]
    Rule { path: String, rule: String, source: RuleError },
    #[error("unknown definition `{0}`")]
    Reference(String),
}

impl Schema {
    /// Parses the `openAPIV3Schema` of a CustomResourceDefinition. The type of `metadata` is that of all objects.
    pub(crate) fn of_custom_resource(schema: &Value, metadata: &Arc<Schema>) -> Result<Arc<Self>, SchemaError> {
        let mut root = Self::parse(schema, "", None)?;
        let text = || Arc::new(Schema { kind: Some(Kind::String), ..Schema::default() });
        root.properties.entry("apiVersion".to_owned()).or_insert_with(text);
        root.properties.entry("kind".to_owned()).or_insert_with(text);
        root.properties.insert("metadata".to_owned(), metadata.clone());
        Ok(Arc::new(root))
    }

    /// Parses a schema. `definitions` resolves the references in the types of the built-in kinds.
    pub(crate) fn parse(
        schema: &Value,
        path: &str,
        definitions: Option<&mut Definitions<'_>>,
    ) -> Result<Self, SchemaError> {
        Parser { definitions }.parse(schema, path)
    }

    /// Returns the type of a field.
    pub(crate) fn field(&self, name: &str) -> Option<&Arc<Schema>> {
        self.properties.get(name).or(self.additional.as_ref())
    }

    /// Returns whether this type declares neither fields nor elements, so that any content is possible.
    pub(crate) fn is_untyped(&self) -> bool {
        self.kind.is_none()
            || (self.kind == Some(Kind::Object) && self.properties.is_empty() && self.additional.is_none())
    }

    /// Removes the fields that the type does not declare, and returns their paths.
    pub(crate) fn prune(&self, object: &mut Value) -> Vec<String> {
        let mut unknown = Vec::new();
        self.prune_at(object, "", true, &mut unknown);
        unknown
    }

    fn prune_at(&self, value: &mut Value, path: &str, is_root: bool, unknown: &mut Vec<String>) {
        match value {
            Value::Object(map) => {
                let is_resource = is_root || self.is_embedded_resource;
                let keeps = |key: &str| {
                    self.properties.contains_key(key)
                        || self.additional.is_some()
                        || self.preserves_unknown
                        || self.kind.is_none()
                        || (is_resource && matches!(key, "apiVersion" | "kind" | "metadata"))
                };
                let join = |key: &str| if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
                unknown.extend(map.keys().filter(|key| !keeps(key)).map(|key| join(key)));
                map.retain(|key, _| keeps(key));
                for (key, value) in map.iter_mut() {
                    if is_resource && matches!(key.as_str(), "apiVersion" | "kind" | "metadata") {
                        continue;
                    }
                    if let Some(schema) = self.field(key) {
                        schema.prune_at(value, &join(key), false, unknown);
                    }
                }
            }
            Value::Array(items) => {
                if let Some(schema) = &self.items {
                    for (index, item) in items.iter_mut().enumerate() {
                        schema.prune_at(item, &format!("{path}[{index}]"), false, unknown);
                    }
                }
            }
            _ => {}
        }
    }

    /// Removes nulls from fields that are not nullable and have no default.
    pub(crate) fn drop_nulls(&self, value: &mut Value) {
        match value {
            Value::Object(map) => {
                map.retain(|key, value| {
                    let schema = self.field(key);
                    !(value.is_null() && schema.is_some_and(|schema| !schema.is_nullable && schema.default.is_none()))
                });
                for (key, value) in map.iter_mut() {
                    if let Some(schema) = self.field(key) {
                        schema.drop_nulls(value);
                    }
                }
            }
            Value::Array(items) => {
                if let Some(schema) = &self.items {
                    items.iter_mut().for_each(|item| schema.drop_nulls(item));
                }
            }
            _ => {}
        }
    }

    /// Sets the defaults of missing fields.
    pub(crate) fn set_defaults(&self, value: &mut Value) {
        match value {
            Value::Object(map) => {
                for (key, schema) in &self.properties {
                    let Some(default) = &schema.default else { continue };
                    let is_due = match map.get(key) {
                        None => true,
                        Some(value) => value.is_null() && !schema.is_nullable,
                    };
                    if is_due {
                        map.insert(key.clone(), default.clone());
                    }
                }
                for (key, value) in map.iter_mut() {
                    let Some(schema) = self.field(key) else { continue };
                    if !self.properties.contains_key(key)
                        && value.is_null()
                        && !schema.is_nullable
                        && let Some(default) = &schema.default
                    {
                        *value = default.clone();
                    }
                    schema.set_defaults(value);
                }
            }
            Value::Array(items) => {
                if let Some(schema) = &self.items {
                    for item in items {
                        if item.is_null()
                            && !schema.is_nullable
                            && let Some(default) = &schema.default
                        {
                            *item = default.clone();
                        }
                        schema.set_defaults(item);
                    }
                }
            }
            _ => {}
        }
    }
}

/// Definitions of the built-in types, and the types that have been parsed.
#[derive(Debug)]
pub(crate) struct Definitions<'a> {
    raw: &'a Map<String, Value>,
    parsed: BTreeMap<String, Arc<Schema>>,
}

impl<'a> Definitions<'a> {
    pub(crate) fn new(raw: &'a Map<String, Value>) -> Self {
        Definitions { raw, parsed: BTreeMap::new() }
    }

    /// Returns the type with this name.
    pub(crate) fn get(&mut self, name: &str) -> Result<Arc<Schema>, SchemaError> {
        if let Some(schema) = self.parsed.get(name) {
            return Ok(schema.clone());
        }
        let raw = self.raw.get(name).ok_or_else(|| SchemaError::Reference(name.to_owned()))?;
        let schema = Arc::new(Schema::parse(raw, name, Some(self))?);
        self.parsed.insert(name.to_owned(), schema.clone());
        Ok(schema)
    }
}

struct Parser<'a, 'd> {
    definitions: Option<&'a mut Definitions<'d>>,
}

impl Parser<'_, '_> {
    fn parse(&mut self, schema: &Value, path: &str) -> Result<Schema, SchemaError> {
        let Value::Object(keywords) = schema else {
            return Err(SchemaError::Value { path: path.to_owned(), keyword: "schema".to_owned() });
        };
        let mut parsed = Schema::default();
        if let Some(name) = keywords.get("ref").and_then(Value::as_str) {
            return self.reference(name, keywords.get("default"));
        }
        for (keyword, value) in keywords {
            self.keyword(&mut parsed, keyword, value, path)?;
        }
        if let Some(Value::Array(keys)) = keywords.get("x-kubernetes-list-map-keys") {
            let keys = keys.iter().filter_map(Value::as_str).map(str::to_owned).collect();
            if matches!(parsed.list, ListType::Map(_)) {
                parsed.list = ListType::Map(keys);
            }
        }
        // A built-in type without fields, such as `FieldsV1`, has any content.
        let is_built_in = self.definitions.is_some();
        if is_built_in && parsed.kind == Some(Kind::Object) && parsed.is_untyped() {
            parsed.preserves_unknown = true;
        }
        parsed.bounds = Bounds::parse(keywords, path)?;
        if let Some(rules) = keywords.get("x-kubernetes-validations").and_then(Value::as_array) {
            for rule in rules {
                parsed.rules.push(Rule::parse(rule).map_err(|source| SchemaError::Rule {
                    path: path.to_owned(),
                    rule: rule.get("rule").and_then(Value::as_str).unwrap_or_default().to_owned(),
                    source,
                })?);
            }
        }
        let below = parsed.properties.values().chain(&parsed.additional).chain(&parsed.items);
        parsed.has_rules = !parsed.rules.is_empty() || below.into_iter().any(|schema| schema.has_rules);
        Ok(parsed)
    }

    fn reference(&mut self, name: &str, default: Option<&Value>) -> Result<Schema, SchemaError> {
        let Some(definitions) = self.definitions.as_deref_mut() else {
            return Err(SchemaError::Reference(name.to_owned()));
        };
        let target = definitions.get(name)?;
        let is_always_present = default.is_some_and(Value::is_object) && !target.properties.is_empty();
        // The default of a built-in type is relevant only for scalar keys of lists.
        let default = default.filter(|default| !default.is_object()).cloned();
        Ok(Schema {
            kind: target.kind,
            properties: target.properties.clone(),
            additional: target.additional.clone(),
            items: target.items.clone(),
            preserves_unknown: target.preserves_unknown,
            list: target.list.clone(),
            is_atomic_map: target.is_atomic_map,
            bounds: target.bounds.clone(),
            is_always_present,
            default,
            ..Schema::default()
        })
    }

    fn keyword(&mut self, parsed: &mut Schema, keyword: &str, value: &Value, path: &str) -> Result<(), SchemaError> {
        let invalid = || SchemaError::Value { path: path.to_owned(), keyword: keyword.to_owned() };
        let is_true = || value.as_bool().ok_or_else(invalid);
        match keyword {
            "type" => parsed.kind = parsed.kind.or(kind(value).ok_or_else(invalid)?),
            "properties" => {
                for (name, schema) in value.as_object().ok_or_else(invalid)? {
                    let schema = self.parse(schema, &format!("{path}.{name}"))?;
                    parsed.properties.insert(name.clone(), Arc::new(schema));
                }
            }
            "additionalProperties" => match value {
                Value::Bool(false) => {}
                Value::Bool(true) => parsed.preserves_unknown = true,
                schema => parsed.additional = Some(Arc::new(self.parse(schema, &format!("{path}.*"))?)),
            },
            "items" => parsed.items = Some(Arc::new(self.parse(value, &format!("{path}[]"))?)),
            "default" => parsed.default = Some(value.clone()),
            "nullable" => parsed.is_nullable = is_true()?,
            "x-kubernetes-preserve-unknown-fields" => parsed.preserves_unknown = is_true()?,
            "x-kubernetes-embedded-resource" => parsed.is_embedded_resource = is_true()?,
            "x-kubernetes-int-or-string" => {
                if is_true()? {
                    parsed.kind = Some(Kind::IntOrString);
                }
            }
            "x-kubernetes-list-type" => {
                parsed.list = match value.as_str() {
                    Some("atomic") => ListType::Atomic,
                    Some("set") => ListType::Set,
                    Some("map") => ListType::Map(Vec::new()),
                    _ => return Err(invalid()),
                }
            }
            "x-kubernetes-map-type" => parsed.is_atomic_map = value.as_str() == Some("atomic"),
            // These keywords have no effect, or other code handles them.
            "description"
            | "title"
            | "example"
            | "externalDocs"
            | "id"
            | "$schema"
            | "gvk"
            | "x-kubernetes-list-map-keys"
            | "x-kubernetes-validations" => {}
            _ if Bounds::KEYWORDS.contains(&keyword) => {}
            _ => return Err(SchemaError::Keyword { path: path.to_owned(), keyword: keyword.to_owned() }),
        }
        Ok(())
    }
}

fn kind(value: &Value) -> Option<Option<Kind>> {
    Some(match value.as_str()? {
        "object" => Some(Kind::Object),
        "array" => Some(Kind::Array),
        "string" => Some(Kind::String),
        "integer" => Some(Kind::Integer),
        "number" => Some(Kind::Number),
        "boolean" => Some(Kind::Boolean),
        // Types of the built-in kinds.
        "int-or-string" | "quantity" => Some(Kind::IntOrString),
        "" => None,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn schema(value: &Value) -> Schema {
        Schema::parse(value, "", None).unwrap()
    }

    #[test]
    fn unknown_fields_are_pruned() {
        let types = schema(&json!({ "type": "object", "properties": {
            "spec": { "type": "object", "properties": {
                "a": { "type": "string" },
                "free": { "type": "object", "x-kubernetes-preserve-unknown-fields": true },
                "labels": { "type": "object", "additionalProperties": { "type": "string" } },
                "list": { "type": "array", "items": { "type": "object", "properties": { "n": { "type": "integer" } } } },
            } },
        } }));
        let mut object = json!({ "kind": "A", "other": 1, "spec": { "a": "x", "b": 1, "free": { "any": 1 },
            "labels": { "k": "v" }, "list": [{ "n": 1, "m": 2 }] } });
        assert_eq!(types.prune(&mut object), ["other", "spec.b", "spec.list[0].m"]);
        assert_eq!(
            object,
            json!({ "kind": "A", "spec": { "a": "x", "free": { "any": 1 }, "labels": { "k": "v" }, "list": [{ "n": 1 }] } })
        );
    }

    #[test]
    fn defaults_apply_to_missing_fields_and_to_nulls() {
        let types = schema(&json!({ "type": "object", "properties": {
            "a": { "type": "string", "default": "x" },
            "n": { "type": "string", "default": "x", "nullable": true },
            "o": { "type": "object", "default": {}, "properties": { "p": { "type": "integer", "default": 1 } } },
            "q": { "type": "object", "properties": { "p": { "type": "integer", "default": 1 } } },
        } }));
        let mut object = json!({ "a": null, "n": null, "z": null });
        types.drop_nulls(&mut object);
        types.set_defaults(&mut object);
        assert_eq!(object, json!({ "a": "x", "n": null, "o": { "p": 1 }, "z": null }));
    }

    #[test]
    fn unsupported_keywords_are_rejected() {
        assert!(matches!(
            Schema::parse(&json!({ "type": "object", "patternProperties": {} }), "", None),
            Err(SchemaError::Keyword { .. })
        ));
    }
}

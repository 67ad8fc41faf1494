//! Validation of custom resources against their schemas, with the error causes of the API server.

use serde_json::{Map, Value};

use crate::apply::is_equal;
use crate::schema::{Kind, ListType, Schema, SchemaError};
use crate::status::Cause;

/// Formats of strings that the API server checks and that this crate implements.
const FORMATS: [&str; 9] = ["date-time", "date", "duration", "uuid", "uri", "byte", "ipv4", "ipv6", "email"];
/// Formats that the API server checks and that this crate does not implement.
const UNSUPPORTED_FORMATS: [&str; 12] = [
    "bsonobjectid",
    "cidr",
    "creditcard",
    "hexcolor",
    "hostname",
    "ip",
    "isbn",
    "isbn10",
    "isbn13",
    "mac",
    "rgbcolor",
    "ssn",
];

/// Restrictions of values.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bounds {
    required: Vec<String>,
    allowed: Option<Vec<Value>>,
    minimum: Option<(f64, bool)>,
    maximum: Option<(f64, bool)>,
    multiple_of: Option<f64>,
    length: Range,
    items: Range,
    properties: Range,
    is_unique: bool,
    pattern: Option<regex::Regex>,
    format: Option<String>,
    all_of: Vec<std::sync::Arc<Schema>>,
    any_of: Vec<std::sync::Arc<Schema>>,
    one_of: Vec<std::sync::Arc<Schema>>,
    not: Option<std::sync::Arc<Schema>>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Range {
    min: Option<usize>,
    max: Option<usize>,
}

impl Bounds {
    pub(crate) const KEYWORDS: [&'static str; 20] = [
        "required",
        "enum",
        "minimum",
        "maximum",
        "exclusiveMinimum",
        "exclusiveMaximum",
        "multipleOf",
        "minLength",
        "maxLength",
        "minItems",
        "maxItems",
        "minProperties",
        "maxProperties",
        "uniqueItems",
        "pattern",
        "format",
        "allOf",
        "anyOf",
        "oneOf",
        "not",
    ];

    pub(crate) fn parse(keywords: &Map<String, Value>, path: &str) -> Result<Self, SchemaError> {
        let invalid = |keyword: &str| SchemaError::Value { path: path.to_owned(), keyword: keyword.to_owned() };
        let size = |keyword: &str| keywords.get(keyword).and_then(Value::as_u64).and_then(|n| usize::try_from(n).ok());
        let range = |min: &str, max: &str| Range { min: size(min), max: size(max) };
        let flag = |keyword: &str| keywords.get(keyword).and_then(Value::as_bool).unwrap_or_default();
        let number = |keyword: &str| keywords.get(keyword).and_then(Value::as_f64);
        let list = |keyword: &str| keywords.get(keyword).and_then(Value::as_array).cloned();
        let schemas = |keyword: &str| {
            let parse = |schema: &Value| Schema::parse(schema, path, None).map(std::sync::Arc::new);
            list(keyword).unwrap_or_default().iter().map(parse).collect::<Result<Vec<_>, _>>()
        };
        let pattern = keywords.get("pattern").and_then(Value::as_str);
        let pattern = pattern.map(|pattern| regex::Regex::new(pattern).map_err(|_| invalid("pattern"))).transpose()?;
        let format = keywords.get("format").and_then(Value::as_str).map(str::to_owned);
        if format.as_deref().is_some_and(|format| UNSUPPORTED_FORMATS.contains(&format)) {
            return Err(invalid("format"));
        }
        let not = keywords.get("not").map(|schema| Schema::parse(schema, path, None).map(std::sync::Arc::new));
        let required = list("required").unwrap_or_default();
        let is_int_or_string = flag("x-kubernetes-int-or-string");
        Ok(Bounds {
            required: required.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
            allowed: list("enum"),
            minimum: number("minimum").map(|minimum| (minimum, flag("exclusiveMinimum"))),
            maximum: number("maximum").map(|maximum| (maximum, flag("exclusiveMaximum"))),
            multiple_of: number("multipleOf"),
            length: range("minLength", "maxLength"),
            items: range("minItems", "maxItems"),
            properties: range("minProperties", "maxProperties"),
            is_unique: flag("uniqueItems"),
            pattern,
            format,
            all_of: schemas("allOf")?,
            // The type of an integer or a string is usually also given as `anyOf`.
            any_of: if is_int_or_string { Vec::new() } else { schemas("anyOf")? },
            one_of: schemas("oneOf")?,
            not: not.transpose()?,
        })
    }

    pub(crate) fn requires(&self, name: &str) -> bool {
        self.required.iter().any(|required| required == name)
    }

    pub(crate) fn format(&self) -> Option<&str> {
        self.format.as_deref()
    }
}

/// Returns the reasons why a custom resource is invalid. With the object before an update, unchanged values are not
/// checked.
pub(crate) fn validate(schema: &Schema, object: &Value, old: Option<&Value>) -> Vec<Cause> {
    let mut causes = Vec::new();
    // The type of the metadata is checked elsewhere.
    for (name, schema) in schema.properties.iter().filter(|(name, _)| *name != "metadata") {
        if let Some(value) = object.get(name) {
            validate_at(schema, value, old.and_then(|old| old.get(name)), name, &mut causes);
        }
    }
    validate_required(schema, object, "", &mut causes);
    causes
}

/// Returns the violations of unique keys in lists with the types `set` and `map`.
pub(crate) fn duplicates(schema: &Schema, value: &Value, path: &str, causes: &mut Vec<Cause>) {
    match value {
        Value::Object(map) => {
            // The lists in the metadata have types only for server-side apply.
            for (name, below) in map.iter().filter(|(name, _)| !path.is_empty() || *name != "metadata") {
                if let Some(schema) = schema.field(name) {
                    let path = child_path(path, name);
                    duplicates(schema, below, &path, causes);
                }
            }
        }
        Value::Array(list) => {
            duplicate_keys(schema, list, path, causes);
            if let Some(items) = &schema.items {
                for (index, item) in list.iter().enumerate() {
                    duplicates(items, item, &format!("{path}[{index}]"), causes);
                }
            }
        }
        _ => {}
    }
}

fn duplicate_keys(schema: &Schema, list: &[Value], path: &str, causes: &mut Vec<Cause>) {
    let mut seen: Vec<Value> = Vec::new();
    for (index, item) in list.iter().enumerate() {
        let at = format!("{path}[{index}]");
        let key = match &schema.list {
            ListType::Atomic => return,
            ListType::Set => item.clone(),
            // A null counts as an object without keys.
            ListType::Map(_) if !item.is_object() && !item.is_null() => {
                causes.push(Cause::invalid(&at, item, "must be an object for an array of list-type map"));
                return;
            }
            ListType::Map(keys) => {
                let default = |key: &String| schema.items.as_ref()?.properties.get(key)?.default.clone();
                let of =
                    |key: &String| item.get(key).cloned().or_else(|| default(key)).map(|value| (key.clone(), value));
                Value::Object(keys.iter().filter_map(of).collect())
            }
        };
        if seen.contains(&key) {
            causes.push(Cause::field("FieldValueDuplicate", &at, &format!("Duplicate value: {key}")));
        }
        seen.push(key);
    }
}

/// Returns the path of a field, or of the key of a map.
pub(crate) fn child_path(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

fn validate_required(schema: &Schema, value: &Value, path: &str, causes: &mut Vec<Cause>) {
    if let Some(map) = value.as_object() {
        for name in schema.bounds.required.iter().filter(|name| !map.contains_key(*name)) {
            causes.push(Cause::required(&child_path(path, name)));
        }
    }
}

fn validate_at(schema: &Schema, value: &Value, old: Option<&Value>, path: &str, causes: &mut Vec<Cause>) {
    if old.is_some_and(|old| is_equal(old, value)) {
        return;
    }
    if value.is_null() && schema.is_nullable {
        // A null must also be one of the allowed values.
        return validate_allowed(schema, value, path, causes);
    }
    if let Some(expected) = mismatch(schema, value) {
        let actual = type_name(value);
        let detail = format!("Invalid value: {actual:?}: {path} in body must be of type {expected}: {actual:?}");
        causes.push(Cause::field("FieldValueTypeInvalid", path, &detail));
        validate_allowed(schema, value, path, causes);
        return;
    }
    validate_combinations(schema, value, old, path, causes);
    validate_allowed(schema, value, path, causes);
    match value {
        Value::String(text) => validate_text(schema, text, path, causes),
        Value::Number(_) => validate_number(schema, value, path, causes),
        Value::Array(list) => validate_list(schema, list, old, path, causes),
        Value::Object(map) => {
            validate_size(schema.bounds.properties, map.len(), "properties", path, causes);
            validate_required(schema, value, path, causes);
            for (name, below) in map {
                if schema.is_embedded_resource && matches!(name.as_str(), "apiVersion" | "kind" | "metadata") {
                    continue;
                }
                if let Some(field) = schema.field(name) {
                    let old = old.and_then(|old| old.get(name));
                    validate_at(field, below, old, &child_path(path, name), causes);
                }
            }
            if schema.is_embedded_resource {
                let missing = ["apiVersion", "kind"].into_iter().filter(|name| !map.contains_key(*name));
                causes.extend(missing.map(|name| Cause::required(&format!("{path}.{name}"))));
            }
        }
        Value::Null | Value::Bool(_) => {}
    }
}

fn validate_allowed(schema: &Schema, value: &Value, path: &str, causes: &mut Vec<Cause>) {
    if let Some(allowed) = &schema.bounds.allowed
        && !allowed.iter().any(|allowed| is_equal(allowed, value))
    {
        causes.push(Cause::not_supported(path, value, allowed));
    }
}

fn validate_combinations(schema: &Schema, value: &Value, old: Option<&Value>, path: &str, causes: &mut Vec<Cause>) {
    let check = |schema: &Schema| {
        let mut causes = Vec::new();
        validate_at(schema, value, None, path, &mut causes);
        causes
    };
    let bounds = &schema.bounds;
    for part in &bounds.all_of {
        validate_at(part, value, old, path, causes);
    }
    let invalid = |detail: &str| Cause::invalid(path, value, &format!("{path} in body {detail}"));
    if !bounds.any_of.is_empty() && !bounds.any_of.iter().any(|part| check(part).is_empty()) {
        causes.push(invalid("must validate at least one schema (anyOf)"));
    }
    if !bounds.one_of.is_empty() && bounds.one_of.iter().filter(|part| check(part).is_empty()).count() != 1 {
        causes.push(invalid("must validate one and only one schema (oneOf)"));
    }
    if bounds.not.as_ref().is_some_and(|part| check(part).is_empty()) {
        causes.push(invalid("must not validate the schema (not)"));
    }
}

fn validate_list(schema: &Schema, list: &[Value], old: Option<&Value>, path: &str, causes: &mut Vec<Cause>) {
    validate_size(schema.bounds.items, list.len(), "items", path, causes);
    if schema.bounds.is_unique
        && list.iter().enumerate().any(|(at, item)| list.iter().take(at).any(|o| is_equal(o, item)))
    {
        causes.push(Cause::invalid(
            path,
            &Value::Array(list.to_vec()),
            &format!("{path} in body shouldn't contain duplicates"),
        ));
    }
    let Some(items) = &schema.items else { return };
    for (index, item) in list.iter().enumerate() {
        let old = old_item(schema, item, old);
        validate_at(items, item, old, &format!("{path}[{index}]"), causes);
    }
}

/// Returns the list element before the update that corresponds to an element. Only elements of lists with the type `map`
/// correspond.
pub(crate) fn old_item<'a>(schema: &Schema, item: &Value, old: Option<&'a Value>) -> Option<&'a Value> {
    let ListType::Map(keys) = &schema.list else { return None };
    let default = |key: &String| schema.items.as_ref()?.properties.get(key)?.default.clone();
    let of = |item: &Value, key: &String| item.get(key).cloned().or_else(|| default(key));
    let old = old?.as_array()?;
    old.iter().find(|old| keys.iter().all(|key| of(old, key) == of(item, key)))
}

fn validate_size(range: Range, size: usize, what: &str, path: &str, causes: &mut Vec<Cause>) {
    if let Some(max) = range.max.filter(|max| size > *max) {
        let detail = format!("Too many: {size}: must have at most {max} items");
        causes.push(Cause::field("FieldValueTooMany", path, &detail));
    }
    if let Some(min) = range.min.filter(|min| size < *min) {
        let detail = format!("{path} in body should have at least {min} {what}");
        causes.push(Cause::field("FieldValueInvalid", path, &format!("Invalid value: {size}: {detail}")));
    }
}

fn validate_text(schema: &Schema, text: &str, path: &str, causes: &mut Vec<Cause>) {
    let value = Value::from(text);
    let (length, bounds) = (text.chars().count(), &schema.bounds);
    // The API server reports only the first of these problems.
    if let Some(max) = bounds.length.max.filter(|max| length > *max) {
        causes.push(Cause::field("FieldValueTooLong", path, &format!("Too long: may not be more than {max} bytes")));
    } else if let Some(min) = bounds.length.min.filter(|min| length < *min) {
        causes.push(Cause::invalid(path, &value, &format!("{path} in body should be at least {min} chars long")));
    } else if let Some(pattern) = bounds.pattern.as_ref().filter(|pattern| !pattern.is_match(text)) {
        causes.push(Cause::invalid(path, &value, &format!("{path} in body should match '{pattern}'")));
    }
    if let Some(format) = schema.bounds.format()
        && FORMATS.contains(&format)
        && !has_format(format, text)
    {
        let detail = format!("Invalid value: {text:?}: {path} in body must be of type {format}: {text:?}");
        causes.push(Cause::field("FieldValueTypeInvalid", path, &detail));
    }
}

fn validate_number(schema: &Schema, value: &Value, path: &str, causes: &mut Vec<Cause>) {
    let Some(number) = value.as_f64() else { return };
    let bounds = &schema.bounds;
    let is_low = |(minimum, exclusive): (f64, bool)| number < minimum || (exclusive && number <= minimum);
    if let Some((minimum, exclusive)) = bounds.minimum.filter(|minimum| is_low(*minimum)) {
        let relation = if exclusive { "greater than" } else { "greater than or equal to" };
        causes.push(Cause::invalid(path, value, &format!("{path} in body should be {relation} {minimum}")));
    }
    let is_high = |(maximum, exclusive): (f64, bool)| number > maximum || (exclusive && number >= maximum);
    if let Some((maximum, exclusive)) = bounds.maximum.filter(|maximum| is_high(*maximum)) {
        let relation = if exclusive { "less than" } else { "less than or equal to" };
        causes.push(Cause::invalid(path, value, &format!("{path} in body should be {relation} {maximum}")));
    }
    if let Some(factor) = bounds.multiple_of.filter(|factor| (number / factor).fract() != 0.0) {
        causes.push(Cause::invalid(path, value, &format!("{path} in body should be a multiple of {factor}")));
    }
    let range = match bounds.format() {
        Some("int32") if schema.kind == Some(Kind::Integer) => Some((f64::from(i32::MIN), f64::from(i32::MAX))),
        Some("uint32") if schema.kind == Some(Kind::Integer) => Some((0.0, f64::from(u32::MAX))),
        Some("uint64") if schema.kind == Some(Kind::Integer) => Some((0.0, f64::MAX)),
        _ => None,
    };
    if range.is_some_and(|(min, max)| number < min || number > max) {
        let format = bounds.format().unwrap_or_default();
        causes.push(Cause::invalid(
            path,
            value,
            &format!("Checked value must be of type integer with format {format}"),
        ));
    }
}

/// Returns the expected type if the value has another type.
fn mismatch(schema: &Schema, value: &Value) -> Option<&'static str> {
    let is_integer =
        value.as_i64().is_some() || value.as_u64().is_some() || value.as_f64().is_some_and(|n| n.fract() == 0.0);
    let is_numeric = matches!(schema.kind, Some(Kind::Integer | Kind::Number));
    if schema.bounds.format().is_some() && !is_numeric && (value.is_string() || value.is_array()) {
        // The library of the API server checks the type of such a value only if the schema has no format.
        return None;
    }
    let (name, fits) = match schema.kind? {
        Kind::Object => ("object", value.is_object()),
        Kind::Array => ("array", value.is_array()),
        Kind::String => ("string", value.is_string()),
        Kind::Integer => ("integer", value.is_number() && is_integer),
        Kind::Number => ("number", value.is_number()),
        Kind::Boolean => ("boolean", value.is_boolean()),
        Kind::IntOrString => ("integer,string", value.is_string() || (value.is_number() && is_integer)),
    };
    (!fits).then_some(name)
}

fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn has_format(format: &str, text: &str) -> bool {
    match format {
        "date-time" => is_date_time(text),
        "date" => text.parse::<jiff::civil::Date>().is_ok() && text.len() == 10,
        "duration" => crate::cel::go_duration(text).is_some(),
        "uuid" => {
            let digits: Vec<&str> = text.split('-').collect();
            let is_hex = |part: &&str| part.chars().all(|c| c.is_ascii_hexdigit());
            let lengths: Vec<usize> = digits.iter().map(|part| part.len()).collect();
            digits.iter().all(is_hex) && (lengths == [8, 4, 4, 4, 12] || lengths == [32])
        }
        "uri" => text.parse::<http::Uri>().is_ok() && (text.contains(':') || text.starts_with('/')),
        "byte" => base64::Engine::decode(&base64::engine::general_purpose::STANDARD, text).is_ok(),
        "ipv4" => text.parse::<std::net::Ipv4Addr>().is_ok(),
        "ipv6" => text.parse::<std::net::Ipv6Addr>().is_ok(),
        "email" => text.split_once('@').is_some_and(|(user, host)| !user.is_empty() && !host.is_empty()),
        _ => true,
    }
}

/// Returns whether a text is a time as in RFC 3339.
fn is_date_time(text: &str) -> bool {
    let has_separator = text.as_bytes().get(10).is_some_and(|byte| matches!(byte, b'T' | b't'));
    let has_zone = text.ends_with(['Z', 'z']) || text.as_bytes().iter().rev().nth(2) == Some(&b':') && text.len() > 19;
    has_separator && has_zone && text.parse::<jiff::Timestamp>().is_ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn causes(schema: Value, value: Value) -> Vec<String> {
        let schema = json!({ "type": "object", "properties": { "spec": schema } });
        let schema = Schema::parse(&schema, "", None).unwrap();
        let object = json!({ "spec": value });
        let mut causes = validate(&schema, &object, None);
        duplicates(&schema, &object, "", &mut causes);
        causes.into_iter().map(|cause| format!("{} {}", cause.reason, cause.field)).collect()
    }

    #[test]
    fn values_outside_the_bounds_are_rejected() {
        let object = |properties: Value| json!({ "type": "object", "properties": properties });
        let table = [
            (json!({ "type": "string", "maxLength": 2 }), json!("abc"), "FieldValueTooLong spec"),
            (json!({ "type": "string", "minLength": 2 }), json!("a"), "FieldValueInvalid spec"),
            (json!({ "type": "string", "pattern": "^a+$" }), json!("b"), "FieldValueInvalid spec"),
            (json!({ "type": "string", "enum": ["a"] }), json!("b"), "FieldValueNotSupported spec"),
            (json!({ "type": "string", "format": "date-time" }), json!("x"), "FieldValueTypeInvalid spec"),
            (json!({ "type": "string" }), json!(1), "FieldValueTypeInvalid spec"),
            (json!({ "type": "integer", "maximum": 3 }), json!(4), "FieldValueInvalid spec"),
            (json!({ "type": "integer", "minimum": 3, "exclusiveMinimum": true }), json!(3), "FieldValueInvalid spec"),
            (json!({ "type": "array", "maxItems": 1, "items": {} }), json!([1, 2]), "FieldValueTooMany spec"),
            (json!({ "type": "array", "minItems": 1, "items": {} }), json!([]), "FieldValueInvalid spec"),
            (
                json!({ "type": "array", "x-kubernetes-list-type": "set", "items": { "type": "string" } }),
                json!(["a", "a"]),
                "FieldValueDuplicate spec[1]",
            ),
            (
                json!({ "type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["n"], "items": object(json!({ "n": { "type": "string" } })) }),
                json!([{ "n": "a" }, { "n": "a" }]),
                "FieldValueDuplicate spec[1]",
            ),
            (json!({ "type": "object", "required": ["a"] }), json!({}), "FieldValueRequired spec.a"),
            (object(json!({ "a": { "type": "boolean" } })), json!({ "a": "x" }), "FieldValueTypeInvalid spec.a"),
        ];
        for (schema, value, expected) in table {
            assert_eq!(causes(schema.clone(), value), [expected], "{schema}");
        }
        for (schema, value) in [
            (json!({ "type": "string", "nullable": true }), Value::Null),
            (
                json!({ "x-kubernetes-int-or-string": true, "anyOf": [{ "type": "integer" }, { "type": "string" }] }),
                json!("a"),
            ),
            (json!({ "type": "integer" }), json!(1.0)),
            (json!({ "type": "string", "format": "date-time" }), json!("2026-01-01T00:00:00+01:00")),
        ] {
            assert_eq!(causes(schema.clone(), value), [""; 0], "{schema}");
        }
    }

    #[test]
    fn unchanged_values_are_not_checked_again() {
        let schema = json!({ "type": "object", "properties": { "spec": { "type": "object", "properties": {
            "a": { "type": "string", "maxLength": 1 }, "b": { "type": "string" } } } } });
        let schema = Schema::parse(&schema, "", None).unwrap();
        let old = json!({ "spec": { "a": "long" } });
        assert!(validate(&schema, &json!({ "spec": { "a": "long", "b": "x" } }), Some(&old)).is_empty());
        assert_eq!(validate(&schema, &json!({ "spec": { "a": "longer" } }), Some(&old)).len(), 1);
    }
}

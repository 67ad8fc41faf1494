//! Metadata of all objects: access, and the checks that apply to all kinds.

use serde_json::{Map, Value};

use crate::apply::is_equal;
use crate::schema::{Kind, Schema};
use crate::status::Cause;

/// Finalizer of a deletion that waits for the dependents.
pub(crate) const FOREGROUND: &str = "foregroundDeletion";
/// Finalizer of a deletion that keeps the dependents.
pub(crate) const ORPHAN: &str = "orphan";
/// Maximum size of all annotations in bytes.
const MAX_ANNOTATIONS: usize = 256 * 1024;

/// Returns a text in the metadata, or an empty text.
pub fn text<'v>(object: &'v Value, name: &str) -> &'v str {
    get(object, name).and_then(Value::as_str).unwrap_or_default()
}

/// Returns a value in the metadata.
pub fn get<'v>(object: &'v Value, name: &str) -> Option<&'v Value> {
    object.get("metadata")?.get(name).filter(|value| !value.is_null())
}

/// Sets a value in the metadata.
pub fn set(object: &mut Value, name: &str, value: impl Into<Value>) {
    let Value::Object(map) = object else { return };
    let metadata = map.entry("metadata").or_insert_with(|| Value::Object(Map::new()));
    if let Value::Object(metadata) = metadata {
        metadata.insert(name.to_owned(), value.into());
    }
}

/// Removes a value from the metadata.
pub fn remove(object: &mut Value, name: &str) {
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove(name);
    }
}

/// Returns the finalizers.
pub fn finalizers(object: &Value) -> Vec<String> {
    let list = get(object, "finalizers").and_then(Value::as_array).into_iter().flatten();
    list.filter_map(Value::as_str).map(str::to_owned).collect()
}

/// Sets the finalizers.
pub fn set_finalizers(object: &mut Value, finalizers: &[String]) {
    match finalizers {
        [] => remove(object, "finalizers"),
        _ => set(object, "finalizers", finalizers.to_vec()),
    }
}

/// Returns whether the object has a deletion timestamp.
pub fn is_deleting(object: &Value) -> bool {
    get(object, "deletionTimestamp").is_some()
}

/// Brings the metadata into the form of the Go type: removes unknown fields and empty values.
///
/// # Errors
/// Returns the path of a field of the wrong type.
pub(crate) fn normalize(schema: &Schema, object: &mut Value) -> Result<Vec<String>, String> {
    let Some(metadata) = object.get_mut("metadata") else { return Ok(Vec::new()) };
    if metadata.is_null() {
        if let Value::Object(map) = object {
            map.remove("metadata");
        }
        return Ok(Vec::new());
    }
    if let Some(path) = mismatch(schema, metadata, "metadata") {
        return Err(path);
    }
    let unknown = schema.prune(metadata);
    if let Value::Object(map) = metadata {
        map.retain(|name, value| match value {
            Value::Null => false,
            Value::Array(list) => !list.is_empty() || name == "managedFields",
            Value::Object(map) => !map.is_empty(),
            Value::String(text) => !text.is_empty(),
            Value::Number(number) => number.as_i64() != Some(0) || name == "deletionGracePeriodSeconds",
            Value::Bool(_) => true,
        });
        for labels in ["labels", "annotations"] {
            // Go reads a null in a map of strings as an empty string.
            for value in map.get_mut(labels).and_then(Value::as_object_mut).into_iter().flat_map(Map::values_mut) {
                if value.is_null() {
                    *value = "".into();
                }
            }
        }
    }
    Ok(unknown.into_iter().map(|path| format!("metadata.{path}")).collect())
}

/// Returns the path of the first value of the wrong type. A null is always possible.
pub(crate) fn mismatch(schema: &Schema, value: &Value, path: &str) -> Option<String> {
    if value.is_null() {
        return None;
    }
    let fits = match schema.kind {
        None => true,
        Some(Kind::Object) => value.is_object(),
        Some(Kind::Array) => value.is_array(),
        Some(Kind::String) => value.is_string(),
        Some(Kind::Integer) => value.as_i64().is_some(),
        Some(Kind::Number) => value.is_number(),
        Some(Kind::Boolean) => value.is_boolean(),
        Some(Kind::IntOrString) => value.is_number() || value.is_string(),
    };
    if !fits {
        return Some(path.to_owned());
    }
    match value {
        Value::Object(map) => {
            map.iter().find_map(|(name, below)| mismatch(schema.field(name)?, below, &format!("{path}.{name}")))
        }
        Value::Array(list) => {
            let items = schema.items.as_ref()?;
            list.iter().enumerate().find_map(|(index, item)| mismatch(items, item, &format!("{path}[{index}]")))
        }
        Value::String(text) if schema.bounds.format() == Some("date-time") => {
            text.parse::<jiff::Timestamp>().err().map(|_| path.to_owned())
        }
        Value::String(text) if schema.bounds.format() == Some("micro-time") => {
            // Go accepts only six digits after the decimal point.
            let digits =
                text.split_once('.').map_or(0, |(_, rest)| rest.chars().take_while(char::is_ascii_digit).count());
            (digits != 6 || text.parse::<jiff::Timestamp>().is_err()).then(|| path.to_owned())
        }
        Value::String(text) if schema.bounds.format() == Some("quantity") => {
            crate::builtin::canonical_quantity(text).is_none().then(|| path.to_owned())
        }
        Value::String(text) if schema.bounds.format() == Some("byte") => {
            let decoded = base64::Engine::decode(&base64::engine::general_purpose::STANDARD, text);
            decoded.err().map(|_| path.to_owned())
        }
        _ => None,
    }
}

/// Returns the reasons why the metadata of a new or updated object are invalid.
pub(crate) fn validate(object: &Value, is_namespaced: bool) -> Vec<Cause> {
    let mut causes = Vec::new();
    let name = text(object, "name");
    if name.is_empty() {
        causes.push(Cause::field(
            "FieldValueRequired",
            "metadata.name",
            "Required value: name or generateName is required",
        ));
    } else if name == "." || name == ".." || name.contains(['/', '%']) {
        causes.push(Cause::invalid("metadata.name", &name.into(), "may not be used as a path segment"));
    }
    if !is_namespaced && !text(object, "namespace").is_empty() {
        causes.push(Cause::forbidden("metadata.namespace", "not allowed on this type"));
    }
    for (field, is_label) in [("labels", true), ("annotations", false)] {
        let at = format!("metadata.{field}");
        for (key, value) in get(object, field).and_then(Value::as_object).into_iter().flatten() {
            let name = if is_label { key.clone() } else { key.to_lowercase() };
            if !is_qualified_name(&name) {
                causes.push(Cause::invalid(
                    &at,
                    &key.clone().into(),
                    "name part must consist of alphanumeric characters, '-', '_' or '.'",
                ));
            }
            if is_label && !value.as_str().is_some_and(is_label_value) {
                causes.push(Cause::invalid(
                    &at,
                    value,
                    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.'",
                ));
            }
        }
    }
    let annotations = get(object, "annotations").and_then(Value::as_object).into_iter().flatten();
    let size: usize = annotations.map(|(key, value)| key.len() + value.as_str().unwrap_or_default().len()).sum();
    if size > MAX_ANNOTATIONS {
        let detail = format!("Too long: may not be more than {MAX_ANNOTATIONS} bytes");
        causes.push(Cause::field("FieldValueTooLong", "metadata.annotations", &detail));
    }
    validate_owners(object, &mut causes);
    let finalizers = finalizers(object);
    for finalizer in finalizers.iter().filter(|name| !is_qualified_name(name)) {
        causes.push(Cause::invalid(
            "metadata.finalizers",
            &finalizer.clone().into(),
            "name part must consist of alphanumeric characters",
        ));
    }
    if [FOREGROUND, ORPHAN].iter().all(|name| finalizers.iter().any(|finalizer| finalizer == name)) {
        let detail = format!("finalizer {ORPHAN} and {FOREGROUND} cannot be both set");
        causes.push(Cause::invalid("metadata.finalizers", &finalizers.into(), &detail));
    }
    causes
}

fn validate_owners(object: &Value, causes: &mut Vec<Cause>) {
    let owners = get(object, "ownerReferences").and_then(Value::as_array).cloned().unwrap_or_default();
    let mut controllers = 0;
    for owner in &owners {
        let of = |name: &str| owner.get(name).and_then(Value::as_str).unwrap_or_default();
        for (field, detail) in [
            ("apiVersion", "version must not be empty"),
            ("kind", "must not be empty"),
            ("name", "must not be empty"),
            ("uid", "must not be empty"),
        ] {
            if of(field).is_empty() {
                causes.push(Cause::invalid(&format!("metadata.ownerReferences.{field}"), &"".into(), detail));
            }
        }
        controllers += usize::from(owner.get("controller") == Some(&Value::Bool(true)));
        if controllers > 1 && owner.get("controller") == Some(&Value::Bool(true)) {
            let detail = "Only one reference can have Controller set to true";
            causes.push(Cause::invalid("metadata.ownerReferences", &Value::Null, detail));
        }
    }
}

/// Returns the reasons why an update of the metadata is invalid.
pub(crate) fn validate_update(object: &Value, old: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    let null = Value::Null;
    if is_deleting(old) {
        let before = finalizers(old);
        let new: Vec<String> = finalizers(object).into_iter().filter(|name| !before.contains(name)).collect();
        if !new.is_empty() {
            let detail =
                format!("no new finalizers can be added if the object is being deleted, found new finalizers {new:?}");
            causes.push(Cause::forbidden("metadata.finalizers", &detail));
        }
    }
    for field in ["name", "namespace", "uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds"] {
        let (new, before) = (get(object, field).unwrap_or(&null), get(old, field).unwrap_or(&null));
        if !is_equal(new, before) {
            causes.push(Cause::invalid(&format!("metadata.{field}"), new, "field is immutable"));
        }
    }
    causes
}

fn is_qualified_name(name: &str) -> bool {
    let is_name = |name: &str| {
        let is_edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
        !name.is_empty()
            && name.len() <= 63
            && is_edge(name.chars().next())
            && is_edge(name.chars().last())
            && name.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
    };
    match name.split_once('/') {
        None => is_name(name),
        Some((prefix, name)) => crate::builtin::is_subdomain(prefix) && is_name(name),
    }
}

fn is_label_value(value: &str) -> bool {
    value.is_empty() || (is_qualified_name(value) && !value.contains('/'))
}

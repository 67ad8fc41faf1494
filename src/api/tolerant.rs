//! Objects that are parsed separately. kube-rs parses a page of objects as one document, so a single object that serde
//! rejects would hide all objects in the list. The type [`Tolerant`] parses only the identity of an object, and keeps
//! the content as text until a caller parses it.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::marker::PhantomData;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, ObjectMeta};
use kube::Resource;
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use thiserror::Error;

use super::conditions;

/// Maximum number of JSON values in an object. A parsed object can require a hundred times as much memory as its text,
/// for example `[{"":0},{"":0}]`. The largest Program, with 5,000 resources and eight properties per resource, has
/// about 60,000 values, and about 60,000 further values in its managed fields.
const MAX_VALUES: usize = 100_000;
/// Maximum length of the path of a field in a message, in bytes.
const MAX_FIELD: usize = 256;

/// Object with a parsed identity and unparsed content as JSON text. [`Tolerant::parse`] parses the content.
#[derive(Clone, Debug)]
pub struct Tolerant<K> {
    metadata: ObjectMeta,
    text: Box<RawValue>,
    kind: PhantomData<fn() -> K>,
}

/// Reason why the controller cannot use an object.
#[derive(Debug, Error)]
pub enum ParseError {
    #[error("the object has {0} JSON values, more than the maximum of {MAX_VALUES}; divide or shorten it")]
    TooManyValues(usize),
    #[error("the object cannot be parsed: {field}: {error}; correct the object")]
    Malformed { field: String, error: serde_json::Error },
}

/// Identity of an object, and the resource version from which a watch continues.
#[derive(Deserialize)]
struct Identified {
    #[serde(default)]
    metadata: Identity,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Identity {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    generation: Option<i64>,
}

impl<K: DeserializeOwned> Tolerant<K> {
    /// Parses the object. The function omits the managed fields if the object would otherwise exceed the maximum number
    /// of values. If the object cannot be parsed, the function parses it again without its invalid managed fields.
    pub fn parse(&self) -> Result<K, ParseError> {
        let text = self.text.get();
        if count_values(text) <= MAX_VALUES {
            let first = match serde_json::from_str(text) {
                Ok(object) => return Ok(object),
                Err(error) => malformed(text, error),
            };
            let retry = change_managed_fields(text, valid_entries).and_then(|text| serde_json::from_str(&text));
            return retry.map_err(|_| first);
        }
        let text = change_managed_fields(text, |_| None).map_err(|error| malformed(text, error))?;
        match count_values(&text) {
            values if values > MAX_VALUES => Err(ParseError::TooManyValues(values)),
            _ => serde_json::from_str(&text).map_err(|error| malformed(&text, error)),
        }
    }
}

/// Returns the error about an object whose JSON text serde rejects. The error of serde contains only a position, because
/// the field is in the text, not in the type.
fn malformed(text: &str, error: serde_json::Error) -> ParseError {
    let lines = text.split_inclusive('\n').take(error.line().saturating_sub(1)).map(str::len);
    let position = lines.sum::<usize>() + error.column().saturating_sub(1);
    let field = field_at(text.as_bytes().get(..position).unwrap_or(text.as_bytes()));
    ParseError::Malformed { field: conditions::shorten(&field, MAX_FIELD), error }
}

/// Returns the path of the field whose value contains the end of this JSON text, such as `spec.targets[1]`.
fn field_at(text: &[u8]) -> String {
    let mut path: Vec<Part<'_>> = Vec::new();
    let (mut start, mut is_escaped, mut is_key) = (None, false, false);
    for (index, byte) in text.iter().enumerate() {
        match (byte, start) {
            (_, Some(_)) if is_escaped => is_escaped = false,
            (b'\\', Some(_)) => is_escaped = true,
            (b'"', Some(first)) => {
                start = None;
                if let (true, Some(Part::Field(name))) = (std::mem::take(&mut is_key), path.last_mut()) {
                    *name = text.get(first..index).unwrap_or_default();
                }
            }
            (b'"', None) => start = Some(index + 1),
            (b'{', None) => {
                path.push(Part::Field(&[]));
                is_key = true;
            }
            (b'[', None) => path.push(Part::Item(0)),
            (b'}' | b']', None) => drop(path.pop()),
            (b',', None) => match path.last_mut() {
                Some(Part::Item(number)) => *number += 1,
                _ => is_key = true,
            },
            _ => {}
        }
    }
    let mut found = String::new();
    for part in path {
        match part {
            Part::Field(name) if found.is_empty() => found.push_str(&String::from_utf8_lossy(name)),
            Part::Field(name) => found.push_str(&format!(".{}", String::from_utf8_lossy(name))),
            Part::Item(number) => found.push_str(&format!("[{number}]")),
        }
    }
    found
}

/// Part of the path of a JSON value.
enum Part<'a> {
    Field(&'a [u8]),
    Item(usize),
}

/// Replaces the managed fields in the JSON text of an object with the result of `change`, without parsing the values of
/// other fields. Removes the managed fields if the result is `None`. `change` is a function pointer, so the binary
/// contains this function only once.
fn change_managed_fields(text: &str, change: fn(&RawValue) -> Option<Box<RawValue>>) -> serde_json::Result<String> {
    let mut object: BTreeMap<Cow<'_, str>, &RawValue> = serde_json::from_str(text)?;
    let Some(metadata) = object.get("metadata") else { return Ok(text.to_owned()) };
    let mut metadata: BTreeMap<Cow<'_, str>, &RawValue> = serde_json::from_str(metadata.get())?;
    let changed = metadata.remove("managedFields").and_then(change);
    if let Some(changed) = &changed {
        metadata.insert(Cow::Borrowed("managedFields"), changed);
    }
    let metadata = serde_json::value::to_raw_value(&metadata)?;
    object.insert(Cow::Borrowed("metadata"), &metadata);
    serde_json::to_string(&object)
}

/// Returns the valid managed fields. Every user who can change an object can also change its managed fields, including
/// the time of each entry. Kubernetes accepts all times in the year 9999, but the parser rejects the last two days of
/// this year.
fn valid_entries(managed_fields: &RawValue) -> Option<Box<RawValue>> {
    let entries: Vec<&RawValue> = serde_json::from_str(managed_fields.get()).ok()?;
    let valid: Vec<Box<RawValue>> = entries.into_iter().filter_map(valid_entry).collect();
    serde_json::value::to_raw_value(&valid).ok()
}

/// Returns the entry if it is valid, without its time if only the time is invalid.
fn valid_entry(entry: &RawValue) -> Option<Box<RawValue>> {
    let is_valid = |entry: &RawValue| serde_json::from_str::<ManagedFieldsEntry>(entry.get()).is_ok();
    if is_valid(entry) {
        return Some(entry.to_owned());
    }
    let mut fields: BTreeMap<Cow<'_, str>, &RawValue> = serde_json::from_str(entry.get()).ok()?;
    fields.remove("time");
    serde_json::value::to_raw_value(&fields).ok().filter(|entry| is_valid(entry))
}

/// Counts the values in JSON text without parsing the text. The function counts an empty object or list as
/// two values.
pub fn count_values(text: &str) -> usize {
    let (mut count, mut is_string, mut is_escaped) = (1, false, false);
    for byte in text.bytes() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_string => is_escaped = true,
            b'"' => is_string = !is_string,
            b',' | b'{' | b'[' if !is_string => count += 1,
            _ => {}
        }
    }
    count
}

impl<'de, K> Deserialize<'de> for Tolerant<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // serde applies no nesting limit to raw text. serde can keep the object in a watch event as raw text only if
        // `type` precedes `object`. The API server uses this order.
        let text = Box::<RawValue>::deserialize(deserializer)?;
        let object: Identified = serde_json::from_str(text.get()).map_err(D::Error::custom)?;
        let Identity { name, namespace, uid, resource_version, generation } = object.metadata;
        let metadata = ObjectMeta { name, namespace, uid, resource_version, generation, ..ObjectMeta::default() };
        Ok(Tolerant { metadata, text, kind: PhantomData })
    }
}

impl<K: Resource> Resource for Tolerant<K> {
    type DynamicType = K::DynamicType;
    type Scope = K::Scope;

    /// Without this function, a watch of metadata would receive complete objects.
    fn metadata_api() -> bool {
        K::metadata_api()
    }

    fn kind(of: &Self::DynamicType) -> Cow<'_, str> {
        K::kind(of)
    }

    fn group(of: &Self::DynamicType) -> Cow<'_, str> {
        K::group(of)
    }

    fn version(of: &Self::DynamicType) -> Cow<'_, str> {
        K::version(of)
    }

    fn plural(of: &Self::DynamicType) -> Cow<'_, str> {
        K::plural(of)
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;
    use kube::core::PartialObjectMeta;

    use super::*;
    use crate::api::pulumi::Stack;

    fn stack(config: &str) -> Tolerant<Stack> {
        let text =
            format!(r#"{{"metadata":{{"name":"web","generation":3}},"spec":{{"stack":"dev","config":{config}}}}}"#);
        serde_json::from_str(&text).expect("an object with a name")
    }

    #[test]
    fn only_values_outside_strings_are_counted() {
        for (text, count) in [
            ("0", 1),
            (r#""a,b{[""#, 1),
            (r#""a\",{[""#, 1),
            (r#"{"a\\":[1,2],"b":{"c":0}}"#, 6),
            (r#"[{"":0},{"":0}]"#, 5),
        ] {
            assert_eq!(count_values(text), count, "{text}");
        }
    }

    #[test]
    fn an_object_with_too_many_values_is_not_parsed() {
        let list = |length: usize| format!(r#"{{"a":[{}]}}"#, vec![r#"{"":0}"#; length].join(","));
        stack(&list(MAX_VALUES / 2 - 10)).parse().expect("at most the maximum number of values");
        let object = stack(&list(MAX_VALUES / 2));
        let error = object.parse().expect_err("too many values").to_string();
        assert_eq!(error, "the object has 100008 JSON values, more than the maximum of 100000; divide or shorten it");
        assert_eq!((object.meta().name.as_deref(), object.meta().generation), (Some("web"), Some(3)));
    }

    #[test]
    fn managed_fields_do_not_count_toward_the_maximum() {
        let text = |managed: usize, config: usize| {
            let list = |length: usize| vec![r#"{"f:a":0}"#; length].join(",");
            format!(
                r#"{{"metadata":{{"name":"web","managedFields":[{{"manager":"kubectl","fieldsV1":{{"f:b":[{}]}}}}]}},"spec":{{"stack":"dev","config":{{"managedFields":[{}]}}}}}}"#,
                list(managed),
                list(config)
            )
        };
        let parse = |text: &str| serde_json::from_str::<Tolerant<Stack>>(text).expect("an object with a name").parse();
        let half = MAX_VALUES / 4;
        let whole = parse(&text(1, half)).expect("few values");
        assert_eq!(whole.metadata.managed_fields.as_ref().map(Vec::len), Some(1));
        let large = parse(&text(half, half)).expect("few values without managed fields");
        assert_eq!((large.metadata.name.as_deref(), &large.metadata.managed_fields), (Some("web"), &None));
        assert_eq!(large.spec.config, whole.spec.config, "the spec is unchanged");
        assert!(parse(&text(0, 2 * half)).is_err());
    }

    #[test]
    fn the_name_of_a_malformed_object_is_known() {
        let object = stack("1");
        let error = object.parse().expect_err("a number is not a map").to_string();
        let expected = "the object cannot be parsed: spec.config: invalid type: integer `1`, expected a map";
        assert!(error.starts_with(expected), "{error}");
        assert_eq!(object.meta().name.as_deref(), Some("web"));
    }

    /// Kubernetes accepts this time, but it is later than the last time that the library for times supports.
    const LATE: &str = "9999-12-31T23:59:59Z";

    #[test]
    fn invalid_managed_fields_do_not_prevent_parsing() {
        let text = r#"{"metadata": {"name": "web", "labels": {"a": "b"}, "managedFields": [
            {"manager": "flux", "operation": "Apply", "time": "2026-01-01T00:00:00Z", "fieldsV1": {"f:spec": {}}},
            {"manager": "attacker", "operation": "Update", "time": "LATE", "fieldsV1": {"f:status": {}}},
            {"manager": 1}]}, "spec": {"containers": [{"name": "pulumi"}]}}"#;
        let object: Tolerant<Pod> = serde_json::from_str(&text.replace("LATE", LATE)).expect("an object with a name");
        assert!(serde_json::from_str::<Pod>(object.text.get()).is_err(), "kube-rs rejects the object");
        let pod = object.parse().expect("a pod");
        assert_eq!(pod.metadata.labels.unwrap_or_default()["a"], "b");
        assert_eq!(pod.spec.expect("a spec").containers[0].name, "pulumi");
        let managed = pod.metadata.managed_fields.expect("managed fields");
        let entries = managed.iter().map(|entry| {
            (entry.manager.as_deref().unwrap_or_default(), entry.time.is_some(), entry.fields_v1.is_some())
        });
        assert_eq!(entries.collect::<Vec<_>>(), [("flux", true, true), ("attacker", false, true)]);
        for kept in ["null", "{}", "1"] {
            let text = format!(r#"{{"metadata":{{"name":"web","managedFields":{kept}}}}}"#);
            let object: Tolerant<PartialObjectMeta<Pod>> = serde_json::from_str(&text).expect("an object with a name");
            assert_eq!(object.parse().expect("metadata").metadata.name.as_deref(), Some("web"), "{kept}");
        }
    }

    #[test]
    fn an_invalid_time_outside_the_managed_fields_is_an_error() {
        let text = format!(r#"{{"metadata":{{"name":"web"}},"spec":{{"stack":"dev","expiresAt":"{LATE}"}}}}"#);
        let object: Tolerant<Stack> = serde_json::from_str(&text).expect("an object with a name");
        let error = object.parse().expect_err("an invalid time").to_string();
        assert!(error.starts_with("the object cannot be parsed: spec.expiresAt: "), "{error}");
        assert_eq!(object.meta().name.as_deref(), Some("web"));
    }

    #[test]
    fn the_error_about_a_malformed_object_names_the_field() {
        for (spec, field) in [
            (r#"{"stack":"dev","ttl":{"a":"b"}}"#, "spec.ttl"),
            (r#"{"stack":"dev","targets":["a","b",3]}"#, "spec.targets[2]"),
            (
                r#"{"stack":"d\"}e\\v","targets":["a"],"dependsOn":[{"name":"a"},{"name":[]}]}"#,
                "spec.dependsOn[1].name",
            ),
            ("{\n  \"stack\": \"dev\",\n  \"suspend\": 7\n}", "spec.suspend"),
            (r#""dev""#, "spec"),
        ] {
            let text = format!(r#"{{"metadata":{{"name":"web"}},"spec":{spec}}}"#);
            let object: Tolerant<Stack> = serde_json::from_str(&text).expect("an object with a name");
            let error = object.parse().expect_err("an invalid field").to_string();
            assert!(error.starts_with(&format!("the object cannot be parsed: {field}: ")), "{error}");
        }
    }

    #[test]
    fn requests_for_metadata_remain_requests_for_metadata() {
        assert!(Tolerant::<PartialObjectMeta<Pod>>::metadata_api());
        assert!(!Tolerant::<Pod>::metadata_api());
    }
}

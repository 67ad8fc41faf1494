//! Watches that continue when the controller cannot parse an object.
//!
//! kube-rs parses a page of objects as one document. A single object that serde rejects, such as an object with more
//! than 128 nesting levels, would prevent the controller from listing any objects of the kind. The watches in this
//! module receive objects as text, and parse each object separately. The watches skip and log an object that cannot be
//! parsed or has too many values.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::marker::PhantomData;

use futures::{Stream, TryStreamExt};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Resource};
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use thiserror::Error;

/// Maximum number of JSON values in an object. A parsed object can require a hundred times as much memory as its text,
/// for example `[{"":0},{"":0}]`. The largest Program, with 5,000 resources and eight properties per resource, has
/// about 60,000 values, and about 60,000 further values in its managed fields.
const MAX_VALUES: usize = 100_000;

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
    #[error("the object cannot be parsed: {0}; correct the object")]
    Malformed(#[from] serde_json::Error),
}

/// Identity of an object, and the resource version from which a watch continues.
#[derive(Deserialize)]
struct Identified {
    metadata: Identity,
}

#[derive(Deserialize)]
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
    /// of values.
    pub fn parse(&self) -> Result<K, ParseError> {
        let text = self.text.get();
        if count_values(text) <= MAX_VALUES {
            return Ok(serde_json::from_str(text)?);
        }
        let text = without_managed_fields(text)?;
        match count_values(&text) {
            values if values > MAX_VALUES => Err(ParseError::TooManyValues(values)),
            _ => Ok(serde_json::from_str(&text)?),
        }
    }
}

/// Removes the managed fields from the JSON text of an object, without parsing the values of other fields.
fn without_managed_fields(text: &str) -> serde_json::Result<String> {
    let mut object: BTreeMap<Cow<'_, str>, &RawValue> = serde_json::from_str(text)?;
    let Some(metadata) = object.get("metadata") else { return Ok(text.to_owned()) };
    let mut metadata: BTreeMap<Cow<'_, str>, &RawValue> = serde_json::from_str(metadata.get())?;
    metadata.remove("managedFields");
    let metadata = serde_json::value::to_raw_value(&metadata)?;
    object.insert(Cow::Borrowed("metadata"), &metadata);
    serde_json::to_string(&object)
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

/// Watches a kind and skips objects that cannot be parsed.
pub fn watcher<K>(
    api: Api<Tolerant<K>>,
    config: watcher::Config,
) -> impl Stream<Item = Result<Event<K>, watcher::Error>> + Send
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    watcher_with(api, config, |_| None, |_, _| ())
}

/// Same as [`watcher()`], but passes each skipped object to `skipped`. If a deleted object cannot be parsed, its
/// deletion event contains the last valid version, which `last` returns.
pub fn watcher_with<K>(
    api: Api<Tolerant<K>>,
    config: watcher::Config,
    last: impl Fn(&ObjectMeta) -> Option<K> + Send + 'static,
    skipped: impl Fn(&ObjectMeta, &ParseError) + Send + 'static,
) -> impl Stream<Item = Result<Event<K>, watcher::Error>> + Send
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let parsed = move |event| std::future::ready(Ok(parse(event, &last, &skipped)));
    watcher::watcher(api, config).try_filter_map(parsed)
}

fn parse<K: DeserializeOwned>(
    event: Event<Tolerant<K>>,
    last: impl Fn(&ObjectMeta) -> Option<K>,
    skipped: impl Fn(&ObjectMeta, &ParseError),
) -> Option<Event<K>> {
    let parsed = |object: Tolerant<K>| {
        let warn = |error: &ParseError| {
            let ObjectMeta { name, namespace, .. } = &object.metadata;
            let kind = std::any::type_name::<K>();
            tracing::warn!(kind, ?namespace, ?name, %error, "ignoring object that cannot be parsed");
            skipped(&object.metadata, error);
        };
        object.parse().inspect_err(warn).ok()
    };
    Some(match event {
        Event::Init => Event::Init,
        Event::InitDone => Event::InitDone,
        Event::Apply(object) => Event::Apply(parsed(object)?),
        Event::InitApply(object) => Event::InitApply(parsed(object)?),
        Event::Delete(object) => Event::Delete(object.parse().ok().or_else(|| last(&object.metadata))?),
    })
}

#[cfg(test)]
mod tests {
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
        assert!(error.starts_with("the object cannot be parsed: invalid type: integer `1`, expected a map"), "{error}");
        assert_eq!(object.meta().name.as_deref(), Some("web"));
    }
}

//! Watches that continue if one object cannot be parsed.
//!
//! kube-rs parses a page of objects as one document. A single object that serde rejects, such as one with more than 128 levels
//! of nesting, would prevent the controller from listing any objects of that kind. These watches skip and log such an object.

use std::borrow::Cow;
use std::fmt::Debug;

use futures::{Stream, TryStreamExt};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Resource};
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

/// A watched object that is parsed, or only its metadata if the object cannot be parsed.
#[derive(Clone, Debug)]
pub enum Tolerant<K> {
    Read(Box<K>),
    Unreadable(Box<Unreadable>),
}

/// An object that cannot be parsed as its type.
#[derive(Clone, Debug)]
pub struct Unreadable {
    metadata: ObjectMeta,
    error: String,
}

/// Identity of an object, and the resource version at which a watch continues.
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
}

impl<'de, K: DeserializeOwned> Deserialize<'de> for Tolerant<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // Parsing an object as raw text has no nesting limit. This works in watch events because the API server writes the type
        // of the event before the object.
        let text = Box::<RawValue>::deserialize(deserializer)?;
        match serde_json::from_str(text.get()) {
            Ok(object) => Ok(Tolerant::Read(object)),
            Err(error) => {
                let object: Identified = serde_json::from_str(text.get()).map_err(D::Error::custom)?;
                let Identity { name, namespace, uid, resource_version } = object.metadata;
                let metadata = ObjectMeta { name, namespace, uid, resource_version, ..ObjectMeta::default() };
                Ok(Tolerant::Unreadable(Box::new(Unreadable { metadata, error: error.to_string() })))
            }
        }
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
        match self {
            Tolerant::Read(object) => object.meta(),
            Tolerant::Unreadable(object) => &object.metadata,
        }
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        match self {
            Tolerant::Read(object) => object.meta_mut(),
            Tolerant::Unreadable(object) => &mut object.metadata,
        }
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
    watcher_with(api, config, |_| None)
}

/// Like [`watcher()`], but if a deleted object cannot be parsed, the deletion event contains the last known version of the
/// object, which `last` returns.
pub fn watcher_with<K>(
    api: Api<Tolerant<K>>,
    config: watcher::Config,
    last: impl Fn(&ObjectMeta) -> Option<K> + Send + 'static,
) -> impl Stream<Item = Result<Event<K>, watcher::Error>> + Send
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    watcher::watcher(api, config).try_filter_map(move |event| std::future::ready(Ok(readable(event, &last))))
}

fn readable<K>(event: Event<Tolerant<K>>, last: impl Fn(&ObjectMeta) -> Option<K>) -> Option<Event<K>> {
    Some(match event {
        Event::Init => Event::Init,
        Event::InitDone => Event::InitDone,
        Event::Apply(Tolerant::Read(object)) => Event::Apply(*object),
        Event::InitApply(Tolerant::Read(object)) => Event::InitApply(*object),
        Event::Delete(Tolerant::Read(object)) => Event::Delete(*object),
        Event::Delete(Tolerant::Unreadable(object)) => Event::Delete(last(&object.metadata)?),
        Event::Apply(Tolerant::Unreadable(object)) | Event::InitApply(Tolerant::Unreadable(object)) => {
            let ObjectMeta { name, namespace, .. } = &object.metadata;
            let kind = std::any::type_name::<K>();
            tracing::warn!(kind, ?namespace, ?name, error = object.error, "ignoring object that cannot be parsed");
            return None;
        }
    })
}

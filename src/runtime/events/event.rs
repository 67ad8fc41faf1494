//! An event of a Kubernetes object, before it is written to the API or posted to Flux's notification-controller.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::{Resource, ResourceExt};

use crate::telemetry::redact::url_credentials;

/// Prefix of object annotations that are copied to the metadata of the object's events, as in Flux.
const METADATA_PREFIX: &str = "event.toolkit.fluxcd.io/";

/// Sender of the events.
#[derive(Clone, Debug)]
pub(super) struct Reporter {
    /// Name of the controller.
    pub(super) component: String,
    /// Name of its pod.
    pub(super) instance: String,
}

/// Severity of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// Written to the API as a normal event, without a notification.
    Trace,
    Normal,
    Warning,
}

impl EventKind {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            EventKind::Trace | EventKind::Normal => "Normal",
            EventKind::Warning => "Warning",
        }
    }
}

/// An event of an object.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    pub object: ObjectReference,
    pub kind: EventKind,
    pub reason: String,
    pub message: String,
    /// Annotations of the event, such as `pulumi.com/revision`.
    pub metadata: BTreeMap<String, String>,
}

impl Event {
    pub fn new<K>(object: &K, kind: EventKind, reason: impl Into<String>, message: impl Into<String>) -> Self
    where
        K: Resource<DynamicType = ()>,
    {
        let annotations = object.annotations().iter().filter(|(key, _)| key.starts_with(METADATA_PREFIX));
        let metadata = annotations.map(|(key, value)| (key.clone(), value.clone())).collect();
        let resource_version = object.meta().resource_version.clone();
        let object = ObjectReference { resource_version, ..object.object_ref(&()) };
        Event { object, kind, reason: reason.into(), message: message.into(), metadata }
    }

    /// Adds metadata.
    #[must_use]
    pub fn with(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.metadata.insert(key.into(), value.into());
        self
    }
}

/// Whether two events are equal for users. The resource version of the object is ignored.
pub(super) fn is_repetition(one: &Event, other: &Event) -> bool {
    one.object.uid == other.object.uid
        && one.object.name == other.object.name
        && one.object.namespace == other.object.namespace
        && one.kind == other.kind
        && one.reason == other.reason
        && one.message == other.message
        && one.metadata == other.metadata
}

/// Removes URL credentials from a message and cuts it to `longest` bytes.
pub(super) fn bounded(message: &str, longest: usize) -> String {
    let message = url_credentials(message);
    if message.len() <= longest {
        return message.into_owned();
    }
    let end = message.floor_char_boundary(longest.saturating_sub(3));
    format!("{}...", message.get(..end).unwrap_or_default())
}

//! The only module that writes to the API. Each request has a timeout and requires leadership, and each error names the object.

use std::collections::BTreeMap;
use std::fmt::{self, Debug};
use std::time::Duration;

use k8s_openapi::NamespaceResourceScope;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams, Preconditions, ValidationDirective};
use kube::{Client, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use thiserror::Error;

use crate::api::names::FIELD_MANAGER;
use crate::runtime::field_managers;
use crate::runtime::leadership::Leadership;
use crate::telemetry::metrics::Metrics;

/// Reason with which the API server rejects objects in a namespace that is being deleted.
const NAMESPACE_TERMINATING: &str = "NamespaceTerminating";

/// A kind that can be written: namespaced and known at compile time.
pub trait Object:
    Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + Debug + Serialize + DeserializeOwned + Send + Sync
{
}

impl<K> Object for K where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>
        + Clone
        + Debug
        + Serialize
        + DeserializeOwned
        + Send
        + Sync
{
}

/// Description of a write, for error messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    pub verb: &'static str,
    pub kind: String,
    pub namespace: String,
    pub name: String,
}

impl fmt::Display for Attempt {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "failed to {} {} {}/{}", self.verb, self.kind, self.namespace, self.name)
    }
}

/// Error of a write that was not made, or whose outcome is unknown.
#[derive(Debug, Error)]
pub enum WriteError {
    #[error("{attempt}: this process does not hold the lease")]
    NotLeader { attempt: Box<Attempt> },
    #[error("{attempt}: API server did not respond within {} s", limit.as_secs())]
    Timeout { attempt: Box<Attempt>, limit: Duration },
    /// The API server rejected the request.
    #[error("{attempt}: {message} ({reason}, {code})")]
    Refused { attempt: Box<Attempt>, code: u16, reason: String, message: String },
    #[error("{attempt}")]
    Request { attempt: Box<Attempt>, source: Box<kube::Error> },
    #[error("{attempt}: cannot be encoded as JSON")]
    Encode { attempt: Box<Attempt>, source: serde_json::Error },
    #[error("{attempt}: object has no name or no namespace")]
    Nameless { attempt: Box<Attempt> },
}

impl WriteError {
    /// Whether the object has changed since it was read, or is another object of the same name.
    pub fn is_conflict(&self) -> bool {
        self.code() == Some(409)
    }

    pub fn is_not_found(&self) -> bool {
        self.code() == Some(404)
    }

    pub fn is_forbidden(&self) -> bool {
        self.code() == Some(403)
    }

    /// Whether the namespace is being deleted, so that nothing can be created in it.
    pub fn is_namespace_terminating(&self) -> bool {
        matches!(self, WriteError::Refused { reason, .. } if reason == NAMESPACE_TERMINATING)
    }

    /// Whether the API server rejected the content as invalid.
    pub fn is_invalid(&self) -> bool {
        matches!(self.code(), Some(400 | 422))
    }

    /// Whether an admission webhook or policy denied the write. It may allow the same object later.
    pub fn is_denied_by_admission(&self) -> bool {
        let denied = |message: &str| message.contains("denied the request") || message.contains("denied request");
        (self.is_invalid() || self.is_forbidden()) && self.server_message().is_some_and(denied)
    }

    /// Whether the object exceeds the size limit of the API server.
    pub fn is_too_large(&self) -> bool {
        self.code() == Some(413)
    }

    /// Whether the API server or its storage rejected the content, so that a retry would be rejected as well.
    pub fn is_content_rejected(&self) -> bool {
        // etcd reports this with code 500.
        let too_large = ["request is too large", "larger than max"];
        let says_so = |message: &str| too_large.iter().any(|words| message.contains(words));
        self.is_invalid() || self.is_too_large() || self.server_message().is_some_and(says_so)
    }

    /// Whether this process is not the leader.
    pub fn is_not_leader(&self) -> bool {
        matches!(self, WriteError::NotLeader { .. })
    }

    /// Returns the message of the API server without the attempted operation, for conditions.
    pub fn server_message(&self) -> Option<&str> {
        match self {
            WriteError::Refused { message, .. } => Some(message),
            WriteError::NotLeader { .. }
            | WriteError::Timeout { .. }
            | WriteError::Request { .. }
            | WriteError::Encode { .. }
            | WriteError::Nameless { .. } => None,
        }
    }

    fn code(&self) -> Option<u16> {
        match self {
            WriteError::Refused { code, .. } => Some(*code),
            WriteError::NotLeader { .. }
            | WriteError::Timeout { .. }
            | WriteError::Request { .. }
            | WriteError::Encode { .. }
            | WriteError::Nameless { .. } => None,
        }
    }

    fn from_kube(attempt: Box<Attempt>, error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => {
                // Only the causes contain this reason; `status.reason` is the same for every rejection.
                let causes = status.details.iter().flat_map(|details| &details.causes);
                let mut terminating = causes.filter(|cause| cause.reason == NAMESPACE_TERMINATING);
                let reason = terminating.next().map_or(&status.reason, |cause| &cause.reason).clone();
                WriteError::Refused { attempt, code: status.code, reason, message: status.message.clone() }
            }
            other => WriteError::Request { attempt, source: Box::new(other) },
        }
    }
}

/// Result of creating an object.
#[derive(Clone, Debug, PartialEq)]
pub enum Created<K> {
    /// The object was created.
    New(K),
    /// An object of that name exists already, possibly created by another client.
    Existing(K),
}

impl<K> Created<K> {
    pub fn into_object(self) -> K {
        match self {
            Created::New(object) | Created::Existing(object) => object,
        }
    }
}

/// Writer for objects in the API. Cheap to clone.
#[derive(Clone)]
pub struct Writer {
    client: Client,
    timeout: Duration,
    leadership: Leadership,
    metrics: Metrics,
}

impl Writer {
    /// Creates a writer. `timeout` applies to each request. Without `leadership`, every write fails.
    pub fn new(client: Client, timeout: Duration, leadership: Leadership, metrics: Metrics) -> Self {
        Writer { client, timeout, leadership, metrics }
    }

    /// Sets the status of an object with a merge patch. Makes no request and returns `None` if the status is already equal.
    /// Returns a conflict if the object has changed since it was read.
    pub async fn status<K: Object>(&self, object: &K, status: &impl Serialize) -> Result<Option<K>, WriteError> {
        let attempt = attempt("write the status of", object);
        let encode = |source| WriteError::Encode { attempt: Box::new(attempt.clone()), source };
        let present = serde_json::to_value(object).map_err(encode)?;
        let wanted = serde_json::to_value(status).map_err(encode)?;
        let Some(difference) = difference(present.get("status").unwrap_or(&Value::Null), &wanted) else {
            return Ok(None);
        };
        let mut patch = json!({ "status": difference });
        if let (Some(version), Some(patch)) = (object.resource_version(), patch.as_object_mut()) {
            patch.insert("metadata".to_owned(), json!({ "resourceVersion": version }));
        }
        let (api, name) = self.target::<K>(&attempt)?;
        let parameters = PatchParams::apply(FIELD_MANAGER);
        let request = async { api.patch_status(name, &parameters, &Patch::Merge(&patch)).await };
        self.call(&attempt, request).await.map(Some)
    }

    /// Applies an object with forced server-side apply. `object` is the complete intent, including metadata.
    pub async fn apply<K: Object>(&self, object: &impl Serialize) -> Result<K, WriteError> {
        let parameters = PatchParams::apply(FIELD_MANAGER).force();
        self.apply_with("apply", object, &parameters).await
    }

    /// Validates an apply with a dry run. Unknown fields are errors.
    pub async fn check<K: Object>(&self, object: &impl Serialize) -> Result<K, WriteError> {
        let mut parameters = PatchParams::apply(FIELD_MANAGER).force();
        parameters.dry_run = true;
        parameters.field_validation = Some(ValidationDirective::Strict);
        self.apply_with("validate", object, &parameters).await
    }

    /// Creates an object. An existing object is a result, not an error.
    pub async fn create<K: Object>(&self, object: &K) -> Result<Created<K>, WriteError> {
        let attempt = attempt("create", object);
        let (api, name) = self.target::<K>(&attempt)?;
        let parameters = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
        let request = async { api.create(&parameters, object).await };
        match self.call(&attempt, request).await {
            Err(error) if error.is_conflict() => {
                let existing = self.call(&attempt, async { api.get_opt(name).await }).await?;
                existing.map(Created::Existing).ok_or(error)
            }
            other => other.map(Created::New),
        }
    }

    /// Deletes an object. A missing object is not an error. With a UID, another object of the same name is a conflict.
    pub async fn delete<K: Object>(&self, namespace: &str, name: &str, uid: Option<&str>) -> Result<(), WriteError> {
        let attempt = Attempt {
            verb: "delete",
            kind: K::kind(&()).into_owned(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        };
        let preconditions = uid.map(|uid| Preconditions { uid: Some(uid.to_owned()), resource_version: None });
        self.delete_if::<K>(&attempt, preconditions).await
    }

    /// Deletes an object if it has not changed since it was read; otherwise returns a conflict.
    pub async fn delete_as_seen<K: Object>(&self, object: &K) -> Result<(), WriteError> {
        let preconditions = Preconditions { uid: object.uid(), resource_version: object.resource_version() };
        self.delete_if::<K>(&attempt("delete", object), Some(preconditions)).await
    }

    async fn delete_if<K: Object>(&self, attempt: &Attempt, only: Option<Preconditions>) -> Result<(), WriteError> {
        let (api, name) = self.target::<K>(attempt)?;
        let parameters = DeleteParams { preconditions: only, ..DeleteParams::background() };
        let request = async { api.delete(name, &parameters).await };
        match self.call(attempt, request).await {
            Err(error) if !error.is_not_found() => Err(error),
            _ => Ok(()),
        }
    }

    /// Adds a finalizer. Makes no request if it is present.
    pub async fn add_finalizer<K: Object>(&self, object: &K, finalizer: &str) -> Result<(), WriteError> {
        let present = object.finalizers();
        if present.iter().any(|name| name == finalizer) {
            return Ok(());
        }
        let attempt = attempt("add a finalizer to", object);
        let patch = if present.is_empty() {
            json!([
                { "op": "test", "path": "/metadata/finalizers", "value": null },
                { "op": "add", "path": "/metadata/finalizers", "value": [finalizer] },
            ])
        } else {
            json!([
                { "op": "test", "path": "/metadata/finalizers", "value": present },
                { "op": "add", "path": "/metadata/finalizers/-", "value": finalizer },
            ])
        };
        self.patch_metadata::<K>(&attempt, with_uid_test(object, patch)).await
    }

    /// Removes a finalizer. Makes no request if it is absent. A missing object is not an error.
    pub async fn remove_finalizer<K: Object>(&self, object: &K, finalizer: &str) -> Result<(), WriteError> {
        let Some(index) = object.finalizers().iter().position(|name| name == finalizer) else {
            return Ok(());
        };
        let attempt = attempt("remove a finalizer from", object);
        let path = format!("/metadata/finalizers/{index}");
        let patch = json!([
            { "op": "test", "path": path, "value": finalizer },
            { "op": "remove", "path": path },
        ]);
        match self.patch_metadata::<K>(&attempt, with_uid_test(object, patch)).await {
            Err(error) if error.is_not_found() => Ok(()),
            other => other,
        }
    }

    /// Sets annotations, and removes those without a value. Makes no request if there is no change. Another object of the same
    /// name is a conflict.
    pub async fn annotate<K: Object>(
        &self,
        object: &K,
        annotations: &BTreeMap<String, Option<String>>,
    ) -> Result<(), WriteError> {
        let present = object.annotations();
        let changed: BTreeMap<_, _> =
            annotations.iter().filter(|(key, value)| present.get(*key) != value.as_ref()).collect();
        if changed.is_empty() {
            return Ok(());
        }
        let attempt = attempt("annotate", object);
        let (api, name) = self.target::<K>(&attempt)?;
        let patch = json!({ "metadata": { "annotations": changed, "uid": object.uid() } });
        let parameters = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        let request = async { api.patch_metadata(name, &parameters, &Patch::Merge(&patch)).await };
        self.call(&attempt, request).await.map(|_| ())
    }

    /// Replaces the Pulumi Kubernetes Operator by this controller as manager of an object's fields. Makes no request and
    /// returns `None` if the operator manages none. Returns a conflict if the object has changed since it was read.
    pub async fn take_over<K: Object>(&self, object: &K) -> Result<Option<K>, WriteError> {
        let Some(managed_fields) = field_managers::managed_fields(object) else { return Ok(None) };
        let attempt = attempt("take over", object);
        let (api, name) = self.target::<K>(&attempt)?;
        let version = object.resource_version();
        let patch = json!({ "metadata": { "managedFields": managed_fields, "resourceVersion": version } });
        let parameters = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        let request = async { api.patch(name, &parameters, &Patch::Merge(&patch)).await };
        self.call(&attempt, request).await.map(Some)
    }

    /// Sends a JSON merge patch for an object by its name.
    pub async fn merge<K: Object>(&self, namespace: &str, name: &str, patch: &Value) -> Result<K, WriteError> {
        let attempt = Attempt {
            verb: "patch",
            kind: K::kind(&()).into_owned(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        };
        let (api, name) = self.target::<K>(&attempt)?;
        let parameters = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        let request = async { api.patch(name, &parameters, &Patch::Merge(patch)).await };
        self.call(&attempt, request).await
    }

    async fn apply_with<K: Object>(
        &self,
        verb: &'static str,
        object: &impl Serialize,
        parameters: &PatchParams,
    ) -> Result<K, WriteError> {
        let kind = K::kind(&()).into_owned();
        let mut attempt = Attempt { verb, kind, namespace: String::new(), name: String::new() };
        let mut body = serde_json::to_value(object)
            .map_err(|source| WriteError::Encode { attempt: Box::new(attempt.clone()), source })?;
        let text = |pointer: &str| body.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
        attempt.namespace = text("/metadata/namespace");
        attempt.name = text("/metadata/name");
        if let Some(body) = body.as_object_mut() {
            body.insert("apiVersion".to_owned(), K::api_version(&()).into());
            body.insert("kind".to_owned(), K::kind(&()).into());
        }
        let (api, name) = self.target::<K>(&attempt)?;
        self.call(&attempt, async { api.patch(name, parameters, &Patch::Apply(&body)).await }).await
    }

    async fn patch_metadata<K: Object>(&self, attempt: &Attempt, operations: Value) -> Result<(), WriteError> {
        let (api, name) = self.target::<K>(attempt)?;
        let operations = serde_json::from_value(operations)
            .map_err(|source| WriteError::Encode { attempt: Box::new(attempt.clone()), source })?;
        let patch = Patch::<()>::Json(operations);
        let parameters = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        let request = async { api.patch_metadata(name, &parameters, &patch).await };
        self.call(attempt, request).await.map(|_| ())
    }

    fn target<'a, K: Object>(&self, attempt: &'a Attempt) -> Result<(Api<K>, &'a str), WriteError> {
        if attempt.namespace.is_empty() || attempt.name.is_empty() {
            return Err(WriteError::Nameless { attempt: Box::new(attempt.clone()) });
        }
        Ok((Api::namespaced(self.client.clone(), &attempt.namespace), &attempt.name))
    }

    async fn call<T>(
        &self,
        attempt: &Attempt,
        request: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<T, WriteError> {
        if !self.leadership.is_held() {
            return Err(WriteError::NotLeader { attempt: Box::new(attempt.clone()) });
        }
        self.metrics.api_write(attempt.verb, &attempt.kind);
        match tokio::time::timeout(self.timeout, request).await {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(error)) => Err(WriteError::from_kube(Box::new(attempt.clone()), error)),
            Err(_) => Err(WriteError::Timeout { attempt: Box::new(attempt.clone()), limit: self.timeout }),
        }
    }
}

fn attempt<K: Object>(verb: &'static str, object: &K) -> Attempt {
    Attempt {
        verb,
        kind: K::kind(&()).into_owned(),
        namespace: object.namespace().unwrap_or_default(),
        name: object.meta().name.clone().unwrap_or_default(),
    }
}

/// Adds a UID test, so that the patch is not applied to a later object of the same name.
fn with_uid_test<K: Object>(object: &K, operations: Value) -> Value {
    let test = object.uid().map(|uid| json!({ "op": "test", "path": "/metadata/uid", "value": uid }));
    let rest = match operations {
        Value::Array(operations) => operations,
        other => vec![other],
    };
    Value::Array(test.into_iter().chain(rest).collect())
}

/// Returns the JSON merge patch that turns `present` into `wanted`, or `None` if they are equal. A null equals a missing value.
fn difference(present: &Value, wanted: &Value) -> Option<Value> {
    let (Value::Object(old), Value::Object(new)) = (present, wanted) else {
        return if present == wanted { None } else { Some(without_nulls(wanted)) };
    };
    let mut patch = Map::new();
    for (key, value) in new.iter().filter(|(_, value)| !value.is_null()) {
        if let Some(change) = difference(old.get(key).unwrap_or(&Value::Null), value) {
            patch.insert(key.clone(), change);
        }
    }
    for (key, _) in old.iter().filter(|(key, value)| !value.is_null() && new.get(*key).is_none_or(Value::is_null)) {
        patch.insert(key.clone(), Value::Null);
    }
    if patch.is_empty() { None } else { Some(Value::Object(patch)) }
}

/// Removes nulls from a new value. In a merge patch, a null deletes a field.
fn without_nulls(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let kept = map.iter().filter(|(_, value)| !value.is_null());
            Value::Object(kept.map(|(key, value)| (key.clone(), without_nulls(value))).collect())
        }
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::runtime::fake_api::merge;

    fn json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![Just(Value::Null), any::<bool>().prop_map(Value::from), (0..3).prop_map(Value::from)];
        leaf.prop_recursive(3, 20, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
                prop::collection::btree_map("[abc]", inner, 0..4)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn applying_the_difference_yields_the_wanted_value(present in json(), wanted in json()) {
            let present = without_nulls(&present);
            let mut result = present.clone();
            if let Some(patch) = difference(&present, &wanted) {
                merge(&mut result, &patch);
            }
            prop_assert_eq!(&result, &without_nulls(&wanted));
            prop_assert_eq!(difference(&result, &wanted), None);
        }
    }
}

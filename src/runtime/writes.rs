//! Client that writes objects to the API server. No other module writes to the API server. Each request requires
//! leadership and has a timeout. Each error message identifies the object.

mod error;

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::time::Duration;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, ObjectMeta};
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams, Preconditions, ValidationDirective};
use kube::core::PartialObjectMeta;
use kube::{Client, Resource, ResourceExt};
use serde::Serialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::{Map, Value, json};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::api::names::FIELD_MANAGER;
use crate::api::tolerant::{ParseError, Tolerant};
use crate::runtime::field_managers;
use crate::telemetry::metrics::Metrics;

pub use error::{AttemptedWrite, WriteError};

/// Kind whose objects [`Writer`] can write. The kind is namespaced and has a Rust type.
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

/// Result of a create request.
#[derive(Clone, Debug, PartialEq)]
pub enum Created<K> {
    /// This write created the object.
    New(K),
    /// An object with this name already exists. Another client may have created the object.
    Existing(K),
}

impl<K> Created<K> {
    pub fn into_object(self) -> K {
        match self {
            Created::New(object) | Created::Existing(object) => object,
        }
    }
}

/// Leadership of this process. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Leadership {
    /// Channel that contains the deadline for writes. The channel contains `None` if the process must not write.
    /// The field is `None` without leader election.
    until: Option<watch::Receiver<Option<Instant>>>,
}

impl Leadership {
    /// Returns the leadership of a process without leader election, which can always write.
    pub fn sole() -> Self {
        Leadership { until: None }
    }

    /// Returns the leadership of a candidate, and the channel that sets the deadline for writes. Initially, the
    /// candidate must not write.
    pub fn elected() -> (watch::Sender<Option<Instant>>, Self) {
        let (sender, until) = watch::channel(None);
        (sender, Leadership { until: Some(until) })
    }

    /// Returns whether this process is allowed to write. The function compares the clock with the deadline and does not
    /// rely on a task that signals the end of leadership. The first check after a suspended process resumes must
    /// already return `false`.
    pub fn is_held(&self) -> bool {
        match &self.until {
            None => true,
            Some(until) => until.borrow().is_some_and(|until| Instant::now() < until),
        }
    }
}

/// Client that writes to the API server. Cheap to clone.
#[derive(Clone)]
pub struct Writer {
    client: Client,
    timeout: Duration,
    leadership: Leadership,
    metrics: Metrics,
}

impl Writer {
    /// Creates a writer. `timeout` applies to each request. All writes fail while this process is not the leader.
    pub fn new(client: Client, timeout: Duration, leadership: Leadership, metrics: Metrics) -> Self {
        Writer { client, timeout, leadership, metrics }
    }

    /// Sets the status of an object with a merge patch. If the object already has this status, the function sends no
    /// request and returns `None`. Returns a conflict if the object has changed since the controller read it.
    pub async fn status<K: Object>(&self, object: &K, status: &impl Serialize) -> Result<Option<K>, WriteError> {
        let attempt = attempt("write the status of", object);
        let encode = |source| WriteError::Encode { attempt: Box::new(attempt.clone()), source };
        let present = serde_json::to_value(object).map_err(encode)?;
        let desired = serde_json::to_value(status).map_err(encode)?;
        let Some(difference) = difference(present.get("status").unwrap_or(&Value::Null), &desired) else {
            return Ok(None);
        };
        let mut patch = json!({ "status": difference });
        if let (Some(version), Some(patch)) = (object.resource_version(), patch.as_object_mut()) {
            patch.insert("metadata".to_owned(), json!({ "resourceVersion": version }));
        }
        let (api, name) = self.target::<K>(&attempt)?;
        let parameters = PatchParams::apply(FIELD_MANAGER);
        let request = async { api.patch_status(name, &parameters, &Patch::Merge(&patch)).await.and_then(parse) };
        self.call(&attempt, request).await.map(Some)
    }

    /// Sets fields in the status of an object that cannot be parsed. Returns an error if another object with the same
    /// name has replaced the object, or if the metadata contain a resource version and the object has changed.
    pub async fn status_of_invalid<K: Object>(&self, metadata: &ObjectMeta, status: &Value) -> Result<(), WriteError> {
        let text = |value: &Option<String>| value.clone().unwrap_or_default();
        let (namespace, name) = (text(&metadata.namespace), text(&metadata.name));
        let attempt = AttemptedWrite { verb: "write the status of", kind: K::kind(&()).into_owned(), namespace, name };
        let version = metadata.resource_version.as_ref().map(|version| ("resourceVersion", version));
        let identity: BTreeMap<_, _> =
            metadata.uid.as_ref().map(|uid| ("uid", uid)).into_iter().chain(version).collect();
        let patch = json!({ "metadata": identity, "status": status });
        let api: Api<Tolerant<K>> = Api::namespaced(self.client.clone(), &attempt.namespace);
        let parameters = PatchParams::apply(FIELD_MANAGER);
        let request = async { api.patch_status(&attempt.name, &parameters, &Patch::Merge(&patch)).await };
        self.call(&attempt, request).await.map(|_| ())
    }

    /// Applies an object with forced server-side apply. `object` contains all fields that the controller sets,
    /// including metadata.
    pub async fn apply<K: Object>(&self, object: &impl Serialize) -> Result<K, WriteError> {
        let parameters = PatchParams::apply(FIELD_MANAGER).force();
        self.apply_with("apply", object, &parameters).await
    }

    /// Validates an apply with a dry run that rejects unknown fields.
    ///
    /// The API server responds to an apply with status code 500 both if it fails and if it cannot convert a value, such
    /// as a quantity. Only the response to the dry run of a create request distinguishes an invalid value.
    pub async fn check<K: Object>(&self, object: &impl Serialize) -> Result<K, WriteError> {
        let mut parameters = PatchParams::apply(FIELD_MANAGER).force();
        parameters.dry_run = true;
        parameters.field_validation = Some(ValidationDirective::Strict);
        match self.apply_with("validate", object, &parameters).await {
            Err(error) if error.is_internal() && !error.is_invalid() => {
                let created = self.check_create::<K>(object).await.err();
                Err(created.filter(|error| error.is_invalid() && !error.is_denied_by_admission()).unwrap_or(error))
            }
            checked => checked,
        }
    }

    /// Validates the creation of an object with a dry run.
    pub async fn check_create<K: Object>(&self, object: &impl Serialize) -> Result<(), WriteError> {
        let (attempt, body) = encode::<K>("validate", object)?;
        self.target::<K>(&attempt)?;
        let parameters = PostParams { dry_run: true, field_manager: Some(FIELD_MANAGER.to_owned()) };
        let request = async {
            let objects = kube::core::Request::new(K::url_path(&(), Some(&attempt.namespace)));
            let body = serde_json::to_vec(&body).map_err(kube::Error::SerdeError)?;
            let request = objects.create(&parameters, body).map_err(kube::Error::BuildRequest)?;
            self.client.request::<IgnoredAny>(request).await
        };
        self.call(&attempt, request).await.map(drop)
    }

    /// Creates an object. If an object with this name already exists, the function returns the existing object as
    /// [`Created::Existing`].
    pub async fn create<K: Object>(&self, object: &K) -> Result<Created<K>, WriteError> {
        let attempt = attempt("create", object);
        let (api, name) = self.target::<K>(&attempt)?;
        let parameters = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
        let objects: Api<K> = Api::namespaced(self.client.clone(), &attempt.namespace);
        let request = async { objects.create(&parameters, object).await };
        match self.call(&attempt, request).await {
            Err(error) if error.is_conflict() => {
                let request = async { api.get_opt(name).await?.map(parse).transpose() };
                self.call(&attempt, request).await?.map(Created::Existing).ok_or(error)
            }
            other => other.map(Created::New),
        }
    }

    /// Deletes an object. A missing object is not an error. Returns a conflict if `uid` is set and the object has
    /// another UID.
    pub async fn delete<K: Object>(&self, namespace: &str, name: &str, uid: Option<&str>) -> Result<(), WriteError> {
        let preconditions = uid.map(|uid| Preconditions { uid: Some(uid.to_owned()), resource_version: None });
        self.delete_if::<K>(&deletion::<K>(namespace, name), preconditions, None).await
    }

    /// Deletes the object with this UID, with a termination grace period in seconds.
    pub async fn delete_within<K: Object>(
        &self,
        namespace: &str,
        name: &str,
        uid: &str,
        grace_seconds: u32,
    ) -> Result<(), WriteError> {
        let preconditions = Preconditions { uid: Some(uid.to_owned()), resource_version: None };
        self.delete_if::<K>(&deletion::<K>(namespace, name), Some(preconditions), Some(grace_seconds)).await
    }

    /// Deletes this version of an object without a termination grace period. Returns a conflict if the object has changed.
    pub async fn delete_now<K: Object>(
        &self,
        namespace: &str,
        name: &str,
        (uid, version): (&str, &str),
    ) -> Result<(), WriteError> {
        let preconditions = Preconditions { uid: Some(uid.to_owned()), resource_version: Some(version.to_owned()) };
        self.delete_if::<K>(&deletion::<K>(namespace, name), Some(preconditions), Some(0)).await
    }

    /// Deletes an object. Returns a conflict if the object has changed since the controller read it.
    pub async fn delete_if_unchanged<K: Object>(&self, object: &K) -> Result<(), WriteError> {
        let preconditions = Preconditions { uid: object.uid(), resource_version: object.resource_version() };
        self.delete_if::<K>(&attempt("delete", object), Some(preconditions), None).await
    }

    async fn delete_if<K: Object>(
        &self,
        attempt: &AttemptedWrite,
        preconditions: Option<Preconditions>,
        grace_period_seconds: Option<u32>,
    ) -> Result<(), WriteError> {
        let (api, name) = self.target::<K>(attempt)?;
        let parameters = DeleteParams { preconditions, grace_period_seconds, ..DeleteParams::background() };
        let request = async { api.delete(name, &parameters).await };
        match self.call(attempt, request).await {
            Err(error) if !error.is_not_found() => Err(error),
            _ => Ok(()),
        }
    }

    /// Adds a finalizer, and sends no request if the object already has the finalizer.
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

    /// Removes finalizers, and sends no request if the object has none of them. A missing object is not an error.
    pub async fn remove_finalizers<K: Object>(&self, object: &K, finalizers: &[&str]) -> Result<(), WriteError> {
        let present = object.finalizers().iter().enumerate();
        // Each removal changes the index of the following finalizers.
        let removed = present.filter(|(_, name)| finalizers.contains(&name.as_str())).rev();
        let operations: Vec<Value> = removed
            .flat_map(|(index, name)| {
                let path = format!("/metadata/finalizers/{index}");
                [json!({ "op": "test", "path": path, "value": name }), json!({ "op": "remove", "path": path })]
            })
            .collect();
        if operations.is_empty() {
            return Ok(());
        }
        let attempt = attempt("remove a finalizer from", object);
        match self.patch_metadata::<K>(&attempt, with_uid_test(object, operations.into())).await {
            Err(error) if error.is_not_found() => Ok(()),
            other => other,
        }
    }

    /// Sets annotations, and removes the annotations without a value. The function sends no request if no annotation
    /// changes. Returns a conflict if another object with the same name has replaced the object.
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
        let (api, name) = self.target::<PartialObjectMeta<K>>(&attempt)?;
        let patch = json!({ "metadata": { "annotations": changed, "uid": object.uid() } });
        let parameters = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        let request = async { api.patch(name, &parameters, &Patch::Merge(&patch)).await };
        self.call(&attempt, request).await.map(|_| ())
    }

    /// Replaces the Pulumi Kubernetes Operator with this controller as the field manager of an object. If the operator
    /// manages no field, the function sends no request and returns `None`. Returns a conflict if the object has changed
    /// since the controller read it.
    pub async fn take_over<K: Object>(&self, object: &K) -> Result<Option<K>, WriteError> {
        let Some(managed_fields) = field_managers::managed_fields(object) else { return Ok(None) };
        self.set_managed_fields(&attempt("take over", object), object, &managed_fields).await.map(Some)
    }

    /// Changes the owner of the fields that [`Writer::create`] created, as if this controller had applied the fields.
    /// The next apply then removes each of these fields that it does not contain. The function sends no request if
    /// there are no such fields. Returns a conflict if the object has changed since the controller read it.
    pub async fn own_created_fields<K: Object>(&self, object: &K) -> Result<(), WriteError> {
        let Some(managed_fields) = field_managers::as_applied(object) else { return Ok(()) };
        self.set_managed_fields(&attempt("own the fields of", object), object, &managed_fields).await.map(drop)
    }

    async fn set_managed_fields<K: Object>(
        &self,
        attempt: &AttemptedWrite,
        object: &K,
        managed_fields: &[ManagedFieldsEntry],
    ) -> Result<K, WriteError> {
        let (api, name) = self.target::<K>(attempt)?;
        let version = object.resource_version();
        let patch = json!({ "metadata": { "managedFields": managed_fields, "resourceVersion": version } });
        let parameters = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        let request = async { api.patch(name, &parameters, &Patch::Merge(&patch)).await.and_then(parse) };
        self.call(attempt, request).await
    }

    /// Applies a JSON merge patch to the object with this name.
    pub async fn merge<K: Object>(&self, namespace: &str, name: &str, patch: &Value) -> Result<K, WriteError> {
        let attempt = AttemptedWrite {
            verb: "patch",
            kind: K::kind(&()).into_owned(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        };
        let (api, name) = self.target::<K>(&attempt)?;
        let parameters = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        let request = async { api.patch(name, &parameters, &Patch::Merge(patch)).await.and_then(parse) };
        self.call(&attempt, request).await
    }

    async fn apply_with<K: Object>(
        &self,
        verb: &'static str,
        object: &impl Serialize,
        parameters: &PatchParams,
    ) -> Result<K, WriteError> {
        let (attempt, body) = encode::<K>(verb, object)?;
        let (api, name) = self.target::<K>(&attempt)?;
        let request = async { api.patch(name, parameters, &Patch::Apply(&body)).await.and_then(parse) };
        self.call(&attempt, request).await
    }

    async fn patch_metadata<K: Object>(&self, attempt: &AttemptedWrite, operations: Value) -> Result<(), WriteError> {
        let (api, name) = self.target::<PartialObjectMeta<K>>(attempt)?;
        let operations = serde_json::from_value(operations)
            .map_err(|source| WriteError::Encode { attempt: Box::new(attempt.clone()), source })?;
        let patch = Patch::<()>::Json(operations);
        let parameters = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        let request = async { api.patch(name, &parameters, &patch).await };
        self.call(attempt, request).await.map(|_| ()).map_err(WriteError::of_tests)
    }

    fn target<'a, K>(&self, attempt: &'a AttemptedWrite) -> Result<(Api<Tolerant<K>>, &'a str), WriteError>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    {
        if attempt.namespace.is_empty() || attempt.name.is_empty() {
            return Err(WriteError::Nameless { attempt: Box::new(attempt.clone()) });
        }
        Ok((Api::namespaced(self.client.clone(), &attempt.namespace), &attempt.name))
    }

    async fn call<T>(
        &self,
        attempt: &AttemptedWrite,
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

/// Returns the description of a write, and the object as JSON with its kind and API version.
fn encode<K: Object>(verb: &'static str, object: &impl Serialize) -> Result<(AttemptedWrite, Value), WriteError> {
    let kind = K::kind(&()).into_owned();
    let mut attempt = AttemptedWrite { verb, kind, namespace: String::new(), name: String::new() };
    let mut body = serde_json::to_value(object)
        .map_err(|source| WriteError::Encode { attempt: Box::new(attempt.clone()), source })?;
    let text = |pointer: &str| body.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
    attempt.namespace = text("/metadata/namespace");
    attempt.name = text("/metadata/name");
    if let Some(body) = body.as_object_mut() {
        body.insert("apiVersion".to_owned(), K::api_version(&()).into());
        body.insert("kind".to_owned(), K::kind(&()).into());
    }
    Ok((attempt, body))
}

/// Parses the object in a response. A user may have written managed fields that kube-rs cannot parse.
fn parse<K: DeserializeOwned>(object: Tolerant<K>) -> Result<K, kube::Error> {
    object.parse().map_err(|error| match error {
        ParseError::Malformed { error, .. } => kube::Error::SerdeError(error),
        ParseError::TooManyValues(_) => kube::Error::Service(Box::new(error)),
    })
}

fn attempt<K: Object>(verb: &'static str, object: &K) -> AttemptedWrite {
    AttemptedWrite {
        verb,
        kind: K::kind(&()).into_owned(),
        namespace: object.namespace().unwrap_or_default(),
        name: object.meta().name.clone().unwrap_or_default(),
    }
}

fn deletion<K: Object>(namespace: &str, name: &str) -> AttemptedWrite {
    let kind = K::kind(&()).into_owned();
    AttemptedWrite { verb: "delete", kind, namespace: namespace.to_owned(), name: name.to_owned() }
}

/// Adds a `test` operation for the UID to the JSON patch, so that the patch cannot change a later object with the same
/// name.
fn with_uid_test<K: Object>(object: &K, operations: Value) -> Value {
    let test = object.uid().map(|uid| json!({ "op": "test", "path": "/metadata/uid", "value": uid }));
    let rest = match operations {
        Value::Array(operations) => operations,
        other => vec![other],
    };
    Value::Array(test.into_iter().chain(rest).collect())
}

/// Returns the JSON merge patch that changes `present` to `desired`, or `None` if they are equal. A null and a missing
/// value are equal.
fn difference(present: &Value, desired: &Value) -> Option<Value> {
    let (Value::Object(old), Value::Object(new)) = (present, desired) else {
        return if present == desired { None } else { Some(without_nulls(desired)) };
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

/// Removes nulls from a new value, because a null in a merge patch deletes the field.
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
mod tests;

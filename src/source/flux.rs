//! Reads sources that are Kubernetes objects. A source is an object of any API group with `status.artifact`, or a
//! Program. The controller itself builds the artifact of a Program.

mod metadata;

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use kube::api::{Api, ApiResource, DynamicObject};
use kube::core::Status;
use kube::{Client, Error, Resource};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::api::bounds;
use crate::api::conditions::{READY, STALLED};
use crate::api::names;
use crate::api::pulumi::{FluxSource, SourceArtifact, SourceReference};
use crate::api::tolerant::{ParseError, Tolerant};
use crate::artifact::{Digest, Directory, Revision};
use crate::source::kinds::{GroupKind, Kinds};
use crate::source::{Origin, Resolved, Unavailable, program};

/// The API group of the Flux sources.
pub const GROUP: &str = "source.toolkit.fluxcd.io";
/// Kind in [`GROUP`] that represents a Git repository.
const GIT: &str = "GitRepository";
/// Kinds in [`GROUP`] to which a reference without `apiVersion` can refer.
pub const KINDS: [&str; 4] = [GIT, "OCIRepository", "Bucket", "ExternalArtifact"];
/// Label for a ClusterRole. If the value of the label is `true`, Kubernetes aggregates the rules of the labeled
/// ClusterRole into the controller's ClusterRole. See `config/rbac`.
pub const LABEL_SOURCE_READER: &str = "pulumi.com/aggregate-to-source-reader";
/// Status field of a GitRepository that contains the artifacts of included repositories.
const INCLUDED: &str = "includedArtifacts";

/// Timeout for reading a source.
const READ_TIMEOUT: Duration = Duration::from_secs(15);

/// A validated reference to a source and to a directory in the source's artifact.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    pub kind: GroupKind,
    pub name: String,
    /// Namespace of the source, if the reference specifies one.
    pub namespace: Option<String>,
    pub directory: Directory,
}

impl Reference {
    /// Validates the source reference of a Stack. Ignores the version in `apiVersion`, because the controller reads
    /// every source in the API server's preferred version.
    pub fn parse(source: &FluxSource) -> Result<Self, Unavailable> {
        Self::of_field("spec.fluxSource", &source.source_ref, source.dir.as_deref())
    }

    /// Validates a reference to a source and to a directory in the source's artifact. `field` is the path of the field
    /// that contains the reference and the directory. Error messages contain this path.
    pub fn of_field(field: &str, reference: &SourceReference, dir: Option<&str>) -> Result<Self, Unavailable> {
        let group = match reference.api_version.as_deref() {
            Some(api_version) => parse_group(field, api_version)?,
            None if KINDS.contains(&reference.kind.as_str()) => GROUP,
            None => {
                return Err(Unavailable::Invalid(format!(
                    "invalid {field}.sourceRef.kind {:?}: must be one of {} unless {field}.sourceRef.apiVersion is set",
                    reference.kind,
                    KINDS.join(", "),
                )));
            }
        };
        let directory = dir
            .unwrap_or_default()
            .parse()
            .map_err(|error| Unavailable::Invalid(format!("invalid {field}.dir: {error}")))?;
        let namespace = reference.namespace.clone().filter(|namespace| !namespace.is_empty());
        Ok(Reference {
            kind: GroupKind::new(group, &reference.kind),
            name: reference.name.clone(),
            namespace,
            directory,
        })
    }
}

/// Returns the group in an `apiVersion`. Rejects the core group, which contains no sources.
fn parse_group<'a>(field: &str, api_version: &'a str) -> Result<&'a str, Unavailable> {
    match api_version.split_once('/') {
        Some((group, version)) if !group.is_empty() && !version.is_empty() && !version.contains('/') => Ok(group),
        _ => Err(Unavailable::Invalid(format!(
            "invalid {field}.sourceRef.apiVersion {api_version:?}: must have the form GROUP/VERSION, such as {GROUP}/v1"
        ))),
    }
}

/// Returns the group and kind to which a reference refers, or `None` if the reference is invalid.
pub fn kind_of(reference: &SourceReference) -> Option<GroupKind> {
    let group = match reference.api_version.as_deref() {
        Some(api_version) => api_version.split_once('/').map(|(group, _)| group),
        None => KINDS.contains(&reference.kind.as_str()).then_some(GROUP),
    };
    Some(GroupKind::new(group?, &reference.kind))
}

/// Returns the error that reports that the controller lacks a permission. `message` is the API server's error message.
pub fn missing_permission(resource: &ApiResource, message: &str) -> Unavailable {
    Unavailable::Stalled(format!(
        "controller is not allowed to read {}: {message}: grant the controller get, list and watch on {}.{} in a \
         ClusterRole with the label {LABEL_SOURCE_READER}: \"true\"",
        resource.kind, resource.plural, resource.group
    ))
}

/// Reads sources of any kind. Clones are cheap.
#[derive(Clone)]
pub struct Sources {
    client: Client,
    kinds: Kinds,
}

impl fmt::Debug for Sources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sources").finish_non_exhaustive()
    }
}

/// The result of reading a source.
#[derive(Clone, Debug)]
pub struct Found {
    /// The API resource that corresponds to the source's kind.
    pub resource: ApiResource,
    what: String,
    object: Option<DynamicObject>,
}

impl Sources {
    pub fn new(client: Client) -> Self {
        let kinds = Kinds::new(client.clone());
        Sources { client, kinds }
    }

    /// Reads a source. Succeeds even if the object does not exist: in this case, [`Found::artifact`] returns an error.
    pub async fn find(&self, namespace: &str, reference: &Reference) -> Result<Found, Unavailable> {
        let resource = self.kinds.find(&reference.kind).await?;
        let name = reference.name.as_str();
        if !names::is_object_name(name) {
            return Err(Unavailable::Invalid(format!(
                "invalid {} name {name:?}: must be an RFC 1123 subdomain",
                resource.kind
            )));
        }
        let what = format!("{} {namespace}/{name}", resource.kind);
        let api: Api<Tolerant<DynamicObject>> = Api::namespaced_with(self.client.clone(), namespace, &resource);
        let invalid = |error: ParseError| Unavailable::NotYet(format!("failed to read {what}: {error}"));
        let object = match tokio::time::timeout(READ_TIMEOUT, api.get(name)).await {
            Ok(Ok(object)) => Some(object.parse().map_err(invalid)?),
            Ok(Err(Error::Api(status))) if is_missing_object(&status) => None,
            Ok(Err(Error::Api(status))) if status.code == 404 => {
                self.kinds.invalidate().await;
                let served = &resource.api_version;
                let message = format!(
                    "failed to read {what}: API server no longer serves this kind in {served}; repeating discovery"
                );
                return Err(Unavailable::NotYet(message));
            }
            Ok(Err(Error::Api(status))) if status.code == 403 => {
                // Invalidates the cached kinds, because the API server also returns 403 if an administrator has removed
                // the CRD together with the RBAC rules for its objects.
                self.kinds.invalidate().await;
                return Err(missing_permission(&resource, &status.message));
            }
            Ok(Err(error)) => return Err(Unavailable::NotYet(format!("failed to read {what}: {error}"))),
            Err(_) => {
                let message = format!("failed to read {what}: timed out after {} s", READ_TIMEOUT.as_secs());
                return Err(Unavailable::NotYet(message));
            }
        };
        Ok(Found { resource, what, object })
    }

    /// Invalidates the cached API resources. The next lookup repeats discovery.
    pub async fn invalidate(&self) {
        self.kinds.invalidate().await;
    }
}

/// Returns whether a response reports that the object does not exist. The API server also returns status 404 for a kind
/// that it does not serve, but such a response contains no object name.
fn is_missing_object(status: &Status) -> bool {
    status.reason == "NotFound" && status.details.as_ref().is_some_and(|details| !details.name.is_empty())
}

impl Found {
    /// Returns the source without its metadata, as JSON. Returns an empty string if the source does not exist.
    pub fn data_json(&self) -> String {
        self.object.as_ref().map(|object| object.data.to_string()).unwrap_or_default()
    }

    /// Returns the result without the source's managed fields, because no caller reads the managed fields.
    #[must_use]
    pub fn without_managed_fields(&self) -> Self {
        let mut found = self.clone();
        if let Some(object) = &mut found.object {
            object.metadata.managed_fields = None;
        }
        found
    }

    /// Returns the result for a source that does not exist.
    #[cfg(test)]
    pub fn missing() -> Self {
        let resource = ApiResource::erase::<crate::api::pulumi::Program>(&());
        Found { resource, what: "source".to_owned(), object: None }
    }

    /// Returns the result for a source with this data.
    #[cfg(test)]
    pub fn with_data(data: serde_json::Value) -> Self {
        let missing = Self::missing();
        Found { object: Some(DynamicObject::new("source", &missing.resource).data(data)), ..missing }
    }

    /// Returns the current artifact of the source. Ignores the Ready condition, because the last artifact remains valid
    /// while the source's upstream is unreachable. Rejects an artifact of an older generation, because the source
    /// controller will soon replace such an artifact.
    pub fn artifact(&self, directory: Directory) -> Result<Resolved, Unavailable> {
        let what = &self.what;
        let Some(object) = &self.object else { return Err(Unavailable::Stalled(format!("{what} does not exist"))) };
        if GroupKind::new(&self.resource.group, &self.resource.kind) == program::kind() {
            return program::artifact(object, directory);
        }
        let status = object.data.get("status");
        let artifact = status.and_then(|s| s.get("artifact")).filter(|a| !a.is_null());
        let Some(artifact) = artifact else {
            let message = format!("{what} has no artifact yet{}", ready_message(object));
            return Err(if is_stalled(object) { Unavailable::Stalled(message) } else { Unavailable::NotYet(message) });
        };
        let observed = status.and_then(|s| s.get("observedGeneration")).and_then(serde_json::Value::as_i64);
        if let (Some(observed), Some(generation)) = (observed, object.meta().generation)
            && observed >= 0
            && observed < generation
        {
            // The condition of an older generation does not explain why the current generation has no artifact.
            let message = match condition(object, READY).and_then(|c| c.get("observedGeneration")?.as_i64()) {
                Some(of) if of == generation => ready_message(object),
                _ => String::new(),
            };
            return Err(Unavailable::NotYet(format!("{what} has no artifact of its current generation yet{message}")));
        }
        let refused = |error: &dyn fmt::Display| Unavailable::Stalled(format!("invalid artifact of {what}: {error}"));
        let artifact: SourceArtifact =
            serde_json::from_value(artifact.clone()).map_err(|error| refused(&format!("status.artifact: {error}")))?;
        let digest = artifact.digest.parse::<Digest>().map_err(|error| refused(&error))?;
        let origin_revision = artifact.metadata.get(metadata::ORIGIN_REVISION);
        let origin_revision = origin_revision.filter(|origin| !origin.is_empty()).cloned();
        let content_id = content_id(&artifact.revision, status);
        let metadata = match GroupKind::new(&self.resource.group, &self.resource.kind) == GroupKind::new(GROUP, GIT) {
            true => metadata::of_repository(object, &artifact.revision, &directory),
            false => metadata::of_artifact(&artifact.metadata),
        };
        let revision = artifact.revision;
        let max_length = usize::try_from(bounds::REVISION).unwrap_or(usize::MAX);
        if revision.len().max(origin_revision.as_ref().map_or(0, String::len)) > max_length {
            return Err(refused(&format!("revision exceeds the limit of {max_length} bytes")));
        }
        let origin = Origin::Url(artifact.url);
        Ok(Resolved { origin, revision, origin_revision, metadata, digest, directory, content_id })
    }
}

/// Parses a kind in the format that command-line flags use: `GitRepository` for a Flux kind, or
/// `Kind.group.example.com` for a kind in another group.
pub fn parse_kind(text: &str) -> GroupKind {
    match text.trim().split_once('.') {
        Some((kind, group)) => GroupKind::new(group, kind),
        None => GroupKind::new(GROUP, text.trim()),
    }
}

/// Returns an identifier for the files in an artifact. The identifier consists of the revision's checksum and a digest
/// of the options that select files, such as `ignore` and included repositories. The digest is necessary, because a
/// change to the options changes the files but not the revision.
fn content_id(revision: &str, status: Option<&Value>) -> Option<String> {
    let revision = Revision::parse(revision);
    let checksum = revision.checksum()?;
    let fields = status.and_then(Value::as_object).into_iter().flatten();
    let is_option = |name: &str| name.starts_with("observed") && name != "observedGeneration";
    let options = fields.filter_map(|(name, value)| match name.as_str() {
        INCLUDED => Some((name, included_revisions(value))),
        name_of_option if is_option(name_of_option) => Some((name, value.clone())),
        _ => None,
    });
    let options: BTreeMap<&String, Value> = options.collect();
    if options.is_empty() {
        return Some(checksum.to_owned());
    }
    let digest = hex::encode(Sha256::digest(json!(options).to_string()));
    Some(format!("{checksum}+{digest}"))
}

/// Returns the revisions of the included artifacts. Unlike a digest, a revision does not change when Flux packs the
/// artifact again.
fn included_revisions(artifacts: &Value) -> Value {
    let revision = |artifact: &Value| artifact.get("revision").cloned().unwrap_or_default();
    artifacts.as_array().map(|artifacts| artifacts.iter().map(revision).collect()).unwrap_or_default()
}

/// Returns an object's condition of type `kind`.
fn condition<'a>(object: &'a DynamicObject, kind: &str) -> Option<&'a serde_json::Value> {
    let conditions = object.data.pointer("/status/conditions").and_then(serde_json::Value::as_array);
    conditions?.iter().find(|condition| condition.get("type").and_then(serde_json::Value::as_str) == Some(kind))
}

/// Returns whether the source is stalled. A stalled source makes no progress until a user changes the source.
fn is_stalled(object: &DynamicObject) -> bool {
    let status = condition(object, STALLED).and_then(|stalled| stalled.get("status"));
    status.and_then(serde_json::Value::as_str) == Some("True")
}

/// Returns the message of the Ready condition, as a suffix for the errors about a missing artifact.
fn ready_message(object: &DynamicObject) -> String {
    match condition(object, READY).and_then(|c| c.get("message")).and_then(serde_json::Value::as_str) {
        Some(message) if !message.is_empty() => format!(": {message}"),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests;

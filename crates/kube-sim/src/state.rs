//! State of the server, and the requests that do not change it.

use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use crate::admission::{Admission, AdmissionRequest};
use crate::list;
use crate::request::{Call, Verb};
use crate::resources::{Kinds, Resource};
use crate::status::Status;
use crate::store::{Change, Key, Store};

/// Hook that allows, changes or denies writes.
pub(crate) type AdmissionHook = Box<dyn FnMut(&AdmissionRequest<'_>) -> Admission + Send>;
/// Hook that answers reviews, such as a `TokenReview`.
pub(crate) type ReviewHook = Box<dyn FnMut(&Call, &Value) -> Result<Value, Status> + Send>;

/// Maximum size of a request in bytes.
const MAX_BODY: usize = 3 * 1024 * 1024;

/// State of the server.
pub(crate) struct Core {
    pub(crate) store: Store,
    pub(crate) resources: Kinds,
    pub(crate) clock: Box<dyn Fn() -> Timestamp + Send>,
    pub(crate) random: fastrand::Rng,
    pub(crate) admission: Vec<AdmissionHook>,
    pub(crate) reviews: Option<ReviewHook>,
    /// Changes that observers and watches have not seen.
    pub(crate) changes: Vec<Change>,
    pub(crate) addresses: u32,
}

/// Successful response.
#[derive(Clone, Debug)]
pub(crate) struct Reply {
    pub(crate) code: u16,
    pub(crate) body: Value,
}

impl Reply {
    pub(crate) fn ok(body: Value) -> Self {
        Reply { code: 200, body }
    }
}

impl Core {
    /// Handles a request, except a watch. `view` is the revision that lists show, or `None` for the current one.
    pub(crate) fn handle(&mut self, call: &Call, view: Option<u64>) -> Result<Reply, Status> {
        if call.body.len() > MAX_BODY {
            let message = format!("Request entity too large: limit is {MAX_BODY}");
            return Err(Status::new(413, "RequestEntityTooLarge", &message));
        }
        if call.verb == Verb::Other {
            return self.discover(call);
        }
        if is_review(call) {
            return self.review(call);
        }
        let resource = self.resource(call)?;
        let is_known = match call.subresource.as_str() {
            "" => true,
            "status" => resource.has_status(&call.version),
            _ => false,
        };
        if !is_known {
            return Err(if resource.is_custom { not_found(&resource, &call.name) } else { Status::unknown_path() });
        }
        match call.verb {
            Verb::Get => {
                let key = key(&resource, call);
                let found = self.store.get(&key).ok_or_else(|| not_found(&resource, &call.name))?;
                let object = to_version(&resource, &found, &call.version);
                Ok(Reply::ok(list::render(call, &resource, &object)))
            }
            Verb::List => list::list(self, call, &resource, view).map(Reply::ok),
            Verb::Create => self.create(call, &resource),
            Verb::Update => self.update(call, &resource),
            Verb::Patch(kind) => self.patch(call, &resource, kind),
            Verb::Delete => self.delete(call, &resource),
            Verb::DeleteCollection => self.delete_collection(call, &resource),
            Verb::Watch | Verb::Other => Err(Status::unknown_path()),
        }
    }

    /// Returns the resource of a request.
    pub(crate) fn resource(&self, call: &Call) -> Result<Arc<Resource>, Status> {
        let resource = self.resources.get(&call.resource).ok_or_else(Status::unknown_path)?;
        let is_served = resource.versions.contains(&call.version);
        let has_scope = match call.verb {
            Verb::List | Verb::Watch => resource.is_namespaced || call.namespace.is_empty(),
            _ => resource.is_namespaced != call.namespace.is_empty(),
        };
        if is_served && has_scope { Ok(resource.clone()) } else { Err(Status::unknown_path()) }
    }

    /// Returns the current time as in metadata.
    pub(crate) fn now(&self) -> String {
        format_time((self.clock)())
    }

    pub(crate) fn uid(&mut self) -> String {
        let bits = self.random.u128(..);
        let bits = (bits & !(0xf << 76) & !(0xc << 60)) | (0x4 << 76) | (0x8 << 60);
        let hex = format!("{bits:032x}");
        let part = |from: usize, to: usize| hex.get(from..to).unwrap_or_default();
        format!("{}-{}-{}-{}-{}", part(0, 8), part(8, 12), part(12, 16), part(16, 20), part(20, 32))
    }

    /// Commits a change.
    pub(crate) fn commit(&mut self, key: Key, object: Option<Value>, actor: &str) -> Change {
        let change = self.store.put(key, object, actor);
        self.changes.push(change.clone());
        change
    }

    fn review(&mut self, call: &Call) -> Result<Reply, Status> {
        let mut body = call.body();
        let status = match &mut self.reviews {
            Some(hook) => hook(call, &body)?,
            None => default_review(call),
        };
        if let Value::Object(body) = &mut body {
            body.insert("status".to_owned(), status);
        }
        Ok(Reply { code: 201, body })
    }

    fn discover(&self, call: &Call) -> Result<Reply, Status> {
        let segments: Vec<&str> = call.path.split('/').filter(|part| !part.is_empty()).collect();
        match segments.as_slice() {
            ["version"] => Ok(Reply::ok(json!({
                "major": "1", "minor": "35", "gitVersion": "v1.35.4", "gitCommit": "", "gitTreeState": "clean",
                "buildDate": "2026-01-01T00:00:00Z", "goVersion": "go1.26", "compiler": "gc", "platform": "linux/amd64",
            }))),
            ["readyz" | "livez" | "healthz"] => Ok(Reply::ok(json!("ok"))),
            ["api"] => Ok(Reply::ok(self.groups(|group| group.is_empty()))),
            ["apis"] => Ok(Reply::ok(self.groups(|group| !group.is_empty()))),
            ["openapi", "v3", "api", version] => self.openapi("", version),
            ["openapi", "v3", "apis", group, version] => self.openapi(group, version),
            _ => Err(Status::unknown_path()),
        }
    }

    /// Returns the aggregated discovery document.
    fn groups(&self, is_selected: impl Fn(&str) -> bool) -> Value {
        let mut groups: Map<String, Value> = Map::new();
        for resource in self.resources.all().filter(|resource| is_selected(&resource.id.group)) {
            let group = groups.entry(resource.id.group.clone()).or_insert_with(|| {
                let metadata =
                    if resource.id.group.is_empty() { json!({}) } else { json!({ "name": resource.id.group }) };
                json!({ "metadata": metadata, "versions": [] })
            });
            let Some(versions) = group.get_mut("versions").and_then(Value::as_array_mut) else { continue };
            for version in &resource.versions {
                let found =
                    versions.iter().position(|known| known.get("version").and_then(Value::as_str) == Some(version));
                let at = found.unwrap_or_else(|| {
                    versions.push(json!({ "version": version, "resources": [], "freshness": "Current" }));
                    versions.len() - 1
                });
                let resources = versions.get_mut(at).and_then(|version| version.get_mut("resources"));
                if let Some(resources) = resources.and_then(Value::as_array_mut) {
                    resources.push(describe(resource, version));
                }
            }
        }
        let items: Vec<Value> = groups.into_iter().map(|(_, group)| group).collect();
        json!({ "kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": items })
    }

    fn openapi(&self, group: &str, version: &str) -> Result<Reply, Status> {
        let resources = self.resources.all().filter(|resource| resource.id.group == group);
        let mut schemas = Map::new();
        for resource in resources {
            let Some(raw) = resource.raw_schemas.get(version) else { continue };
            let mut schema = raw.clone();
            if let Value::Object(schema) = &mut schema {
                let gvk = json!([{ "group": group, "version": version, "kind": resource.kind }]);
                schema.insert("x-kubernetes-group-version-kind".to_owned(), gvk);
            }
            schemas.insert(format!("{group}.{version}.{}", resource.kind), schema);
        }
        if schemas.is_empty() {
            return Err(Status::unknown_path());
        }
        Ok(Reply::ok(json!({ "openapi": "3.0.0", "components": { "schemas": schemas } })))
    }
}

fn describe(resource: &Resource, version: &str) -> Value {
    let kind = json!({ "group": resource.id.group, "version": version, "kind": resource.kind });
    let verbs = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];
    let mut described = json!({
        "resource": resource.id.resource, "responseKind": kind, "singularResource": resource.singular, "verbs": verbs,
        "scope": if resource.is_namespaced { "Namespaced" } else { "Cluster" },
    });
    if resource.has_status(version)
        && let Value::Object(described) = &mut described
    {
        let status = json!([{ "subresource": "status", "responseKind": kind, "verbs": ["get", "patch", "update"] }]);
        described.insert("subresources".to_owned(), status);
    }
    described
}

fn is_review(call: &Call) -> bool {
    let group = call.resource.group.as_str();
    call.verb == Verb::Create
        && matches!(group, "authentication.k8s.io" | "authorization.k8s.io")
        && call.resource.resource.ends_with("reviews")
}

/// Without a hook, every request is allowed.
fn default_review(call: &Call) -> Value {
    match call.resource.resource.as_str() {
        "tokenreviews" => json!({ "authenticated": true, "user": { "username": call.actor } }),
        "selfsubjectreviews" => json!({ "userInfo": { "username": call.actor } }),
        _ => json!({ "allowed": true }),
    }
}

/// Formats a time as in metadata: seconds in UTC.
pub(crate) fn format_time(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

pub(crate) fn key(resource: &Resource, call: &Call) -> Key {
    Key::new(resource.id.clone(), resource.is_namespaced.then_some(call.namespace.as_str()), &call.name)
}

pub(crate) fn not_found(resource: &Resource, name: &str) -> Status {
    Status::not_found(&resource.id.group, &resource.id.resource, name)
}

/// Returns a stored object in a version, with the defaults of the stored version and of the version. The fields of all
/// versions have the same meaning.
pub(crate) fn to_version(resource: &Resource, object: &Arc<Value>, version: &str) -> Arc<Value> {
    if !resource.is_custom {
        return object.clone();
    }
    let stored = object.get("apiVersion").and_then(Value::as_str).unwrap_or_default();
    let is_same = stored == resource.api_version(version);
    let Some(schema) = resource.schemas.get(stored) else { return object.clone() };
    // In the version of the write, only a status that the write has removed can lack its default.
    let has_defaults =
        object.get("status").is_some() || schema.properties.get("status").is_none_or(|status| status.default.is_none());
    if is_same && has_defaults && resource.versions.len() == 1 {
        return object.clone();
    }
    let mut object = Value::clone(object);
    schema.set_defaults(&mut object);
    if !is_same {
        convert(resource, &mut object, version);
        if let Some(schema) = resource.schema(version) {
            schema.set_defaults(&mut object);
        }
    }
    Arc::new(object)
}

/// Converts an object to a version, without defaults.
pub(crate) fn convert(resource: &Resource, object: &mut Value, version: &str) {
    let Some(schema) = resource.schema(version) else { return };
    if let Value::Object(object) = object {
        object.insert("apiVersion".to_owned(), resource.api_version(version).into());
    }
    schema.prune(object);
    schema.drop_nulls(object);
}

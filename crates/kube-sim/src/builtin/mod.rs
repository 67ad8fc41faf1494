//! Built-in kinds: their types, their defaults and the rules of their endpoints.
//!
//! `types.json` contains the types in a compact form of the OpenAPI document of the API server.

mod defaults;
mod quantity;
mod strategy;
mod update;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value};

use crate::apply::FieldSet;
use crate::resources::Resource;
use crate::schema::{Definitions, Kind, Schema, SchemaError};
use crate::store::GroupResource;

pub(crate) use defaults::set_defaults;
pub(crate) use quantity::canonical as canonical_quantity;
pub(crate) use strategy::{
    allows_create_on_update, allows_unconditional_update, default_grace_seconds, is_subdomain, prepare_for_create,
    prepare_for_status_update, prepare_for_update, validate,
};
pub(crate) use update::validate_update;

const TYPES: &str = include_str!("types.json");

/// Built-in kind: group, version, kind, plural, whether it is namespaced, whether it has a status, and its field
/// selectors.
type Row = (&'static str, &'static str, &'static str, &'static str, bool, bool, &'static [&'static str]);

const KINDS: [Row; 17] = [
    ("", "v1", "Namespace", "namespaces", false, true, &["status.phase"]),
    ("", "v1", "Node", "nodes", false, true, &["spec.unschedulable"]),
    (
        "",
        "v1",
        "Pod",
        "pods",
        true,
        true,
        &["spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName", "status.phase"],
    ),
    ("", "v1", "Service", "services", true, true, &["spec.clusterIP", "spec.type"]),
    ("", "v1", "Secret", "secrets", true, false, &["type"]),
    ("", "v1", "ConfigMap", "configmaps", true, false, &[]),
    (
        "",
        "v1",
        "Event",
        "events",
        true,
        false,
        &[
            "involvedObject.kind",
            "involvedObject.namespace",
            "involvedObject.name",
            "involvedObject.uid",
            "reason",
            "type",
        ],
    ),
    ("", "v1", "ServiceAccount", "serviceaccounts", true, false, &[]),
    ("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims", true, true, &[]),
    ("apps", "v1", "StatefulSet", "statefulsets", true, true, &[]),
    ("apps", "v1", "ControllerRevision", "controllerrevisions", true, false, &[]),
    ("apps", "v1", "Deployment", "deployments", true, true, &[]),
    ("apps", "v1", "ReplicaSet", "replicasets", true, true, &["status.replicas"]),
    ("coordination.k8s.io", "v1", "Lease", "leases", true, false, &[]),
    (
        "events.k8s.io",
        "v1",
        "Event",
        "events",
        true,
        false,
        &["regarding.kind", "regarding.namespace", "regarding.name", "regarding.uid", "reason", "type"],
    ),
    ("networking.k8s.io", "v1", "NetworkPolicy", "networkpolicies", true, false, &[]),
    ("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets", true, true, &[]),
];

/// Returns the built-in kinds, and the type of the metadata of all objects.
pub(crate) fn resources() -> Result<(Vec<Resource>, Arc<Schema>), SchemaError> {
    let raw: Map<String, Value> = serde_json::from_str(TYPES)
        .map_err(|_| SchemaError::Value { path: "types.json".to_owned(), keyword: "JSON".to_owned() })?;
    let mut definitions = Definitions::new(&raw);
    let metadata = definitions.get("meta.v1.ObjectMeta")?;
    let mut resources = Vec::new();
    for (group, version, kind, plural, is_namespaced, has_status, selectable) in KINDS {
        let is_type = |definition: &&Value| {
            let gvk = definition.get("gvk").and_then(Value::as_array).into_iter().flatten();
            gvk.filter_map(Value::as_str).eq([group, version, kind])
        };
        let name = raw.iter().find(|(_, definition)| is_type(definition)).map(|(name, _)| name.as_str());
        let schema = definitions.get(name.unwrap_or(kind))?;
        let mut resource = Resource {
            id: GroupResource::new(group, plural),
            kind: kind.to_owned(),
            singular: kind.to_lowercase(),
            is_namespaced,
            versions: vec![version.to_owned()],
            storage: version.to_owned(),
            schemas: BTreeMap::new(),
            status_versions: if has_status { vec![version.to_owned()] } else { Vec::new() },
            selectable: selectable.iter().map(|field| (*field).to_owned()).collect(),
            columns: BTreeMap::new(),
            is_custom: false,
            raw_schemas: BTreeMap::new(),
        };
        resource.schemas.insert(resource.api_version(version), schema);
        resources.push(resource);
    }
    Ok((resources, metadata))
}

/// Returns the fields that the status endpoint of a built-in kind resets.
pub(crate) fn status_reset_fields(id: &GroupResource) -> FieldSet {
    match id.resource.as_str() {
        "pods" => {
            FieldSet::of_paths(&[&["spec"], &["metadata", "deletionTimestamp"], &["metadata", "ownerReferences"]])
        }
        _ => FieldSet::of_paths(&[&["spec"]]),
    }
}

/// Scalars that Go omits if they are zero. The other optional scalars of the built-in types are pointers, which keep a
/// zero.
const OMITTED_ZEROS: [&str; 20] = [
    "readyReplicas",
    "currentReplicas",
    "updatedReplicas",
    "unavailableReplicas",
    "hostNetwork",
    "hostPID",
    "hostIPC",
    "stdin",
    "stdinOnce",
    "tty",
    "readOnly",
    "minReadySeconds",
    "unschedulable",
    "publishNotReadyAddresses",
    "hostPort",
    "initialDelaySeconds",
    "nodePort",
    "generation",
    "observedGeneration",
    "paused",
];

/// Texts that are pointers in Go, which keep an empty text.
const TEXT_POINTERS: [&str; 9] = [
    "service",
    "storageClassName",
    "holderIdentity",
    "preferredHolder",
    "strategy",
    "runtimeClassName",
    "appProtocol",
    "loadBalancerClass",
    "volumeAttributesClassName",
];

/// Times that Go writes as null if they are missing.
const NULL_TIMES: [&str; 10] = [
    "lastProbeTime",
    "lastTransitionTime",
    "lastHeartbeatTime",
    "deprecatedFirstTimestamp",
    "deprecatedLastTimestamp",
    "firstTimestamp",
    "lastTimestamp",
    "startedAt",
    "finishedAt",
    "eventTime",
];

/// Returns the object that Go writes for an empty value of a type.
pub(crate) fn zero(schema: &Schema) -> Value {
    let present =
        schema.properties.iter().filter_map(|(name, field)| Some((name.clone(), missing(schema, name, field)?)));
    Value::Object(present.collect())
}

/// Returns the value that Go writes for a missing field, or `None` if Go omits the field.
fn missing(schema: &Schema, name: &str, field: &Schema) -> Option<Value> {
    if field.is_always_present {
        return Some(zero(field));
    }
    if name == "availableReplicas" && schema.properties.contains_key("currentRevision") {
        return Some(0.into());
    }
    if !schema.bounds.requires(name) {
        return NULL_TIMES.contains(&name).then_some(Value::Null);
    }
    Some(match field.kind {
        Some(Kind::String) if field.bounds.format().is_none() => "".into(),
        Some(Kind::Integer | Kind::Number) => 0.into(),
        Some(Kind::Boolean) => false.into(),
        _ => Value::Null,
    })
}

/// Rewrites an object as Go does when it decodes and encodes the object: removes unknown fields and empty values, and
/// adds empty structures.
pub(crate) fn normalize(schema: &Schema, object: &mut Value) {
    schema.prune(object);
    normalize_at(schema, object);
}

fn normalize_at(schema: &Schema, value: &mut Value) {
    match value {
        Value::Object(map) => {
            for (name, below) in map.iter_mut() {
                if let Some(field) = schema.field(name) {
                    normalize_at(field, below);
                }
            }
            let is_struct = !schema.properties.is_empty();
            if !is_struct {
                return;
            }
            map.retain(|name, below| !is_omitted(schema, name, below));
            for (name, field) in &schema.properties {
                if !map.contains_key(name)
                    && let Some(value) = missing(schema, name, field)
                {
                    map.insert(name.clone(), value);
                }
            }
        }
        Value::Array(list) => {
            if let Some(items) = &schema.items {
                list.iter_mut().for_each(|item| normalize_at(items, item));
            }
        }
        Value::Number(_) | Value::String(_) if schema.bounds.format() == Some("quantity") => {
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            if let Some(canonical) = quantity::canonical(&text) {
                *value = canonical.into();
            }
        }
        _ => {}
    }
}

fn is_omitted(schema: &Schema, name: &str, value: &Value) -> bool {
    if schema.bounds.requires(name) && !value.is_null() {
        return false;
    }
    match value {
        Value::Null => true,
        Value::Array(list) => list.is_empty(),
        // An empty map disappears, and an empty structure stays.
        Value::Object(map) => {
            map.is_empty() && schema.field(name).is_some_and(|field| field.properties.is_empty() && !field.is_untyped())
        }
        Value::String(text) => text.is_empty() && !TEXT_POINTERS.contains(&name),
        Value::Bool(false) => OMITTED_ZEROS.contains(&name),
        Value::Number(number) => number.as_i64() == Some(0) && OMITTED_ZEROS.contains(&name),
        Value::Bool(true) => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn objects_are_rewritten_as_in_go() {
        let (resources, _) = resources().unwrap();
        let pods = resources.iter().find(|resource| resource.kind == "Pod").unwrap();
        let mut pod = json!({ "metadata": { "labels": {}, "finalizers": [] }, "unknown": 1,
            "spec": { "containers": [{ "name": "a", "args": [], "tty": false }], "volumes": [{ "name": "v", "emptyDir": {} }] } });
        normalize(pods.schema("v1").unwrap(), &mut pod);
        let expected = json!({ "metadata": {}, "status": {},
            "spec": { "containers": [{ "name": "a", "resources": {} }], "volumes": [{ "name": "v", "emptyDir": {} }] } });
        assert_eq!(pod, expected);
    }
}

//! Compares rendered Kubernetes objects.

use std::collections::BTreeMap;

use k8s_openapi::api::admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Service, ServiceAccount};
use k8s_openapi::api::networking::v1::{Ingress, NetworkPolicy};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::manifest_files::covers;

/// Labels that the chart sets on all objects. The overlays set none of these labels except `part-of` and `component`,
/// which they set on some objects.
const CHART_LABELS: [&str; 7] = [
    "app.kubernetes.io/component",
    "app.kubernetes.io/instance",
    "app.kubernetes.io/managed-by",
    "app.kubernetes.io/name",
    "app.kubernetes.io/part-of",
    "app.kubernetes.io/version",
    "helm.sh/chart",
];
/// Annotation in the chart that prevents Helm from deleting the CustomResourceDefinitions.
const PROTECTION: [&str; 1] = ["helm.sh/resource-policy"];

/// Rendered objects by kind, namespace and name.
pub struct Objects(BTreeMap<[String; 4], Value>);

/// Parses the documents of a YAML stream. Omits Namespaces, which Helm creates with `--create-namespace`.
pub fn parse(text: &str) -> Objects {
    let mut objects = BTreeMap::new();
    for document in text.split("\n---\n") {
        let document = document.trim_start_matches("---\n");
        let object: Value = serde_saphyr::from_str(document).unwrap_or_else(|error| panic!("{error}: {document}"));
        if object.is_null() || object["kind"] == "Namespace" {
            continue;
        }
        let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let metadata = &object["metadata"];
        let key =
            [word(&object["apiVersion"]), word(&object["kind"]), word(&metadata["namespace"]), word(&metadata["name"])];
        assert!(objects.insert(key.clone(), object).is_none(), "{key:?} occurs twice");
    }
    Objects(objects)
}

impl Objects {
    pub fn iter(&self) -> impl Iterator<Item = &Value> {
        self.0.values()
    }

    /// Returns the differences between the objects. Ignores labels and annotations that depend on the installation
    /// method.
    pub fn differences(&self, others: &Objects) -> Vec<String> {
        let mut differences = Vec::new();
        for (key, object) in &self.0 {
            match others.0.get(key) {
                None => differences.push(format!("{key:?} exists only on the left side")),
                Some(other) => {
                    let (left, right) = (comparable(object, other), comparable(other, object));
                    let result = || format!("{key:?}: {}", first_difference("", &left, &right));
                    differences.extend((left != right).then(result));
                }
            }
        }
        let missing = others.0.keys().filter(|key| !self.0.contains_key(*key));
        differences.extend(missing.map(|key| format!("{key:?} exists only on the right side")));
        differences
    }
}

/// Returns a copy of an object without the labels and the annotation of the chart that the other object lacks.
fn comparable(object: &Value, other: &Value) -> Value {
    let mut object = object.clone();
    let Some(metadata) = object["metadata"].as_object_mut() else { return object };
    for (field, names) in [("labels", CHART_LABELS.as_slice()), ("annotations", PROTECTION.as_slice())] {
        let Some(entries) = metadata.get_mut(field).and_then(Value::as_object_mut) else { continue };
        entries.retain(|name, _| !names.contains(&name.as_str()) || other["metadata"][field].get(name).is_some());
        if entries.is_empty() {
            metadata.remove(field);
        }
    }
    object
}

/// Returns the path and both values of the first difference.
fn first_difference(path: &str, left: &Value, right: &Value) -> String {
    match (left, right) {
        (Value::Object(left), Value::Object(right)) => {
            let names = left.keys().chain(right.keys());
            let different = names.into_iter().find(|name| left.get(*name) != right.get(*name));
            different.map_or_else(String::new, |name| {
                let value = |side: &serde_json::Map<String, Value>| side.get(name).cloned().unwrap_or_default();
                first_difference(&format!("{path}/{name}"), &value(left), &value(right))
            })
        }
        (Value::Array(left), Value::Array(right)) if left.len() == right.len() => {
            let different = left.iter().zip(right).enumerate().find(|(_, (left, right))| left != right);
            different.map_or_else(String::new, |(index, (left, right))| {
                first_difference(&format!("{path}/{index}"), left, right)
            })
        }
        _ => format!("{path}: {left} is not {right}"),
    }
}

/// Deserializes an object to its Rust type, serializes the result, and compares the serialized object with the
/// original. Skips Prometheus Operator objects, which have no Rust type, and CustomResourceDefinitions, which are
/// generated from Rust types.
pub fn is_read_without_loss(object: &Value) -> Result<(), String> {
    match object["kind"].as_str().unwrap_or_default() {
        "ClusterRole" => reread::<ClusterRole>(object),
        "ClusterRoleBinding" => reread::<ClusterRoleBinding>(object),
        "ConfigMap" => reread::<ConfigMap>(object),
        "Deployment" => reread::<Deployment>(object),
        "Ingress" => reread::<Ingress>(object),
        "NetworkPolicy" => reread::<NetworkPolicy>(object),
        "PodDisruptionBudget" => reread::<PodDisruptionBudget>(object),
        "Role" => reread::<Role>(object),
        "RoleBinding" => reread::<RoleBinding>(object),
        "Service" => reread::<Service>(object),
        "ServiceAccount" => reread::<ServiceAccount>(object),
        "ValidatingAdmissionPolicy" => reread::<ValidatingAdmissionPolicy>(object),
        "ValidatingAdmissionPolicyBinding" => reread::<ValidatingAdmissionPolicyBinding>(object),
        "CustomResourceDefinition" | "PrometheusRule" | "ServiceMonitor" => Ok(()),
        kind => Err(format!("the test does not know the kind {kind}")),
    }
}

fn reread<K: DeserializeOwned + Serialize>(object: &Value) -> Result<(), String> {
    let typed: K = serde_json::from_value(object.clone()).map_err(|error| error.to_string())?;
    let found = serde_json::to_value(typed).map_err(|error| error.to_string())?;
    if covers(&found, object) { Ok(()) } else { Err(first_difference("", object, &found)) }
}

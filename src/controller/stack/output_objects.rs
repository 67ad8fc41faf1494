//! Content of the Secrets and ConfigMaps that contain a Stack's outputs (`spec.writeOutputsTo`).

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt;
use serde_json::Value;

use crate::api::conditions::{self, ConditionUpdate, OUTPUTS_WRITTEN, Status, outputs_reason};
use crate::api::names;
use crate::api::output_keys::stored_key;
use crate::api::pulumi::{OutputObject, OutputObjectKind, OutputObjectReference, Stack, StackStatus};
use crate::controller::stack::ownership;
use crate::runtime::events::{Event, EventKind};

/// Label of the Secrets and ConfigMaps that this controller and the Flux controllers watch.
const WATCH_LABEL: (&str, &str) = ("reconcile.fluxcd.io/watch", "Enabled");
/// Value of the component label on objects with outputs.
const COMPONENT: &str = "outputs";
/// Maximum length of a key in a Secret or a ConfigMap, as in the Kubernetes API.
const MAX_KEY: usize = 253;

/// Outputs in the Secret of an Update: the JSON values by key, and the keys of secret outputs.
struct Outputs {
    values: BTreeMap<String, String>,
    secret: BTreeSet<String>,
}

impl Outputs {
    fn read(secret: Option<&Secret>) -> Outputs {
        let text = |bytes: &ByteString| String::from_utf8_lossy(&bytes.0).into_owned();
        let data = secret.and_then(|secret| secret.data.as_ref());
        let keys = secret.and_then(|secret| secret.annotations().get(names::ANNOTATION_SECRETS));
        Outputs {
            values: data.into_iter().flatten().map(|(key, bytes)| (key.clone(), text(bytes))).collect(),
            secret: keys.and_then(|keys| serde_json::from_str(keys).ok()).unwrap_or_default(),
        }
    }
}

/// Returns the reference to an object in the spec.
pub fn reference(object: &OutputObject) -> OutputObjectReference {
    OutputObjectReference { kind: object.kind, name: object.name.clone() }
}

/// Checks `spec.writeOutputsTo`. Returns the error message.
pub fn check(stack: &Stack) -> Result<(), String> {
    let mut references = BTreeSet::new();
    for (index, object) in stack.spec.write_outputs_to.iter().enumerate() {
        let field = format!("spec.writeOutputsTo[{index}]");
        if !names::is_object_name(&object.name) {
            return Err(format!(
                "invalid {field}.name: {:?} is not a valid name of a {}",
                object.name,
                object.kind.as_str()
            ));
        }
        if !references.insert(reference(object)) {
            return Err(format!("invalid {field}: {} {} is already in the list", object.kind.as_str(), object.name));
        }
        if let Some(key) = object.rename.values().find(|key| !is_key(key)) {
            return Err(format!(
                "invalid {field}.rename: {key:?} is not a valid key; use at most {MAX_KEY} letters, digits, '-', '_' and '.'"
            ));
        }
        let is_listed = |name: &String| object.keys.is_empty() || object.keys.contains(name);
        if let Some(name) = object.rename.keys().find(|name| !is_listed(name)) {
            return Err(format!("invalid {field}.rename: the output {name:?} is not in keys"));
        }
    }
    Ok(())
}

/// Returns whether a string is a valid key in a Secret or a ConfigMap.
fn is_key(text: &str) -> bool {
    let is_permitted = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
    !text.is_empty() && text.len() <= MAX_KEY && text.chars().all(is_permitted) && !matches!(text, "." | "..")
}

/// Returns the content of an object: the values by key. Returns an error message if an output does not exist or has an
/// unknown value, if two outputs have the same key, or if a ConfigMap would contain a secret output.
pub fn content(object: &OutputObject, outputs: Option<&Secret>) -> Result<BTreeMap<String, String>, String> {
    let outputs = Outputs::read(outputs);
    let hides = |key: &str| object.kind == OutputObjectKind::ConfigMap && outputs.secret.contains(key);
    let stored =
        |name: &String| stored_key(name, |key| outputs.values.contains_key(key) || outputs.secret.contains(key));
    let all: BTreeSet<&String> = outputs.values.keys().chain(&outputs.secret).collect();
    // Checks each output that the object names. The messages contain the names in the spec, not the keys in the Secret.
    for (field, name) in
        object.keys.iter().map(|name| ("keys", name)).chain(object.rename.keys().map(|n| ("rename", n)))
    {
        let output = stored(name);
        if !all.contains(&output) {
            return Err(format!("the output {name} in {field} does not exist"));
        }
        if hides(&output) {
            return Err(format!("the output {name} is secret: write it to a Secret, or remove it from {field}"));
        }
    }
    let listed: Vec<String> = match object.keys.is_empty() {
        true => all.into_iter().filter(|key| !hides(key)).cloned().collect(),
        false => object.keys.iter().map(stored).collect(),
    };
    let renamed: BTreeMap<String, &String> = object.rename.iter().map(|(name, key)| (stored(name), key)).collect();
    let mut content = BTreeMap::new();
    for output in listed {
        let value =
            outputs.values.get(&output).ok_or_else(|| format!("the value of the output {output} is unknown"))?;
        let key = renamed.get(&output).map_or(&output, |key| *key).clone();
        let text = if object.raw.unwrap_or(true) { raw(value) } else { value.clone() };
        if content.insert(key.clone(), text).is_some() {
            return Err(format!("two outputs have the key {key}: rename one of them"));
        }
    }
    Ok(content)
}

/// Returns the value of a JSON string. Returns any other JSON value in its serialized form.
fn raw(json: &str) -> String {
    match serde_json::from_str(json) {
        Ok(Value::String(text)) => text,
        Ok(_) | Err(_) => json.to_owned(),
    }
}

/// Returns the Secret with this content for an object in the spec.
pub fn secret(stack: &Stack, object: &OutputObject, content: BTreeMap<String, String>) -> Secret {
    let data = content.into_iter().map(|(key, value)| (key, ByteString(value.into_bytes()))).collect();
    let type_ = Some("Opaque".to_owned());
    Secret { metadata: metadata(stack, object), data: Some(data), type_, ..Secret::default() }
}

/// Returns the ConfigMap with this content for an object in the spec.
pub fn config_map(stack: &Stack, object: &OutputObject, content: BTreeMap<String, String>) -> ConfigMap {
    ConfigMap { metadata: metadata(stack, object), data: Some(content), ..ConfigMap::default() }
}

fn metadata(stack: &Stack, object: &OutputObject) -> ObjectMeta {
    let mut labels = BTreeMap::from([(WATCH_LABEL.0.to_owned(), WATCH_LABEL.1.to_owned())]);
    labels.extend(object.labels.clone());
    labels.extend(ownership::labels(stack));
    // The policy in the component `admission-policy` permits writes only to objects with this label.
    labels.insert(names::LABEL_COMPONENT.to_owned(), COMPONENT.to_owned());
    ObjectMeta {
        name: Some(object.name.clone()),
        namespace: stack.namespace(),
        labels: Some(labels),
        owner_references: ownership::references(stack),
        ..ObjectMeta::default()
    }
}

/// Records the written objects and the errors in the status. `errors` contains a message for each object that the
/// controller failed to write.
pub fn record(
    stack: &Stack,
    mut status: StackStatus,
    written: Vec<OutputObjectReference>,
    errors: &[String],
    now: Timestamp,
) -> StackStatus {
    let generation = stack.metadata.generation.unwrap_or_default();
    let message = match errors {
        [] => format!("wrote the outputs to {}", list(&written)),
        errors => format!("failed to write the outputs: {}; the next run writes them again", errors.join("; ")),
    };
    let (value, reason) = match errors {
        [] => (Status::True, outputs_reason::OUTPUTS_WRITTEN),
        _ => (Status::False, outputs_reason::OUTPUTS_NOT_WRITTEN),
    };
    let condition = ConditionUpdate { kind: OUTPUTS_WRITTEN, status: value, reason, message: &message };
    conditions::set(&mut status.conditions, &condition, generation, now);
    status.written_outputs = written;
    keep(stack, &mut status);
    status
}

fn list(objects: &[OutputObjectReference]) -> String {
    objects.iter().map(|object| format!("{} {}", object.kind.as_str(), object.name)).collect::<Vec<_>>().join(", ")
}

/// Removes the condition `OutputsWritten` if the Stack writes no outputs and the status lists no written objects.
/// Otherwise, sets the `observedGeneration` of the condition to the current generation.
pub fn keep(stack: &Stack, status: &mut StackStatus) {
    if stack.spec.write_outputs_to.is_empty() && status.written_outputs.is_empty() {
        conditions::remove(&mut status.conditions, OUTPUTS_WRITTEN);
    }
    for condition in status.conditions.iter_mut().filter(|condition| condition.type_ == OUTPUTS_WRITTEN) {
        condition.observed_generation = stack.metadata.generation;
    }
}

/// Returns the event about outputs that the controller failed to write. Returns `None` if the previous status contains
/// the same message.
pub fn event(stack: &Stack, status: &StackStatus) -> Option<Event> {
    let failed = conditions::find(&status.conditions, OUTPUTS_WRITTEN).filter(|found| found.status == "False")?;
    let before = stack.status.as_ref().and_then(|before| conditions::find(&before.conditions, OUTPUTS_WRITTEN));
    let is_new = before.is_none_or(|before| before.message != failed.message);
    let message = failed.message.as_str();
    is_new.then(|| Event::new(stack, EventKind::Warning, outputs_reason::OUTPUTS_NOT_WRITTEN, message))
}

#[cfg(test)]
mod tests;

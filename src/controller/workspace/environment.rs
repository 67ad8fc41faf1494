//! Builds the environment of the `pulumi` container and of each run.
//!
//! Each run reads the values from the mounted Secrets and ConfigMaps. A changed value therefore takes effect in the
//! next run, even in the same pod. The container environment keeps the values that were current when the container
//! started. Interactive shells use the container environment.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::config;
use super::config::{Mounted, check_key, check_name};
use super::spec_error::SpecError;
use crate::api::auto::WorkspaceSpec;
use crate::api::bounds;
use crate::api::names::{PULUMI_CONTAINER, RESERVED_VARIABLES};
use crate::controller::merge::{POD_TEMPLATE, merge};
use crate::controller::references::Reference;
use crate::rpc::proto::EnvironmentVariable;
use crate::rpc::proto::environment_variable::Source;

/// Key of a Secret or ConfigMap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct KeyOf<'a> {
    mounted: Mounted<'a>,
    key: &'a str,
}

/// Environment that a Workspace spec defines for the `pulumi` container.
pub(super) struct Desired {
    env: Vec<Value>,
    env_from: Vec<Value>,
}

/// Returns the environment that a Workspace spec defines, including its `podTemplate`.
pub(super) fn desired(spec: &WorkspaceSpec) -> Result<Desired, SpecError> {
    let container = json!({"name": PULUMI_CONTAINER, "env": spec.env, "envFrom": spec.env_from});
    let generated = json!({"spec": {"containers": [container]}});
    let merged = match &spec.pod_template {
        Some(pod_template) => merge(generated, pod_template, &POD_TEMPLATE)?,
        None => generated,
    };
    let container = merged
        .pointer("/spec/containers")
        .and_then(Value::as_array)
        .and_then(|containers| containers.iter().find(|container| has_name(container, PULUMI_CONTAINER)));
    let list = |field| container.and_then(|container| container.get(field)).and_then(Value::as_array);
    let desired = Desired {
        env: list("env").cloned().unwrap_or_default(),
        env_from: list("envFrom").cloned().unwrap_or_default(),
    };
    desired.env.iter().try_for_each(check)?;
    desired.env_from.iter().try_for_each(check_from)?;
    Ok(desired)
}

impl Desired {
    /// Returns the `env` entry of a variable.
    pub(super) fn variable(&self, name: &str) -> Option<&Value> {
        self.env.iter().find(|variable| has_name(variable, name))
    }

    /// Returns the Secrets and ConfigMaps that the environment references.
    pub(super) fn mounted(&self) -> BTreeSet<Mounted<'_>> {
        let keys = self.env.iter().filter_map(key_of).map(|reference| reference.mounted);
        keys.chain(self.env_from.iter().filter_map(env_from_source)).collect()
    }

    /// Returns the Secrets and ConfigMaps that the environment and the configuration of all Pulumi stacks reference.
    ///
    /// # Errors
    /// Returns an error if the number of objects exceeds [`bounds::REFERENCED_OBJECTS`].
    pub(super) fn mounted_with_config<'a>(
        &'a self,
        spec: &'a WorkspaceSpec,
    ) -> Result<BTreeSet<Mounted<'a>>, SpecError> {
        let mut mounted = self.mounted();
        mounted.extend(config::mounted(spec));
        match u32::try_from(mounted.len()) {
            Ok(count) if count <= bounds::REFERENCED_OBJECTS => Ok(mounted),
            _ => Err(SpecError::TooManyObjects { count: mounted.len() }),
        }
    }
}

/// Returns the mount directory of each Secret and ConfigMap. The map keys are objects such as `Secret/aws`. Returns
/// an empty map if the environment is invalid or the Workspace references too many objects.
pub(super) fn directories(spec: &WorkspaceSpec) -> BTreeMap<String, String> {
    let Ok(environment) = desired(spec) else { return BTreeMap::new() };
    let mounted = environment.mounted_with_config(spec).unwrap_or_default();
    mounted.into_iter().map(|mounted| (mounted.object(), mounted.directory())).collect()
}

/// Returns the `envFrom` entries of the spec whose change or removal can leave the mounted objects unchanged: entries
/// that set more than the object, and entries whose object is also referenced by another entry, by `env` or by the
/// configuration. Returns an empty list if the environment is invalid.
pub(super) fn unmounted_settings(spec: &WorkspaceSpec) -> Vec<&Value> {
    let Ok(environment) = desired(spec) else { return Vec::new() };
    let mut others = config::mounted(spec);
    others.extend(environment.env.iter().filter_map(key_of).map(|reference| reference.mounted));
    let is_repeated = |mounted: Mounted<'_>| {
        let entries = environment.env_from.iter().filter_map(env_from_source);
        entries.filter(|entry| *entry == mounted).count() > 1
    };
    let is_shared = |mounted: Mounted<'_>| others.contains(&mounted) || is_repeated(mounted);
    let has_prefix = |from: &Value| from.get("prefix").and_then(Value::as_str).is_some_and(|prefix| !prefix.is_empty());
    let is_optional = |from: &Value| is_optional(from, &OPTIONAL_SOURCES);
    let entries = spec.env_from.iter();
    entries
        .filter(|from| has_prefix(from) || is_optional(from) || env_from_source(from).is_some_and(is_shared))
        .collect()
}

/// Returns the objects that the environment references and that must exist before a run starts.
pub(super) fn required(spec: &WorkspaceSpec) -> Result<Vec<Reference>, SpecError> {
    let desired = desired(spec)?;
    let from = desired.env_from.iter().filter(|from| !is_optional(from, &OPTIONAL_SOURCES));
    let from = from.filter_map(env_from_source).map(|mounted| mounted.referred_to_by("envFrom".to_owned()));
    let variables = desired.env.iter().filter(|variable| !is_optional(variable, &OPTIONAL_KEYS));
    let variables = variables.filter_map(|variable| {
        let name = variable.get("name").and_then(Value::as_str).unwrap_or_default();
        Some(key_of(variable)?.mounted.referred_to_by(format!("environment variable {name}")))
    });
    Ok(from.chain(variables).collect())
}

/// JSON pointers to the field `optional` in an `envFrom` entry.
const OPTIONAL_SOURCES: [&str; 2] = ["/secretRef/optional", "/configMapRef/optional"];
/// JSON pointers to the field `optional` in an `env` entry.
const OPTIONAL_KEYS: [&str; 2] = ["/valueFrom/secretKeyRef/optional", "/valueFrom/configMapKeyRef/optional"];

fn is_optional(entry: &Value, pointers: &[&str]) -> bool {
    pointers.iter().any(|pointer| entry.pointer(pointer) == Some(&Value::Bool(true)))
}

/// Makes all references optional, so that the pod starts even if referenced objects are missing. Each run waits for
/// the missing objects instead.
pub(super) fn make_optional(container: &mut Value) {
    let references = [
        ("env", ["/valueFrom/secretKeyRef", "/valueFrom/configMapKeyRef"]),
        ("envFrom", ["/secretRef", "/configMapRef"]),
    ];
    for (list, pointers) in references {
        for item in container.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            for pointer in pointers {
                if let Some(reference) = item.pointer_mut(pointer).and_then(Value::as_object_mut) {
                    reference.insert("optional".to_owned(), Value::Bool(true));
                }
            }
        }
    }
}

/// Returns the environment of a run. The environment contains literal values, and the paths of files that contain
/// values from Secrets and ConfigMaps. Later entries take precedence.
///
/// A run inherits the values that only Kubernetes can resolve, such as pod fields, from the container environment. The
/// environment also contains these variables if they can override the keys of `envFrom` or if another variable can refer
/// to them. Otherwise, it omits them, because the controller replaces a pod whose agent does not know this kind of
/// variable. It excludes the variables that the controller sets.
pub fn run_environment(spec: &WorkspaceSpec) -> Result<Vec<EnvironmentVariable>, SpecError> {
    let desired = desired(spec)?;
    let from = desired.env_from.iter().filter_map(from_env_from_source);
    let mut variables: Vec<_> = from.chain(desired.env.iter().filter_map(from_env_entry)).collect();
    let needs_inherited = |source: &Source| matches!(source, Source::Directory(_) | Source::Template(_));
    if !variables.iter().filter_map(|variable| variable.source.as_ref()).any(needs_inherited) {
        variables.retain(|variable| !matches!(variable.source, Some(Source::Inherited(_))));
    }
    Ok(variables)
}

/// Converts an `envFrom` entry, which defines a variable for each key in a Secret or ConfigMap.
fn from_env_from_source(from: &Value) -> Option<EnvironmentVariable> {
    let prefix = from.get("prefix").and_then(Value::as_str).unwrap_or_default();
    Some(EnvironmentVariable {
        name: prefix.to_owned(),
        source: Some(Source::Directory(env_from_source(from)?.directory())),
        optional: is_optional(from, &OPTIONAL_SOURCES),
    })
}

/// Converts an `env` entry. Returns `None` for a variable that the controller sets.
fn from_env_entry(variable: &Value) -> Option<EnvironmentVariable> {
    let name = variable.get("name")?.as_str()?.to_owned();
    if RESERVED_VARIABLES.contains(&name.as_str()) {
        return None;
    }
    let source = match key_of(variable) {
        Some(KeyOf { mounted, key }) => Source::File(format!("{}/{key}", mounted.directory())),
        None if variable.get("valueFrom").is_some_and(|from| !from.is_null()) => Source::Inherited(true),
        None => {
            let value = variable.get("value").and_then(Value::as_str).unwrap_or_default().to_owned();
            let is_template = value.contains("$(") || value.contains("$$");
            if is_template { Source::Template(value) } else { Source::Value(value) }
        }
    };
    Some(EnvironmentVariable { name, source: Some(source), optional: is_optional(variable, &OPTIONAL_KEYS) })
}

fn key_of(variable: &Value) -> Option<KeyOf<'_>> {
    let named = |pointer| {
        let reference = variable.pointer(pointer)?;
        Some((reference.get("name")?.as_str()?, reference.get("key")?.as_str()?))
    };
    let secret = named("/valueFrom/secretKeyRef").map(|(name, key)| KeyOf { mounted: Mounted::Secret(name), key });
    let config_map = || named("/valueFrom/configMapKeyRef");
    secret.or_else(|| config_map().map(|(name, key)| KeyOf { mounted: Mounted::ConfigMap(name), key }))
}

fn env_from_source(from: &Value) -> Option<Mounted<'_>> {
    let named = |pointer| from.pointer(pointer).and_then(Value::as_str);
    named("/secretRef/name").map(Mounted::Secret).or_else(|| named("/configMapRef/name").map(Mounted::ConfigMap))
}

/// Validates a variable. The check is necessary because the name and the key in a reference become part of a path in
/// the pod.
fn check(variable: &Value) -> Result<(), SpecError> {
    let name = variable.get("name").and_then(Value::as_str).unwrap_or_default();
    if name.is_empty() || name.contains(['=', '\0']) {
        return Err(SpecError::VariableName { name: name.to_owned() });
    }
    let references = ["/valueFrom/secretKeyRef", "/valueFrom/configMapKeyRef"];
    if references.iter().all(|pointer| variable.pointer(pointer).is_none_or(Value::is_null)) {
        return Ok(());
    }
    let invalid = |what| SpecError::Reference { variable: name.to_owned(), what };
    let KeyOf { mounted, key } = key_of(variable).ok_or_else(|| invalid("`name` and `key` are required"))?;
    check_name(mounted).and_then(|()| check_key(key)).map_err(invalid)
}

fn check_from(from: &Value) -> Result<(), SpecError> {
    let prefix = from.get("prefix").and_then(Value::as_str).unwrap_or_default();
    if prefix.contains(['=', '\0']) {
        return Err(SpecError::VariableName { name: prefix.to_owned() });
    }
    let invalid = |what| SpecError::EnvironmentFrom { what };
    check_name(env_from_source(from).ok_or_else(|| invalid("`secretRef.name` or `configMapRef.name` is required"))?)
        .map_err(invalid)
}

/// Returns whether a list item has the name `name`.
pub(super) fn has_name(item: &Value, name: &str) -> bool {
    item.get("name").and_then(Value::as_str) == Some(name)
}

/// Returns the objects that the environment and the configuration of the Pulumi stack `stack` reference. The result
/// contains no duplicates and no optional references. Ignores an invalid environment, because the Workspace reports
/// the error.
pub fn references(spec: &WorkspaceSpec, stack: Option<&str>) -> Vec<Reference> {
    let environment = required(spec).unwrap_or_default();
    let configuration = stack.map(|stack| config::required(spec, stack)).unwrap_or_default();
    let mut known = BTreeSet::new();
    let all = environment.into_iter().chain(configuration);
    all.filter(|reference| known.insert(reference.object())).collect()
}

#[cfg(test)]
mod tests;

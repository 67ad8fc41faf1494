//! Derives the mounted Secrets and ConfigMaps, and the settings of a run, from the configuration of the Pulumi stacks
//! in a Workspace. All functions are pure.

use std::collections::{BTreeMap, BTreeSet};

use super::policy_packs;
use super::spec_error::SpecError;
use crate::api::auto::{ConfigItem, ConfigValueFrom, WorkspaceSpec};
use crate::api::names::{CONFIG_MAPS_DIRECTORY, SECRETS_DIRECTORY};
use crate::controller::references::{Reference, ReferencedKind};
use crate::rpc::proto;

const MAX_NAME: usize = 253;

/// Secret or ConfigMap that the environment or the configuration references.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Mounted<'a> {
    Secret(&'a str),
    ConfigMap(&'a str),
}

impl Mounted<'_> {
    /// Returns the kind and the name of the object, such as `Secret/aws`.
    pub(super) fn object(self) -> String {
        match self {
            Mounted::Secret(name) => format!("Secret/{name}"),
            Mounted::ConfigMap(name) => format!("ConfigMap/{name}"),
        }
    }

    /// Returns the mount path of the object.
    pub(super) fn directory(self) -> String {
        match self {
            Mounted::Secret(name) => format!("{SECRETS_DIRECTORY}/{name}"),
            Mounted::ConfigMap(name) => format!("{CONFIG_MAPS_DIRECTORY}/{name}"),
        }
    }

    /// Returns a reference to the object. `referrer` describes the field that contains the reference.
    pub(super) fn referred_to_by(self, referrer: String) -> Reference {
        let (kind, name) = match self {
            Mounted::Secret(name) => (ReferencedKind::Secret, name),
            Mounted::ConfigMap(name) => (ReferencedKind::ConfigMap, name),
        };
        Reference { kind, name: name.to_owned(), referrer, directory: self.directory() }
    }
}

/// Returns the Secrets and ConfigMaps that the configuration of any Pulumi stack references.
pub(super) fn mounted(spec: &WorkspaceSpec) -> BTreeSet<Mounted<'_>> {
    let items = spec.stacks.iter().flat_map(|stack| &stack.config);
    items.filter_map(|item| key_of(item.value_from.as_ref()?)).map(|(mounted, _)| mounted).collect()
}

/// Returns the objects that must exist before a run of the given Pulumi stack starts.
pub(super) fn required(spec: &WorkspaceSpec, stack: &str) -> Vec<Reference> {
    let stack = spec.stacks.iter().find(|found| found.name == stack);
    let items = stack.into_iter().flat_map(|stack| &stack.config);
    let required = items.filter_map(|item| {
        let (mounted, _) = key_of(item.value_from.as_ref()?)?;
        Some(mounted.referred_to_by(format!("config key {}", item.key)))
    });
    required.collect()
}

/// Returns the files in mounted Secrets and ConfigMaps that contain the configuration of any Pulumi stack. A change
/// to such a file triggers a run. Excludes environment variables and files in other volumes.
pub fn config_files(spec: &WorkspaceSpec) -> BTreeSet<String> {
    let items = spec.stacks.iter().flat_map(|stack| &stack.config);
    let keys = items.filter_map(|item| key_of(item.value_from.as_ref()?));
    keys.map(|(mounted, key)| format!("{}/{key}", mounted.directory())).collect()
}

/// Returns the complete settings of a Pulumi stack. If the spec does not define the stack, the settings contain only
/// the name and the policy packs.
pub fn settings(spec: &WorkspaceSpec, stack: &str) -> Result<proto::Settings, SpecError> {
    let policy_packs = policy_packs::of_run(spec)?;
    let Some(found) = spec.stacks.iter().find(|found| found.name == stack) else {
        return Ok(proto::Settings { stack: stack.to_owned(), policy_packs, ..proto::Settings::default() });
    };
    let config = found.config.iter().map(item).collect::<Result<_, _>>()?;
    Ok(proto::Settings { stack: stack.to_owned(), config, environments: found.environment.clone(), policy_packs })
}

/// Validates the configuration of all Pulumi stacks in a Workspace.
pub(super) fn check(spec: &WorkspaceSpec) -> Result<(), SpecError> {
    for stack in &spec.stacks {
        settings(spec, &stack.name)?;
        let mut sources: BTreeMap<&str, usize> = BTreeMap::new();
        for item in &stack.config {
            *sources.entry(item.key.as_str()).or_default() += 1;
        }
        if let Some((key, _)) = sources.into_iter().find(|(_, count)| *count > 1) {
            return Err(invalid(key, "duplicate key"));
        }
    }
    Ok(())
}

fn item(item: &ConfigItem) -> Result<proto::ConfigItem, SpecError> {
    check_config_key(item).map_err(|what| invalid(&format!("{:?}", item.key), what))?;
    let plain = proto::ConfigItem {
        key: item.key.clone(),
        path: item.path.unwrap_or_default(),
        secret: item.secret.unwrap_or_default(),
        ..proto::ConfigItem::default()
    };
    let Some(from) = &item.value_from else {
        return match item.value.is_null() {
            true => Err(invalid(&item.key, "value or valueFrom is required")),
            false => Ok(proto::ConfigItem { value: item.value.to_string(), ..plain }),
        };
    };
    let given =
        [from.env.is_some(), from.path.is_some(), from.secret_key_ref.is_some(), from.config_map_key_ref.is_some()];
    if !item.value.is_null() || given.iter().filter(|is_given| **is_given).count() != 1 {
        return Err(invalid(
            &item.key,
            "exactly one of value, valueFrom.env, valueFrom.path, valueFrom.secretKeyRef and valueFrom.configMapKeyRef is \
             required",
        ));
    }
    let from_there = proto::ConfigItem { json: from.json.unwrap_or_default(), ..plain };
    if let Some((mounted, key)) = key_of(from) {
        check_name(mounted).and_then(|()| check_key(key)).map_err(|what| invalid(&item.key, what))?;
        return Ok(proto::ConfigItem { file: format!("{}/{key}", mounted.directory()), ..from_there });
    }
    let (variable, file) = (from.env.clone().unwrap_or_default(), from.path.clone().unwrap_or_default());
    Ok(proto::ConfigItem { variable, file, ..from_there })
}

fn key_of(from: &ConfigValueFrom) -> Option<(Mounted<'_>, &str)> {
    let secret = from.secret_key_ref.as_ref().map(|secret| (Mounted::Secret(&secret.name), secret.key.as_str()));
    let config_map = || from.config_map_key_ref.as_ref().map(|map| (Mounted::ConfigMap(&map.name), map.key.as_str()));
    secret.or_else(config_map)
}

/// Validates a key from the settings file. The key has the form `<name>` or `<namespace>:<name>`. If the key is a path,
/// it continues with property names and indexes, which the agent parses.
fn check_config_key(item: &ConfigItem) -> Result<(), &'static str> {
    let key = item.key.as_str();
    if key.trim().is_empty() {
        return Err("key must not be empty");
    }
    if key.chars().any(char::is_control) {
        return Err("key must not contain control characters");
    }
    let is_padded = |part: &str| part.trim() != part;
    if is_padded(key) {
        return Err("key must not begin or end with white space");
    }
    let is_path = item.path.unwrap_or_default();
    let end = if is_path { key.find(['.', '[']).unwrap_or(key.len()) } else { key.len() };
    let (full_name, steps) = key.split_at(end);
    if let Some((namespace, name)) = full_name.split_once(':') {
        if namespace.is_empty() || (name.is_empty() && steps.is_empty()) {
            return Err("key must be `<name>` or `<namespace>:<name>`");
        }
        if namespace.contains(char::is_whitespace) {
            return Err("namespace of the key must not contain white space");
        }
    }
    // In the settings file, a colon followed by a space ends the key, even within a name.
    if full_name.split(':').any(is_padded) || key.contains(": ") {
        return Err("key must not contain white space next to a colon");
    }
    let is_padded_step = match steps.contains('"') {
        true => steps.contains("[\" ") || steps.contains(" \"]"),
        false => steps.split(['.', '[', ']']).any(is_padded),
    };
    if is_padded_step {
        return Err("names in the path of the key must not begin or end with white space");
    }
    Ok(())
}

fn invalid(key: &str, what: &'static str) -> SpecError {
    SpecError::Config { key: key.to_owned(), what }
}

/// Validates the name of a Secret or ConfigMap.
pub(super) fn check_name(mounted: Mounted<'_>) -> Result<(), &'static str> {
    let (name, what) = match mounted {
        Mounted::Secret(name) => (name, "`name` must be the name of a Secret"),
        Mounted::ConfigMap(name) => (name, "`name` must be the name of a ConfigMap"),
    };
    let is_valid = is_data_key(name) && !name.contains(|c: char| c == '_' || c.is_ascii_uppercase());
    if is_valid { Ok(()) } else { Err(what) }
}

/// Validates a key from a Secret or ConfigMap.
pub(super) fn check_key(key: &str) -> Result<(), &'static str> {
    if is_data_key(key) { Ok(()) } else { Err("`key` must be a key of a Secret or ConfigMap") }
}

/// Returns whether a Secret or ConfigMap can contain the given key. The rules for keys are less strict than the rules
/// for object names.
fn is_data_key(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    !name.is_empty() && name.len() <= MAX_NAME && name != "." && !name.starts_with("..") && name.chars().all(plain)
}

#[cfg(test)]
mod tests;

//! The settings file of a stack, `Pulumi.<stack>.yaml`, as a state: rebuilt from what is wanted, never edited.
//!
//! To the engine every top-level config value is a text (`5` and `"5"` are the same, and the YAML runtime makes a number of both;
//! other runtimes ask for the type they want), while values inside arrays and objects keep their JSON type. `pulumi config
//! set-all --json` writes bare numbers and booleans and quoted strings into the file, and so does [`rebuild`].
//! Numbers beyond 64 bits are kept to the precision of a double, as Kubernetes itself does.

use std::collections::BTreeMap;

use serde_json::Value;

use super::config_path::{self, Segment};
use super::document::{self, Mapping, Node, Scalar};

/// The keys by which the CLI finds the key that a stack's secrets are encrypted with.
const ENCRYPTION_HEADER: [&str; 3] = ["secretsprovider", "encryptedkey", "encryptionsalt"];
const CONFIG: &str = "config";
const ENVIRONMENT: &str = "environment";
/// An object with this one key holds an encrypted value.
const SECURE: &str = "secure";

/// Why a settings file cannot be rebuilt.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum SettingsError {
    #[error("the stack's settings file in the source is not valid: {reason}")]
    Original { reason: String },
    #[error("config key {key:?} is null; give it a value or remove it")]
    Null { key: String },
    #[error("config key {key:?} is not valid: {reason}")]
    Key { key: String, reason: String },
    #[error(
        "config key {key:?} holds an object with the one key \"secure\", which the CLI takes for an encrypted value; name it otherwise"
    )]
    Secure { key: String },
    #[error("cannot write the stack's settings file: {reason}")]
    Write { reason: String },
}

/// One value of the configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// `<name>` or `<namespace>:<name>`; of a path the name is its first step.
    pub key: String,
    pub value: Value,
    /// Whether the key is a path into a structure, such as `names[0]`.
    pub is_path: bool,
    /// Whether the CLI has to encrypt it.
    pub is_secret: bool,
}

/// What is to be in a settings file beside what the source's own file says.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wanted<'a> {
    pub config: &'a [Entry],
    /// Environments of Pulumi ESC that are imported, after those of the source's own file.
    pub environments: &'a [String],
    /// Keys of secrets in `config` whose encrypted values in the current file are still the right ones.
    pub kept_secrets: &'a [String],
}

/// The text of a settings file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rebuilt {
    pub text: String,
    /// Keys of the secrets that the CLI has yet to put in, because it alone can encrypt them: see
    /// [`super::arguments::set_secret`].
    pub missing_secrets: Vec<String>,
}

/// How the settings file is written: as the project file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// `Pulumi.<stack>.yaml`
    Yaml,
    /// `Pulumi.<stack>.yml`, beside a `Pulumi.yml`
    Yml,
    /// `Pulumi.<stack>.json`, beside a `Pulumi.json`
    Json,
}

/// The name of a stack's settings file, by the last segment of the stack's name.
pub fn file_name(stack: &str, format: Format) -> String {
    let name = stack.rsplit('/').next().unwrap_or(stack);
    let extension = match format {
        Format::Yaml => "yaml",
        Format::Yml => "yml",
        Format::Json => "json",
    };
    format!("Pulumi.{name}.{extension}")
}

/// The text of the settings file that is wanted: `original` (the source's own file) with `config` over it and the encryption
/// header kept from `current` (the file as the CLI left it), unless the original has one. A `current` that cannot be read has
/// no header: the CLI then takes it from the stack's state. The same
/// input gives the same text.
pub fn rebuild(
    original: Option<&str>,
    current: Option<&str>,
    project: &str,
    wanted: &Wanted<'_>,
    format: Format,
) -> Result<Rebuilt, SettingsError> {
    let Wanted { config, environments, kept_secrets } = *wanted;
    let mut document = read_original(original)?;
    if !ENCRYPTION_HEADER.iter().any(|name| find(&document, name).is_some()) {
        keep_header(&mut document, current);
    }
    let of = if kept_secrets.is_empty() { Mapping::new() } else { config_in(current) };
    let mut secrets = Secrets { of, kept: kept_secrets, missing: Vec::new() };
    let values = wanted_config(project, config, &mut secrets)?;
    if !values.is_empty() {
        merge_config(&mut document, project, values)?;
    }
    set_paths(&mut document, project, config, &mut secrets)?;
    import(&mut document, environments)?;
    let text = match format {
        Format::Yaml | Format::Yml => document::to_yaml(&document),
        Format::Json => {
            document::to_json(&document).map_err(|error| SettingsError::Write { reason: error.to_string() })?
        }
    };
    Ok(Rebuilt { text, missing_secrets: secrets.missing })
}

/// The encrypted values that are known.
struct Secrets<'a> {
    of: Mapping,
    /// The keys of those that are right.
    kept: &'a [String],
    /// The keys of those that are not known.
    missing: Vec<String>,
}

impl Secrets<'_> {
    /// The encrypted value of a key, which is at this place, if it is known.
    fn find(&mut self, key: &String, root: &str, path: &[Segment]) -> Option<Node> {
        let found = config_path::get(&self.of, root, path).filter(|node| self.kept.contains(key) && is_encrypted(node));
        let found = found.cloned();
        if found.is_none() {
            self.missing.push(key.clone());
        }
        found
    }
}

/// Whether all that is in a node is encrypted.
fn is_encrypted(node: &Node) -> bool {
    match node {
        Node::Mapping(entries) if entries.iter().any(|(key, _)| key.text == SECURE) => entries.len() == 1,
        Node::Mapping(entries) => entries.iter().all(|(_, value)| is_encrypted(value)),
        Node::Sequence(values) => values.iter().all(is_encrypted),
        Node::Scalar(_) => false,
    }
}

/// The configuration in a settings file, by the keys' full names; nothing of one that cannot be read.
fn config_in(text: Option<&str>) -> Mapping {
    let Ok(Some(Node::Mapping(document))) = document::parse(text.unwrap_or_default()) else { return Mapping::new() };
    match find(&document, CONFIG) {
        Some(Node::Mapping(config)) => config.clone(),
        _ => Mapping::new(),
    }
}

fn read_original(text: Option<&str>) -> Result<Mapping, SettingsError> {
    match document::parse(text.unwrap_or_default()).map_err(|reason| SettingsError::Original { reason })? {
        None => Ok(Mapping::new()),
        Some(Node::Mapping(mapping)) => Ok(mapping),
        Some(Node::Scalar(scalar)) if scalar.is_null() => Ok(Mapping::new()),
        Some(_) => Err(SettingsError::Original { reason: "it is not a mapping of keys to values".to_owned() }),
    }
}

fn find<'a>(document: &'a Mapping, name: &str) -> Option<&'a Node> {
    document.iter().find(|(key, _)| key.text == name).map(|(_, value)| value)
}

fn keep_header(document: &mut Mapping, current: Option<&str>) {
    let Ok(Some(Node::Mapping(current))) = document::parse(current.unwrap_or_default()) else {
        return;
    };
    let kept = ENCRYPTION_HEADER.iter().filter_map(|name| {
        find(&current, name).map(|value| (Scalar { text: (*name).to_owned(), plain: true }, value.clone()))
    });
    document.splice(..0, kept);
}

/// The config whose keys are names by their full names, sorted. A secret that is not known has no value.
fn wanted_config(
    project: &str,
    config: &[Entry],
    secrets: &mut Secrets<'_>,
) -> Result<BTreeMap<String, Option<Node>>, SettingsError> {
    let mut wanted = BTreeMap::new();
    for entry in config {
        let Entry { key, value, is_secret, is_path } = entry;
        let refused = |reason: String| SettingsError::Key { key: key.clone(), reason };
        if value.is_null() {
            return Err(SettingsError::Null { key: key.clone() });
        }
        if looks_encrypted(value) {
            return Err(SettingsError::Secure { key: key.clone() });
        }
        if *is_path {
            continue;
        }
        let name = full_name(project, key).map_err(refused)?;
        let node = if *is_secret { secrets.find(key, &name, &[]) } else { Some(Node::from(value)) };
        if wanted.insert(name, node).is_some() {
            return Err(refused("it is given twice, once with its namespace".to_owned()));
        }
    }
    Ok(wanted)
}

/// Puts the values whose keys are paths where they belong, after the others. A list grows in the order of the keys.
fn set_paths(
    document: &mut Mapping,
    project: &str,
    config: &[Entry],
    secrets: &mut Secrets<'_>,
) -> Result<(), SettingsError> {
    let mut paths = BTreeMap::new();
    for entry in config.iter().filter(|entry| entry.is_path) {
        let refused = |reason: String| SettingsError::Key { key: entry.key.clone(), reason };
        let (root, path) = full_path(project, &entry.key).map_err(refused)?;
        if entry.is_secret && (entry.value.is_object() || entry.value.is_array()) {
            return Err(refused("a secret at a path is a text, not an object or a list".to_owned()));
        }
        if paths.insert((root, path), entry).is_some() {
            return Err(refused("it is given twice".to_owned()));
        }
    }
    if paths.is_empty() {
        return Ok(());
    }
    let within = config_of(document)?;
    for ((root, path), entry) in paths {
        let refused = |reason: String| SettingsError::Key { key: entry.key.clone(), reason };
        let node = match entry.is_secret {
            // Its place is kept until the CLI has put it there.
            true => secrets.find(&entry.key, &root, &path).unwrap_or_else(|| Node::Scalar(Scalar::string(""))),
            false => at_path(&entry.value, path.is_empty()),
        };
        config_path::set(within, &root, &path, node).map_err(refused)?;
    }
    Ok(())
}

/// The value as the CLI writes it at a path: inside of structures it reads texts as what they look like.
fn at_path(value: &Value, is_top: bool) -> Node {
    match value {
        Value::String(text) if !is_top && (text == "true" || text == "false") => {
            Node::from(&Value::Bool(text == "true"))
        }
        Value::String(text) if !is_top => match text.parse::<i64>() {
            Ok(number) if number.to_string() == *text => Node::from(&Value::from(number)),
            _ => Node::from(value),
        },
        _ => Node::from(value),
    }
}

/// The full name of the key that a path begins with, and the steps from there.
fn full_path(project: &str, key: &str) -> Result<(String, Vec<Segment>), String> {
    let end = key.find(['.', '[']).unwrap_or(key.len());
    let (namespace, path) = match key.split_once(':').filter(|(namespace, _)| namespace.len() < end) {
        None => (project, key),
        Some((namespace, path)) => (namespace, path.strip_prefix("config:").unwrap_or(path)),
    };
    let segments = config_path::parse(path)?;
    match segments.split_first() {
        Some((Segment::Key(name), rest)) => Ok((full_name(project, &format!("{namespace}:{name}"))?, rest.to_vec())),
        _ => Err("it names no key".to_owned()),
    }
}

/// The key with its namespace: `key` is `<project>:key`, and `<namespace>:config:<key>` is an old form of `<namespace>:<key>`.
fn full_name(project: &str, key: &str) -> Result<String, String> {
    let (namespace, name) = match key.split_once(':') {
        None => (project, key),
        Some((namespace, name)) => (namespace, name.strip_prefix("config:").unwrap_or(name)),
    };
    if namespace.is_empty() || name.is_empty() || name.contains(':') {
        return Err("a key is `<name>` or `<namespace>:<name>`".to_owned());
    }
    Ok(format!("{namespace}:{name}"))
}

fn looks_encrypted(value: &Value) -> bool {
    match value {
        Value::Object(values) if values.len() == 1 && values.get(SECURE).is_some_and(Value::is_string) => true,
        Value::Object(values) => values.values().any(looks_encrypted),
        Value::Array(values) => values.iter().any(looks_encrypted),
        _ => false,
    }
}

/// Puts the wanted values over those of the document.
fn merge_config(
    document: &mut Mapping,
    project: &str,
    wanted: BTreeMap<String, Option<Node>>,
) -> Result<(), SettingsError> {
    let own = |key: &Scalar| full_name(project, &key.text).is_ok_and(|name| wanted.contains_key(&name));
    let config = config_of(document)?;
    config.retain(|(key, _)| !own(key));
    let known = wanted.into_iter().filter_map(|(name, value)| Some((Scalar { text: name, plain: true }, value?)));
    config.extend(known);
    Ok(())
}

/// The configuration in a document; it is made where there is none.
fn config_of(document: &mut Mapping) -> Result<&mut Mapping, SettingsError> {
    let position = document.iter().position(|(key, _)| key.text == CONFIG).unwrap_or(document.len());
    if position == document.len() {
        document.push((Scalar { text: CONFIG.to_owned(), plain: true }, Node::Mapping(Mapping::new())));
    }
    let config = document.get_mut(position).map(|(_, config)| config);
    if let Some(node) = config {
        if matches!(node, Node::Scalar(scalar) if scalar.is_null()) {
            *node = Node::Mapping(Mapping::new());
        }
        if let Node::Mapping(entries) = node {
            return Ok(entries);
        }
    }
    Err(SettingsError::Original { reason: "its `config` is not a mapping of keys to values".to_owned() })
}

/// Adds environments to those that the document imports: a list of names, or the list `imports` of a definition in place.
fn import(document: &mut Mapping, environments: &[String]) -> Result<(), SettingsError> {
    if environments.is_empty() {
        return Ok(());
    }
    let invalid = || SettingsError::Original { reason: "its `environment` is no list of names".to_owned() };
    let mut within = document;
    let mut name = ENVIRONMENT;
    if within.iter().any(|(key, value)| key.text == ENVIRONMENT && matches!(value, Node::Mapping(_))) {
        let definition = within.iter_mut().find(|(key, _)| key.text == ENVIRONMENT).map(|(_, value)| value);
        let Some(Node::Mapping(definition)) = definition else { return Err(invalid()) };
        (within, name) = (definition, "imports");
    }
    if find(within, name).is_none() {
        within.push((Scalar { text: name.to_owned(), plain: true }, Node::Sequence(Vec::new())));
    }
    let list = within.iter_mut().find(|(key, _)| key.text == name).map(|(_, value)| value);
    let Some(Node::Sequence(list)) = list else { return Err(invalid()) };
    for environment in environments {
        let is_it = |node: &Node| matches!(node, Node::Scalar(scalar) if scalar.text == *environment);
        if !list.iter().any(is_it) {
            list.push(Node::Scalar(Scalar::string(environment)));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;

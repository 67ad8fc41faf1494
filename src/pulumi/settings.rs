//! A stack's settings file, `Pulumi.<stack>.yaml`. [`rebuild`] builds the complete file from the desired configuration.
//!
//! The engine treats every top-level config value as a string, so `5` and `"5"` are equal. The YAML runtime converts
//! both values to a number. The other runtimes convert a value to the type that the program requests. Values inside
//! arrays and objects keep their JSON type. Like `pulumi config set-all --json`, [`rebuild`] writes numbers and
//! booleans without quotes, and strings in quotes. Numbers that do not fit in 64 bits have the precision of a double,
//! as in Kubernetes.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::config_path::{self, Segment};
use super::document::{self, Mapping, Node, Scalar};

/// Keys in the settings file that identify the encryption key for the stack's secrets.
const ENCRYPTION_HEADER: [&str; 3] = [SECRETS_PROVIDER, "encryptedkey", "encryptionsalt"];
const SECRETS_PROVIDER: &str = "secretsprovider";
/// Secrets provider of a settings file that contains only an encryption salt.
const PASSPHRASE: &str = "passphrase";
const CONFIG: &str = "config";
const ENVIRONMENT: &str = "environment";
/// The only key of an object that represents an encrypted value.
const SECURE: &str = "secure";
/// Config key that contains the stack tags. The value is an object that contains only strings. The CLI adds the tags to
/// the stack in Pulumi Cloud.
pub const TAGS: &str = "pulumi:tags";

/// The reason why rebuilding a settings file failed.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum SettingsError {
    #[error("invalid settings file of the stack in the source: {reason}")]
    Original { reason: String },
    #[error("config key {key:?} is null: set a value or remove the key")]
    Null { key: String },
    #[error("invalid config key {key:?}: {reason}")]
    Key { key: String, reason: String },
    #[error(
        "config key {key:?} contains an object whose only key is \"secure\"; the CLI treats such an object as an encrypted value: rename the key \"secure\""
    )]
    Secure { key: String },
    #[error("failed to write the settings file of the stack: {reason}")]
    Write { reason: String },
}

/// One configuration value of a stack.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// Config key in the form `<name>` or `<namespace>:<name>`. In a path, further segments follow the name.
    pub key: String,
    pub value: Value,
    /// Whether the key is a path into a structure, such as `names[0]`.
    pub is_path: bool,
    /// Whether the CLI must encrypt the value.
    pub is_secret: bool,
}

/// Desired content of a settings file, in addition to the content from the source.
#[derive(Clone, Copy, Debug, Default)]
pub struct Desired<'a> {
    pub config: &'a [Entry],
    /// Pulumi ESC environments to import after the environments that the settings file in the source imports.
    pub environments: &'a [String],
    /// Keys of the secrets in `config` whose encrypted values in the current file are still valid.
    pub kept_secrets: &'a [String],
    /// Names and values of stack tags. Tags from the configuration take precedence.
    pub tags: &'a [(String, String)],
    /// Tags in the project file. If the settings file contains tags, the CLI ignores the tags in the project file.
    pub project_tags: Option<&'a Value>,
}

/// A rebuilt settings file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rebuilt {
    pub text: String,
    /// Keys of secrets that the caller must set with the CLI, because only the CLI can encrypt values: see
    /// [`super::arguments::set_secret`].
    pub missing_secrets: Vec<String>,
}

/// Format of the settings file, which equals the format of the project file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// `Pulumi.<stack>.yaml`
    Yaml,
    /// `Pulumi.<stack>.yml`, for a project file `Pulumi.yml`.
    Yml,
    /// `Pulumi.<stack>.json`, for a project file `Pulumi.json`.
    Json,
}

/// Returns the name of a stack's settings file. The file name contains only the last segment of the stack name.
pub fn file_name(stack: &str, format: Format) -> String {
    let name = stack.rsplit('/').next().unwrap_or(stack);
    let extension = match format {
        Format::Yaml => "yaml",
        Format::Yml => "yml",
        Format::Json => "json",
    };
    format!("Pulumi.{name}.{extension}")
}

/// Builds the settings file from `original` (the settings file in the source) and the desired content. The desired
/// content takes precedence. `current` is the settings file that the CLI wrote last. If `original` has no encryption
/// header, uses the header of `current`. If neither file has a header, the result has no header, and the CLI reads the
/// secrets provider from the stack's state. The result is deterministic.
pub fn rebuild(
    original: Option<&str>,
    current: Option<&str>,
    project: &str,
    desired: &Desired<'_>,
    format: Format,
) -> Result<Rebuilt, SettingsError> {
    let Desired { config, environments, kept_secrets, .. } = *desired;
    let mut document = read_original(original)?;
    let current = read_current(current);
    if !ENCRYPTION_HEADER.iter().any(|name| find(&document, name).is_some()) {
        keep_header(&mut document, &current);
    }
    // Another encryption key cannot decrypt the values in the current file.
    let is_same_key = encryption_key(&document) == encryption_key(&current);
    let of = if kept_secrets.is_empty() || !is_same_key { Mapping::new() } else { config_in(&current) };
    let mut secrets = Secrets { of, kept: kept_secrets, missing: Vec::new() };
    let values = desired_config(project, config, &mut secrets)?;
    if !values.is_empty() {
        merge_config(&mut document, project, values)?;
    }
    set_paths(&mut document, project, config, &mut secrets)?;
    add_tags(&mut document, project, desired)?;
    add_environments(&mut document, environments)?;
    let text = match format {
        Format::Yaml | Format::Yml => document::to_yaml(&document),
        Format::Json => {
            document::to_json(&document).map_err(|error| SettingsError::Write { reason: error.to_string() })?
        }
    };
    Ok(Rebuilt { text, missing_secrets: secrets.missing })
}

/// Encryption of a settings file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Encryption {
    /// Secrets provider of the file: a URL or `passphrase`, or `None` if the file specifies none.
    pub provider: Option<String>,
    /// Whether the file contains encrypted values.
    pub has_secrets: bool,
}

/// Returns the encryption of the settings file in the source.
pub fn encryption(original: Option<&str>) -> Result<Encryption, SettingsError> {
    let document = read_original(original)?;
    let [provider, _, salt] = encryption_key(&document);
    let provider = provider.or_else(|| salt.map(|_| PASSPHRASE)).map(str::to_owned);
    let has_secrets = config_in(&document).iter().any(|(_, value)| has_encrypted(value));
    Ok(Encryption { provider, has_secrets })
}

fn has_encrypted(node: &Node) -> bool {
    match node {
        Node::Mapping(entries) => entries.iter().any(|(key, value)| key.text == SECURE || has_encrypted(value)),
        Node::Sequence(values) => values.iter().any(has_encrypted),
        Node::Scalar(_) => false,
    }
}

/// Returns the keys of the secrets in `config` whose encrypted values a settings file contains.
pub fn encrypted_secrets(text: &str, project: &str, config: &[Entry]) -> Vec<String> {
    let config_in_file = config_in(&read_current(Some(text)));
    let is_in_file = |entry: &&Entry| {
        let place = match entry.is_path {
            true => full_path(project, &entry.key),
            false => full_name(project, &entry.key).map(|name| (name, Vec::new())),
        };
        place.is_ok_and(|(root, path)| config_path::get(&config_in_file, &root, &path).is_some_and(is_encrypted))
    };
    config.iter().filter(|entry| entry.is_secret).filter(is_in_file).map(|entry| entry.key.clone()).collect()
}

/// Returns the names of the config keys in the namespace of the project that a settings file or `config` contains.
pub fn names_in_project(text: &str, project: &str, config: &[Entry]) -> BTreeSet<String> {
    let in_file = config_in(&read_current(Some(text)));
    let in_file = in_file.iter().filter_map(|(key, _)| full_name(project, &key.text).ok());
    let in_config = config.iter().filter_map(|entry| match entry.is_path {
        true => full_path(project, &entry.key).map(|(root, _)| root).ok(),
        false => full_name(project, &entry.key).ok(),
    });
    let names = in_file.chain(in_config);
    names.filter_map(|name| Some(name.strip_prefix(project)?.strip_prefix(':')?.to_owned())).collect()
}

/// Encrypted values in the current settings file.
struct Secrets<'a> {
    of: Mapping,
    /// Keys whose encrypted values are still valid.
    kept: &'a [String],
    /// Keys of the secrets without a valid encrypted value.
    missing: Vec<String>,
}

impl Secrets<'_> {
    /// Returns the encrypted value of `key` at `path` below `root`. If there is no valid encrypted value, records the
    /// key as missing.
    fn find(&mut self, key: &String, root: &str, path: &[Segment]) -> Option<Node> {
        let found = config_path::get(&self.of, root, path).filter(|node| self.kept.contains(key) && is_encrypted(node));
        let found = found.cloned();
        if found.is_none() {
            self.missing.push(key.clone());
        }
        found
    }
}

/// Returns whether all values in a node are encrypted.
fn is_encrypted(node: &Node) -> bool {
    match node {
        Node::Mapping(entries) if entries.iter().any(|(key, _)| key.text == SECURE) => entries.len() == 1,
        Node::Mapping(entries) => entries.iter().all(|(_, value)| is_encrypted(value)),
        Node::Sequence(values) => values.iter().all(is_encrypted),
        Node::Scalar(_) => false,
    }
}

/// Returns the configuration from a settings file, or an empty mapping if the file contains none.
fn config_in(document: &Mapping) -> Mapping {
    match find(document, CONFIG) {
        Some(Node::Mapping(config)) => config.clone(),
        _ => Mapping::new(),
    }
}

/// Parses the settings file that the CLI wrote last. Returns an empty mapping if the file is missing or invalid.
fn read_current(text: Option<&str>) -> Mapping {
    match document::parse(text.unwrap_or_default()) {
        Ok(Some(Node::Mapping(document))) => document,
        _ => Mapping::new(),
    }
}

fn read_original(text: Option<&str>) -> Result<Mapping, SettingsError> {
    match document::parse(text.unwrap_or_default()).map_err(|reason| SettingsError::Original { reason })? {
        None => Ok(Mapping::new()),
        Some(Node::Mapping(mapping)) => Ok(mapping),
        Some(Node::Scalar(scalar)) if scalar.is_null() => Ok(Mapping::new()),
        Some(_) => Err(SettingsError::Original { reason: "not a mapping".to_owned() }),
    }
}

fn find<'a>(document: &'a Mapping, name: &str) -> Option<&'a Node> {
    document.iter().find(|(key, _)| key.text == name).map(|(_, value)| value)
}

/// Returns the values of the encryption header that identify the encryption key. Omits a secrets provider that is not a
/// URL, such as `default`, because the CLI removes such a value from the file.
fn encryption_key(document: &Mapping) -> [Option<&str>; 3] {
    ENCRYPTION_HEADER.map(|name| match find(document, name)? {
        Node::Scalar(scalar) if name != SECRETS_PROVIDER || scalar.text.contains("://") => Some(scalar.text.as_str()),
        _ => None,
    })
}

fn keep_header(document: &mut Mapping, current: &Mapping) {
    let kept = ENCRYPTION_HEADER.iter().filter_map(|name| Some((Scalar::plain(*name), find(current, name)?.clone())));
    document.splice(..0, kept);
}

/// Returns the entries whose keys are names instead of paths, sorted by full name. If a secret has no valid encrypted
/// value, its value is `None`.
fn desired_config(
    project: &str,
    config: &[Entry],
    secrets: &mut Secrets<'_>,
) -> Result<BTreeMap<String, Option<Node>>, SettingsError> {
    let mut desired = BTreeMap::new();
    for entry in config {
        let Entry { key, value, is_secret, is_path } = entry;
        let invalid = |reason: String| SettingsError::Key { key: key.clone(), reason };
        if value.is_null() {
            return Err(SettingsError::Null { key: key.clone() });
        }
        if looks_encrypted(value) {
            return Err(SettingsError::Secure { key: key.clone() });
        }
        if *is_path {
            continue;
        }
        let name = full_name(project, key).map_err(invalid)?;
        let node = if *is_secret { secrets.find(key, &name, &[]) } else { Some(Node::from(value)) };
        if desired.insert(name, node).is_some() {
            return Err(invalid("set twice, with and without its namespace".to_owned()));
        }
    }
    Ok(desired)
}

/// Sets the entries whose keys are paths. The caller must set all other entries first. Sets the paths in sorted order,
/// so that list items are appended in index order.
fn set_paths(
    document: &mut Mapping,
    project: &str,
    config: &[Entry],
    secrets: &mut Secrets<'_>,
) -> Result<(), SettingsError> {
    let mut paths = BTreeMap::new();
    for entry in config.iter().filter(|entry| entry.is_path) {
        let invalid = |reason: String| SettingsError::Key { key: entry.key.clone(), reason };
        let (root, path) = full_path(project, &entry.key).map_err(invalid)?;
        if entry.is_secret && (entry.value.is_object() || entry.value.is_array()) {
            return Err(invalid("a secret at a path must be a string, not an object or a list".to_owned()));
        }
        if paths.insert((root, path), entry).is_some() {
            return Err(invalid("set twice".to_owned()));
        }
    }
    if paths.is_empty() {
        return Ok(());
    }
    let within = config_of(document)?;
    for ((root, path), entry) in paths {
        let invalid = |reason: String| SettingsError::Key { key: entry.key.clone(), reason };
        let node = match entry.is_secret {
            // The CLI replaces this empty value with the encrypted value.
            true => secrets.find(&entry.key, &root, &path).unwrap_or_else(|| Node::Scalar(Scalar::string(""))),
            false => at_path(&entry.value, path.is_empty()),
        };
        config_path::set(within, &root, &path, node).map_err(invalid)?;
    }
    Ok(())
}

/// Converts a value at a path in the same way as the CLI. Inside objects and lists, the CLI parses strings as booleans
/// and integers.
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

/// Returns the key at the start of a path, with its namespace, and the remaining segments.
fn full_path(project: &str, key: &str) -> Result<(String, Vec<Segment>), String> {
    let end = key.find(['.', '[']).unwrap_or(key.len());
    let (namespace, path) = match key.split_once(':').filter(|(namespace, _)| namespace.len() < end) {
        None => (project, key),
        Some((namespace, path)) => (namespace, path.strip_prefix("config:").unwrap_or(path)),
    };
    let segments = config_path::parse(path)?;
    match segments.split_first() {
        Some((Segment::Key(name), rest)) => Ok((full_name(project, &format!("{namespace}:{name}"))?, rest.to_vec())),
        _ => Err("must begin with a name".to_owned()),
    }
}

/// Returns the key with its namespace. A key without a namespace is a short form of `<project>:<key>`, and
/// `<namespace>:config:<key>` is an old form of `<namespace>:<key>`.
fn full_name(project: &str, key: &str) -> Result<String, String> {
    let (namespace, name) = match key.split_once(':') {
        None => (project, key),
        Some((namespace, name)) => (namespace, name.strip_prefix("config:").unwrap_or(name)),
    };
    if namespace.is_empty() || name.is_empty() || name.contains(':') {
        return Err("must have the form `<name>` or `<namespace>:<name>`".to_owned());
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

/// Replaces the values in the document with the desired values.
fn merge_config(
    document: &mut Mapping,
    project: &str,
    desired: BTreeMap<String, Option<Node>>,
) -> Result<(), SettingsError> {
    let own = |key: &Scalar| full_name(project, &key.text).is_ok_and(|name| desired.contains_key(&name));
    let config = config_of(document)?;
    config.retain(|(key, _)| !own(key));
    let known = desired.into_iter().filter_map(|(name, value)| Some((Scalar { text: name, plain: true }, value?)));
    config.extend(known);
    Ok(())
}

/// Returns the configuration in a document. Creates an empty configuration if the document contains none.
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
    Err(SettingsError::Original { reason: "`config` is not a mapping".to_owned() })
}

/// Adds tags to the existing tags. The existing tags are the document's tags, or the project's tags if the document
/// contains no tags. Does not add tags if Pulumi ESC can manage the configuration. Does not change existing tags that
/// are not an object of strings, for example encrypted tags. The CLI reports invalid tags.
fn add_tags(document: &mut Mapping, project: &str, desired: &Desired<'_>) -> Result<(), SettingsError> {
    if desired.tags.is_empty() || can_be_managed_by_esc(document) {
        return Ok(());
    }
    let config = config_of(document)?;
    let is_tags = |key: &Scalar| full_name(project, &key.text).is_ok_and(|name| name == TAGS);
    let current = config.iter().find(|(key, _)| is_tags(key)).map(|(_, value)| value.clone());
    let of_project = || desired.project_tags.filter(|tags| !tags.is_null()).map(Node::from);
    let Node::Mapping(mut tags) = current.or_else(of_project).unwrap_or_else(|| Node::Mapping(Mapping::new())) else {
        return Ok(());
    };
    if !is_object_of_strings(&tags) {
        return Ok(());
    }
    for (name, value) in desired.tags {
        if find(&tags, name).is_none() {
            tags.push((Scalar::string(name), Node::Scalar(Scalar::string(value))));
        }
    }
    match config.iter_mut().find(|(key, _)| is_tags(key)) {
        Some((_, value)) => *value = Node::Mapping(tags),
        None => config.push((Scalar::plain(TAGS), Node::Mapping(tags))),
    }
    Ok(())
}

/// Returns whether the document can be the settings file of a stack whose configuration Pulumi ESC manages: it contains
/// the definition of an environment and no configuration. The CLI rejects configuration in such a file, also tags.
fn can_be_managed_by_esc(document: &Mapping) -> bool {
    let has_definition =
        document.iter().any(|(key, value)| key.text == ENVIRONMENT && matches!(value, Node::Mapping(_)));
    has_definition && config_in(document).is_empty()
}

/// Returns whether an object contains only strings. An object whose only key is `secure` is an encrypted value.
fn is_object_of_strings(entries: &Mapping) -> bool {
    let is_secret = entries.len() == 1 && entries.iter().all(|(key, _)| key.text == SECURE);
    let is_string = |scalar: &Scalar| {
        let has_other_type = scalar.is_null() || serde_json::from_str::<Value>(&scalar.text).is_ok();
        !(scalar.plain && has_other_type)
    };
    !is_secret && entries.iter().all(|(_, value)| matches!(value, Node::Scalar(scalar) if is_string(scalar)))
}

/// Adds environments to a document's field `environment`. The field contains a list of names, or an inline definition
/// with the list `imports`.
fn add_environments(document: &mut Mapping, environments: &[String]) -> Result<(), SettingsError> {
    if environments.is_empty() {
        return Ok(());
    }
    let invalid = || SettingsError::Original { reason: "`environment` is not a list of names".to_owned() };
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

//! Resolves the configuration values of a run, and maintains the settings file of the stack. The agent rebuilds this
//! file if the settings file in the source or the received settings change. The new file omits settings from earlier
//! requests that the received settings no longer contain.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use zeroize::Zeroizing;

use super::durable;
use super::environment::{self, Environment};
use super::layout::Layout;
use super::refusal::Refusal;
use super::source::CurrentSource;
use crate::pulumi::project::{Project, ProjectError};
use crate::pulumi::settings::{self, Encryption, Entry, SettingsError};
use crate::rpc::proto;

#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    #[error(transparent)]
    Project(#[from] ProjectError),
    #[error(transparent)]
    Rebuild(#[from] SettingsError),
    #[error("failed to {action} {}: {source}", path.display())]
    File { action: &'static str, path: PathBuf, source: io::Error },
}

/// Record of the last settings that the agent has written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Written {
    /// ID of the unpacked source that contains the settings file.
    tree: String,
    stack: String,
    digest: String,
    /// Path of the settings file, relative to the project.
    file: PathBuf,
    /// Digest of all configuration values, including values from Secrets and ConfigMaps.
    #[serde(default)]
    values: String,
    /// Digests of the secret values, with the configuration keys as map keys.
    #[serde(default)]
    secrets: BTreeMap<String, String>,
    /// Configuration keys of the secret values that the CLI has not yet encrypted and written to the file.
    #[serde(default)]
    missing_secrets: Vec<String>,
    /// Tags of the Pulumi stack. The digest of the settings does not include the tags.
    #[serde(default)]
    tags: Vec<(String, String)>,
}

/// Desired settings of a stack.
#[derive(Clone, Copy, Debug)]
pub struct Desired<'a> {
    pub stack: &'a str,
    /// Digest of the received settings.
    pub digest: &'a str,
    pub config: &'a [Entry],
    /// Pulumi ESC environments to import.
    pub environments: &'a [String],
    /// Tags of the Pulumi stack.
    pub tags: &'a [(String, String)],
}

impl Written {
    fn of(desired: &Desired<'_>, current_source: &CurrentSource, file: PathBuf) -> Written {
        Written {
            tree: current_source.tree.clone(),
            stack: desired.stack.to_owned(),
            digest: desired.digest.to_owned(),
            file,
            values: digest(desired.config.iter()),
            secrets: desired
                .config
                .iter()
                .filter(|entry| entry.is_secret)
                .map(|entry| (entry.key.clone(), digest([entry])))
                .collect(),
            missing_secrets: Vec::new(),
            tags: desired.tags.to_vec(),
        }
    }

    /// Returns the configuration keys of the secret values that are already in the file and have not changed. Returns
    /// no keys for another stack, because its file can contain earlier values.
    fn kept_secrets(&self, now: &Written) -> Vec<String> {
        if self.stack != now.stack {
            return Vec::new();
        }
        let is_same =
            |key: &&String| self.secrets.get(*key) == now.secrets.get(*key) && !self.missing_secrets.contains(key);
        now.secrets.keys().filter(is_same).cloned().collect()
    }
}

/// Returns the digest of configuration values. A keyed hash is unnecessary, because the pod also contains the plain
/// values, on the same volume or in a mounted Secret.
fn digest<'a>(config: impl IntoIterator<Item = &'a Entry>) -> String {
    let mut hasher = Sha256::new();
    for Entry { key, value, is_path, is_secret } in config {
        let entry = serde_json::json!([key, value, is_path, is_secret]).to_string();
        hasher.update((entry.len() as u64).to_be_bytes());
        hasher.update(entry);
    }
    hex::encode(hasher.finalize())
}

/// Maintains the stack settings files in the current source.
pub struct Settings {
    layout: Layout,
    written: Mutex<Option<Written>>,
    /// Stack whose secrets provider the agent has compared with the Stack's, and this secrets provider.
    checked_provider: Mutex<Option<(String, String)>>,
}

impl Settings {
    /// Loads the record that a previous agent has written.
    pub fn open(layout: Layout) -> Self {
        let written = std::fs::read(layout.settings().join("written.json")).ok();
        let written = written.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        Settings { layout, written: Mutex::new(written), checked_provider: Mutex::default() }
    }

    /// Returns the digest of the last settings that the agent has written, or an empty string if the agent has not
    /// written any settings.
    pub fn digest(&self) -> String {
        self.written().as_ref().map(|written| written.digest.clone()).unwrap_or_default()
    }

    /// Writes the settings file, unless the file is up to date. Returns the keys of the secret values that the CLI must
    /// write to the file. The caller must confirm each of these keys with [`Settings::record_secret`].
    pub fn apply(&self, desired: &Desired<'_>, current_source: &CurrentSource) -> Result<Vec<String>, ApplyError> {
        let mut written = self.written();
        let project = Project::read(&self.layout.workspace())?;
        let now = Written::of(desired, current_source, project.settings_path(desired.stack));
        let path = self.layout.workspace().join(&now.file);
        if written.as_ref() == Some(&now) && path.is_file() {
            return Ok(Vec::new());
        }
        let original = self.original(&current_source.tree, &now.file, &path)?;
        let is_same_tree = written.as_ref().is_some_and(|written| written.tree == current_source.tree);
        let current = self.current(&now.file, &path, is_same_tree);
        let kept_secrets = written.as_ref().map(|before| before.kept_secrets(&now)).unwrap_or_default();
        let format = project.settings_format();
        let (original, current) = (original.as_deref(), current.as_deref());
        let Desired { config, environments, tags, .. } = *desired;
        let project_tags = Some(&project.tags);
        let content = settings::Desired { config, environments, kept_secrets: &kept_secrets, tags, project_tags };
        let rebuilt = settings::rebuild(original, current, &project.name, &content, format)?;
        // Removes the record before the write. If the agent exits during the write, the content of the settings file is
        // unknown.
        self.record(&mut written, None)?;
        if let Some(directory) = path.parent() {
            std::fs::create_dir_all(directory).map_err(failed("create", directory))?;
        }
        durable::write_atomically(&path, rebuilt.text.as_bytes()).map_err(failed("write", &path))?;
        let missing_secrets = rebuilt.missing_secrets.clone();
        self.record(&mut written, Some(Written { missing_secrets, ..now }))?;
        Ok(rebuilt.missing_secrets)
    }

    /// Records that the settings file contains the encrypted value of a secret.
    pub fn record_secret(&self, key: &str) -> Result<(), ApplyError> {
        self.record_secrets(|missing| missing == key)
    }

    /// Records all secrets whose encrypted values the settings file contains, and returns their keys.
    pub fn record_encrypted(&self, desired: &Desired<'_>) -> Result<Vec<String>, ApplyError> {
        let project = Project::read(&self.layout.workspace())?;
        let path = self.layout.workspace().join(project.settings_path(desired.stack));
        let text = durable::read_if_exists(&path).map_err(failed("read", &path))?.unwrap_or_default();
        let encrypted = settings::encrypted_secrets(&text, &project.name, desired.config);
        self.record_secrets(|missing| encrypted.iter().any(|key| key == missing))?;
        Ok(encrypted)
    }

    fn record_secrets(&self, is_encrypted: impl Fn(&str) -> bool) -> Result<(), ApplyError> {
        let mut written = self.written();
        let now = written.clone().map(|mut now| {
            now.missing_secrets.retain(|missing| !is_encrypted(missing));
            now
        });
        self.record(&mut written, now)
    }

    /// Returns the encryption of the settings file in the source.
    pub fn encryption_in_source(&self, stack: &str, current_source: &CurrentSource) -> Result<Encryption, ApplyError> {
        let (file, path) = self.file(stack)?;
        Ok(settings::encryption(self.original(&current_source.tree, &file, &path)?.as_deref())?)
    }

    /// Returns the resources that Pulumi YAML omits from the program because a config key has the same name.
    pub fn omitted_resources(&self, desired: &Desired<'_>) -> Result<Vec<String>, ApplyError> {
        let project = Project::read(&self.layout.workspace())?;
        let path = self.layout.workspace().join(project.settings_path(desired.stack));
        let text = durable::read_if_exists(&path).map_err(failed("read", &path))?.unwrap_or_default();
        Ok(project.resources_omitted_for(&settings::names_in_project(&text, &project.name, desired.config)))
    }

    /// Returns whether the source contains a settings file.
    pub fn is_in_source(&self, stack: &str, current_source: &CurrentSource) -> Result<bool, ApplyError> {
        let (file, path) = self.file(stack)?;
        Ok(self.original(&current_source.tree, &file, &path)?.is_some())
    }

    /// Removes the settings file and its copy from the previous source, so that the next settings file contains only
    /// the encrypted values from the source.
    pub fn forget_encryption(&self, stack: &str, current_source: &CurrentSource) -> Result<(), ApplyError> {
        let (file, path) = self.file(stack)?;
        self.original(&current_source.tree, &file, &path)?;
        self.record(&mut self.written(), None)?;
        for path in [path, self.kept(&file)] {
            durable::remove(&path).map_err(failed("remove", &path))?;
        }
        Ok(())
    }

    pub fn has_checked_provider(&self, stack: &str, provider: &str) -> bool {
        let checked = self.checked_provider.lock().unwrap_or_else(PoisonError::into_inner);
        checked.as_ref().is_some_and(|checked| (checked.0.as_str(), checked.1.as_str()) == (stack, provider))
    }

    pub fn record_checked_provider(&self, stack: &str, provider: &str) {
        let checked = Some((stack.to_owned(), provider.to_owned()));
        *self.checked_provider.lock().unwrap_or_else(PoisonError::into_inner) = checked;
    }

    /// Returns the path of a stack's settings file, relative to the project and absolute.
    fn file(&self, stack: &str) -> Result<(PathBuf, PathBuf), ApplyError> {
        let file = Project::read(&self.layout.workspace())?.settings_path(stack);
        let path = self.layout.workspace().join(&file);
        Ok((file, path))
    }

    /// Keeps a copy of the settings file before the agent replaces the source, because the next settings file needs the
    /// encryption header of the current file. The function only logs errors, because the next source may fix the cause
    /// of the error.
    pub fn keep(&self, current_source: Option<&CurrentSource>) {
        let Some(written) = self.written().clone() else { return };
        // If the agent wrote the last settings to an earlier source, the CLI has not written the settings file in the
        // current source.
        if current_source.is_none_or(|current_source| current_source.tree != written.tree) {
            return;
        }
        if let Err(error) = self.keep_file(&written) {
            tracing::warn!(%error, "failed to keep the stack settings file for the next source");
        }
    }

    fn keep_file(&self, written: &Written) -> Result<(), ApplyError> {
        let (path, kept) = (self.layout.workspace().join(&written.file), self.kept(&written.file));
        let Some(text) = durable::read_if_exists(&path).map_err(failed("read", &path))? else {
            // The CLI has removed the file together with its stack, so the copy from an earlier source is outdated.
            return durable::remove(&kept).map_err(failed("remove", &kept));
        };
        if let Some(directory) = kept.parent() {
            std::fs::create_dir_all(directory).map_err(failed("create", directory))?;
        }
        durable::write_atomically(&kept, text.as_bytes()).map_err(failed("write", &kept))
    }

    /// Returns the original settings file of the source, or `None` if the source does not contain the file. The first
    /// call for a source stores a copy of this file.
    fn original(&self, tree: &str, file: &Path, path: &Path) -> Result<Option<String>, ApplyError> {
        let directory = self.layout.settings().join("originals");
        let of_tree = directory.join(tree);
        let kept = of_tree.join(flat_name(file));
        if let Some(kept) = durable::read_if_exists(&kept).map_err(failed("read", &kept))? {
            return serde_json::from_str(&kept).map_err(|error| failed("read", &of_tree)(error.into()));
        }
        if !of_tree.is_dir() {
            // Removes the copies of settings files from earlier sources.
            durable::remove(&directory).map_err(failed("remove", &directory))?;
            std::fs::create_dir_all(&of_tree).map_err(failed("create", &of_tree))?;
        }
        let original = durable::read_if_exists(path).map_err(failed("read", path))?;
        let text = serde_json::to_vec(&original).map_err(|error| failed("write", &kept)(error.into()))?;
        durable::write_atomically(&kept, &text).map_err(failed("write", &kept))?;
        Ok(original)
    }

    /// Returns the last settings file that the CLI has written, from the current or the previous source. Returns `None`
    /// if neither file is readable, or if the file in the current source is missing: the CLI removes the file together
    /// with its stack, and a new stack can have another encryption key.
    fn current(&self, file: &Path, path: &Path, is_same_tree: bool) -> Option<String> {
        if is_same_tree && !path.exists() {
            return None;
        }
        let own = if is_same_tree { read_or_warn(path) } else { None };
        own.or_else(|| read_or_warn(&self.kept(file)))
    }

    fn kept(&self, file: &Path) -> PathBuf {
        self.layout.settings().join("kept").join(flat_name(file))
    }

    fn record(&self, written: &mut Option<Written>, now: Option<Written>) -> Result<(), ApplyError> {
        let path = self.layout.settings().join("written.json");
        *written = None;
        match &now {
            None => durable::remove(&path).map_err(failed("remove", &path))?,
            Some(now) => {
                let text = serde_json::to_vec_pretty(now).map_err(|error| failed("write", &path)(error.into()))?;
                durable::write_atomically(&path, &text).map_err(failed("write", &path))?;
            }
        }
        *written = now;
        Ok(())
    }

    fn written(&self) -> MutexGuard<'_, Option<Written>> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn read_or_warn(path: &Path) -> Option<String> {
    durable::read_if_exists(path).unwrap_or_else(|error| {
        tracing::warn!(path = %path.display(), %error, "failed to read the stack settings file");
        None
    })
}

/// Returns a file name for a path in a source. The path itself is not suitable, because the path can point outside the
/// directory, or exceed the maximum length of a file name.
fn flat_name(file: &Path) -> String {
    hex::encode(Sha256::digest(file.as_os_str().as_encoded_bytes()))
}

fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> ApplyError + use<> {
    let path = path.to_owned();
    move |source| ApplyError::File { action, path, source }
}

/// Returns all configuration entries with their values, including values from mounted Secrets and ConfigMaps. The
/// function adds secret values to `environment`, so that the agent redacts these values.
pub fn resolve_config(
    layout: &Layout,
    environment: &mut Environment,
    desired: &proto::Settings,
) -> Result<Vec<Entry>, Refusal> {
    let mut entries = Vec::new();
    for item in &desired.config {
        let value = value(layout, environment, item)?;
        if item.secret {
            environment.secrets.extend(texts_in(&value).into_iter().map(Zeroizing::new));
        }
        entries.push(Entry { key: item.key.clone(), value, is_path: item.path, is_secret: item.secret });
    }
    Ok(entries)
}

fn value(layout: &Layout, environment: &Environment, item: &proto::ConfigItem) -> Result<Value, Refusal> {
    let what = format!("config key {}", item.key);
    if !item.file.is_empty() {
        let bytes = environment::read_value(&what, Path::new(&item.file), layout)?.into_encoded_bytes();
        let text = String::from_utf8(bytes)
            .map_err(|_| Refusal::Precondition(format!("the value of {what} is not valid UTF-8")))?;
        return typed(&what, text, item.json);
    }
    if !item.variable.is_empty() {
        let value = environment.variables.get(OsStr::new(&item.variable)).and_then(|value| value.to_str());
        let missing = || {
            Refusal::Precondition(format!("{what} refers to environment variable {}, which is not set", item.variable))
        };
        return typed(&what, value.ok_or_else(missing)?.to_owned(), item.json);
    }
    serde_json::from_str(&item.value).map_err(|error| Refusal::Invalid(json_error(&what, &error)))
}

fn typed(what: &str, text: String, is_json: bool) -> Result<Value, Refusal> {
    if !is_json {
        return Ok(Value::String(text));
    }
    serde_json::from_str(&text).map_err(|error| Refusal::Precondition(json_error(what, &error)))
}

/// Describes a JSON error. The description omits the JSON text, which can contain a secret.
fn json_error(what: &str, error: &serde_json::Error) -> String {
    format!("the value of {what} is not valid JSON: error at line {}, column {}", error.line(), error.column())
}

/// Returns all strings and numbers in a JSON value.
fn texts_in(value: &Value) -> Vec<String> {
    match value {
        Value::String(text) => vec![text.clone()],
        Value::Number(number) => vec![number.to_string()],
        Value::Array(values) => values.iter().flat_map(texts_in).collect(),
        Value::Object(values) => values.values().flat_map(texts_in).collect(),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests;

//! Environment of a CLI call: the variables, including those from mounted files and init containers, and the selected
//! state backend. The agent builds a new environment for each run, so that the run uses the current credentials.

mod expansion;

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use zeroize::{Zeroize, Zeroizing};

use super::credentials;
use super::home::is_writable;
use super::layout::Layout;
use super::mounts;
use super::redactor::Redactor;
use super::refusal::Refusal;
use crate::api::cli_options;
use crate::api::names::RESERVED_VARIABLES;
use crate::pulumi::backend::{self, API_VARIABLE, PULUMI_CLOUD, TOKEN_VARIABLE, URL_VARIABLE};
use crate::pulumi::cli::{DEFAULT_USER, HOME, PULUMI_HOME, TEMPORARY_DIRECTORY, USER, engine_environment};
use crate::pulumi::project::Project;
use crate::rpc::proto::EnvironmentVariable;
use crate::rpc::proto::environment_variable::Source;

/// Maximum size of a value in bytes, which equals the size limit of a Secret.
const MAX_VALUE: u64 = 1024 * 1024;
/// Maximum size of a Secret value that the agent redacts, in bytes.
const MAX_HIDDEN_BYTES: u64 = 64 * 1024;
/// Maximum number of Secret values that the agent redacts. The limit exists because the agent searches each output line
/// for all these values.
const MAX_HIDDEN: usize = 1000;
/// Advice at the end of an error about a missing Secret, ConfigMap or key.
const MOUNT_DELAY: &str = "; changes take up to two minutes to reach the running pod";
/// Maximum size of the file that contains the variables from init containers, in bytes. The agent reads this file
/// before each run.
const MAX_ENV_FILE: u64 = 1024 * 1024;

/// Directory for temporary files if no variable selects another directory.
const DEFAULT_TEMPORARY_DIRECTORY: &str = "/tmp";
/// Variable that the agent never removes, because it cannot restore the value from the image.
const PATH: &str = "PATH";
/// Variables of the container that contained the value of a mounted key when the agent started.
static MOUNTED_AT_START: OnceLock<Vec<MountedVariable>> = OnceLock::new();

/// Variable of the container that contains the value of a key in a mounted object.
#[derive(Debug, PartialEq, Eq)]
struct MountedVariable {
    /// Name of the variable, which consists of the prefix and the key.
    name: String,
    prefix: String,
    /// Mount directory of the object.
    directory: PathBuf,
}

impl MountedVariable {
    /// Returns whether the kubelet has set the variable because of this entry.
    fn is_from(&self, entry: &EnvironmentVariable) -> bool {
        let is_directory = |of: &Source| matches!(of, Source::Directory(of) if self.directory == Path::new(of));
        let is_entry = entry.name == self.prefix && entry.source.as_ref().is_some_and(is_directory);
        is_entry && self.name != PATH && !RESERVED_VARIABLES.contains(&self.name.as_str())
    }
}

/// Environment variables of a CLI call.
#[derive(Clone, Debug, Default)]
pub struct Environment {
    pub variables: BTreeMap<OsString, OsString>,
    /// Secret values from mounted Secrets and other files. The agent redacts these values.
    pub secrets: Vec<Zeroizing<String>>,
    /// Names of the removed variables, which would set CLI flags.
    pub removed: Vec<String>,
}

impl Drop for Environment {
    fn drop(&mut self) {
        for value in std::mem::take(&mut self.variables).into_values() {
            value.into_encoded_bytes().zeroize();
        }
    }
}

impl Environment {
    /// Returns a redactor for the secrets of this environment.
    pub fn redactor(&self) -> Redactor {
        self.redactor_with(&[])
    }

    /// Returns a redactor for the secrets of this environment and for additional secrets.
    pub fn redactor_with(&self, others: &[Zeroizing<String>]) -> Redactor {
        Redactor::new(self.secrets.iter().chain(others).map(|secret| secret.as_str()))
    }

    /// Returns the value of a variable, or `None` if the variable is not set, is empty or is not valid UTF-8.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.variables.get(OsStr::new(name))?.to_str().filter(|value| !value.is_empty())
    }

    /// Removes the variables that would set CLI flags.
    fn remove_options(&mut self) {
        let is_removed = |name: &OsString| cli_options::is_removed(&name.to_string_lossy());
        self.removed = (self.variables.keys().filter(|name| is_removed(name)))
            .map(|name| name.to_string_lossy().into_owned())
            .collect();
        self.variables.retain(|name, _| !is_removed(name));
    }

    /// Returns this environment, or an error if a run without a removed variable would do something else than the user
    /// expects.
    pub fn without_refused_options(self) -> Result<Self, Refusal> {
        let refused = |name: &String| Some((name.clone(), cli_options::effect_of_removal(name)?));
        match self.removed.iter().find_map(refused) {
            Some((name, effect)) => Err(Refusal::Precondition(format!(
                "runs ignore environment variable {name} and {effect}; {}",
                cli_options::instead_of(&name)
            ))),
            None => Ok(self),
        }
    }

    /// Removes the variables that the kubelet has set from all keys of an object. A key may have been removed since then.
    /// The requested variables contain the values of all current keys.
    fn remove_mounted(&mut self, mounted: &[MountedVariable], desired: &[EnvironmentVariable]) {
        for variable in mounted.iter().filter(|variable| desired.iter().any(|entry| variable.is_from(entry))) {
            self.variables.remove(OsStr::new(&variable.name));
        }
    }

    /// Adds a requested variable, which overrides an earlier variable of the same name. `container` contains the
    /// variables of the container.
    fn add_variable(
        &mut self,
        layout: &Layout,
        container: &BTreeMap<OsString, OsString>,
        variable: &EnvironmentVariable,
    ) -> Result<(), Refusal> {
        let EnvironmentVariable { name, source, optional } = variable;
        match source {
            Some(Source::Value(value)) => self.set(name, value.into()),
            Some(Source::Template(template)) => {
                let value = expansion::expand(template, &self.variables, MAX_VALUE).ok_or_else(|| {
                    Refusal::Invalid(format!(
                        "environment variable {name} with the values of its references exceeds {MAX_VALUE} bytes: \
                         shorten the value"
                    ))
                })?;
                self.set(name, value)
            }
            Some(Source::Inherited(_)) => match container.get(OsStr::new(name)) {
                Some(value) => self.set(name, value.clone()),
                None => Ok(()),
            },
            Some(Source::File(file)) if *optional && !Path::new(file).exists() => Ok(()),
            Some(Source::File(file)) => self.set_from_file(layout, name, Path::new(file)),
            Some(Source::Directory(directory)) if *optional && !is_filled(Path::new(directory)) => Ok(()),
            Some(Source::Directory(directory)) => {
                for file in all_keys(layout, Path::new(directory))? {
                    let key = file.file_name().unwrap_or_default().to_string_lossy();
                    let name = format!("{name}{key}");
                    // In the container, the values of the controller also override the keys of an object.
                    if !RESERVED_VARIABLES.contains(&name.as_str()) {
                        self.set_from_file(layout, &name, &file)?;
                    }
                }
                Ok(())
            }
            None => Err(Refusal::Invalid(format!("environment variable {name} has neither a value nor a file"))),
        }
    }

    /// Adds variables from init containers, for example tokens. These variables do not override the variables of the
    /// container. If the file contains a variable several times, the last value applies: after a restart of the pod,
    /// the init containers append their variables again.
    fn add_env_file(&mut self, layout: &Layout) -> Result<(), Refusal> {
        let mut added = read_env_file(&layout.env_file())?;
        added.retain(|(name, _)| !self.variables.contains_key(OsStr::new(name)));
        for (name, value) in added {
            self.secrets.push(Zeroizing::new(value.clone()));
            self.set(&name, value.into())?;
        }
        Ok(())
    }

    /// Sets the access token variable for Pulumi Cloud to the controller's default token, unless the variable is
    /// already set. Each run reads the token from its file, because the token can change.
    fn add_default_access_token(&mut self, layout: &Layout) -> Result<(), Refusal> {
        let file = layout.default_access_token();
        if self.variables.contains_key(OsStr::new(TOKEN_VARIABLE)) || !file.exists() {
            return Ok(());
        }
        self.set_from_file(layout, TOKEN_VARIABLE, file)
    }

    fn set_from_file(&mut self, layout: &Layout, name: &str, file: &Path) -> Result<(), Refusal> {
        let value = without_line_feed(name, read_value(&format!("environment variable {name}"), file, layout)?);
        // Does not redact the values of ConfigMaps, because these values are not secret, and are often common words
        // such as `true`.
        if !file.starts_with(layout.config_maps()) {
            self.secrets.extend(value.to_str().map(|value| Zeroizing::new(value.to_owned())));
        }
        self.set(name, value)
    }

    fn set(&mut self, name: &str, value: OsString) -> Result<(), Refusal> {
        let name = valid_name(name)?;
        if value.as_bytes().contains(&0) {
            return Err(Refusal::Invalid(format!("the value of environment variable {name} contains a NUL byte")));
        }
        self.variables.insert(name.into(), without_line_feed(name, value));
        Ok(())
    }
}

/// Removes the white space at the end of an access token or a backend URL. A file and a YAML block often end with a line
/// feed, which is invalid in an HTTP header and in a URL.
fn without_line_feed(name: &str, value: OsString) -> OsString {
    if ![TOKEN_VARIABLE, URL_VARIABLE].contains(&name) {
        return value;
    }
    let mut bytes = value.into_vec();
    bytes.truncate(bytes.trim_ascii_end().len());
    OsString::from_vec(bytes)
}

/// Returns the files of a mounted Secret or ConfigMap, one per key. Returns an empty list for an object without keys.
///
/// # Errors
///
/// Returns an error if the object is not mounted.
fn all_keys(layout: &Layout, directory: &Path) -> Result<Vec<PathBuf>, Refusal> {
    if !is_filled(directory) {
        let object = mounts::describe(layout, directory);
        return Err(Refusal::Precondition(format!(
            "failed to read environment variables from all keys of {object}: {} is not mounted",
            directory.display()
        )));
    }
    Ok(mounts::keys(directory))
}

/// Returns whether the kubelet has mounted an object at a directory.
fn is_filled(directory: &Path) -> bool {
    directory.join("..data").exists()
}

/// Builds the environment from the container's variables, the variables from init containers, the requested variables
/// and the engine variables.
pub fn build(layout: &Layout, desired: &[EnvironmentVariable]) -> Result<Environment, Refusal> {
    // Redacts the values of all mounted Secrets, because a container variable can refer to any of these Secrets, and
    // the CLI inherits the container's variables.
    let secrets = mounted_secrets(layout.secrets());
    let mut environment = Environment { variables: BTreeMap::new(), secrets, removed: Vec::new() };
    environment.variables.extend(std::env::vars_os());
    remove_defaults(&mut environment.variables, layout);
    // A template can refer only to the variables that the kubelet knows, and not to those of the image.
    let known = expansion::service_variables(&environment.variables);
    let mut requested = Environment { variables: known, secrets: Vec::new(), removed: Vec::new() };
    for variable in desired {
        requested.add_variable(layout, &environment.variables, variable)?;
    }
    environment.remove_mounted(MOUNTED_AT_START.get().map(Vec::as_slice).unwrap_or_default(), desired);
    environment.add_env_file(layout)?;
    environment.variables.append(&mut requested.variables);
    environment.secrets.append(&mut requested.secrets);
    environment.add_default_access_token(layout)?;
    environment.remove_options();
    let home = home(layout, environment.variables.get(OsStr::new(HOME)))?;
    let user = environment.get(USER).unwrap_or(DEFAULT_USER).to_owned();
    environment.variables.extend(engine_environment(&home, &user));
    if environment.get(PULUMI_HOME).is_none() {
        environment.variables.insert(PULUMI_HOME.into(), layout.pulumi_home().into());
    }
    for (name, value) in defaults(layout, is_writable(Path::new(DEFAULT_TEMPORARY_DIRECTORY))) {
        environment.variables.entry(name.into()).or_insert(value);
    }
    Ok(environment)
}

/// Removes the variables that the controller has set to their defaults, so that they do not override the variables from
/// init containers. [`build`] adds the missing defaults.
fn remove_defaults(container: &mut BTreeMap<OsString, OsString>, layout: &Layout) {
    let defaults = [(USER, DEFAULT_USER.into()), (PULUMI_HOME, layout.pulumi_home().into_os_string())];
    container.retain(|name, value| !defaults.iter().any(|(default, of)| name == default && value == of));
}

/// Records which variables of the container have the values of mounted keys. The kubelet sets these variables when the
/// container starts, so the agent must call this function when it starts.
pub fn record_mounted(layout: &Layout) {
    let _ = MOUNTED_AT_START.set(mounted_variables(layout, &std::env::vars_os().collect()));
}

/// Returns the variables whose name ends with a key of a mounted object, and whose value is the value of this key.
fn mounted_variables(layout: &Layout, container: &BTreeMap<OsString, OsString>) -> Vec<MountedVariable> {
    // The search starts with the values, because an object can contain thousands of keys.
    let mut names: HashMap<&OsStr, Vec<&str>> = HashMap::new();
    for (name, value) in container.iter().filter_map(|(name, value)| Some((name.to_str()?, value))) {
        names.entry(value).or_default().push(name);
    }
    let mut found = Vec::new();
    for directory in mounts::entries(layout.secrets()).chain(mounts::entries(layout.config_maps())) {
        for file in mounts::keys(&directory) {
            let key = file.file_name().unwrap_or_default().to_string_lossy();
            let Ok(value) = read_value("a mounted key", &file, layout) else { continue };
            for name in names.get(value.as_os_str()).into_iter().flatten() {
                let Some(prefix) = name.strip_suffix(&*key) else { continue };
                let (name, prefix) = ((*name).to_owned(), prefix.to_owned());
                found.push(MountedVariable { name, prefix, directory: directory.clone() });
            }
        }
    }
    found
}

/// Returns the variables with default values, which the user can override. `has_temporary` is whether programs can
/// write to [`DEFAULT_TEMPORARY_DIRECTORY`].
fn defaults(layout: &Layout, has_temporary: bool) -> Vec<(&'static str, OsString)> {
    let go_build_cache = match is_writable(layout.cache()) {
        true => layout.shared_go_build_cache(),
        false => layout.go_build_cache(),
    };
    let temporary = (!has_temporary).then(|| (TEMPORARY_DIRECTORY, layout.temporary().into()));
    let others = [
        // By default, Poetry installs dependencies outside the source. A failed installation for a new source would
        // then damage the current source's dependencies.
        ("POETRY_VIRTUALENVS_IN_PROJECT", "true".into()),
        // By default, the Go caches are in the home directory, whose content is usually lost when the container
        // restarts.
        ("GOCACHE", go_build_cache.into()),
        ("GOMODCACHE", layout.go_module_cache().into()),
    ];
    others.into_iter().chain(temporary).collect()
}

fn valid_name(name: &str) -> Result<&str, Refusal> {
    if name.is_empty() || name.contains(['=', '\0']) {
        return Err(Refusal::Invalid(format!(
            "invalid environment variable name {name:?}: must not be empty or contain '=' or NUL"
        )));
    }
    Ok(name)
}

/// Reads a value from a file. `what` describes the value in error messages.
pub fn read_value(what: &str, file: &Path, layout: &Layout) -> Result<OsString, Refusal> {
    let source = describe(file, layout);
    let refused = |reason: String| Refusal::Precondition(format!("failed to read {what} from {source}: {reason}"));
    let missing = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => refused(missing_reason(file, layout)),
        _ => refused(error.to_string()),
    };
    let mut value = Vec::new();
    File::open(file).map_err(missing)?.take(MAX_VALUE + 1).read_to_end(&mut value).map_err(missing)?;
    if value.len() as u64 > MAX_VALUE {
        return Err(refused(format!("the value exceeds {MAX_VALUE} bytes")));
    }
    Ok(OsString::from_vec(value))
}

fn is_mounted(file: &Path, layout: &Layout) -> bool {
    file.starts_with(layout.secrets()) || file.starts_with(layout.config_maps())
}

/// Returns a description of a file for a message. For a mounted file, the description contains the key and the name of
/// the Secret or ConfigMap.
fn describe(file: &Path, layout: &Layout) -> String {
    match (file.parent(), file.file_name()) {
        (Some(parent), Some(key)) if is_mounted(file, layout) => {
            format!("key {:?} of {}", key.to_string_lossy(), mounts::describe(layout, parent))
        }
        _ => format!("file {}", file.display()),
    }
}

fn missing_reason(file: &Path, layout: &Layout) -> String {
    let Some(parent) = file.parent().filter(|_| is_mounted(file, layout)) else {
        return "no such file".to_owned();
    };
    let kind = if file.starts_with(layout.secrets()) { "Secret" } else { "ConfigMap" };
    let is_empty = mounts::entries(&parent.join("..data")).next().is_none();
    let what = if is_empty { "does not exist or is empty" } else { "has no such key" };
    format!("the {kind} {what}{MOUNT_DELAY}")
}

/// Returns the values from the mounted Secrets that the agent redacts. The list omits unreadable, binary and large
/// values.
fn mounted_secrets(directory: &Path) -> Vec<Zeroizing<String>> {
    let keys = mounts::entries(directory).flat_map(|secret| mounts::keys(&secret));
    let is_ordinary = |key: &PathBuf| {
        std::fs::metadata(key).is_ok_and(|metadata| metadata.is_file() && metadata.len() <= MAX_HIDDEN_BYTES)
    };
    let read = |key: PathBuf| std::fs::read_to_string(key).ok().map(Zeroizing::new);
    keys.filter(is_ordinary).take(MAX_HIDDEN).filter_map(read).collect()
}

/// Returns the image's home directory, or a directory on the share volume if the home directory is not writable.
fn home(layout: &Layout, desired: Option<&OsString>) -> Result<PathBuf, Refusal> {
    if let Some(home) = desired.map(PathBuf::from).filter(|home| home.is_absolute() && is_writable(home)) {
        return Ok(home);
    }
    let home = layout.home();
    std::fs::create_dir_all(&home).map_err(Refusal::system(format!("failed to create {}", home.display())))?;
    Ok(home)
}

/// Returns the variables from the file that init containers write for the CLI, in file order. Returns an empty list if
/// the file does not exist. An error contains the number of the invalid line, but not the content of the line.
fn read_env_file(file: &Path) -> Result<Vec<(String, String)>, Refusal> {
    let what = || format!("failed to read environment variables from {}", file.display());
    let mut text = String::new();
    match File::open(file) {
        Ok(open) => open.take(MAX_ENV_FILE + 1).read_to_string(&mut text).map_err(Refusal::system(what()))?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(Refusal::system(what())(error)),
    };
    if text.len() as u64 > MAX_ENV_FILE {
        return Err(Refusal::Invalid(format!("{}: the file exceeds {MAX_ENV_FILE} bytes", what())));
    }
    let mut variables = Vec::new();
    for variable in dotenvy::from_read_iter(text.as_bytes()) {
        variables
            .push(variable.map_err(|error| Refusal::Invalid(format!("{}: {}", what(), parse_error(&error, &text))))?);
    }
    Ok(variables)
}

/// Returns a description of a parse error. The description omits the content of the line, which can contain a secret.
fn parse_error(error: &dotenvy::Error, text: &str) -> String {
    let dotenvy::Error::LineParse(line, _) = error else { return error.to_string() };
    let number = text.lines().position(|other| other.contains(line.trim())).map(|index| index + 1);
    let which = number.map_or_else(|| "a line".to_owned(), |number| format!("line {number}"));
    format!("{which} must have the form NAME=value: enclose a value with spaces or quotes in single quotes")
}

/// Returns the URL of the state backend without credentials, and with the parts of the location that the CLI reads from
/// the environment. As in the CLI, the order of precedence is environment, project file, last login, Pulumi Cloud.
pub fn backend_url(environment: &Environment, project: Option<&Project>) -> Option<String> {
    let of_project = || project.and_then(|project| project.backend_url.clone());
    let variable = |name: &str| environment.get(name).map(str::to_owned);
    let url = variable(URL_VARIABLE)
        .or_else(of_project)
        .or_else(|| last_login(environment))
        .or_else(|| variable(API_VARIABLE));
    let value = |_: &str, names: &[&str]| names.iter().find_map(|name| environment.get(name)).map(Cow::Borrowed);
    backend::without_credentials(&backend::completed(url.as_deref().unwrap_or(PULUMI_CLOUD), value))
}

fn last_login(environment: &Environment) -> Option<String> {
    Some(credentials::read(&environment.variables)?.current).filter(|url| !url.is_empty())
}

#[cfg(test)]
mod tests;

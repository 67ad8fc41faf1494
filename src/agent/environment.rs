//! Environment of the CLI. It is built for each run, so that a rotated credential reaches the next run in the same pod.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rustix::fs::Access;
use zeroize::{Zeroize, Zeroizing};

use super::env_file;
use super::layout::Layout;
use super::mounts;
use super::redactor::Redactor;
use super::refusal::Refusal;
use crate::pulumi::cli::{engine_environment, is_scrubbed};
use crate::rpc::proto::EnvironmentVariable;
use crate::rpc::proto::environment_variable::Source;

/// Maximum size of a value in bytes, which is the size limit of a Kubernetes Secret.
const MAX_VALUE: u64 = 1024 * 1024;
/// Maximum size in bytes of a mounted Secret value that is redacted; [`MAX_HIDDEN`] limits their number. Each line of
/// output is searched for all values.
const MAX_HIDDEN_BYTES: u64 = 64 * 1024;
const MAX_HIDDEN: usize = 1000;
/// Default of `$USER`. The CLI fails if the user ID has no name.
const DEFAULT_USER: &str = "pulumi";
const MOUNT_DELAY: &str = "; a change of it takes up to two minutes until it is in the running pod";

/// Environment variables of a CLI call.
#[derive(Clone, Debug, Default)]
pub struct Environment {
    pub variables: BTreeMap<OsString, OsString>,
    /// Secret values to redact: those of mounted Secrets and those read from other files.
    pub secrets: Vec<Zeroizing<String>>,
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
        Redactor::new(self.secrets.iter().map(|secret| secret.as_str()))
    }
}

impl Environment {
    /// Adds a requested variable. It overrides an earlier variable of the same name.
    fn take(&mut self, layout: &Layout, variable: &EnvironmentVariable) -> Result<(), Refusal> {
        let EnvironmentVariable { name, source } = variable;
        match source {
            Some(Source::Value(value)) => self.set(name, value.into()),
            Some(Source::File(file)) => self.set_from(layout, name, Path::new(file)),
            Some(Source::Directory(directory)) => {
                for file in all_keys(layout, Path::new(directory))? {
                    let key = file.file_name().unwrap_or_default().to_string_lossy();
                    self.set_from(layout, &format!("{name}{key}"), &file)?;
                }
                Ok(())
            }
            None => Err(Refusal::Invalid(format!("environment variable {name} has neither a value nor a file"))),
        }
    }

    /// Adds variables that init containers left, for example tokens. The container's own variables take precedence.
    fn take_left(&mut self, layout: &Layout) -> Result<(), Refusal> {
        for (name, value) in env_file::read(&layout.env_file())? {
            if !self.variables.contains_key(OsStr::new(&name)) {
                self.secrets.push(Zeroizing::new(value.clone()));
                self.set(&name, value.into())?;
            }
        }
        Ok(())
    }

    fn set_from(&mut self, layout: &Layout, name: &str, file: &Path) -> Result<(), Refusal> {
        let value = read_value(&format!("environment variable {name}"), file, layout)?;
        // Values of ConfigMaps are not secret, and often common words such as `true`.
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
        self.variables.insert(name.into(), value);
        Ok(())
    }
}

/// Returns the files of all keys of a mounted Secret or ConfigMap. An empty directory belongs to an object without
/// keys: before a run starts, [`mounts::wait`] has waited for the objects with keys.
fn all_keys(layout: &Layout, directory: &Path) -> Result<Vec<PathBuf>, Refusal> {
    if !directory.join("..data").exists() {
        let object = mounts::described(layout, directory);
        return Err(Refusal::Precondition(format!(
            "cannot use all keys of {object} as environment variables: {} is not mounted",
            directory.display()
        )));
    }
    Ok(mounts::keys(directory))
}

/// Builds the environment: the agent's own variables, variables from init containers, requested variables, and finally
/// those for the engine.
pub fn build(layout: &Layout, wanted: &[EnvironmentVariable]) -> Result<Environment, Refusal> {
    // Includes Secrets that no requested variable refers to: the CLI inherits the container's variables, which can come
    // from any of them.
    let mut environment = Environment { variables: BTreeMap::new(), secrets: mounted_secrets(layout.secrets()) };
    environment.variables.extend(std::env::vars_os());
    environment.take_left(layout)?;
    for variable in wanted {
        environment.take(layout, variable)?;
    }
    environment.variables.retain(|name, _| !is_scrubbed(name));
    let home = home(layout, environment.variables.get(OsStr::new("HOME")))?;
    let user = environment.variables.get(OsStr::new("USER")).and_then(|user| user.to_str());
    let user = user.filter(|user| !user.is_empty()).unwrap_or(DEFAULT_USER).to_owned();
    environment.variables.extend(engine_environment(&home, &user));
    // By default, Poetry installs outside of the source: a failed installation would affect the dependencies of the
    // current source.
    environment.variables.entry("POETRY_VIRTUALENVS_IN_PROJECT".into()).or_insert_with(|| "true".into());
    // The CLI identifies a project by its path. This path makes it the same project as in a user's shell in the pod.
    environment.variables.insert("PWD".into(), layout.workspace().into());
    Ok(environment)
}

fn valid_name(name: &str) -> Result<&str, Refusal> {
    if name.is_empty() || name.contains(['=', '\0']) {
        return Err(Refusal::Invalid(format!("{name:?} cannot be the name of an environment variable")));
    }
    Ok(name)
}

/// Reads a value from a file. Errors describe it as `what`.
pub fn read_value(what: &str, file: &Path, layout: &Layout) -> Result<OsString, Refusal> {
    let source = described(file, layout);
    let refused = |reason: String| Refusal::Precondition(format!("{what} is to be {source}, but {reason}"));
    let missing = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => refused(why_missing(file, layout)),
        _ => refused(error.to_string()),
    };
    let mut value = Vec::new();
    File::open(file).map_err(missing)?.take(MAX_VALUE + 1).read_to_end(&mut value).map_err(missing)?;
    if value.len() as u64 > MAX_VALUE {
        return Err(refused(format!("it is longer than {MAX_VALUE} bytes")));
    }
    Ok(OsString::from_vec(value))
}

fn is_mounted(file: &Path, layout: &Layout) -> bool {
    file.starts_with(layout.secrets()) || file.starts_with(layout.config_maps())
}

/// Describes a file in a message: as a key of its Secret or ConfigMap, if it is mounted from one.
fn described(file: &Path, layout: &Layout) -> String {
    match (file.parent(), file.file_name()) {
        (Some(parent), Some(key)) if is_mounted(file, layout) => {
            format!("key {:?} of {}", key.to_string_lossy(), mounts::described(layout, parent))
        }
        _ => format!("read from {}", file.display()),
    }
}

fn why_missing(file: &Path, layout: &Layout) -> String {
    let Some(parent) = file.parent().filter(|_| is_mounted(file, layout)) else {
        return "there is no such file".to_owned();
    };
    let kind = if file.starts_with(layout.secrets()) { "Secret" } else { "ConfigMap" };
    let is_empty = mounts::entries(&parent.join("..data")).next().is_none();
    let what = if is_empty { "does not exist, or is empty" } else { "has no such key" };
    format!("the {kind} {what}{MOUNT_DELAY}")
}

/// Returns the values of the mounted Secrets to redact. Skips unreadable, binary and large values.
fn mounted_secrets(directory: &Path) -> Vec<Zeroizing<String>> {
    let keys = mounts::entries(directory).flat_map(|secret| mounts::keys(&secret));
    let is_ordinary = |key: &PathBuf| {
        std::fs::metadata(key).is_ok_and(|metadata| metadata.is_file() && metadata.len() <= MAX_HIDDEN_BYTES)
    };
    let read = |key: PathBuf| std::fs::read_to_string(key).ok().map(Zeroizing::new);
    keys.filter(is_ordinary).take(MAX_HIDDEN).filter_map(read).collect()
}

/// Returns the home directory of the image if it is writable, otherwise one on the share volume.
fn home(layout: &Layout, wanted: Option<&OsString>) -> Result<PathBuf, Refusal> {
    if let Some(home) = wanted.map(PathBuf::from).filter(|home| home.is_absolute() && is_writable(home)) {
        return Ok(home);
    }
    let home = layout.home();
    std::fs::create_dir_all(&home).map_err(Refusal::system(format!("cannot make {}", home.display())))?;
    Ok(home)
}

fn is_writable(directory: &Path) -> bool {
    directory.is_dir() && rustix::fs::access(directory, Access::WRITE_OK | Access::EXEC_OK).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variable(name: &str, source: Source) -> EnvironmentVariable {
        EnvironmentVariable { name: name.into(), source: Some(source) }
    }

    fn shown(environment: &Environment) -> Vec<&str> {
        environment.secrets.iter().map(|secret| secret.as_str()).collect()
    }

    fn get<'a>(environment: &'a Environment, name: &str) -> Option<&'a str> {
        environment.variables.get(OsStr::new(name)).and_then(|value| value.to_str())
    }

    #[test]
    fn values_and_files_are_set_but_reserved_variables_are_ignored() {
        let directory = tempfile::tempdir().unwrap();
        let layout = Layout::new(directory.path());
        let token = directory.path().join("token");
        std::fs::write(&token, "hunter22\n").unwrap();
        let wanted = [
            variable("PLAIN", Source::Value("one".into())),
            variable("TOKEN", Source::File(token.to_str().unwrap().into())),
            variable("PULUMI_OPTION_PARALLEL", Source::Value("1".into())),
            variable("HOME", Source::Value("/nonexistent".into())),
        ];
        let environment = build(&layout, &wanted).unwrap();
        assert_eq!(get(&environment, "PLAIN"), Some("one"));
        assert_eq!(get(&environment, "TOKEN"), Some("hunter22\n"));
        assert_eq!(get(&environment, "PULUMI_OPTION_PARALLEL"), None);
        assert_eq!(get(&environment, "HOME"), layout.home().to_str());
        assert_eq!(get(&environment, "PATH"), std::env::var("PATH").ok().as_deref());
        assert_eq!(shown(&environment), ["hunter22\n"]);
        assert!(layout.home().is_dir());
    }

    #[test]
    fn every_mounted_secret_is_redacted_even_if_unused() {
        let directory = tempfile::tempdir().unwrap();
        let secret = directory.path().join("secrets/aws");
        // Like the kubelet: keys are links into a directory that is replaced atomically.
        std::fs::create_dir_all(secret.join("..2026")).unwrap();
        std::fs::write(secret.join("..2026/key"), "inherited-value").unwrap();
        std::fs::write(secret.join("..2026/large"), "x".repeat(65 * 1024)).unwrap();
        std::os::unix::fs::symlink("..2026", secret.join("..data")).unwrap();
        for key in ["key", "large"] {
            std::os::unix::fs::symlink(format!("..data/{key}"), secret.join(key)).unwrap();
        }
        let layout = Layout::new(directory.path()).with_secrets(directory.path().join("secrets"));
        let environment = build(&layout, &[]).unwrap();
        assert_eq!(shown(&environment), ["inherited-value"]);
        assert_eq!(environment.redactor().redact("npm: inherited-value"), "npm: [secret]");
    }

    #[test]
    fn a_missing_secret_and_a_missing_key_give_different_errors() {
        let directory = tempfile::tempdir().unwrap();
        let layout = Layout::new(directory.path()).with_secrets(directory.path().join("secrets"));
        // Like the kubelet: an optional Secret is an empty directory until it exists.
        for secret in ["absent", "present/..2026"] {
            std::fs::create_dir_all(layout.secrets().join(secret)).unwrap();
        }
        std::fs::write(layout.secrets().join("present/..2026/other"), "hunter22").unwrap();
        std::os::unix::fs::symlink("..2026", layout.secrets().join("present/..data")).unwrap();
        for (secret, why) in [("absent", "does not exist"), ("present", "has no such key")] {
            let file = layout.secrets().join(secret).join("token").to_str().unwrap().to_owned();
            let refusal = build(&layout, &[variable("TOKEN", Source::File(file))]).unwrap_err();
            assert!(matches!(refusal, Refusal::Precondition(_)), "it may be there the next time");
            let message = refusal.to_string();
            for word in ["TOKEN", "key \"token\"", &format!("Secret \"{secret}\""), why] {
                assert!(message.contains(word), "{message}");
            }
        }
    }

    #[test]
    fn all_keys_of_a_mount_are_set_and_only_secret_values_are_redacted() {
        let directory = tempfile::tempdir().unwrap();
        let layout = Layout::new(directory.path())
            .with_secrets(directory.path().join("secrets"))
            .with_config_maps(directory.path().join("config-maps"));
        let mount = |path: PathBuf, keys: &[(&str, &str)]| {
            std::fs::create_dir_all(path.join("..2026")).unwrap();
            std::os::unix::fs::symlink("..2026", path.join("..data")).unwrap();
            for (key, value) in keys {
                std::fs::write(path.join("..2026").join(key), value).unwrap();
                std::os::unix::fs::symlink(format!("..data/{key}"), path.join(key)).unwrap();
            }
            path.to_str().unwrap().to_owned()
        };
        let secret = mount(layout.secrets().join("aws"), &[("ID", "first-id"), ("KEY", "hunter22")]);
        let map = mount(layout.config_maps().join("region"), &[("ID", "true")]);
        let empty = mount(layout.config_maps().join("empty"), &[]);
        let all = |prefix: &str, directory: &str| variable(prefix, Source::Directory(directory.to_owned()));
        let wanted = [all("", &secret), all("AWS_", &secret), all("", &map), all("", &empty)];
        let environment = build(&layout, &wanted).unwrap();
        for (name, value) in [("ID", "true"), ("KEY", "hunter22"), ("AWS_ID", "first-id"), ("AWS_KEY", "hunter22")] {
            assert_eq!(get(&environment, name), Some(value), "{name}: what comes later wins");
        }
        assert_eq!(environment.redactor().redact("true first-id hunter22"), "true [secret] [secret]");

        let missing = layout.config_maps().join("missing").to_str().unwrap().to_owned();
        let refusal = build(&layout, &[all("", &missing)]).unwrap_err();
        assert!(matches!(refusal, Refusal::Precondition(_)), "it may be there the next time");
        assert!(
            refusal.to_string().contains("all keys of ConfigMap \"missing\" as environment variables"),
            "{refusal}"
        );
    }

    #[test]
    fn invalid_environment_variables_are_rejected_by_name() {
        let directory = tempfile::tempdir().unwrap();
        let layout = Layout::new(directory.path());
        let missing = directory.path().join("aws/secret-key").to_str().unwrap().to_owned();
        for (wanted, words) in [
            (variable("KEY", Source::File(missing.clone())), vec!["KEY", missing.as_str(), "no such file"]),
            (variable("A=B", Source::Value(String::new())), vec!["A=B"]),
            (variable("NUL", Source::Value("a\0b".into())), vec!["NUL"]),
            (EnvironmentVariable { name: "EMPTY".into(), source: None }, vec!["EMPTY"]),
        ] {
            let message = build(&layout, &[wanted]).unwrap_err().to_string();
            assert!(words.iter().all(|word| message.contains(word)), "{message}");
        }
    }
}

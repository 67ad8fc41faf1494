//! Project files: `Pulumi.json`, `Pulumi.yaml` and `Pulumi.yml`.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read as _;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::Value;

use super::document::{self, Mapping, Node, Scalar};
use super::settings::{self, Format};

/// File name of generated project files.
pub const PROJECT_FILE: &str = "Pulumi.yaml";

/// Names and formats of project files, in the order in which the CLI searches for them.
const FILES: [(&str, Format); 3] =
    [("Pulumi.json", Format::Json), (PROJECT_FILE, Format::Yaml), ("Pulumi.yml", Format::Yml)];
/// File names that a policy pack's project file can have.
pub const POLICY_PACK_FILES: [&str; 3] = ["PulumiPolicy.yaml", "PulumiPolicy.yml", "PulumiPolicy.json"];
/// Maximum size of a project file, in bytes. The maximum is large, because a YAML project's file contains the whole
/// program.
pub const MAXIMUM_SIZE: u64 = 4 * 1024 * 1024;

/// The reason why reading a project failed.
#[derive(Debug, thiserror::Error)]
pub enum ProjectError {
    #[error("no Pulumi.yaml, Pulumi.yml or Pulumi.json in {}", directory.display())]
    Missing { directory: PathBuf },
    #[error("failed to read {}: {source}", file.display())]
    Read { file: PathBuf, source: std::io::Error },
    #[error("{} exceeds the maximum size of {limit} bytes", file.display())]
    TooLarge { file: PathBuf, limit: u64 },
    #[error("invalid project file {}: {reason}", place(file, *line))]
    Syntax { file: PathBuf, line: Option<u64>, reason: String },
    #[error("invalid project file {}: `name` must be a non-empty string", file.display())]
    NoName { file: PathBuf },
    #[error("invalid project file {}: `runtime` must be set, for example to `yaml` or `nodejs`", file.display())]
    NoRuntime { file: PathBuf },
}

impl ProjectError {
    /// Returns the error with a path relative to `root`, if the project is in the directory `root`.
    pub fn relative_to(mut self, root: &Path) -> Self {
        let path = match &mut self {
            ProjectError::Missing { directory } => directory,
            ProjectError::Read { file, .. }
            | ProjectError::TooLarge { file, .. }
            | ProjectError::Syntax { file, .. }
            | ProjectError::NoName { file }
            | ProjectError::NoRuntime { file } => file,
        };
        if let Ok(inside) = path.strip_prefix(root) {
            *path = inside.to_owned();
        }
        self
    }
}

/// Returns the location of an error in the format that program errors use, such as `Pulumi.yaml line 2`.
fn place(file: &Path, line: Option<u64>) -> String {
    let file = file.display();
    line.map_or_else(|| file.to_string(), |line| format!("{file} line {line}"))
}

fn syntax_error(file: &Path, error: &serde_saphyr::Error) -> ProjectError {
    let text = error.to_string();
    let location = error.location();
    let suffix = location.map(|location| format!(" at line {}, column {}", location.line(), location.column()));
    let reason = suffix.and_then(|suffix| text.strip_suffix(&suffix).map(str::to_owned));
    ProjectError::Syntax {
        file: file.to_owned(),
        line: location.map(|location| location.line()),
        reason: reason.unwrap_or(text),
    }
}

/// The properties that a project file specifies.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Project {
    /// Path of the project file.
    pub file: PathBuf,
    pub name: String,
    /// Name of the language runtime, for example `yaml`, `nodejs`, `python` or `go`.
    pub runtime: String,
    /// Runtime options from the project file, or null.
    pub runtime_options: Value,
    /// Program directory or program file, relative to the project directory.
    pub main: Option<String>,
    /// Directory that contains the stack settings files, relative to the project directory.
    pub stack_config_directory: Option<String>,
    /// Packages from the project file, or null.
    pub packages: Value,
    /// Plugins from the project file, or null.
    pub plugins: Value,
    /// State backend URL from the project file, if any.
    pub backend_url: Option<String>,
    /// Tags that the project file sets for all stacks, or null.
    pub tags: Value,
}

/// The project file fields that the controller uses.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Document {
    name: Value,
    runtime: Value,
    main: Value,
    stack_config_dir: Value,
    /// In old projects, the directory that contains the settings files. In new projects, the configuration schema.
    config: Value,
    packages: Value,
    plugins: Value,
    backend: Value,
}

/// The sections of a Pulumi YAML program that [`Project::resources_omitted_for`] uses.
#[derive(Default, Deserialize)]
#[serde(default)]
struct YamlProgram {
    config: Value,
    resources: Option<BTreeMap<String, IgnoredAny>>,
}

fn parse<T: DeserializeOwned + Default>(file: &Path, text: &str) -> Result<T, ProjectError> {
    let mut options = serde_saphyr::Options::default();
    options.emit_comments = false;
    options.with_snippet = false;
    options.strict_booleans = true;
    let document: Option<T> =
        serde_saphyr::from_str_with_options(text, options).map_err(|error| syntax_error(file, &error))?;
    Ok(document.unwrap_or_default())
}

impl Project {
    /// Reads the project file in a directory.
    pub fn read(directory: &Path) -> Result<Project, ProjectError> {
        let file = FILES.iter().map(|(name, _)| directory.join(name)).find(|file| file.exists());
        let file = file.ok_or_else(|| ProjectError::Missing { directory: directory.to_owned() })?;
        let text = read_bounded(&file)?;
        Project::parse(&file, &text)
    }

    /// Reads the project file of the policy pack in a directory. The file contains a runtime and options like a project
    /// file, but no name.
    pub fn read_policy_pack(directory: &Path) -> Result<Project, ProjectError> {
        let file = POLICY_PACK_FILES.iter().map(|name| directory.join(name)).find(|file| file.exists());
        let file = file.ok_or_else(|| ProjectError::Missing { directory: directory.to_owned() })?;
        let document = parse(&file, &read_bounded(&file)?)?;
        Project::of(&file, String::new(), document)
    }

    /// Parses the content of a project file. `file` is the path that error messages contain.
    pub fn parse(file: &Path, text: &str) -> Result<Project, ProjectError> {
        let document: Document = parse(file, text)?;
        let name = text_of(&document.name).ok_or_else(|| ProjectError::NoName { file: file.to_owned() })?;
        Project::of(file, name, document)
    }

    fn of(file: &Path, name: String, document: Document) -> Result<Project, ProjectError> {
        let (runtime, runtime_options) = match &document.runtime {
            Value::Object(runtime) => (runtime.get("name"), runtime.get("options").cloned().unwrap_or_default()),
            runtime => (Some(runtime), Value::Null),
        };
        let runtime = runtime.and_then(text_of).ok_or_else(|| ProjectError::NoRuntime { file: file.to_owned() })?;
        Ok(Project {
            file: file.to_owned(),
            name,
            runtime,
            runtime_options,
            main: text_of(&document.main),
            stack_config_directory: text_of(&document.stack_config_dir).or_else(|| text_of(&document.config)),
            packages: document.packages,
            plugins: document.plugins,
            backend_url: document.backend.get("url").and_then(text_of),
            tags: tags_in(&document.config),
        })
    }

    /// Returns the names of the resources that Pulumi YAML omits from the program if these config keys of the project have
    /// values. A value takes precedence over a resource with the same name, and the CLI reports no error. The next update
    /// then deletes the resource. Returns no names if the program is not in the project file or is not valid.
    pub fn resources_omitted_for(&self, keys: &BTreeSet<String>) -> Vec<String> {
        if self.runtime != "yaml" || self.main.is_some() {
            return Vec::new();
        }
        let text = read_bounded(&self.file).unwrap_or_default();
        let Ok(YamlProgram { config, resources }) = parse::<YamlProgram>(&self.file, &text) else { return Vec::new() };
        let has_default = |name: &String| match config.get(name) {
            Some(Value::Object(entry)) => entry.contains_key("default") || entry.contains_key("value"),
            entry => entry.is_some(),
        };
        let names = resources.into_iter().flat_map(BTreeMap::into_keys);
        names.filter(|name| keys.contains(name) || has_default(name)).collect()
    }

    /// Returns whether `pulumi install` may install dependencies for this project.
    pub fn needs_install(&self) -> bool {
        self.runtime != "yaml" || self.has_packages() || has_entries(&self.plugins)
    }

    /// Returns whether the directory contains a project file but no program and no dependencies, for example for a
    /// stack whose program no longer exists. If so, `pulumi install` has no effect.
    pub fn is_without_program(&self, directory: &Path) -> bool {
        let is_empty = self.main.is_none() && !self.has_packages() && !has_entries(&self.plugins);
        let entries = std::fs::read_dir(directory).map(|entries| entries.take(2).count());
        is_empty && entries.is_ok_and(|count| count == 1)
    }

    /// Returns whether `packages` is not empty.
    pub fn has_packages(&self) -> bool {
        has_entries(&self.packages)
    }

    /// Returns the format that the stack settings files have. The CLI reads only settings files with the same extension
    /// as the project file.
    pub fn settings_format(&self) -> Format {
        let written = FILES.iter().find(|(name, _)| self.file.ends_with(name));
        written.map_or(Format::Yaml, |(_, format)| *format)
    }

    /// Returns the path of a stack's settings file, relative to the project directory.
    pub fn settings_path(&self, stack: &str) -> PathBuf {
        let directory = PathBuf::from(self.stack_config_directory.as_deref().unwrap_or_default());
        directory.join(settings::file_name(stack, self.settings_format()))
    }
}

/// Returns a YAML program as a project file: the name, the runtime, and the sections in the given order. The keys in
/// each section are sorted. Returns `None` if the file exceeds [`MAXIMUM_SIZE`], because no workspace could read it.
pub fn yaml_program(name: &str, sections: &[(&str, Value)]) -> Option<String> {
    let limit = usize::try_from(MAXIMUM_SIZE).unwrap_or(usize::MAX);
    document::to_yaml_within(limit, &project_file(name, "yaml", sections))
}

/// Returns a project file with only a name and a runtime.
pub fn minimal_project_file(name: &str, runtime: &str) -> String {
    document::to_yaml(&project_file(name, runtime, &[]))
}

fn project_file(name: &str, runtime: &str, sections: &[(&str, Value)]) -> Mapping {
    let own = [("name", Value::from(name)), ("runtime", Value::from(runtime))];
    let sections = own.iter().chain(sections);
    sections.map(|(key, value)| (Scalar::plain(*key), Node::from(&sorted(value)))).collect()
}

/// Sorts the keys of all objects in the value. Without this function, the key order would depend on the enabled
/// features of `serde_json`.
fn sorted(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let mut keys: Vec<&String> = fields.keys().collect();
            keys.sort();
            let field = |key: &String| Some((key.clone(), sorted(fields.get(key)?)));
            Value::Object(keys.into_iter().filter_map(field).collect())
        }
        Value::Array(values) => Value::Array(values.iter().map(sorted).collect()),
        other => other.clone(),
    }
}

fn read_bounded(file: &Path) -> Result<String, ProjectError> {
    let failed = |source| ProjectError::Read { file: file.to_owned(), source };
    let mut text = String::new();
    let opened = std::fs::File::open(file).map_err(failed)?;
    opened.take(MAXIMUM_SIZE + 1).read_to_string(&mut text).map_err(failed)?;
    if text.len() as u64 > MAXIMUM_SIZE {
        return Err(ProjectError::TooLarge { file: file.to_owned(), limit: MAXIMUM_SIZE });
    }
    Ok(text)
}

/// Returns the tags from a project's configuration. If the configuration entry is an object, the CLI reads the tags
/// from its field `value`.
fn tags_in(config: &Value) -> Value {
    match config.get(settings::TAGS) {
        Some(Value::Object(definition)) => definition.get("value").cloned().unwrap_or_default(),
        Some(value) => value.clone(),
        None => Value::Null,
    }
}

fn text_of(value: &Value) -> Option<String> {
    value.as_str().filter(|text| !text.is_empty()).map(str::to_owned)
}

fn has_entries(value: &Value) -> bool {
    match value {
        Value::Object(values) => values.values().any(|value| !matches!(value, Value::Array(list) if list.is_empty())),
        Value::Array(values) => !values.is_empty(),
        _ => false,
    }
}

#[cfg(test)]
mod tests;

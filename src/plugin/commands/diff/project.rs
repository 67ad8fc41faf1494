//! Finds the Pulumi project in a local directory.

use std::io::{ErrorKind, Read as _};
use std::path::Path;

use pulumi_controller::api::pulumi::Stack;
use serde_json::Value;

use crate::plugin::error::PluginError;

/// Project file names, each with the extension of the settings files, in the search order of the Pulumi CLI.
const FILES: [(&str, &str); 3] = [("Pulumi.json", "json"), ("Pulumi.yaml", "yaml"), ("Pulumi.yml", "yml")];
/// Maximum size of a project file or settings file, in bytes.
const MAX_FILE: u64 = 4 * 1024 * 1024;

/// Project in a local directory.
#[derive(Debug, PartialEq, Eq)]
pub struct LocalProject {
    pub name: String,
    /// Project directory, relative to the local directory, with `/` as the separator. `.` is the local directory.
    pub directory: String,
    /// Whether `pulumi install` must run before the preview. The agent follows the same rule: see `pulumi/project.rs`.
    pub needs_install: bool,
    /// Directory of the settings files, relative to the project directory. Empty if the project directory contains the
    /// settings files.
    settings_directory: String,
    extension: &'static str,
}

/// Returns the project directory in a Stack's source.
pub fn directory_of(stack: &Stack) -> Option<String> {
    let source = stack.spec.flux_source.as_ref().and_then(|source| source.dir.clone());
    source.or_else(|| stack.spec.repo_dir.clone()).filter(|directory| !directory.is_empty())
}

impl LocalProject {
    /// Finds the project in the directory that the Stack selects or, if that directory contains no project, in the
    /// local directory itself.
    ///
    /// # Errors
    ///
    /// Returns an error if no project exists, or if the project file is invalid.
    pub fn find(root: &Path, selected: Option<&str>) -> Result<Self, PluginError> {
        if !root.is_dir() {
            return Err(PluginError::Usage(format!("invalid --path={}: the directory does not exist", root.display())));
        }
        let selected = selected.map(|path| normalized(path).ok_or_else(|| outside(path))).transpose()?;
        for directory in selected.into_iter().chain([".".to_owned()]) {
            for (name, extension) in FILES {
                let file = format!("{directory}/{name}");
                if let Some(text) = read(root, &file)? {
                    return LocalProject::parse(&file, &text, directory, extension);
                }
            }
        }
        Err(PluginError::Usage(format!(
            "invalid --path={}: found no Pulumi project; use the root of the source, or the directory of the project",
            root.display()
        )))
    }

    fn parse(file: &str, text: &str, directory: String, extension: &'static str) -> Result<Self, PluginError> {
        let invalid = |why: &str| PluginError::Usage(format!("invalid project file {file}: {why}"));
        let project = document(text).map_err(|why| invalid(&why))?;
        let string = |key: &str| project.get(key).and_then(Value::as_str).map(str::to_owned);
        let name = string("name").ok_or_else(|| invalid("the field `name` is missing"))?;
        // In older projects, `config` is the directory of the settings files. In newer projects, `config` is a schema.
        let settings_directory = string("stackConfigDir").or_else(|| string("config")).unwrap_or_default();
        let runtime = project.get("runtime");
        let runtime = runtime.and_then(|runtime| runtime.get("name").unwrap_or(runtime).as_str());
        let has_entries = |key: &str| match project.get(key) {
            Some(Value::Object(entries)) => {
                entries.values().any(|entry| entry.as_array().is_none_or(|list| !list.is_empty()))
            }
            Some(Value::Array(entries)) => !entries.is_empty(),
            _ => false,
        };
        let needs_install = runtime != Some("yaml") || has_entries("packages") || has_entries("plugins");
        Ok(LocalProject { name, directory, needs_install, settings_directory, extension })
    }

    /// Returns the path of a Pulumi stack's settings file, relative to the project directory.
    pub fn settings_path(&self, stack: &str) -> String {
        let file = format!("Pulumi.{}.{}", stack.rsplit('/').next().unwrap_or(stack), self.extension);
        match self.settings_directory.trim_end_matches('/') {
            "" => file,
            directory => format!("{directory}/{file}"),
        }
    }

    /// Returns the path of a project file, relative to the local directory.
    ///
    /// # Errors
    ///
    /// Returns an error if the file is outside the local directory.
    pub fn in_directory(&self, file: &str) -> Result<String, PluginError> {
        normalized(&format!("{}/{file}", self.directory)).ok_or_else(|| outside(file))
    }

    /// Returns the content of a settings file in the local directory, or `None` if the file does not exist.
    ///
    /// # Errors
    ///
    /// Returns an error if the file cannot be read.
    pub fn read_settings(&self, root: &Path, file: &str) -> Result<Option<String>, PluginError> {
        read(root, &self.in_directory(file)?)
    }
}

/// Parses YAML or JSON.
///
/// # Errors
///
/// Returns the parser's message if the text is neither valid YAML nor valid JSON.
pub fn document(text: &str) -> Result<Value, String> {
    let mut options = serde_saphyr::Options::default();
    options.emit_comments = false;
    options.with_snippet = false;
    options.strict_booleans = true;
    serde_saphyr::from_str_with_options(text, options).map_err(|error| error.to_string())
}

/// Reads a file in a directory, or returns `None` if the file does not exist. Rejects symbolic links that lead out of
/// the directory. Otherwise, a link in an untrusted directory could send the user's other files to the pod.
fn read(root: &Path, file: &str) -> Result<Option<String>, PluginError> {
    let path = root.join(file);
    let failed = |why: String| PluginError::Failed(format!("failed to read {}: {why}", path.display()));
    let resolved = path.canonicalize().and_then(|resolved| Ok((resolved, root.canonicalize()?)));
    let resolved = match resolved {
        Ok((resolved, root)) if resolved.starts_with(&root) => resolved,
        Ok(_) => return Err(outside(file)),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Ok(None),
        Err(error) => return Err(failed(error.to_string())),
    };
    let file = std::fs::File::open(&resolved).map_err(|error| failed(error.to_string()))?;
    let mut text = String::new();
    file.take(MAX_FILE + 1).read_to_string(&mut text).map_err(|error| failed(error.to_string()))?;
    if u64::try_from(text.len()).unwrap_or(u64::MAX) > MAX_FILE {
        return Err(failed("the file exceeds 4 MiB".to_owned()));
    }
    Ok(Some(text))
}

fn outside(path: &str) -> PluginError {
    PluginError::Usage(format!(
        "invalid directory or file {path}: it is outside the directory of --path; use its parent"
    ))
}

/// Returns a relative path without `.` and `..`, or `None` if the path leads out of its base directory. The base
/// directory itself has the path `.`.
fn normalized(path: &str) -> Option<String> {
    let mut segments = Vec::new();
    for segment in path.split('/') {
        match segment {
            "" | "." => {}
            ".." => {
                segments.pop()?;
            }
            segment => segments.push(segment),
        }
    }
    Some(if segments.is_empty() { ".".to_owned() } else { segments.join("/") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_project_is_in_the_selected_directory_or_in_the_local_directory() {
        let root = tempfile::tempdir().unwrap();
        let find = |selected: Option<&str>| LocalProject::find(root.path(), selected).map(|project| project.directory);
        assert_eq!(find(None).unwrap_err().exit_code(), 2);
        std::fs::create_dir(root.path().join("infra")).unwrap();
        std::fs::write(root.path().join("infra/Pulumi.yaml"), "name: web\nruntime: yaml\n").unwrap();
        assert_eq!(find(Some("./infra/")).unwrap(), "infra");
        assert!(find(None).is_err(), "the Stack selects no directory");
        std::fs::write(root.path().join("Pulumi.json"), r#"{"name": "root"}"#).unwrap();
        assert_eq!(find(Some("infra")).unwrap(), "infra");
        assert_eq!(find(Some("apps/web")).unwrap(), ".", "the local directory is that of the project");
        assert_eq!(find(Some("../web")).unwrap_err().exit_code(), 2);
    }

    #[cfg(unix)]
    #[test]
    fn a_link_out_of_the_directory_is_not_read() {
        let parent = tempfile::tempdir().unwrap();
        let root = parent.path().join("source");
        std::fs::create_dir(&root).unwrap();
        std::fs::write(parent.path().join("credentials"), "token: secret\n").unwrap();
        std::fs::write(root.join("base.yaml"), "config: {}\n").unwrap();
        std::fs::write(root.join("Pulumi.yaml"), "name: web\nruntime: yaml\n").unwrap();
        let project = LocalProject::find(&root, None).unwrap();
        let link = root.join("Pulumi.dev.yaml");
        std::os::unix::fs::symlink("../credentials", &link).unwrap();
        let error = project.read_settings(&root, "Pulumi.dev.yaml").unwrap_err();
        assert!(error.to_string().contains("outside the directory of --path"), "{error}");
        std::fs::remove_file(&link).unwrap();
        assert_eq!(project.read_settings(&root, "Pulumi.dev.yaml").unwrap(), None);
        std::os::unix::fs::symlink("base.yaml", &link).unwrap();
        assert_eq!(project.read_settings(&root, "Pulumi.dev.yaml").unwrap().as_deref(), Some("config: {}\n"));
    }

    #[test]
    fn only_a_yaml_project_without_packages_and_plugins_needs_no_installation() {
        let rows = [
            ("runtime: yaml", false),
            ("runtime: {name: yaml}\npackages: {}", false),
            ("runtime: yaml\npackages: {a: b}", true),
            ("runtime: yaml\nplugins: {providers: []}", false),
            ("runtime: yaml\nplugins: {providers: [{name: a}]}", true),
            ("runtime: {name: nodejs, options: {}}", true),
            ("description: no runtime", true),
        ];
        for (text, expected) in rows {
            let text = format!("name: web\n{text}\n");
            let project = LocalProject::parse("Pulumi.yaml", &text, ".".to_owned(), "yaml").unwrap();
            assert_eq!(project.needs_install, expected, "{text}");
        }
    }

    #[test]
    fn the_settings_file_is_that_of_the_cli() {
        let of = |text: &str, directory: &str| {
            let project = LocalProject::parse("Pulumi.yaml", text, directory.to_owned(), "yaml").unwrap();
            let file = project.settings_path("org/web/dev");
            (file.clone(), project.in_directory(&file).ok())
        };
        let found = |file: &str, path: &str| (file.to_owned(), Some(path.to_owned()));
        assert_eq!(of("name: web", "."), found("Pulumi.dev.yaml", "Pulumi.dev.yaml"));
        assert_eq!(of("name: web\nconfig: {a: 1}", "infra"), found("Pulumi.dev.yaml", "infra/Pulumi.dev.yaml"));
        assert_eq!(
            of("name: web\nconfig: stacks", "infra"),
            found("stacks/Pulumi.dev.yaml", "infra/stacks/Pulumi.dev.yaml")
        );
        let above = found("../stacks/Pulumi.dev.yaml", "stacks/Pulumi.dev.yaml");
        assert_eq!(of("name: web\nstackConfigDir: ../stacks/", "infra"), above);
        assert_eq!(of("name: web\nstackConfigDir: ../stacks", ".").1, None);
        for invalid in ["", "runtime: yaml", "name: [", "name: 1"] {
            assert!(LocalProject::parse("Pulumi.yaml", invalid, ".".to_owned(), "yaml").is_err(), "{invalid:?}");
        }
    }
}

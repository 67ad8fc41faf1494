//! Resolves the values of the stack configuration at the start of a run, including those in mounted Secrets and
//! ConfigMaps.

use std::ffi::OsStr;
use std::path::Path;

use serde_json::Value;
use zeroize::Zeroizing;

use super::environment::{self, Environment};
use super::layout::Layout;
use super::refusal::Refusal;
use crate::pulumi::settings::Entry;
use crate::rpc::proto;

/// Returns all configuration entries. Adds secret values to the secrets of the environment, which are redacted.
pub fn resolve(
    layout: &Layout,
    environment: &mut Environment,
    wanted: &proto::Settings,
) -> Result<Vec<Entry>, Refusal> {
    let mut entries = Vec::new();
    for item in &wanted.config {
        let value = value(layout, environment, item)?;
        if item.secret {
            environment.secrets.extend(texts(&value).into_iter().map(Zeroizing::new));
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
    serde_json::from_str(&item.value).map_err(|error| Refusal::Invalid(not_json(&what, &error)))
}

fn typed(what: &str, text: String, is_json: bool) -> Result<Value, Refusal> {
    if !is_json {
        return Ok(Value::String(text));
    }
    serde_json::from_str(&text).map_err(|error| Refusal::Precondition(not_json(what, &error)))
}

/// Describes a JSON error without the text, which can be secret.
fn not_json(what: &str, error: &serde_json::Error) -> String {
    format!("the value of {what} is not valid JSON: error at line {}, column {}", error.line(), error.column())
}

/// Returns all strings in a JSON value.
fn texts(value: &Value) -> Vec<String> {
    match value {
        Value::String(text) => vec![text.clone()],
        Value::Array(values) => values.iter().flat_map(texts).collect(),
        Value::Object(values) => values.values().flat_map(texts).collect(),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    struct Place {
        directory: tempfile::TempDir,
        layout: Layout,
    }

    impl Place {
        fn new(content: &[u8]) -> Place {
            let directory = tempfile::tempdir().unwrap();
            let secret = directory.path().join("secrets/keys");
            // The kubelet mounts keys as links into a directory.
            std::fs::create_dir_all(secret.join("..data")).unwrap();
            std::fs::write(secret.join("..data/one"), content).unwrap();
            std::os::unix::fs::symlink("..data/one", secret.join("one")).unwrap();
            let layout = Layout::new(directory.path()).with_secrets(directory.path().join("secrets"));
            Place { directory, layout }
        }

        fn file(&self, key: &str) -> proto::ConfigItem {
            let file = self.directory.path().join("secrets/keys").join(key);
            proto::ConfigItem { key: "k".into(), file: file.display().to_string(), ..Default::default() }
        }

        fn read(&self, item: proto::ConfigItem) -> Result<(Value, Vec<String>), String> {
            let mut environment = Environment::default();
            environment.variables.insert("SET".into(), "[1]".into());
            let wanted = proto::Settings { stack: "dev".into(), config: vec![item], environments: Vec::new() };
            let entries = resolve(&self.layout, &mut environment, &wanted).map_err(|error| error.to_string())?;
            let hidden = environment.secrets.iter().map(|secret| secret.to_string()).collect();
            Ok((entries[0].value.clone(), hidden))
        }
    }

    #[test]
    fn config_values_come_from_literals_variables_and_files() {
        let place = Place::new(b"{\"a\": [\"hidden\", 1]}");
        let given = proto::ConfigItem { key: "k".into(), value: "5".into(), ..Default::default() };
        let variable = proto::ConfigItem { key: "k".into(), variable: "SET".into(), ..Default::default() };
        let rows = [
            (given.clone(), json!(5), vec![]),
            (proto::ConfigItem { value: "\"x\"".into(), secret: true, ..given }, json!("x"), vec!["x"]),
            (variable.clone(), json!("[1]"), vec![]),
            (proto::ConfigItem { json: true, ..variable }, json!([1]), vec![]),
            (place.file("one"), json!("{\"a\": [\"hidden\", 1]}"), vec![]),
            (
                proto::ConfigItem { json: true, secret: true, ..place.file("one") },
                json!({"a": ["hidden", 1]}),
                vec!["hidden"],
            ),
        ];
        for (item, value, hidden) in rows {
            let hidden: Vec<String> = hidden.into_iter().map(str::to_owned).collect();
            assert_eq!(place.read(item.clone()), Ok((value, hidden)), "{item:?}");
        }
    }

    #[test]
    fn invalid_config_values_are_named_without_revealing_them() {
        let place = Place::new(b"hidden");
        let rows = [
            (place.file("other"), "key \"other\" of Secret \"keys\": the Secret has no such key"),
            (
                proto::ConfigItem { json: true, ..place.file("one") },
                "value of config key k is not valid JSON: error at line 1, column 1",
            ),
            (
                proto::ConfigItem { key: "k".into(), variable: "NONE".into(), ..Default::default() },
                "variable NONE, which is not set",
            ),
            (
                proto::ConfigItem { key: "k".into(), value: "hidden".into(), ..Default::default() },
                "value of config key k is not valid JSON",
            ),
        ];
        for (item, wanted) in rows {
            let error = place.read(item).unwrap_err();
            assert!(error.contains(wanted) && !error.contains("hidden"), "{error}");
        }
        assert!(Place::new(b"\xff").read(place.file("one")).is_ok(), "each place has its own");
        let binary = Place::new(b"\xff");
        assert!(binary.read(binary.file("one")).unwrap_err().contains("config key k is not valid UTF-8"));
    }
}

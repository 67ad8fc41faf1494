//! Merges the settings file from a local directory with the Stack configuration.
//!
//! The settings file in the workspace pod contains the settings from the source, and the Stack configuration with
//! encrypted secrets. From the pod's settings file, the merged file contains only the keys that the Stack sets.

use std::collections::BTreeSet;

use pulumi_controller::api::pulumi::Stack;
use serde_json::{Map, Value};

use crate::plugin::error::PluginError;

use super::project::document;

/// Settings keys that identify the encryption key for secrets.
const ENCRYPTION_HEADER: [&str; 3] = ["secretsprovider", "encryptedkey", "encryptionsalt"];
const CONFIG: &str = "config";
const ENVIRONMENT: &str = "environment";

/// Returns the settings file for the preview. The file content is JSON, which is also valid YAML and has no ambiguous
/// values.
///
/// # Errors
///
/// Returns an error if one of the files is invalid.
pub fn merge(stack: &Stack, project: &str, local: Option<&str>, in_pod: &str) -> Result<String, PluginError> {
    let mut local = parse("the local settings file", local.unwrap_or_default())?;
    let in_pod = parse("the settings file in the workspace pod", in_pod)?;
    if ENCRYPTION_HEADER.iter().any(|key| in_pod.contains_key(*key)) {
        for key in ENCRYPTION_HEADER {
            local.remove(key);
            local.extend(in_pod.get(key).map(|value| (key.to_owned(), value.clone())));
        }
    }
    let keys = keys_of(stack, project);
    let is_of_stack = |key: &str| keys.contains(&full_name(key, project));
    let mut config = object(local.remove(CONFIG));
    config.retain(|key, _| !is_of_stack(key));
    config.extend(object(in_pod.get(CONFIG).cloned()).into_iter().filter(|(key, _)| is_of_stack(key)));
    local.insert(CONFIG.to_owned(), Value::Object(config));
    add_environments(&mut local, &stack.spec.environment);
    let text = serde_json::to_string_pretty(&local);
    text.map_err(|error| PluginError::Failed(format!("failed to write the settings file: {error}")))
}

fn parse(what: &str, text: &str) -> Result<Map<String, Value>, PluginError> {
    if text.trim().is_empty() {
        return Ok(Map::new());
    }
    match document(text) {
        Ok(Value::Object(settings)) => Ok(settings),
        Ok(Value::Null) => Ok(Map::new()),
        Ok(_) => Err(PluginError::Usage(format!("invalid settings in {what}: must be an object"))),
        // The parser's message contains no values from the file.
        Err(why) => Err(PluginError::Usage(format!("invalid settings in {what}: {why}"))),
    }
}

fn object(value: Option<Value>) -> Map<String, Value> {
    match value {
        Some(Value::Object(object)) => object,
        _ => Map::new(),
    }
}

/// Returns the keys in the settings file that the Stack configuration sets.
fn keys_of(stack: &Stack, project: &str) -> BTreeSet<String> {
    let spec = &stack.spec;
    let plain = spec.config.keys().chain(spec.config_ref.keys());
    let all = plain.chain(spec.secrets.keys()).chain(spec.secrets_ref.keys());
    all.map(|key| match spec.path_keys.contains(key) {
        true => full_name(first_segment(key), project),
        false => full_name(key, project),
    })
    .collect()
}

/// Returns the first segment of a configuration path such as `web.password` or `names[0]`.
fn first_segment(path: &str) -> &str {
    path.split(['.', '[']).next().unwrap_or(path)
}

/// Returns the key with its namespace. `<key>` is the short form of `<project>:<key>`, and `<namespace>:config:<key>`
/// is the old form of `<namespace>:<key>`.
fn full_name(key: &str, project: &str) -> String {
    match key.split_once(':') {
        None => format!("{project}:{key}"),
        Some((namespace, name)) => format!("{namespace}:{}", name.strip_prefix("config:").unwrap_or(name)),
    }
}

/// Appends the Stack's Pulumi ESC environments to the environments in the local settings file.
fn add_environments(settings: &mut Map<String, Value>, environments: &[String]) {
    if environments.is_empty() {
        return;
    }
    let own = settings.entry(ENVIRONMENT).or_insert_with(|| Value::Array(Vec::new()));
    // Instead of a list, the key `environment` can contain an inline environment, whose key `imports` lists other
    // environments.
    let imports = match own {
        Value::Object(environment) => environment.entry("imports").or_insert_with(|| Value::Array(Vec::new())),
        imports => imports,
    };
    if let Value::Array(imports) = imports {
        for environment in environments {
            if !imports.iter().any(|import| import.as_str() == Some(environment.as_str())) {
                imports.push(Value::String(environment.clone()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::plugin::fixtures::stack;

    fn merged(spec: &Value, local: Option<&str>, in_pod: &str) -> Value {
        let text = merge(&stack("web", spec, &json!({})), "web", local, in_pod).unwrap();
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn only_the_configuration_of_the_stack_comes_from_the_pod() {
        let spec = json!({ "config": { "size": "big", "aws:config:region": "eu-west-1", "list[0]": 1 },
            "secretsRef": { "password": { "type": "Literal", "literal": { "value": "x" } } }, "pathKeys": ["list[0]"] });
        let local = "encryptionsalt: old\nconfig:\n  size: small\n  web:color: red\n  web:list: [5]\n";
        let in_pod = "encryptionsalt: new\nconfig:\n  web:size: big\n  web:color: blue\n  web:password:\n    secure: v1:abc\n  \
                      aws:region: eu-west-1\n  web:list: [1]\n  web:removed: 1\n";
        let expected = json!({ "encryptionsalt": "new", "config": { "web:size": "big", "web:color": "red",
            "web:password": { "secure": "v1:abc" }, "aws:region": "eu-west-1", "web:list": [1] } });
        assert_eq!(merged(&spec, Some(local), in_pod), expected);
    }

    #[test]
    fn a_missing_file_is_empty_and_keeps_the_encryption_of_the_other_file() {
        assert_eq!(merged(&json!({}), None, ""), json!({ "config": {} }));
        let local = "secretsprovider: awskms://a\nencryptedkey: k\nconfig: {web:a: {secure: x}}";
        let expected =
            json!({ "secretsprovider": "awskms://a", "encryptedkey": "k", "config": { "web:a": { "secure": "x" } } });
        assert_eq!(merged(&json!({}), Some(local), ""), expected);
        let in_pod = "secretsprovider: awskms://b\nencryptedkey: l\nconfig: {web:a: 1}";
        assert_eq!(
            merged(&json!({}), None, in_pod),
            json!({ "secretsprovider": "awskms://b", "encryptedkey": "l", "config": {} })
        );
    }

    #[test]
    fn the_environments_of_the_stack_follow_the_local_environments() {
        let spec = json!({ "environment": ["team/a", "team/b"] });
        let of = |local: &str| merged(&spec, Some(local), "")["environment"].clone();
        assert_eq!(of(""), json!(["team/a", "team/b"]));
        assert_eq!(of("environment: [team/c, team/a]"), json!(["team/c", "team/a", "team/b"]));
        assert_eq!(of("environment: {imports: [x]}"), json!({ "imports": ["x", "team/a", "team/b"] }));
    }

    #[test]
    fn an_invalid_file_is_rejected() {
        for text in ["a", "[]", "config: ["] {
            let error = merge(&stack("web", &json!({}), &json!({})), "web", Some(text), "").unwrap_err();
            assert!(error.to_string().contains("local settings file"), "{error}");
        }
    }
}

//! The settings file of a stack, `Pulumi.<stack>.yaml`, as a state: rebuilt from what is wanted, never edited.
//!
//! To the engine every top-level config value is a text (`5` and `"5"` are the same, and the YAML runtime makes a number of both;
//! other runtimes ask for the type they want), while values inside arrays and objects keep their JSON type. `pulumi config
//! set-all --json` writes bare numbers and booleans and quoted strings into the file, and so does [`rebuild`].
//! Numbers beyond 64 bits are kept to the precision of a double, as Kubernetes itself does.

use std::collections::BTreeMap;

use serde_json::Value;

use super::document::{self, Mapping, Node, Scalar};

/// The keys by which the CLI finds the key that a stack's secrets are encrypted with.
const ENCRYPTION_HEADER: [&str; 3] = ["secretsprovider", "encryptedkey", "encryptionsalt"];
const CONFIG: &str = "config";
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
/// no header: the CLI then takes it from the stack's state. The same input gives the same text.
pub fn rebuild(
    original: Option<&str>,
    current: Option<&str>,
    project: &str,
    config: &[(String, Value)],
    format: Format,
) -> Result<String, SettingsError> {
    let mut document = read_original(original)?;
    if !ENCRYPTION_HEADER.iter().any(|name| find(&document, name).is_some()) {
        keep_header(&mut document, current);
    }
    let wanted = wanted_config(project, config)?;
    if !wanted.is_empty() {
        merge_config(&mut document, project, wanted)?;
    }
    match format {
        Format::Yaml | Format::Yml => Ok(document::to_yaml(&document)),
        Format::Json => {
            document::to_json(&document).map_err(|error| SettingsError::Write { reason: error.to_string() })
        }
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

/// The Stack's config by the keys' full names, sorted.
fn wanted_config(project: &str, config: &[(String, Value)]) -> Result<BTreeMap<String, Node>, SettingsError> {
    let mut wanted = BTreeMap::new();
    for (key, value) in config {
        if value.is_null() {
            return Err(SettingsError::Null { key: key.clone() });
        }
        if looks_encrypted(value) {
            return Err(SettingsError::Secure { key: key.clone() });
        }
        let name = full_name(project, key).map_err(|reason| SettingsError::Key { key: key.clone(), reason })?;
        if wanted.insert(name, Node::from(value)).is_some() {
            return Err(SettingsError::Key {
                key: key.clone(),
                reason: "it is given twice, once with its namespace".to_owned(),
            });
        }
    }
    Ok(wanted)
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
fn merge_config(document: &mut Mapping, project: &str, wanted: BTreeMap<String, Node>) -> Result<(), SettingsError> {
    let own = |key: &Scalar| full_name(project, &key.text).is_ok_and(|name| wanted.contains_key(&name));
    let position = document.iter().position(|(key, _)| key.text == CONFIG);
    let mut merged = match position.map(|position| document.remove(position).1) {
        None => Mapping::new(),
        Some(Node::Scalar(scalar)) if scalar.is_null() => Mapping::new(),
        Some(Node::Mapping(entries)) => entries.into_iter().filter(|(key, _)| !own(key)).collect(),
        Some(_) => {
            return Err(SettingsError::Original {
                reason: "its `config` is not a mapping of keys to values".to_owned(),
            });
        }
    };
    merged.extend(wanted.into_iter().map(|(name, value)| (Scalar { text: name, plain: true }, value)));
    let entry = (Scalar { text: CONFIG.to_owned(), plain: true }, Node::Mapping(merged));
    document.insert(position.unwrap_or(document.len()), entry);
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn config(values: &Value) -> Vec<(String, Value)> {
        values.as_object().expect("an object").iter().map(|(key, value)| (key.clone(), value.clone())).collect()
    }

    fn rebuilt(original: &str, current: &str, values: &Value) -> String {
        rebuild(Some(original), Some(current), "web", &config(values), Format::Yaml).expect("it is rebuilt")
    }

    #[test]
    fn the_file_is_named_by_the_last_segment_of_the_stack() {
        let table = [
            ("dev", Format::Yaml, "Pulumi.dev.yaml"),
            ("organization/dev", Format::Yml, "Pulumi.dev.yml"),
            ("organization/project/dev", Format::Json, "Pulumi.dev.json"),
        ];
        for (stack, format, expected) in table {
            assert_eq!(file_name(stack, format), expected);
        }
    }

    #[test]
    fn every_json_type_is_written_as_the_cli_writes_it() {
        let values = json!({
            "array": [1, "2", true, null], "big": 9007199254740993_u64, "bigger": u64::MAX, "empty": "", "false": false,
            "float": 1.5, "lines": "a\nb\n", "negative": -5, "none": "null", "object": {"a": {"b": "5"}},
            "octal": "007", "quote": "a \"b\" \\ é", "small": 1e-7, "text": "plain", "true": "true", "truth": true,
            "emptyList": [], "emptyObject": {},
        });
        let expected = r#"config:
  web:array:
    - 1
    - "2"
    - true
    - null
  web:big: 9007199254740993
  web:bigger: 18446744073709551615
  web:empty: ""
  web:emptyList: []
  web:emptyObject: {}
  web:false: false
  web:float: 1.5
  web:lines: "a\nb\n"
  web:negative: -5
  web:none: "null"
  web:object:
    "a":
      "b": "5"
  web:octal: "007"
  web:quote: "a \"b\" \\ é"
  web:small: 1e-7
  web:text: "plain"
  web:true: "true"
  web:truth: true
"#;
        assert_eq!(rebuilt("", "", &values), expected);
    }

    #[test]
    fn the_sources_own_file_is_the_base_and_the_config_lies_over_it() {
        let original = "config:\n  region: west # ours\n  web:size: 007\n  web:config:old: 1\n  aws:region: eu\n  \
                        secret: {secure: v1:abc}\nenvironment: [one, {two: 2}]\nunknown: yes\n";
        let values = json!({"web:region": "east", "old": 2, "aws:region": "us", "fresh": true});
        let expected = "config:\n  web:size: 007\n  secret:\n    secure: v1:abc\n  aws:region: \"us\"\n  web:fresh: true\n  \
                        web:old: 2\n  web:region: \"east\"\nenvironment:\n  - one\n  -\n    two: 2\nunknown: yes\n";
        assert_eq!(rebuilt(original, "", &values), expected);
    }

    #[test]
    fn a_removed_key_is_gone() {
        let before = rebuilt("", "", &json!({"a": 1, "b": 2}));
        assert_eq!(rebuilt("", &before, &json!({"b": 2})), "config:\n  web:b: 2\n");
        assert_eq!(rebuilt("", &before, &json!({})), "{}\n");
    }

    #[test]
    fn the_encryption_header_is_kept_unless_the_source_has_its_own() {
        let current = "encryptionsalt: v1:abc=:def\nconfig:\n  web:a: 1\n";
        assert_eq!(
            rebuilt("", current, &json!({"b": 2})),
            "encryptionsalt: v1:abc=:def\nconfig:\n  web:b: 2\n".replace("v1:abc=:def", "\"v1:abc=:def\"")
        );
        let current = "encryptedkey: key\nsecretsprovider: awskms://alias/a?region=b\n";
        assert_eq!(
            rebuilt("environment: [x]", current, &json!({})),
            "secretsprovider: \"awskms://alias/a?region=b\"\nencryptedkey: key\nenvironment:\n  - x\n"
        );
        assert_eq!(rebuilt("encryptionsalt: own\n", current, &json!({})), "encryptionsalt: own\n");
        assert_eq!(rebuilt("", "broken: [", &json!({"a": 1})), "config:\n  web:a: 1\n");
    }

    #[test]
    fn the_same_input_gives_the_same_text_and_its_own_text_is_a_fixed_point() {
        let original = "encryptionsalt: x\nconfig:\n  web:z: 1\n  a: 2\n";
        let values = json!({"z": 3, "b": {"d": 1, "c": 2}});
        let first = rebuilt(original, "", &values);
        assert_eq!(rebuilt(original, &first, &values), first);
        assert_eq!(rebuilt(&first, &first, &values), first);
    }

    #[test]
    fn a_json_project_has_json_settings() {
        let original = "{\"config\": {\"web:a\": \"5\", \"web:b\": 5}}";
        let text =
            rebuild(Some(original), None, "web", &config(&json!({"c": [1]})), Format::Json).expect("it is rebuilt");
        let value: Value = serde_json::from_str(&text).expect("it is JSON");
        assert_eq!(value, json!({"config": {"web:a": "5", "web:b": 5, "web:c": [1]}}));
    }

    #[test]
    fn what_the_cli_would_misread_is_refused_by_name() {
        let table = [
            (json!({"a": null}), "config key \"a\" is null; give it a value or remove it"),
            (json!({"a:b:c": 1}), "config key \"a:b:c\" is not valid: a key is `<name>` or `<namespace>:<name>`"),
            (json!({":b": 1}), "config key \":b\" is not valid: a key is `<name>` or `<namespace>:<name>`"),
            (json!({"": 1}), "config key \"\" is not valid: a key is `<name>` or `<namespace>:<name>`"),
            (
                json!({"a": 1, "web:a": 2}),
                "config key \"web:a\" is not valid: it is given twice, once with its namespace",
            ),
            (
                json!({"a": [{"secure": "x"}]}),
                "config key \"a\" holds an object with the one key \"secure\", which the CLI takes for an encrypted value; \
                 name it otherwise",
            ),
        ];
        for (values, expected) in table {
            let error = rebuild(None, None, "web", &config(&values), Format::Yaml).expect_err(expected);
            assert_eq!(error.to_string(), expected);
        }
    }

    #[test]
    fn a_broken_file_in_the_source_is_named_with_its_line() {
        let table =
            [("config:\n  a: [\n", "line "), ("- a\n", "it is not a mapping"), ("config: 5\n", "its `config` is not")];
        for (original, expected) in table {
            let error = rebuild(Some(original), None, "web", &config(&json!({"a": 1})), Format::Yaml)
                .expect_err(original)
                .to_string();
            let prefix = format!("the stack's settings file in the source is not valid: {expected}");
            assert!(error.starts_with(&prefix), "{error}");
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(original in any::<String>(), current in any::<String>(), key in any::<String>(), value in any::<String>()) {
            let _ = rebuild(Some(&original), Some(&current), "web", &[(key, Value::String(value))], Format::Yaml);
        }
    }
}

//! Configuration of a Workspace's stacks: mounted objects, and settings for a run. Pure functions.

use std::collections::{BTreeMap, BTreeSet};

use super::mounted::{Mounted, check_key, check_name};
use super::spec_error::SpecError;
use crate::api::auto::{ConfigItem, ConfigValueFrom, WorkspaceSpec};
use crate::controller::references::Reference;
use crate::rpc::proto;

/// Returns the Secrets and ConfigMaps that the configuration of all stacks refers to.
pub(super) fn mounted(spec: &WorkspaceSpec) -> BTreeSet<Mounted<'_>> {
    let items = spec.stacks.iter().flat_map(|stack| &stack.config);
    items.filter_map(|item| key_of(item.value_from.as_ref()?)).map(|(mounted, _)| mounted).collect()
}

/// Returns the objects that must exist before a run of this stack starts.
pub(super) fn required(spec: &WorkspaceSpec, stack: &str) -> Vec<Reference> {
    let stack = spec.stacks.iter().find(|found| found.name == stack);
    let items = stack.into_iter().flat_map(|stack| &stack.config);
    let required = items.filter_map(|item| {
        let (mounted, _) = key_of(item.value_from.as_ref()?)?;
        Some(mounted.referred_to_by(format!("config key {}", item.key)))
    });
    required.collect()
}

/// Returns the files in mounted Secrets and ConfigMaps from which the configuration of all stacks is read. A change of one of
/// them triggers a run. Variables and files of other volumes are not included.
pub fn config_files(spec: &WorkspaceSpec) -> BTreeSet<String> {
    let items = spec.stacks.iter().flat_map(|stack| &stack.config);
    let keys = items.filter_map(|item| key_of(item.value_from.as_ref()?));
    keys.map(|(mounted, key)| format!("{}/{key}", mounted.directory())).collect()
}

/// Returns the complete settings of one stack.
pub fn settings(spec: &WorkspaceSpec, stack: &str) -> Result<proto::Settings, SpecError> {
    let Some(found) = spec.stacks.iter().find(|found| found.name == stack) else {
        return Ok(proto::Settings { stack: stack.to_owned(), ..proto::Settings::default() });
    };
    let config = found.config.iter().map(item).collect::<Result<_, _>>()?;
    Ok(proto::Settings { stack: stack.to_owned(), config, environments: found.environment.clone() })
}

/// Validates the configuration of all stacks.
pub(super) fn check(spec: &WorkspaceSpec) -> Result<(), SpecError> {
    for stack in &spec.stacks {
        settings(spec, &stack.name)?;
        let mut sources: BTreeMap<&str, usize> = BTreeMap::new();
        for item in &stack.config {
            *sources.entry(item.key.as_str()).or_default() += 1;
        }
        if let Some((key, _)) = sources.into_iter().find(|(_, count)| *count > 1) {
            return Err(invalid(key, "duplicate key"));
        }
    }
    Ok(())
}

fn item(item: &ConfigItem) -> Result<proto::ConfigItem, SpecError> {
    check_config_key(item).map_err(|what| invalid(&format!("{:?}", item.key), what))?;
    let plain = proto::ConfigItem {
        key: item.key.clone(),
        path: item.path.unwrap_or_default(),
        secret: item.secret.unwrap_or_default(),
        ..proto::ConfigItem::default()
    };
    let Some(from) = &item.value_from else {
        return match item.value.is_null() {
            true => Err(invalid(&item.key, "value or valueFrom is required")),
            false => Ok(proto::ConfigItem { value: item.value.to_string(), ..plain }),
        };
    };
    let given =
        [from.env.is_some(), from.path.is_some(), from.secret_key_ref.is_some(), from.config_map_key_ref.is_some()];
    if !item.value.is_null() || given.iter().filter(|is_given| **is_given).count() != 1 {
        return Err(invalid(
            &item.key,
            "exactly one of value, valueFrom.env, path, secretKeyRef and configMapKeyRef is required",
        ));
    }
    let from_there = proto::ConfigItem { json: from.json.unwrap_or_default(), ..plain };
    if let Some((mounted, key)) = key_of(from) {
        check_name(mounted).and_then(|()| check_key(key)).map_err(|what| invalid(&item.key, what))?;
        return Ok(proto::ConfigItem { file: format!("{}/{key}", mounted.directory()), ..from_there });
    }
    let (variable, file) = (from.env.clone().unwrap_or_default(), from.path.clone().unwrap_or_default());
    Ok(proto::ConfigItem { variable, file, ..from_there })
}

fn key_of(from: &ConfigValueFrom) -> Option<(Mounted<'_>, &str)> {
    let secret = from.secret_key_ref.as_ref().map(|secret| (Mounted::Secret(&secret.name), secret.key.as_str()));
    let config_map = || from.config_map_key_ref.as_ref().map(|map| (Mounted::ConfigMap(&map.name), map.key.as_str()));
    secret.or_else(config_map)
}

/// Validates a key for the settings file of a stack: `<name>`, `<namespace>:<name>` or, for a path, one of these followed by
/// steps into the value. The agent parses the path.
fn check_config_key(item: &ConfigItem) -> Result<(), &'static str> {
    let key = item.key.as_str();
    if key.trim().is_empty() {
        return Err("key must not be empty");
    }
    if key.chars().any(char::is_control) {
        return Err("key must not contain control characters");
    }
    let is_padded = |part: &str| part.trim() != part;
    if is_padded(key) {
        return Err("key must not begin or end with white space");
    }
    let is_path = item.path.unwrap_or_default();
    let end = if is_path { key.find(['.', '[']).unwrap_or(key.len()) } else { key.len() };
    let (full_name, steps) = key.split_at(end);
    if let Some((namespace, name)) = full_name.split_once(':') {
        if namespace.is_empty() || (name.is_empty() && steps.is_empty()) {
            return Err("key must be `<name>` or `<namespace>:<name>`");
        }
        if namespace.contains(char::is_whitespace) {
            return Err("namespace of the key must not contain white space");
        }
    }
    // A colon followed by a space ends a key of the settings file, even within a name.
    if full_name.split(':').any(is_padded) || key.contains(": ") {
        return Err("key must not contain white space next to a colon");
    }
    let is_padded_step = match steps.contains('"') {
        true => steps.contains("[\" ") || steps.contains(" \"]"),
        false => steps.split(['.', '[', ']']).any(is_padded),
    };
    if is_padded_step {
        return Err("names in the path of the key must not begin or end with white space");
    }
    Ok(())
}

fn invalid(key: &str, what: &'static str) -> SpecError {
    SpecError::Config { key: key.to_owned(), what }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn spec(config: Value) -> WorkspaceSpec {
        let stack = json!({"name": "dev", "config": config, "environment": ["org/env"]});
        serde_json::from_value(json!({"stacks": [stack]})).expect("a spec")
    }

    fn parsed(item: Value) -> Result<Value, String> {
        let spec = spec(json!([item]));
        check(&spec).map_err(|error| error.to_string())?;
        let item = settings(&spec, "dev").map_err(|error| error.to_string())?.config.remove(0);
        Ok(json!([item.value, item.file, item.variable, item.json, item.path, item.secret]))
    }

    #[test]
    fn config_values_are_passed_by_value_file_or_variable() {
        let secrets = "/var/run/secrets/stacks.pulumi.com/secrets";
        let maps = "/var/run/configmaps/stacks.pulumi.com/configmaps";
        let rows = [
            (json!({"key": "a", "value": {"b": 1}}), json!(["{\"b\":1}", "", "", false, false, false])),
            (
                json!({"key": "a", "value": "x", "secret": true, "path": true}),
                json!(["\"x\"", "", "", false, true, true]),
            ),
            (json!({"key": "a", "valueFrom": {"env": "E"}}), json!(["", "", "E", false, false, false])),
            (json!({"key": "a", "valueFrom": {"path": "/f", "json": true}}), json!(["", "/f", "", true, false, false])),
            (
                json!({"key": "a", "secret": true, "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}),
                json!(["", format!("{secrets}/s/k"), "", false, false, true]),
            ),
            (
                json!({"key": "a", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}, "json": true}}),
                json!(["", format!("{maps}/c/k"), "", true, false, false]),
            ),
        ];
        for (item, wanted) in rows {
            assert_eq!(parsed(item.clone()), Ok(wanted), "{item}");
        }
        let both = spec(json!([
            {"key": "a", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
            {"key": "b", "valueFrom": {"configMapKeyRef": {"name": "s", "key": "k"}}},
        ]));
        assert_eq!(mounted(&both), [Mounted::Secret("s"), Mounted::ConfigMap("s")].into());
        assert_eq!(config_files(&both), [format!("{secrets}/s/k"), format!("{maps}/s/k")].into());
        let users = spec(json!([
            {"key": "a", "value": 1},
            {"key": "b", "valueFrom": {"env": "E"}},
            {"key": "c", "valueFrom": {"path": "/var/run/secrets/tokens/token"}},
        ]));
        assert_eq!(
            config_files(&users),
            BTreeSet::new(),
            "variables, user volumes and projected tokens never run anything"
        );
        assert_eq!(settings(&both, "dev").expect("valid").environments, ["org/env"]);
        assert_eq!(settings(&both, "other").expect("valid").config, []);
    }

    #[test]
    fn an_invalid_config_entry_is_rejected_by_key() {
        let reference = |name: &str, key: &str| json!({"secretKeyRef": {"name": name, "key": key}});
        let rows = [
            (json!({"key": "a"}), "value or valueFrom is required"),
            (json!({"key": "a", "valueFrom": {}}), "exactly one of"),
            (json!({"key": "a", "valueFrom": {"env": "E", "path": "/f"}}), "exactly one of"),
            (json!({"key": "a", "value": 1, "valueFrom": {"env": "E"}}), "exactly one of"),
            (json!({"key": "a", "valueFrom": reference("../s", "k")}), "must be the name of a Secret"),
            (json!({"key": "a", "valueFrom": reference("s", "../k")}), "must be a key of a Secret"),
        ];
        for (item, wanted) in rows {
            let error = parsed(item.clone()).expect_err("refused");
            assert!(error.starts_with("config key a: ") && error.contains(wanted), "{item}: {error}");
        }
        let error = check(&spec(json!([{"key": "a", "value": 1}, {"key": "a", "value": 2}]))).expect_err("refused");
        assert_eq!(error.to_string(), "config key a: duplicate key");
    }

    #[test]
    fn an_invalid_config_key_is_rejected_by_name() {
        let rows = [
            ("", false, "config key \"\": key must not be empty"),
            (" ", false, "config key \" \": key must not be empty"),
            (" a", false, "config key \" a\": key must not begin or end with white space"),
            ("a ", true, "config key \"a \": key must not begin or end with white space"),
            ("a: b", false, "config key \"a: b\": key must not contain white space next to a colon"),
            ("a:b: c", false, "config key \"a:b: c\": key must not contain white space next to a colon"),
            ("a :b", false, "config key \"a :b\": namespace of the key must not contain white space"),
            ("- a:b", false, "config key \"- a:b\": namespace of the key must not contain white space"),
            (":a", false, "config key \":a\": key must be `<name>` or `<namespace>:<name>`"),
            ("a:", false, "config key \"a:\": key must be `<name>` or `<namespace>:<name>`"),
            ("x\nencryptionsalt", false, "config key \"x\\nencryptionsalt\": key must not contain control characters"),
            ("a.b\u{7f}", true, "config key \"a.b\\u{7f}\": key must not contain control characters"),
            ("a: b.c", true, "config key \"a: b.c\": key must not contain white space next to a colon"),
            ("a[\"x: y\"]", true, "config key \"a[\\\"x: y\\\"]\": key must not contain white space next to a colon"),
            ("a. b", true, "config key \"a. b\": names in the path of the key must not begin or end with white space"),
            (
                "a[\" b\"]",
                true,
                "config key \"a[\\\" b\\\"]\": names in the path of the key must not begin or end with white space",
            ),
        ];
        for (key, is_path, wanted) in rows {
            assert_eq!(parsed(json!({"key": key, "value": 1, "path": is_path})), Err(wanted.to_owned()), "{key:?}");
        }
    }

    #[test]
    fn every_valid_pulumi_config_key_is_accepted() {
        let names =
            ["a", "aws:region", "aws:config:region", "my-app:db.host", "with space", "a.b", "list[0]", "é", "a#b"];
        let paths = [
            "a",
            "a.b",
            "aws:own.kept",
            "list[0].name",
            "a[\"x.y\"].z",
            "a[\"x y\"]",
            "a[\"Mr. X\"]",
            r#"a["with \"quotes\" [and] \\"]"#,
            "[\"root key\"].x",
            "aws:[\"x\"]",
        ];
        for (key, is_path) in names.map(|name| (name, false)).into_iter().chain(paths.map(|path| (path, true))) {
            let parsed = parsed(json!({"key": key, "value": 1, "path": is_path}));
            assert!(parsed.is_ok(), "{key:?}: {parsed:?}");
        }
    }
}

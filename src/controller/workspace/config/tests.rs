//! Tests for the validation of the configuration and for its delivery to runs.

use serde_json::{Value, json};

use super::*;

fn spec(config: Value) -> WorkspaceSpec {
    let stack = json!({"name": "dev", "config": config, "environment": ["org/env"]});
    serde_json::from_value(json!({"stacks": [stack]})).expect("valid spec")
}

fn parsed(item: Value) -> Result<Value, String> {
    let spec = spec(json!([item]));
    check(&spec).map_err(|error| error.to_string())?;
    let item = settings(&spec, "dev").map_err(|error| error.to_string())?.config.remove(0);
    Ok(json!([item.value, item.file, item.variable, item.json, item.path, item.secret]))
}

#[test]
fn config_values_are_passed_as_value_file_or_variable() {
    let secrets = "/var/run/secrets/stacks.pulumi.com/secrets";
    let maps = "/var/run/configmaps/stacks.pulumi.com/configmaps";
    let rows = [
        (json!({"key": "a", "value": {"b": 1}}), json!(["{\"b\":1}", "", "", false, false, false])),
        (json!({"key": "a", "value": "x", "secret": true, "path": true}), json!(["\"x\"", "", "", false, true, true])),
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
    for (item, expected) in rows {
        assert_eq!(parsed(item.clone()), Ok(expected), "{item}");
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
        "variables, user volumes and projected tokens never trigger a run"
    );
    assert_eq!(settings(&both, "dev").expect("valid").environments, ["org/env"]);
    assert_eq!(settings(&both, "other").expect("valid").config, []);
}

#[test]
fn the_error_for_an_invalid_config_entry_contains_its_key() {
    let reference = |name: &str, key: &str| json!({"secretKeyRef": {"name": name, "key": key}});
    let rows = [
        (json!({"key": "a"}), "value or valueFrom is required"),
        (json!({"key": "a", "valueFrom": {}}), "exactly one of"),
        (json!({"key": "a", "valueFrom": {"env": "E", "path": "/f"}}), "exactly one of"),
        (json!({"key": "a", "value": 1, "valueFrom": {"env": "E"}}), "exactly one of"),
        (json!({"key": "a", "valueFrom": reference("../s", "k")}), "must be the name of a Secret"),
        (json!({"key": "a", "valueFrom": reference("s", "../k")}), "must be a key of a Secret"),
    ];
    for (item, expected) in rows {
        let error = parsed(item.clone()).expect_err("should be rejected");
        assert!(error.starts_with("config key a: ") && error.contains(expected), "{item}: {error}");
    }
    let error = check(&spec(json!([{"key": "a", "value": 1}, {"key": "a", "value": 2}]))).expect_err("rejected");
    assert_eq!(error.to_string(), "config key a: duplicate key");
}

#[test]
fn the_error_for_an_invalid_config_key_contains_the_key() {
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
    for (key, is_path, expected) in rows {
        assert_eq!(parsed(json!({"key": key, "value": 1, "path": is_path})), Err(expected.to_owned()), "{key:?}");
    }
}

#[test]
fn every_valid_pulumi_config_key_is_accepted() {
    let names = ["a", "aws:region", "aws:config:region", "my-app:db.host", "with space", "a.b", "list[0]", "é", "a#b"];
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

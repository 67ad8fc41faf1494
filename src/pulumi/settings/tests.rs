//! Tests for rebuilt settings files.

use proptest::prelude::*;
use serde_json::json;

use super::*;

fn entry(key: &str, value: &Value) -> Entry {
    Entry { key: key.to_owned(), value: value.clone(), is_path: false, is_secret: false }
}

fn config(values: &Value) -> Vec<Entry> {
    values.as_object().expect("JSON object").iter().map(|(key, value)| entry(key, value)).collect()
}

fn plainly(config: &[Entry]) -> Desired<'_> {
    Desired { config, ..Desired::default() }
}

#[test]
fn environments_are_appended_to_those_of_the_source() {
    let rows = [
        ("", "environment:\n  - \"org/one\"\n  - \"two\"\n"),
        ("environment: [two, three]", "environment:\n  - two\n  - three\n  - \"org/one\"\n"),
        (
            "environment: {imports: [a], values: {b: 1}}",
            "environment:\n  imports:\n    - a\n    - \"org/one\"\n    - \"two\"\n  values:\n    b: 1\n",
        ),
        ("environment: {values: {}}", "environment:\n  values: {}\n  imports:\n    - \"org/one\"\n    - \"two\"\n"),
    ];
    let environments = ["org/one".to_owned(), "two".to_owned()];
    let desired = Desired { environments: &environments, ..Desired::default() };
    for (original, expected) in rows {
        let rebuilt = rebuild(Some(original), None, "web", &desired, Format::Yaml).expect("rebuilt settings");
        assert_eq!(rebuilt.text, expected);
    }
    let error = rebuild(Some("environment: 5"), None, "web", &desired, Format::Yaml).expect_err("refused");
    assert!(error.to_string().ends_with("`environment` is not a list of names"), "{error}");
}

#[test]
fn tags_are_added_unless_the_user_has_set_them() {
    let tags = [("flux:revision".to_owned(), "main@sha1:a".to_owned()), ("team".to_owned(), "5".to_owned())];
    let added = "  pulumi:tags:\n    \"flux:revision\": \"main@sha1:a\"\n    \"team\": \"5\"\n";
    let kept = |value: &str| format!("config:\n  pulumi:tags: {value}\n");
    let rows = [
        ("", json!({}), format!("config:\n{added}")),
        ("config:\n  web:a: 1\n", json!({}), format!("config:\n  web:a: 1\n{added}")),
        ("config:\n", json!({}), format!("config:\n{added}")),
        (
            "config:\n  pulumi:tags: {team: web, owner: ada}\n",
            json!({}),
            "config:\n  pulumi:tags:\n    team: web\n    owner: ada\n    \"flux:revision\": \"main@sha1:a\"\n"
                .to_owned(),
        ),
        (
            "config:\n  pulumi:tags: {owner: ada}\n",
            json!({"pulumi:tags": {"team": "web"}}),
            "config:\n  pulumi:tags:\n    \"team\": \"web\"\n    \"flux:revision\": \"main@sha1:a\"\n".to_owned(),
        ),
        (
            "config:\n  pulumi:config:tags: {}\n",
            json!({}),
            format!("config:\n{}", added.replace("pulumi:tags", "pulumi:config:tags")),
        ),
        // The CLI rejects tags in the file of a stack whose configuration Pulumi ESC manages.
        ("environment:\n  values:\n    a: b\n", json!({}), "environment:\n  values:\n    a: b\n".to_owned()),
        (
            "environment:\n  values:\n    a: b\nconfig:\n  a: b\n",
            json!({}),
            format!("environment:\n  values:\n    a: b\nconfig:\n  a: b\n{}", added),
        ),
        ("environment:\n  - web\n", json!({}), format!("environment:\n  - web\nconfig:\n{added}")),
        // Invalid tags remain unchanged, because the CLI reports them.
        ("config: {pulumi:tags: web}", json!({}), kept("web")),
        ("config: {pulumi:tags: null}", json!({}), kept("null")),
        ("config: {pulumi:tags: [web]}", json!({}), kept("\n    - web")),
        ("config: {pulumi:tags: {team: 5}}", json!({}), kept("\n    team: 5")),
        ("config: {pulumi:tags: {team: {a: b}}}", json!({}), kept("\n    team:\n      a: b")),
        ("config: {pulumi:tags: {secure: v1-a}}", json!({}), kept("\n    secure: v1-a")),
    ];
    for (original, values, expected) in rows {
        let config = config(&values);
        let desired = Desired { tags: &tags, ..plainly(&config) };
        let rebuilt = rebuild(Some(original), None, "web", &desired, Format::Yaml).expect("rebuilt settings");
        // If the value is on the next line, no space follows the colon.
        assert_eq!(rebuilt.text, expected.replace(": \n", ":\n"), "{original}");
        let without = rebuild(Some(original), None, "web", &plainly(&config), Format::Yaml).expect("rebuilt settings");
        assert!(!without.text.contains("flux:revision"), "{original}");
    }
}

#[test]
fn tags_of_the_project_are_kept_because_the_settings_file_replaces_them() {
    let tags = [("flux:revision".to_owned(), "main-1".to_owned()), ("team".to_owned(), "shop".to_owned())];
    let rows = [
        ("", json!(null), "config:\n  pulumi:tags:\n    \"flux:revision\": \"main-1\"\n    \"team\": \"shop\"\n"),
        (
            "",
            json!({"team": "web"}),
            "config:\n  pulumi:tags:\n    \"team\": \"web\"\n    \"flux:revision\": \"main-1\"\n",
        ),
        (
            "config: {pulumi:tags: {team: ops}}",
            json!({"team": "web", "owner": "ada"}),
            "config:\n  pulumi:tags:\n    team: ops\n    \"flux:revision\": \"main-1\"\n",
        ),
        ("", json!("web"), "config: {}\n"),
        ("", json!({"team": 5}), "config: {}\n"),
    ];
    for (original, of_project, expected) in rows {
        let desired = Desired { tags: &tags, project_tags: Some(&of_project), ..Desired::default() };
        let rebuilt = rebuild(Some(original), None, "web", &desired, Format::Yaml).expect("rebuilt settings");
        assert_eq!(rebuilt.text, expected, "{original} {of_project}");
    }
}

#[test]
fn tags_are_added_to_values_at_paths() {
    let tags = [("team".to_owned(), "web".to_owned()), ("flux:revision".to_owned(), "main@sha1:a".to_owned())];
    let path = Entry { is_path: true, ..entry("pulumi:tags.team", &json!("shop")) };
    let desired = Desired { tags: &tags, ..plainly(std::slice::from_ref(&path)) };
    let rebuilt = rebuild(None, None, "web", &desired, Format::Yaml).expect("rebuilt settings");
    let expected = "config:\n  pulumi:tags:\n    team: \"shop\"\n    \"flux:revision\": \"main@sha1:a\"\n";
    assert_eq!(rebuilt.text, expected);
}

fn rebuilt(original: &str, current: &str, values: &Value) -> String {
    let rebuilt = rebuild(
        Some(original),
        Some(current),
        "web",
        &Desired { config: &config(values), ..Desired::default() },
        Format::Yaml,
    );
    let rebuilt = rebuilt.expect("rebuilt settings");
    assert!(rebuilt.missing_secrets.is_empty());
    rebuilt.text
}

#[test]
fn path_values_are_merged_into_existing_structures() {
    let path = |key: &str, value: Value| Entry { is_path: true, ..entry(key, &value) };
    let config = [
        path("list[1]", json!("5")),
        path("list[0]", json!("x")),
        path("web:object.deep[\"a.b\"]", json!("true")),
        path("top", json!("5")),
        path("aws:own.kept", json!({"a": "5"})),
        entry("object", &json!({"flat": 1})),
    ];
    let original = "config:\n  aws:own: {other: 007}\n";
    let expected = "config:\n  aws:own:\n    other: 007\n    kept:\n      \"a\": \"5\"\n  web:object:\n    \"flat\": 1\n    \
                    deep:\n      a.b: true\n  web:list:\n    - \"x\"\n    - 5\n  web:top: \"5\"\n";
    let text = rebuild(Some(original), None, "web", &plainly(&config), Format::Yaml).expect("rebuilt settings").text;
    assert_eq!(text, expected);
    let table = [
        (path("a.", json!(1)), "invalid config key \"a.\": empty name"),
        (
            path("list[2]", json!(1)),
            "invalid config key \"list[2]\": index 2 is out of range: the length of the list is 0",
        ),
        (
            Entry { is_secret: true, ..path("a.b", json!({"c": 1})) },
            "invalid config key \"a.b\": a secret at a path must be a string, not an object or a list",
        ),
    ];
    for (entry, expected) in table {
        let error = rebuild(None, None, "web", &plainly(&[entry]), Format::Yaml).expect_err(expected);
        assert_eq!(error.to_string(), expected);
    }
}

#[test]
fn encrypted_secrets_are_kept_and_the_cli_encrypts_missing_ones() {
    let secret = |key: &str, is_path: bool| Entry { is_path, is_secret: true, ..entry(key, &json!("hidden")) };
    let config = [secret("token", false), secret("list[0].password", true), entry("plain", &json!(1))];
    let rebuild = |current: &str, kept: &[&str]| {
        let kept: Vec<String> = kept.iter().map(|key| (*key).to_owned()).collect();
        let desired = Desired { kept_secrets: &kept, ..plainly(&config) };
        let rebuilt = rebuild(None, Some(current), "web", &desired, Format::Yaml).expect("rebuilt settings");
        assert!(!rebuilt.text.contains("hidden"), "{}", rebuilt.text);
        (rebuilt.text, rebuilt.missing_secrets.join(" "))
    };
    let (token, password) = ("token", "list[0].password");
    let without = "config:\n  web:plain: 1\n  web:list:\n    -\n      password: \"\"\n".to_owned();
    assert_eq!(rebuild("", &[token, password]), (without.clone(), "token list[0].password".to_owned()));
    let current = "config:\n  web:token:\n    secure: v1:a\n  web:list:\n    - password:\n        secure: v1:b\n";
    assert_eq!(
        rebuild(current, &[]),
        (without, "token list[0].password".to_owned()),
        "the encrypted value of a changed secret is not reused"
    );
    let (text, missing) = rebuild(current, &[token, password]);
    assert_eq!(missing, "");
    assert!(text.contains("v1:a") && text.contains("v1:b") && text.contains("web:plain"), "{text}");
    let (text, missing) = rebuild(current, &[password]);
    assert_eq!(missing, token, "the encrypted value of a changed secret at a path is not reused");
    assert!(!text.contains("v1:a") && text.contains("v1:b"), "{text}");
    let (text, missing) = rebuild("config:\n  web:token: plain\n", &[token]);
    assert_eq!(missing, "token list[0].password");
    assert!(!text.contains("web:token"), "plain values are not kept as secrets: {text}");
}

#[test]
fn encrypted_secrets_are_kept_only_with_their_encryption_header() {
    let config = [Entry { is_secret: true, ..entry("token", &json!("hidden")) }];
    let kept = ["token".to_owned()];
    let current = |header: &str| format!("{header}config:\n  web:token:\n    secure: v1:a\n");
    let (salt, key) = ("encryptionsalt: v1:abc=:def\n", "secretsprovider: awskms://alias/a\nencryptedkey: key\n");
    let rows = [
        (None, "", true),
        (None, salt, true),
        (Some("encryptionsalt: \"v1:abc=:def\"\n"), salt, true),
        (Some(key), key, true),
        (Some("secretsprovider: default\n"), "", true),
        (Some("encryptionsalt: v1:other=:def\n"), salt, false),
        (Some(key), salt, false),
        (Some(salt), "", false),
        // The CLI creates another key, because the source does not contain the key.
        (Some("secretsprovider: awskms://alias/a\n"), key, false),
    ];
    for (original, header, expected) in rows {
        let desired = Desired { kept_secrets: &kept, ..plainly(&config) };
        let current = current(header);
        let rebuilt = rebuild(original, Some(&current), "web", &desired, Format::Yaml).expect("rebuilt settings");
        assert_eq!(rebuilt.missing_secrets.is_empty(), expected, "{original:?} {header}");
        assert_eq!(rebuilt.text.contains("v1:a\n") || rebuilt.text.contains("\"v1:a\""), expected, "{}", rebuilt.text);
    }
}

#[test]
fn the_settings_file_has_the_last_segment_of_the_stack_name() {
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
fn every_json_type_is_written_as_in_the_cli() {
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
fn config_values_override_values_in_the_settings_file_of_the_source() {
    let original = "config:\n  region: west # ours\n  web:size: 007\n  web:config:old: 1\n  aws:region: eu\n  \
                    secret: {secure: v1:abc}\nenvironment: [one, {two: 2}]\nunknown: yes\n";
    let values = json!({"web:region": "east", "old": 2, "aws:region": "us", "fresh": true});
    let expected = "config:\n  web:size: 007\n  secret:\n    secure: v1:abc\n  aws:region: \"us\"\n  web:fresh: true\n  \
                    web:old: 2\n  web:region: \"east\"\nenvironment:\n  - one\n  -\n    two: 2\nunknown: yes\n";
    assert_eq!(rebuilt(original, "", &values), expected);
}

#[test]
fn a_removed_config_key_is_omitted_from_the_settings_file() {
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
fn rebuilding_settings_is_deterministic_and_idempotent() {
    let original = "encryptionsalt: x\nconfig:\n  web:z: 1\n  a: 2\n";
    let values = json!({"z": 3, "b": {"d": 1, "c": 2}});
    let first = rebuilt(original, "", &values);
    assert_eq!(rebuilt(original, &first, &values), first);
    assert_eq!(rebuilt(&first, &first, &values), first);
}

#[test]
fn a_json_project_gets_json_settings() {
    let original = "{\"config\": {\"web:a\": \"5\", \"web:b\": 5}}";
    let text = rebuild(Some(original), None, "web", &plainly(&config(&json!({"c": [1]}))), Format::Json)
        .expect("rebuilt settings");
    let value: Value = serde_json::from_str(&text.text).expect("valid JSON");
    assert_eq!(value, json!({"config": {"web:a": "5", "web:b": 5, "web:c": [1]}}));
}

#[test]
fn errors_contain_config_keys_that_the_cli_would_misread() {
    let table = [
        (json!({"a": null}), "config key \"a\" is null: set a value or remove the key"),
        (json!({"a:b:c": 1}), "invalid config key \"a:b:c\": must have the form `<name>` or `<namespace>:<name>`"),
        (json!({":b": 1}), "invalid config key \":b\": must have the form `<name>` or `<namespace>:<name>`"),
        (json!({"": 1}), "invalid config key \"\": must have the form `<name>` or `<namespace>:<name>`"),
        (json!({"a": 1, "web:a": 2}), "invalid config key \"web:a\": set twice, with and without its namespace"),
        (
            json!({"a": [{"secure": "x"}]}),
            "config key \"a\" contains an object whose only key is \"secure\"; the CLI treats such an object as an \
             encrypted value: rename the key \"secure\"",
        ),
    ];
    for (values, expected) in table {
        let error = rebuild(None, None, "web", &plainly(&config(&values)), Format::Yaml).expect_err(expected);
        assert_eq!(error.to_string(), expected);
    }
}

#[test]
fn the_error_for_an_invalid_settings_file_contains_the_line_number() {
    let table = [("config:\n  a: [\n", "line "), ("- a\n", "not a mapping"), ("config: 5\n", "`config` is not")];
    for (original, expected) in table {
        let error = rebuild(Some(original), None, "web", &plainly(&config(&json!({"a": 1}))), Format::Yaml)
            .expect_err(original)
            .to_string();
        let prefix = format!("invalid settings file of the stack in the source: {expected}");
        assert!(error.starts_with(&prefix), "{error}");
    }
}

proptest! {
    #[test]
    fn arbitrary_text_never_causes_a_panic(original in any::<String>(), current in any::<String>(), key in any::<String>(), value in any::<String>()) {
        for (is_path, is_secret) in [(false, false), (false, true), (true, false), (true, true)] {
            let entry = Entry { is_path, is_secret, ..entry(&key, &json!(value)) };
            let environments = [value.clone()];
            let kept = [key.clone()];
            let tags = [("team".to_owned(), value.clone())];
            let desired = Desired {
                config: &[entry],
                environments: &environments,
                kept_secrets: &kept,
                tags: &tags,
                project_tags: None,
            };
            let _ = rebuild(Some(&original), Some(&current), "web", &desired, Format::Yaml);
        }
    }
}

//! Tests for the environment of runs, and for the objects that a run requires.

use serde_json::json;

use super::*;

fn spec(env: Value, pod_template: Option<Value>) -> WorkspaceSpec {
    let env = env.as_array().cloned().expect("is a list");
    WorkspaceSpec { env, pod_template, ..WorkspaceSpec::default() }
}

fn shown(spec: &WorkspaceSpec) -> Vec<String> {
    let show = |EnvironmentVariable { name, source, optional }: EnvironmentVariable| {
        let shown = match source {
            Some(Source::Value(value)) => format!("{name}={value}"),
            Some(Source::File(file)) => format!("{name}<{file}"),
            Some(Source::Directory(directory)) => format!("{name}*<{directory}"),
            Some(Source::Template(template)) => format!("{name}~{template}"),
            Some(Source::Inherited(_)) => format!("{name} inherited"),
            None => name,
        };
        if optional { format!("{shown}?") } else { shown }
    };
    run_environment(spec).expect("valid").into_iter().map(show).collect()
}

#[test]
fn the_environment_of_a_run_has_literal_values_and_paths_of_secrets() {
    let env = json!([
        {"name": "PLAIN", "value": "text"},
        {"name": "EMPTY"},
        {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "pulumi.api", "key": "access_token"}}},
        {"name": "MAYBE", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k", "optional": true}}},
        {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        {"name": "BUILT", "value": "$(PLAIN)-suffix"},
        {"name": "ESCAPED", "value": "a$$b"},
        {"name": "POD_UID", "value": "another pod"},
        {"name": "PULUMI_ENV", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
    ]);
    let expected = [
        "PLAIN=text",
        "EMPTY=",
        "TOKEN</var/run/secrets/stacks.pulumi.com/secrets/pulumi.api/access_token",
        "MAYBE</var/run/secrets/stacks.pulumi.com/secrets/s/k?",
        "NODE inherited",
        "BUILT~$(PLAIN)-suffix",
        "ESCAPED~a$$b",
    ];
    assert_eq!(shown(&spec(env, None)), expected);
}

#[test]
fn a_pod_field_is_inherited_explicitly_only_if_other_variables_depend_on_it() {
    let node = json!({"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}});
    let plain = json!({"name": "PLAIN", "value": "text"});
    assert_eq!(shown(&spec(json!([node, plain]), None)), ["PLAIN=text"]);
    let url = json!({"name": "URL", "value": "http://$(NODE)"});
    assert_eq!(shown(&spec(json!([node, url]), None)), ["NODE inherited", "URL~http://$(NODE)"]);
    let env_from = vec![json!({"secretRef": {"name": "s"}})];
    let spec = WorkspaceSpec { env_from, ..spec(json!([node]), None) };
    assert_eq!(shown(&spec), ["*</var/run/secrets/stacks.pulumi.com/secrets/s", "NODE inherited"]);
}

#[test]
fn the_pod_template_is_merged_into_the_run_environment() {
    let env = json!([{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]);
    let pod_template = json!({"spec": {"containers": [
        {"name": "other", "env": [{"name": "A", "value": "other"}]},
        {"name": "pulumi", "env": [
            {"name": "A", "$patch": "delete"},
            {"name": "C", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
        ]},
    ]}});
    let expected = ["C</var/run/secrets/stacks.pulumi.com/secrets/s/k", "B=2"];
    assert_eq!(shown(&spec(env, Some(pod_template))), expected);
}

#[test]
fn env_variables_take_precedence_over_env_from_entries() {
    let env = json!([{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}}]);
    let env_from = json!([
        {"secretRef": {"name": "s"}},
        {"prefix": "P_", "configMapRef": {"name": "c.d"}},
        {"secretRef": {"name": "maybe", "optional": true}},
    ]);
    let spec = WorkspaceSpec { env_from: env_from.as_array().cloned().expect("is a list"), ..spec(env, None) };
    let expected = [
        "*</var/run/secrets/stacks.pulumi.com/secrets/s",
        "P_*</var/run/configmaps/stacks.pulumi.com/configmaps/c.d",
        "*</var/run/secrets/stacks.pulumi.com/secrets/maybe?",
        "A</var/run/configmaps/stacks.pulumi.com/configmaps/c/k",
    ];
    assert_eq!(shown(&spec), expected);
    let environment = desired(&spec).expect("valid");
    let mounted: Vec<Mounted<'_>> = environment.mounted().into_iter().collect();
    use Mounted::{ConfigMap, Secret};
    assert_eq!(
        mounted,
        [Secret("maybe"), Secret("s"), ConfigMap("c"), ConfigMap("c.d")],
        "including optional references"
    );
}

#[test]
fn an_invalid_env_from_entry_is_rejected() {
    for from in [json!({}), json!({"secretRef": {"name": "../x"}}), json!({"prefix": "A=", "secretRef": {"name": "s"}})]
    {
        let spec = WorkspaceSpec { env_from: vec![from.clone()], ..WorkspaceSpec::default() };
        assert!(run_environment(&spec).is_err(), "{from}");
    }
}

#[test]
fn invalid_secret_keys_and_variable_names_are_rejected() {
    let variable =
        |secret: &str, key: &str| json!([{"name": "A", "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}]);
    for (secret, key) in [("..", "k"), ("a/b", "k"), ("", "k"), ("s", "../k"), ("s", ".."), ("s", ""), ("S", "k")] {
        let error = run_environment(&spec(variable(secret, key), None)).expect_err("should be rejected").to_string();
        assert!(error.starts_with("environment variable A: "), "{secret} {key}: {error}");
    }
    for name in ["", "A=B"] {
        assert!(run_environment(&spec(json!([{"name": name, "value": "x"}]), None)).is_err(), "{name}");
    }
}

#[test]
fn every_mounted_reference_that_is_not_optional_is_required() {
    let key = |name: &str| json!({"name": name, "key": "k"});
    let spec: WorkspaceSpec = serde_json::from_value(json!({
        "env": [
            {"name": "TOKEN", "valueFrom": {"secretKeyRef": key("token")}},
            {"name": "REGION", "valueFrom": {"configMapKeyRef": key("region")}},
            {"name": "MAYBE", "valueFrom": {"secretKeyRef": {"name": "maybe", "key": "k", "optional": true}}},
            {"name": "PLAIN", "value": "x"},
            {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        ],
        "envFrom": [
            {"secretRef": {"name": "aws"}},
            {"configMapRef": {"name": "defaults"}},
            {"secretRef": {"name": "aws"}, "prefix": "AGAIN_"},
            {"configMapRef": {"name": "perhaps", "optional": true}},
        ],
        "podTemplate": {"spec": {"containers": [{"name": "pulumi", "env": [
            {"name": "PROXY", "valueFrom": {"configMapKeyRef": key("proxy")}},
            {"name": "OWN", "valueFrom": {"secretKeyRef": {"name": "own", "key": "k", "optional": true}}},
        ]}]}},
        "stacks": [
            {"name": "dev", "config": [
                {"key": "size", "valueFrom": {"configMapKeyRef": key("settings")}},
                {"key": "password", "secret": true, "valueFrom": {"secretKeyRef": key("database")}},
                {"key": "file", "valueFrom": {"path": "/var/run/token"}},
            ]},
            {"name": "prod", "config": [{"key": "size", "valueFrom": {"configMapKeyRef": key("other")}}]},
        ],
    }))
    .expect("valid spec");
    let named = |stack| -> Vec<String> {
        let named = |reference: Reference| format!("{} {}", reference.object(), reference.referrer);
        let mut named: Vec<String> = references(&spec, stack).into_iter().map(named).collect();
        named.sort();
        named
    };
    let environment = [
        "ConfigMap/defaults envFrom",
        "ConfigMap/proxy environment variable PROXY",
        "ConfigMap/region environment variable REGION",
        "Secret/aws envFrom",
        "Secret/token environment variable TOKEN",
    ];
    assert_eq!(named(None), environment);
    let mut of_dev = environment.to_vec();
    of_dev.extend(["ConfigMap/settings config key size", "Secret/database config key password"]);
    of_dev.sort_unstable();
    assert_eq!(named(Some("dev")), of_dev);
    assert_eq!(named(Some("unknown")), environment);
    let found = references(&spec, None);
    let aws = found.iter().find(|reference| reference.name == "aws").expect("value is set");
    assert_eq!(aws.directory, "/var/run/secrets/stacks.pulumi.com/secrets/aws");
}

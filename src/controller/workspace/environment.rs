//! The environment of the `pulumi` container: what the container gets when the pod starts, and what each run gets.
//!
//! A value from a Secret is read from the mounted Secret at each run, so that a rotated one reaches the next run in the
//! same pod. The container has it as well, as of the pod's start, for a shell in it.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::render::SpecError;
use crate::api::auto::WorkspaceSpec;
use crate::api::names::{PULUMI_CONTAINER, SECRETS_DIRECTORY};
use crate::controller::merge::{POD_TEMPLATE, merge};
use crate::rpc::proto::EnvironmentVariable;
use crate::rpc::proto::environment_variable::Source;

const LONGEST_NAME: usize = 253;

/// One key of a Secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SecretKey<'a> {
    secret: &'a str,
    key: &'a str,
}

/// The environment that the user wants for the `pulumi` container: `spec.env` with what `podTemplate` makes of it.
pub(super) fn wanted(spec: &WorkspaceSpec) -> Result<Vec<Value>, SpecError> {
    let generated = json!({"spec": {"containers": [{"name": PULUMI_CONTAINER, "env": spec.env}]}});
    let merged = match &spec.pod_template {
        Some(pod_template) => merge(generated, pod_template, &POD_TEMPLATE)?,
        None => generated,
    };
    let container = merged
        .pointer("/spec/containers")
        .and_then(Value::as_array)
        .and_then(|containers| containers.iter().find(|container| has_name(container, PULUMI_CONTAINER)));
    let environment = container.and_then(|container| container.get("env")).and_then(Value::as_array);
    let environment = environment.cloned().unwrap_or_default();
    for variable in &environment {
        check(variable)?;
    }
    Ok(environment)
}

/// The Secrets behind an environment.
pub(super) fn secrets(environment: &[Value]) -> BTreeSet<&str> {
    environment.iter().filter_map(secret_key).map(|reference| reference.secret).collect()
}

/// Where a Secret is mounted.
pub(super) fn secret_directory(secret: &str) -> String {
    format!("{SECRETS_DIRECTORY}/{secret}")
}

/// A missing Secret shall not keep the pod from starting: the run names what is missing.
pub(super) fn make_secrets_optional(environment: &mut [Value]) {
    for variable in environment {
        if let Some(reference) = variable.pointer_mut("/valueFrom/secretKeyRef").and_then(Value::as_object_mut) {
            reference.insert("optional".to_owned(), Value::Bool(true));
        }
    }
}

/// The environment of each run: literal values, and files for values from Secrets.
///
/// Not here is what only Kubernetes can resolve: fields of the pod, ConfigMaps, and literals with references to other
/// variables; nor a Secret that may be missing, because a run fails on a file that is not there. The container has them,
/// and the run inherits the container's environment.
pub fn run_environment(spec: &WorkspaceSpec) -> Result<Vec<EnvironmentVariable>, SpecError> {
    Ok(wanted(spec)?.iter().filter_map(run_variable).collect())
}

fn run_variable(variable: &Value) -> Option<EnvironmentVariable> {
    let name = variable.get("name")?.as_str()?.to_owned();
    if variable.pointer("/valueFrom/secretKeyRef/optional") == Some(&Value::Bool(true)) {
        return None;
    }
    let source = match secret_key(variable) {
        Some(SecretKey { secret, key }) => Source::File(format!("{}/{key}", secret_directory(secret))),
        None if variable.get("valueFrom").is_some_and(|from| !from.is_null()) => return None,
        None => {
            let value = variable.get("value").and_then(Value::as_str).unwrap_or_default();
            if value.contains("$(") || value.contains("$$") {
                return None;
            }
            Source::Value(value.to_owned())
        }
    };
    Some(EnvironmentVariable { name, source: Some(source) })
}

fn secret_key(variable: &Value) -> Option<SecretKey<'_>> {
    let reference = variable.pointer("/valueFrom/secretKeyRef")?;
    Some(SecretKey { secret: reference.get("name")?.as_str()?, key: reference.get("key")?.as_str()? })
}

/// Names become paths in the pod, so they are checked before anything is made of them.
fn check(variable: &Value) -> Result<(), SpecError> {
    let name = variable.get("name").and_then(Value::as_str).unwrap_or_default();
    if name.is_empty() || name.contains(['=', '\0']) {
        return Err(SpecError::VariableName { name: name.to_owned() });
    }
    if variable.pointer("/valueFrom/secretKeyRef").is_none_or(Value::is_null) {
        return Ok(());
    }
    let invalid = |what| SpecError::SecretReference { variable: name.to_owned(), what };
    let SecretKey { secret, key } = secret_key(variable).ok_or_else(|| invalid("`name` and `key` are needed"))?;
    if !is_file_name(secret) || secret.contains(|c: char| c == '_' || c.is_ascii_uppercase()) {
        return Err(invalid("`name` is not the name of a Secret"));
    }
    if !is_file_name(key) {
        return Err(invalid("`key` is not a key of a Secret"));
    }
    Ok(())
}

/// What Kubernetes accepts as a key of a Secret; names of Secrets are a part of it.
fn is_file_name(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    !name.is_empty() && name.len() <= LONGEST_NAME && name != "." && !name.starts_with("..") && name.chars().all(plain)
}

/// Whether an item of a list has this name.
pub(super) fn has_name(item: &Value, name: &str) -> bool {
    item.get("name").and_then(Value::as_str) == Some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(env: Value, pod_template: Option<Value>) -> WorkspaceSpec {
        let env = env.as_array().cloned().expect("a list");
        WorkspaceSpec { env, pod_template, ..WorkspaceSpec::default() }
    }

    fn shown(spec: &WorkspaceSpec) -> Vec<String> {
        let show = |variable: EnvironmentVariable| match variable.source {
            Some(Source::Value(value)) => format!("{}={value}", variable.name),
            Some(Source::File(file)) => format!("{}<{file}", variable.name),
            None => variable.name,
        };
        run_environment(spec).expect("valid").into_iter().map(show).collect()
    }

    #[test]
    fn a_run_gets_literals_by_value_and_secrets_by_file() {
        let env = json!([
            {"name": "PLAIN", "value": "text"},
            {"name": "EMPTY"},
            {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "pulumi.api", "key": "access_token"}}},
            {"name": "MAYBE", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k", "optional": true}}},
            {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
            {"name": "BUILT", "value": "$(PLAIN)-suffix"},
            {"name": "ESCAPED", "value": "a$$b"},
        ]);
        let expected =
            ["PLAIN=text", "EMPTY=", "TOKEN</var/run/secrets/stacks.pulumi.com/secrets/pulumi.api/access_token"];
        assert_eq!(shown(&spec(env, None)), expected);
    }

    #[test]
    fn a_run_gets_what_the_pod_template_makes_of_the_environment() {
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
    fn names_that_would_lead_out_of_the_mount_are_refused() {
        let variable = |secret: &str, key: &str| json!([{"name": "A", "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}]);
        for (secret, key) in [("..", "k"), ("a/b", "k"), ("", "k"), ("s", "../k"), ("s", ".."), ("s", ""), ("S", "k")] {
            let error = run_environment(&spec(variable(secret, key), None)).expect_err("refused").to_string();
            assert!(error.starts_with("environment variable A: "), "{secret} {key}: {error}");
        }
        for name in ["", "A=B"] {
            assert!(run_environment(&spec(json!([{"name": name, "value": "x"}]), None)).is_err(), "{name}");
        }
    }
}

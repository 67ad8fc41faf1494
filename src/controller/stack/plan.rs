//! The Workspace that a Stack wants. Pure.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{Resource, ResourceExt};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::api::auto::{ArtifactReference, ConfigItem, Workspace, WorkspaceSpec, WorkspaceStack};
use crate::api::pulumi::{ResourceRef, Stack};
use crate::api::{duration, names};
use crate::controller::merge;

/// On a Workspace: a hash of what its Stack wants of it.
pub const ANNOTATION_WANTED: &str = "pulumi.com/wanted-hash";

/// Why no Workspace can be made of a Stack; only a change of its spec mends it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    #[error("spec.envRefs.{name}: {what}")]
    EnvironmentReference { name: String, what: &'static str },
    #[error("spec.config[\"{0}\"] is null; remove the key or give it a value")]
    NullConfig(String),
    #[error("spec.{0}")]
    Template(String),
    #[error("spec.{field}: {value:?} is no duration; give one such as 1h30m or 45s")]
    Duration { field: &'static str, value: String },
    #[error("the Stack has no {0} in its metadata")]
    Metadata(&'static str),
}

/// The Workspace with this artifact, ready to be applied.
pub fn workspace(stack: &Stack, artifact: &ArtifactReference) -> Result<Workspace, PlanError> {
    let spec = WorkspaceSpec {
        service_account_name: Some(stack.spec.service_account_name.clone().unwrap_or_else(|| "default".to_owned())),
        env: environment(stack)?,
        artifact: Some(artifact.clone()),
        stacks: vec![WorkspaceStack { name: stack.spec.stack.clone(), config: config(stack)? }],
        ..WorkspaceSpec::default()
    };
    let mut generated = Workspace::new(&stack.name_any(), spec);
    generated.metadata.labels = Some(labels(stack));
    let merged = match &stack.spec.workspace_template {
        Some(template) => {
            merge::workspace_template(&generated, template).map_err(|e| PlanError::Template(e.to_string()))?
        }
        None => generated,
    };
    finish(stack, merged)
}

/// Whether the limits of runs can be read.
pub fn check_limits(stack: &Stack) -> Result<(), PlanError> {
    let limits = [("timeout", &stack.spec.timeout), ("idleTimeout", &stack.spec.idle_timeout)];
    for (field, value) in limits {
        if let Some(value) = value.as_ref().filter(|value| duration::seconds(value).is_none()) {
            return Err(PlanError::Duration { field, value: value.clone() });
        }
    }
    Ok(())
}

/// Puts name, owner and hash where no template can reach them.
fn finish(stack: &Stack, mut workspace: Workspace) -> Result<Workspace, PlanError> {
    let hash = hex::encode(Sha256::digest(json!([workspace.metadata, workspace.spec]).to_string()));
    workspace.metadata.name = Some(stack.name_any());
    workspace.metadata.namespace = Some(stack.namespace().ok_or(PlanError::Metadata("namespace"))?);
    workspace.metadata.owner_references = Some(vec![OwnerReference {
        api_version: Stack::api_version(&()).into_owned(),
        kind: Stack::kind(&()).into_owned(),
        name: stack.name_any(),
        uid: stack.uid().ok_or(PlanError::Metadata("UID"))?,
        controller: Some(true),
        block_owner_deletion: Some(true),
    }]);
    workspace.metadata.annotations.get_or_insert_default().insert(ANNOTATION_WANTED.to_owned(), hash);
    Ok(workspace)
}

/// The hash that a planned or a live Workspace carries.
pub fn wanted_hash(workspace: &Workspace) -> Option<&str> {
    workspace.metadata.annotations.as_ref()?.get(ANNOTATION_WANTED).map(String::as_str)
}

/// Labels of everything that belongs to a Stack.
pub fn labels(stack: &Stack) -> BTreeMap<String, String> {
    let shard = stack.labels().get_key_value(names::LABEL_SHARD).map(|(key, value)| (key.clone(), value.clone()));
    let own = [
        (names::LABEL_STACK_COMPONENT, "stack".to_owned()),
        (names::LABEL_STACK_NAME, label_value(&stack.spec.stack)),
        (names::LABEL_WORKSPACE_NAME, stack.name_any()),
    ]
    .map(|(key, value)| (key.to_owned(), value));
    own.into_iter().chain(shard).collect()
}

/// A label value made of any text: other characters become `_`, the end is cut.
fn label_value(text: &str) -> String {
    let clean: String =
        text.chars().map(|c| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '_' }).take(63).collect();
    clean.trim_matches(|c: char| !c.is_ascii_alphanumeric()).to_owned()
}

fn environment(stack: &Stack) -> Result<Vec<Value>, PlanError> {
    let mut variables = Vec::new();
    if let Some(backend) = &stack.spec.backend {
        variables.push(json!({"name": "PULUMI_BACKEND_URL", "value": backend}));
    }
    for (name, reference) in &stack.spec.env_refs {
        variables.retain(|v| v.get("name").and_then(Value::as_str) != Some(name));
        variables.push(variable(name, reference, &stack.namespace().unwrap_or_default())?);
    }
    Ok(variables)
}

fn variable(name: &str, reference: &ResourceRef, namespace: &str) -> Result<Value, PlanError> {
    let refuse = |what| Err(PlanError::EnvironmentReference { name: name.to_owned(), what });
    match (reference.kind.as_str(), &reference.literal, &reference.secret) {
        ("Literal", Some(literal), _) => Ok(json!({"name": name, "value": literal.value})),
        ("Literal", None, _) => refuse("type is Literal, but `literal.value` is missing"),
        ("Secret", _, Some(secret)) => match secret.namespace.as_deref() {
            Some(other) if !other.is_empty() && other != namespace => refuse("cross-namespace refs are not allowed"),
            _ => Ok(json!({
                "name": name,
                "valueFrom": {"secretKeyRef": {"name": secret.name, "key": secret.key}},
            })),
        },
        ("Secret", _, None) => refuse("type is Secret, but `secret.name` and `secret.key` are missing"),
        _ => refuse("type is neither Literal nor Secret"),
    }
}

fn config(stack: &Stack) -> Result<Vec<ConfigItem>, PlanError> {
    let item = |(key, value): (&String, &Value)| match value {
        Value::Null => Err(PlanError::NullConfig(key.clone())),
        value => Ok(ConfigItem { key: key.clone(), value: value.clone() }),
    };
    stack.spec.config.iter().map(item).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::pulumi::{LiteralRef, SecretSelector, StackSpec};

    fn stack(spec: StackSpec) -> Stack {
        let mut stack = Stack::new("app", StackSpec { stack: "org/proj/dev".to_owned(), ..spec });
        stack.metadata.namespace = Some("apps".to_owned());
        stack.metadata.uid = Some("uid-1".to_owned());
        stack
    }

    fn secret(namespace: Option<&str>) -> ResourceRef {
        let namespace = namespace.map(str::to_owned);
        let secret = Some(SecretSelector { namespace, name: "s".to_owned(), key: "k".to_owned() });
        ResourceRef { kind: "Secret".to_owned(), secret, literal: None }
    }

    fn planned(spec: StackSpec) -> Value {
        let planned = planned_workspace(spec);
        serde_json::to_value(planned).expect("json")
    }

    fn planned_workspace(spec: StackSpec) -> Workspace {
        workspace(&stack(spec), &ArtifactReference { digest: "sha256:a".to_owned(), ..Default::default() })
            .expect("it can be planned")
    }

    #[test]
    fn a_stack_becomes_a_workspace() {
        let spec = StackSpec {
            backend: Some("s3://state".to_owned()),
            env_refs: [("TOKEN".to_owned(), secret(Some("apps")))].into(),
            config: [("a".to_owned(), json!(1))].into(),
            ..StackSpec::default()
        };
        let workspace = planned(spec);
        assert_eq!(workspace["spec"]["serviceAccountName"], json!("default"));
        assert_eq!(workspace["spec"]["env"][0], json!({"name": "PULUMI_BACKEND_URL", "value": "s3://state"}));
        assert_eq!(workspace["spec"]["env"][1]["valueFrom"]["secretKeyRef"], json!({"name": "s", "key": "k"}));
        assert_eq!(workspace["spec"]["stacks"][0]["config"][0], json!({"key": "a", "value": 1}));
        assert_eq!(workspace["metadata"]["labels"]["pulumi.com/stack-name"], json!("org_proj_dev"));
        assert_eq!(workspace["metadata"]["ownerReferences"][0]["uid"], json!("uid-1"));
    }

    #[test]
    fn a_template_cannot_change_whose_workspace_it_is() {
        let template = json!({"metadata": {"labels": {"team": "a", "pulumi.com/component": "mine"}}});
        let workspace = planned(StackSpec { workspace_template: Some(template), ..StackSpec::default() });
        assert_eq!(workspace["metadata"]["name"], json!("app"));
        assert_eq!(workspace["metadata"]["namespace"], json!("apps"));
        assert_eq!(workspace["metadata"]["labels"]["team"], json!("a"));
    }

    #[test]
    fn a_limit_that_is_no_duration_is_named() {
        let with = |timeout: &str| stack(StackSpec { timeout: Some(timeout.to_owned()), ..StackSpec::default() });
        assert_eq!(check_limits(&with("1h30m")), Ok(()));
        let error = check_limits(&with("99999999999999999999h")).expect_err("it is refused").to_string();
        assert!(error.contains("spec.timeout"), "{error}");
    }

    #[test]
    fn the_hash_moves_with_every_input() {
        let with =
            |backend: &str| planned_workspace(StackSpec { backend: Some(backend.to_owned()), ..StackSpec::default() });
        assert_eq!(wanted_hash(&with("a")), wanted_hash(&with("a")));
        assert_ne!(wanted_hash(&with("a")), wanted_hash(&with("b")));
    }

    #[test]
    fn a_reference_that_cannot_be_used_is_named() {
        let literal = |literal| ResourceRef { kind: "Literal".to_owned(), secret: None, literal };
        let rows = [
            (secret(Some("other")), "cross-namespace"),
            (literal(None), "`literal.value` is missing"),
            (ResourceRef { secret: None, ..secret(None) }, "are missing"),
            (ResourceRef { kind: "FS".to_owned(), ..secret(None) }, "neither Literal nor Secret"),
        ];
        for (reference, wanted) in rows {
            let error = variable("TOKEN", &reference, "apps").expect_err("it is refused").to_string();
            assert!(error.contains(wanted) && error.contains("spec.envRefs.TOKEN"), "{error}");
        }
        assert!(variable("A", &literal(Some(LiteralRef { value: "x".to_owned() })), "apps").is_ok());
        let null = StackSpec { config: [("a".to_owned(), Value::Null)].into(), ..StackSpec::default() };
        assert_eq!(config(&stack(null)), Err(PlanError::NullConfig("a".to_owned())));
    }
}

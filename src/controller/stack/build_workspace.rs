//! Builds the Workspace of a Stack.

use std::collections::BTreeMap;

use kube::ResourceExt;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::api::auto::{
    ArtifactReference, ConfigItem, ConfigValueFrom, KeyReference, Workspace, WorkspaceSpec, WorkspaceStack,
};
use crate::api::pulumi::{ConfigMapSelector, ConfigReference, ResourceRef, SecretSelector, Stack, StackSpec};
use crate::api::{bounds, duration, names};
use crate::controller::merge;
use crate::controller::stack::ownership;
use crate::pulumi::{backend, stack_name};

/// Error in the spec of a Stack that prevents a run. Only a change of the spec resolves it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    #[error("spec.{field}.{name}: {what}")]
    Reference { field: &'static str, name: String, what: &'static str },
    #[error("config key {key} is given both in spec.{one} and in spec.{other}")]
    GivenTwice { key: String, one: &'static str, other: &'static str },
    #[error("spec.{field}: {what}")]
    Field { field: &'static str, what: String },
    #[error("spec.pathKeys names {0:?}, which is no key of config, configRef, secrets or secretsRef")]
    PathKey(String),
    #[error("spec.config[\"{0}\"] is null; remove the key or give it a value")]
    NullConfig(String),
    #[error("spec.{0}")]
    Template(String),
    #[error("spec.{0}")]
    TooLarge(#[from] merge::TooLarge),
    #[error("spec.{field}: {value:?} is no duration; give one such as 1h30m or 45s")]
    Duration { field: String, value: String },
    #[error("the Stack has no {0} in its metadata")]
    Metadata(&'static str),
}

/// Returns the Workspace with this artifact, ready for server-side apply.
pub fn workspace(stack: &Stack, artifact: &ArtifactReference) -> Result<Workspace, PlanError> {
    let spec = WorkspaceSpec {
        service_account_name: Some(stack.spec.service_account_name.clone().unwrap_or_else(|| "default".to_owned())),
        env: environment(stack)?,
        env_from: environment_from(stack),
        artifact: Some(artifact.clone()),
        pulumi_log_level: stack.spec.pulumi_log_level,
        stacks: vec![WorkspaceStack {
            name: stack.spec.stack.clone(),
            create: must_exist(&stack.spec).then_some(false),
            secrets_provider: stack.spec.secrets_provider.clone(),
            config: config(stack)?,
            environment: stack.spec.environment.clone(),
        }],
        ..WorkspaceSpec::default()
    };
    let mut generated = Workspace::new(&stack.name_any(), spec);
    generated.metadata.labels = Some(labels(stack));
    merge::check_size("workspaceTemplate", stack.spec.workspace_template.as_ref(), bounds::TEMPLATE_BYTES)?;
    let merged = match &stack.spec.workspace_template {
        Some(template) => {
            merge::workspace_template(&generated, template).map_err(|e| PlanError::Template(e.to_string()))?
        }
        None => generated,
    };
    finish(stack, merged)
}

/// Whether a run fails if the Pulumi stack does not exist in the backend.
fn must_exist(spec: &StackSpec) -> bool {
    spec.use_local_stack_only.unwrap_or_default() || spec.init_on_create == Some(false)
}

/// Checks the names of stack and backend. The CLI would report an error only after the pod has started, and again with each retry.
pub fn check_address(stack: &Stack) -> Result<(), PlanError> {
    let field = |field| move |what| PlanError::Field { field, what };
    stack_name::check(&stack.spec.stack).map_err(field("stack"))?;
    let url = stack.spec.backend.as_deref().filter(|url| !url.trim().is_empty());
    url.map_or(Ok(()), backend::check).map_err(field("backend"))
}

/// Checks that the timeouts and intervals of the spec are valid durations.
pub fn check_times(stack: &Stack) -> Result<(), PlanError> {
    let spec = &stack.spec;
    let times = [
        ("timeout", &spec.timeout),
        ("idleTimeout", &spec.idle_timeout),
        ("interval", &spec.interval),
        ("retryInterval", &spec.retry_interval),
    ];
    let times = times.into_iter().map(|(field, value)| (field.to_owned(), value.as_ref()));
    let freshness = spec.prerequisites.iter().map(|prerequisite| {
        let within = prerequisite.requirement.as_ref().and_then(|r| r.succeeded_within_duration.as_ref());
        (format!("prerequisites.{}.requirement.succeededWithinDuration", prerequisite.name), within)
    });
    for (field, value) in times.chain(freshness) {
        if let Some(value) = value.filter(|value| duration::seconds(value).is_none()) {
            return Err(PlanError::Duration { field, value: value.clone() });
        }
    }
    Ok(())
}

/// Sets name, namespace, owner and hash after the template is merged, so that a template cannot override them. Also removes the template's
/// source fields, because the source is delivered as an artifact.
fn finish(stack: &Stack, mut workspace: Workspace) -> Result<Workspace, PlanError> {
    workspace.spec = WorkspaceSpec { git: None, flux: None, local: None, project_info: None, ..workspace.spec };
    let hash = hex::encode(Sha256::digest(json!([workspace.metadata, workspace.spec]).to_string()));
    workspace.metadata.name = Some(stack.name_any());
    workspace.metadata.namespace = Some(stack.namespace().ok_or(PlanError::Metadata("namespace"))?);
    stack.uid().ok_or(PlanError::Metadata("UID"))?;
    workspace.metadata.owner_references = ownership::references(stack);
    workspace.metadata.annotations.get_or_insert_default().insert(ownership::ANNOTATION_WANTED.to_owned(), hash);
    Ok(workspace)
}

/// Returns the labels of all objects that belong to a Stack.
pub fn labels(stack: &Stack) -> BTreeMap<String, String> {
    let shard = stack.labels().get_key_value(names::LABEL_SHARD).map(|(key, value)| (key.clone(), value.clone()));
    let own = [
        (names::LABEL_STACK_COMPONENT, "stack".to_owned()),
        (names::LABEL_STACK_NAME, stack.name_any()),
        (names::LABEL_WORKSPACE_NAME, stack.name_any()),
    ]
    .map(|(key, value)| (key.to_owned(), value));
    own.into_iter().chain(shard).collect()
}

fn environment(stack: &Stack) -> Result<Vec<Value>, PlanError> {
    let mut variables = Vec::new();
    if let Some(backend) = &stack.spec.backend {
        variables.push(json!({"name": "PULUMI_BACKEND_URL", "value": backend}));
    }
    if let Some(secret) = &stack.spec.access_token_secret {
        let reference = json!({"secretKeyRef": {"name": secret, "key": "accessToken"}});
        variables.push(json!({"name": "PULUMI_ACCESS_TOKEN", "valueFrom": reference}));
    }
    for (name, reference) in &stack.spec.env_refs {
        variables.retain(|v| v.get("name").and_then(Value::as_str) != Some(name));
        variables.push(variable(name, reference, &stack.namespace().unwrap_or_default())?);
    }
    Ok(variables)
}

fn environment_from(stack: &Stack) -> Vec<Value> {
    let config_maps = stack.spec.envs.iter().map(|name| json!({"configMapRef": {"name": name}}));
    config_maps.chain(stack.spec.env_secrets.iter().map(|name| json!({"secretRef": {"name": name}}))).collect()
}

/// Location of a value.
enum Place<'a> {
    Here(&'a str),
    Secret(&'a SecretSelector),
    ConfigMap(&'a ConfigMapSelector),
}

/// Returns the location of the referenced value, or the reason why the reference is invalid.
fn place<'a>(reference: &'a ResourceRef, namespace: &str) -> Result<Place<'a>, &'static str> {
    match reference.kind.as_str() {
        "Literal" => match &reference.literal {
            Some(literal) => Ok(Place::Here(&literal.value)),
            None => Err("type is Literal, but `literal.value` is missing"),
        },
        "Secret" => match &reference.secret {
            Some(secret)
                if secret.namespace.as_deref().is_some_and(|other| !other.is_empty() && other != namespace) =>
            {
                Err("cross-namespace refs are not allowed")
            }
            Some(secret) => Ok(Place::Secret(secret)),
            None => Err("type is Secret, but `secret.name` and `secret.key` are missing"),
        },
        "ConfigMap" => match &reference.config_map {
            Some(map) => Ok(Place::ConfigMap(map)),
            None => Err("type is ConfigMap, but `configMap.name` and `configMap.key` are missing"),
        },
        "Env" | "FS" => Err("type Env and FS mean the controller's own environment and files, which no Stack may read"),
        _ => Err("type is neither Literal, Secret nor ConfigMap"),
    }
}

fn variable(name: &str, reference: &ResourceRef, namespace: &str) -> Result<Value, PlanError> {
    let refused = |what| PlanError::Reference { field: "envRefs", name: name.to_owned(), what };
    Ok(match place(reference, namespace).map_err(refused)? {
        Place::Here(value) => json!({"name": name, "value": value}),
        Place::Secret(SecretSelector { name: secret, key, .. }) => {
            json!({"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}})
        }
        Place::ConfigMap(ConfigMapSelector { name: map, key }) => {
            json!({"name": name, "valueFrom": {"configMapKeyRef": {"name": map, "key": key}}})
        }
    })
}

/// Returns the merged configuration of all fields. A key may appear in only one field.
fn config(stack: &Stack) -> Result<Vec<ConfigItem>, PlanError> {
    let namespace = stack.namespace().unwrap_or_default();
    let mut items: BTreeMap<String, (&'static str, ConfigItem)> = BTreeMap::new();
    let mut add = |field: &'static str, item: ConfigItem| match items.get(&item.key) {
        Some((one, _)) => Err(PlanError::GivenTwice { key: item.key.clone(), one, other: field }),
        None => {
            items.insert(item.key.clone(), (field, item));
            Ok(())
        }
    };
    for (key, value) in &stack.spec.config {
        if value.is_null() {
            return Err(PlanError::NullConfig(key.clone()));
        }
        add("config", ConfigItem { key: key.clone(), value: value.clone(), ..ConfigItem::default() })?;
    }
    for (key, ConfigReference { name, key: map_key, json }) in &stack.spec.config_ref {
        let map = KeyReference { name: name.clone(), key: map_key.clone() };
        let from = ConfigValueFrom { config_map_key_ref: Some(map), json: *json, ..ConfigValueFrom::default() };
        add("configRef", ConfigItem { key: key.clone(), value_from: Some(from), ..ConfigItem::default() })?;
    }
    for (key, value) in &stack.spec.secrets {
        let item = ConfigItem { key: key.clone(), value: json!(value), secret: Some(true), ..ConfigItem::default() };
        add("secrets", item)?;
    }
    for (key, reference) in &stack.spec.secrets_ref {
        let refused = |what| PlanError::Reference { field: "secretsRef", name: key.clone(), what };
        add("secretsRef", secret_item(key, place(reference, &namespace).map_err(refused)?))?;
    }
    for key in &stack.spec.path_keys {
        let (_, item) = items.get_mut(key).ok_or_else(|| PlanError::PathKey(key.clone()))?;
        item.path = Some(true);
    }
    Ok(items.into_values().map(|(_, item)| item).collect())
}

fn secret_item(key: &str, place: Place<'_>) -> ConfigItem {
    let from = |secret: Option<KeyReference>, map: Option<KeyReference>| {
        Some(ConfigValueFrom { secret_key_ref: secret, config_map_key_ref: map, ..ConfigValueFrom::default() })
    };
    let item = ConfigItem { key: key.to_owned(), secret: Some(true), ..ConfigItem::default() };
    match place {
        Place::Here(value) => ConfigItem { value: json!(value), ..item },
        Place::Secret(SecretSelector { name, key, .. }) => {
            ConfigItem { value_from: from(Some(KeyReference { name: name.clone(), key: key.clone() }), None), ..item }
        }
        Place::ConfigMap(ConfigMapSelector { name, key }) => {
            ConfigItem { value_from: from(None, Some(KeyReference { name: name.clone(), key: key.clone() })), ..item }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::pulumi::LiteralRef;

    fn stack(spec: StackSpec) -> Stack {
        let mut stack = Stack::new("app", StackSpec { stack: "org/proj/dev".to_owned(), ..spec });
        stack.metadata.namespace = Some("apps".to_owned());
        stack.metadata.uid = Some("uid-1".to_owned());
        stack
    }

    fn secret(namespace: Option<&str>) -> ResourceRef {
        let namespace = namespace.map(str::to_owned);
        let secret = Some(SecretSelector { namespace, name: "s".to_owned(), key: "k".to_owned() });
        ResourceRef { kind: "Secret".to_owned(), secret, ..ResourceRef::default() }
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
    fn a_stack_is_converted_to_a_workspace() {
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
        assert_eq!(workspace["metadata"]["labels"]["pulumi.com/stack-name"], json!("app"));
        assert_eq!(workspace["metadata"]["ownerReferences"][0]["uid"], json!("uid-1"));
    }

    #[test]
    fn config_is_collected_from_all_of_its_fields() {
        let spec = json!({
            "stack": "dev",
            "fluxSource": {"sourceRef": {"kind": "Bucket", "name": "b"}},
            "config": {"plain": [1]},
            "configRef": {"map": {"name": "m", "key": "k", "json": true}},
            "secrets": {"inline": "x"},
            "secretsRef": {
                "literal": {"type": "Literal", "literal": {"value": "y"}},
                "secret": {"type": "Secret", "secret": {"name": "s", "key": "k"}},
            },
            "environment": ["org/env"],
            "pathKeys": ["literal"],
        });
        let read = |spec: Value| serde_json::from_value::<StackSpec>(spec).expect("a spec");
        let planned = planned(read(spec.clone()));
        assert_eq!(
            planned["spec"]["stacks"][0]["config"],
            json!([
                {"key": "inline", "value": "x", "secret": true},
                {"key": "literal", "value": "y", "path": true, "secret": true},
                {"key": "map", "valueFrom": {"configMapKeyRef": {"name": "m", "key": "k"}, "json": true}},
                {"key": "plain", "value": [1]},
                {"key": "secret", "secret": true, "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
            ])
        );
        assert_eq!(planned["spec"]["stacks"][0]["environment"], json!(["org/env"]));
        let refused = |field: &str, value: Value| {
            let mut spec = spec.clone();
            spec[field] = value;
            config(&stack(read(spec))).expect_err("refused").to_string()
        };
        assert_eq!(
            refused("secrets", json!({"plain": "x"})),
            "config key plain is given both in spec.config and in spec.secrets"
        );
        let unknown = refused("pathKeys", json!(["other"]));
        assert!(unknown.starts_with("spec.pathKeys names \"other\", which is no key"), "{unknown}");
        let other = json!({"a": {"type": "Secret", "secret": {"namespace": "other", "name": "s", "key": "k"}}});
        assert_eq!(refused("secretsRef", other), "spec.secretsRef.a: cross-namespace refs are not allowed");
        let env = refused("secretsRef", json!({"a": {"type": "Env", "env": {"name": "A"}}}));
        assert!(env.starts_with("spec.secretsRef.a: type Env and FS mean"), "{env}");
    }

    #[test]
    fn a_workspace_template_cannot_change_name_or_namespace() {
        let template = json!({"metadata": {"labels": {"team": "a", "pulumi.com/component": "mine"}}});
        let workspace = planned(StackSpec { workspace_template: Some(template), ..StackSpec::default() });
        assert_eq!(workspace["metadata"]["name"], json!("app"));
        assert_eq!(workspace["metadata"]["namespace"], json!("apps"));
        assert_eq!(workspace["metadata"]["labels"]["team"], json!("a"));
    }

    #[test]
    fn the_largest_stack_allowed_by_the_schema_fits_into_its_workspace() {
        let entries = usize::try_from(bounds::ENTRIES).expect("small");
        let references = usize::try_from(bounds::REFERENCES).expect("small");
        let names = |prefix: &str, count: usize| -> Vec<String> {
            (0..count).map(|number| format!("{prefix}{number}")).collect()
        };
        let map = |prefix: &str| names(prefix, entries).into_iter();
        let config = ConfigReference { name: "m".to_owned(), key: "k".to_owned(), json: None };
        let workspace = planned_workspace(StackSpec {
            backend: Some("s3://state".to_owned()),
            access_token_secret: Some("token".to_owned()),
            envs: names("env", references),
            env_secrets: names("secret", references),
            env_refs: map("V").map(|name| (name, secret(None))).collect(),
            config: map("c").map(|name| (name, json!(1))).collect(),
            config_ref: map("r").map(|name| (name, config.clone())).collect(),
            secrets: map("s").map(|name| (name, "x".to_owned())).collect(),
            secrets_ref: map("t").map(|name| (name, secret(None))).collect(),
            environment: names("org/env", references),
            ..StackSpec::default()
        });
        let stack = &workspace.spec.stacks[0];
        let counts = [
            (workspace.spec.env.len(), bounds::WORKSPACE_ENV),
            (workspace.spec.env_from.len(), bounds::WORKSPACE_ENV_FROM),
            (stack.config.len(), bounds::WORKSPACE_CONFIG),
            (stack.environment.len(), bounds::WORKSPACE_ENVIRONMENTS),
        ];
        for (found, limit) in counts {
            assert!(found > 0 && u32::try_from(found).expect("small") < limit, "{counts:?}");
        }
    }

    #[test]
    fn templates_over_the_size_limit_are_rejected_by_name() {
        let template = json!({"spec": {"podTemplate": {"spec": {"hostname": "x".repeat(bounds::TEMPLATE_BYTES)}}}});
        let spec = StackSpec { workspace_template: Some(template), ..StackSpec::default() };
        let error = workspace(&stack(spec), &ArtifactReference::default()).expect_err("refused").to_string();
        assert_eq!(error, "spec.workspaceTemplate must be at most 262144 bytes as JSON, but has 262193 bytes");
    }

    #[test]
    fn an_invalid_duration_is_named() {
        let fields = ["timeout", "idleTimeout", "interval", "retryInterval"];
        for field in fields {
            let with = |text: &str| -> Stack {
                stack(serde_json::from_value(json!({"stack": "dev", "fluxSource": {"sourceRef": {"kind": "Bucket", "name": "b"}}, field: text})).expect("a spec"))
            };
            assert_eq!(check_times(&with("1h30m")), Ok(()));
            let error = check_times(&with("99999999999999999999h")).expect_err("it is refused").to_string();
            assert!(error.contains(&format!("spec.{field}")), "{error}");
        }
        let within = json!([{"name": "base", "requirement": {"succeededWithinDuration": "soon"}}]);
        let spec = StackSpec { prerequisites: serde_json::from_value(within).expect("a list"), ..StackSpec::default() };
        let error = check_times(&stack(spec)).expect_err("it is refused").to_string();
        assert!(error.contains("spec.prerequisites.base.requirement.succeededWithinDuration: \"soon\""), "{error}");
    }

    #[test]
    fn stack_name_and_backend_are_validated() {
        let with = |name: &str, backend: Option<&str>| {
            let spec = StackSpec { backend: backend.map(str::to_owned), ..StackSpec::default() };
            let mut stack = stack(spec);
            name.clone_into(&mut stack.spec.stack);
            check_address(&stack).map_err(|error| error.to_string())
        };
        for backend in [None, Some(""), Some("s3://state")] {
            assert_eq!(with("acme/web/dev", backend), Ok(()));
        }
        let error = with("a/b/c/d", None).expect_err("refused");
        assert!(error.starts_with("spec.stack: \"a/b/c/d\" is not the name of a stack"), "{error}");
        let error = with("dev", Some("redis://state")).expect_err("refused");
        assert!(error.starts_with("spec.backend: \"redis://state\" is not the URL of a supported"), "{error}");
    }

    #[test]
    fn the_hash_changes_with_every_input() {
        let with =
            |backend: &str| planned_workspace(StackSpec { backend: Some(backend.to_owned()), ..StackSpec::default() });
        assert_eq!(ownership::wanted_hash(&with("a")), ownership::wanted_hash(&with("a")));
        assert_ne!(ownership::wanted_hash(&with("a")), ownership::wanted_hash(&with("b")));
    }

    #[test]
    fn an_invalid_reference_is_named() {
        let literal = |literal| ResourceRef { kind: "Literal".to_owned(), literal, ..ResourceRef::default() };
        let rows = [
            (secret(Some("other")), "cross-namespace"),
            (literal(None), "`literal.value` is missing"),
            (ResourceRef { secret: None, ..secret(None) }, "are missing"),
            (ResourceRef { kind: "ConfigMap".to_owned(), ..secret(None) }, "`configMap.name`"),
            (ResourceRef { kind: "FS".to_owned(), ..secret(None) }, "which no Stack may read"),
            (ResourceRef { kind: "fs".to_owned(), ..secret(None) }, "neither Literal, Secret nor ConfigMap"),
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

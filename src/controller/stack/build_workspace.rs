//! Builds the Workspace of a Stack.

use std::collections::BTreeMap;

use kube::ResourceExt;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::api::auto::{
    ArtifactReference, ConfigItem, ConfigValueFrom, KeyReference, Workspace, WorkspacePolicyPack, WorkspaceSpec,
    WorkspaceStack,
};
use crate::api::names::{self, ACCESS_TOKEN_KEY};
use crate::api::pulumi::{ConfigMapSelector, ConfigReference, ResourceRef, SecretSelector, Stack, StackSpec};
use crate::api::{bounds, duration};
use crate::controller::merge;
use crate::controller::stack::ownership;
use crate::pulumi::{backend, stack_name};

/// Error in the spec of a Stack that prevents runs. Only a change to the spec resolves the error.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StackSpecError {
    #[error("invalid spec.{field}.{name}: {what}")]
    Reference { field: &'static str, name: String, what: &'static str },
    #[error("config key {key} is set in both spec.{one} and spec.{other}; remove one of them")]
    DuplicateKey { key: String, one: &'static str, other: &'static str },
    #[error("invalid spec.{field}: {what}")]
    Field { field: &'static str, what: String },
    #[error("invalid spec.pathKeys: {0:?} is not a key of config, configRef, secrets or secretsRef")]
    PathKey(String),
    #[error("spec.{0}")]
    Template(String),
    #[error("spec.{0}")]
    TooLarge(#[from] merge::TooLarge),
    #[error("invalid spec.{field}: {value:?} is not a duration such as 1h30m or 45s")]
    Duration { field: String, value: String },
    #[error("invalid spec.pulumiCloudOIDC.{field}: {rule}")]
    Oidc { field: &'static str, rule: &'static str },
    #[error("spec.pulumiCloudOIDC and spec.{field} are mutually exclusive: remove one of them")]
    OidcWithToken { field: &'static str },
    #[error("spec.{needs} requires Pulumi Cloud, but spec.{field} is {url}: remove one of them")]
    SelfManagedBackend { needs: &'static str, field: &'static str, url: String },
    #[error("metadata of the Stack has no {0}")]
    Metadata(&'static str),
}

/// Returns the desired Workspace of a Stack with this artifact and without policy packs, for server-side apply.
#[cfg(test)]
pub fn workspace(stack: &Stack, artifact: &ArtifactReference) -> Result<Workspace, StackSpecError> {
    with_policy_packs(stack, artifact, Vec::new())
}

/// Returns the desired Workspace of a Stack with this artifact and these policy packs, for server-side apply.
pub fn with_policy_packs(
    stack: &Stack,
    artifact: &ArtifactReference,
    policy_packs: Vec<WorkspacePolicyPack>,
) -> Result<Workspace, StackSpecError> {
    let spec = WorkspaceSpec {
        service_account_name: Some(stack.spec.service_account_name.clone().unwrap_or_else(|| "default".to_owned())),
        env: environment(stack)?,
        env_from: environment_from(stack),
        artifact: Some(artifact.clone()),
        pulumi_cloud_oidc: stack.spec.pulumi_cloud_oidc.clone(),
        pulumi_log_level: stack.spec.pulumi_log_level,
        stacks: vec![WorkspaceStack {
            name: stack.spec.stack.clone(),
            create: must_exist(&stack.spec).then_some(false),
            secrets_provider: stack.spec.secrets_provider.clone(),
            config: config(stack)?,
            environment: stack.spec.environment.clone(),
        }],
        policy_packs,
        ..WorkspaceSpec::default()
    };
    let generated = Workspace::new(&stack.name_any(), spec);
    merge::check_size("workspaceTemplate", stack.spec.workspace_template.as_ref(), bounds::TEMPLATE_BYTES)?;
    let merged = match &stack.spec.workspace_template {
        Some(template) => {
            merge::workspace_template(&generated, template).map_err(|e| StackSpecError::Template(e.to_string()))?
        }
        None => generated,
    };
    finish(stack, merged)
}

/// Returns whether a run fails if the Pulumi stack does not exist in the backend.
fn must_exist(spec: &StackSpec) -> bool {
    spec.use_local_stack_only.unwrap_or_default() || spec.init_on_create == Some(false)
}

/// Checks the stack name, the backend URL and the name of the ServiceAccount. Without this check, each run would start a
/// pod and then fail with a CLI error, or the error would not name the field.
pub fn check_address(stack: &Stack) -> Result<(), StackSpecError> {
    let field = |field| move |what| StackSpecError::Field { field, what };
    let account = stack.spec.service_account_name.as_deref().filter(|name| !names::is_object_name(name));
    if let Some(name) = account {
        let what = format!("{name:?} is not a valid name of a ServiceAccount");
        return Err(StackSpecError::Field { field: "serviceAccountName", what });
    }
    stack_name::check(&stack.spec.stack).map_err(field("stack"))?;
    stack.spec.backend_url().map_or(Ok(()), backend::check).map_err(field("backend"))
}

/// Checks the settings that require Pulumi Cloud. The Workspace controller reports conflicts with fields of
/// `workspaceTemplate`.
pub fn check_pulumi_cloud(stack: &Stack) -> Result<(), StackSpecError> {
    check_oidc(&stack.spec)?;
    if stack.spec.environment.is_empty() { Ok(()) } else { check_backend(&stack.spec, "environment") }
}

fn check_oidc(spec: &StackSpec) -> Result<(), StackSpecError> {
    let Some(oidc) = &spec.pulumi_cloud_oidc else { return Ok(()) };
    if let Some((field, rule)) = oidc.invalid_field() {
        return Err(StackSpecError::Oidc { field, rule });
    }
    let tokens = [
        ("accessTokenSecret", spec.access_token_secret.as_ref().is_some_and(|name| !name.is_empty())),
        ("envRefs.PULUMI_ACCESS_TOKEN", spec.env_refs.contains_key(backend::TOKEN_VARIABLE)),
    ];
    if let Some((field, _)) = tokens.into_iter().find(|(_, is_set)| *is_set) {
        return Err(StackSpecError::OidcWithToken { field });
    }
    check_backend(spec, "pulumiCloudOIDC")
}

/// Returns an error if the spec contains the URL of a self-managed backend, although the field `needs` requires Pulumi
/// Cloud.
fn check_backend(spec: &StackSpec, needs: &'static str) -> Result<(), StackSpecError> {
    let (field, url) = match spec.env_refs.get(backend::URL_VARIABLE) {
        Some(reference) => {
            ("envRefs.PULUMI_BACKEND_URL", reference.literal.as_ref().map(|literal| literal.value.as_str()))
        }
        None => ("backend", spec.backend_url()),
    };
    match url.filter(|url| backend::is_self_managed(url)) {
        Some(url) => {
            let url = backend::without_credentials(url).unwrap_or_default();
            Err(StackSpecError::SelfManagedBackend { needs, field, url })
        }
        None => Ok(()),
    }
}

/// Checks that the timeouts and intervals in the spec are valid durations.
pub fn check_times(stack: &Stack) -> Result<(), StackSpecError> {
    let spec = &stack.spec;
    let times = [
        ("timeout", &spec.timeout),
        ("idleTimeout", &spec.idle_timeout),
        ("interval", &spec.interval),
        ("retryInterval", &spec.retry_interval),
        ("ttl", &spec.ttl),
    ];
    let times = times.into_iter().map(|(field, value)| (field.to_owned(), value.as_ref()));
    let freshness = spec.prerequisites.iter().map(|prerequisite| {
        let within = prerequisite.requirement.as_ref().and_then(|r| r.succeeded_within_duration.as_ref());
        (format!("prerequisites.{}.requirement.succeededWithinDuration", prerequisite.name), within)
    });
    for (field, value) in times.chain(freshness) {
        if let Some(value) = value.filter(|value| duration::seconds(value).is_none()) {
            return Err(StackSpecError::Duration { field, value: value.clone() });
        }
    }
    Ok(())
}

/// Sets the name, the namespace, the owner and the hash. The caller must merge the template before this call, so that
/// the template cannot override these values. Also removes the source fields of the template, because the controller
/// delivers the source as an artifact.
fn finish(stack: &Stack, mut workspace: Workspace) -> Result<Workspace, StackSpecError> {
    workspace.spec = WorkspaceSpec { git: None, flux: None, local: None, project_info: None, ..workspace.spec };
    // A directive in the template can remove the labels, so the controller adds the labels after the merge.
    workspace.metadata.labels.get_or_insert_default().extend(ownership::labels(stack));
    let hash = hex::encode(Sha256::digest(json!([workspace.metadata, workspace.spec]).to_string()));
    workspace.metadata.name = Some(stack.name_any());
    workspace.metadata.namespace = Some(stack.namespace().ok_or(StackSpecError::Metadata("namespace"))?);
    stack.uid().ok_or(StackSpecError::Metadata("UID"))?;
    workspace.metadata.owner_references = ownership::references(stack);
    workspace.metadata.annotations.get_or_insert_default().insert(ownership::ANNOTATION_DESIRED_HASH.to_owned(), hash);
    Ok(workspace)
}

fn environment(stack: &Stack) -> Result<Vec<Value>, StackSpecError> {
    let mut variables = Vec::new();
    // As in the Pulumi Kubernetes Operator, an empty string has no effect. A variable without a value would override
    // the keys of `envs` and `envSecrets`.
    if let Some(url) = stack.spec.backend_url() {
        variables.push(json!({"name": backend::URL_VARIABLE, "value": url}));
    }
    if let Some(secret) = stack.spec.access_token_secret.as_ref().filter(|name| !name.is_empty()) {
        let reference = json!({"secretKeyRef": {"name": secret, "key": ACCESS_TOKEN_KEY}});
        variables.push(json!({"name": backend::TOKEN_VARIABLE, "valueFrom": reference}));
    }
    for (name, reference) in &stack.spec.env_refs {
        if name.is_empty() || name.contains(['=', '\0']) || name.len() > bounds::KEY as usize {
            let what = format!("{name:?} is not a valid name of an environment variable");
            return Err(StackSpecError::Field { field: "envRefs", what });
        }
        variables.retain(|v| v.get("name").and_then(Value::as_str) != Some(name));
        variables.push(variable(name, reference, &stack.namespace().unwrap_or_default())?);
    }
    Ok(variables)
}

fn environment_from(stack: &Stack) -> Vec<Value> {
    let config_maps = stack.spec.envs.iter().map(|name| json!({"configMapRef": {"name": name}}));
    config_maps.chain(stack.spec.env_secrets.iter().map(|name| json!({"secretRef": {"name": name}}))).collect()
}

/// Source of a value.
enum ValueSource<'a> {
    Literal(&'a str),
    Secret(&'a SecretSelector),
    ConfigMap(&'a ConfigMapSelector),
}

/// Returns the source of the referenced value, or the reason why the reference is invalid.
fn value_source<'a>(reference: &'a ResourceRef, namespace: &str) -> Result<ValueSource<'a>, &'static str> {
    match reference.kind.as_str() {
        "Literal" => match &reference.literal {
            Some(literal) => Ok(ValueSource::Literal(&literal.value)),
            None => Err("type Literal requires `literal.value`"),
        },
        "Secret" => match &reference.secret {
            Some(secret)
                if secret.namespace.as_deref().is_some_and(|other| !other.is_empty() && other != namespace) =>
            {
                Err("a Secret in another namespace is not allowed: use a Secret in the namespace of the Stack")
            }
            Some(secret) => Ok(ValueSource::Secret(secret)),
            None => Err("type Secret requires `secret.name` and `secret.key`"),
        },
        "ConfigMap" => match &reference.config_map {
            Some(map) => Ok(ValueSource::ConfigMap(map)),
            None => Err("type ConfigMap requires `configMap.name` and `configMap.key`"),
        },
        "Env" | "FS" => {
            Err("types Env and FS are not supported: a Stack cannot read the environment and files of the controller")
        }
        _ => Err("type must be Literal, Secret or ConfigMap"),
    }
}

fn variable(name: &str, reference: &ResourceRef, namespace: &str) -> Result<Value, StackSpecError> {
    let refused = |what| StackSpecError::Reference { field: "envRefs", name: name.to_owned(), what };
    Ok(match value_source(reference, namespace).map_err(refused)? {
        ValueSource::Literal(value) => json!({"name": name, "value": value}),
        ValueSource::Secret(SecretSelector { name: secret, key, .. }) => {
            json!({"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}})
        }
        ValueSource::ConfigMap(ConfigMapSelector { name: map, key }) => {
            json!({"name": name, "valueFrom": {"configMapKeyRef": {"name": map, "key": key}}})
        }
    })
}

/// Returns the configuration from all fields of the spec. Returns an error if a key is set in more than one field.
fn config(stack: &Stack) -> Result<Vec<ConfigItem>, StackSpecError> {
    let namespace = stack.namespace().unwrap_or_default();
    let mut items: BTreeMap<String, (&'static str, ConfigItem)> = BTreeMap::new();
    let mut add = |field: &'static str, item: ConfigItem| match items.get(&item.key) {
        Some((one, _)) => Err(StackSpecError::DuplicateKey { key: item.key.clone(), one, other: field }),
        None => {
            items.insert(item.key.clone(), (field, item));
            Ok(())
        }
    };
    // As in the Pulumi Kubernetes Operator, `null` sets no value. The condition `SettingsIgnored` lists the key.
    for (key, value) in stack.spec.config.iter().filter(|(_, value)| !value.is_null()) {
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
        let refused = |what| StackSpecError::Reference { field: "secretsRef", name: key.clone(), what };
        add("secretsRef", secret_item(key, value_source(reference, &namespace).map_err(refused)?))?;
    }
    for key in &stack.spec.path_keys {
        let (_, item) = items.get_mut(key).ok_or_else(|| StackSpecError::PathKey(key.clone()))?;
        item.path = Some(true);
    }
    Ok(items.into_values().map(|(_, item)| item).collect())
}

fn secret_item(key: &str, source: ValueSource<'_>) -> ConfigItem {
    let from = |secret: Option<KeyReference>, map: Option<KeyReference>| {
        Some(ConfigValueFrom { secret_key_ref: secret, config_map_key_ref: map, ..ConfigValueFrom::default() })
    };
    let item = ConfigItem { key: key.to_owned(), secret: Some(true), ..ConfigItem::default() };
    match source {
        ValueSource::Literal(value) => ConfigItem { value: json!(value), ..item },
        ValueSource::Secret(SecretSelector { name, key, .. }) => {
            ConfigItem { value_from: from(Some(KeyReference { name: name.clone(), key: key.clone() }), None), ..item }
        }
        ValueSource::ConfigMap(ConfigMapSelector { name, key }) => {
            ConfigItem { value_from: from(None, Some(KeyReference { name: name.clone(), key: key.clone() })), ..item }
        }
    }
}

#[cfg(test)]
mod tests;

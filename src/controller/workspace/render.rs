//! Renders the objects of a Workspace: a headless Service, a StatefulSet with one pod, and a PodDisruptionBudget. All
//! functions are pure. The objects remain JSON until the controller applies them, because the user-defined
//! `podTemplate` can contain fields that `k8s-openapi` does not define.
//!
//! The objects have no owner references. With owner references, a foreground deletion of the Workspace would delete
//! the pod during a run. Instead, the controller deletes the objects before it removes the finalizer from the
//! Workspace.

use serde_json::{Map, Value, json};

use super::metadata::{ANNOTATION_RENDERED, hash, labels, metadata, revision_hash};
use super::pod::SecurityProfile;
use super::pod_settings::PodSettings;
use super::pulumi_cloud::Credentials;
use super::source::DesiredSource;
use super::spec_error::{MAX_NAME, SpecError};
use super::storage::Storage;
use super::{config, environment, guard, init_containers, pod, pod_values, source, storage};
use crate::api::auto::{Workspace, WorkspaceSpec};
use crate::api::bounds;
use crate::api::names::{AGENT_PORT, AGENT_PORT_NAME, LABEL_RUN, LABEL_WORKSPACE_NAME, RUN_OPEN, workspace_object};
use crate::controller::merge::{POD_TEMPLATE, SERVICE_TEMPLATE, TooLarge, check_size, merge};

/// Metadata fields that the `serviceTemplate` can set. The `serviceTemplate` can set no other fields of the Service.
const SERVICE_FIELDS: [&str; 2] = ["annotations", "labels"];

/// Rendered objects of a Workspace.
#[derive(Clone, Debug, PartialEq)]
pub struct Rendered {
    pub service: Value,
    /// PodDisruptionBudget that blocks a node drain while a run is open, or `None` if runs are not protected.
    pub budget: Option<Value>,
    pub stateful_set: Value,
    /// Hash of the user-defined inputs. A pod annotation contains this hash.
    pub revision_hash: String,
    /// Number of replicas of the StatefulSet: zero if the Workspace is sleeping or has taken a pod from a pool,
    /// otherwise one.
    pub replicas: i32,
    /// Hash of the StatefulSet. An annotation of the StatefulSet contains this hash.
    pub rendered_hash: String,
    /// Hash of all rendered objects and of the pod that the Workspace has taken from a pool.
    pub parts_hash: String,
}

/// Renders the objects of a Workspace.
pub fn render(
    name: &str,
    namespace: &str,
    workspace: &Workspace,
    settings: &PodSettings,
) -> Result<Rendered, SpecError> {
    if name.len() > MAX_NAME {
        return Err(SpecError::NameTooLong);
    }
    check_sizes(&workspace.spec)?;
    let source = source::desired(&workspace.spec)?;
    let credentials = Credentials::of(&workspace.spec, settings.default_access_token_secret.as_deref())?;
    let mut template = pod_template(name, workspace, settings, &credentials, &source)?;
    let is_fetched_first = init_containers::arrange(&mut template, !source.is_in_pod());
    // A new source requires a new pod if the user-defined init containers can read the source. A new pod is also
    // required if the image or the init containers provide the source.
    let is_bound = is_fetched_first || source.is_in_pod();
    let bound = is_bound.then_some(&source.artifact);
    if is_bound {
        storage::discard_source(&mut template);
    }
    let revision_hash = revision_hash(&workspace.spec, bound, credentials.default_secret());
    pod::annotate(&mut template, &revision_hash);
    settings.restrictions.check(namespace, &template)?;
    let pooled_pod = workspace.pooled_pod();
    let replicas = i32::from(!workspace.is_asleep() && pooled_pod.is_none());
    let mut stateful_set = json!({
        "metadata": metadata(name, namespace),
        "spec": {
            "replicas": replicas,
            "serviceName": workspace_object(name),
            // With the policy `OrderedReady`, a pod that never becomes ready would block its replacement.
            "podManagementPolicy": "Parallel",
            // With the strategy `OnDelete`, only this controller replaces the pod, and only if the pod has no open
            // run.
            "updateStrategy": {"type": "OnDelete"},
            "selector": {"matchLabels": labels(name)},
            "template": template,
        },
    });
    let rendered_hash = hash(&stateful_set);
    if let Some(metadata) = stateful_set.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.insert("annotations".to_owned(), json!({ANNOTATION_RENDERED: rendered_hash}));
    }
    let service = service(name, namespace, workspace.spec.service_template.as_ref())?;
    let is_protected = workspace.spec.eviction_protection.unwrap_or(settings.eviction_protection);
    let budget = is_protected.then(|| budget(name, namespace));
    let parts_hash = hash(&json!([service, budget, stateful_set, pooled_pod]));
    Ok(Rendered { service, budget, stateful_set, revision_hash, replicas, rendered_hash, parts_hash })
}

fn check_sizes(spec: &WorkspaceSpec) -> Result<(), TooLarge> {
    check_size("podTemplate", spec.pod_template.as_ref(), bounds::TEMPLATE_BYTES)?;
    check_size("serviceTemplate", spec.service_template.as_ref(), bounds::SMALL_TEMPLATE_BYTES)?;
    check_size("resources", spec.resources.as_ref(), bounds::SMALL_TEMPLATE_BYTES)
}

fn pod_template(
    name: &str,
    workspace: &Workspace,
    settings: &PodSettings,
    credentials: &Credentials,
    source: &DesiredSource,
) -> Result<Value, SpecError> {
    let spec = &workspace.spec;
    let environment = environment::desired(spec)?;
    config::check(spec)?;
    let mounted = environment.mounted_with_config(spec)?;
    let profile = SecurityProfile::parse(spec.security_profile.as_deref())?;
    let mut generated = pod::template(name, spec, settings, profile, &mounted, source);
    credentials.mount(&mut generated);
    Storage::of(spec, &settings.storage)?.mount(&mut generated, name, settings.assigns_user);
    let mut merged = match &spec.pod_template {
        Some(patch) => {
            guard::check_fields(patch)?;
            merge(generated.clone(), patch, &POD_TEMPLATE)?
        }
        None => generated.clone(),
    };
    guard::check_unchanged(&generated, &merged)?;
    pod_values::check(&merged)?;
    if let Some(container) = pod::pulumi_container(&mut merged) {
        environment::make_optional(container);
    }
    pod::set_init_resources(&mut merged);
    pod::set_service_account(&mut merged);
    pod::set_grace_period(&mut merged);
    pod::set_env_file(&mut merged);
    pod::set_temporary_directory(&mut merged);
    Ok(merged)
}

/// Returns a PodDisruptionBudget that selects the pod only while a run is open, so that Kubernetes can evict an idle
/// pod.
fn budget(name: &str, namespace: &str) -> Value {
    json!({
        "metadata": metadata(name, namespace),
        "spec": {
            "minAvailable": 1,
            "selector": {"matchLabels": {LABEL_WORKSPACE_NAME: name, LABEL_RUN: RUN_OPEN}},
        },
    })
}

/// Returns the headless Service with the labels and annotations from the template. The generated labels and the
/// selector take precedence.
fn service(name: &str, namespace: &str, template: Option<&Value>) -> Result<Value, SpecError> {
    let mut metadata = metadata(name, namespace);
    // Adds the annotations even without a template, so that an empty template and a missing template render the same
    // Service.
    add(&mut metadata, "annotations", None);
    if let Some(template) = template {
        check_service_template(template)?;
        let base = json!({"metadata": {"labels": labels(name)}});
        let merged = merge(base, template, &SERVICE_TEMPLATE).map_err(SpecError::ServiceMerge)?;
        for field in SERVICE_FIELDS {
            let users = merged.pointer(&format!("/metadata/{field}")).and_then(Value::as_object);
            add(&mut metadata, field, users);
        }
    }
    let mut service = json!({
        "metadata": metadata,
        "spec": {
            "clusterIP": "None",
            // The agent accepts requests before the pod is ready.
            "publishNotReadyAddresses": true,
            "selector": labels(name),
            "ports": [{"name": AGENT_PORT_NAME, "port": AGENT_PORT, "appProtocol": "tls"}],
        },
    });
    // If a user removes fields from the template, only the hash reveals the removal, because the remaining fields still
    // match the existing Service.
    let hash = json!({ANNOTATION_RENDERED: hash(&service)});
    if let Some(metadata) = service.get_mut("metadata") {
        replace(metadata, "annotations", hash.as_object());
    }
    Ok(service)
}

fn check_service_template(template: &Value) -> Result<(), SpecError> {
    let unsupported = |field: String| Err(SpecError::ServiceField { field });
    for (field, section) in template.as_object().into_iter().flatten() {
        if field != "metadata" {
            return unsupported(field.clone());
        }
        let mut names = section.as_object().into_iter().flatten().map(|(name, _)| name.as_str());
        if let Some(name) = names.find(|name| !SERVICE_FIELDS.contains(name)) {
            return unsupported(format!("metadata.{name}"));
        }
    }
    Ok(())
}

/// Adds the entries whose keys do not exist yet.
fn add(metadata: &mut Value, field: &str, more: Option<&Map<String, Value>>) {
    let Some(fields) = entry(metadata, field) else { return };
    for (key, value) in more.into_iter().flatten() {
        fields.entry(key.clone()).or_insert_with(|| value.clone());
    }
}

fn replace(metadata: &mut Value, field: &str, more: Option<&Map<String, Value>>) {
    let Some(fields) = entry(metadata, field) else { return };
    fields.extend(more.into_iter().flatten().map(|(key, value)| (key.clone(), value.clone())));
}

fn entry<'a>(metadata: &'a mut Value, field: &str) -> Option<&'a mut Map<String, Value>> {
    metadata.as_object_mut()?.entry(field).or_insert_with(|| json!({})).as_object_mut()
}

#[cfg(test)]
mod tests;

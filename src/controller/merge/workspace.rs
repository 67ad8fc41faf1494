//! A Stack's `workspaceTemplate` over the Workspace that was generated for it.

use serde_json::{Map, Value};

use super::keys::{POD_TEMPLATE, WORKSPACE};
use super::{MergeError, merge};
use crate::api::auto::Workspace;

/// The fields of a Workspace's spec that a template may set. `artifact` is not among them: the Stack decides it.
const SPEC_FIELDS: &[&str] =
    &["env", "image", "imagePullPolicy", "podTemplate", "resources", "serviceAccountName", "stacks"];
const METADATA_FIELDS: &[&str] = &["annotations", "labels"];
const POD_TEMPLATE_FIELD: &str = "podTemplate";

/// Why a `workspaceTemplate` cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TemplateError {
    #[error("workspaceTemplate.{field} is not supported")]
    Unsupported { field: String },

    #[error("{field} must be an object")]
    NotAnObject { field: String },

    #[error("cannot merge workspaceTemplate over the generated Workspace: {0}")]
    Merge(#[from] MergeError),

    #[error("workspaceTemplate does not make a valid Workspace: {0}")]
    Invalid(#[source] serde_json::Error),

    #[error("cannot write the generated Workspace as JSON: {0}")]
    Generated(#[source] serde_json::Error),
}

/// Merges a Stack's `workspaceTemplate` (`metadata` and `spec`) over its generated Workspace.
///
/// `podTemplate` is carried over as it is when the generated Workspace has none: its nulls and directives are meant for
/// the pod template, over which it is merged later.
pub fn workspace_template(generated: &Workspace, template: &Value) -> Result<Workspace, TemplateError> {
    let mut template = check(template)?;
    let generated = serde_json::to_value(generated).map_err(TemplateError::Generated)?;
    let pod_template = template
        .get_mut("spec")
        .and_then(Value::as_object_mut)
        .and_then(|spec| spec.remove(POD_TEMPLATE_FIELD))
        .filter(|pod_template| !pod_template.is_null());

    let mut merged = merge(generated, &Value::Object(template), &WORKSPACE)?;
    if let (Some(patch), Some(spec)) = (pod_template, merged.get_mut("spec").and_then(Value::as_object_mut)) {
        let pod_template = match spec.remove(POD_TEMPLATE_FIELD) {
            Some(base) => merge(base, &patch, &POD_TEMPLATE)?,
            None => patch,
        };
        spec.insert(POD_TEMPLATE_FIELD.to_owned(), pod_template);
    }
    serde_json::from_value(merged).map_err(TemplateError::Invalid)
}

/// Names the first field that a template must not have.
fn check(template: &Value) -> Result<Map<String, Value>, TemplateError> {
    let template =
        template.as_object().ok_or_else(|| TemplateError::NotAnObject { field: "workspaceTemplate".to_owned() })?;
    if let Some(field) = template.keys().find(|field| !matches!(field.as_str(), "metadata" | "spec")) {
        return Err(TemplateError::Unsupported { field: field.clone() });
    }
    check_fields(template, "metadata", METADATA_FIELDS)?;
    check_fields(template, "spec", SPEC_FIELDS)?;
    // A null section would delete the generated one.
    Ok(template.iter().filter(|(_, section)| !section.is_null()).map(|(k, v)| (k.clone(), v.clone())).collect())
}

fn check_fields(template: &Map<String, Value>, section: &'static str, supported: &[&str]) -> Result<(), TemplateError> {
    let fields = match template.get(section) {
        None | Some(Value::Null) => return Ok(()),
        Some(Value::Object(fields)) => fields,
        Some(_) => return Err(TemplateError::NotAnObject { field: format!("workspaceTemplate.{section}") }),
    };
    match fields.keys().find(|field| !supported.contains(&plain_name(field))) {
        Some(field) => Err(TemplateError::Unsupported { field: format!("{section}.{field}") }),
        None => Ok(()),
    }
}

/// The field that a directive such as `$setElementOrder/env` is about.
fn plain_name(field: &str) -> &str {
    match field.strip_prefix('$').and_then(|directive| directive.split_once('/')) {
        Some((_, field)) => field,
        None => field,
    }
}

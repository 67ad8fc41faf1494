//! Merge of a Stack's `workspaceTemplate` over its generated Workspace.

use serde_json::Value;

use super::keys::{POD_TEMPLATE, WORKSPACE};
use super::strategic::merge;
use super::template::{Template, TemplateError};
use crate::api::auto::Workspace;

/// `artifact` is excluded because the Stack sets it. `flux`, `git`, `local` and `projectInfo` select the source
/// (`source::inline`).
const TEMPLATE: Template = Template {
    name: "workspaceTemplate",
    spec_fields: &[
        "env",
        "envFrom",
        "flux",
        "git",
        "image",
        "imagePullPolicy",
        "local",
        "podTemplate",
        "projectInfo",
        "pulumiLogLevel",
        "resources",
        "securityProfile",
        "serviceAccountName",
        "serviceTemplate",
        "stacks",
    ],
};
const POD_TEMPLATE_FIELD: &str = "podTemplate";
const SERVICE_TEMPLATE_FIELD: &str = "serviceTemplate";

/// Merges a Stack's `workspaceTemplate` (`metadata` and `spec`) over its generated Workspace.
///
/// If the generated Workspace has no `podTemplate`, the one of the template is copied unchanged: its nulls and directives
/// apply to the pod template that it is merged over later. `serviceTemplate`, which no generated Workspace has, is always
/// copied.
pub fn workspace_template(generated: &Workspace, template: &Value) -> Result<Workspace, TemplateError> {
    let mut template = TEMPLATE.check(template)?;
    let generated = serde_json::to_value(generated).map_err(TemplateError::Generated)?;
    let mut carried = |field: &str| {
        let value = template.get_mut("spec")?.as_object_mut()?.remove(field)?;
        Some(value).filter(|value| !value.is_null())
    };
    let (pod_template, service_template) = (carried(POD_TEMPLATE_FIELD), carried(SERVICE_TEMPLATE_FIELD));
    let mut merged = merge(generated, &Value::Object(template), &WORKSPACE).map_err(TEMPLATE.merge_error())?;
    if let (Some(patch), Some(spec)) = (pod_template, merged.get_mut("spec").and_then(Value::as_object_mut)) {
        let pod_template = match spec.remove(POD_TEMPLATE_FIELD) {
            Some(base) => merge(base, &patch, &POD_TEMPLATE).map_err(TEMPLATE.merge_error())?,
            None => patch,
        };
        spec.insert(POD_TEMPLATE_FIELD.to_owned(), pod_template);
    }
    if let (Some(service), Some(spec)) = (service_template, merged.get_mut("spec").and_then(Value::as_object_mut)) {
        spec.insert(SERVICE_TEMPLATE_FIELD.to_owned(), service);
    }
    serde_json::from_value(merged).map_err(TEMPLATE.invalid())
}

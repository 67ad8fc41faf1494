//! Merges the templates of a Stack into generated objects as `kubectl patch --type=strategic` does.
//!
//! Pod and Service templates remain JSON until the merge, because a conversion to Rust types would drop the fields
//! that `k8s-openapi` does not define. The module `keys` defines the merge keys of lists.

mod keys;
mod strategic;

use std::io::{self, Write};

use serde_json::{Map, Value};

use self::keys::UPDATE;
use crate::api::auto::{Update, Workspace};

pub use keys::{KeyTable, POD_TEMPLATE, Rule, SERVICE_TEMPLATE, WORKSPACE};
pub use strategic::{MergeError, merge};

/// Metadata fields that a template can set.
const METADATA_FIELDS: &[&str] = &["annotations", "labels"];

/// Error in a template of a Stack.
#[derive(Debug, thiserror::Error)]
pub enum TemplateError {
    #[error("{field} is not supported")]
    Unsupported { field: String },

    #[error("{field} must be an object")]
    NotAnObject { field: String },

    #[error("{template} cannot be merged: {error}")]
    Merge { template: &'static str, error: MergeError },

    #[error("{template} is invalid: {error}")]
    Invalid { template: &'static str, error: serde_json::Error },

    #[error("failed to encode the generated object as JSON: {0}")]
    Generated(#[source] serde_json::Error),
}

/// Definition of a template: the Stack field that contains the template, and the fields that the template's `spec`
/// can contain.
#[derive(Clone, Copy, Debug)]
struct Template {
    pub name: &'static str,
    pub spec_fields: &'static [&'static str],
}

impl Template {
    /// Returns the metadata and the spec of a template, without null sections. If the template contains an
    /// unsupported field, returns an error that contains the name of the first such field.
    fn check(&self, template: &Value) -> Result<Map<String, Value>, TemplateError> {
        let not_an_object = || TemplateError::NotAnObject { field: self.name.to_owned() };
        let template = template.as_object().ok_or_else(not_an_object)?;
        // The Pulumi Kubernetes Operator permits a complete object in a template. The fields `apiVersion`, `kind` and
        // `status` of such an object have no effect.
        let is_known = |field: &str| matches!(field, "apiVersion" | "kind" | "metadata" | "spec" | "status");
        if let Some(field) = template.keys().find(|field| !is_known(field)) {
            return Err(TemplateError::Unsupported { field: format!("{}.{field}", self.name) });
        }
        self.check_fields(template, "metadata", METADATA_FIELDS)?;
        self.check_fields(template, "spec", self.spec_fields)?;
        // Merging a null section would delete the section from the generated object.
        let counts =
            |(field, section): &(&String, &Value)| matches!(field.as_str(), "metadata" | "spec") && !section.is_null();
        Ok(template.iter().filter(counts).map(|(field, section)| (field.clone(), section.clone())).collect())
    }

    fn check_fields(
        &self,
        template: &Map<String, Value>,
        section: &'static str,
        supported: &[&str],
    ) -> Result<(), TemplateError> {
        let fields = match template.get(section) {
            None | Some(Value::Null) => return Ok(()),
            Some(Value::Object(fields)) => fields,
            Some(_) => return Err(TemplateError::NotAnObject { field: format!("{}.{section}", self.name) }),
        };
        match fields.keys().find(|field| !supported.contains(&field.as_str())) {
            Some(field) => Err(TemplateError::Unsupported { field: format!("{}.{section}.{field}", self.name) }),
            None => Ok(()),
        }
    }

    fn merge_error(&self) -> impl Fn(MergeError) -> TemplateError + use<> {
        let template = self.name;
        move |error| TemplateError::Merge { template, error }
    }

    fn invalid(&self) -> impl Fn(serde_json::Error) -> TemplateError + use<> {
        let template = self.name;
        move |error| TemplateError::Invalid { template, error }
    }
}

/// Definition of `updateTemplate`. The template cannot contain fields that identify the run, such as the type and the
/// artifact, because the Stack controller sets these fields.
const UPDATE_TEMPLATE: Template = Template {
    name: "updateTemplate",
    spec_fields: &[
        "continueOnError",
        "expectNoChanges",
        "expectNoRefreshChanges",
        "idleTimeout",
        "lockRecovery",
        "message",
        "parallel",
        "priority",
        "refresh",
        "remove",
        "replace",
        "runProgram",
        "target",
        "targetDependents",
        "timeout",
        "ttlAfterCompleted",
    ],
};

/// Merges the `updateTemplate` of a Stack (`metadata` and `spec`) into a generated Update.
pub fn update_template(generated: &Update, template: &Value) -> Result<Update, TemplateError> {
    let template = UPDATE_TEMPLATE.check(template)?;
    let generated = serde_json::to_value(generated).map_err(TemplateError::Generated)?;
    let merged = merge(generated, &Value::Object(template), &UPDATE).map_err(UPDATE_TEMPLATE.merge_error())?;
    serde_json::from_value(merged).map_err(UPDATE_TEMPLATE.invalid())
}

/// Definition of `workspaceTemplate`. The template cannot contain `artifact`, because the Stack controller sets this
/// field. The module `source::inline` reads the source from `flux`, `git`, `local` and `projectInfo`.
const WORKSPACE_TEMPLATE: Template = Template {
    name: "workspaceTemplate",
    spec_fields: &[
        "env",
        "envFrom",
        "evictionProtection",
        "flux",
        "git",
        "idle",
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

/// Merges the `workspaceTemplate` of a Stack (`metadata` and `spec`) into the generated Workspace.
///
/// If the generated Workspace has no `podTemplate`, this function copies the `podTemplate` from the template without
/// merging it. The null values and directives in a copied `podTemplate` take effect when the controller renders the
/// pod. A generated Workspace never has a `serviceTemplate`, so this function always copies the `serviceTemplate`
/// from the template.
pub fn workspace_template(generated: &Workspace, template: &Value) -> Result<Workspace, TemplateError> {
    let mut template = WORKSPACE_TEMPLATE.check(template)?;
    let generated = serde_json::to_value(generated).map_err(TemplateError::Generated)?;
    let mut carried = |field: &str| {
        let value = template.get_mut("spec")?.as_object_mut()?.remove(field)?;
        Some(value).filter(|value| !value.is_null())
    };
    let (pod_template, service_template) = (carried(POD_TEMPLATE_FIELD), carried(SERVICE_TEMPLATE_FIELD));
    let mut merged =
        merge(generated, &Value::Object(template), &WORKSPACE).map_err(WORKSPACE_TEMPLATE.merge_error())?;
    if let (Some(patch), Some(spec)) = (pod_template, merged.get_mut("spec").and_then(Value::as_object_mut)) {
        let pod_template = match spec.remove(POD_TEMPLATE_FIELD) {
            Some(base) => merge(base, &patch, &POD_TEMPLATE).map_err(WORKSPACE_TEMPLATE.merge_error())?,
            None => patch,
        };
        spec.insert(POD_TEMPLATE_FIELD.to_owned(), pod_template);
    }
    if let (Some(service), Some(spec)) = (service_template, merged.get_mut("spec").and_then(Value::as_object_mut)) {
        spec.insert(SERVICE_TEMPLATE_FIELD.to_owned(), service);
    }
    serde_json::from_value(merged).map_err(WORKSPACE_TEMPLATE.invalid())
}

/// Error for a template that exceeds the size limit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} must be at most {limit} bytes as JSON, but has {bytes} bytes")]
pub struct TooLarge {
    field: &'static str,
    bytes: usize,
    limit: usize,
}

/// Returns an error if the JSON-encoded template is larger than `limit` bytes.
pub fn check_size(field: &'static str, template: Option<&Value>, limit: usize) -> Result<(), TooLarge> {
    let bytes = template.map_or(0, size);
    if bytes > limit { Err(TooLarge { field, bytes, limit }) } else { Ok(()) }
}

/// Returns the size of a JSON-encoded value in bytes, without keeping the encoded value in memory.
fn size(value: &Value) -> usize {
    let mut counter = Counter(0);
    match serde_json::to_writer(&mut counter, value) {
        Ok(()) => counter.0,
        Err(_) => usize::MAX,
    }
}

struct Counter(usize);

impl Write for Counter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 = self.0.saturating_add(bytes.len());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests;

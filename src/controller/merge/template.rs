//! Validation of the templates in a Stack.

use serde_json::{Map, Value};

use super::error::MergeError;

/// Metadata fields that a template may set.
const METADATA_FIELDS: &[&str] = &["annotations", "labels"];

/// Reason why a template cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TemplateError {
    #[error("{field} is not supported")]
    Unsupported { field: String },

    #[error("{field} must be an object")]
    NotAnObject { field: String },

    #[error("failed to merge {template}: {error}")]
    Merge { template: &'static str, error: MergeError },

    #[error("invalid {template}: {error}")]
    Invalid { template: &'static str, error: serde_json::Error },

    #[error("failed to encode the generated object as JSON: {0}")]
    Generated(#[source] serde_json::Error),
}

/// Kind of template: its field in the spec of a Stack, and the spec fields of the object that it may set.
#[derive(Clone, Copy, Debug)]
pub(super) struct Template {
    pub name: &'static str,
    pub spec_fields: &'static [&'static str],
}

impl Template {
    /// Returns the metadata and spec of a template, or an error that names the first unsupported field. Null sections are
    /// ignored.
    pub(super) fn check(&self, template: &Value) -> Result<Map<String, Value>, TemplateError> {
        let not_an_object = || TemplateError::NotAnObject { field: self.name.to_owned() };
        let template = template.as_object().ok_or_else(not_an_object)?;
        // The schema of the operator allows a whole object. Its apiVersion, kind and status have no effect.
        let is_known = |field: &str| matches!(field, "apiVersion" | "kind" | "metadata" | "spec" | "status");
        if let Some(field) = template.keys().find(|field| !is_known(field)) {
            return Err(TemplateError::Unsupported { field: format!("{}.{field}", self.name) });
        }
        self.check_fields(template, "metadata", METADATA_FIELDS)?;
        self.check_fields(template, "spec", self.spec_fields)?;
        // A null section would delete the generated one.
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
        match fields.keys().find(|field| !supported.contains(&plain_name(field))) {
            Some(field) => Err(TemplateError::Unsupported { field: format!("{}.{section}.{field}", self.name) }),
            None => Ok(()),
        }
    }

    pub(super) fn merge_error(&self) -> impl Fn(MergeError) -> TemplateError + use<> {
        let template = self.name;
        move |error| TemplateError::Merge { template, error }
    }

    pub(super) fn invalid(&self) -> impl Fn(serde_json::Error) -> TemplateError + use<> {
        let template = self.name;
        move |error| TemplateError::Invalid { template, error }
    }
}

/// Returns the field that a directive such as `$setElementOrder/env` refers to.
fn plain_name(field: &str) -> &str {
    match field.strip_prefix('$').and_then(|directive| directive.split_once('/')) {
        Some((_, field)) => field,
        None => field,
    }
}

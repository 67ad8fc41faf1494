//! What templates in a Stack may hold, and what is said of one that holds anything else.

use serde_json::{Map, Value};

use super::error::MergeError;

/// The fields of metadata that a template may set.
const METADATA_FIELDS: &[&str] = &["annotations", "labels"];

/// Why a template cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TemplateError {
    #[error("{field} is not supported")]
    Unsupported { field: String },

    #[error("{field} must be an object")]
    NotAnObject { field: String },

    #[error("cannot merge {template} over the generated object: {error}")]
    Merge { template: &'static str, error: MergeError },

    #[error("{template} does not make a valid object: {error}")]
    Invalid { template: &'static str, error: serde_json::Error },

    #[error("cannot write the generated object as JSON: {0}")]
    Generated(#[source] serde_json::Error),
}

/// A kind of template: its field in a Stack's spec, and the fields of the object's spec that it may set.
#[derive(Clone, Copy, Debug)]
pub(super) struct Template {
    pub name: &'static str,
    pub spec_fields: &'static [&'static str],
}

impl Template {
    /// Names the first field that a template must not have; a section that is null says nothing.
    pub(super) fn check(&self, template: &Value) -> Result<Map<String, Value>, TemplateError> {
        let not_an_object = || TemplateError::NotAnObject { field: self.name.to_owned() };
        let template = template.as_object().ok_or_else(not_an_object)?;
        // InlineSource in the form of a whole object, as the operator's schema has it, it says nothing more.
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

/// The field that a directive such as `$setElementOrder/env` is about.
fn plain_name(field: &str) -> &str {
    match field.strip_prefix('$').and_then(|directive| directive.split_once('/')) {
        Some((_, field)) => field,
        None => field,
    }
}

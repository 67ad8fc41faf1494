//! Identity of a Pulumi stack in a state backend.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Identity of a Pulumi stack in a state backend.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
pub struct PulumiStack {
    /// Name of the Pulumi stack, as in `spec.stack`.
    pub name: String,
    /// Name of the project, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project: Option<String>,
    /// URL of the backend without credentials, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend: Option<String>,
}

impl fmt::Display for PulumiStack {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "stack {}", self.name)?;
        if let Some(project) = &self.project {
            write!(formatter, " of project {project}")?;
        }
        match &self.backend {
            Some(backend) => write!(formatter, " in backend {backend}"),
            None => write!(formatter, " in the default backend of the workspace"),
        }
    }
}

//! The fields of Flux sources that the controller reads. Any kind with `status.artifact` is supported.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Value of `status.artifact` of a Flux source.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct SourceArtifact {
    pub url: String,
    pub revision: String,
    #[serde(default)]
    pub digest: String,
    /// Size of the archive in bytes, as reported by the source.
    #[serde(default)]
    pub size: Option<i64>,
    #[serde(default)]
    pub metadata: BTreeMap<String, String>,
}

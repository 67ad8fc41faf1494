//! The few fields of Flux sources that are read. Any kind with `status.artifact` will do.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// `status.artifact` of a Flux source.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct SourceArtifact {
    pub url: String,
    pub revision: String,
    #[serde(default)]
    pub digest: String,
    /// Size of the archive in bytes, as its producer says.
    #[serde(default)]
    pub size: Option<i64>,
    #[serde(default)]
    pub metadata: BTreeMap<String, String>,
}

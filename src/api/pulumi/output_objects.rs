//! Objects to which the controller writes a Stack's outputs.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::bounds;

/// Secret or ConfigMap that contains outputs of the last successful update.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct OutputObject {
    /// Kind of the object: `Secret` or `ConfigMap`. A ConfigMap contains no secret outputs.
    pub kind: OutputObjectKind,
    /// Name of the object in the Stack's namespace. The controller does not change an object that has another owner.
    #[schemars(length(min = 1, max = bounds::NAME))]
    pub name: String,
    /// Names of the outputs. Default: all outputs, or, for a ConfigMap, all outputs that are not secret.
    /// Example: `[url, password]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = bounds::ENTRIES), inner(length(min = 1, max = bounds::KEY)))]
    pub keys: Vec<String>,
    /// Keys in the object, by output name. Default: the output name, with `_` instead of each character that is invalid
    /// in a key. Example: `{url: DATABASE_URL}`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = bounds::ENTRIES))]
    pub rename: BTreeMap<String, String>,
    /// Whether to write strings without quotation marks. If `false`, all values are JSON. Default: `true`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub raw: Option<bool>,
    /// Labels of the object, in addition to the controller's labels. This field can override the label
    /// `reconcile.fluxcd.io/watch: Enabled`. Default: none. Example: `{team: blue}`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 64))]
    pub labels: BTreeMap<String, String>,
}

/// Kind of an object with outputs: `Secret` or `ConfigMap`.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq, PartialOrd, Ord)]
pub enum OutputObjectKind {
    #[default]
    Secret,
    ConfigMap,
}

impl OutputObjectKind {
    /// Returns the kind's name.
    pub fn as_str(self) -> &'static str {
        match self {
            OutputObjectKind::Secret => "Secret",
            OutputObjectKind::ConfigMap => "ConfigMap",
        }
    }
}

/// Reference to an object to which the controller has written outputs.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "camelCase")]
pub struct OutputObjectReference {
    /// Kind of the object: `Secret` or `ConfigMap`.
    pub kind: OutputObjectKind,
    /// Name of the object.
    #[schemars(length(max = bounds::NAME))]
    pub name: String,
}

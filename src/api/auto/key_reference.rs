//! References to keys of Secrets and ConfigMaps.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::bounds;

/// One key of a Secret that may be missing.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
pub struct SecretKeySelector {
    /// The Secret's name.
    pub name: String,
    /// The key.
    pub key: String,
    /// `true`: the value is left out where the Secret or its key does not exist. Default: `false`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub optional: Option<bool>,
}

/// One key of a Secret or a ConfigMap.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
pub struct KeyReference {
    /// The object's name.
    #[schemars(length(max = bounds::NAME))]
    pub name: String,
    /// The key.
    #[schemars(length(max = bounds::KEY))]
    pub key: String,
}

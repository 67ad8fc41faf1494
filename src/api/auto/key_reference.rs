//! References to keys of Secrets and ConfigMaps.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::bounds;

/// Reference to a key of a Secret, which can be optional.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
pub struct SecretKeySelector {
    /// Name of the Secret.
    pub name: String,
    /// Key in the Secret.
    pub key: String,
    /// Whether to ignore the value if the Secret or its key does not exist. Default: `false`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub optional: Option<bool>,
}

/// Reference to a key of a Secret or ConfigMap.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
pub struct KeyReference {
    /// Name of the object.
    #[schemars(length(max = bounds::NAME))]
    pub name: String,
    /// Key in the object.
    #[schemars(length(max = bounds::KEY))]
    pub key: String,
}

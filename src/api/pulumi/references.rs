//! What a Stack names: its source, and values that are kept elsewhere.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::bounds;

/// A Program in the Stack's namespace.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
pub struct ProgramReference {
    /// The Program's name.
    pub name: String,
}

/// A Flux source and the directory in it.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct FluxSource {
    /// The source object.
    pub source_ref: SourceReference,

    /// The directory of the Pulumi project in the artifact. Default: its root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dir: Option<String>,
}

/// A reference to a source object: any kind with `status.artifact`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct SourceReference {
    /// Group and version, such as `source.toolkit.fluxcd.io/v1`. Only the group counts: the source is read in the version that the
    /// API server prefers. Optional for `GitRepository`, `OCIRepository`, `Bucket` and `ExternalArtifact` of Flux.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_version: Option<String>,

    /// The kind: `GitRepository`, `OCIRepository`, `Bucket`, `ExternalArtifact`, or another one of the group in `apiVersion`.
    #[schemars(length(min = 1))]
    pub kind: String,

    /// The source's name.
    #[schemars(length(min = 1))]
    pub name: String,

    /// The source's namespace. Default: the Stack's own. Another one is refused unless the controller runs with
    /// `--no-cross-namespace-refs=false`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
}

/// A value given in place, or kept in a Secret or a ConfigMap.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ResourceRef {
    /// `Literal`, `Secret` or `ConfigMap`. `Env` and `FS` are refused: they would read the controller's own environment and files.
    #[serde(rename = "type")]
    #[schemars(extend("enum" = ["Literal", "Secret", "ConfigMap", "Env", "FS"]))]
    pub kind: String,

    /// The Secret, when `type` is `Secret`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<SecretSelector>,

    /// The ConfigMap, when `type` is `ConfigMap`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_map: Option<ConfigMapSelector>,

    /// The value, when `type` is `Literal`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub literal: Option<LiteralRef>,

    /// What `type: Env` would name, so that such a Stack can be applied and told why it is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env: Option<EnvironmentSelector>,

    /// What `type: FS` would name, so that such a Stack can be applied and told why it is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filesystem: Option<FileSelector>,
}

/// A variable in the environment of the operator: refused.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
pub struct EnvironmentSelector {
    /// The variable's name.
    #[schemars(length(max = bounds::KEY))]
    pub name: String,
}

/// A file of the operator: refused.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
pub struct FileSelector {
    /// The file's path.
    #[schemars(length(max = bounds::PATH))]
    pub path: String,
}

/// A value of the configuration that is kept in a ConfigMap of the Stack's namespace.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
pub struct ConfigReference {
    /// The ConfigMap's name.
    #[schemars(length(max = bounds::NAME))]
    pub name: String,
    /// The key in the ConfigMap.
    #[schemars(length(max = bounds::KEY))]
    pub key: String,
    /// Whether the value is JSON; else it is a text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub json: Option<bool>,
}

/// One key of a ConfigMap in the Stack's namespace.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
pub struct ConfigMapSelector {
    /// The ConfigMap's name.
    #[schemars(length(max = bounds::NAME))]
    pub name: String,
    /// The key in the ConfigMap.
    #[schemars(length(max = bounds::KEY))]
    pub key: String,
}

/// One key of a Secret in the Stack's namespace.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
pub struct SecretSelector {
    /// The namespace; only the Stack's own is allowed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = bounds::NAMESPACE))]
    pub namespace: Option<String>,
    /// The Secret's name.
    #[schemars(length(max = bounds::NAME))]
    pub name: String,
    /// The key in the Secret.
    #[schemars(length(max = bounds::KEY))]
    pub key: String,
}

/// A value in plain text.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
pub struct LiteralRef {
    /// The value.
    pub value: String,
}

//! Settings for idle Workspaces, and the state of a sleeping Workspace, which has a status but no pod.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::{bounds, schema};

/// Settings for an idle Workspace: when the controller removes the pod, and which data the Workspace keeps.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
#[schemars(extend("x-kubernetes-validations" = [{
    "rule": "!has(self.claim) || !has(self.keep) || self.keep != 'Nothing'",
    "message": "claim requires keep: Caches or keep: Volume"
}]))]
pub struct WorkspaceIdle {
    /// Delay before the controller removes the pod of an idle Workspace, as a duration such as `30m`. A Workspace is
    /// idle if it has no open run and no interactive session. The next run creates the pod again. The minimum is `1m`.
    /// With `0s`, the Workspace keeps its pod. Default: the controller flag `--default-workspace-idle-after`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::short_duration")]
    pub after: Option<String>,

    /// Data that a Workspace keeps while it has no pod: `Nothing`, `Caches` (the dependencies, in a shared cache of the
    /// namespace) or `Volume` (the share volume). Default: the controller flag `--default-workspace-idle-keep`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep: Option<IdleKeep>,

    /// Name of the PersistentVolumeClaim for the cache or the share volume. Default for `Caches`: the controller flag
    /// `--workspace-cache-claim`. Required for `Volume`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = bounds::NAME))]
    pub claim: Option<String>,
}

/// Data that a Workspace keeps while it has no pod: `Nothing`, `Caches` (the dependencies, in a shared cache of the
/// namespace) or `Volume` (the share volume). Default: the controller flag `--default-workspace-idle-keep`.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
pub enum IdleKeep {
    /// No data except the Workspace status.
    #[default]
    Nothing,
    /// The dependencies, in a cache that the namespace's Workspaces share.
    Caches,
    /// The share volume, with the source, the dependencies and the caches.
    Volume,
}

impl IdleKeep {
    const ALL: [IdleKeep; 3] = [IdleKeep::Nothing, IdleKeep::Caches, IdleKeep::Volume];

    /// Returns the value of the field `keep` that represents the variant.
    pub fn as_str(self) -> &'static str {
        match self {
            IdleKeep::Nothing => "Nothing",
            IdleKeep::Caches => "Caches",
            IdleKeep::Volume => "Volume",
        }
    }

    /// Returns the variant with this name, or `None` if no variant has the name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|keep| keep.as_str() == name)
    }
}

/// Pod that a Workspace has taken from a pool.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
pub struct PooledPod {
    /// Name of the pod.
    #[schemars(length(max = bounds::NAME))]
    pub name: String,
    /// UID of the pod.
    #[schemars(length(max = bounds::WORD))]
    pub uid: String,
}

/// State of a sleeping Workspace.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct WorkspaceSleep {
    /// Time at which the Workspace fell asleep.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,

    /// Resource version of each Secret and ConfigMap that the previous pod mounted, by object, such as `Secret/aws`.
    /// For an object that did not exist, the version is empty. A change to one of the objects can wake up the
    /// Workspace.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = bounds::REFERENCED_OBJECTS))]
    pub input_versions: BTreeMap<String, String>,
}

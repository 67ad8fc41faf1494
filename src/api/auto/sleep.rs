//! Sleep of an idle Workspace: a Workspace without a pod, which keeps its status.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::{bounds, schema};

/// When an idle Workspace falls asleep, and what it keeps.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
pub struct WorkspaceIdle {
    /// Time after which the controller removes the pod of an idle Workspace, as a duration such as `30m`. A Workspace
    /// is idle if no run and no interactive session is open. The next run creates the pod again. The minimum is `1m`.
    /// With `0s`, the Workspace keeps its pod. Default: the flag `--default-workspace-idle-after` of the controller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::duration")]
    pub after: Option<String>,

    /// What a Workspace keeps while it has no pod: `Nothing`, `Caches` (its dependencies, in a cache that the namespace
    /// shares) or `Volume` (its share volume). Default: the flag `--default-workspace-idle-keep` of the controller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep: Option<IdleKeep>,

    /// PersistentVolumeClaim with the cache or with the share volume. Default for `Caches`: the flag
    /// `--workspace-cache-claim` of the controller. Required for `Volume`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = bounds::NAME))]
    pub claim: Option<String>,
}

/// What a Workspace keeps while it has no pod: `Nothing`, `Caches` (its dependencies, in a cache that the namespace
/// shares) or `Volume` (its share volume). Default: the flag `--default-workspace-idle-keep` of the controller.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
pub enum IdleKeep {
    /// Only its status.
    #[default]
    Nothing,
    /// Its dependencies, in a cache that the Workspaces of the namespace share.
    Caches,
    /// Its share volume, with the source, the dependencies and the caches.
    Volume,
}

impl IdleKeep {
    const ALL: [IdleKeep; 3] = [IdleKeep::Nothing, IdleKeep::Caches, IdleKeep::Volume];

    /// Returns the value of the field.
    pub fn as_str(self) -> &'static str {
        match self {
            IdleKeep::Nothing => "Nothing",
            IdleKeep::Caches => "Caches",
            IdleKeep::Volume => "Volume",
        }
    }

    /// Returns the value with this name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|keep| keep.as_str() == name)
    }
}

/// Pod of a pool that a Workspace has taken.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
pub struct PooledPod {
    /// Name of the pod.
    #[schemars(length(max = bounds::NAME))]
    pub name: String,
    /// UID of the pod.
    #[schemars(length(max = bounds::WORD))]
    pub uid: String,
}

/// State of a Workspace that is asleep.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct WorkspaceSleep {
    /// Time at which the Workspace fell asleep.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,

    /// Resource version of each Secret and ConfigMap that the pod had mounted, by object, such as `Secret/aws`. Empty for
    /// an object that did not exist. A change to one of these objects can wake the Workspace.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = bounds::REFERENCED_OBJECTS))]
    pub input_versions: BTreeMap<String, String>,
}

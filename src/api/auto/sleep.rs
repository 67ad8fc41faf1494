//! Sleep of an idle Workspace: a Workspace without a pod, which keeps its status.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::{bounds, schema};

/// When an idle Workspace falls asleep.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
pub struct WorkspaceIdle {
    /// Time after which the controller removes the pod of an idle Workspace, as a duration such as `30m`. A Workspace
    /// is idle if no run and no interactive session is open. The next run creates the pod again. The minimum is `1m`.
    /// With `0s`, the Workspace keeps its pod. Default: the flag `--default-workspace-idle-after` of the controller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::duration")]
    pub after: Option<String>,
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

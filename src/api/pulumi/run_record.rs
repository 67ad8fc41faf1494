//! Records of recent runs in the status of a Stack.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::bounds;

/// Completed run of a Stack.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct RunRecord {
    /// Name of the Update, which may no longer exist.
    #[schemars(length(max = bounds::NAME))]
    pub name: String,
    /// Pulumi command: `up`, `preview` or `destroy`.
    #[serde(rename = "type")]
    #[schemars(length(max = bounds::WORD))]
    pub kind: String,
    /// Result: `succeeded` or `failed`.
    #[schemars(length(max = bounds::WORD))]
    pub state: String,
    /// Reason of a failure. Absent after a success.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = bounds::WORD))]
    pub reason: Option<String>,
    /// Reason for the run, truncated to 256 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = bounds::MESSAGE))]
    pub cause: Option<String>,
    /// Revision of the source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = bounds::REVISION))]
    pub revision: Option<String>,
    /// Start of the run. Absent if the run did not start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Time>,
    /// End of the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end_time: Option<Time>,
    /// Number of resources by Pulumi engine operation. Example: `{create: 2, same: 5}`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = bounds::OPERATIONS))]
    pub changes: BTreeMap<String, i64>,
    /// Users who approved the run's plan. Absent for a run without a plan. Example: `[alice]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = bounds::RUN_APPROVERS), inner(length(max = bounds::WORD)))]
    pub approved_by: Vec<String>,
    /// URL of the history directory with the run's files. Absent if the run is not in the history.
    #[serde(default, rename = "historyURL", skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = bounds::PATH))]
    pub history_url: Option<String>,
}

//! The run history of a Stack, in the format of Flux.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::bounds;

/// Runs of the same artifact with the same outcome.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Snapshot {
    /// Digest of the artifact.
    #[schemars(length(max = bounds::WORD))]
    pub digest: String,
    /// Time at which the first of these runs ended.
    pub first_reconciled: Time,
    /// Time at which the last of these runs ended.
    pub last_reconciled: Time,
    /// Duration of the last of these runs, such as `1m3s`.
    #[schemars(length(max = bounds::WORD))]
    pub last_reconciled_duration: String,
    /// Outcome of these runs: the reason of the condition `Ready` after each of them.
    #[schemars(length(max = bounds::WORD))]
    pub last_reconciled_status: String,
    /// Number of these runs.
    pub total_reconciliations: i64,
    /// `revision` of the artifact, and `originRevision` if the source provides it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = bounds::CONDITIONS))]
    pub metadata: BTreeMap<String, String>,
}

//! What a Stack has run of late, in Flux's form.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::bounds;

/// The runs of one artifact that have ended in the same way.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Snapshot {
    /// Digest of the artifact.
    #[schemars(length(max = bounds::WORD))]
    pub digest: String,
    /// When the first of these runs ended.
    pub first_reconciled: Time,
    /// When the last of them ended.
    pub last_reconciled: Time,
    /// How long the last of them took.
    #[schemars(length(max = bounds::WORD))]
    pub last_reconciled_duration: String,
    /// How they ended: the reason that `Ready` gives for it.
    #[schemars(length(max = bounds::WORD))]
    pub last_reconciled_status: String,
    /// How many there were.
    pub total_reconciliations: i64,
    /// `revision`, and `originRevision` where the artifact has one.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = bounds::CONDITIONS))]
    pub metadata: BTreeMap<String, String>,
}

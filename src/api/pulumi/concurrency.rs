//! Concurrency groups: runs that use the same cloud account or state backend.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Concurrency group of runs.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ConcurrencyGroup {
    /// Name of the group, such as `aws-prod`. Each group belongs to one namespace, unless an administrator shares it
    /// between namespaces.
    // The name must be a DNS label.
    #[schemars(length(min = 1, max = 63), extend("pattern" = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub name: String,

    /// Maximum number of concurrent runs in the group. If the group's Stacks specify different limits, the lowest limit
    /// of the open and queued runs applies. The controller flag `--concurrency-groups` sets the limit of a group that
    /// several namespaces share. Default: 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = ConcurrencyGroup::MAX_LIMIT))]
    pub limit: Option<u32>,
}

impl ConcurrencyGroup {
    /// Maximum limit of a group.
    pub const MAX_LIMIT: u32 = 100;

    /// Returns the limit that applies to the group within its namespace, clamped to the valid range. The API server
    /// does not validate the limit in an object of `v1alpha1`.
    pub fn local_limit(&self) -> u32 {
        self.limit.unwrap_or(1).clamp(1, Self::MAX_LIMIT)
    }
}

/// Concurrency group of an open run.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct BoundConcurrencyGroup {
    /// Name of the group.
    pub name: String,
    /// Maximum number of concurrent runs in the group when this run started.
    pub limit: u32,
    /// Whether several namespaces share the group. Absent if the group belongs to the namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared: Option<bool>,
}

//! Drift detection settings of a Stack, and drift check results.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::auto::PlannedResource;
use crate::api::pulumi::DriftSchedule;
use crate::api::{bounds, schema};

/// Periodic detection of drift, which is a difference between the actual resources and the state. At least one of
/// `interval` and `schedule` must be set.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [{
    "rule": "has(self.interval) && dyn(self.interval) != null || has(self.schedule) && dyn(self.schedule) != null",
    "message": DriftPolicy::WITHOUT_TIME,
}]))]
pub struct DriftPolicy {
    /// Interval between a run or a drift check and the next drift check, as a duration such as `24h`. A drift check
    /// runs `pulumi refresh --preview-only`, which changes neither the resources nor the state. Minimum: `1m`. Default:
    /// only `schedule` applies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::duration_of_a_minute")]
    pub interval: Option<String>,

    /// Times of drift checks. If `interval` is also set, the earlier check applies. Default: only `interval` applies.
    /// Example: `{cron: "30 2 * * *", timeZone: Europe/Berlin}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedule: Option<DriftSchedule>,

    /// Whether a drift check also reports the changes that a run would make. The check then runs
    /// `pulumi preview --refresh` instead of `pulumi refresh --preview-only`, and evaluates `policyPacks`.
    /// Default: `false`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expect_no_changes: Option<bool>,

    /// Reaction to drift: `Detect` or `Correct`. Default: `Detect`.
    #[serde(default)]
    pub mode: DriftMode,

    /// Rules for drift that the controller ignores. A resource has not drifted if each of its differences matches a
    /// rule. Default: none. Example: `[{type: "aws:autoscaling/*", property: desiredCapacity}]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = bounds::PATTERNS))]
    pub ignore: Vec<DriftIgnoreRule>,
}

impl DriftPolicy {
    /// Message about a policy that never starts a check.
    pub const WITHOUT_TIME: &str =
        "invalid spec.drift: neither interval nor schedule is set; set at least one of them, or remove spec.drift";
}

/// Reaction to drift: `Detect` or `Correct`. Default: `Detect`.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
pub enum DriftMode {
    /// Report the drift.
    #[default]
    Detect,
    /// Report the drift, and start a run that refreshes the state and reverts the drift. `spec.approval` applies to
    /// this run.
    Correct,
}

/// Rule for drift that the controller ignores. A difference must match all fields of the rule. In the patterns, `*`
/// matches any characters.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
pub struct DriftIgnoreRule {
    /// Pattern of the resource type, such as `aws:autoscaling/*`. Default: all types.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = bounds::WORD))]
    pub kind: Option<String>,
    /// Pattern of the URN. Default: all URNs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = bounds::URN))]
    pub urn: Option<String>,
    /// Pattern of the property path, such as `tags.*`. A rule with a property does not match deleted resources.
    /// Default: all properties.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = bounds::WORD))]
    pub property: Option<String>,
}

/// Result of the last drift check.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct StackDrift {
    /// Time at which the last drift check ended, even if it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_checked: Option<Time>,
    /// Name of the last drift check's Update.
    pub update_name: String,
    /// Error from the last drift check. After an error, the other fields contain the result of an earlier check. Absent
    /// after a success.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = bounds::MESSAGE))]
    pub message: Option<String>,
    /// Number of resources that have drifted.
    #[serde(default)]
    pub count: i64,
    /// Number of resources with drift that `spec.drift.ignore` excludes.
    #[serde(default)]
    pub ignored: i64,
    /// Resources that have drifted, without their property values. At most 50 entries.
    /// Example: `[{urn: "urn:pulumi:dev::web::aws:s3/bucket:Bucket::logs", operation: update, properties: [tags]}]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = bounds::PLANNED_RESOURCES))]
    pub resources: Vec<PlannedResource>,
    /// Whether the controller has requested a run to correct this drift.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub correction_requested: Option<bool>,
}

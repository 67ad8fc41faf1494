//! Policy packs of a Stack, and policy violations.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::api::pulumi::SourceReference;
use crate::api::{bounds, schema};

/// Policy pack that the updates and previews of a Stack enforce.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct PolicyPack {
    /// Unique name of the policy pack in the Stack.
    #[schemars(length(min = 1, max = bounds::NAMESPACE), extend("pattern" = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub name: String,

    /// Reference to the source object. Example: `{kind: OCIRepository, name: policies}`.
    pub source_ref: SourceReference,

    /// Directory of the policy pack, which contains `PulumiPolicy.yaml`. Default: the root of the artifact.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = bounds::PATH))]
    pub dir: Option<String>,

    /// Configuration by policy. Default: none. Example: `{allowed-regions: {regions: [eu-central-1]}}`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::map_of_any")]
    pub config: BTreeMap<String, Value>,

    /// Enforcement level of all policies without a level in `config`: `advisory` or `mandatory`. Default: the levels in
    /// the policy pack.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enforcement_level: Option<EnforcementLevel>,
}

/// Enforcement level of all policies without a level in `config`: `advisory` or `mandatory`. Default: the levels in the
/// policy pack.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "lowercase")]
pub enum EnforcementLevel {
    /// A violation makes the run fail.
    #[default]
    Mandatory,
    /// The controller reports a violation, but the run can succeed.
    Advisory,
}

/// Policy violations that a run has reported.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct PolicyViolations {
    /// Number of mandatory policy violations.
    #[serde(default)]
    pub mandatory: i64,
    /// Number of advisory policy violations.
    #[serde(default)]
    pub advisory: i64,
    /// Violations, mandatory ones first. At most 20 entries. Example: `[{pack: house, policy: no-public}]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = bounds::POLICY_VIOLATIONS))]
    pub violations: Vec<PolicyViolation>,
}

/// Violation of a policy. The field order determines the sort order of violations.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "camelCase")]
pub struct PolicyViolation {
    /// Enforcement level of the policy: `advisory` or `mandatory`.
    pub enforcement_level: EnforcementLevel,
    /// Name that the policy pack's program defines.
    #[schemars(length(max = bounds::WORD))]
    pub pack: String,
    /// Version of the policy pack.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = bounds::WORD))]
    pub version: String,
    /// Name of the policy.
    #[schemars(length(max = bounds::WORD))]
    pub policy: String,
    /// URN of the resource. Empty for a stack policy, which validates the whole Pulumi stack.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = bounds::URN))]
    pub urn: String,
    /// Message in which the policy describes the violation.
    #[schemars(length(max = bounds::WORD))]
    pub message: String,
}

impl EnforcementLevel {
    /// Returns the name of the level, as in policy pack configurations.
    pub fn as_str(self) -> &'static str {
        match self {
            EnforcementLevel::Mandatory => "mandatory",
            EnforcementLevel::Advisory => "advisory",
        }
    }
}

impl PolicyViolations {
    /// Returns the number of all violations, including violations that `violations` omits.
    pub fn count(&self) -> i64 {
        self.mandatory.saturating_add(self.advisory)
    }
}

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

    /// Exceptions by ID, which exempt violations on single resources: the violations neither make a run fail nor count.
    /// Requires Pulumi CLI 3.274.0. Default: none.
    /// Example: `{EXC-1: {reason: legacy, match: [{policies: [no-public], targets: ["urn:pulumi:…"]}]}}`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = bounds::POLICY_EXCEPTIONS))]
    pub exceptions: BTreeMap<String, PolicyException>,

    /// Enforcement level of all policies without a level in `config`: `advisory` or `mandatory`. Default: the levels in
    /// the policy pack.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enforcement_level: Option<EnforcementLevel>,
}

/// Exception that exempts policy violations on single resources.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq)]
pub struct PolicyException {
    /// Reason for the exception.
    #[schemars(length(min = 1, max = bounds::WORD))]
    pub reason: String,

    /// Combinations of policies and resources that the exception exempts.
    /// Example: `[{policies: [no-public], targets: ["urn:pulumi:dev::web::aws:s3/bucket:Bucket::logs"]}]`.
    #[schemars(length(min = 1, max = bounds::REFERENCES))]
    pub r#match: Vec<PolicyExceptionMatch>,
}

/// Policies and resources to which an exception applies.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq)]
pub struct PolicyExceptionMatch {
    /// Names of the policies. Example: `[no-public]`.
    #[schemars(length(min = 1, max = bounds::REFERENCES), inner(length(min = 1, max = bounds::WORD)))]
    pub policies: Vec<String>,

    /// URNs of the resources. Example: `["urn:pulumi:dev::web::aws:s3/bucket:Bucket::logs"]`.
    #[schemars(length(min = 1, max = bounds::REFERENCES), inner(length(min = 1, max = bounds::URN)))]
    pub targets: Vec<String>,
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
    /// Number of mandatory policy violations that are not exempted.
    #[serde(default)]
    pub mandatory: i64,
    /// Number of advisory policy violations that are not exempted.
    #[serde(default)]
    pub advisory: i64,
    /// Number of policy violations that an exception exempts. Absent if there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exempted: Option<i64>,
    /// Violations: mandatory, advisory, and then exempted ones. At most 20 entries.
    /// Example: `[{pack: house, policy: no-public}]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = bounds::POLICY_VIOLATIONS))]
    pub violations: Vec<PolicyViolation>,
}

/// Violation of a policy. The field order determines the sort order of violations.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "camelCase")]
pub struct PolicyViolation {
    /// Exceptions that exempt the violation, with their reasons. Absent if the violation is not exempted.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = bounds::WORD))]
    pub exemption: String,
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
    /// Returns whether some violations are not exempted.
    pub fn has_unexempted(&self) -> bool {
        self.mandatory > 0 || self.advisory > 0
    }

    /// Returns the number of all violations, including exempted violations and violations that `violations` omits.
    pub fn count(&self) -> i64 {
        self.mandatory.saturating_add(self.advisory).saturating_add(self.exempted.unwrap_or_default())
    }
}

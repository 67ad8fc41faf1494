//! `pulumi.com/v1alpha1` Approval: a user's decision about a Stack's plan. This module also defines a Stack's approval
//! settings, and the plan in its status.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::api::auto::{PlannedResource, PreviewOf};
use crate::api::bounds;
use crate::artifact::Digest;

/// Specification of a user's decision about a plan. The specification is immutable.
#[derive(CustomResource, Clone, Debug, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
#[kube(
    group = "pulumi.com",
    version = "v1alpha1",
    kind = "Approval",
    namespaced,
    category = "pulumi",
    doc = "Approval is the decision of a user about the plan of a Stack.",
    validation = ("self.spec == oldSelf.spec", "spec is immutable; create another Approval"),
    printcolumn = r#"{"name":"Stack","type":"string","jsonPath":".spec.stackRef.name"}"#,
    printcolumn = r#"{"name":"Decision","type":"string","jsonPath":".spec.decision"}"#,
    printcolumn = r#"{"name":"By","type":"string","jsonPath":".spec.by"}"#,
    printcolumn = r#"{"name":"Plan","type":"string","jsonPath":".spec.planDigest","priority":10}"#,
    printcolumn = r#"{"name":"Reason","type":"string","jsonPath":".spec.reason"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct ApprovalSpec {
    /// Reference to the Stack with the plan, in the Approval's namespace. Example: `{name: web}`.
    pub stack_ref: ApprovedStack,

    /// Digest of the plan, as in `status.plan.digest` of the Stack. The decision applies only to this plan.
    #[schemars(length(max = bounds::WORD))]
    pub plan_digest: String,

    /// Decision about the plan: `Approve` or `Reject`. One rejection is sufficient to reject a plan.
    pub decision: ApprovalDecision,

    /// Name of the user who decides. With the ValidatingAdmissionPolicy `pulumi-controller-approvals`, the API server
    /// admits only the name of the user who creates the Approval.
    #[schemars(length(min = 1, max = bounds::WORD))]
    pub by: String,

    /// Reason for the decision, as text for users. Default: no reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = bounds::WORD))]
    pub reason: Option<String>,
}

/// Reference to the Stack to which an Approval applies.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
pub struct ApprovedStack {
    /// Name of the Stack.
    #[schemars(length(min = 1, max = bounds::NAME))]
    pub name: String,
}

/// Decision of a user about a plan.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
pub enum ApprovalDecision {
    /// Approve the plan.
    Approve,
    /// Reject the plan. The controller does not execute the plan, even if other users approve it.
    Reject,
}

/// Value of `maxDeletes` and `maxReplaces` for no limit.
pub const NO_LIMIT: i32 = -1;
/// Combinations of approval settings that the API server rejects. The controller checks the same rules, because the
/// served schema can be outdated.
const RULES: [PolicyRule; 2] = [
    PolicyRule {
        rule: "has(self.mode) && self.mode == 'OnRisk' || !has(self.autoApproveExpr) && !has(self.maxDeletes) \
               && !has(self.maxReplaces) && (!has(self.protect) || size(self.protect) == 0)",
        message: "autoApproveExpr, maxDeletes, maxReplaces and protect require mode: OnRisk",
        is_met: |policy| {
            let has_conditions = policy.auto_approve_expr.is_some()
                || policy.max_deletes.is_some()
                || policy.max_replaces.is_some()
                || !policy.protect.is_empty();
            policy.mode == ApprovalMode::OnRisk || !has_conditions
        },
    },
    PolicyRule {
        rule: "!has(self.mode) || self.mode != 'Never' || has(self.destroy) && self.destroy == true \
               || !has(self.approvers) && !(has(self.excludeAuthor) && self.excludeAuthor == true)",
        message: "with mode: Never, approvers and excludeAuthor require destroy: true",
        is_met: |policy| {
            let has_approvers = policy.approvers.is_some() || policy.exclude_author.unwrap_or_default();
            policy.mode != ApprovalMode::Never || policy.destroy.unwrap_or_default() || !has_approvers
        },
    },
];

/// A rule for approval settings.
struct PolicyRule {
    /// CEL expression for the API server.
    rule: &'static str,
    message: &'static str,
    /// Evaluates the rule in the controller.
    is_met: fn(&ApprovalPolicy) -> bool,
}

/// Rules for the approval of changes. With `mode: Always` or `mode: OnRisk`, each run starts as a preview that saves
/// its plan, and an `up` executes only an approved plan.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = validations()))]
pub struct ApprovalPolicy {
    /// Mode that selects the plans of updates that require an approval: `Never`, `Always` or `OnRisk`. A plan without
    /// changes never requires an approval. Default: `Always`.
    #[serde(default)]
    pub mode: ApprovalMode,

    /// Number of different users who must approve a plan. Default: 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10))]
    pub approvers: Option<u32>,

    /// Whether the controller ignores approvals by the commit author. The controller compares the Approval's `by` with
    /// the author's name and email address. Requires `projectRepo`, because no other source reports the author.
    /// Default: `false`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exclude_author: Option<bool>,

    /// CEL expression for `mode: OnRisk`. A plan requires an approval unless the expression is `true`. The variable
    /// `changes` contains the number of resources for each operation, such as `changes.delete`. The variable
    /// `resources` is the list of changed resources, with the fields `urn`, `type`, `name` and `operation`. The other
    /// conditions also apply. Default: no expression.
    /// Example: `changes.delete == 0 && !resources.exists(r, r.type.startsWith("aws:rds"))`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub auto_approve_expr: Option<String>,

    /// Maximum number of resources that a plan can delete without an approval, with `mode: OnRisk`. Includes resources
    /// that Pulumi no longer manages after the run (operations `relinquish` and `missing`). -1 means no limit.
    /// Default: 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = NO_LIMIT, max = 1_000_000))]
    pub max_deletes: Option<i32>,

    /// Maximum number of resources that a plan can replace without an approval, with `mode: OnRisk`. -1 means no limit.
    /// Default: 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = NO_LIMIT, max = 1_000_000))]
    pub max_replaces: Option<i32>,

    /// Patterns of resources whose change, replacement or deletion always requires an approval with `mode: OnRisk`,
    /// including a change to the URN or the provider. A pattern that starts with `urn:` applies to the URN, and any
    /// other pattern to the type. `*` matches any characters. Default: none.
    /// Example: `["aws:rds/*", "urn:pulumi:prod::*::database"]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = bounds::PATTERNS), inner(length(min = 1, max = bounds::WORD)))]
    pub protect: Vec<String>,

    /// Whether the destroy before the Stack's deletion always requires an approval. Applies with every mode. With
    /// `mode: Never`, only the destroy requires an approval. Default: `false`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub destroy: Option<bool>,
}

/// Mode that selects the plans that require an approval.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
pub enum ApprovalMode {
    /// No plan of an `up` requires an approval.
    Never,
    /// Each plan with changes requires an approval.
    #[default]
    Always,
    /// A plan requires an approval unless it meets all of `autoApproveExpr`, `maxDeletes`, `maxReplaces` and `protect`.
    OnRisk,
}

/// Saved plan that the controller has not executed yet.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct StackPlan {
    /// Digest of the plan, which an Approval must contain. The digest covers the Stack, the artifact and its directory,
    /// the Pulumi stack settings, the hashes of the configuration inputs, and the plan file.
    pub digest: Digest,
    /// Name of the Update that saved the plan. The Secret `<name>-plan` contains the plan file.
    pub update_name: String,
    /// Digest of the plan file.
    pub file_digest: Digest,
    /// Operation of the plan: `up` or `destroy`.
    #[serde(default)]
    pub operation: PreviewOf,
    /// Whether the plan refreshes the state to correct drift, even without `spec.refresh`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refresh: Option<bool>,
    /// Revision of the source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
    /// Number of resources by Pulumi engine operation, such as `create`, `update`, `replace`, `delete` and `same`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = bounds::OPERATIONS))]
    pub changes: BTreeMap<String, i64>,
    /// Resources that the plan changes. Deletions and replacements come first. At most 50 entries.
    /// Example: `[{urn: "urn:pulumi:dev::web::aws:s3/bucket:Bucket::logs", operation: delete}]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = bounds::PLANNED_RESOURCES))]
    pub resources: Vec<PlannedResource>,
    /// Number of resources that the plan changes, including resources that `resources` omits.
    #[serde(default)]
    pub resource_count: i64,
    /// Time at which the controller recorded the plan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created: Option<Time>,
}

/// Approved plan that a run executes.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ApprovedPlan {
    /// Digest of the plan.
    pub digest: Digest,
    /// Name of the Update that saved the plan.
    pub update_name: String,
    /// Digest of the plan file.
    pub file_digest: Digest,
    /// Users who approved the plan. Empty if the plan required no approval. At most 10 entries. Example: `[alice]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 10), inner(length(max = bounds::WORD)))]
    pub approved_by: Vec<String>,
}

impl ApprovalPolicy {
    /// Checks that all settings have an effect. Returns an error message for the first setting without effect.
    pub fn check(&self) -> Result<(), &'static str> {
        RULES.iter().find(|rule| !(rule.is_met)(self)).map_or(Ok(()), |rule| Err(rule.message))
    }

    /// Returns the number of different users who must approve a plan.
    pub fn required_approvers(&self) -> usize {
        usize::try_from(self.approvers.unwrap_or(1)).unwrap_or(usize::MAX).max(1)
    }
}

/// Returns the validation rules for the schema.
fn validations() -> Value {
    RULES.iter().map(|PolicyRule { rule, message, .. }| json!({"rule": rule, "message": message})).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_without_effect_are_rejected_by_the_api_server_and_by_the_controller() {
        let rows = [
            (json!({}), None),
            (json!({"mode": "Always", "approvers": 2, "excludeAuthor": true, "destroy": true}), None),
            (
                json!({"mode": "OnRisk", "maxDeletes": -1, "maxReplaces": 0, "protect": ["*"], "autoApproveExpr": "true"}),
                None,
            ),
            (json!({"mode": "Never", "destroy": true, "approvers": 2, "excludeAuthor": true}), None),
            (json!({"mode": "Never", "destroy": false, "excludeAuthor": false, "protect": []}), None),
            (json!({"protect": ["*"]}), Some("OnRisk")),
            (json!({"mode": "Always", "maxDeletes": 0}), Some("OnRisk")),
            (json!({"mode": "Always", "maxReplaces": 0}), Some("OnRisk")),
            (json!({"mode": "Never", "autoApproveExpr": "true"}), Some("OnRisk")),
            (json!({"mode": "Never", "approvers": 1}), Some("destroy: true")),
            (json!({"mode": "Never", "destroy": false, "excludeAuthor": true}), Some("destroy: true")),
        ];
        for (settings, expected) in rows {
            let policy: ApprovalPolicy = serde_json::from_value(settings.clone()).unwrap();
            let found = policy.check();
            assert!(
                found.err().map(|message| message.contains(expected.unwrap_or("-"))) == expected.map(|_| true),
                "{settings}: {found:?}"
            );
            let mut context = cel::Context::default();
            context.add_variable("self", settings.clone()).unwrap();
            let evaluate = |rule: &PolicyRule| cel::Program::compile(rule.rule).unwrap().execute(&context).unwrap();
            let is_met = RULES.iter().all(|rule| evaluate(rule) == cel::Value::Bool(true));
            assert_eq!(is_met, expected.is_none(), "{settings}");
        }
    }
}

//! `pulumi.com/v1alpha1` Approval: a user's decision about a Stack's plan. This module also defines a Stack's approval
//! settings, and the plan in its status.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

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

/// Rules for the approval of changes. With `mode: Always` or `mode: OnRisk`, each run starts as a preview that saves
/// its plan, and an `up` executes only an approved plan.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ApprovalPolicy {
    /// Mode that selects the plans that require an approval: `Never`, `Always` or `OnRisk`. A plan without changes
    /// never requires an approval. Default: `Never`.
    #[serde(default)]
    pub mode: ApprovalMode,

    /// Number of different users who must approve a plan. Default: 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10))]
    pub approvers: Option<u32>,

    /// Whether the controller ignores approvals by the commit author. The controller compares the Approval's `by` with
    /// the author's name and email address. If the source does not report the author, the controller ignores all
    /// approvals. Default: `false`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exclude_author: Option<bool>,

    /// CEL expression for `mode: OnRisk`. A plan requires an approval unless the expression is `true`. The variable
    /// `changes` contains the number of resources for each operation, such as `changes.delete`. The variable
    /// `resources` is the list of changed resources, with the fields `urn`, `type`, `name` and `operation`. Default: no
    /// expression.
    /// Example: `changes.delete == 0 && !resources.exists(r, r.type.startsWith("aws:rds"))`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub auto_approve_expr: Option<String>,

    /// Maximum number of resources that a plan can delete without an approval, with `mode: OnRisk`. Default: 0, or no
    /// limit if `autoApproveExpr` is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 1_000_000))]
    pub max_deletes: Option<u32>,

    /// Maximum number of resources that a plan can replace without an approval, with `mode: OnRisk`. Default: 0, or no
    /// limit if `autoApproveExpr` is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 1_000_000))]
    pub max_replaces: Option<u32>,

    /// Patterns of resources whose update, replacement or deletion always requires an approval with `mode: OnRisk`. A
    /// pattern that starts with `urn:` applies to the URN, and any other pattern to the type. `*` matches any
    /// characters. Default: none. Example: `["aws:rds/*", "urn:pulumi:prod::*::database"]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = bounds::PATTERNS), inner(length(min = 1, max = bounds::WORD)))]
    pub protect: Vec<String>,

    /// Whether the destroy before the Stack's deletion requires an approval. With `mode: OnRisk`, the destroy then
    /// always requires an approval. Has no effect with `mode: Never`. Default: `false`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub destroy: Option<bool>,
}

/// Mode that selects the plans that require an approval.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
pub enum ApprovalMode {
    /// No plan requires an approval.
    #[default]
    Never,
    /// Each plan with changes requires an approval.
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
    /// Returns the number of different users who must approve a plan.
    pub fn required_approvers(&self) -> usize {
        usize::try_from(self.approvers.unwrap_or(1)).unwrap_or(usize::MAX).max(1)
    }
}

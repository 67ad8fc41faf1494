//! Rules of the mode `OnRisk`, which decide whether a plan requires an approval.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::api::auto::{PlannedResource, UpdatePlan};
use crate::api::pulumi::ApprovalPolicy;
use crate::controller::stack::pattern;
use crate::controller::stack::prerequisites::expression::ExpressionError;

/// Operations that the variable `changes` always contains. The number is zero for an operation without resources.
const OPERATIONS: [&str; 8] = ["create", "update", "delete", "replace", "same", "read", "import", "refresh"];
/// Operations that do not change or delete an existing resource.
const HARMLESS: [&str; 4] = ["create", "read", "same", "import"];
/// Maximum number of protected resources in a message.
const MAX_LISTED: usize = 5;

/// The changes in a plan.
#[derive(Clone, Copy, Debug)]
pub struct PlannedChanges<'a> {
    /// Number of resources by operation.
    pub counts: &'a BTreeMap<String, i64>,
    /// Changed resources. This list can be truncated.
    pub resources: &'a UpdatePlan,
}

impl PlannedChanges<'_> {
    fn count(&self, operation: &str) -> i64 {
        self.counts.get(operation).copied().unwrap_or_default()
    }

    fn is_truncated(&self) -> bool {
        i64::try_from(self.resources.resources.len()).unwrap_or(i64::MAX) < self.resources.resource_count
    }
}

/// Returns the variables of `autoApproveExpr`.
pub fn variables(changes: PlannedChanges<'_>) -> BTreeMap<&'static str, Value> {
    let zeros = OPERATIONS.map(|operation| (operation.to_owned(), 0));
    let counts: BTreeMap<String, i64> = zeros.into_iter().chain(changes.counts.clone()).collect();
    let resource = |resource: &PlannedResource| {
        json!({
            "urn": resource.urn, "type": resource.kind(), "name": resource.name(), "operation": resource.operation,
        })
    };
    let resources = changes.resources.resources.iter().map(resource).collect();
    [("changes", json!(counts)), ("resources", Value::Array(resources))].into()
}

/// Returns the reasons why a plan requires an approval. `expression` is the result of `autoApproveExpr`, or `None` if
/// `autoApproveExpr` is not set.
pub fn reasons(
    policy: &ApprovalPolicy,
    changes: PlannedChanges<'_>,
    expression: Option<&Result<bool, ExpressionError>>,
) -> Vec<String> {
    let mut reasons = Vec::new();
    let default = expression.is_none().then_some(0);
    for (operation, verb, limit) in
        [("delete", "deletes", policy.max_deletes), ("replace", "replaces", policy.max_replaces)]
    {
        let (count, limit) = (changes.count(operation), limit.or(default).map(i64::from));
        if let Some(limit) = limit.filter(|limit| count > *limit) {
            reasons.push(format!("it {verb} {count} resource(s), more than the limit of {limit}"));
        }
    }
    reasons.extend(protected(policy, changes));
    match expression {
        Some(Ok(false)) => reasons.push("spec.approval.autoApproveExpr is false".to_owned()),
        Some(Err(
            ExpressionError::Invalid(why) | ExpressionError::Failed(why) | ExpressionError::LimitExceeded(why),
        )) => {
            reasons.push(format!("failed to evaluate spec.approval.autoApproveExpr: {why}"));
        }
        Some(Ok(true)) | None => {}
    }
    let needs_all = expression.is_some() || !policy.protect.is_empty();
    if needs_all && changes.is_truncated() {
        let count = changes.resources.resources.len();
        reasons.push(format!("it changes more resources than the {count} that the controller can evaluate"));
    }
    reasons
}

/// Returns the reason if the plan affects protected resources.
fn protected(policy: &ApprovalPolicy, changes: PlannedChanges<'_>) -> Option<String> {
    let is_affected = |resource: &&PlannedResource| {
        !HARMLESS.contains(&resource.operation.as_str())
            && policy.protect.iter().any(|pattern| {
                let text = if pattern.starts_with("urn:") { &resource.urn } else { resource.kind() };
                // If a pattern is too expensive to match, all resources are protected.
                !pattern::is_valid(pattern) || pattern::matches(pattern, text)
            })
    };
    let affected: Vec<&PlannedResource> = changes.resources.resources.iter().filter(is_affected).collect();
    let named = affected.iter().take(MAX_LISTED).map(|r| r.urn.as_str()).collect::<Vec<_>>().join(", ");
    let more = affected.len().saturating_sub(MAX_LISTED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    (!affected.is_empty()).then(|| format!("it changes protected resources: {named}{more}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resource(kind: &str, operation: &str) -> PlannedResource {
        PlannedResource {
            urn: format!("urn:pulumi:dev::web::{kind}::main"),
            operation: operation.to_owned(),
            properties: Vec::new(),
        }
    }

    fn reasons_for(
        policy: Value,
        changed: &[PlannedResource],
        expression: Option<Result<bool, ExpressionError>>,
    ) -> Vec<String> {
        let policy: ApprovalPolicy = serde_json::from_value(policy).unwrap();
        let mut counts = BTreeMap::new();
        changed.iter().for_each(|resource| *counts.entry(resource.operation.clone()).or_default() += 1);
        let resources = UpdatePlan {
            resources: changed.to_vec(),
            resource_count: i64::try_from(changed.len()).unwrap(),
            file_digest: None,
        };
        reasons(&policy, PlannedChanges { counts: &counts, resources: &resources }, expression.as_ref())
    }

    #[test]
    fn deletes_and_replacements_require_an_approval_by_default() {
        let (create, delete) = (resource("aws:s3:Bucket", "create"), resource("aws:s3:Bucket", "delete"));
        let replace = resource("aws:rds:Db", "replace");
        assert_eq!(reasons_for(json!({}), std::slice::from_ref(&create), None), [""; 0]);
        assert_eq!(
            reasons_for(json!({}), &[delete.clone(), replace.clone()], None),
            [
                "it deletes 1 resource(s), more than the limit of 0",
                "it replaces 1 resource(s), more than the limit of 0"
            ]
        );
        assert_eq!(reasons_for(json!({"maxDeletes": 1}), std::slice::from_ref(&delete), None), [""; 0]);
        assert_eq!(
            reasons_for(json!({}), std::slice::from_ref(&delete), Some(Ok(true))),
            [""; 0],
            "the expression replaces the default"
        );
        let limited = reasons_for(json!({"maxDeletes": 0}), &[delete], Some(Ok(true)));
        assert_eq!(limited, ["it deletes 1 resource(s), more than the limit of 0"]);
    }

    #[test]
    fn protected_resources_require_an_approval_unless_they_are_created() {
        let policy = json!({"protect": ["aws:rds/*", "urn:pulumi:*::dns:Zone::*"], "maxDeletes": 9, "maxReplaces": 9});
        for (resource, expected) in [
            (resource("aws:rds/instance:Instance", "update"), true),
            (resource("aws:rds/instance:Instance", "delete"), true),
            (resource("my:Site$aws:rds/instance:Instance", "replace"), true),
            (resource("aws:rds/instance:Instance", "create"), false),
            (resource("aws:s3/bucket:Bucket", "delete"), false),
            (resource("dns:Zone", "delete"), true),
        ] {
            let reasons = reasons_for(policy.clone(), std::slice::from_ref(&resource), None);
            assert_eq!(!reasons.is_empty(), expected, "{resource:?}: {reasons:?}");
        }
    }

    #[test]
    fn a_failed_expression_and_a_truncated_list_require_an_approval() {
        let create = [resource("a:b:C", "create")];
        let failed = reasons_for(json!({}), &create, Some(Err(ExpressionError::Failed("no such key".to_owned()))));
        assert_eq!(failed, ["failed to evaluate spec.approval.autoApproveExpr: no such key"]);
        assert_eq!(reasons_for(json!({}), &create, Some(Ok(false))), ["spec.approval.autoApproveExpr is false"]);
        let (counts, policy) = ([("create".to_owned(), 3)].into(), ApprovalPolicy::default());
        let resources = UpdatePlan { resources: create.to_vec(), resource_count: 3, file_digest: None };
        let changes = PlannedChanges { counts: &counts, resources: &resources };
        assert_eq!(
            reasons(&policy, changes, Some(&Ok(true))),
            ["it changes more resources than the 1 that the controller can evaluate"]
        );
        assert_eq!(reasons(&policy, changes, None), [""; 0], "the numbers are complete");
    }

    #[test]
    fn the_variables_contain_all_operations_and_the_parts_of_each_urn() {
        let counts = [("delete".to_owned(), 2)].into();
        let resources = UpdatePlan { resources: vec![resource("aws:s3:Bucket", "delete")], ..UpdatePlan::default() };
        let variables = variables(PlannedChanges { counts: &counts, resources: &resources });
        assert_eq!((&variables["changes"]["delete"], &variables["changes"]["create"]), (&json!(2), &json!(0)));
        let expected = json!([{
            "urn": "urn:pulumi:dev::web::aws:s3:Bucket::main", "type": "aws:s3:Bucket", "name": "main", "operation": "delete",
        }]);
        assert_eq!(variables["resources"], expected);
    }
}

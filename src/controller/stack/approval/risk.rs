//! Rules of the mode `OnRisk`, which decide whether a plan requires an approval.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::api::auto::{PlannedResource, UpdatePlan};
use crate::api::pulumi::{ApprovalPolicy, NO_LIMIT};
use crate::controller::stack::pattern;
use crate::controller::stack::prerequisites::expression::ExpressionError;
use crate::pulumi::console::REDACTED;
use crate::pulumi::operations::{self, Effect};

/// Operations that change nothing, but for which the variable `changes` also always contains the number of resources.
const UNCHANGED: [&str; 3] = ["same", "read", "refresh"];
/// Type prefix of providers.
const PROVIDER_TYPE: &str = "pulumi:providers:";
/// Maximum length of a URN that is certainly complete, in bytes. The agent and the controller cut longer URNs.
const MAX_COMPLETE_URN: usize = 4000;
/// Maximum number of resources in a message.
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
    /// Returns the number of resources that the plan affects in this way. The numbers of the engine do not contain the
    /// resources that an interrupted replacement left, and the list can be truncated.
    fn count(&self, effect: Effect) -> i64 {
        let is_counted = |operation: &&str| Effect::of(operation) == Some(effect);
        let counted = operations::listed().filter(is_counted).filter_map(|operation| self.counts.get(operation));
        let listed = self.resources.resources.iter().filter(|resource| effect_of(resource) == Some(effect)).count();
        counted.sum::<i64>().max(i64::try_from(listed).unwrap_or(i64::MAX))
    }

    /// Returns the operations whose effect the controller does not know.
    fn unknown(&self) -> BTreeSet<&str> {
        let counted = self.counts.iter().filter(|(_, count)| **count > 0).map(|(operation, _)| operation.as_str());
        let listed = self.resources.resources.iter().map(|resource| resource.operation.as_str());
        counted.chain(listed).filter(|operation| Effect::of(operation).is_none()).collect()
    }

    /// Returns whether the list lacks resources.
    fn is_truncated(&self) -> bool {
        i64::try_from(self.resources.resources.len()).unwrap_or(i64::MAX) < self.resources.resource_count
    }
}

/// Returns the variables of `autoApproveExpr`.
pub fn variables(changes: PlannedChanges<'_>) -> BTreeMap<&'static str, Value> {
    let zeros = operations::listed().chain(UNCHANGED).map(|operation| (operation.to_owned(), 0));
    let counts: BTreeMap<String, i64> = zeros.chain(changes.counts.clone()).collect();
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
    for (effect, verb, limit) in
        [(Effect::Loss, "deletes or loses", policy.max_deletes), (Effect::Replacement, "replaces", policy.max_replaces)]
    {
        let (count, limit) = (changes.count(effect), limit.unwrap_or_default());
        if limit != NO_LIMIT && count > i64::from(limit) {
            reasons.push(format!("it {verb} {count} resource(s), more than the limit of {limit}"));
        }
    }
    let unknown: Vec<&str> = changes.unknown().into_iter().take(MAX_LISTED).collect();
    if !unknown.is_empty() {
        reasons.push(format!("this version of the controller does not know the operation {}", unknown.join(", ")));
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
    if expression.is_some() || !policy.protect.is_empty() {
        reasons.extend(incomplete(changes));
    }
    reasons
}

/// Returns the reason if the plan affects protected resources.
fn protected(policy: &ApprovalPolicy, changes: PlannedChanges<'_>) -> Option<String> {
    let is_affected = |resource: &&PlannedResource| {
        let affects = !matches!(effect_of(resource), Some(Effect::None | Effect::Addition));
        affects && policy.protect.iter().any(|pattern| protects(pattern, resource))
    };
    listed("it changes protected resources: ", changes.resources.resources.iter().filter(is_affected))
}

/// Returns whether a pattern protects a resource. If a pattern is too expensive to match, it protects all resources.
fn protects(pattern: &str, resource: &PlannedResource) -> bool {
    let text = if pattern.starts_with("urn:") { &resource.urn } else { resource.kind() };
    !pattern::is_valid(pattern) || pattern::matches(pattern, text) || protects_provider(pattern, resource)
}

/// Returns whether the provider can manage resources that match the pattern. A change to a provider, for example to its
/// region, affects all its resources, but the engine reports these resources as unchanged.
fn protects_provider(pattern: &str, resource: &PlannedResource) -> bool {
    let Some(package) = resource.kind().strip_prefix(PROVIDER_TYPE) else { return false };
    let prefix = pattern.split('*').next().unwrap_or_default();
    let can_match = match prefix.split_once(':') {
        Some((of_pattern, _)) => of_pattern == package || of_pattern == "urn",
        None => package.starts_with(prefix),
    };
    can_match && matches!(effect_of(resource), Some(Effect::Change | Effect::Replacement))
}

/// Returns the reason if the controller cannot compare all resources with patterns and expressions.
fn incomplete(changes: PlannedChanges<'_>) -> Option<String> {
    let resources = &changes.resources.resources;
    if changes.is_truncated() {
        let count = resources.len();
        return Some(format!("it changes more resources than the {count} that the controller can evaluate"));
    }
    // A user who can add a secret configuration value could otherwise hide the name of a protected resource.
    let is_altered =
        |resource: &&PlannedResource| resource.urn.contains(REDACTED) || resource.urn.len() > MAX_COMPLETE_URN;
    listed(
        "it changes resources whose URNs contain secret values or are too long: ",
        resources.iter().filter(is_altered),
    )
}

fn effect_of(resource: &PlannedResource) -> Option<Effect> {
    Effect::of(&resource.operation)
}

/// Returns a reason that ends with the first of these resources, or `None` without resources.
fn listed<'a>(reason: &str, resources: impl Iterator<Item = &'a PlannedResource>) -> Option<String> {
    let urns: Vec<&str> = resources.map(|resource| resource.urn.as_str()).collect();
    let named = urns.iter().take(MAX_LISTED).copied().collect::<Vec<_>>().join(", ");
    let more = urns.len().saturating_sub(MAX_LISTED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    (!urns.is_empty()).then(|| format!("{reason}{named}{more}"))
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
    fn losses_and_replacements_beyond_the_limits_require_an_approval() {
        let of = |operations: &[&str]| {
            operations.iter().map(|operation| resource("aws:s3:Bucket", operation)).collect::<Vec<_>>()
        };
        let deletes = "it deletes or loses 1 resource(s), more than the limit of 0";
        let replaces = "it replaces 1 resource(s), more than the limit of 0";
        let both = "it deletes or loses 3 resource(s), more than the limit of 2";
        let rows: [(Value, &[&str], Option<Result<bool, ExpressionError>>, &[&str]); 11] = [
            (json!({}), &["create", "import", "update", "rename"], None, &[]),
            (json!({}), &["delete", "replace"], None, &[deletes, replaces]),
            (json!({}), &["relinquish"], None, &[deletes]),
            (json!({}), &["missing", "create"], None, &[deletes]),
            (json!({"maxDeletes": 1}), &["delete"], None, &[]),
            (json!({"maxDeletes": 2}), &["delete", "missing", "relinquish"], None, &[both]),
            (json!({}), &["delete"], Some(Ok(true)), &[deletes]),
            (json!({"maxDeletes": -1}), &["delete", "replace"], Some(Ok(true)), &[replaces]),
            (json!({"maxDeletes": -1, "maxReplaces": -1}), &["delete", "replace"], Some(Ok(true)), &[]),
            (json!({"maxDeletes": -1}), &["delete"], Some(Ok(false)), &["spec.approval.autoApproveExpr is false"]),
            (json!({}), &["teleport"], None, &["this version of the controller does not know the operation teleport"]),
        ];
        for (policy, changed, expression, expected) in rows {
            assert_eq!(reasons_for(policy.clone(), &of(changed), expression), expected, "{policy} {changed:?}");
        }
        // The list is truncated, but the numbers are complete.
        let counts = [("delete".to_owned(), 3)].into();
        let resources = UpdatePlan { resources: of(&["delete"]), resource_count: 3, file_digest: None };
        let policy = ApprovalPolicy { max_deletes: Some(2), ..ApprovalPolicy::default() };
        let changes = PlannedChanges { counts: &counts, resources: &resources };
        assert_eq!(reasons(&policy, changes, None), [both]);
    }

    #[test]
    fn protected_resources_require_an_approval_unless_they_are_created() {
        let limits = json!({"maxDeletes": 9, "maxReplaces": 9});
        let with = |patterns: Value| {
            let mut policy = limits.clone();
            policy["protect"] = patterns;
            policy
        };
        let policy = with(json!(["aws:rds/*", "urn:pulumi:*::dns:Zone::*"]));
        for (kind, operation, expected) in [
            ("aws:rds/instance:Instance", "update", true),
            ("aws:rds/instance:Instance", "delete", true),
            ("aws:rds/instance:Instance", "rename", true),
            ("aws:rds/instance:Instance", "reassign", true),
            ("aws:rds/instance:Instance", "relinquish", true),
            ("aws:rds/instance:Instance", "missing", true),
            ("aws:rds/instance:Instance", "teleport", true),
            ("my:Site$aws:rds/instance:Instance", "replace", true),
            ("aws:rds/instance:Instance", "create", false),
            ("aws:rds/instance:Instance", "import", false),
            ("aws:s3/bucket:Bucket", "delete", false),
            ("dns:Zone", "delete", true),
            // A provider can manage protected resources.
            ("pulumi:providers:aws", "update", true),
            ("pulumi:providers:aws", "create", false),
        ] {
            let resource = resource(kind, operation);
            let reasons = reasons_for(policy.clone(), std::slice::from_ref(&resource), None);
            let is_protected = reasons.iter().any(|reason| reason.starts_with("it changes protected resources: "));
            assert_eq!(is_protected, expected, "{resource:?}: {reasons:?}");
        }
        let provider = [resource("pulumi:providers:aws", "update")];
        for (pattern, expected) in
            [("aws:rds/*", true), ("a*", true), ("*", true), ("urn:*::db", true), ("awsx:*", false), ("gcp:*", false)]
        {
            let reasons = reasons_for(with(json!([pattern])), &provider, None);
            assert_eq!(!reasons.is_empty(), expected, "{pattern}: {reasons:?}");
        }
    }

    #[test]
    fn a_urn_that_the_controller_cannot_compare_requires_an_approval() {
        let named = |name: &str| PlannedResource {
            urn: format!("urn:pulumi:dev::web::a:b:C::{name}"),
            ..resource("a:b:C", "update")
        };
        for (name, expected) in [("database", false), ("[secret]", true), ("x".repeat(4096).as_str(), true)] {
            let reasons = reasons_for(json!({"protect": ["urn:*::db"]}), &[named(name)], None);
            assert_eq!(!reasons.is_empty(), expected, "{reasons:?}");
        }
        assert_eq!(reasons_for(json!({}), &[named("[secret]")], None), [""; 0]);
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

//! Messages about plans that require an approval.

use kube::ResourceExt;

use crate::api::auto::{PlannedResource, PreviewOf};
use crate::api::conditions;
use crate::api::pulumi::{Approval, Stack, StackPlan};
use crate::controller::stack::status::planned_changes;
use crate::pulumi::operations::{self, Effect};

/// Number of digits in a shortened digest.
const SHORT_DIGEST: usize = 8;
/// Maximum number of deleted and replaced resources in a message.
const MAX_LISTED: usize = 5;
/// Maximum length of the summary in an event, in bytes. An event has at most 1024 bytes, and the command that approves
/// the plan needs about 500 bytes.
const MAX_EVENT_SUMMARY: usize = 400;

/// Approval state of a plan.
pub struct Awaited<'a> {
    /// Reasons why the plan requires an approval. Empty if every plan requires an approval.
    pub reasons: &'a [String],
    /// Number of users who approved the plan.
    pub approvals: usize,
    pub required: usize,
    /// Reason why the controller ignores one or more approvals.
    pub ignored: Option<&'static str>,
    /// Number of approvals of other plans that users created after this plan.
    pub misdirected: usize,
}

/// Returns the message about a plan that requires an approval. The column `STATUS` shows only the beginning.
pub fn awaiting(plan: &StackPlan, awaited: &Awaited<'_>) -> String {
    let Awaited { reasons, approvals, required, ignored, misdirected } = awaited;
    let (changes, origin, losses) = (planned_changes(&plan.changes), origin(plan), losses(plan));
    let reasons = if reasons.is_empty() { String::new() } else { format!("; reason: {}", reasons.join("; ")) };
    let ignored = ignored.map(|why| format!("; {}{why}", conditions::APPROVAL_DOES_NOT_COUNT)).unwrap_or_default();
    let misdirected = match misdirected {
        0 => String::new(),
        1 => "; 1 later Approval is for another plan".to_owned(),
        more => format!("; {more} later Approvals are for other plans"),
    };
    let digest = plan.digest.hex();
    let short = digest.get(..SHORT_DIGEST).unwrap_or(digest);
    format!(
        "approval needed ({approvals}/{required}): {changes}, plan {short}; {origin}{losses}{reasons}{ignored}{misdirected}; digest {}",
        plan.digest
    )
}

/// Returns the message about a plan that a user rejected.
pub fn rejected(plan: &StackPlan, rejection: &Approval) -> String {
    let reason = rejection.spec.reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
    format!(
        "user {} rejected plan {} ({}){reason}. The controller makes a new plan when the spec or the source changes, or when the \
         annotation reconcile.fluxcd.io/requestedAt gets a new value",
        rejection.spec.by,
        plan.digest,
        summary(plan)
    )
}

/// Returns the message of the event about a plan that requires an approval, with the command to approve the plan.
pub fn approval_required(stack: &Stack, plan: &StackPlan) -> String {
    let (namespace, name) = (stack.namespace().unwrap_or_default(), stack.name_any());
    format!(
        "approval required: {}. To approve, run:\nkubectl create -f - <<END\napiVersion: pulumi.com/v1alpha1\nkind: Approval\nmetadata: \
         {{namespace: {namespace}, generateName: {name}-}}\nspec:\n  stackRef: {{name: {name}}}\n  planDigest: {}\n  decision: \
         Approve\n  by: \"$(kubectl auth whoami -o jsonpath='{{.status.userInfo.username}}')\"\nEND",
        conditions::shorten(&summary(plan), MAX_EVENT_SUMMARY),
        plan.digest
    )
}

/// Returns a summary of a plan: the operation, the revision, the number of changes, and the lost and replaced resources.
fn summary(plan: &StackPlan) -> String {
    format!("{}, {}{}", origin(plan), planned_changes(&plan.changes), losses(plan))
}

/// Returns the operation and the revision of a plan.
fn origin(plan: &StackPlan) -> String {
    let operation = plan.operation.as_str();
    let revision = plan.revision.as_ref().filter(|revision| !revision.is_empty());
    revision.map_or_else(|| operation.to_owned(), |revision| format!("{operation} of revision {revision}"))
}

/// Returns the resources that a plan replaces, and those that Pulumi no longer manages afterwards.
fn losses(plan: &StackPlan) -> String {
    let is_loss = |operation: &str| matches!(Effect::of(operation), Some(Effect::Loss | Effect::Replacement));
    let losses: Vec<&PlannedResource> = plan.resources.iter().filter(|r| is_loss(&r.operation)).collect();
    let named: Vec<String> = losses.iter().take(MAX_LISTED).map(|r| format!("{} {}", r.operation, r.urn)).collect();
    let total: i64 =
        operations::listed().filter(|o| is_loss(o)).filter_map(|operation| plan.changes.get(operation)).sum();
    // The numbers of the engine contain the root resource of the Pulumi stack, and the list does not.
    let is_complete = usize::try_from(plan.resource_count).unwrap_or_default() <= plan.resources.len();
    let total = match plan.operation {
        _ if is_complete => 0,
        PreviewOf::Destroy => plan.resource_count,
        PreviewOf::Up | PreviewOf::Refresh => total,
    };
    let more = usize::try_from(total).unwrap_or_default().max(losses.len()).saturating_sub(named.len());
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    if named.is_empty() { String::new() } else { format!(" ({}{more})", named.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::columns;
    use crate::api::pulumi::StackSpec;
    use crate::artifact::Digest;

    fn plan(deletes: i64) -> StackPlan {
        let resource = |number| PlannedResource {
            urn: format!("urn:pulumi:dev::web::aws:s3:Bucket::b{number}"),
            operation: "delete".to_owned(),
            properties: Vec::new(),
        };
        StackPlan {
            digest: Digest::of(b"plan"),
            update_name: "web-1".to_owned(),
            file_digest: Digest::of(b"file"),
            operation: PreviewOf::Up,
            refresh: None,
            revision: Some("main@sha1:a".to_owned()),
            changes: [("create".to_owned(), 2), ("delete".to_owned(), deletes), ("same".to_owned(), 9)].into(),
            resources: (0..deletes).map(resource).collect(),
            resource_count: 2 + deletes,
            created: None,
        }
    }

    #[test]
    fn the_number_of_further_resources_does_not_contain_the_root_resource() {
        let of = |listed: i64, count: i64| {
            let plan = StackPlan { operation: PreviewOf::Destroy, resource_count: count, ..plan(listed) };
            losses(&StackPlan { changes: [("delete".to_owned(), count + 1)].into(), ..plan })
        };
        assert!(of(1, 1).ends_with("Bucket::b0)"), "{}", of(1, 1));
        assert!(of(7, 7).ends_with("Bucket::b4 and 2 more)"), "{}", of(7, 7));
        assert!(of(7, 90).ends_with("Bucket::b4 and 85 more)"), "the list is truncated: {}", of(7, 90));
    }

    fn without_deletes() -> StackPlan {
        let mut plan = plan(0);
        plan.changes.remove("delete");
        plan
    }

    #[test]
    fn the_summary_lists_changes_and_lost_resources() {
        assert_eq!(summary(&without_deletes()), "up of revision main@sha1:a, 2 to create");
        assert_eq!(
            summary(&plan(1)),
            "up of revision main@sha1:a, 2 to create, 1 to delete (delete urn:pulumi:dev::web::aws:s3:Bucket::b0)"
        );
        assert!(summary(&plan(7)).ends_with("Bucket::b4 and 2 more)"), "{}", summary(&plan(7)));
    }

    #[test]
    fn the_status_column_shows_the_number_of_approvals_and_the_changes() {
        let awaited = Awaited { reasons: &[], approvals: 0, required: 1, ignored: None, misdirected: 0 };
        let of = |plan: &StackPlan| columns::text(&awaiting(plan, &awaited), columns::MAX_STATUS);
        let mut plan = without_deletes();
        let digest: String = plan.digest.hex().chars().take(8).collect();
        assert_eq!(of(&plan), format!("approval needed (0/1): 2 to create, plan {digest}; up..."));
        plan.changes.insert("missing".to_owned(), 1);
        plan.changes.insert("delete".to_owned(), 0);
        assert!(of(&plan).starts_with("approval needed (0/1): 2 to create, 1 missing, plan"), "{}", of(&plan));
    }

    #[test]
    fn the_messages_contain_the_digest_and_the_state_of_the_approvals() {
        let digest = Digest::of(b"plan").to_string();
        let short: String = Digest::of(b"plan").hex().chars().take(8).collect();
        let reasons = ["it deletes or loses 1 resource(s), more than the limit of 0".to_owned()];
        let ignored = Some("the author is unknown");
        let awaited = Awaited { reasons: &reasons, approvals: 1, required: 2, ignored, misdirected: 1 };
        let message = awaiting(&without_deletes(), &awaited);
        let expected = format!(
            "approval needed (1/2): 2 to create, plan {short}; up of revision main@sha1:a; reason: it deletes or loses 1 \
             resource(s), more than the limit of 0; an approval does not count: the author is unknown; 1 later Approval is for another \
             plan; digest {digest}"
        );
        assert_eq!(message, expected);
        let mut stack = Stack::new("web", StackSpec::default());
        stack.metadata.namespace = Some("apps".to_owned());
        let longest = StackPlan { revision: Some("r".repeat(2000)), ..plan(9) };
        stack.metadata.name = Some("n".repeat(42));
        stack.metadata.namespace = Some("n".repeat(63));
        assert!(approval_required(&stack, &longest).len() <= 1024);
        stack.metadata.name = Some("web".to_owned());
        stack.metadata.namespace = Some("apps".to_owned());
        let event = approval_required(&stack, &plan(0));
        for line in [&format!("planDigest: {digest}"), "stackRef: {name: web}", "{namespace: apps, generateName: web-}"]
        {
            assert!(event.contains(line), "{line}: {event}");
        }
    }
}

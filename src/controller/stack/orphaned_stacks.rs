//! Pulumi stacks that a Stack has left with resources, and Pulumi stacks whose state has lost the resources of the Stack.
//! The status lists these Pulumi stacks until a user acknowledges them, because no object manages their resources.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;

use crate::api::auto::UpdateStatus;
use crate::api::bounds;
use crate::api::conditions::{self, ConditionUpdate, ORPHANED, Status, orphaned_reason};
use crate::api::names::ANNOTATION_ACKNOWLEDGE;
use crate::api::pulumi::{OrphanedStack, PulumiStack, Stack, StackStatus};
use crate::artifact::Digest;
use crate::controller::differ;

/// Maximum number of Pulumi stacks in the status. If there are more, the status lists the newest ones.
const MAX_STACKS: usize = bounds::ORPHANED_STACKS as usize;
/// Number of hexadecimal digits in an identifier.
const ID_DIGITS: usize = 8;
/// Separators between the identifiers in the annotation `pulumi.com/acknowledge`.
const SEPARATORS: [char; 2] = [',', ' '];

/// Updates the list after a run. `before` is the Pulumi stack with the resources of the earlier runs, and `now_applied`
/// is the Pulumi stack that the Stack manages after the run.
pub fn record(
    listed: &mut Vec<OrphanedStack>,
    before: Option<PulumiStack>,
    now_applied: Option<&PulumiStack>,
    now: Timestamp,
) {
    let Some(now_applied) = now_applied else { return };
    listed.retain(|orphaned| has_lost_state(orphaned) || differ(&orphaned.pulumi_stack, now_applied));
    if let Some(before) = before.filter(|before| differ(before, now_applied)) {
        listed.retain(|orphaned| has_lost_state(orphaned) || differ(&orphaned.pulumi_stack, &before));
        insert(listed, orphaned(before, now));
    }
}

/// Updates the list if the `up` with this result found an empty state and created resources again. The state does not
/// contain the earlier resources. An entry that a user has not acknowledged yet also covers the runs after it.
pub fn record_lost_state(status: &mut StackStatus, result: &UpdateStatus, now: Timestamp) {
    let Some(applied) = status.applied_stack.as_ref().filter(|_| result.state_was_empty == Some(true)) else { return };
    let is_same = |listed: &OrphanedStack| has_lost_state(listed) && !differ(&listed.pulumi_stack, applied);
    if !status.orphaned_stacks.iter().any(is_same) {
        let lost = OrphanedStack { state_lost: Some(true), ..orphaned(applied.clone(), now) };
        insert(&mut status.orphaned_stacks, lost);
    }
}

fn has_lost_state(orphaned: &OrphanedStack) -> bool {
    orphaned.state_lost == Some(true)
}

fn insert(listed: &mut Vec<OrphanedStack>, orphaned: OrphanedStack) {
    listed.insert(0, orphaned);
    listed.truncate(MAX_STACKS);
}

fn orphaned(pulumi_stack: PulumiStack, now: Timestamp) -> OrphanedStack {
    let digest = Digest::of(format!("{pulumi_stack} {now}").as_bytes()).to_string();
    let id = digest.chars().skip_while(|c| *c != ':').skip(1).take(ID_DIGITS).collect();
    OrphanedStack { id, pulumi_stack, since: Time(now), state_lost: None }
}

/// Removes the acknowledged Pulumi stacks from the list, and sets or removes the condition `ResourcesOrphaned`.
pub fn keep(stack: &Stack, status: &mut StackStatus, now: Timestamp) {
    let acknowledged = stack.annotations().get(ANNOTATION_ACKNOWLEDGE).map(String::as_str).unwrap_or_default();
    status.orphaned_stacks.retain(|orphaned| acknowledged.split(SEPARATORS).all(|id| id != orphaned.id));
    let Some(message) = message(&status.orphaned_stacks) else {
        conditions::remove(&mut status.conditions, ORPHANED);
        return;
    };
    let reason = orphaned_reason::ACKNOWLEDGMENT_REQUIRED;
    let condition = ConditionUpdate { kind: ORPHANED, status: Status::True, reason, message: &message };
    conditions::set(&mut status.conditions, &condition, stack.metadata.generation.unwrap_or_default(), now);
}

/// Returns the message of the condition, or `None` if the list is empty.
fn message(listed: &[OrphanedStack]) -> Option<String> {
    let ids = listed.iter().map(|orphaned| orphaned.id.as_str()).collect::<Vec<_>>().join(",");
    let (lost, left): (Vec<_>, Vec<_>) = listed.iter().partition(|orphaned| has_lost_state(orphaned));
    let left = (!left.is_empty()).then(|| {
        format!(
            "no Stack manages the resources in {}. Delete the resources, or manage them with another Stack.",
            names(&left)
        )
    });
    let lost = (!lost.is_empty()).then(|| {
        format!(
            "the state of {} contained no resources before a run, which created them again. Delete the earlier resources if they still \
             exist.",
            names(&lost)
        )
    });
    let advice = (!listed.is_empty()).then(|| format!("Then set the annotation {ANNOTATION_ACKNOWLEDGE} to {ids}"))?;
    Some([left, lost, Some(advice)].into_iter().flatten().collect::<Vec<_>>().join(" "))
}

/// Returns the message about each state that has lost its resources since `before`.
pub fn lost_states<'a>(
    before: &'a [OrphanedStack],
    now: &'a [OrphanedStack],
) -> impl Iterator<Item = String> + use<'a> {
    let is_new = |orphaned: &&OrphanedStack| before.iter().all(|known| known.id != orphaned.id);
    now.iter().filter(|orphaned| has_lost_state(orphaned)).filter(is_new).map(|orphaned| {
        format!(
            "the state of {} contained no resources before the run, which created them again. The earlier resources probably still \
             exist, and no Stack manages them: delete them, and then set the annotation {ANNOTATION_ACKNOWLEDGE} to {}",
            orphaned.pulumi_stack, orphaned.id
        )
    })
}

/// Returns the message about the resources that remain after the deletion of the Stack, or `None` if the list is empty.
pub fn message_after_deletion(listed: &[OrphanedStack]) -> Option<String> {
    (!listed.is_empty()).then(|| {
        format!(
            "the Stack was deleted, and its earlier resources in {} remain. To delete them, run `pulumi destroy` for each of these Pulumi \
             stacks",
            names(&listed.iter().collect::<Vec<_>>())
        )
    })
}

fn names(listed: &[&OrphanedStack]) -> String {
    listed.iter().map(|orphaned| orphaned.pulumi_stack.to_string()).collect::<Vec<_>>().join(", and in ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::pulumi::StackSpec;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("timestamp in range")
    }

    fn pulumi_stack(name: &str) -> PulumiStack {
        PulumiStack { name: name.to_owned(), project: Some("web".to_owned()), backend: Some("s3://state".to_owned()) }
    }

    fn listed(status: &StackStatus) -> Vec<&str> {
        status.orphaned_stacks.iter().map(|orphaned| orphaned.pulumi_stack.name.as_str()).collect()
    }

    #[test]
    fn a_pulumi_stack_is_listed_until_the_stack_manages_it_again() {
        let mut status = StackStatus::default();
        // Columns: the Pulumi stack before the run, the Pulumi stack after the run, and the list after the run.
        let rows: [(Option<&str>, Option<&str>, &[&str]); 8] = [
            (None, Some("a"), &[]),
            (Some("a"), Some("a"), &[]),
            (Some("a"), Some("b"), &["a"]),
            (Some("b"), Some("c"), &["b", "a"]),
            (Some("c"), Some("a"), &["c", "b"]),
            (Some("a"), None, &["c", "b"]),
            (None, Some("b"), &["c"]),
            (Some("b"), Some("c"), &["b"]),
        ];
        for (second, (before, after, expected)) in (1..).zip(rows) {
            let after = after.map(pulumi_stack);
            record(&mut status.orphaned_stacks, before.map(pulumi_stack), after.as_ref(), at(second));
            assert_eq!(listed(&status), expected, "{before:?} {after:?}");
        }
        for number in 0..20 {
            let (before, after) = (pulumi_stack(&format!("n{number}")), pulumi_stack("z"));
            record(&mut status.orphaned_stacks, Some(before), Some(&after), at(100 + number));
        }
        assert_eq!((status.orphaned_stacks.len(), status.orphaned_stacks[0].pulumi_stack.name.as_str()), (10, "n19"));
    }

    #[test]
    fn an_acknowledgment_applies_only_to_the_entry_that_it_names() {
        let mut stack = Stack::new("app", StackSpec::default());
        let mut status = StackStatus::default();
        record(&mut status.orphaned_stacks, Some(pulumi_stack("a")), Some(&pulumi_stack("b")), at(1));
        record(&mut status.orphaned_stacks, Some(pulumi_stack("b")), Some(&pulumi_stack("c")), at(2));
        keep(&stack, &mut status, at(3));
        let condition = conditions::find(&status.conditions, ORPHANED).expect("a condition").clone();
        let ids: Vec<String> = status.orphaned_stacks.iter().map(|orphaned| orphaned.id.clone()).collect();
        assert!(condition.message.contains("stack a of project web in backend s3://state"), "{}", condition.message);
        assert!(condition.message.ends_with(&ids.join(",")), "{}", condition.message);
        for (value, expected) in [("", vec!["b", "a"]), ("true", vec!["b", "a"]), (ids[1].as_str(), vec!["b"])] {
            stack.annotations_mut().insert(ANNOTATION_ACKNOWLEDGE.to_owned(), value.to_owned());
            keep(&stack, &mut status, at(4));
            assert_eq!(listed(&status), expected, "{value}");
        }
        record(&mut status.orphaned_stacks, Some(pulumi_stack("a")), Some(&pulumi_stack("c")), at(5));
        keep(&stack, &mut status, at(6));
        assert_eq!(listed(&status), ["a", "b"], "the acknowledgment does not apply to a later entry");
        let all: Vec<&str> = status.orphaned_stacks.iter().map(|orphaned| orphaned.id.as_str()).collect();
        stack.annotations_mut().insert(ANNOTATION_ACKNOWLEDGE.to_owned(), all.join(", "));
        keep(&stack, &mut status, at(7));
        assert_eq!((listed(&status), conditions::find(&status.conditions, ORPHANED)), (vec![], None));
    }

    #[test]
    fn a_lost_state_is_listed_until_a_user_acknowledges_it() {
        let (a, b) = (pulumi_stack("a"), pulumi_stack("b"));
        let mut stack = Stack::new("app", StackSpec::default());
        let mut status = StackStatus { applied_stack: Some(a.clone()), ..StackStatus::default() };
        let result = |state_was_empty| UpdateStatus { state_was_empty, ..UpdateStatus::default() };
        record_lost_state(&mut status, &result(None), at(1));
        assert_eq!(listed(&status), [""; 0], "the state was not empty");
        let empty = result(Some(true));
        record_lost_state(&mut status, &empty, at(1));
        let first = status.orphaned_stacks.clone();
        let events: Vec<String> = lost_states(&[], &first).collect();
        assert_eq!(events.len(), 1);
        assert!(events[0].contains("stack a of project web") && events[0].ends_with(&first[0].id), "{events:?}");
        record_lost_state(&mut status, &empty, at(2));
        assert_eq!(status.orphaned_stacks, first, "a retry of a failed run");
        assert_eq!(lost_states(&first, &status.orphaned_stacks).count(), 0);
        for (before, after) in [(&a, &a), (&a, &b), (&b, &a)] {
            record(&mut status.orphaned_stacks, Some(before.clone()), Some(after), at(3));
        }
        assert_eq!(listed(&status), ["b", "a"], "the later runs do not manage the earlier resources");
        keep(&stack, &mut status, at(4));
        let message = conditions::find(&status.conditions, ORPHANED).expect("a condition").message.clone();
        assert!(message.starts_with("no Stack manages the resources in stack b of project web"), "{message}");
        assert!(message.contains("the state of stack a of project web in backend s3://state contained"), "{message}");
        stack.annotations_mut().insert(ANNOTATION_ACKNOWLEDGE.to_owned(), first[0].id.clone());
        keep(&stack, &mut status, at(5));
        assert_eq!(listed(&status), ["b"]);
        record_lost_state(&mut status, &empty, at(6));
        assert_eq!(listed(&status), ["a", "b"], "the state was lost again");
    }
}

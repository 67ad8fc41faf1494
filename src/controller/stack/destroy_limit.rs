//! Destroy limit: if users delete more than a maximum number of Stacks within an interval, the destroys of these Stacks
//! wait for a confirmation. The limit protects against accidents, such as the deletion of a directory with many Stacks.
//!
//! The limit applies to all namespaces together. For the Stacks of other namespaces, the deletions of a namespace count
//! at most half of the limit. A user who continuously deletes and creates Stacks in one namespace therefore cannot force
//! a confirmation for all other namespaces.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;

use crate::api::conditions::{self, READY, STALLED, stack_reason};
use crate::api::names::ANNOTATION_CONFIRM_DESTROY;
use crate::api::pulumi::Stack;
use crate::runtime::backoff::ObjectKey;

/// Maximum length of an invalid confirmation in a message, in bytes.
const MAX_VALUE: usize = 128;

/// Destroy limit, and the recent Stack deletions. Cheap to clone.
///
/// The deletions are only in memory. After a restart, the controller therefore counts only the Stacks whose destroy is
/// not complete. A destroy that waits for a confirmation still waits after a restart, because the Stack's status
/// contains the reason.
#[derive(Clone, Debug)]
pub struct DestroyLimit {
    /// Maximum number of deletions within `interval`. Zero disables the limit.
    max: usize,
    interval: SignedDuration,
    deletions: Arc<Mutex<Deletions>>,
}

/// Deletion times of Stacks whose resources the controller must destroy, by namespace.
type Deletions = HashMap<String, NamespaceDeletions>;

/// Deletion times in one namespace.
#[derive(Debug, Default)]
struct NamespaceDeletions {
    /// Deletion times by Stack name.
    pending: HashMap<String, Timestamp>,
    /// Deletion times of Stacks that no longer exist or need no destroy. The list contains at most one entry more than
    /// the limit.
    ended: VecDeque<Timestamp>,
}

impl NamespaceDeletions {
    /// Returns the number of deletions whose distance from `time` is at most `interval`.
    fn near(&self, time: Timestamp, interval: SignedDuration) -> usize {
        let is_near = |other: &&Timestamp| other.duration_since(time).abs() <= interval;
        self.pending.values().chain(&self.ended).filter(is_near).count()
    }
}

impl DestroyLimit {
    /// Creates a limit that allows a maximum number of deletions within an interval.
    pub fn new((max, interval): (usize, SignedDuration)) -> Self {
        DestroyLimit { max, interval, deletions: Arc::default() }
    }

    /// Records the deletion of a Stack if the controller must destroy its resources (`has_to_destroy`).
    pub fn record(&self, stack: &Stack, has_to_destroy: bool) {
        if self.max == 0 {
            return;
        }
        let key = (stack.namespace().unwrap_or_default(), stack.name_any());
        match stack.metadata.deletion_timestamp.as_ref().filter(|_| has_to_destroy) {
            Some(deleted) => {
                let (namespace, name) = key;
                self.lock().entry(namespace).or_default().pending.insert(name, deleted.0);
            }
            None => self.end(&key),
        }
    }

    /// Records that the Stack needs no destroy, for example because the Stack no longer exists.
    pub fn end(&self, (namespace, name): &ObjectKey) {
        let mut deletions = self.lock();
        let Some(own) = deletions.get_mut(namespace) else { return };
        let Some(deleted) = own.pending.remove(name) else { return };
        own.ended.push_back(deleted);
        let excess = own.ended.len().saturating_sub(self.max.saturating_add(1));
        own.ended.drain(..excess);
        // The entries of namespaces without recent deletions have no effect. A waiting destroy keeps its reason in the
        // status.
        let period = self.interval.saturating_mul(2);
        let earliest = deleted.saturating_sub(period).unwrap_or(Timestamp::MIN);
        deletions.retain(|_, namespace| {
            namespace.ended.retain(|ended| *ended >= earliest);
            !namespace.pending.is_empty() || !namespace.ended.is_empty()
        });
    }

    /// Returns whether more Stacks than the limit were deleted around the deletion of this Stack.
    pub fn is_exceeded(&self, stack: &Stack) -> bool {
        let Some(deleted) = stack.metadata.deletion_timestamp.as_ref().map(|deleted| deleted.0) else { return false };
        let own = stack.namespace().unwrap_or_default();
        let deletions = self.lock();
        let count = |namespace: &NamespaceDeletions| namespace.near(deleted, self.interval);
        let others = deletions.iter().filter(|(name, _)| **name != own).map(|(_, other)| count(other));
        exceeds(self.max, deletions.get(&own).map_or(0, count), others)
    }

    fn lock(&self) -> MutexGuard<'_, Deletions> {
        self.deletions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns whether the deletions exceed the limit for the Stacks of a namespace with `own` deletions. `others` contains
/// the number of deletions in each other namespace.
///
/// Each other namespace counts at most half of the limit, rounded up. With this share, simultaneous deletions cannot
/// exceed the limit without a confirmation: if two namespaces exceed half of the limit, each of them exceeds the limit
/// together with the share of the other. A namespace that has used the limit still leaves half of it to the others, so
/// successive deletions can start one and a half times as many destroys.
fn exceeds(max: usize, own: usize, others: impl Iterator<Item = usize>) -> bool {
    let share = max.div_ceil(2);
    let count = others.map(|other| other.min(share)).fold(own, usize::saturating_add);
    max > 0 && count > max
}

/// Returns the message if the destroy of a Stack must wait for a confirmation. `is_exceeded` is the result of
/// [`DestroyLimit::is_exceeded`]. A waiting destroy has the reason in its conditions, and still waits when the number of
/// recent deletions is below the limit again.
pub fn awaiting_confirmation(stack: &Stack, is_exceeded: bool) -> Option<String> {
    let expected = stack.destroy_confirmation()?;
    let given = stack.annotations().get(ANNOTATION_CONFIRM_DESTROY);
    let conditions = stack.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    let is_reason = |kind: &str| {
        conditions::find(conditions, kind).is_some_and(|found| found.reason == stack_reason::DESTROY_UNCONFIRMED)
    };
    let must_wait = is_exceeded || is_reason(STALLED) || is_reason(READY);
    if !must_wait || given == Some(&expected) {
        return None;
    }
    let (namespace, name) = (stack.namespace().unwrap_or_default(), stack.name_any());
    let message = format!(
        "destroy not confirmed: more Stacks with resources were deleted than --max-destroys permits. To destroy the resources, \
         run: kubectl annotate --overwrite --namespace {namespace} stack {name} {ANNOTATION_CONFIRM_DESTROY}={expected}. To keep \
         the resources, set spec.destroyOnFinalize to false"
    );
    Some(match given {
        Some(given) => {
            let given = conditions::shorten(given, MAX_VALUE);
            format!("{message}. The current value {given:?} of the annotation does not confirm this destroy")
        }
        None => message,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn stack(name: &str, deleted: &str) -> Stack {
        stack_in("apps", name, deleted)
    }

    fn stack_in(namespace: &str, name: &str, deleted: &str) -> Stack {
        serde_json::from_value(json!({
            "apiVersion": "pulumi.com/v1", "kind": "Stack",
            "metadata": {"name": name, "namespace": namespace, "uid": "u1", "deletionTimestamp": deleted},
            "spec": {"stack": "dev"},
            "status": {"conditions": []},
        }))
        .unwrap()
    }

    fn limit() -> DestroyLimit {
        DestroyLimit::new((2, SignedDuration::from_mins(10)))
    }

    #[test]
    fn more_deletions_than_the_limit_within_the_interval_require_a_confirmation() {
        let rows: [(&str, &[(&str, bool)], bool); 5] = [
            ("one", &[], false),
            ("two", &[("2026-01-01T00:01:00Z", true)], false),
            ("three", &[("2026-01-01T00:01:00Z", true), ("2026-01-01T00:02:00Z", true)], true),
            ("outside the interval", &[("2026-01-01T00:01:00Z", true), ("2026-01-01T00:10:01Z", true)], false),
            ("without a destroy", &[("2026-01-01T00:01:00Z", true), ("2026-01-01T00:02:00Z", false)], false),
        ];
        for (name, others, expected) in rows {
            let limit = limit();
            let first = stack("first", "2026-01-01T00:00:00Z");
            limit.record(&first, true);
            for (number, (deleted, destroys)) in others.iter().enumerate() {
                limit.record(&stack(&format!("other-{number}"), deleted), *destroys);
            }
            assert_eq!(limit.is_exceeded(&first), expected, "{name}");
        }
    }

    #[test]
    fn the_limit_includes_destroys_that_have_ended() {
        let limit = limit();
        for number in 0..9 {
            let name = format!("stack-{number}");
            limit.record(&stack(&name, "2026-01-01T00:00:00Z"), true);
            limit.end(&("apps".to_owned(), name));
        }
        let next = stack("next", "2026-01-01T00:05:00Z");
        limit.record(&next, true);
        assert!(limit.is_exceeded(&next));
        assert_eq!(limit.lock()["apps"].ended.len(), 3);
        let later = stack("later", "2026-01-01T01:00:00Z");
        limit.record(&later, true);
        assert!(!limit.is_exceeded(&later));
    }

    #[test]
    fn another_namespace_counts_at_most_half_of_the_limit() {
        let rows: [(&str, usize, usize, &[usize], bool); 12] = [
            ("at the limit", 20, 20, &[], false),
            ("own deletions exceed the limit", 20, 21, &[], true),
            ("another namespace exceeds the limit", 20, 1, &[1000], false),
            ("other half of the limit", 20, 10, &[1000], false),
            ("more than the other half", 20, 11, &[1000], true),
            ("one deletion in each of many namespaces", 20, 1, &[1; 20], true),
            ("few namespaces", 20, 1, &[1; 19], false),
            ("a mass deletion in two namespaces", 20, 1, &[1000, 1000], true),
            ("rounded up", 3, 1, &[1000], false),
            ("rounded up and exceeded", 3, 2, &[1000], true),
            ("a limit of one", 1, 1, &[1], true),
            ("no limit", 0, 1000, &[1000], false),
        ];
        for (name, max, own, others, expected) in rows {
            assert_eq!(exceeds(max, own, others.iter().copied()), expected, "{name}");
        }
    }

    #[test]
    fn simultaneous_deletions_cannot_exceed_the_limit_without_a_confirmation() {
        for max in 1..=6 {
            for counts in (0..512).map(|number: usize| [number % 8, number / 8 % 8, number / 64]) {
                let is_allowed = |own: usize| {
                    let others = counts.iter().enumerate().filter(|(other, _)| *other != own).map(|(_, count)| *count);
                    !exceeds(max, counts[own], others)
                };
                let destroyed: usize = (0..counts.len()).filter(|own| is_allowed(*own)).map(|own| counts[own]).sum();
                assert!(destroyed <= max, "limit {max}, deletions {counts:?}: {destroyed} destroyed");
            }
        }
    }

    #[test]
    fn deletions_in_one_namespace_do_not_require_confirmations_in_others() {
        let limit = limit();
        for number in 0..9 {
            let name = format!("stack-{number}");
            limit.record(&stack_in("hostile", &name, "2026-01-01T00:00:00Z"), true);
            limit.end(&("hostile".to_owned(), name));
        }
        let hostile = stack_in("hostile", "next", "2026-01-01T00:01:00Z");
        limit.record(&hostile, true);
        assert!(limit.is_exceeded(&hostile));
        let first = stack("first", "2026-01-01T00:01:00Z");
        limit.record(&first, true);
        assert!(!limit.is_exceeded(&first));
        let second = stack("second", "2026-01-01T00:01:00Z");
        limit.record(&second, true);
        assert!(limit.is_exceeded(&second), "the namespaces together exceed the limit");
    }

    #[test]
    fn namespaces_without_recent_deletions_are_forgotten() {
        let limit = limit();
        for (namespace, deleted) in [("old", "2026-01-01T00:00:00Z"), ("new", "2026-01-01T00:20:01Z")] {
            limit.record(&stack_in(namespace, "web", deleted), true);
            limit.end(&(namespace.to_owned(), "web".to_owned()));
        }
        assert_eq!(limit.lock().keys().collect::<Vec<_>>(), ["new"]);
    }

    #[test]
    fn zero_disables_the_limit() {
        let limit = DestroyLimit::new((0, SignedDuration::from_mins(10)));
        let first = stack("first", "2026-01-01T00:00:00Z");
        limit.record(&first, true);
        assert!(!limit.is_exceeded(&first));
    }

    #[test]
    fn a_destroy_waits_until_its_own_confirmation() {
        let own = "u1/2026-01-01T00:00:00Z";
        // Columns: the annotation, the reason of `Stalled`, whether the limit is exceeded, and the result: whether the
        // destroy waits, and whether the message names the annotation.
        let rows = [
            (None, "UpdateFailed", false, None),
            (None, "UpdateFailed", true, Some(false)),
            (None, "DestroyUnconfirmed", false, Some(false)),
            (Some(own), "DestroyUnconfirmed", true, None),
            (Some(own), "UpdateFailed", true, None),
            (Some("true"), "UpdateFailed", false, None),
            (Some("true"), "UpdateFailed", true, Some(true)),
            (Some("true"), "DestroyUnconfirmed", false, Some(true)),
            (Some("u1"), "DestroyUnconfirmed", false, Some(true)),
            (Some("u1/2026-01-01T00:00:01Z"), "DestroyUnconfirmed", false, Some(true)),
            (Some("u2/2026-01-01T00:00:00Z"), "DestroyUnconfirmed", false, Some(true)),
        ];
        for (annotation, reason, is_exceeded, expected) in rows {
            let mut stack = stack("web", "2026-01-01T00:00:00Z");
            stack.metadata.annotations =
                annotation.map(|value| [(ANNOTATION_CONFIRM_DESTROY.to_owned(), value.to_owned())].into());
            let condition = json!([{
                "type": "Stalled", "status": "True", "reason": reason, "message": "before",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }]);
            stack.status.as_mut().unwrap().conditions = serde_json::from_value(condition).unwrap();
            let message = awaiting_confirmation(&stack, is_exceeded);
            let names_it = |message: &String| message.contains("does not confirm this destroy");
            assert_eq!(message.as_ref().map(names_it), expected, "{annotation:?} {reason} {is_exceeded}: {message:?}");
            let command = format!("stack web {ANNOTATION_CONFIRM_DESTROY}={own}. To keep");
            assert!(message.is_none_or(|message| message.contains(&command)), "{annotation:?}");
        }
    }
}

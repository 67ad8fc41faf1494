//! Destroy limit: if users delete more than a maximum number of Stacks within an interval, the destroys of these Stacks
//! wait for a confirmation. The limit protects against accidents, such as the deletion of a directory with many Stacks.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;

use crate::api::conditions::{self, READY, STALLED, stack_reason};
use crate::api::duration;
use crate::api::names::ANNOTATION_CONFIRM_DESTROY;
use crate::api::pulumi::Stack;
use crate::runtime::backoff::ObjectKey;

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

/// Deletion times of Stacks whose resources the controller must destroy.
#[derive(Debug, Default)]
struct Deletions {
    pending: HashMap<ObjectKey, Timestamp>,
    /// Deletion times of Stacks that no longer exist or need no destroy. The list contains at most one entry more than
    /// the limit.
    ended: VecDeque<Timestamp>,
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
            Some(deleted) => drop(self.lock().pending.insert(key, deleted.0)),
            None => self.end(&key),
        }
    }

    /// Records that the Stack needs no destroy, for example because the Stack no longer exists.
    pub fn end(&self, key: &ObjectKey) {
        let mut deletions = self.lock();
        if let Some(deleted) = deletions.pending.remove(key) {
            deletions.ended.push_back(deleted);
            let excess = deletions.ended.len().saturating_sub(self.max.saturating_add(1));
            deletions.ended.drain(..excess);
        }
    }

    /// Returns the message if the destroy of this Stack must wait for a confirmation.
    pub fn exceeded(&self, stack: &Stack) -> Option<String> {
        let deleted = stack.metadata.deletion_timestamp.as_ref()?.0;
        let is_near = |other: &&Timestamp| other.duration_since(deleted).abs() <= self.interval;
        let deletions = self.lock();
        let count = deletions.pending.values().chain(&deletions.ended).filter(is_near).count();
        (self.max > 0 && count > self.max).then(|| self.message(stack))
    }

    fn message(&self, stack: &Stack) -> String {
        let (namespace, name) = (stack.namespace().unwrap_or_default(), stack.name_any());
        format!(
            "the destroy waits for a confirmation, because more than {} Stacks with resources to destroy were deleted within {} \
             (--max-destroys). To destroy the resources, run: kubectl annotate --namespace {namespace} stack {name} \
             {ANNOTATION_CONFIRM_DESTROY}=true. To keep the resources, set spec.destroyOnFinalize to false",
            self.max,
            duration::display(self.interval)
        )
    }

    fn lock(&self) -> MutexGuard<'_, Deletions> {
        self.deletions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the message if the destroy of a Stack must wait for a confirmation. `exceeded` is the result of
/// [`DestroyLimit::exceeded`]. A waiting destroy keeps its message in the status, and still waits when the number of
/// recent deletions is below the limit again.
pub fn awaiting_confirmation(stack: &Stack, exceeded: Option<&str>) -> Option<String> {
    if stack.annotations().get(ANNOTATION_CONFIRM_DESTROY).is_some_and(|value| value == "true") {
        return None;
    }
    let conditions = stack.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    let is_waiting = |kind: &str| {
        conditions::find(conditions, kind).filter(|condition| condition.reason == stack_reason::DESTROY_UNCONFIRMED)
    };
    let waiting = is_waiting(STALLED).or_else(|| is_waiting(READY));
    waiting.map(|condition| condition.message.clone()).or_else(|| exceeded.map(str::to_owned))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn stack(name: &str, deleted: &str) -> Stack {
        serde_json::from_value(json!({
            "apiVersion": "pulumi.com/v1", "kind": "Stack",
            "metadata": {
                "name": name, "namespace": "apps", "deletionTimestamp": deleted,
            },
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
            assert_eq!(limit.exceeded(&first).is_some(), expected, "{name}");
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
        assert!(limit.exceeded(&next).is_some());
        assert_eq!(limit.lock().ended.len(), 3);
        let later = stack("later", "2026-01-01T01:00:00Z");
        limit.record(&later, true);
        assert_eq!(limit.exceeded(&later), None);
    }

    #[test]
    fn zero_disables_the_limit() {
        let limit = DestroyLimit::new((0, SignedDuration::from_mins(10)));
        let first = stack("first", "2026-01-01T00:00:00Z");
        limit.record(&first, true);
        assert_eq!(limit.exceeded(&first), None);
    }

    #[test]
    fn a_destroy_waits_until_it_is_confirmed() {
        let with = |annotation: Option<&str>, reason: &str| {
            let mut stack = stack("web", "2026-01-01T00:00:00Z");
            stack.metadata.annotations =
                annotation.map(|value| [(ANNOTATION_CONFIRM_DESTROY.to_owned(), value.to_owned())].into());
            let condition = json!([{
                "type": "Stalled", "status": "True", "reason": reason, "message": "before",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }]);
            stack.status.as_mut().unwrap().conditions = serde_json::from_value(condition).unwrap();
            stack
        };
        let rows = [
            (None, "UpdateFailed", None, None),
            (None, "UpdateFailed", Some("exceeded"), Some("exceeded")),
            (None, "DestroyUnconfirmed", None, Some("before")),
            (Some("false"), "DestroyUnconfirmed", None, Some("before")),
            (Some("true"), "DestroyUnconfirmed", Some("exceeded"), None),
        ];
        for (annotation, reason, exceeded, expected) in rows {
            let found = awaiting_confirmation(&with(annotation, reason), exceeded);
            assert_eq!(found.as_deref(), expected, "{annotation:?} {reason}");
        }
    }
}

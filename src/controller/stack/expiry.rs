//! Expiry of Stacks with `spec.ttl` or `spec.expiresAt`, such as Stacks for pull requests. The controller deletes an
//! expired Stack. As for any other deleted Stack, `spec.destroyOnFinalize` determines whether the controller destroys
//! the resources.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;

use crate::api::conditions::{self, ConditionUpdate, EXPIRING, Status, expiry_reason};
use crate::api::pulumi::{Stack, StackSpec, StackStatus};
use crate::controller::stack::action::Action;
use crate::controller::stack::backoff;

/// Minimum time between the announcement of the expiry and the deletion.
const ANNOUNCEMENT: SignedDuration = SignedDuration::from_hours(1);

/// Maximum delay before the next check. `spec.ttl` can be longer than the maximum requeue delay of the controller
/// runtime.
const MAX_WAIT: SignedDuration = SignedDuration::from_hours(24);

/// Returns the time at which the Stack expires: `spec.expiresAt`, or the Stack's creation time plus `spec.ttl`,
/// whichever is earlier.
fn expires_at(stack: &Stack) -> Option<Timestamp> {
    let ttl = backoff::interval(stack.spec.ttl.as_deref());
    let created = stack.creation_timestamp().map(|created| created.0);
    let end = ttl.zip(created).and_then(|(ttl, created)| created.checked_add(ttl).ok());
    let fixed = stack.spec.expires_at.as_ref().map(|time| time.0);
    end.into_iter().chain(fixed).min()
}

/// Checks that a Stack with an expiry specifies what happens to its resources. The API server enforces the same rule,
/// but not for a Stack that it stored before the rule existed. Returns the error message.
pub fn check(stack: &Stack) -> Result<(), String> {
    let has_expiry = stack.spec.ttl.is_some() || stack.spec.expires_at.is_some();
    match has_expiry && stack.spec.destroy_on_finalize.is_none() {
        true => Err(StackSpec::EXPIRY_WITHOUT_CHOICE.to_owned()),
        false => Ok(()),
    }
}

/// Returns the time at which the Stack expires. Returns `None` if the Stack is suspended, invalid or being deleted.
fn pending(stack: &Stack) -> Option<Timestamp> {
    let is_inactive = stack.spec.suspend.unwrap_or_default() || stack.metadata.deletion_timestamp.is_some();
    expires_at(stack).filter(|_| !is_inactive && check(stack).is_ok())
}

/// Returns the time at which the controller deletes the Stack. A user can change the fields so that the Stack has
/// already expired when the controller announces the expiry. The controller then deletes the Stack an hour after the
/// announcement.
fn deletion_time(stack: &Stack, at: Timestamp, now: Timestamp) -> Timestamp {
    let announced = announcement(stack).map_or(now, |condition| condition.last_transition_time.0);
    match announced < at {
        true => at,
        false => announced.saturating_add(ANNOUNCEMENT).unwrap_or(Timestamp::MAX),
    }
}

/// Returns the action for a Stack that expires within an hour or has expired. Returns `None` if no action is due.
pub fn due(stack: &Stack, now: Timestamp) -> Option<Action> {
    let at = pending(stack)?;
    let deletion = deletion_time(stack, at, now);
    let left = deletion.duration_since(now);
    if !left.is_positive() {
        return Some(Action::Expire(format!("the Stack expired at {}", conditions::time(at))));
    }
    let message = announcement_message(stack, deletion);
    let is_announced = announcement(stack).is_some_and(|condition| condition.message == message);
    (left <= ANNOUNCEMENT && !is_announced).then_some(Action::AnnounceExpiry(message))
}

/// Returns the time until [`due`] returns another action, but at most a day.
pub fn next_change(stack: &Stack, now: Timestamp) -> Option<SignedDuration> {
    let left = deletion_time(stack, pending(stack)?, now).duration_since(now);
    let until_announcement = left.saturating_sub(ANNOUNCEMENT);
    let wait = if until_announcement.is_positive() { until_announcement } else { left };
    wait.is_positive().then_some(wait.min(MAX_WAIT))
}

/// Returns the status that announces the expiry.
pub fn announced(stack: &Stack, message: &str, now: Timestamp) -> StackStatus {
    with_condition(stack, expiry_reason::EXPIRES_SOON, message, now)
}

/// Returns the status that records the expiry. The controller writes this status before it deletes the Stack, so that
/// the status contains the cause of the deletion.
pub fn expired(stack: &Stack, message: &str, now: Timestamp) -> StackStatus {
    with_condition(stack, expiry_reason::EXPIRED, message, now)
}

fn with_condition(stack: &Stack, reason: &str, message: &str, now: Timestamp) -> StackStatus {
    let mut status = stack.status.clone().unwrap_or_default();
    let generation = stack.metadata.generation.unwrap_or_default();
    let condition = ConditionUpdate { kind: EXPIRING, status: Status::True, reason, message };
    conditions::set(&mut status.conditions, &condition, generation, now);
    status
}

/// Removes the condition `Expiring` if the Stack no longer expires within an hour. Otherwise, sets the
/// `observedGeneration` of the condition to the current generation.
pub fn keep(stack: &Stack, status: &mut StackStatus, now: Timestamp) {
    let is_near = |at: Timestamp| at.duration_since(now) <= ANNOUNCEMENT;
    let is_deleted = stack.metadata.deletion_timestamp.is_some();
    if !is_deleted && !expires_at(stack).is_some_and(is_near) {
        conditions::remove(&mut status.conditions, EXPIRING);
    }
    for condition in status.conditions.iter_mut().filter(|condition| condition.type_ == EXPIRING) {
        condition.observed_generation = stack.metadata.generation;
    }
}

fn announcement(stack: &Stack) -> Option<&Condition> {
    conditions::find(&stack.status.as_ref()?.conditions, EXPIRING)
}

fn announcement_message(stack: &Stack, deletion: Timestamp) -> String {
    let destroys = stack.spec.destroy_on_finalize.unwrap_or_default() && !stack.spec.preview.unwrap_or_default();
    let resources = if destroys { "destroys its resources" } else { "keeps its resources" };
    format!(
        "the Stack expires at {}, and the controller then deletes it and {resources}; to keep the Stack, change or remove spec.ttl and \
         spec.expiresAt",
        conditions::time(deletion)
    )
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const NOW: &str = "2026-01-01T12:00:00Z";

    fn stack(spec: &Value) -> Stack {
        let mut stack: Stack = serde_json::from_value(json!({
            "apiVersion": "pulumi.com/v1", "kind": "Stack",
            "metadata": {"name": "web", "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"stack": "dev", "destroyOnFinalize": true},
            "status": {"conditions": []},
        }))
        .unwrap();
        let mut merged = serde_json::to_value(&stack.spec).unwrap();
        merged.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        stack.spec = serde_json::from_value(merged).unwrap();
        stack
    }

    /// Returns a Stack whose expiry the controller announced at this time.
    fn announced_at(mut stack: Stack, time: &str) -> Stack {
        stack.status = Some(announced(&stack, "announced", time.parse().unwrap()));
        stack
    }

    #[test]
    fn a_stack_is_announced_and_expires_at_the_earlier_time() {
        let now: Timestamp = NOW.parse().unwrap();
        // Columns: the spec, whether the controller announces the expiry, and the minutes until the next change.
        let rows = [
            (json!({}), false, None),
            (json!({"ttl": "24h"}), false, Some(11 * 60)),
            (json!({"ttl": "9999999h"}), false, Some(24 * 60)),
            (json!({"ttl": "13h"}), true, Some(60)),
            (json!({"ttl": "12h30m"}), true, Some(30)),
            (json!({"expiresAt": "2026-01-01T12:30:00Z"}), true, Some(30)),
            (json!({"ttl": "24h", "expiresAt": "2026-01-01T12:10:00Z"}), true, Some(10)),
            (json!({"ttl": "1h", "suspend": true}), false, None),
            (json!({"ttl": "1h", "destroyOnFinalize": null}), false, None),
            // The Stack has already expired, but the controller has not announced the expiry.
            (json!({"ttl": "12h"}), true, Some(60)),
            (json!({"expiresAt": "2025-01-01T00:00:00Z"}), true, Some(60)),
        ];
        for (spec, announced, minutes) in rows {
            let stack = stack(&spec);
            let action = due(&stack, now);
            assert_eq!(matches!(action, Some(Action::AnnounceExpiry(_))), announced, "{spec}: {action:?}");
            assert!(!matches!(action, Some(Action::Expire(_))), "{spec}: {action:?}");
            assert_eq!(next_change(&stack, now).map(|wait| wait.as_mins()), minutes, "{spec}");
        }
    }

    #[test]
    fn a_stack_expires_on_time_but_not_within_an_hour_of_a_late_announcement() {
        let now: Timestamp = NOW.parse().unwrap();
        // Columns: the expiry time, the announcement time, and whether the controller deletes the Stack.
        let rows = [
            ("2026-01-01T12:00:00Z", "2026-01-01T11:00:00Z", true),
            ("2026-01-01T12:00:00Z", "2026-01-01T11:55:00Z", true),
            ("2026-01-01T12:00:01Z", "2026-01-01T11:55:00Z", false),
            ("2025-01-01T00:00:00Z", "2026-01-01T11:00:00Z", true),
            ("2025-01-01T00:00:00Z", "2026-01-01T11:00:01Z", false),
        ];
        for (expiry, announcement, expected) in rows {
            let stack = announced_at(stack(&json!({"expiresAt": expiry})), announcement);
            let action = due(&stack, now);
            assert_eq!(matches!(action, Some(Action::Expire(_))), expected, "{expiry} {announcement}: {action:?}");
        }
    }

    #[test]
    fn the_expiry_is_announced_once_for_each_time() {
        let now: Timestamp = NOW.parse().unwrap();
        let mut stack = stack(&json!({"ttl": "12h30m"}));
        let Some(Action::AnnounceExpiry(message)) = due(&stack, now) else { panic!("not announced") };
        assert!(message.starts_with("the Stack expires at 2026-01-01T12:30:00Z, and"), "{message}");
        stack.status = Some(announced(&stack, &message, now));
        assert_eq!(due(&stack, now), None);
        stack.spec.ttl = Some("12h40m".to_owned());
        assert!(matches!(due(&stack, now), Some(Action::AnnounceExpiry(_))));
        assert!(message.contains("deletes it and destroys its resources"), "{message}");
        stack.spec.destroy_on_finalize = Some(false);
        let Some(Action::AnnounceExpiry(message)) = due(&stack, now) else { panic!("not announced") };
        assert!(message.contains("deletes it and keeps its resources"), "{message}");
        stack.spec.ttl = Some("48h".to_owned());
        let mut status = stack.status.clone().unwrap();
        keep(&stack, &mut status, now);
        assert_eq!(conditions::find(&status.conditions, EXPIRING), None, "the Stack no longer expires soon");
    }

    #[test]
    fn a_stack_that_expires_must_specify_what_happens_to_its_resources() {
        let rows = [
            (json!({"destroyOnFinalize": null}), true),
            (json!({"ttl": "1h", "destroyOnFinalize": true}), true),
            (json!({"expiresAt": NOW, "destroyOnFinalize": false}), true),
            (json!({"ttl": "1h", "destroyOnFinalize": null}), false),
            (json!({"expiresAt": NOW, "destroyOnFinalize": null}), false),
        ];
        for (spec, expected) in rows {
            assert_eq!(check(&stack(&spec)).is_ok(), expected, "{spec}");
        }
    }
}

//! Tests for the deletion of completed Updates after their TTL.

use super::*;

/// Returns a completed Update with this TTL and these finalizers. The run ended at this second.
fn ended(ttl: Option<&str>, second: i64, finalizers: &[&str]) -> Update {
    let mut update = update(Some(bound()));
    update.metadata.finalizers = Some(finalizers.iter().map(|name| (*name).to_owned()).collect());
    update.spec.ttl_after_completed = ttl.map(str::to_owned);
    let condition =
        ConditionUpdate { kind: conditions::COMPLETE, status: Status::True, reason: "Updated", message: "" };
    let at = jiff::Timestamp::from_second(second).expect("timestamp in range");
    conditions::set(&mut update.status.as_mut().expect("there").conditions, &condition, 1, at);
    update
}

#[test]
fn a_completed_update_is_deleted_after_its_ttl() {
    let rows = [
        ("no TTL", ended(None, 1, &[]), Action::Nothing),
        ("not yet", ended(Some("1m"), 990, &[]), Action::Keep(SignedDuration::from_secs(50))),
        ("now", ended(Some("1m"), 940, &[]), Action::Expire),
        ("zero TTL", ended(Some("0s"), 1000, &[]), Action::Expire),
        ("a finalizer of another client", ended(Some("0s"), 1000, &["example.com/hold"]), Action::Expire),
        ("not released", ended(Some("0s"), 1, &[names::UPDATE_FINALIZER]), Action::Release),
    ];
    for (name, update, expected) in rows {
        assert_eq!(decide(&observed(update)), expected, "{name}");
    }
}

#[test]
fn the_ttl_has_no_effect_until_the_stack_has_recorded_the_result() {
    let both = [names::UPDATE_FINALIZER, names::STACK_FINALIZER];
    let waits = || Action::Keep(OWNER_CHECK_INTERVAL);
    let rows = [
        ("not recorded", Some("0s"), Owner::Lives, waits()),
        ("not recorded before the TTL", Some("1h"), Owner::Lives, waits()),
        ("the Stack is being deleted", Some("0s"), Owner::Deleting, waits()),
        ("the Stack no longer exists", Some("0s"), Owner::Gone, Action::Expire),
        ("no TTL", None, Owner::Lives, Action::Nothing),
    ];
    for (name, ttl, stack, expected) in rows {
        let held = Observed { stack, ..observed(ended(ttl, 1000, &both)) };
        assert_eq!(decide(&held), expected, "{name}");
    }
}

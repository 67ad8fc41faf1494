//! Periodic reconciliation of Stacks that wait for a change without a watch event.

use std::time::Duration;

use jiff::Timestamp;

use crate::controller::stack::action::{Action, Settled};
use crate::controller::stack::drift::{self, Check};
use crate::controller::stack::expiry;
use crate::controller::stack::observed::Observed;
use crate::controller::stack::run::run_kind;
use crate::controller::stack::step::WATCHED_RETRY;

/// Returns the time until the next reconciliation of a Stack that waits for a change without a watch event. Returns
/// `None` if the Stack waits for no such change. `action` is the action of this reconciliation. `is_watched` is true if
/// the controller watches namespaces.
pub fn interval(observed: &Observed, action: &Action, is_watched: bool, now: Timestamp) -> Option<Duration> {
    // Another Stack can break the cycle. A watch event requeues only the direct dependents of this other Stack.
    let is_in_cycle = matches!(action, Action::Invalid(_)) && observed.cycle.is_some();
    let is_polled = is_in_cycle || (!is_watched && waits_for_namespace(observed, action, now));
    is_polled.then_some(WATCHED_RETRY)
}

/// Returns whether the pause or the schedule of the namespace prevents a run, a drift check or the expiry of the Stack.
fn waits_for_namespace(observed: &Observed, action: &Action, now: Timestamp) -> bool {
    let (stack, settings) = (&observed.stack, &observed.run_settings);
    let is_check_due = || matches!(drift::check(stack, run_kind(stack), now), Check::Now(_));
    match action {
        Action::AwaitPermission(_) => true,
        Action::Invalid(_) if settings.schedule.is_some() => true,
        Action::Settled(Settled::Done(_)) if settings.pause.is_some() && is_check_due() => true,
        _ => settings.pause.is_some() && expiry::due(stack, now).is_some(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::api::pulumi::Stack;
    use crate::controller::namespaces::RunSettings;
    use crate::controller::stack::restrictions::Held;

    fn observed(spec: &str, pause: bool, schedule: bool) -> Observed {
        let mut stack = json!({
            "apiVersion": "pulumi.com/v1", "kind": "Stack", "metadata": {"name": "web", "namespace": "apps"},
            "spec": {"stack": "dev", "destroyOnFinalize": false},
        });
        match spec {
            "drift checks" => stack["spec"]["drift"] = json!({"interval": "1h"}),
            "expired" => stack["spec"]["expiresAt"] = json!("2025-01-01T00:00:00Z"),
            "expires later" => stack["spec"]["expiresAt"] = json!("2027-01-01T00:00:00Z"),
            _ => {}
        }
        let stack: Stack = serde_json::from_value(stack).unwrap();
        let value = |is_set: bool| is_set.then(|| "value".to_owned());
        let run_settings = RunSettings { pause: value(pause), schedule: value(schedule), ..RunSettings::default() };
        Observed { run_settings, ..Observed::of(stack) }
    }

    #[test]
    fn a_stack_is_polled_only_if_no_watch_event_follows_the_change() {
        let now: Timestamp = "2026-01-01T12:00:00Z".parse().unwrap();
        let done = || Action::Settled(Settled::Done(None));
        let suspended = || Action::Settled(Settled::Suspended);
        let abandoned = || Action::Settled(Settled::Abandoned);
        let invalid = || Action::Invalid("invalid".to_owned());
        let held = || Action::AwaitPermission(Held { reason: "Paused", message: "paused".to_owned(), until: None });
        let cycle = |observed: Observed| Observed { cycle: Some(vec!["web".to_owned()]), ..observed };
        // Columns: the state, the action, and whether the Stack is polled without and with a watch of namespaces.
        let rows = [
            ("an invalid spec", observed("", true, false), invalid(), (false, false)),
            ("a schedule that can be invalid", observed("", false, true), invalid(), (true, false)),
            ("a dependency cycle", cycle(observed("", false, false)), invalid(), (true, true)),
            ("no due run in a cycle", cycle(observed("", false, false)), done(), (false, false)),
            ("a due run during a pause", observed("", true, false), held(), (true, false)),
            ("no due run during a pause", observed("", true, true), done(), (false, false)),
            ("a due drift check during a pause", observed("drift checks", true, false), done(), (true, false)),
            ("a drift check without a pause", observed("drift checks", false, true), done(), (false, false)),
            ("a suspended Stack", observed("drift checks", true, false), suspended(), (false, false)),
            ("a due expiry during a pause", observed("expired", true, false), abandoned(), (true, false)),
            ("a due expiry without a pause", observed("expired", false, false), abandoned(), (false, false)),
            ("a later expiry", observed("expires later", true, false), abandoned(), (false, false)),
        ];
        for (name, observed, action, expected) in rows {
            let is_polled = |is_watched| interval(&observed, &action, is_watched, now).is_some();
            assert_eq!((is_polled(false), is_polled(true)), expected, "{name}");
        }
    }
}

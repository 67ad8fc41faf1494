//! The annotation that cancels the open run.

use kube::ResourceExt;

use crate::api::auto::Update;
use crate::api::conditions::shorten;
use crate::api::names::{self, ANNOTATION_CANCEL};
use crate::api::pulumi::Stack;
use crate::controller::stack::action::Action;
use crate::controller::stack::observed::Observed;

/// Maximum length of the recorded value in bytes. It is written to the status, an event and the Update; longer values are cut.
const MAX_VALUE: usize = 256;

/// Returns the action for a new value of the annotation. Each value is handled once: the name of an Update cancels that Update, any other
/// value cancels the currently open run.
pub fn decide(observed: &Observed) -> Option<Action> {
    let stack = &observed.stack;
    let value = new_value(stack)?;
    let open = stack.status.as_ref().and_then(|status| status.current_update.as_ref());
    let Some(open) = open else {
        let message = format!(
            "ignored annotation {ANNOTATION_CANCEL}={value}: no run is open. To stop retries and new runs, set spec.suspend"
        );
        return Some(Action::RejectCancel(value, message));
    };
    if names_update(stack, &value) && value != open.name {
        let message = format!("ignored annotation {ANNOTATION_CANCEL}={value}: the open run is {}", open.name);
        return Some(Action::RejectCancel(value, message));
    }
    // An announced run is created before it is canceled, and a completed run is recorded first.
    observed.update.as_ref().filter(|update| !update.is_complete())?;
    Some(Action::CancelUpdate(value))
}

fn new_value(stack: &Stack) -> Option<String> {
    let value = shorten(stack.annotations().get(ANNOTATION_CANCEL)?, MAX_VALUE);
    let handled = stack.status.as_ref().and_then(|status| status.handled_cancel.as_ref());
    (handled != Some(&value)).then_some(value)
}

/// Whether the value has the format of an Update name of this Stack.
fn names_update(stack: &Stack, value: &str) -> bool {
    let hash = value.strip_prefix(&stack.name_any()).and_then(|rest| rest.strip_prefix('-')).unwrap_or_default();
    hash.len() == names::UPDATE_HASH_LENGTH && hash.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Whether a user canceled the run by annotating or deleting its Update. The deletion of an Update together with its Stack does not count,
/// nor does that of an Update that the controller revoked. The controller revokes only Updates without a run.
pub fn is_by_user(stack: &Stack, update: &Update) -> bool {
    let has = |name: &str| update.annotations().contains_key(name);
    let is_deleted = update.metadata.deletion_timestamp.is_some() && stack.metadata.deletion_timestamp.is_none();
    let has_run = update.status.as_ref().is_some_and(|status| status.run.is_some());
    let is_revoked = has(names::ANNOTATION_REVOKED) && !has_run;
    has(ANNOTATION_CANCEL) || (is_deleted && !is_revoked)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use serde_json::json;

    use super::*;
    use crate::api::auto::{RunBinding, UpdateSpec};
    use crate::api::pulumi::{CurrentUpdate, StackSpec, StackStatus};

    const OPEN: &str = "app-0123456789a";

    fn update(is_complete: bool) -> Update {
        let status = if is_complete { "True" } else { "False" };
        let complete = json!({"type": "Complete", "status": status, "reason": "Test", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z"});
        let mut update = Update::new(OPEN, UpdateSpec::default());
        update.status = Some(serde_json::from_value(json!({"conditions": [complete]})).expect("a status"));
        update
    }

    fn decided(value: Option<&str>, handled: Option<&str>, open: bool, update: Option<Update>) -> String {
        let mut stack = Stack::new("app", StackSpec::default());
        stack.metadata.annotations = value.map(|value| [(ANNOTATION_CANCEL.to_owned(), value.to_owned())].into());
        stack.status = Some(StackStatus {
            handled_cancel: handled.map(str::to_owned),
            current_update: open.then(|| CurrentUpdate { name: OPEN.to_owned(), ..CurrentUpdate::default() }),
            ..StackStatus::default()
        });
        match decide(&Observed { update, ..Observed::of(stack) }) {
            None => String::new(),
            Some(Action::CancelUpdate(value)) => format!("cancel {value}"),
            Some(Action::RejectCancel(_, message)) => message,
            Some(other) => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_value_cancels_the_named_or_open_run_once() {
        let open = || Some(update(false));
        let cancels = format!("cancel {OPEN}");
        let rows = [
            ("nothing is asked", decided(None, None, true, open()), ""),
            ("any value", decided(Some("now"), None, true, open()), "cancel now"),
            ("the name of the open run", decided(Some(OPEN), None, true, open()), cancels.as_str()),
            ("another value than before", decided(Some("now"), Some("before"), true, open()), "cancel now"),
            ("it is handled", decided(Some("now"), Some("now"), true, open()), ""),
            ("it is made first", decided(Some("now"), None, true, None), ""),
            ("its end is recorded first", decided(Some("now"), None, true, Some(update(true))), ""),
        ];
        for (name, found, wanted) in rows {
            assert_eq!(found, wanted, "{name}");
        }
        let nothing = decided(Some("now"), None, false, None);
        assert!(nothing.contains("no run is open") && nothing.contains("spec.suspend"), "{nothing}");
        let other = decided(Some("app-fedcba98765"), None, true, open());
        assert!(other.contains(&format!("the open run is {OPEN}")), "{other}");
    }

    #[test]
    fn a_long_annotation_value_is_recorded_truncated_and_handled_once() {
        let long = "é".repeat(200_000);
        let cancels = decided(Some(&long), None, true, Some(update(false)));
        let written = cancels.strip_prefix("cancel ").expect("it cancels");
        assert!(written.len() <= MAX_VALUE, "{} bytes", written.len());
        assert_eq!(decided(Some(&long), Some(written), true, Some(update(false))), "", "it is handled");
    }

    #[test]
    fn a_run_revoked_by_its_stack_is_not_canceled_by_a_user() {
        let deleted_at = |deleted: bool| deleted.then_some(Time(jiff::Timestamp::UNIX_EPOCH));
        let of = |stack_deleted: bool, deleted: bool, annotation: Option<&str>| {
            let (mut stack, mut update) = (Stack::new("app", StackSpec::default()), update(true));
            stack.metadata.deletion_timestamp = deleted_at(stack_deleted);
            update.metadata.deletion_timestamp = deleted_at(deleted);
            update.metadata.annotations = annotation.map(|name| [(name.to_owned(), "x".to_owned())].into());
            is_by_user(&stack, &update)
        };
        let rows = [
            ("a time limit", of(false, false, None), false),
            ("deleted", of(false, true, None), true),
            ("deleted with its Stack", of(true, true, None), false),
            ("annotated", of(false, false, Some(ANNOTATION_CANCEL)), true),
            ("annotated while its Stack is deleted", of(true, false, Some(ANNOTATION_CANCEL)), true),
            ("taken back", of(false, true, Some(names::ANNOTATION_REVOKED)), false),
        ];
        for (name, found, wanted) in rows {
            assert_eq!(found, wanted, "{name}");
        }

        let (stack, mut marked) = (Stack::new("app", StackSpec::default()), update(true));
        marked.metadata.deletion_timestamp = deleted_at(true);
        marked.metadata.annotations = Some([(names::ANNOTATION_REVOKED.to_owned(), "x".to_owned())].into());
        marked.status.as_mut().expect("a status").run = Some(RunBinding::default());
        assert!(is_by_user(&stack, &marked), "it ran although it was to be revoked");
    }
}

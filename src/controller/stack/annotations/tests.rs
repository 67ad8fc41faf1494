//! Tests for the annotations that cancel a run, resolve a run or request a refresh.

mod cancel {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use serde_json::json;

    use super::super::*;
    use crate::api::auto::{RunBinding, UpdateSpec};
    use crate::api::pulumi::{CurrentUpdate, StackSpec, StackStatus};

    const OPEN: &str = "app-0123456789a";

    fn update(is_complete: bool) -> Update {
        let status = if is_complete { "True" } else { "False" };
        let complete = json!({"type": "Complete", "status": status, "reason": "Test", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z"});
        let mut update = Update::new(OPEN, UpdateSpec::default());
        update.status = Some(serde_json::from_value(json!({"conditions": [complete]})).expect("status is set"));
        update
    }

    fn decided(value: Option<&str>, handled: Option<&str>, open: bool, update: Option<Update>) -> String {
        let mut stack = Stack::new("app", StackSpec::default());
        stack.metadata.annotations = value.map(|value| [(ANNOTATION_CANCEL.to_owned(), value.to_owned())].into());
        stack.status = Some(StackStatus {
            handled_cancel: handled.map(str::to_owned),
            current_update: open.then(|| Box::new(CurrentUpdate { name: OPEN.to_owned(), ..CurrentUpdate::default() })),
            ..StackStatus::default()
        });
        match cancel(&Observed { update, ..Observed::of(stack) }) {
            None => String::new(),
            Some(Action::CancelUpdate(value)) => format!("cancel {value}"),
            Some(Action::RejectCancel(_, message)) => message,
            Some(other) => panic!("{other:?}"),
        }
    }

    #[test]
    fn each_annotation_value_cancels_the_named_or_the_open_run_once() {
        let open = || Some(update(false));
        let cancels = format!("cancel {OPEN}");
        let rows = [
            ("no annotation", decided(None, None, true, open()), ""),
            ("any value", decided(Some("now"), None, true, open()), "cancel now"),
            ("the name of the open run", decided(Some(OPEN), None, true, open()), cancels.as_str()),
            ("the value has changed", decided(Some("now"), Some("before"), true, open()), "cancel now"),
            ("the request is handled", decided(Some("now"), Some("now"), true, open()), ""),
            ("the Update is created first", decided(Some("now"), None, true, None), ""),
            ("the result is recorded first", decided(Some("now"), None, true, Some(update(true))), ""),
        ];
        for (name, found, expected) in rows {
            assert_eq!(found, expected, "{name}");
        }
        let nothing = decided(Some("now"), None, false, None);
        assert!(nothing.contains("no run is open or queued") && nothing.contains("spec.suspend"), "{nothing}");
        let other = decided(Some("app-fedcba98765"), None, true, open());
        assert!(other.contains(&format!("the open or queued run is {OPEN}")), "{other}");
    }

    #[test]
    fn a_long_annotation_value_is_truncated_in_the_status_and_handled_once() {
        let long = "é".repeat(200_000);
        let cancels = decided(Some(&long), None, true, Some(update(false)));
        let written = cancels.strip_prefix("cancel ").expect("should cancel the run");
        assert!(written.len() <= MAX_VALUE, "{} bytes", written.len());
        assert_eq!(decided(Some(&long), Some(written), true, Some(update(false))), "", "the request is handled");
    }

    #[test]
    fn a_revoked_run_does_not_count_as_canceled_by_a_user() {
        let deleted_at = |deleted: bool| deleted.then_some(Time(jiff::Timestamp::UNIX_EPOCH));
        let of = |stack_deleted: bool, deleted: bool, annotation: Option<&str>| {
            let (mut stack, mut update) = (Stack::new("app", StackSpec::default()), update(true));
            stack.metadata.deletion_timestamp = deleted_at(stack_deleted);
            update.metadata.deletion_timestamp = deleted_at(deleted);
            update.metadata.annotations = annotation.map(|name| [(name.to_owned(), "x".to_owned())].into());
            is_canceled_by_user(&stack, &update)
        };
        let rows = [
            ("a time limit", of(false, false, None), false),
            ("deleted", of(false, true, None), true),
            ("deleted with its Stack", of(true, true, None), false),
            ("annotated", of(false, false, Some(ANNOTATION_CANCEL)), true),
            ("annotated, and its Stack is being deleted", of(true, false, Some(ANNOTATION_CANCEL)), true),
            ("revoked", of(false, true, Some(names::ANNOTATION_REVOKED)), false),
        ];
        for (name, found, expected) in rows {
            assert_eq!(found, expected, "{name}");
        }

        let (stack, mut marked) = (Stack::new("app", StackSpec::default()), update(true));
        marked.metadata.deletion_timestamp = deleted_at(true);
        marked.metadata.annotations = Some([(names::ANNOTATION_REVOKED.to_owned(), "x".to_owned())].into());
        marked.status.as_mut().expect("status is set").run = Some(RunBinding::default());
        assert!(is_canceled_by_user(&stack, &marked), "the revoked annotation has no effect on a started run");
    }
}

mod resolve {
    use super::super::*;
    use crate::api::pulumi::{CurrentUpdate, StackSpec, StackStatus};

    fn stack(value: &str, handled: Option<&str>, reason: Option<&str>) -> Stack {
        let mut stack = Stack::new("app", StackSpec::default());
        stack.annotations_mut().insert(ANNOTATION_RESOLVE.to_owned(), value.to_owned());
        let last =
            LastUpdate { name: Some("app-1".to_owned()), reason: reason.map(str::to_owned), ..LastUpdate::default() };
        stack.status = Some(StackStatus {
            handled_resolve: handled.map(str::to_owned),
            last_update: Some(last),
            ..StackStatus::default()
        });
        stack
    }

    #[test]
    fn a_user_decision_applies_once_to_the_named_run() {
        let unresolved = Some("PendingCreates");
        let rows = [
            ("app-1=retry", None, unresolved, Some(Decision::Retry), ""),
            ("app-1=clear", Some("app-1=retry"), Some("RunOutcomeUnknown"), Some(Decision::Clear), ""),
            ("app-1=retry", Some("app-1=retry"), unresolved, None, ""),
            ("app-1=abandon", None, Some("Aborted"), Some(Decision::Abandon), ""),
            ("app-1=abandon", Some("app-1=abandon"), unresolved, Some(Decision::Abandon), ""),
            ("app-0=retry", None, unresolved, None, "names app-0, but the run to resolve is app-1"),
            ("app-0=retry", Some("app-0=retry"), unresolved, None, ""),
            ("app-1=retry", None, Some("UpdateFailed"), None, "names app-1, but no run requires a decision"),
            ("app-1=retry", None, Some("BackendUpgradeRequired"), None, "names app-1, but no run requires a decision"),
            ("app-1=retry", None, None, None, "names app-1, but no run requires a decision"),
            ("app-1=yes", None, unresolved, None, "must have the form"),
            ("app-1=retry", None, Some("StackNotFound"), Some(Decision::Retry), ""),
            ("app-1=abandon", None, Some("StackNotFound"), Some(Decision::Abandon), ""),
            ("app-1=clear", None, Some("StackNotFound"), None, "set it to app-1=retry or app-1=abandon"),
            ("app-1=create", None, Some("StackNotFound"), Some(Decision::Create), ""),
            ("app-1=create", Some("app-1=create"), Some("StackNotFound"), None, ""),
            ("app-1=create", None, unresolved, None, "requests create, but the run requires no missing Pulumi stack"),
        ];
        for (value, handled, reason, expected, wanted_warning) in rows {
            let stack = stack(value, handled, reason);
            assert_eq!(resolution(&stack), expected, "{value} {handled:?} {reason:?}");
            let warning = resolution_warning(&stack).unwrap_or_default();
            assert!(
                if wanted_warning.is_empty() { warning.is_empty() } else { warning.contains(wanted_warning) },
                "{value}: {warning}"
            );
        }
    }

    #[test]
    fn only_an_abandoned_destroy_keeps_the_resources_of_a_deleted_stack() {
        // Columns: the kind of the last run, whether the run started after the deletion, and the result.
        let rows = [
            ("destroy", true, true),
            ("destroy", false, true),
            ("preview", true, true),
            ("preview", false, false),
            ("up", true, false),
        ];
        for (kind, is_recent, expected) in rows {
            let mut stack = stack("app-1=abandon", None, Some("StackNotFound"));
            stack.metadata.generation = Some(2);
            stack.metadata.deletion_timestamp =
                Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(jiff::Timestamp::UNIX_EPOCH));
            let last = stack.status.as_mut().and_then(|status| status.last_update.as_mut()).expect("value is set");
            last.kind = Some(kind.to_owned());
            last.inputs.generation = if is_recent { 2 } else { 1 };
            assert_eq!(is_abandoned_destroy(&stack), expected, "{kind} {is_recent}");
            stack.annotations_mut().insert(ANNOTATION_RESOLVE.to_owned(), "app-1=create".to_owned());
            assert_eq!(resolution(&stack), None, "a destroy creates no Pulumi stack");
        }
    }

    #[test]
    fn a_user_decision_about_the_open_run_is_copied_to_its_update() {
        let mut stack = stack("app-2=retry", None, Some("UpdateFailed"));
        let open = CurrentUpdate { name: "app-2".to_owned(), ..CurrentUpdate::default() };
        stack.status.as_mut().expect("value is set").current_update = Some(Box::new(open));
        assert_eq!(resolution_of_open_run(&stack, "app-2"), Some("app-2=retry"));
        assert_eq!(resolution_of_open_run(&stack, "app-1"), None);
        assert_eq!((resolution(&stack), resolution_warning(&stack)), (None, None));
    }
}

mod refresh {
    use super::super::*;
    use crate::api::pulumi::{RunInputs, StackSpec, StackStatus};

    fn stack(requested: Option<&str>, refresh: Option<&str>, handled: Option<&str>) -> Stack {
        let mut stack = Stack::new("app", StackSpec::default());
        let values = [(names::ANNOTATION_REQUESTED_AT, requested), (names::ANNOTATION_REFRESH, refresh)];
        let set = values.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?.to_owned())));
        stack.annotations_mut().extend(set);
        let last_handled_refresh_at = handled.map(str::to_owned);
        stack.status = Some(StackStatus { last_handled_refresh_at, ..StackStatus::default() });
        stack
    }

    #[test]
    fn a_refresh_is_due_until_a_run_of_the_request_has_succeeded() {
        let (t, u) = (Some("t"), Some("u"));
        let rows = [
            ("no request", stack(None, None, None), false),
            ("a request without a refresh", stack(t, None, None), false),
            ("a refresh without a request", stack(None, t, None), false),
            ("a refresh of an earlier request", stack(u, t, None), false),
            ("a request with a refresh", stack(t, t, None), true),
            ("a second request with a refresh", stack(u, u, t), true),
            ("a handled request", stack(t, t, t), false),
        ];
        for (name, stack, expected) in rows {
            assert_eq!(is_refresh_due(&stack), expected, "{name}");
        }
    }

    #[test]
    fn plans_and_destroys_do_not_handle_a_request_for_a_refresh() {
        let handled = |kind, save_plan: Option<bool>| {
            let inputs = RunInputs { refresh_at: Some("t".to_owned()), ..RunInputs::default() };
            handled_refresh(&CurrentUpdate { kind, save_plan, inputs, ..CurrentUpdate::default() })
        };
        assert_eq!(handled(UpdateKind::Up, None).as_deref(), Some("t"));
        assert_eq!(handled(UpdateKind::Preview, None).as_deref(), Some("t"), "a Stack with spec.preview");
        assert_eq!(handled(UpdateKind::Preview, Some(true)), None, "the plan is not executed yet");
        assert_eq!(handled(UpdateKind::Destroy, None), None);
    }
}

//! The user's decision about a run in doubt: the annotation `pulumi.com/resolve`.

use kube::ResourceExt;

use crate::api::conditions::{stack_reason, update_reason};
use crate::api::names::ANNOTATION_RESOLVE;
use crate::api::pulumi::{LastUpdate, Stack};
use crate::api::resolve::{Answer, parse};

/// Failure reasons for which a user may set the annotation.
const ANSWERABLE: [&str; 4] = [
    update_reason::RUN_OUTCOME_UNKNOWN,
    update_reason::PENDING_CREATES,
    update_reason::STACK_NOT_FOUND,
    update_reason::ABORTED,
];

/// Returns the reason for which a Stack waits for a decision after a run that failed with `failure`.
pub fn question(failure: &str) -> Option<&'static str> {
    match failure {
        update_reason::RUN_OUTCOME_UNKNOWN => Some(stack_reason::RUN_OUTCOME_UNKNOWN),
        update_reason::PENDING_CREATES => Some(stack_reason::PENDING_CREATES),
        update_reason::STACK_NOT_FOUND => Some(stack_reason::STACK_NOT_FOUND),
        _ => None,
    }
}

/// Returns the decision about the last run that is in force. A handled decision is no longer in force, except for an abandoned run, which
/// stays abandoned.
pub fn in_force(stack: &Stack) -> Option<Answer> {
    let value = value(stack)?;
    let resolution = parse(value).ok()?;
    let names_it = |last: &&LastUpdate| last.name.as_deref() == Some(resolution.update) && is_answerable(last);
    last(stack).filter(names_it)?;
    if resolution.answer == Answer::Clear && is_not_found(stack) {
        return None;
    }
    (!is_handled(stack, value) || resolution.answer == Answer::Abandon).then_some(resolution.answer)
}

/// Whether the destroy did not find the Pulumi stack, and the user decided to leave the resources.
pub fn is_abandoned_destroy(stack: &Stack) -> bool {
    is_not_found(stack) && in_force(stack) == Some(Answer::Abandon)
}

/// Whether the last run did not find the Pulumi stack to destroy.
pub fn is_not_found(stack: &Stack) -> bool {
    last(stack).is_some_and(|last| last.reason.as_deref() == Some(update_reason::STACK_NOT_FOUND))
}

/// Returns the annotation value to record as handled.
pub fn acted_on(stack: &Stack) -> Option<String> {
    in_force(stack).and_then(|_| value(stack)).map(str::to_owned)
}

/// Returns the annotation value if it names this Update, whose run is open.
pub fn for_open<'a>(stack: &'a Stack, update: &str) -> Option<&'a str> {
    value(stack).filter(|value| parse(value).is_ok_and(|resolution| resolution.update == update))
}

/// Returns the message about an annotation value that has no effect.
pub fn complaint(stack: &Stack) -> Option<String> {
    let value = value(stack).filter(|value| !is_handled(stack, value))?;
    let resolution = match parse(value) {
        Ok(resolution) => resolution,
        Err(what) => return Some(format!("the annotation {ANNOTATION_RESOLVE} {what}")),
    };
    let status = stack.status.as_ref();
    let is_open = status.and_then(|s| s.current_update.as_ref()).is_some_and(|open| open.name == resolution.update);
    if is_open || in_force(stack).is_some() {
        return None;
    }
    let named = resolution.update;
    Some(match last(stack).filter(|last| is_answerable(last)).and_then(|last| last.name.as_deref()) {
        Some(not_found) if not_found == named && is_not_found(stack) => format!(
            "the annotation {ANNOTATION_RESOLVE} answers clear, but there is no state to clear: answer {named}=retry or \
             {named}=abandon"
        ),
        Some(doubtful) => format!("the annotation {ANNOTATION_RESOLVE} names {named}; the run in doubt is {doubtful}"),
        None => format!("the annotation {ANNOTATION_RESOLVE} names {named}, which is not in doubt"),
    })
}

fn value(stack: &Stack) -> Option<&str> {
    stack.annotations().get(ANNOTATION_RESOLVE).map(String::as_str)
}

fn is_handled(stack: &Stack, value: &str) -> bool {
    stack.status.as_ref().and_then(|status| status.handled_resolve.as_deref()) == Some(value)
}

fn last(stack: &Stack) -> Option<&LastUpdate> {
    stack.status.as_ref()?.last_update.as_ref()
}

fn is_answerable(last: &LastUpdate) -> bool {
    last.reason.as_deref().is_some_and(|reason| ANSWERABLE.contains(&reason))
}

#[cfg(test)]
mod tests {
    use super::*;
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
    fn an_answer_applies_once_to_the_named_run() {
        let doubt = Some("PendingCreates");
        let rows = [
            ("app-1=retry", None, doubt, Some(Answer::Retry), ""),
            ("app-1=clear", Some("app-1=retry"), Some("RunOutcomeUnknown"), Some(Answer::Clear), ""),
            ("app-1=retry", Some("app-1=retry"), doubt, None, ""),
            ("app-1=abandon", None, Some("Aborted"), Some(Answer::Abandon), ""),
            ("app-1=abandon", Some("app-1=abandon"), doubt, Some(Answer::Abandon), ""),
            ("app-0=retry", None, doubt, None, "names app-0; the run in doubt is app-1"),
            ("app-0=retry", Some("app-0=retry"), doubt, None, ""),
            ("app-1=retry", None, Some("UpdateFailed"), None, "names app-1, which is not in doubt"),
            ("app-1=retry", None, None, None, "names app-1, which is not in doubt"),
            ("app-1=yes", None, doubt, None, "must have the form"),
            ("app-1=retry", None, Some("StackNotFound"), Some(Answer::Retry), ""),
            ("app-1=abandon", None, Some("StackNotFound"), Some(Answer::Abandon), ""),
            ("app-1=clear", None, Some("StackNotFound"), None, "answer app-1=retry or app-1=abandon"),
        ];
        for (value, handled, reason, wanted, said) in rows {
            let stack = stack(value, handled, reason);
            assert_eq!(in_force(&stack), wanted, "{value} {handled:?} {reason:?}");
            let complaint = complaint(&stack).unwrap_or_default();
            assert!(
                if said.is_empty() { complaint.is_empty() } else { complaint.contains(said) },
                "{value}: {complaint}"
            );
        }
    }

    #[test]
    fn an_answer_to_the_open_run_is_passed_to_its_update() {
        let mut stack = stack("app-2=retry", None, Some("UpdateFailed"));
        let open = CurrentUpdate { name: "app-2".to_owned(), ..CurrentUpdate::default() };
        stack.status.as_mut().expect("there").current_update = Some(open);
        assert_eq!(for_open(&stack, "app-2"), Some("app-2=retry"));
        assert_eq!(for_open(&stack, "app-1"), None);
        assert_eq!((in_force(&stack), complaint(&stack)), (None, None));
    }
}

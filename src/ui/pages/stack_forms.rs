//! Forms on a Stack's page, for the actions that the user may perform.

use maud::{Markup, html};

use super::parts;
use super::plan_review::Review;
use crate::api::pulumi::{Stack, StackPlan};
use crate::api::resolve::Decision;
use crate::ui::permissions::Actions;
use crate::ui::row::Key;
use crate::view::{decisions, phase};

/// Hint for a user whose permissions are unknown.
const UNKNOWN: &str = "The page contains no actions, because you have no permission to check your permissions (create \
                       of selfsubjectaccessreviews in the group authorization.k8s.io).";

/// The Stack, the session's form token, and the user's permissions.
pub(super) struct Forms<'a> {
    pub(super) key: &'a Key,
    pub(super) token: &'a str,
    pub(super) permitted: Actions,
}

impl Forms<'_> {
    /// Returns the actions that apply to a Stack's state. While a plan waits for a decision, the decision is the
    /// primary action, because a requested run would replace the plan.
    pub(super) fn actions(&self, stack: &Stack, review: Review) -> Markup {
        if self.permitted.is_unknown {
            return html! { p.hint { (UNKNOWN) } };
        }
        if !self.permitted.may_change {
            return html! {};
        }
        let open = stack.status.as_ref().and_then(|status| status.current_update.as_ref());
        let none = html! {};
        let (class, hint) = match review.is_undecided() {
            true => ("", html! { span.hint { "creates a new plan" } }),
            false => ("primary", html! {}),
        };
        html! {
            div.actions role="group" aria-label="Actions" {
                @if phase::is_suspended(stack) {
                    (self.form("resume", "Resume", "primary", &none))
                } @else {
                    (self.form("reconcile", "Request a run", class, &hint))
                    (self.form("refresh", "Request a run with refresh", "", &hint))
                    (self.form("suspend", "Suspend", "", &none))
                }
                @if let Some(open) = open {
                    (self.form("cancel", "Cancel the run", "danger", &hidden("run", &open.name)))
                }
            }
        }
    }

    /// Returns the forms that approve or reject a plan. The forms contain the digest of the plan that the page shows.
    pub(super) fn decisions(&self, plan: &StackPlan) -> Markup {
        if self.permitted.is_unknown {
            return html! {};
        }
        if !self.permitted.may_decide {
            return html! { p.hint { "You have no permission to approve or reject this plan." } };
        }
        let fields = |label: &str| {
            html! {
                (hidden("plan", &plan.digest.to_string()))
                label { (label) input type="text" name="reason" maxlength="200" autocomplete="off"; }
            }
        };
        html! {
            div.actions role="group" aria-label="Decision about the plan" {
                (self.form("approve", "Approve this plan", "primary", &fields("Reason for the approval (optional)")))
                (self.form("reject", "Reject this plan", "danger", &fields("Reason for the rejection (optional)")))
            }
        }
    }

    /// Returns the forms that resolve a run, or nothing if no run requires a decision.
    pub(super) fn resolutions(&self, stack: &Stack) -> Markup {
        let choices = [
            (Decision::Retry, "Run again", "The state is not changed before the run."),
            (Decision::Create, "Create the stack again", "Check first that the resources do not exist."),
            (Decision::Clear, "Remove pending creates, and run again", "Check first that the resources do not exist."),
            (Decision::Abandon, "Start no run", "The Stack runs again after a change."),
        ];
        let found = choices.into_iter().filter(|_| self.permitted.may_change).filter_map(|(decision, label, help)| {
            let (_, run) = decisions::run_to_resolve(stack, decision)?;
            Some((decision, label, help, run))
        });
        let found: Vec<_> = found.collect();
        html! {
            @if !found.is_empty() {
                section aria-labelledby="resolve" {
                    h2 id="resolve" { "Decision about the last run" }
                    div.actions {
                        @for (decision, label, help, run) in &found {
                            (self.form("resolve", label, "", &html! {
                                (hidden("run", run))
                                (hidden("decision", decisions::word(*decision)))
                                span.hint { (help) }
                            }))
                        }
                    }
                }
            }
        }
    }

    fn form(&self, action: &str, label: &str, class: &str, fields: &Markup) -> Markup {
        html! {
            form method="post" action={ (parts::path(self.key)) "/actions/" (action) } {
                (hidden("form-token", self.token))
                (fields)
                button class=(class) type="submit" { (label) }
            }
        }
    }
}

fn hidden(name: &str, value: &str) -> Markup {
    html! { input type="hidden" name=(name) value=(value); }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::view::fixtures::{DIGEST, PLAN, condition, stack};

    fn forms(stack: &Stack) -> String {
        forms_of_user(stack, true)
    }

    fn forms_of_user(stack: &Stack, may_change: bool) -> String {
        let key = ("apps".to_owned(), "web".to_owned());
        let forms = Forms { key: &key, token: "abc", permitted: Actions { may_change, ..Actions::default() } };
        let actions = forms.actions(stack, Review::of(stack, None));
        format!("{}{}", actions.into_string(), forms.resolutions(stack).into_string())
    }

    #[test]
    fn the_actions_apply_to_the_state_of_the_stack() {
        let of = |spec: Value, status: Value| forms(&stack("web", &spec, &status));
        let idle = of(json!({}), json!({}));
        assert!(
            idle.contains("action=\"/stacks/apps/web/actions/reconcile\"") && idle.contains("value=\"abc\""),
            "{idle}"
        );
        assert!(!idle.contains("actions/cancel") && !idle.contains("actions/resume"), "{idle}");
        assert!(!idle.contains("actions/resolve"), "{idle}");
        assert!(idle.contains("class=\"primary\"") && !idle.contains("creates a new plan"), "{idle}");
        let waiting = json!({
            "conditions": [condition("Reconciling", "True", "AwaitingApproval", "")],
            "plan": { "digest": PLAN, "updateName": "web-1", "fileDigest": DIGEST },
        });
        let waiting = of(json!({}), waiting);
        assert!(!waiting.contains("class=\"primary\"") && waiting.contains("creates a new plan"), "{waiting}");
        let suspended = of(json!({ "suspend": true }), json!({}));
        assert!(suspended.contains("actions/resume") && !suspended.contains("actions/reconcile"), "{suspended}");
        let open = of(json!({}), json!({ "currentUpdate": { "name": "web-2" } }));
        assert!(open.contains("actions/cancel") && open.contains("name=\"run\" value=\"web-2\""), "{open}");
        let missing = json!({
            "conditions": [condition("Stalled", "True", "StackNotFound", "")],
            "lastUpdate": { "name": "web-1" },
        });
        let stalled = of(json!({}), missing.clone());
        assert!(stalled.contains("value=\"abandon\"") && !stalled.contains("value=\"clear\""), "{stalled}");
        assert_eq!(forms_of_user(&stack("web", &json!({}), &missing), false), "", "without permission");
    }
}

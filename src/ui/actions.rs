//! Actions of users. Each action is a form that changes objects with the user's token, so RBAC and admission policies
//! apply to each change.

use axum::body::Body;
use axum::http::HeaderMap;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use kube::core::PartialObjectMeta;
use serde_json::Value;

use super::error::UiError;
use super::form::Form;
use super::response::redirect;
use super::row::Key;
use super::state::{Answer, Ui};
use super::users::{self, User};
use crate::api::names::{ANNOTATION_CANCEL, ANNOTATION_RESOLVE};
use crate::api::pulumi::{Approval, ApprovalDecision, Stack};
use crate::api::resolve::Decision;
use crate::api::tolerant::Tolerant;
use crate::view::{decisions, phase, requests};

/// Maximum length of the reason for a decision, in characters.
const MAX_REASON: usize = 200;
/// Field manager of the changes.
const FIELD_MANAGER: &str = "pulumi-controller-ui";

/// API server request that performs an action.
#[derive(Debug)]
enum Change {
    /// JSON merge patch for the Stack.
    Patch(Value),
    Decide(Box<Approval>),
}

/// Performs an action, and redirects to the Stack's page.
pub(super) async fn answer(ui: &Ui, headers: &HeaderMap, key: Key, action: &str, body: Body) -> Answer {
    let visitor = ui.visitor(headers)?;
    let form = Form::of_session(ui, headers, &visitor, body).await?;
    let (namespace, name) = (&key.0, &key.1);
    let stack: Option<Stack> = visitor.user.reader.get_opt(namespace, name).await?;
    let missing = || UiError::NoObject { kind: "Stack", namespace: namespace.clone(), name: name.clone() };
    let stack = stack.ok_or_else(missing)?;
    let mut location = format!("/stacks/{namespace}/{name}?done={action}");
    match change(&stack, action, &form, &visitor.session.user)? {
        Change::Patch(patch) => merge(&visitor.user, &key, &patch).await?,
        Change::Decide(approval) => {
            create(&visitor.user, namespace, &approval).await?;
            // The URL contains the plan's digest, so the page shows the confirmation only until another plan replaces
            // this plan.
            location.push_str("&plan=");
            location.push_str(&approval.spec.plan_digest);
        }
    }
    tracing::info!(user = visitor.session.user, action, namespace, name, "a user performed an action in the web UI");
    Ok(redirect(&location))
}

/// Returns the API server request that performs an action.
fn change(stack: &Stack, action: &str, form: &Form, user: &str) -> Result<Change, UiError> {
    let status = stack.status.as_ref();
    match action {
        "reconcile" | "refresh" if phase::is_suspended(stack) => {
            Err(UiError::Conflict("failed to request a run: the Stack is suspended; resume it first".to_owned()))
        }
        "reconcile" => Ok(Change::Patch(requests::request(&requests::request_value()))),
        "refresh" => Ok(Change::Patch(requests::request_with_refresh(&requests::request_value()))),
        "suspend" => Ok(Change::Patch(requests::suspension(true))),
        "resume" => Ok(Change::Patch(requests::suspension(false))),
        "cancel" => {
            let run = form.get("run").unwrap_or_default();
            let open = status.and_then(|status| status.current_update.as_ref()).map(|open| open.name.as_str());
            match open {
                Some(open) if open == run => Ok(Change::Patch(requests::annotations(&[(ANNOTATION_CANCEL, run)]))),
                _ => Err(UiError::Conflict(format!("failed to cancel run {run}: the run is not open or queued"))),
            }
        }
        "approve" => decide(stack, form, user, ApprovalDecision::Approve),
        "reject" => decide(stack, form, user, ApprovalDecision::Reject),
        "resolve" => resolve(stack, form),
        _ => Err(UiError::NotFound),
    }
}

/// Returns the decision about a plan. The form contains the digest of the plan that the user has seen, so the decision
/// never applies to a newer plan.
fn decide(stack: &Stack, form: &Form, user: &str, decision: ApprovalDecision) -> Result<Change, UiError> {
    let plan = stack.status.as_ref().and_then(|status| status.plan.as_deref());
    let plan = plan.filter(|plan| form.get("plan") == Some(plan.digest.to_string().as_str()));
    let plan = plan.ok_or_else(|| {
        UiError::Conflict(
            "failed to decide about the plan: it is no longer the current plan; review the Stack".to_owned(),
        )
    })?;
    let reason = form.get("reason").unwrap_or_default().trim();
    let reason: String = reason.chars().take(MAX_REASON).collect();
    let reason = Some(reason.as_str()).filter(|reason| !reason.is_empty());
    Ok(Change::Decide(Box::new(decisions::approval(stack, plan, decision, user, reason))))
}

/// Returns the decision about a run that ended without a clear result.
fn resolve(stack: &Stack, form: &Form) -> Result<Change, UiError> {
    let decision = match form.get("decision") {
        Some("retry") => Decision::Retry,
        Some("create") => Decision::Create,
        Some("clear") => Decision::Clear,
        Some("abandon") => Decision::Abandon,
        _ => return Err(UiError::Form("the decision must be retry, create, clear or abandon")),
    };
    match decisions::run_to_resolve(stack, decision) {
        Some((_, run)) if form.get("run") == Some(run.as_str()) => {
            let value = format!("{run}={}", decisions::word(decision));
            Ok(Change::Patch(requests::annotations(&[(ANNOTATION_RESOLVE, &value)])))
        }
        _ => Err(UiError::Conflict(
            "failed to resolve the run: it no longer requires this decision; review the Stack".to_owned(),
        )),
    }
}

async fn merge(user: &User, (namespace, name): &Key, patch: &Value) -> Result<(), UiError> {
    let api: Api<Tolerant<PartialObjectMeta<Stack>>> = Api::namespaced(user.client.clone(), namespace);
    let parameters = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
    let patch = Patch::Merge(patch);
    let patched = api.patch(name, &parameters, &patch);
    users::call(|| format!("change Stack {namespace}/{name}"), patched).await?;
    Ok(())
}

async fn create(user: &User, namespace: &str, approval: &Approval) -> Result<(), UiError> {
    let api: Api<Approval> = Api::namespaced(user.client.clone(), namespace);
    let parameters = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
    let created = api.create(&parameters, approval);
    users::call(|| format!("create an Approval in namespace {namespace}"), created).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::view::fixtures::{DIGEST, PLAN, condition, stack};

    fn form(fields: &[(&str, &str)]) -> Form {
        Form::of(fields)
    }

    fn patch(change: Change) -> Value {
        match change {
            Change::Patch(patch) => patch,
            Change::Decide(approval) => panic!("no patch: {approval:?}"),
        }
    }

    fn annotation(change: Change, name: &str) -> String {
        patch(change)["metadata"]["annotations"][name].as_str().unwrap_or_default().to_owned()
    }

    #[test]
    fn a_run_is_requested_only_if_the_stack_is_not_suspended() {
        let idle = stack("web", &json!({}), &json!({}));
        let requested = change(&idle, "reconcile", &form(&[]), "alice").unwrap();
        assert!(!annotation(requested, "reconcile.fluxcd.io/requestedAt").is_empty());
        let suspended = stack("web", &json!({ "suspend": true }), &json!({}));
        assert!(matches!(change(&suspended, "refresh", &form(&[]), "alice"), Err(UiError::Conflict(_))));
        let resumed = change(&suspended, "resume", &form(&[]), "alice").unwrap();
        assert_eq!(patch(resumed), json!({ "spec": { "suspend": null } }));
        assert!(matches!(change(&idle, "delete", &form(&[]), "alice"), Err(UiError::NotFound)));
    }

    #[test]
    fn only_the_open_run_is_canceled() {
        let open = stack("web", &json!({}), &json!({ "currentUpdate": { "name": "web-2" } }));
        let canceled = change(&open, "cancel", &form(&[("run", "web-2")]), "alice").unwrap();
        assert_eq!(annotation(canceled, ANNOTATION_CANCEL), "web-2");
        assert!(matches!(change(&open, "cancel", &form(&[("run", "web-1")]), "alice"), Err(UiError::Conflict(_))));
    }

    #[test]
    fn only_the_plan_on_the_page_is_approved_in_the_name_of_the_user() {
        let plan = json!({ "digest": PLAN, "updateName": "web-1", "fileDigest": DIGEST });
        let waiting = stack("web", &json!({}), &json!({ "plan": plan }));
        let fields = [("plan", PLAN), ("reason", " reviewed ")];
        let Change::Decide(approval) = change(&waiting, "approve", &form(&fields), "alice").unwrap() else {
            panic!("no decision");
        };
        assert_eq!((approval.spec.by.as_str(), approval.spec.plan_digest.as_str()), ("alice", PLAN));
        assert_eq!(approval.spec.decision, ApprovalDecision::Approve);
        assert_eq!(approval.spec.reason.as_deref(), Some("reviewed"));
        for fields in [vec![], vec![("plan", DIGEST)]] {
            let refused = change(&waiting, "reject", &form(&fields), "alice");
            assert!(matches!(refused, Err(UiError::Conflict(_))), "{fields:?}");
        }
    }

    #[test]
    fn a_resolution_names_the_run_on_the_page() {
        let status = json!({
            "conditions": [condition("Stalled", "True", "PendingCreates", "")],
            "lastUpdate": { "name": "web-1" },
        });
        let stalled = stack("web", &json!({}), &status);
        let resolved = change(&stalled, "resolve", &form(&[("run", "web-1"), ("decision", "clear")]), "alice").unwrap();
        assert_eq!(annotation(resolved, ANNOTATION_RESOLVE), "web-1=clear");
        let other = form(&[("run", "web-0"), ("decision", "clear")]);
        assert!(matches!(change(&stalled, "resolve", &other, "alice"), Err(UiError::Conflict(_))));
        let unknown = form(&[("run", "web-1"), ("decision", "maybe")]);
        assert!(matches!(change(&stalled, "resolve", &unknown, "alice"), Err(UiError::Form(_))));
    }
}

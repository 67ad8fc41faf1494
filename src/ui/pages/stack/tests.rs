//! Tests for the content of the page.

use serde_json::json;

use super::*;
use crate::ui::permissions::Actions;
use crate::view::fixtures::{DIGEST, PLAN, REVISION, condition, now, stack, update};

fn page(spec: &Value, status: &Value) -> String {
    page_after(spec, status, "done=reconcile")
}

fn page_after(spec: &Value, status: &Value, query: &str) -> String {
    page_of_user(spec, status, query, Actions { may_change: true, may_decide: true, is_unknown: false })
}

fn page_of_user(spec: &Value, status: &Value, query: &str, permitted: Actions) -> String {
    let key = ("apps".to_owned(), "web".to_owned());
    let stack = stack("web", spec, status);
    let running = update("web-2", "up", &json!({ "phase": "Running", "progress": { "summary": "3 done" } }));
    let update = runs::current_or_last(&stack).is_some().then_some(running);
    let preview = Some(preview());
    let graph = Graph::of(&[], &key, &dependencies_of(&stack));
    let facts =
        Facts { stack, update, preview, workspace: None, graph, done: done(query), decided: Decided::parse(query) };
    content(&facts, &Forms { key: &key, token: "abc", permitted }, now()).into_string()
}

/// Returns the preview that has saved a plan.
fn preview() -> Update {
    let urn = "urn:pulumi:dev::web::aws:s3/bucket:Bucket::<logs>";
    let plan = json!({ "fileDigest": DIGEST, "resourceCount": 1,
        "resources": [{ "urn": urn, "operation": "create", "properties": ["tags.owner"] }] });
    update("web-1", "preview", &json!({ "phase": "Succeeded", "plan": plan }))
}

#[test]
fn a_stack_without_a_status_has_a_page() {
    let text = page(&json!({}), &json!({}));
    assert!(text.contains("<h1>web <span class=\"badge idle\">Pending</span></h1>"), "{text}");
    assert!(text.contains("data-live=\"/stacks/apps/web/live?version=\""), "{text}");
    assert!(text.contains("<div id=\"live-state\" role=\"status\"></div>"), "{text}");
    assert!(text.contains("The Stack has no outputs.") && text.contains("No run has ended yet."), "{text}");
    assert!(text.contains("A run is requested."), "{text}");
    assert_eq!(done("done=%3Cscript%3E"), None);
}

#[test]
fn the_page_shows_the_open_run_and_the_history() {
    let status = json!({
        "conditions": [condition("Reconciling", "True", "StackProcessing", "running <up>")],
        "currentUpdate": { "name": "web-2", "type": "up" },
        "runs": [{ "name": "web-1", "type": "up", "state": "failed", "cause": "push", "revision": REVISION,
            "startTime": "2026-11-02T11:00:00Z", "changes": { "create": 2, "same": 1 } }],
    });
    let text = page(&json!({}), &status);
    assert!(text.contains("data-live=\"/stacks/apps/web/live?version=&amp;run=web-2\""), "{text}");
    assert!(text.contains("<span id=\"run-summary\">3 done</span>") && text.contains("running &lt;up&gt;"), "{text}");
    assert!(text.contains("<a href=\"/stacks/apps/web/runs/web-1\">web-1</a>"), "{text}");
    assert!(text.contains("<span class=\"badge bad\">Failed</span>") && text.contains("2 create, 1 same"), "{text}");
    assert!(text.contains("title=\"2026-11-02T11:00:00Z\">60m</time>"), "{text}");
}

#[test]
fn the_page_shows_the_plan_with_the_forms_for_a_decision() {
    let plan = json!({ "digest": PLAN, "updateName": "web-1", "fileDigest": DIGEST, "changes": { "create": 1 },
        "resources": [{ "urn": "urn:pulumi:dev::web::aws:s3/bucket:Bucket::<logs>", "operation": "create" }],
        "resourceCount": 3 });
    let waiting =
        json!({ "plan": plan, "conditions": [condition("Reconciling", "True", "AwaitingApproval", "0 of 1")] });
    let text = page(&json!({}), &waiting);
    assert!(text.contains("actions/approve") && text.contains(&format!("name=\"plan\" value=\"{PLAN}\"")), "{text}");
    assert!(text.contains("&lt;logs&gt;") && text.contains("2 more resources"), "{text}");
    assert!(text.contains("<code>tags.owner</code>"), "{text}");
    let editor = Actions { may_change: true, ..Actions::default() };
    let text = page_of_user(&json!({}), &waiting, "", editor);
    assert!(!text.contains("actions/approve") && text.contains("no permission to approve or reject"), "{text}");
    let unknown = Actions { is_unknown: true, ..Actions::default() };
    let text = page_of_user(&json!({}), &waiting, "", unknown);
    assert!(!text.contains("/actions/") && text.contains("no permission to check your permissions"), "{text}");
    assert!(!text.contains("no permission to approve or reject"), "{text}");
    let text = page_after(&json!({}), &waiting, &format!("done=approve&plan={PLAN}"));
    assert!(text.contains("Your approval is recorded.") && text.contains("Plan (approved)"), "{text}");
    assert!(!text.contains("actions/approve") && !text.contains("requires an approval"), "{text}");
    let mut other = waiting.clone();
    other["plan"]["fileDigest"] = json!(PLAN);
    assert!(!page(&json!({}), &other).contains("tags.owner"), "the properties are those of another plan");
    let mut running = waiting;
    running["currentUpdate"] = json!({ "name": "web-2", "type": "up",
        "plan": { "digest": PLAN, "updateName": "web-1", "fileDigest": DIGEST, "approvedBy": ["alice"] } });
    let text = page(&json!({}), &running);
    assert!(text.contains("Plan (approved, running)") && !text.contains("actions/approve"), "{text}");
}

#[test]
fn secret_outputs_are_hidden_and_long_outputs_are_cut() {
    let outputs = json!({ "url": "https://<host>", "password": "[secret]", "list": [1], "long": "ä".repeat(5000) });
    let text = page(&json!({}), &json!({ "outputs": outputs }));
    assert!(text.contains("https://&lt;host&gt;") && text.contains("--show-secrets"), "{text}");
    assert!(text.contains(&format!("{}…", "ä".repeat(MAX_OUTPUT))) && !text.contains(&"ä".repeat(MAX_OUTPUT + 1)));
}

#[test]
fn the_page_shows_since_when_the_workspace_is_sleeping() {
    let since = json!({ "since": "2026-11-02T11:22:00Z" });
    let time = "<time datetime=\"2026-11-02T11:22:00Z\">2026-11-02T11:22:00Z</time>";
    let rows = [
        (json!({}), String::new()),
        (json!({ "sleep": since, "podUID": "awake" }), String::new()),
        (json!({ "sleep": {} }), "sleeping; the next run creates its pod".to_owned()),
        (json!({ "sleep": since }), format!("sleeping since {time}; the next run creates its pod")),
    ];
    for (status, expected) in rows {
        let object = json!({ "apiVersion": "auto.pulumi.com/v1alpha1", "kind": "Workspace",
            "metadata": { "name": "web", "namespace": "apps" }, "spec": {}, "status": status });
        let workspace: Workspace = serde_json::from_value(object).unwrap();
        let text = sleep(Some(&workspace)).into_string();
        let expected = if expected.is_empty() { expected } else { format!("<dt>Workspace</dt><dd>{expected}</dd>") };
        assert_eq!(text, expected, "{status}");
    }
    assert_eq!(sleep(None).into_string(), "");
}

#[test]
fn a_dependency_that_the_user_may_not_see_has_no_link() {
    let text = page(&json!({ "dependsOn": [{ "name": "dns", "namespace": "shared" }] }), &json!({}));
    assert!(text.contains("shared/dns <span class=\"hint\">not found, or no permission</span>"), "{text}");
    assert!(!text.contains("href=\"/stacks/shared/dns\""), "{text}");
}

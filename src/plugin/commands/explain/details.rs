//! Facts about a Stack, its Workspace and its run. These facts help the user to find the cause of the Stack's state.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;
use pulumi_controller::api::auto::{Update, Workspace};
use pulumi_controller::api::columns;
use pulumi_controller::api::conditions::{self, DRIFTED, EXPIRING, ORPHANED, OUTPUTS_WRITTEN, READY, SETTINGS_IGNORED};
use pulumi_controller::api::pulumi::{PolicyViolation, Stack, StackPlan, StackStatus};
use pulumi_controller::view::phase::Phase;
use pulumi_controller::view::time::age;
use pulumi_controller::view::{links, phase, runs};

use crate::plugin::plan;

/// Maximum number of policy violations in the details.
const MAX_VIOLATIONS: usize = 5;
/// Maximum number of planned resource changes in the details.
const MAX_RESOURCES: usize = 10;
/// Maximum length of a policy violation's description, in characters.
const MAX_TEXT: usize = 200;

/// Objects that explain the state of a Stack.
pub struct Facts {
    pub stack: Stack,
    pub workspace: Option<Workspace>,
    /// The open run or, if no run is open, the last run.
    pub update: Option<Update>,
    /// Whether the workspace pod of a stalled Stack does not exist.
    pub lacks_pod: bool,
    /// Name of the Stack that manages the same Pulumi stack.
    pub same_pulumi_stack: Option<String>,
}

#[cfg(test)]
impl Facts {
    /// Returns the facts about a Stack without other objects.
    pub fn of(stack: Stack) -> Self {
        Facts { stack, workspace: None, update: None, lacks_pod: false, same_pulumi_stack: None }
    }
}

/// Returns details about the state. Each detail can have several lines.
pub fn details(facts: &Facts, now: Timestamp) -> Vec<String> {
    let mut details = Vec::new();
    let status = facts.stack.status.as_ref();
    if phase::is_suspended(&facts.stack) {
        details.push("the Stack is suspended, so no run starts".to_owned());
    }
    // The message of a stalled or waiting Stack is its cause.
    if let Some(ready) = status.filter(|_| Phase::of(&facts.stack) == Phase::Ready) {
        let ready = conditions::find(&ready.conditions, READY).map(|ready| ready.message.clone());
        details.extend(ready.filter(|message| !message.is_empty()));
    }
    if let Some(pending) = status.and_then(|status| status.pending_since.as_ref()) {
        details.push(format!("a run has been due for {}", age(Some(pending), now)));
    }
    details.extend(facts.update.iter().flat_map(of_run));
    let workspace = facts.workspace.as_ref().and_then(|workspace| workspace.status.as_ref());
    if let Some(sleeping) = workspace.filter(|status| status.is_asleep()) {
        let since = sleeping.sleep.as_ref().and_then(|sleep| sleep.since.as_ref());
        let state =
            since.map_or_else(|| "is sleeping".to_owned(), |since| format!("has been sleeping since {}", since.0));
        details.push(format!("the Workspace {state}; the next run creates its pod"));
    }
    let ready = workspace.and_then(|status| conditions::find(&status.conditions, READY));
    // The cause of the Stack's phase often contains the Workspace's message. In this case, the details do not repeat
    // the message.
    let cause = phase::cause(&facts.stack).unwrap_or_default();
    let is_new = |ready: &&Condition| ready.message.is_empty() || !cause.contains(&ready.message);
    if let Some(ready) = ready.filter(|ready| ready.status != "True").filter(is_new) {
        details.push(format!("Workspace is not ready ({}): {}", ready.reason, ready.message));
    }
    let failures = status.and_then(|status| status.last_update.as_ref()).map(|last| last.failures);
    if let Some(failures) = failures.filter(|failures| *failures > 0) {
        details.push(format!("consecutive failures with the current inputs: {failures}"));
    }
    details.extend(status.and_then(|status| status.plan.as_deref()).map(of_plan));
    details.extend(status.and_then(of_violations));
    details.extend(of_drift(&facts.stack));
    let conditions = status.map(|status| status.conditions.as_slice()).unwrap_or_default();
    let is_announced = |condition: &&Condition| match condition.type_.as_str() {
        OUTPUTS_WRITTEN => condition.status == "False",
        EXPIRING | ORPHANED | SETTINGS_IGNORED => condition.status == "True",
        _ => false,
    };
    details.extend(conditions.iter().filter(is_announced).map(|condition| condition.message.clone()));
    details
}

fn of_run(update: &Update) -> Vec<String> {
    let status = update.status.as_ref();
    let progress = status.and_then(|status| status.progress.as_ref()).map(|progress| progress.summary.as_str());
    let progress = progress.filter(|summary| !summary.is_empty());
    let progress = progress.map(|summary| format!(": {summary}")).unwrap_or_default();
    let (kind, name, phase) = (update.spec.kind.as_str(), update.name_any(), runs::phase(update));
    let permalink = status.and_then(|status| links::permalink(status.permalink.as_deref()?));
    let permalink = permalink.map(|url| format!("run in Pulumi Cloud: {url}"));
    std::iter::once(format!("run {name} ({kind}) is {phase}{progress}")).chain(permalink).collect()
}

/// Returns the changes of a plan, and the first resources that the plan changes.
fn of_plan(plan: &StackPlan) -> String {
    let lines = plan::resources(plan, MAX_RESOURCES);
    let lines: String = lines.iter().map(|line| format!("\n{line}")).collect();
    format!("plan {}: {}{lines}", plan.digest, plan::changes(plan))
}

/// Returns the numbers of policy violations by level, and the first violations. The status lists violations of
/// mandatory policies first, and exempted violations last.
fn of_violations(status: &StackStatus) -> Option<String> {
    let found = status.policy_violations.as_ref()?;
    let numbers = phase::violations_and_exemptions(Some(found))?;
    let listed = found.violations.iter().take(MAX_VIOLATIONS).map(of_violation);
    let listed: String = listed.map(|line| format!("\n{line}")).collect();
    let shown = i64::try_from(found.violations.len().min(MAX_VIOLATIONS)).unwrap_or(i64::MAX);
    let more = found.count().saturating_sub(shown);
    let more = if more > 0 && shown > 0 { format!("\nand {more} more") } else { String::new() };
    Some(format!("policy violations: {numbers}{listed}{more}"))
}

fn of_violation(violation: &PolicyViolation) -> String {
    let PolicyViolation { exemption, enforcement_level, pack, policy, urn, message, .. } = violation;
    let (level, exemption) = match exemption.is_empty() {
        true => (enforcement_level.as_str(), String::new()),
        false => ("exempted", format!(" ({})", columns::text(exemption, MAX_TEXT))),
    };
    let resource = if urn.is_empty() { String::new() } else { format!(" ({urn})") };
    // The first line is the description of the policy, and the other lines describe the violation.
    let message = message.split_whitespace().collect::<Vec<_>>().join(" ");
    format!("{level} {policy} of {pack}{resource}: {}{exemption}", columns::text(&message, MAX_TEXT))
}

/// Returns the result of the last drift check. The condition message lists the drifted resources, or contains the
/// error.
fn of_drift(stack: &Stack) -> Option<String> {
    let drift = phase::drift(stack)?;
    let drifted = stack.status.as_ref().and_then(|status| conditions::find(&status.conditions, DRIFTED));
    let message = drifted.filter(|drifted| drifted.status != "False").map(|drifted| drifted.message.as_str());
    let message = message.filter(|message| !message.is_empty());
    Some(format!("drift: {}", message.unwrap_or(&drift)))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::plugin::fixtures::{DIGEST, PLAN, condition, now, stack, update, workspace};

    const URN: &str = "urn:pulumi:dev::web::aws:s3/bucket:Bucket::logs";

    fn of(spec: &Value, status: &Value) -> Vec<String> {
        details(&Facts::of(stack("web", spec, status)), now())
    }

    #[test]
    fn details_name_the_workspace_the_run_and_the_failures() {
        let status = json!({ "pendingSince": "2026-11-02T11:55:00Z", "lastUpdate": { "failures": 2 } });
        let conditions = json!([condition("Ready", "False", "PodFailed", "no image")]);
        let permalink = "https://app.pulumi.com/acme/web/dev/updates/1";
        let run = json!({ "phase": "Running", "permalink": permalink, "progress": { "summary": "3 done" } });
        let facts = Facts {
            workspace: Some(workspace(&json!({ "conditions": conditions }))),
            update: Some(update("web-1", "up", &run)),
            ..Facts::of(stack("web", &json!({ "suspend": true }), &status))
        };
        let expected = [
            "the Stack is suspended, so no run starts",
            "a run has been due for 5m",
            "run web-1 (up) is Running: 3 done",
            "run in Pulumi Cloud: https://app.pulumi.com/acme/web/dev/updates/1",
            "Workspace is not ready (PodFailed): no image",
            "consecutive failures with the current inputs: 2",
        ];
        assert_eq!(details(&facts, now()), expected);
    }

    #[test]
    fn details_contain_no_url_that_a_browser_cannot_open() {
        let run = update("web-1", "up", &json!({ "phase": "Running", "permalink": "file:///state/web.json" }));
        assert_eq!(of_run(&run), ["run web-1 (up) is Running"]);
    }

    #[test]
    fn details_explain_why_a_workspace_has_no_pod() {
        let ready = condition("Ready", "True", "Succeeded", "ready");
        let asleep = json!({ "sleep": { "since": "2026-11-02T11:22:00Z" }, "conditions": [ready] });
        let stack = stack("web", &json!({}), &json!({}));
        let facts = Facts { workspace: Some(workspace(&asleep)), ..Facts::of(stack) };
        let expected = "the Workspace has been sleeping since 2026-11-02T11:22:00Z; the next run creates its pod";
        assert_eq!(details(&facts, now()), [expected]);
    }

    #[test]
    fn details_list_the_first_policy_violations() {
        let violation = |level: &str, urn: &str, message: &str| {
            let policy = "no-public";
            json!({ "enforcementLevel": level, "pack": "house", "policy": policy, "urn": urn, "message": message })
        };
        let listed = json!([
            violation("mandatory", URN, "Buckets must not be public.\nThe ACL is public-read."),
            violation("advisory", "", "Use tags."),
        ]);
        let status = json!({ "policyViolations": { "mandatory": 1, "advisory": 2, "violations": listed } });
        let expected = format!(
            "policy violations: 1 mandatory, 2 advisory\nmandatory no-public of house ({URN}): Buckets must not be public. \
             The ACL is public-read.\nadvisory no-public of house: Use tags.\nand 1 more"
        );
        assert_eq!(of(&json!({}), &status), [expected]);
        let mut exempted = violation("mandatory", "", "Use tags.");
        exempted["exemption"] = json!("EXC-1: legacy");
        let status = json!({ "policyViolations": { "exempted": 1, "violations": [exempted] } });
        let expected = "policy violations: 1 exempted\nexempted no-public of house: Use tags. (EXC-1: legacy)";
        assert_eq!(of(&json!({}), &status), [expected]);
    }

    #[test]
    fn details_list_the_first_resources_of_the_plan() {
        let resource = json!({ "urn": URN, "operation": "delete" });
        let plan = json!({
            "digest": PLAN,
            "updateName": "web-1",
            "fileDigest": DIGEST,
            "operation": "up",
            "changes": { "delete": 12, "same": 1 },
            "resources": vec![resource; 11],
            "resourceCount": 12,
        });
        let line = "\ndelete   aws:s3/bucket:Bucket logs";
        let expected = format!("plan {PLAN}: 12 delete, 1 same{}\nand 2 more in the log of run web-1", line.repeat(10));
        assert_eq!(of(&json!({}), &json!({ "plan": plan })), [expected]);
    }

    #[test]
    fn details_contain_drift_outputs_and_expiry() {
        let status = json!({
            "conditions": [
                condition("Drifted", "True", "DriftDetected", "2 resource(s) differ from the state: update a"),
                condition("OutputsWritten", "False", "OutputsNotWritten", "failed to write the outputs: Secret a"),
                condition("Expiring", "True", "ExpiresSoon", "the Stack expires at 2026-11-02T13:00:00Z"),
            ],
            "drift": { "updateName": "web-3", "count": 2 },
        });
        let expected = [
            "drift: 2 resource(s) differ from the state: update a",
            "failed to write the outputs: Secret a",
            "the Stack expires at 2026-11-02T13:00:00Z",
        ];
        assert_eq!(of(&json!({}), &status), expected);
        let corrected = json!({ "conditions": [
            condition("Drifted", "False", "Corrected", "a run with a refresh has succeeded since the last drift check"),
            condition("OutputsWritten", "True", "OutputsWritten", "wrote the outputs to Secret a"),
        ] });
        assert_eq!(of(&json!({}), &corrected), ["drift: corrected"]);
    }
}

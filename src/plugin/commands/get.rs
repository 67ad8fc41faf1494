//! `get`: lists Stacks.

use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;
use pulumi_controller::api::columns;
use pulumi_controller::api::pulumi::Stack;
use pulumi_controller::view::phase::{self, Phase};
use pulumi_controller::view::time::age;
use serde::Serialize;

use crate::plugin::args::{Format, ListFlags};
use crate::plugin::cluster::Cluster;
use crate::plugin::error::PluginError;
use crate::plugin::progress::write_error;
use crate::plugin::screen::{self, Screen, table};
use crate::plugin::select;

/// Maximum length of the column `WAITING FOR`, in characters.
const MAX_WAITING: usize = 80;

/// Lists Stacks.
///
/// # Errors
///
/// Returns an error if the flags contradict each other, or if a request fails.
pub async fn run(cluster: &Cluster, flags: &ListFlags, format: Format) -> Result<(), PluginError> {
    let stacks = select::listed(cluster, flags).await?;
    if stacks.is_empty() && format == Format::Text {
        let place = if flags.all_namespaces { "any namespace".to_owned() } else { cluster.namespace().to_owned() };
        write_error(&format!("No Stacks found in {place}.\n"));
        return Ok(());
    }
    screen::print(&StackList::of(&stacks, flags.all_namespaces, Timestamp::now()), format)
}

/// List of Stacks.
#[derive(Serialize)]
#[serde(transparent)]
struct StackList {
    rows: Vec<Row>,
    #[serde(skip)]
    with_namespaces: bool,
}

/// Stack in a list.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Row {
    namespace: String,
    name: String,
    phase: Phase,
    #[serde(skip)]
    age: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    revision: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    drift: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    violations: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    waiting_for: Option<String>,
}

impl StackList {
    fn of(stacks: &[Stack], with_namespaces: bool, now: Timestamp) -> Self {
        StackList { rows: stacks.iter().map(|stack| Row::of(stack, now)).collect(), with_namespaces }
    }
}

impl Row {
    fn of(stack: &Stack, now: Timestamp) -> Self {
        let status = stack.status.as_ref();
        Row {
            namespace: stack.namespace().unwrap_or_default(),
            name: stack.name_any(),
            phase: Phase::of(stack),
            age: age(stack.metadata.creation_timestamp.as_ref(), now),
            revision: status.and_then(|status| status.last_applied_revision.clone()),
            drift: phase::drift(stack),
            violations: phase::violations(status.and_then(|status| status.policy_violations.as_ref())),
            waiting_for: phase::cause(stack).map(str::to_owned).or_else(|| orphaned(stack)),
        }
    }
}

/// Returns why a Stack needs an acknowledgment, or `None` if it needs none.
fn orphaned(stack: &Stack) -> Option<String> {
    let count = stack.status.as_ref()?.orphaned_stacks.len();
    let stacks = if count == 1 { "Pulumi stack" } else { "Pulumi stacks" };
    (count > 0).then(|| format!("acknowledgment: resources remain in {count} earlier {stacks}"))
}

impl Screen for StackList {
    fn text(&self) -> String {
        let mut header = vec!["NAME", "PHASE", "AGE", "REVISION", "DRIFT", "VIOLATIONS", "WAITING FOR"];
        if self.with_namespaces {
            header.insert(0, "NAMESPACE");
        }
        let cells = |row: &Row| {
            let mut cells = vec![
                row.name.clone(),
                row.phase.to_string(),
                row.age.clone(),
                row.revision.as_deref().and_then(columns::revision).unwrap_or_default(),
                row.drift.clone().unwrap_or_default(),
                row.violations.clone().unwrap_or_default(),
                row.waiting_for.as_deref().map(|text| columns::text(text, MAX_WAITING)).unwrap_or_default(),
            ];
            if self.with_namespaces {
                cells.insert(0, row.namespace.clone());
            }
            cells
        };
        table(&header, &self.rows.iter().map(cells).collect::<Vec<_>>())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::plugin::fixtures::{PLAN, REVISION, condition, now, stack};
    use crate::plugin::reference_tests::assert_example;

    fn stacks() -> Vec<Stack> {
        let of = |name: &str, conditions: Value, more: Value| {
            let mut status = json!({ "conditions": conditions });
            for (key, value) in more.as_object().into_iter().flatten() {
                status[key] = value.clone();
            }
            stack(name, &json!({}), &status)
        };
        let plan =
            format!("approval needed (0/1): 2 to create, plan d242d1f0; up of revision {REVISION}; digest {PLAN}");
        vec![
            of(
                "database",
                json!([
                    condition("Ready", "True", "ProcessingCompleted", "up to date"),
                    condition("Drifted", "True", "DriftDetected", "2 resources have drifted"),
                ]),
                json!({ "lastAppliedRevision": REVISION, "drift": { "updateName": "database-3", "count": 2 } }),
            ),
            of(
                "network",
                json!([
                    condition("Ready", "Unknown", "NotReadyInProgress", "running: 3 of 12 resources; up (network-1)"),
                    condition("Reconciling", "True", "StackProcessing", "running: 3 of 12 resources; up (network-1)"),
                ]),
                json!({ "currentUpdate": { "name": "network-1", "type": "up" } }),
            ),
            of(
                "payments",
                json!([
                    condition("Ready", "False", "UpdateFailed", "policy house no-public: buckets must not be public"),
                    condition("Reconciling", "True", "RetryingAfterFailure", "1 update failure(s)"),
                ]),
                json!({ "lastUpdate": { "reason": "PolicyViolation" },
                    "policyViolations": { "mandatory": 1, "advisory": 2 } }),
            ),
            of(
                "web",
                json!([
                    condition("Ready", "False", "AwaitingApproval", &plan),
                    condition("Reconciling", "True", "AwaitingApproval", &plan),
                ]),
                json!({ "lastAppliedRevision": REVISION }),
            ),
        ]
    }

    #[test]
    fn the_list_shows_phase_age_revision_drift_violations_and_cause() {
        assert_example("kubectl pulumi get", &StackList::of(&stacks(), false, now()).text());
        let all = StackList::of(&stacks(), true, now()).text();
        assert!(all.starts_with("NAMESPACE   NAME       PHASE"), "{all}");
        assert!(all.contains("\napps        database   Ready"), "{all}");
    }

    #[test]
    fn programs_get_a_list_of_objects_with_complete_values() {
        let json = screen::render(&StackList::of(&stacks(), false, now()), Format::Json).unwrap();
        let list: Value = serde_json::from_str(&json).unwrap();
        assert_eq!(
            list[0],
            json!({ "namespace": "apps", "name": "database", "phase": "Ready", "revision": REVISION,
            "drift": "2 resources" })
        );
        assert_eq!(list[1]["waitingFor"], "running: 3 of 12 resources; up (network-1)");
        assert_eq!(list[2]["violations"], "1 mandatory, 2 advisory");
    }

    #[test]
    fn remaining_resources_wait_for_an_acknowledgment() {
        let orphaned = json!({ "id": "1d62187f", "name": "dev", "since": "2026-11-02T11:00:00Z" });
        let of = |orphaned: Value| {
            let ready = condition("Ready", "True", "ProcessingCompleted", "done");
            let status = json!({ "conditions": [ready], "orphanedStacks": orphaned });
            Row::of(&stack("web", &json!({}), &status), now()).waiting_for
        };
        let one = of(json!([orphaned]));
        assert_eq!(one.as_deref(), Some("acknowledgment: resources remain in 1 earlier Pulumi stack"));
        assert_eq!(of(json!([])), None);
    }
}

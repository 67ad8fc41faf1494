//! Row of a Stack: the part of a Stack that the list, the fleet page and the graph show. All strings have a maximum
//! length, so the rows for 10,000 Stacks need only a few megabytes.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt as _;

use crate::api::columns;
use crate::api::conditions::{stack_reason, workspace_reason};
use crate::api::pulumi::{Stack, StackStatus};
use crate::telemetry::redact;
use crate::text::printable_line;
use crate::view::dependencies::dependencies_of;
use crate::view::phase::{self, Phase};

/// Maximum length of each string in characters.
const MAX_TEXT: usize = 120;
/// Maximum number of dependencies in a row.
const MAX_DEPENDENCIES: usize = 64;

/// Namespace and name of a Stack.
pub(super) type Key = (String, String);

/// Row of a Stack.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Row {
    pub(super) namespace: String,
    pub(super) name: String,
    /// Name of the Pulumi stack.
    pub(super) stack: String,
    pub(super) phase: Phase,
    /// Whether the next run's plan requires an approval.
    pub(super) awaits_approval: bool,
    pub(super) has_drifted: bool,
    /// Time since which the Stack has waited for an unschedulable pod.
    pub(super) unschedulable_since: Option<Time>,
    pub(super) created: Option<Time>,
    pub(super) source: Option<String>,
    pub(super) revision: Option<String>,
    pub(super) drift: Option<String>,
    pub(super) violations: Option<String>,
    pub(super) waiting_for: Option<String>,
    /// Stacks on which the Stack depends.
    pub(super) dependencies: Vec<Key>,
    /// Resource version of the Stack, which changes with each write.
    pub(super) version: String,
}

impl Row {
    pub(super) fn of(stack: &Stack) -> Self {
        let status = stack.status.as_ref();
        let mut dependencies = dependencies_of(stack);
        dependencies.truncate(MAX_DEPENDENCIES);
        let reason = status.and_then(phase::reconciling).map(|condition| condition.reason.as_str());
        let drift = phase::drift(stack);
        let revision = status.and_then(|status| columns::revision(status.last_applied_revision.as_deref()?));
        Row {
            namespace: stack.namespace().unwrap_or_default(),
            name: stack.name_any(),
            stack: short(&stack.spec.stack),
            phase: Phase::of(stack),
            awaits_approval: reason == Some(stack_reason::AWAITING_APPROVAL),
            has_drifted: phase::has_drifted(stack),
            unschedulable_since: status.and_then(unschedulable_since),
            created: stack.metadata.creation_timestamp.clone(),
            source: source(stack).map(|source| short(&source)),
            revision: revision.map(|revision| printable_line(&revision)),
            drift,
            violations: phase::violations(status.and_then(|status| status.policy_violations.as_ref())),
            waiting_for: phase::cause(stack).map(short),
            dependencies,
            version: stack.resource_version().unwrap_or_default(),
        }
    }

    pub(super) fn key(&self) -> Key {
        (self.namespace.clone(), self.name.clone())
    }
}

/// Returns the time since which the Stack has waited for an unschedulable pod. In this case, the message of the Stack
/// condition `Reconciling` contains the condition reason of the Workspace.
fn unschedulable_since(status: &StackStatus) -> Option<Time> {
    let reconciling = phase::reconciling(status).filter(|_| status.current_update.is_none())?;
    let reason = format!("({})", workspace_reason::UNSCHEDULABLE);
    reconciling.message.contains(&reason).then(|| reconciling.last_transition_time.clone())
}

fn short(text: &str) -> String {
    printable_line(&columns::text(text, MAX_TEXT))
}

/// Returns the kind and the name of a Stack's source.
pub(super) fn source(stack: &Stack) -> Option<String> {
    let spec = &stack.spec;
    if let Some(source) = &spec.flux_source {
        let reference = &source.source_ref;
        let namespace = reference.namespace.as_ref().map(|namespace| format!("{namespace}/")).unwrap_or_default();
        return Some(format!("{} {namespace}{}", reference.kind, reference.name));
    }
    let program = spec.program_ref.as_ref().map(|program| format!("Program {}", program.name));
    program.or_else(|| spec.project_repo.as_deref().map(|url| redact::url_credentials(url).into_owned()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::view::fixtures::{REVISION, condition, stack};

    #[test]
    fn a_row_contains_the_state_and_short_texts() {
        let message = format!("waiting for approval of a plan: {}", "x".repeat(500));
        let spec = json!({
            "fluxSource": { "sourceRef": { "kind": "GitRepository", "name": "web" } },
            "dependsOn": [{ "name": "dns", "namespace": "shared" }],
        });
        let status = json!({
            "conditions": [
                condition("Ready", "False", "AwaitingApproval", &message),
                condition("Reconciling", "True", "AwaitingApproval", &message),
                condition("Drifted", "True", "DriftDetected", ""),
            ],
            "lastAppliedRevision": REVISION,
        });
        let row = Row::of(&stack("web", &spec, &status));
        assert_eq!(row.key(), ("apps".to_owned(), "web".to_owned()));
        assert_eq!((row.phase, row.awaits_approval, row.has_drifted), (Phase::Waiting, true, true));
        assert_eq!(row.source.as_deref(), Some("GitRepository web"));
        assert_eq!(row.revision.as_deref(), Some("main@sha1:9f2c7d10"));
        assert_eq!(row.dependencies, [("shared".to_owned(), "dns".to_owned())]);
        assert_eq!(row.waiting_for.unwrap().chars().count(), MAX_TEXT);
        let misleading = json!({ "lastAppliedRevision": "a\u{202e}b@sha1:9f2c7d10" });
        let row = Row::of(&stack("web", &json!({}), &misleading));
        assert!(row.revision.unwrap().starts_with("a\u{fffd}b"));
    }

    #[test]
    fn the_source_is_an_object_or_a_repository() {
        let of = |spec| source(&stack("web", &spec, &json!({})));
        assert_eq!(of(json!({ "programRef": { "name": "web" } })).as_deref(), Some("Program web"));
        let repository = of(json!({ "projectRepo": "https://user:word@git.example.com/web" })).unwrap();
        assert!(repository.contains("git.example.com/web") && !repository.contains("word"), "{repository}");
        assert_eq!(of(json!({})), None);
    }
}

//! Builds the name and the summary of a run in the history. The summary contains the names of the inputs and outputs,
//! but not their values. All functions are pure.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::ResourceExt;
use serde::Serialize;

use crate::api::auto::{ArtifactReference, PlanReference, SourceMetadata, Update, UpdatePlan, Workspace};
use crate::api::pulumi::PolicyViolations;
use crate::controller::stack::stack_of;
use crate::controller::update::outcome::RunOutcome;
use crate::controller::workspace::references;
use crate::history::{File, RunName};

/// Version of the summary format.
const VERSION: u32 = 1;
/// Maximum number of names in each input list.
const MAX_NAMES: usize = 1000;

/// Content of the file `summary.json`.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Summary {
    version: u32,
    namespace: String,
    update: String,
    #[serde(rename = "updateUID")]
    update_uid: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    stack: Option<String>,
    workspace: String,
    pulumi_stack: String,
    #[serde(rename = "type")]
    kind: &'static str,
    /// Reason why the run was requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    cause: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    artifact: Option<ArtifactReference>,
    #[serde(skip_serializing_if = "Option::is_none")]
    source: Option<SourceMetadata>,
    inputs: Inputs,
    /// Approved plan that the run executes.
    #[serde(skip_serializing_if = "Option::is_none")]
    plan: Option<PlanReference>,
    /// `succeeded` or `failed`.
    result: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
    #[serde(skip_serializing_if = "String::is_empty")]
    message: String,
    created: Option<Timestamp>,
    started: Option<Timestamp>,
    ended: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    node: Option<String>,
    changes: BTreeMap<String, i64>,
    /// Names of the outputs.
    outputs: Vec<String>,
    /// Changes that the preview reports.
    #[serde(skip_serializing_if = "Option::is_none")]
    planned: Option<UpdatePlan>,
    #[serde(skip_serializing_if = "Option::is_none")]
    policy_violations: Option<PolicyViolations>,
    #[serde(skip_serializing_if = "Option::is_none")]
    permalink: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_output: Option<String>,
    files: Vec<FileEntry>,
    /// Reason why the transcript is missing, or `None` if the transcript is complete.
    #[serde(skip_serializing_if = "Option::is_none")]
    transcript_missing: Option<String>,
}

/// Names of the run inputs.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Inputs {
    /// Configuration keys.
    config: Vec<String>,
    /// ESC environments.
    environments: Vec<String>,
    /// Secrets and ConfigMaps, such as `Secret/aws`.
    objects: Vec<String>,
    policy_packs: Vec<String>,
}

/// File that belongs to a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct FileEntry {
    name: &'static str,
    size: usize,
}

impl FileEntry {
    pub(super) fn new(file: File, size: usize) -> Self {
        FileEntry { name: file.name(), size }
    }
}

impl Summary {
    pub(super) fn with_files(&self, files: Vec<FileEntry>, transcript_missing: Option<String>) -> Self {
        Summary { files, transcript_missing, ..self.clone() }
    }
}

/// Returns the name of a run. Users can set the owner reference of an Update to any Stack, but the namespace in the run
/// name is always the namespace of the Update.
pub(super) fn run_name(update: &Update, workspace: Option<&Workspace>) -> RunName {
    let is_stack = |owner: &&OwnerReference| owner.kind == "Stack" && owner.api_version.starts_with("pulumi.com/");
    let owner = update.owner_references().iter().find(is_stack);
    let stack_uid = owner.map(|owner| owner.uid.clone()).or_else(|| workspace.and_then(ResourceExt::uid));
    RunName {
        namespace: update.namespace().unwrap_or_default(),
        stack: update.spec.workspace_name.clone(),
        stack_uid: stack_uid.unwrap_or_default(),
        created: update.creation_timestamp().map(|created| created.0).unwrap_or_default(),
        kind: update.spec.kind.as_str(),
        update_uid: update.uid().unwrap_or_default(),
    }
}

/// Returns the summary of a run. The strings in the outcome are already redacted.
pub(super) fn of(update: &Update, workspace: Option<&Workspace>, outcome: &RunOutcome) -> Summary {
    let (spec, status) = (&update.spec, update.status.clone().unwrap_or_default());
    let node = status.run.map(|run| run.node_name).filter(|node| !node.is_empty());
    Summary {
        version: VERSION,
        namespace: update.namespace().unwrap_or_default(),
        update: update.name_any(),
        update_uid: update.uid().unwrap_or_default(),
        stack: stack_of(update),
        workspace: spec.workspace_name.clone(),
        pulumi_stack: spec.stack_name.clone(),
        kind: spec.kind.as_str(),
        cause: spec.message.clone(),
        artifact: update.artifact().cloned(),
        source: spec.source.as_deref().cloned(),
        inputs: workspace.map(|workspace| inputs(workspace, &spec.stack_name)).unwrap_or_default(),
        plan: spec.plan.as_deref().cloned(),
        result: if outcome.failure.is_none() { "succeeded" } else { "failed" },
        reason: outcome.failure,
        message: outcome.message.clone(),
        created: update.creation_timestamp().map(|created| created.0),
        started: outcome.started.or_else(|| status.start_time.as_ref().map(|start| start.0)),
        ended: outcome.ended,
        node,
        changes: outcome.changes.clone(),
        outputs: outcome.outputs.iter().take(MAX_NAMES).map(|output| output.name.clone()).collect(),
        planned: outcome.plan.clone(),
        policy_violations: outcome.policy_violations.clone(),
        permalink: outcome.permalink.clone(),
        last_output: outcome.last_output.clone(),
        files: Vec::new(),
        transcript_missing: None,
    }
}

/// Returns the names of the inputs that the Workspace contains when the run completes.
fn inputs(workspace: &Workspace, stack: &str) -> Inputs {
    let spec = &workspace.spec;
    let settings = spec.stacks.iter().find(|found| found.name == stack);
    let objects: BTreeSet<String> = references(spec, Some(stack)).iter().map(|object| object.object()).collect();
    Inputs {
        config: settings.iter().flat_map(|s| &s.config).take(MAX_NAMES).map(|item| item.key.clone()).collect(),
        environments: settings.iter().flat_map(|s| &s.environment).take(MAX_NAMES).cloned().collect(),
        objects: objects.into_iter().take(MAX_NAMES).collect(),
        policy_packs: spec.policy_packs.iter().take(MAX_NAMES).map(|pack| pack.name.clone()).collect(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::rpc::proto;

    fn update() -> Update {
        let update = json!({
            "metadata": {
                "name": "web-1", "namespace": "apps", "uid": "uid-1", "creationTimestamp": "2026-11-26T18:42:07Z",
                "ownerReferences": [{"kind": "Stack", "apiVersion": "pulumi.com/v1", "name": "web", "uid": "stack-uid"}],
            },
            "spec": {"workspaceName": "web", "stackName": "dev", "type": "up", "message": "new revision"},
        });
        serde_json::from_value(update).unwrap()
    }

    fn workspace() -> Workspace {
        let workspace = json!({
            "metadata": {"name": "web", "namespace": "apps", "uid": "workspace-uid"},
            "spec": {
                "env": [{"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "aws", "key": "token"}}}],
                "stacks": [{"name": "dev", "config": [{"key": "password", "value": "hunter22", "secret": true}]}],
            },
        });
        serde_json::from_value(workspace).unwrap()
    }

    #[test]
    fn the_name_of_a_run_does_not_depend_on_its_progress() {
        let name = run_name(&update(), Some(&workspace())).directory();
        assert_eq!(name, "apps/web/stack-uid/20261126T184207Z-up-uid-1");
        assert_eq!(run_name(&update(), None).directory(), name);
        let mut by_hand = update();
        by_hand.metadata.owner_references = None;
        assert!(run_name(&by_hand, Some(&workspace())).directory().starts_with("apps/web/workspace-uid/"));
    }

    #[test]
    fn only_a_stack_of_this_api_is_an_owner() {
        let rows = [
            ("Stack", "pulumi.com/v1", "stack-uid"),
            ("Stack", "pulumi.com/v1alpha1", "stack-uid"),
            ("Stack", "example.com/v1", "workspace-uid"),
            ("Stack", "pulumi.com.example.com/v1", "workspace-uid"),
            ("Stack", "v1", "workspace-uid"),
            ("Program", "pulumi.com/v1", "workspace-uid"),
        ];
        for (kind, version, uid) in rows {
            let mut update = update();
            let owner = json!([{"kind": kind, "apiVersion": version, "name": "web", "uid": "stack-uid"}]);
            update.metadata.owner_references = serde_json::from_value(owner).unwrap();
            assert_eq!(run_name(&update, Some(&workspace())).stack_uid, uid, "{kind} {version}");
        }
    }

    #[test]
    fn the_summary_contains_names_but_no_values() {
        let output =
            |name: &str| proto::Output { name: name.to_owned(), value: "\"hunter22\"".to_owned(), secret: true };
        let result = proto::Result {
            outcome: proto::Outcome::Succeeded.into(),
            outputs: vec![output("token")],
            changes: [("create".to_owned(), 2)].into(),
            ..proto::Result::default()
        };
        let summary = of(&update(), Some(&workspace()), &RunOutcome::of(&result));
        let entries = vec![FileEntry::new(File::Output, 7)];
        let text = json!(summary.with_files(entries, None));
        assert!(!text.to_string().contains("hunter22"), "{text}");
        assert_eq!((&text["cause"], &text["result"]), (&json!("new revision"), &json!("succeeded")));
        assert_eq!(text["inputs"]["config"], json!(["password"]));
        assert_eq!(text["inputs"]["objects"], json!(["Secret/aws"]));
        assert_eq!((&text["outputs"], &text["changes"]), (&json!(["token"]), &json!({"create": 2})));
        assert_eq!(text["files"], json!([{"name": "output.log.gz", "size": 7}]));
    }
}

//! A run of a Stack: its type, its artifact, its inputs and their changes since the last run. The agent reports a keyed hash of each Secret
//! and ConfigMap, so a run starts only after the kubelet has updated the pod.

use std::collections::BTreeMap;

use kube::ResourceExt;

use crate::api::auto::{ArtifactReference, PendingCreates, UpdateKind, Workspace, WorkspaceStatus};
use crate::api::names;
use crate::api::pulumi::{CurrentUpdate, LastUpdate, Stack};
use crate::api::resolve::Answer;
use crate::controller::stack::action::Baseline;
use crate::controller::stack::annotations::{self, force_and_reset_requests, requests};
use crate::controller::stack::identity;
use crate::controller::stack::observed::Observed;
use crate::source::Resolved;

/// Returns the name of a run for messages. A source that is already in the pod has no revision.
pub fn named(kind: UpdateKind, revision: &str) -> String {
    match revision {
        "" => kind.as_str().to_owned(),
        revision => format!("{} of revision {revision}", kind.as_str()),
    }
}

/// Returns the message about an announced run whose Update has no condition yet.
pub fn queued(current: &CurrentUpdate) -> String {
    format!("{} ({}) is queued", named(current.kind, current.commit.as_deref().unwrap_or("unknown")), current.name)
}

/// Returns the type of run for a Stack that is not being deleted.
pub fn forward(stack: &Stack) -> UpdateKind {
    if stack.spec.preview.unwrap_or_default() { UpdateKind::Preview } else { UpdateKind::Up }
}

/// Returns the reference to the artifact of a run.
pub fn artifact_of(current: &CurrentUpdate) -> ArtifactReference {
    ArtifactReference {
        digest: current.digest.clone().unwrap_or_default(),
        revision: current.commit.clone().unwrap_or_default(),
        dir: current.dir.clone().unwrap_or_default(),
    }
}

pub fn reference(resolved: &Resolved) -> ArtifactReference {
    ArtifactReference {
        digest: resolved.digest.to_string(),
        revision: resolved.revision.clone(),
        dir: resolved.directory.as_str().to_owned(),
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inputs {
    pub generation: i64,
    pub reconcile_request: Option<String>,
    pub requested_at: Option<String>,
    pub force_at: Option<String>,
    pub reset_at: Option<String>,
    pub revision: String,
    pub digest: String,
    /// Equal for artifacts of one revision with the same content, if the source reports it.
    pub content_id: Option<String>,
    /// Digest of the files that the Stack selects with `spec.paths`. If set, changes of other files in the source do not trigger a run.
    pub selection: Option<String>,
    /// Keyed hash of the values in Secrets and ConfigMaps that the configuration refers to. `None` if unknown.
    pub config_inputs: Option<String>,
    /// Keyed hash of each Secret and ConfigMap that the pod mounts. A changed object that does not trigger a run keeps the hash of the last
    /// run.
    pub mounted_inputs: BTreeMap<String, String>,
}

/// Returns the inputs of an announced run.
pub fn inputs_of(current: &CurrentUpdate) -> Inputs {
    Inputs {
        generation: current.generation,
        reconcile_request: current.reconcile_request.clone(),
        requested_at: current.requested_at.clone(),
        force_at: current.force_at.clone(),
        reset_at: current.reset_at.clone(),
        revision: current.commit.clone().unwrap_or_default(),
        digest: current.digest.clone().unwrap_or_default(),
        content_id: current.content_id.clone(),
        selection: current.paths_digest.clone(),
        config_inputs: current.config_inputs.clone(),
        mounted_inputs: current.mounted_inputs.clone(),
    }
}

/// Returns the inputs of a run of this Stack with this artifact.
pub fn current_inputs(observed: &Observed, resolved: &Resolved) -> Inputs {
    let stack = &observed.stack;
    let (reconcile_request, requested_at) = requests(stack);
    let (force_at, reset_at) = force_and_reset_requests(stack);
    Inputs {
        generation: stack.metadata.generation.unwrap_or_default(),
        reconcile_request,
        requested_at,
        force_at,
        reset_at,
        revision: resolved.revision.clone(),
        digest: resolved.digest.to_string(),
        content_id: resolved.content_id.clone(),
        selection: resolved.selection().map(str::to_owned),
        config_inputs: config_inputs(observed),
        mounted_inputs: mounted_inputs(observed),
    }
}

/// Returns the announcement of a run with this artifact.
pub fn current_update(observed: &Observed, resolved: &Resolved, kind: UpdateKind, message: String) -> CurrentUpdate {
    let stack = &observed.stack;
    let inputs = current_inputs(observed, resolved);
    let attempt = stack.status.as_ref().and_then(|s| s.attempts).unwrap_or_default() + 1;
    CurrentUpdate {
        name: names::update(&stack.name_any(), &stack.uid().unwrap_or_default(), attempt),
        generation: inputs.generation,
        reconcile_request: inputs.reconcile_request,
        requested_at: inputs.requested_at,
        force_at: inputs.force_at,
        reset_at: inputs.reset_at,
        commit: Some(inputs.revision),
        origin_revision: resolved.origin_revision.clone(),
        digest: Some(inputs.digest),
        content_id: inputs.content_id,
        dir: Some(resolved.directory.as_str().to_owned()),
        paths_digest: inputs.selection,
        config_inputs: inputs.config_inputs,
        mounted_inputs: inputs.mounted_inputs,
        kind,
        message,
        pending_creates: pending_creates(stack),
        pulumi_stack: Some(identity::wanted(stack, observed.workspace.as_ref())),
    }
}

/// Returns the handling of interrupted creations in the next run: the user's answer, else the value recorded by the last run.
fn pending_creates(stack: &Stack) -> Option<PendingCreates> {
    match annotations::resolution(stack) {
        Some(Answer::Retry) if !annotations::is_stack_not_found(stack) => Some(PendingCreates::Keep),
        Some(Answer::Clear) => Some(PendingCreates::Clear),
        Some(Answer::Retry | Answer::Abandon) | None => stack.status.as_ref()?.last_update.as_ref()?.pending_creates,
    }
}

/// Returns the hash of the values that the configuration refers to.
fn config_inputs(observed: &Observed) -> Option<String> {
    workspace_status(observed.workspace.as_ref())?.config_inputs.clone()
}

/// Returns the hashes of the mounted objects. A changed object that is not watched keeps the hash of the last run, so that its change
/// neither triggers a run nor counts as a new input of a run.
fn mounted_inputs(observed: &Observed) -> BTreeMap<String, String> {
    let before = last_update(&observed.stack).map(|last| &last.mounted_inputs);
    let counts = |(object, word): (&String, &String)| {
        let before = before.and_then(|before| before.get(object)).filter(|_| !observed.watched.contains(object));
        (object.clone(), before.unwrap_or(word).clone())
    };
    workspace_status(observed.workspace.as_ref())
        .map(|now| now.mounted_inputs.iter().map(counts).collect())
        .unwrap_or_default()
}

/// Returns the mounted objects whose content differs from that of the last run, watched or not.
pub fn changed_objects<'a>(stack: &Stack, workspace: Option<&'a Workspace>) -> Vec<&'a str> {
    let (Some(now), Some(last)) = (workspace_status(workspace), last_update(stack)) else { return Vec::new() };
    let differs = |object: &str, word: &str| last.mounted_inputs.get(object).is_some_and(|before| before != word);
    now.mounted_inputs
        .iter()
        .filter(|(object, word)| differs(object, word))
        .map(|(object, _)| object.as_str())
        .collect()
}

/// Returns the message of a run if a Secret or ConfigMap has changed since the last run. An object without a recorded hash has not changed.
pub fn changed_input(last: &LastUpdate, inputs: &Inputs) -> Option<String> {
    let has_read = |now: &String| last.run_config_inputs.as_ref() == Some(now);
    if matches!((&last.config_inputs, &inputs.config_inputs), (Some(before), Some(now)) if before != now && !has_read(now))
    {
        return Some("A Secret or ConfigMap referenced by the configuration has changed".to_owned());
    }
    let differs = |object: &str, word: &str| last.mounted_inputs.get(object).is_some_and(|before| before != word);
    let (object, _) = inputs.mounted_inputs.iter().find(|(object, word)| differs(object, word))?;
    Some(format!("{} has changed", object.replacen('/', " ", 1)))
}

/// Returns the hashes that the record of the last run lacks; `None` if there are none or no run has ended.
pub fn baseline(observed: &Observed) -> Option<Baseline> {
    let (now, last) = (workspace_status(observed.workspace.as_ref())?, last_update(&observed.stack)?);
    let is_new = |object: &String| !last.mounted_inputs.contains_key(object);
    let mounted = now.mounted_inputs.iter().filter(|(object, _)| is_new(object));
    // The Workspace may report the values that the run has read only after the run has ended.
    let is_first = |now: &String| match &last.config_inputs {
        None => true,
        Some(before) => before != now && last.run_config_inputs.as_ref() == Some(now),
    };
    let first = Baseline {
        config: now.config_inputs.clone().filter(is_first),
        mounted: mounted.map(|(object, word)| (object.clone(), word.clone())).collect(),
    };
    (first != Baseline::default()).then_some(first)
}

fn workspace_status(workspace: Option<&Workspace>) -> Option<&WorkspaceStatus> {
    workspace?.status.as_ref()
}

fn last_update(stack: &Stack) -> Option<&LastUpdate> {
    stack.status.as_ref()?.last_update.as_ref()
}

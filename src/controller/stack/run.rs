//! Determines the type, the artifact and the inputs of a run, and the changes to the inputs since the last run. The
//! agent in the pod reports keyed hashes of the mounted Secrets and ConfigMaps. A change to a mounted object therefore
//! triggers a run only after the kubelet has updated the files in the pod.

use std::collections::BTreeMap;

use kube::ResourceExt;

use crate::api::auto::{ArtifactReference, PendingCreates, PreviewOf, UpdateKind, Workspace, WorkspaceStatus};
use crate::api::conditions::update_reason;
use crate::api::names;
use crate::api::pulumi::{ApprovedPlan, CurrentUpdate, LastUpdate, RunInputs, Stack};
use crate::api::resolve::Decision;
use crate::artifact::Digest;
use crate::controller::stack::action::Baseline;
use crate::controller::stack::annotations::{self, force_and_reset_requests, refresh_request, requests};
use crate::controller::stack::observed::Observed;
use crate::controller::stack::{identity, ownership, policy_packs, run_spec};
use crate::runtime::run_limiter::SlotWait;
use crate::source::Resolved;

/// Message about a change to a value that the configuration references.
const CONFIG_CHANGED: &str = "A Secret or ConfigMap referenced by the configuration has changed";
/// End of the message about a changed object that the pod mounts.
const CHANGED: &str = " has changed";

/// Returns a revision for a message that does not introduce it, such as `main@sha1:…`. The revision of a Program is a
/// number, so it becomes `revision 1`.
pub fn named_revision(revision: &str) -> String {
    match revision.bytes().all(|byte| byte.is_ascii_digit()) {
        true => format!("revision {revision}"),
        false => revision.to_owned(),
    }
}

/// Describes a run for messages, such as `up of revision main@sha1:…`. Omits the revision if it is empty, as for a
/// source in the pod.
pub fn describe_run(kind: UpdateKind, revision: &str) -> String {
    match revision {
        "" => kind.as_str().to_owned(),
        revision => format!("{} of revision {revision}", kind.as_str()),
    }
}

/// Returns the end of each message about a recorded run. Example: `up of revision main@sha1:… (web-1)`. The message starts
/// with the state of the run, because `kubectl get` truncates the end of the message.
pub fn recorded_run(current: &CurrentUpdate) -> String {
    let run = describe_run(current.kind, current.commit.as_deref().unwrap_or("unknown"));
    format!("{run} ({})", current.name)
}

/// Returns the message about a recorded run that has not started. `wait` is the reason, unless it is unknown.
pub fn queued_message(current: &CurrentUpdate, wait: Option<&SlotWait>) -> String {
    match wait {
        Some(wait) => waiting_message(&wait.to_string(), current),
        None => format!("queued: {}", recorded_run(current)),
    }
}

/// Returns the message about a recorded run that waits for this reason.
pub fn waiting_message(why: &str, current: &CurrentUpdate) -> String {
    format!("{why}; {}", recorded_run(current))
}

/// Returns the run type of a Stack that is not being deleted.
pub fn run_kind(stack: &Stack) -> UpdateKind {
    if stack.spec.preview.unwrap_or_default() { UpdateKind::Preview } else { UpdateKind::Up }
}

/// Returns the reference to the artifact of a run. Returns `None` for a run that the Pulumi Kubernetes Operator
/// recorded.
pub fn artifact_of(current: &CurrentUpdate) -> Option<ArtifactReference> {
    Some(ArtifactReference {
        digest: current.inputs.digest.clone()?,
        revision: current.commit.clone().unwrap_or_default(),
        dir: current.dir.clone().unwrap_or_default(),
    })
}

pub fn reference(resolved: &Resolved) -> ArtifactReference {
    ArtifactReference {
        digest: resolved.digest.clone(),
        revision: resolved.revision.clone(),
        dir: resolved.directory.as_str().to_owned(),
    }
}

/// Returns the kind of a run that executes a plan for this operation.
pub fn operation_kind(operation: PreviewOf) -> UpdateKind {
    match operation {
        PreviewOf::Up => UpdateKind::Up,
        PreviewOf::Destroy => UpdateKind::Destroy,
        PreviewOf::Refresh => UpdateKind::Refresh,
    }
}

/// Run that is due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DueRun {
    /// Operation of the run. A run that saves a plan is a preview of this operation.
    pub operation: UpdateKind,
    /// Reason for the run.
    pub message: String,
    /// Whether the run refreshes the Pulumi state, even if `spec.refresh` is not set.
    pub refresh: bool,
    pub plan: PlanUse,
}

/// Use of a plan by a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlanUse {
    /// The run uses no plan.
    None,
    /// The run is a preview that saves its plan.
    Save,
    /// The run executes this plan.
    Execute(ApprovedPlan),
}

impl DueRun {
    /// Returns the Pulumi command of the run.
    pub fn kind(&self) -> UpdateKind {
        // A due run with the operation `refresh` is a drift check.
        let is_preview = self.plan == PlanUse::Save || self.operation == UpdateKind::Refresh;
        if is_preview { UpdateKind::Preview } else { self.operation }
    }
}

/// Source revision and inputs of a possible run, which the controller compares with the last run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunCandidate {
    /// Revision of the source. Empty if the source has no revision.
    pub revision: String,
    pub inputs: RunInputs,
}

impl RunCandidate {
    /// Returns the recorded run as a candidate.
    pub fn of_current(current: &CurrentUpdate) -> Self {
        Self { revision: current.commit.clone().unwrap_or_default(), inputs: current.inputs.clone() }
    }

    /// Returns the candidate for a run of this Stack with this artifact.
    pub fn new(observed: &Observed, resolved: &Resolved) -> Self {
        let stack = &observed.stack;
        let (reconcile_request, requested_at) = requests(stack);
        let (force_at, reset_at) = force_and_reset_requests(stack);
        let inputs = RunInputs {
            generation: stack.metadata.generation.unwrap_or_default(),
            run_spec_digest: Some(run_spec::digest(stack)),
            reconcile_request,
            requested_at,
            force_at,
            reset_at,
            refresh_at: refresh_request(stack),
            digest: Some(resolved.digest.clone()),
            content_id: resolved.content_id.clone(),
            paths_digest: resolved.selection().map(str::to_owned),
            config_inputs: config_inputs(observed),
            mounted_inputs: mounted_inputs(observed),
            policy_inputs: observed.policy_packs.as_deref().map(policy_packs::inputs).unwrap_or_default(),
            workspace_hash: observed.workspace.as_ref().and_then(ownership::desired_hash).map(str::to_owned),
        };
        Self { revision: resolved.revision.clone(), inputs }
    }
}

/// Returns the `status.currentUpdate` value for a run with this artifact.
pub fn current_update(observed: &Observed, resolved: &Resolved, run: &DueRun) -> CurrentUpdate {
    let stack = &observed.stack;
    let RunCandidate { revision, inputs } = RunCandidate::new(observed, resolved);
    let inputs = RunInputs { run_spec_digest: Some(run_spec::digest_to_record(stack)), ..inputs };
    let attempt = stack.status.as_ref().and_then(|s| s.attempts).unwrap_or_default() + 1;
    CurrentUpdate {
        name: names::update(&stack.name_any(), &stack.uid().unwrap_or_default(), attempt),
        spec_digest: None,
        first_spec_digest: None,
        inputs,
        commit: Some(revision),
        origin_revision: resolved.origin_revision.clone(),
        source: resolved.metadata.clone(),
        dir: Some(resolved.directory.as_str().to_owned()),
        kind: run.kind(),
        message: run.message.clone(),
        save_plan: (run.plan == PlanUse::Save).then_some(true),
        preview_of: preview_of(run),
        refresh: run.refresh.then_some(true),
        background: None,
        plan: match &run.plan {
            PlanUse::Execute(plan) => Some(plan.clone()),
            PlanUse::None | PlanUse::Save => None,
        },
        create_stack: create_stack(stack, run.kind()),
        applied_by_others: Vec::new(),
        rejected: None,
        pending_creates: pending_creates(stack),
        policy_packs_digest: policy_packs_digest(observed, run),
        pulumi_stack: Some(identity::desired(stack, observed.workspace.as_ref())),
    }
}

/// Returns the digest of the policy packs that the run enforces. Uses the policy packs in the existing Workspace,
/// because the controller compares the existing with the desired Workspace before each run.
fn policy_packs_digest(observed: &Observed, run: &DueRun) -> Option<Digest> {
    let requires_packs = !observed.policy_packs_of(run.operation).is_empty();
    let evaluates = matches!(run.kind(), UpdateKind::Up | UpdateKind::Preview);
    let workspace = observed.workspace.as_ref().filter(|_| requires_packs && evaluates)?;
    workspace.spec.policy_packs_digest()
}

/// Returns the operation whose changes the run previews. Returns `None` unless the run saves a plan or is a drift
/// check.
fn preview_of(run: &DueRun) -> Option<PreviewOf> {
    match (run.operation, &run.plan) {
        // A drift check that refreshes the Pulumi state also previews the changes that a run would make.
        (UpdateKind::Refresh, _) => Some(if run.refresh { PreviewOf::Up } else { PreviewOf::Refresh }),
        (UpdateKind::Destroy, PlanUse::Save) => Some(PreviewOf::Destroy),
        (_, PlanUse::Save) => Some(PreviewOf::Up),
        (_, PlanUse::None | PlanUse::Execute(_)) => None,
    }
}

/// Returns whether the run may create the applied Pulumi stack: either no run has reported resources in it, or a user
/// has decided to create it again. Returns `None` if the run must not create the applied Pulumi stack.
fn create_stack(stack: &Stack, kind: UpdateKind) -> Option<bool> {
    let status = stack.status.as_ref().filter(|status| status.applied_stack.is_some())?;
    let is_permitted = status.state_confirmed != Some(true) || annotations::resolution(stack) == Some(Decision::Create);
    (kind != UpdateKind::Destroy && is_permitted).then_some(true)
}

/// Returns the policy for pending creates in the next run: the user's decision or, without a decision, the recorded
/// policy of the last run.
fn pending_creates(stack: &Stack) -> Option<PendingCreates> {
    match annotations::resolution(stack) {
        Some(Decision::Retry) if !annotations::is_stack_not_found(stack) => Some(PendingCreates::Keep),
        Some(Decision::Clear) => Some(PendingCreates::Clear),
        Some(Decision::Retry | Decision::Create | Decision::Abandon) | None => {
            stack.status.as_ref()?.last_update.as_ref()?.pending_creates
        }
    }
}

/// Returns the hash of the configuration values from Secrets and ConfigMaps.
fn config_inputs(observed: &Observed) -> Option<String> {
    workspace_status(observed.workspace.as_ref())?.config_inputs.clone()
}

/// Returns the hashes of the mounted objects. For an unwatched object, returns the recorded hash of the last run, if
/// available. A change to an unwatched object therefore triggers no run. If the backend rejected the access token of
/// the last run, did not have its state or has an unsupported layout, or if another Stack has applied its Pulumi stack,
/// treats all objects as watched, because a changed object can contain the correct credentials or another backend.
fn mounted_inputs(observed: &Observed) -> BTreeMap<String, String> {
    let last = last_update(&observed.stack);
    let before = last.map(|last| &last.inputs.mounted_inputs);
    let of_backend = [
        update_reason::INVALID_ACCESS_TOKEN,
        update_reason::STACK_NOT_FOUND,
        update_reason::BACKEND_UPGRADE_REQUIRED,
        update_reason::DUPLICATE_STACK,
    ];
    let was_rejected = last.and_then(|last| last.reason.as_deref()).is_some_and(|reason| of_backend.contains(&reason));
    let is_watched = |object: &String| was_rejected || observed.watched.contains(object);
    let counts = |(object, word): (&String, &String)| {
        let before = before.and_then(|before| before.get(object)).filter(|_| !is_watched(object));
        (object.clone(), before.unwrap_or(word).clone())
    };
    workspace_status(observed.workspace.as_ref())
        .map(|now| now.mounted_inputs.iter().map(counts).collect())
        .unwrap_or_default()
}

/// Returns the mounted objects whose content has changed since the last run, including unwatched objects.
pub fn changed_objects<'a>(stack: &Stack, workspace: Option<&'a Workspace>) -> Vec<&'a str> {
    let (Some(now), Some(last)) = (workspace_status(workspace), last_update(stack)) else { return Vec::new() };
    let differs =
        |object: &str, word: &str| last.inputs.mounted_inputs.get(object).is_some_and(|before| before != word);
    now.mounted_inputs
        .iter()
        .filter(|(object, word)| differs(object, word))
        .map(|(object, _)| object.as_str())
        .collect()
}

/// Returns the message for the Update if a Secret, a ConfigMap or a policy pack has changed since the last run. Ignores
/// Secrets and ConfigMaps that have no recorded hash.
pub fn changed_input(last: &LastUpdate, inputs: &RunInputs) -> Option<String> {
    let has_read = |now: &String| last.run_config_inputs.as_ref() == Some(now);
    if matches!((&last.inputs.config_inputs, &inputs.config_inputs), (Some(before), Some(now)) if before != now && !has_read(now))
    {
        return Some(CONFIG_CHANGED.to_owned());
    }
    let differs =
        |object: &str, word: &str| last.inputs.mounted_inputs.get(object).is_some_and(|before| before != word);
    let object = inputs.mounted_inputs.iter().find(|(object, word)| differs(object, word));
    let object = object.map(|(object, _)| format!("{}{CHANGED}", object.replacen('/', " ", 1)));
    object.or_else(|| policy_packs::changed(&last.inputs.policy_inputs, &inputs.policy_inputs))
}

/// Returns whether the message of an Update names a changed Secret or ConfigMap as the cause.
pub fn is_input_change(message: &str) -> bool {
    let is_object = message.starts_with("Secret ") || message.starts_with("ConfigMap ");
    message == CONFIG_CHANGED || is_object && message.ends_with(CHANGED)
}

/// Returns the hashes that are missing from the record of the last run. Returns `None` if the record is complete or no
/// run has completed.
pub fn baseline(observed: &Observed) -> Option<Baseline> {
    let (now, last) = (workspace_status(observed.workspace.as_ref())?, last_update(&observed.stack)?);
    let is_new = |object: &String| !last.inputs.mounted_inputs.contains_key(object);
    let mounted = now.mounted_inputs.iter().filter(|(object, _)| is_new(object));
    // A run may use new values before the Workspace reports their hash.
    let is_first = |now: &String| match &last.inputs.config_inputs {
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

//! Builds the request that starts a run. The request contains the binding, the timeouts, and the interrupted runs
//! whose locks the agent may remove. All functions are pure.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use kube::ResourceExt;

use crate::api::auto::{
    AppliedByOther, ArtifactReference, LockRecovery, PendingCreates, PreviewOf, RunBinding, SourceMetadata,
    TerminationEvidence, Update, UpdateKind, UpdateSpec, Workspace,
};
use crate::api::conditions::{self, update_reason};
use crate::api::pulumi::PulumiStack;
use crate::api::{duration, names};
use crate::controller::workspace::{SpecError, config_files, oidc_login, references, run_environment, settings};
use crate::pulumi::stack_name;
use crate::rpc::proto;
use crate::rpc::protocol::{self, settings_digest};

/// Maximum length of a label value, in characters.
const MAX_NAME: usize = 63;

/// Maximum number of interrupted runs in a request. If there are more interrupted runs, the request contains the most
/// recent runs.
const MAX_INTERRUPTED_RUNS: usize = 5;

/// Error in an Update or Workspace that prevents the controller from building the request for a run.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    #[error(transparent)]
    Workspace(#[from] SpecError),
    #[error("invalid spec.{field} {value:?}: must be a duration such as 1h30m or 45s")]
    Duration { field: &'static str, value: String },
    #[error("spec.{0} is required")]
    Missing(&'static str),
    #[error("invalid spec.workspaceName {0:?}: must be the name of a Workspace")]
    WorkspaceName(String),
    #[error(
        "invalid metadata.name: must be at most {MAX_NAME} characters long, because it is a label of the Secret with the outputs"
    )]
    NameTooLong,
    #[error("spec.stackName: {0}")]
    StackName(String),
    #[error("invalid spec.type: must be up, preview, refresh or destroy")]
    Kind,
    #[error("spec.{0} requires spec.type preview")]
    NotPreview(&'static str),
    #[error("spec.savePlan requires spec.previewOf up or destroy")]
    PlanOfRefresh,
    #[error("spec.plan requires spec.type up or destroy")]
    PlanOfPreview,
}

/// Returns the binding of an Update's run to a pod. Returns `None` if the Workspace has no agent yet, or if the
/// settings of the Pulumi stack are invalid.
pub fn binding(update: &Update, workspace: &Workspace, pod: &Pod, timeouts: RunTimeouts) -> Option<RunBinding> {
    let status = workspace.status.as_ref()?;
    let spec = pod.spec.as_ref();
    let container = pulumi_container(pod);
    Some(RunBinding {
        pod_uid: status.pod_uid.clone()?,
        agent_start_id: status.agent_start_id.clone()?,
        artifact: status.artifact.clone(),
        settings_digest: settings_digest(&settings(&workspace.spec, &update.spec.stack_name).ok()?),
        host: host(pod),
        node_name: spec.and_then(|spec| spec.node_name.clone()).unwrap_or_default(),
        container_id: container.and_then(|container| container.container_id.clone()).unwrap_or_default(),
        empty_references: Vec::new(),
        concurrency_group: None,
        timeout: Some(duration::display(timeout(update, timeouts).signed())),
    })
}

/// Returns the host name that the CLI reports. With host networking, returns an empty string, because the host name
/// does not identify the pod.
fn host(pod: &Pod) -> String {
    let spec = pod.spec.as_ref();
    if spec.is_some_and(|spec| spec.host_network.unwrap_or_default()) {
        return String::new();
    }
    spec.and_then(|spec| spec.hostname.clone()).filter(|name| !name.is_empty()).unwrap_or_else(|| pod.name_any())
}

/// Validates the fields that define the run. The CRD schema requires these fields, but older objects can lack them.
pub fn check(update: &Update) -> Result<(), RequestError> {
    let spec = &update.spec;
    for (field, value) in [("workspaceName", &spec.workspace_name), ("stackName", &spec.stack_name)] {
        if value.is_empty() {
            return Err(RequestError::Missing(field));
        }
    }
    stack_name::check(&spec.stack_name).map_err(RequestError::StackName)?;
    if !has_valid_workspace_name(update) {
        return Err(RequestError::WorkspaceName(spec.workspace_name.clone()));
    }
    if update.name_any().len() > MAX_NAME {
        return Err(RequestError::NameTooLong);
    }
    kind(spec.kind)?;
    check_plan(spec)?;
    idle_timeout(update).map(drop)
}

fn check_plan(spec: &UpdateSpec) -> Result<(), RequestError> {
    let is_preview = spec.kind == UpdateKind::Preview;
    let saves = spec.save_plan.unwrap_or_default();
    match () {
        () if saves && !is_preview => Err(RequestError::NotPreview("savePlan")),
        () if spec.preview_of.is_some() && !is_preview => Err(RequestError::NotPreview("previewOf")),
        () if saves && spec.preview_of == Some(PreviewOf::Refresh) => Err(RequestError::PlanOfRefresh),
        () if spec.plan.is_some() && !matches!(spec.kind, UpdateKind::Up | UpdateKind::Destroy) => {
            Err(RequestError::PlanOfPreview)
        }
        () => Ok(()),
    }
}

/// Returns whether `spec.workspaceName` is a valid object name. Request paths contain the name, so the controller
/// must not use an invalid name.
pub fn has_valid_workspace_name(update: &Update) -> bool {
    names::is_object_name(&update.spec.workspace_name)
}

fn kind(kind: UpdateKind) -> Result<proto::OperationKind, RequestError> {
    match kind {
        UpdateKind::Up => Ok(proto::OperationKind::Up),
        UpdateKind::Destroy => Ok(proto::OperationKind::Destroy),
        UpdateKind::Preview => Ok(proto::OperationKind::Preview),
        UpdateKind::Refresh => Ok(proto::OperationKind::Refresh),
        UpdateKind::Unknown => Err(RequestError::Kind),
    }
}

/// Validates the durations of the spec, and returns `spec.idleTimeout` in seconds. Zero means no limit. If a duration is
/// invalid, returns an error that contains the name of the field.
fn idle_timeout(update: &Update) -> Result<u64, RequestError> {
    let seconds = |field, value: &Option<String>| match value {
        None => Ok(0),
        Some(value) => duration::seconds(value).ok_or_else(|| RequestError::Duration { field, value: value.clone() }),
    };
    seconds("ttlAfterCompleted", &update.spec.ttl_after_completed)?;
    seconds("timeout", &update.spec.timeout)?;
    seconds("idleTimeout", &update.spec.idle_timeout)
}

/// Returns the timeout of a run. The binding contains the timeout of a bound run, so that no later change to the Update
/// removes the deadline of the run.
pub fn timeout(update: &Update, timeouts: RunTimeouts) -> RunTimeout {
    let parsed = |value: &str| duration::seconds(value).map(Duration::from_secs);
    // If the binding of an earlier version contains no timeout, an invalid `spec.timeout` counts as `0s`, so that the
    // maximum still applies.
    let defined = timeouts.of(update.spec.timeout.as_deref().map(|value| parsed(value).unwrap_or_default()));
    let binding = update.status.as_ref().and_then(|status| status.run.as_ref());
    match binding.and_then(|binding| parsed(binding.timeout.as_deref()?)) {
        Some(duration) if duration != defined.duration => RunTimeout { duration, source: TimeoutSource::Spec },
        Some(_) | None => defined,
    }
}

fn pending_creates(update: &Update) -> proto::PendingCreates {
    match update.spec.pending_creates {
        None => proto::PendingCreates::Unspecified,
        Some(PendingCreates::Stop) => proto::PendingCreates::Stop,
        Some(PendingCreates::Keep) => proto::PendingCreates::Keep,
        Some(PendingCreates::Clear) => proto::PendingCreates::Clear,
    }
}

/// Returns the minimum protocol version that the agent must support for the run. Returns zero if the Update or
/// Workspace is invalid.
pub fn required_protocol_version(update: &Update, workspace: &Workspace) -> u32 {
    let request = run(update, workspace, &RunBinding::default(), Vec::new(), RunTimeouts::default());
    // The version depends only on the presence of the plan, and not on its content.
    let plan = if update.spec.plan.is_some() { vec![0] } else { Vec::new() };
    let required = request.map_or(0, |request| protocol::required_version(&proto::RunRequest { plan, ..request }));
    // The kubelet mounts a missing object only some time after a client creates it. The agent must therefore wait for
    // the mount when the run starts.
    if waits_for_references(update) { required.max(protocol::MOUNT_WAIT_VERSION) } else { required }
}

/// Returns whether an Update waits for missing Secrets or ConfigMaps.
pub fn waits_for_references(update: &Update) -> bool {
    let conditions = update.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    let progressing = conditions::find(conditions, conditions::PROGRESSING);
    progressing.is_some_and(|progressing| progressing.reason == update_reason::REFERENCE_NOT_FOUND)
}

/// Returns the mount directories that must not be empty when the run starts.
fn required_directories(update: &Update, workspace: &Workspace, binding: &RunBinding) -> Vec<String> {
    let required = references(&workspace.spec, Some(&update.spec.stack_name)).into_iter();
    let required = required.filter(|reference| !binding.empty_references.contains(&reference.object()));
    required.map(|reference| reference.directory).collect()
}

/// Returns whether the agent in the pod is too old for the run. An older agent would silently ignore parts of the
/// request.
pub fn exceeds_protocol_version(update: &Update, workspace: &Workspace) -> bool {
    let understood = workspace.status.as_ref().and_then(|status| status.agent_protocol_version).unwrap_or_default();
    required_protocol_version(update, workspace) > understood
}

/// Returns the request that starts a run with the given binding. The request contains neither the plan, nor the
/// Pulumi stack tags, nor the trace. `timeouts` contains the timeouts that the controller flags specify.
pub fn run(
    update: &Update,
    workspace: &Workspace,
    binding: &RunBinding,
    interrupted: Vec<proto::DeadRun>,
    timeouts: RunTimeouts,
) -> Result<proto::RunRequest, RequestError> {
    let idle_timeout_seconds = idle_timeout(update)?;
    let timeout_seconds = timeout(update, timeouts).duration.as_secs();
    let artifact = |artifact: &ArtifactReference| proto::Artifact {
        digest: artifact.digest.to_string(),
        directory: artifact.dir.clone(),
    };
    Ok(proto::RunRequest {
        id: update.uid().unwrap_or_default(),
        name: update.name_any(),
        kind: kind(update.spec.kind)?.into(),
        pod_uid: binding.pod_uid.clone(),
        start_id: binding.agent_start_id.clone(),
        artifact: Some(update.artifact().map(artifact).unwrap_or_default()),
        settings_digest: binding.settings_digest.clone(),
        settings: Some(settings(&workspace.spec, &update.spec.stack_name)?),
        environment: run_environment(&workspace.spec)?,
        refresh: update.spec.refresh.unwrap_or_default(),
        message: update.spec.message.clone().unwrap_or_default(),
        dead_runs: interrupted,
        pending_creates: pending_creates(update).into(),
        timeout_seconds,
        idle_timeout_seconds,
        lock_recovery: update.spec.lock_recovery == LockRecovery::Automatic,
        options: Some(run_options(update, workspace)),
        required_directories: required_directories(update, workspace, binding),
        config_files: config_files(&workspace.spec).into_iter().collect(),
        applied_stack: update.spec.applied_stack.as_ref().map(applied_stack),
        create_stack: update.spec.create_stack.unwrap_or_default(),
        applied_by_others: update.spec.applied_by_others.iter().map(applied_by_other).collect(),
        stack_tags: HashMap::default(),
        source: update.spec.source.as_deref().cloned().map(source),
        oidc_login: oidc_login(&workspace.spec, timeout_seconds),
        plan: Vec::new(),
        traceparent: String::new(),
        otlp_endpoint: String::new(),
    })
}

/// Converts the source metadata, and limits the length of the strings. The limits in the CRD schema are not
/// sufficient, because an older schema has no limits.
fn source(metadata: SourceMetadata) -> proto::SourceMetadata {
    let metadata = metadata.bounded();
    proto::SourceMetadata {
        repository_url: metadata.repository_url.unwrap_or_default(),
        head: metadata.head.unwrap_or_default(),
        head_name: metadata.head_name.unwrap_or_default(),
        message: metadata.message.unwrap_or_default(),
        author: metadata.author.unwrap_or_default(),
        author_email: metadata.author_email.unwrap_or_default(),
        committer: metadata.committer.unwrap_or_default(),
        committer_email: metadata.committer_email.unwrap_or_default(),
        directory: metadata.directory.unwrap_or_default(),
    }
}

fn applied_stack(stack: &PulumiStack) -> proto::PulumiStack {
    proto::PulumiStack {
        name: stack.name.clone(),
        project: stack.project.clone().unwrap_or_default(),
        backend: stack.backend.clone().unwrap_or_default(),
    }
}

fn applied_by_other(other: &AppliedByOther) -> proto::AppliedByOther {
    proto::AppliedByOther { owner: other.owner.clone(), stack: Some(applied_stack(&other.stack)) }
}

fn run_options(update: &Update, workspace: &Workspace) -> proto::RunOptions {
    let spec = &update.spec;
    let stack = workspace.spec.stacks.iter().find(|stack| stack.name == spec.stack_name);
    proto::RunOptions {
        targets: spec.target.clone(),
        target_dependents: spec.target_dependents.unwrap_or_default(),
        replace: spec.replace.clone(),
        parallel: spec.parallel.unwrap_or_default(),
        continue_on_error: spec.continue_on_error.unwrap_or_default(),
        expect_no_changes: spec.expect_no_changes.unwrap_or_default(),
        remove: spec.remove.unwrap_or_default(),
        run_program: spec.run_program.unwrap_or_default(),
        expect_no_refresh_changes: spec.expect_no_refresh_changes.unwrap_or_default(),
        stack_must_exist: stack.is_some_and(|stack| stack.create == Some(false)),
        log_level: workspace.spec.pulumi_log_level.unwrap_or_default(),
        secrets_provider: stack.and_then(|stack| stack.secrets_provider.clone()).unwrap_or_default(),
        preview_of: preview_of(spec.preview_of.unwrap_or_default()).into(),
        save_plan: spec.save_plan.unwrap_or_default(),
    }
}

fn preview_of(operation: PreviewOf) -> proto::PreviewOf {
    match operation {
        PreviewOf::Up => proto::PreviewOf::Up,
        PreviewOf::Destroy => proto::PreviewOf::Destroy,
        PreviewOf::Refresh => proto::PreviewOf::Refresh,
    }
}

/// Returns the status of the `pulumi` container.
pub fn pulumi_container(pod: &Pod) -> Option<&ContainerStatus> {
    let mut containers = pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
    containers.find(|container| container.name == names::PULUMI_CONTAINER)
}

/// Timeouts that the controller flags specify. Zero means no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunTimeouts {
    /// Timeout of a run whose Update does not set `spec.timeout`.
    pub default: Duration,
    /// Maximum timeout of any run.
    pub maximum: Duration,
}

/// Timeout of a run. A duration of zero means no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunTimeout {
    pub duration: Duration,
    pub source: TimeoutSource,
}

/// Setting that defines the timeout of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeoutSource {
    Spec,
    Default,
    Maximum,
}

impl RunTimeout {
    /// Returns the duration in the type of the time calculations.
    pub fn signed(self) -> SignedDuration {
        SignedDuration::try_from(self.duration).unwrap_or(SignedDuration::MAX)
    }
}

impl RunTimeouts {
    /// Returns the timeout of a run. `spec` is the value of `spec.timeout`.
    pub fn of(&self, spec: Option<Duration>) -> RunTimeout {
        let desired = match spec {
            Some(duration) => RunTimeout { duration, source: TimeoutSource::Spec },
            None => RunTimeout { duration: self.default, source: TimeoutSource::Default },
        };
        let exceeds = desired.duration.is_zero() || desired.duration > self.maximum;
        match !self.maximum.is_zero() && exceeds {
            true => RunTimeout { duration: self.maximum, source: TimeoutSource::Maximum },
            false => desired,
        }
    }
}

impl TimeoutSource {
    /// Returns advice for a timeout that a controller flag, and not `spec.timeout`, defines.
    pub fn advice(self) -> Option<&'static str> {
        match self {
            TimeoutSource::Spec => None,
            TimeoutSource::Default => Some(
                "spec.timeout is not set, so the controller's --default-run-timeout applies: set spec.timeout for a longer run",
            ),
            TimeoutSource::Maximum => Some("the controller's --max-run-timeout limits every run"),
        }
    }
}

/// Returns the interrupted runs of the same Pulumi stack, most recent first. The agent may remove the locks of these
/// runs. Returns no runs if `spec.lockRecovery` is `Manual`.
pub fn interrupted_runs(update: &Update, all: &[Arc<Update>]) -> Vec<proto::DeadRun> {
    if update.spec.lock_recovery == LockRecovery::Manual {
        return Vec::new();
    }
    let is_sibling = |other: &&Arc<Update>| {
        other.metadata.namespace == update.metadata.namespace
            && other.metadata.uid != update.metadata.uid
            && other.spec.workspace_name == update.spec.workspace_name
            && other.spec.stack_name == update.spec.stack_name
    };
    let mut runs: Vec<_> = all.iter().filter(is_sibling).filter_map(|other| interrupted_run(other)).collect();
    runs.sort_by_key(|run| std::cmp::Reverse(run.ended));
    runs.truncate(MAX_INTERRUPTED_RUNS);
    runs
}

/// Returns the run of an Update if the run was interrupted, its end is proven, and its lock can be identified. Either
/// the host name and the process ID or the Pulumi Cloud URL identify the lock. A run that ended with a conflict has no
/// lock, even if the pending creates of an earlier run mark it as interrupted.
pub fn interrupted_run(update: &Update) -> Option<proto::DeadRun> {
    let status = update.status.as_ref().filter(|_| update.is_complete())?;
    let is_proven = status.termination_evidence.is_some_and(|evidence| evidence != TerminationEvidence::User);
    let failed = conditions::find(&status.conditions, conditions::FAILED);
    let has_conflict = failed.is_some_and(|failed| failed.reason == update_reason::UPDATE_CONFLICT);
    if !is_proven || status.interrupted != Some(true) || has_conflict {
        return None;
    }
    let host = status.run.as_ref().map(|run| run.host.clone()).unwrap_or_default();
    let pid = status.progress.as_ref().and_then(|progress| u32::try_from(progress.pid?).ok());
    let permalink = status.permalink.clone().unwrap_or_default();
    if (host.is_empty() || pid.is_none()) && permalink.is_empty() {
        return None;
    }
    let milliseconds = |time: Timestamp| time.as_millisecond();
    Some(proto::DeadRun {
        host: if pid.is_some() { host } else { String::new() },
        pid: pid.unwrap_or_default(),
        permalink,
        started: milliseconds(status.start_time.as_ref()?.0),
        ended: milliseconds(status.end_time.as_ref()?.0),
    })
}

#[cfg(test)]
mod tests;

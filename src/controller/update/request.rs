//! Builds the request that starts a run. Pure functions.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

use crate::api::auto::{LockRecovery, PendingCreates, RunBinding, Update, UpdateKind, Workspace};
use crate::api::conditions::{self, update_reason};
use crate::api::duration;
use crate::api::names;
use crate::api::pulumi::PulumiStack;
use crate::controller::update::pod_termination;
use crate::controller::update::timeouts::RunTimeouts;
use crate::controller::workspace::{SpecError, config_files, references, run_environment, settings};
use crate::pulumi::stack_name;
use crate::rpc::proto;
use crate::rpc::protocol;
use crate::rpc::protocol::settings_digest;

/// Maximum length of a label value.
const MAX_NAME: usize = 63;

/// Reason why a run cannot be requested.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    #[error(transparent)]
    Workspace(#[from] SpecError),
    #[error("spec.{field}: {value:?} is no duration; give one such as 1h30m or 45s")]
    Duration { field: &'static str, value: String },
    #[error("spec.{0} is missing")]
    Missing(&'static str),
    #[error("spec.workspaceName {0:?} is not the name of a Workspace")]
    WorkspaceName(String),
    #[error("the Update's name has more than {MAX_NAME} characters: the Secret of its outputs carries it as a label")]
    NameTooLong,
    #[error("spec.stackName: {0}")]
    StackName(String),
    #[error("spec.type is none of up, preview, refresh and destroy")]
    Kind,
}

/// Returns the binding of this Update's run in this pod, or `None` if the Workspace has no agent yet.
pub fn binding(update: &Update, workspace: &Workspace, pod: &Pod) -> Option<RunBinding> {
    let status = workspace.status.as_ref()?;
    let spec = pod.spec.as_ref();
    let container = pod_termination::pulumi_container(pod);
    Some(RunBinding {
        pod_uid: status.pod_uid.clone()?,
        agent_start_id: status.agent_start_id.clone()?,
        artifact: status.artifact.clone(),
        settings_digest: settings_digest(&settings(&workspace.spec, &update.spec.stack_name).ok()?),
        host: host(pod),
        node_name: spec.and_then(|spec| spec.node_name.clone()).unwrap_or_default(),
        container_id: container.and_then(|container| container.container_id.clone()).unwrap_or_default(),
        empty_references: Vec::new(),
    })
}

/// Returns the hostname that the CLI reports. Empty with host networking, where unrelated processes have the same hostname.
fn host(pod: &Pod) -> String {
    let spec = pod.spec.as_ref();
    if spec.is_some_and(|spec| spec.host_network.unwrap_or_default()) {
        return String::new();
    }
    spec.and_then(|spec| spec.hostname.clone()).filter(|name| !name.is_empty()).unwrap_or_else(|| pod.name_any())
}

/// Validates the fields that define the run. The schema requires them, but objects stored before the schema may lack them.
pub fn check(update: &Update) -> Result<(), RequestError> {
    let spec = &update.spec;
    for (field, value) in [("workspaceName", &spec.workspace_name), ("stackName", &spec.stack_name)] {
        if value.is_empty() {
            return Err(RequestError::Missing(field));
        }
    }
    stack_name::check(&spec.stack_name).map_err(RequestError::StackName)?;
    if !names_workspace(update) {
        return Err(RequestError::WorkspaceName(spec.workspace_name.clone()));
    }
    if update.name_any().len() > MAX_NAME {
        return Err(RequestError::NameTooLong);
    }
    kind(spec.kind)?;
    limits(update).map(drop)
}

/// Returns whether `spec.workspaceName` is a valid object name. Other values are not used, because the name becomes part of
/// request paths.
pub fn names_workspace(update: &Update) -> bool {
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

/// Returns `timeout`, if set, and `idleTimeout` in seconds. Zero means no limit. An error names the field with an invalid
/// duration.
pub fn limits(update: &Update) -> Result<(Option<Duration>, u64), RequestError> {
    let seconds = |field, value: &Option<String>| match value {
        None => Ok(0),
        Some(value) => duration::seconds(value).ok_or_else(|| RequestError::Duration { field, value: value.clone() }),
    };
    seconds("ttlAfterCompleted", &update.spec.ttl_after_completed)?;
    let timeout = Duration::from_secs(seconds("timeout", &update.spec.timeout)?);
    Ok((update.spec.timeout.as_ref().map(|_| timeout), seconds("idleTimeout", &update.spec.idle_timeout)?))
}

fn pending_creates(update: &Update) -> proto::PendingCreates {
    match update.spec.pending_creates {
        None => proto::PendingCreates::Unspecified,
        Some(PendingCreates::Stop) => proto::PendingCreates::Stop,
        Some(PendingCreates::Keep) => proto::PendingCreates::Keep,
        Some(PendingCreates::Clear) => proto::PendingCreates::Clear,
    }
}

/// Returns the protocol version of the agent that this run requires. Zero if the run cannot be requested.
pub fn required_protocol_version(update: &Update, workspace: &Workspace) -> u32 {
    let request = run(update, workspace, &RunBinding::default(), Vec::new(), RunTimeouts::default());
    let needed = request.map_or(0, |request| protocol::needed(&request));
    // The objects are created while the pod exists, so the agent must check that they are mounted.
    if waits_for_references(update) { needed.max(protocol::REQUIRED_DIRECTORIES) } else { needed }
}

/// Returns whether an Update waits for Secrets or ConfigMaps to be created.
pub fn waits_for_references(update: &Update) -> bool {
    let conditions = update.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    let progressing = conditions::find(conditions, conditions::PROGRESSING);
    progressing.is_some_and(|progressing| progressing.reason == update_reason::REFERENCE_NOT_FOUND)
}

/// Returns the mounted directories that must not be empty when the run starts.
fn required_directories(update: &Update, workspace: &Workspace, binding: &RunBinding) -> Vec<String> {
    let required = references(&workspace.spec, Some(&update.spec.stack_name)).into_iter();
    let required = required.filter(|reference| !binding.empty_references.contains(&reference.object()));
    required.map(|reference| reference.directory).collect()
}

/// Returns whether the agent in the pod would silently ignore a part of this run.
pub fn exceeds_protocol_version(update: &Update, workspace: &Workspace) -> bool {
    let understood = workspace.status.as_ref().and_then(|status| status.agent_protocol_version).unwrap_or_default();
    required_protocol_version(update, workspace) > understood
}

/// Returns the request that starts a run with this binding. `timeouts` are the controller's limits for the duration of the
/// run.
pub fn run(
    update: &Update,
    workspace: &Workspace,
    binding: &RunBinding,
    dead_runs: Vec<proto::DeadRun>,
    timeouts: RunTimeouts,
) -> Result<proto::RunRequest, RequestError> {
    let (timeout, idle_timeout_seconds) = limits(update)?;
    let timeout_seconds = timeouts.of(timeout).duration.as_secs();
    let artifact = update.artifact().cloned().unwrap_or_default();
    Ok(proto::RunRequest {
        id: update.uid().unwrap_or_default(),
        name: update.name_any(),
        kind: kind(update.spec.kind)?.into(),
        pod_uid: binding.pod_uid.clone(),
        start_id: binding.agent_start_id.clone(),
        artifact: Some(proto::Artifact { digest: artifact.digest, directory: artifact.dir }),
        settings_digest: binding.settings_digest.clone(),
        settings: Some(settings(&workspace.spec, &update.spec.stack_name)?),
        environment: run_environment(&workspace.spec)?,
        refresh: update.spec.refresh.unwrap_or_default(),
        message: update.spec.message.clone().unwrap_or_default(),
        dead_runs,
        pending_creates: pending_creates(update).into(),
        timeout_seconds,
        idle_timeout_seconds,
        lock_recovery: update.spec.lock_recovery == LockRecovery::Automatic,
        options: Some(options(update, workspace)),
        required_directories: required_directories(update, workspace, binding),
        config_files: config_files(&workspace.spec).into_iter().collect(),
        applied_stack: update.spec.applied_stack.as_ref().map(applied_stack),
    })
}

fn applied_stack(stack: &PulumiStack) -> proto::PulumiStack {
    proto::PulumiStack {
        name: stack.name.clone(),
        project: stack.project.clone().unwrap_or_default(),
        backend: stack.backend.clone().unwrap_or_default(),
    }
}

fn options(update: &Update, workspace: &Workspace) -> proto::RunOptions {
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
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::auto::{ArtifactReference, UpdateSpec, UpdateStatus, WorkspaceSpec, WorkspaceStatus};
    use serde_json::{Value, json};

    fn pod(spec: Value) -> Pod {
        let containers = json!([{"name": "pulumi", "image": "i", "imageID": "", "ready": true, "restartCount": 0,
            "containerID": "containerd://c"}]);
        let pod =
            json!({"metadata": {"name": "app-workspace-0"}, "spec": spec, "status": {"containerStatuses": containers}});
        serde_json::from_value(pod).expect("a pod")
    }

    fn workspace() -> Workspace {
        let mut workspace = Workspace::new("app", WorkspaceSpec::default());
        workspace.status = Some(WorkspaceStatus {
            pod_uid: Some("pod-uid".to_owned()),
            agent_start_id: Some("start".to_owned()),
            ..WorkspaceStatus::default()
        });
        workspace
    }

    fn update(spec: UpdateSpec) -> Update {
        let (workspace_name, stack_name) = ("app".to_owned(), "dev".to_owned());
        Update::new("app-1", UpdateSpec { workspace_name, stack_name, ..spec })
    }

    #[test]
    fn a_run_binding_records_host_node_and_container() {
        let rows = [
            (json!({"containers": [], "nodeName": "n1", "hostname": "app-workspace-0"}), "app-workspace-0", "n1"),
            (json!({"containers": [], "hostname": "mine"}), "mine", ""),
            (json!({"containers": []}), "app-workspace-0", ""),
            (json!({"containers": [], "hostNetwork": true, "hostname": "app-workspace-0"}), "", ""),
        ];
        for (spec, host, node) in rows {
            let found = binding(&update(UpdateSpec::default()), &workspace(), &pod(spec)).expect("it can be bound");
            assert_eq!((found.host.as_str(), found.node_name.as_str()), (host, node));
            assert_eq!(found.container_id, "containerd://c");
        }
    }

    #[test]
    fn a_run_without_an_artifact_is_bound_to_the_one_in_place() {
        let artifact = |digest: &str| ArtifactReference { digest: digest.to_owned(), ..ArtifactReference::default() };
        let mut workspace = workspace();
        workspace.status.as_mut().expect("there").artifact = Some(artifact("sha256:a"));
        let mut update = update(UpdateSpec::default());
        let binding = binding(&update, &workspace, &pod(json!({"containers": []}))).expect("it can be bound");
        assert_eq!(binding.artifact, Some(artifact("sha256:a")));
        update.status = Some(UpdateStatus { run: Some(binding.clone()), ..UpdateStatus::default() });
        // The artifact of the Workspace changes, but not that of the run.
        workspace.status.as_mut().expect("there").artifact = Some(artifact("sha256:b"));
        let request = run(&update, &workspace, &binding, Vec::new(), RunTimeouts::default()).expect("valid");
        assert_eq!(request.artifact.map(|artifact| artifact.digest).as_deref(), Some("sha256:a"));
        // The run was started by a controller that did not record the artifact in the binding.
        update.spec.artifact = Some(artifact("sha256:c"));
        update.status = Some(UpdateStatus { run: Some(RunBinding::default()), ..UpdateStatus::default() });
        assert_eq!(update.artifact(), Some(&artifact("sha256:c")));
    }

    #[test]
    fn missing_or_invalid_spec_fields_are_reported_by_name() {
        let whole = json!({"workspaceName": "app", "stackName": "dev", "type": "refresh"});
        let rows = [
            (json!({}), None),
            (json!({"workspaceName": ""}), Some("spec.workspaceName is missing")),
            (json!({"stackName": ""}), Some("spec.stackName is missing")),
            (json!({"stackName": "a/b/c/d"}), Some("spec.stackName: invalid stack name \"a/b/c/d\"")),
            (json!({"workspaceName": "../secrets/a"}), Some("spec.workspaceName \"../secrets/a\" is not the name")),
            (json!({"type": "import"}), Some("spec.type is none of up, preview, refresh and destroy")),
            (json!({"ttlAfterCompleted": "soon"}), Some("spec.ttlAfterCompleted: \"soon\" is no duration")),
        ];
        for (changes, wanted) in rows {
            let mut spec = whole.clone();
            spec.as_object_mut().expect("a map").extend(changes.as_object().expect("a map").clone());
            let update = Update::new("by-hand", serde_json::from_value(spec).expect("it can be read"));
            let said = check(&update).err().map(|error| error.to_string());
            assert_eq!(
                said.as_deref().map(|said| wanted.is_some_and(|w| said.starts_with(w))),
                wanted.map(|_| true),
                "{said:?}"
            );
        }
        let long = Update::new(&"a".repeat(64), serde_json::from_value(whole).expect("it can be read"));
        assert!(check(&long).is_err_and(|error| error.to_string().contains("more than 63 characters")));
        let empty: UpdateSpec = serde_json::from_value(json!({})).expect("an object of another controller can be read");
        assert_eq!(empty.kind, UpdateKind::Unknown);
    }

    #[test]
    fn the_run_request_lists_directories_that_must_not_be_empty() {
        let mut workspace = workspace();
        let env_from = json!([{"secretRef": {"name": "aws"}}, {"configMapRef": {"name": "defaults"}}]);
        workspace.spec.env_from = serde_json::from_value(env_from).expect("a list");
        let binding = RunBinding { empty_references: vec!["ConfigMap/defaults".to_owned()], ..RunBinding::default() };
        let request = run(&update(UpdateSpec::default()), &workspace, &binding, Vec::new(), RunTimeouts::default())
            .expect("valid");
        assert_eq!(request.required_directories, ["/var/run/secrets/stacks.pulumi.com/secrets/aws"]);
        assert_eq!(required_protocol_version(&update(UpdateSpec::default()), &workspace), 0);
        let mut waits = update(UpdateSpec::default());
        let now = jiff::Timestamp::UNIX_EPOCH;
        waits.status =
            Some(crate::controller::update::status::waiting(&waits, update_reason::REFERENCE_NOT_FOUND, "waits", now));
        assert_eq!(required_protocol_version(&waits, &workspace), 3, "the object is created while the pod is there");
    }

    #[test]
    fn timeouts_and_answers_are_passed_to_the_agent() {
        let spec = UpdateSpec {
            timeout: Some("1m30s".to_owned()),
            idle_timeout: Some("500ms".to_owned()),
            pending_creates: Some(PendingCreates::Clear),
            lock_recovery: LockRecovery::Manual,
            ..UpdateSpec::default()
        };
        let of = |spec: UpdateSpec| {
            let timeouts = RunTimeouts { default: Duration::from_secs(3600), maximum: Duration::from_secs(7200) };
            run(&update(spec), &workspace(), &RunBinding::default(), Vec::new(), timeouts).expect("valid")
        };
        let request = of(spec);
        assert_eq!((request.timeout_seconds, request.idle_timeout_seconds, request.lock_recovery), (90, 1, false));
        assert_eq!(request.pending_creates(), proto::PendingCreates::Clear);
        let none = of(UpdateSpec::default());
        assert_eq!((none.timeout_seconds, none.idle_timeout_seconds, none.lock_recovery), (3600, 0, true));
        let unlimited = of(UpdateSpec { timeout: Some("0s".to_owned()), ..UpdateSpec::default() });
        assert_eq!(unlimited.timeout_seconds, 7200, "not above the maximum");
        assert_eq!(none.pending_creates(), proto::PendingCreates::Unspecified);
        let wrong = update(UpdateSpec { idle_timeout: Some("soon".to_owned()), ..UpdateSpec::default() });
        let error = limits(&wrong).expect_err("it is refused").to_string();
        assert!(error.contains("spec.idleTimeout") && error.contains("\"soon\""), "{error}");
    }
}

//! What the agent is asked to run. Pure.

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

use crate::api::auto::{LockRecovery, PendingCreates, RunBinding, Update, UpdateKind, Workspace};
use crate::api::duration;
use crate::controller::update::pod_end;
use crate::controller::workspace::{SpecError, run_environment};
use crate::rpc::proto;
use crate::rpc::settings::settings_digest;

/// Why no run can be asked for.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    #[error(transparent)]
    Workspace(#[from] SpecError),
    #[error("spec.{field}: {value:?} is no duration; give one such as 1h30m or 45s")]
    Duration { field: &'static str, value: String },
}

/// The settings of one stack of a Workspace, as a whole.
pub fn settings(workspace: &Workspace, stack: &str) -> proto::Settings {
    let item = |item: &crate::api::auto::ConfigItem| proto::ConfigItem {
        key: item.key.clone(),
        value: item.value.to_string(),
    };
    let config = workspace.spec.stacks.iter().find(|s| s.name == stack).map(|s| s.config.iter().map(item).collect());
    proto::Settings { stack: stack.to_owned(), config: config.unwrap_or_default() }
}

/// What a run of this Update would be bound to in this pod.
pub fn binding(update: &Update, workspace: &Workspace, pod: &Pod) -> Option<RunBinding> {
    let status = workspace.status.as_ref()?;
    let spec = pod.spec.as_ref();
    let container = pod_end::pulumi_container(pod);
    Some(RunBinding {
        pod_uid: status.pod_uid.clone()?,
        agent_start_id: status.agent_start_id.clone()?,
        settings_digest: settings_digest(&settings(workspace, &update.spec.stack_name)),
        host: host(pod),
        node_name: spec.and_then(|spec| spec.node_name.clone()).unwrap_or_default(),
        container_id: container.and_then(|container| container.container_id.clone()).unwrap_or_default(),
    })
}

/// What the CLI takes for the name of its machine; empty where processes of others have it, too.
fn host(pod: &Pod) -> String {
    let spec = pod.spec.as_ref();
    if spec.is_some_and(|spec| spec.host_network.unwrap_or_default()) {
        return String::new();
    }
    spec.and_then(|spec| spec.hostname.clone()).filter(|name| !name.is_empty()).unwrap_or_else(|| pod.name_any())
}

/// `timeout` and `idleTimeout` in seconds; 0 is for ever.
pub fn limits(update: &Update) -> Result<(u64, u64), RequestError> {
    let seconds = |field, value: &Option<String>| match value {
        None => Ok(0),
        Some(value) => duration::seconds(value).ok_or_else(|| RequestError::Duration { field, value: value.clone() }),
    };
    Ok((seconds("timeout", &update.spec.timeout)?, seconds("idleTimeout", &update.spec.idle_timeout)?))
}

fn pending_creates(update: &Update) -> proto::PendingCreates {
    match update.spec.pending_creates {
        None => proto::PendingCreates::Unspecified,
        Some(PendingCreates::Stop) => proto::PendingCreates::Stop,
        Some(PendingCreates::Keep) => proto::PendingCreates::Keep,
        Some(PendingCreates::Clear) => proto::PendingCreates::Clear,
    }
}

/// The request that starts a run with this binding.
pub fn run(
    update: &Update,
    workspace: &Workspace,
    binding: &RunBinding,
    dead_runs: Vec<proto::DeadRun>,
) -> Result<proto::RunRequest, RequestError> {
    let (timeout_seconds, idle_timeout_seconds) = limits(update)?;
    let kind = match update.spec.kind {
        UpdateKind::Up => proto::OperationKind::Up,
        UpdateKind::Destroy => proto::OperationKind::Destroy,
    };
    Ok(proto::RunRequest {
        id: update.uid().unwrap_or_default(),
        name: update.name_any(),
        kind: kind.into(),
        pod_uid: binding.pod_uid.clone(),
        start_id: binding.agent_start_id.clone(),
        artifact: Some(proto::Artifact {
            digest: update.spec.artifact.digest.clone(),
            directory: update.spec.artifact.dir.clone(),
        }),
        settings_digest: binding.settings_digest.clone(),
        settings: Some(settings(workspace, &update.spec.stack_name)),
        environment: run_environment(&workspace.spec)?,
        refresh: update.spec.refresh.unwrap_or_default(),
        message: update.spec.message.clone().unwrap_or_default(),
        dead_runs,
        pending_creates: pending_creates(update).into(),
        timeout_seconds,
        idle_timeout_seconds,
        lock_recovery: update.spec.lock_recovery == LockRecovery::Automatic,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::auto::{UpdateSpec, WorkspaceSpec, WorkspaceStatus};
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
        Update::new("app-1", UpdateSpec { workspace_name: "app".to_owned(), ..spec })
    }

    #[test]
    fn a_run_is_bound_to_what_its_end_is_known_by() {
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
    fn limits_and_answers_reach_the_agent() {
        let spec = UpdateSpec {
            timeout: Some("1m30s".to_owned()),
            idle_timeout: Some("500ms".to_owned()),
            pending_creates: Some(PendingCreates::Clear),
            lock_recovery: LockRecovery::Manual,
            ..UpdateSpec::default()
        };
        let request = run(&update(spec), &workspace(), &RunBinding::default(), Vec::new()).expect("valid");
        assert_eq!((request.timeout_seconds, request.idle_timeout_seconds, request.lock_recovery), (90, 1, false));
        assert_eq!(request.pending_creates(), proto::PendingCreates::Clear);
        let none =
            run(&update(UpdateSpec::default()), &workspace(), &RunBinding::default(), Vec::new()).expect("valid");
        assert_eq!((none.timeout_seconds, none.idle_timeout_seconds, none.lock_recovery), (0, 0, true));
        assert_eq!(none.pending_creates(), proto::PendingCreates::Unspecified);
        let wrong = update(UpdateSpec { idle_timeout: Some("soon".to_owned()), ..UpdateSpec::default() });
        let error = limits(&wrong).expect_err("it is refused").to_string();
        assert!(error.contains("spec.idleTimeout") && error.contains("\"soon\""), "{error}");
    }
}

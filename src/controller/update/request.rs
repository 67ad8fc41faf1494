//! What the agent is asked to run. Pure.

use kube::ResourceExt;

use crate::api::auto::{RunBinding, Update, UpdateKind, Workspace};
use crate::controller::workspace::{SpecError, run_environment};
use crate::rpc::proto;
use crate::rpc::settings::settings_digest;

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
pub fn binding(update: &Update, workspace: &Workspace) -> Option<RunBinding> {
    let status = workspace.status.as_ref()?;
    Some(RunBinding {
        pod_uid: status.pod_uid.clone()?,
        agent_start_id: status.agent_start_id.clone()?,
        settings_digest: settings_digest(&settings(workspace, &update.spec.stack_name)),
    })
}

/// The request that starts a run with this binding.
pub fn run(update: &Update, workspace: &Workspace, binding: &RunBinding) -> Result<proto::RunRequest, SpecError> {
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
    })
}

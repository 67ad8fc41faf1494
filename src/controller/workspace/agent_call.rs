//! Calls the agent in a pod.

use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;

use super::agent_reply::Agent;
use super::context::Context;
use super::pod_state::PodState;
use super::render::Rendered;
use super::{config, environment};
use crate::api::auto::Workspace;
use crate::api::names;
use crate::rpc::client::{AgentAddress, AgentClient, RpcError};
use crate::rpc::proto::{StatusReply, StatusRequest};

/// Returns whether the controller must call the agent. While the pod is starting, the agent is reachable only in the
/// init container `fetch`, or after it has opened its port. The controller calls the agent in an outdated pod even if
/// the pod is not ready, because the pod may have an open run.
pub(super) fn should_call_agent(
    pod: &PodState,
    workspace: &Workspace,
    rendered: Option<&Rendered>,
    context: &Context,
) -> bool {
    let outdated = rendered.is_some_and(|rendered| pod.revision_hash.as_ref() != Some(&rendered.revision_hash));
    let deleted = workspace.metadata.deletion_timestamp.is_some();
    let runs = pod.running && (pod.ready || outdated || deleted || has_responded(pod, workspace));
    let fetches = pod.fetching.is_some() && !outdated && !deleted;
    let opens = || pod.initialized && !pod.ready && pod.problem.is_none() && is_open(pod, workspace, context);
    !pod.terminating && (runs || fetches || opens())
}

/// Returns whether the agent in the running `pulumi` container has responded before. If the container has restarted,
/// the agent in the previous container may have responded.
fn has_responded(pod: &PodState, workspace: &Workspace) -> bool {
    pod.running && workspace.status.as_ref().is_some_and(|status| status.pod_uid.as_ref() == Some(&pod.uid))
}

/// Returns whether the agent in a starting pod has opened its port.
fn is_open(pod: &PodState, workspace: &Workspace, context: &Context) -> bool {
    let ip = pod.ip.as_ref().and_then(|ip| ip.parse().ok());
    ip.is_some_and(|ip| context.probes.is_open(ObjectRef::from_obj(workspace), &pod.uid, ip))
}

/// Returns the status request for the agent. The request contains the mounted files and directories that the agent
/// checks for changes.
pub(super) fn status_request(workspace: &Workspace, context: &Context) -> StatusRequest {
    let mounted = environment::directories(&workspace.spec);
    let request = StatusRequest {
        config_files: config::config_files(&workspace.spec).into_iter().collect(),
        mounted_directories: mounted.values().cloned().collect(),
    };
    let namespace = workspace.namespace().unwrap_or_default();
    context.inputs.set_mounts(&namespace, &workspace.name_any(), mounted.into_keys().collect());
    request
}

/// Requests the status of the agent.
pub(super) async fn call_agent(
    workspace: &Workspace,
    pod: &PodState,
    request: StatusRequest,
    context: &Context,
) -> (Agent, Option<AgentClient>) {
    let Some(ip) = pod.ip.as_ref().and_then(|ip| ip.parse().ok()) else {
        return (Agent::NotCalled, None);
    };
    let (server_name, namespace) = (workspace.server_name(), workspace.namespace().unwrap_or_default());
    let address = AgentAddress { ip, port: names::AGENT_PORT, server_name, namespace };
    match status(&address, request, context).await {
        Ok((reply, client)) => (Agent::Responded(Box::new(reply)), Some(client)),
        Err(error) => (after_failed_call(pod, workspace, describe(&error, pod)), None),
    }
}

/// Describes a failed call. A proxy of a service mesh that does not pass the TLS connection through resets it.
fn describe(error: &RpcError, pod: &PodState) -> String {
    match pod.mesh_proxy.as_ref().filter(|_| error.is_unavailable()) {
        Some(proxy) => format!(
            "{error}; the container {proxy} of a service mesh can have closed the connection: exclude port {} of the pod from the mesh",
            names::AGENT_PORT
        ),
        None => error.to_string(),
    }
}

/// Returns the state of an agent after a failed call. If the pod is not ready, the agent may not have started yet. An
/// agent that has responded before can be busy instead: the readiness probe also fails if a run or a command of a user
/// uses the entire CPU time of the pod.
fn after_failed_call(pod: &PodState, workspace: &Workspace, error: String) -> Agent {
    match pod.ready || pod.fetching.is_some() || has_responded(pod, workspace) {
        true => Agent::Unreachable(error),
        false => Agent::NotCalled,
    }
}

async fn status(
    address: &AgentAddress,
    request: StatusRequest,
    context: &Context,
) -> Result<(StatusReply, AgentClient), RpcError> {
    let client = context.agents.connect(address).await?;
    Ok((client.status_with_inputs(request).await?, client))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::auto::{WorkspaceSpec, WorkspaceStatus};

    #[test]
    fn a_failed_connection_to_a_pod_in_a_mesh_names_the_proxy() {
        let of = |code: tonic::Code, proxy: Option<&str>| {
            let error = RpcError { call: "Status", code, message: "Connection reset by peer".to_owned() };
            describe(&error, &PodState { mesh_proxy: proxy.map(str::to_owned), ..PodState::default() })
        };
        let hint = "the container istio-proxy of a service mesh can have closed the connection: exclude port 50051";
        assert!(of(tonic::Code::Unavailable, Some("istio-proxy")).contains(hint));
        assert!(!of(tonic::Code::Unavailable, None).contains("mesh"));
        assert!(!of(tonic::Code::InvalidArgument, Some("istio-proxy")).contains("mesh"));
    }

    #[test]
    fn an_agent_that_has_responded_before_is_unreachable_after_a_failed_call() {
        let with_status = |pod_uid: &str| {
            let status = WorkspaceStatus { pod_uid: Some(pod_uid.to_owned()), ..WorkspaceStatus::default() };
            Workspace { status: Some(status), ..Workspace::new("app", WorkspaceSpec::default()) }
        };
        let pod = |change: fn(&mut PodState)| {
            let mut pod = PodState { uid: "pod".to_owned(), running: true, ready: false, ..PodState::default() };
            change(&mut pod);
            pod
        };
        let rows = [
            ("a ready pod", pod(|pod| pod.ready = true), "other", true),
            ("a starting pod", pod(|_| ()), "other", false),
            ("the readiness probe fails", pod(|_| ()), "pod", true),
            ("the container has ended", pod(|pod| pod.running = false), "pod", false),
            (
                "the init container runs",
                pod(|pod| (pod.running, pod.fetching) = (false, Some(k8s_openapi::jiff::Timestamp::UNIX_EPOCH))),
                "other",
                true,
            ),
        ];
        for (name, pod, pod_uid, expected) in rows {
            let agent = after_failed_call(&pod, &with_status(pod_uid), "timeout".to_owned());
            assert_eq!(agent.is_silent(), expected, "{name}");
        }
    }
}

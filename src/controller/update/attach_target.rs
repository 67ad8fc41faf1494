//! Agent of a bound run, and the conditions under which a task can attach to the run.

use std::net::IpAddr;

use kube::ResourceExt;

use crate::api::auto::{RunBinding, Workspace};
use crate::api::names;
use crate::controller::update::observe::Observed;
use crate::controller::update::request;
use crate::rpc::client::AgentAddress;

/// Returns the address of the agent in the observed pod.
pub fn address(observed: &Observed) -> Option<AgentAddress> {
    let pod = observed.pod.as_ref()?;
    let ip: IpAddr = pod.status.as_ref()?.pod_ip.as_deref()?.parse().ok()?;
    let namespace = pod.namespace()?;
    let of_update = || names::workspace_server_name(&observed.update.spec.workspace_name, &namespace);
    let server_name = observed.workspace.as_ref().map_or_else(of_update, Workspace::server_name);
    Some(AgentAddress { ip, port: names::AGENT_PORT, server_name, namespace })
}

/// Returns whether a task can attach to the bound run. The task needs the address of the agent and a valid request. A
/// user can delete the Workspace of a bound run, or change its spec so that no request can be built.
pub fn can_attach(observed: &Observed, binding: &RunBinding) -> bool {
    let is_valid = |workspace: &Workspace| {
        request::run(&observed.update, workspace, binding, Vec::new(), observed.timeouts).is_ok()
    };
    address(observed).is_some() && observed.workspace.as_ref().is_some_and(is_valid)
}

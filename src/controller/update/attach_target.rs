//! Agent of a bound run.

use std::net::IpAddr;

use kube::ResourceExt;

use crate::api::auto::Workspace;
use crate::api::names;
use crate::controller::update::observe::Observed;
use crate::rpc::client::AgentAddress;

/// Returns the address of the agent in the observed pod. The address does not depend on the spec of the Workspace,
/// because a user can delete the Workspace of a bound run, or change it to an invalid spec.
pub fn address(observed: &Observed) -> Option<AgentAddress> {
    let pod = observed.pod.as_ref()?;
    let ip: IpAddr = pod.status.as_ref()?.pod_ip.as_deref()?.parse().ok()?;
    let namespace = pod.namespace()?;
    let of_update = || names::workspace_server_name(&observed.update.spec.workspace_name, &namespace);
    let server_name = observed.workspace.as_ref().map_or_else(of_update, Workspace::server_name);
    Some(AgentAddress { ip, port: names::AGENT_PORT, server_name, namespace })
}

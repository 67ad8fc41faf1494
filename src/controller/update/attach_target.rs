//! Agent of a bound run.

use std::net::IpAddr;

use kube::ResourceExt;

use crate::api::names;
use crate::controller::update::observe::Observed;
use crate::rpc::client::AgentAddress;

/// Returns the address of the agent in the observed pod. The address does not depend on the spec of the Workspace,
/// because a user can delete the Workspace of a bound run, or change it to an invalid spec.
pub fn address(observed: &Observed) -> Option<AgentAddress> {
    let pod = observed.pod.as_ref()?;
    let ip: IpAddr = pod.status.as_ref()?.pod_ip.as_deref()?.parse().ok()?;
    let namespace = pod.namespace()?;
    let pod_name = pod.name_any();
    let server_name = match pod_name.starts_with(names::POOL_POD_PREFIX) {
        true => names::pool_pod_server_name(&pod_name, &namespace),
        false => names::workspace_server_name(&observed.update.spec.workspace_name, &namespace),
    };
    Some(AgentAddress { ip, port: names::AGENT_PORT, server_name, namespace })
}

//! Configuration of the agent.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Configuration of one agent in one pod.
#[derive(Clone, Debug)]
pub struct AgentConfig {
    /// Mount path of the share volume.
    pub share: PathBuf,
    /// Directory with the certificate, the key and the CA bundle.
    pub tls_directory: PathBuf,
    /// Address on which the gRPC service listens.
    pub address: SocketAddr,
    /// Address on which the readiness endpoint listens.
    pub health_address: SocketAddr,
    /// Termination message file, which the kubelet reads after the container has ended.
    pub termination_log: PathBuf,
    pub pod_uid: String,
    pub pod_name: String,
    /// Termination grace period of the pod.
    pub termination_grace: Duration,
    /// Minimum time before the agent queries the version of the CLI on its own initiative.
    pub version_after: Duration,
}

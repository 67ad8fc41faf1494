//! What the agent has to be told.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Of one agent in one pod.
#[derive(Clone, Debug)]
pub struct AgentConfig {
    /// Where the share volume is mounted.
    pub share: PathBuf,
    /// Where certificate, key and CA bundle are mounted.
    pub tls_directory: PathBuf,
    /// Where the service listens.
    pub address: SocketAddr,
    /// Where readiness is answered.
    pub health_address: SocketAddr,
    /// The file that Kubernetes reads when the container has ended.
    pub termination_log: PathBuf,
    /// UID of the pod.
    pub pod_uid: String,
    /// Name of the pod.
    pub pod_name: String,
    /// How long the pod has from SIGTERM on, as its specification says.
    pub termination_grace: Duration,
    /// How long the agent leaves the CLI alone before it asks for its version.
    pub version_after: Duration,
}

//! Connections between the controller and the agents: messages, identities, TLS and the client.
//!
//! The agent accepts connections with [`server_tls`], and the controller calls the agent with [`client`]. The
//! controller's certificate authority ([`identity`]) issues the certificates for both sides. This module neither uses
//! Kubernetes objects nor starts processes.

mod bounds;
pub mod byte_rate;
pub mod client;
mod client_tls;
mod handshake;
pub mod identity;
#[allow(
    clippy::all,
    clippy::allow_attributes_without_reason,
    clippy::too_many_lines,
    clippy::large_futures,
    clippy::or_fun_call,
    reason = "generated code"
)]
pub mod proto {
    //! Messages and services of `protos/agent.proto`. `build.rs` generates this code.
    tonic::include_proto!("pulumi.controller.agent.v1");
}
pub mod protocol;
mod sending;
pub mod server_tls;
pub mod transcript;
mod unary_channel;

//! The service between controller and agent: messages, identities, TLS, the client.
//!
//! The agent serves on [`server_tls`], the controller calls through [`client`], and both get their certificates from
//! the controller's authority in [`identity`]. Nothing here knows a Kubernetes object or runs a process.

mod bounds;
pub mod client;
mod client_tls;
mod controller_only;
pub mod identity;
#[rustfmt::skip]
#[allow(
    clippy::all,
    clippy::allow_attributes_without_reason,
    clippy::too_many_lines,
    clippy::large_futures,
    clippy::or_fun_call,
    reason = "generated code"
)]
pub mod proto;
pub mod server_tls;
pub mod settings;
mod tls_fault;
pub mod understanding;

#[cfg(test)]
mod client_tests;
#[cfg(test)]
mod server_tls_tests;

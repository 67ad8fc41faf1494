//! The service between controller and agent: messages, identities, TLS, the client.

#[rustfmt::skip]
#[allow(clippy::all, clippy::too_many_lines, clippy::large_futures, clippy::or_fun_call, reason = "generated code")]
pub mod proto;

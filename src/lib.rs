//! The Flux controller for Pulumi: it turns Flux artifacts into Pulumi updates that run in workspace pods.
//!
//! The modules, in reading order. `ARCHITECTURE.md` explains which module may use which; `tests/modules.rs` checks it.

#![forbid(unsafe_code)]

pub mod api;
pub mod artifact;
pub mod pulumi;
pub mod subprocess;

pub mod rpc;
pub mod runtime;
pub mod source;

pub mod agent;
pub mod controller;
pub mod receiver;

pub mod cli;
pub mod config;
pub mod manager;
pub mod server;
pub mod telemetry;

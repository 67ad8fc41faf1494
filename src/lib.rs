//! Flux-native Kubernetes controller that runs Pulumi programs from Flux artifacts in workspace pods.
//!
//! The order of the modules is the recommended reading order. `ARCHITECTURE.md` describes the allowed dependencies
//! between the modules, and `tests/modules.rs` checks them.

#![forbid(unsafe_code)]

pub mod api;
pub mod artifact;
pub mod file_watch;
pub mod pulumi;
pub mod subprocess;
pub mod text;

pub mod history;
pub mod rpc;
pub mod runtime;
pub mod source;

pub mod agent;
pub mod controller;
pub mod history_api;
pub mod receiver;

pub mod cli;
pub mod config;
pub mod manager;
pub mod server;
pub mod telemetry;

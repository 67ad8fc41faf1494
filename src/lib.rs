//! Flux-native Kubernetes controller that runs Pulumi programs from Flux artifacts in workspace pods.
//!
//! The module declarations are in the recommended reading order. `ARCHITECTURE.md` describes the allowed
//! dependencies between the modules, and `tests/modules.rs` checks them.
//!
//! On macOS and Windows, the library contains only the modules of the kubectl plugin.

#![forbid(unsafe_code)]

pub mod api;
pub mod artifact;
#[cfg(target_os = "linux")]
pub mod file_watch;
#[cfg(target_os = "linux")]
pub mod http_client;
#[cfg(target_os = "linux")]
pub mod mutual_tls;
#[cfg(target_os = "linux")]
pub mod pulumi;
#[cfg(target_os = "linux")]
pub mod subprocess;
pub mod text;
pub mod view;

#[cfg(target_os = "linux")]
pub mod history;
#[cfg(target_os = "linux")]
pub mod rpc;
#[cfg(target_os = "linux")]
pub mod runtime;
#[cfg(target_os = "linux")]
pub mod source;

#[cfg(target_os = "linux")]
pub mod agent;
#[cfg(target_os = "linux")]
pub mod controller;
#[cfg(target_os = "linux")]
pub mod history_api;
#[cfg(target_os = "linux")]
pub mod receiver;
#[cfg(target_os = "linux")]
pub mod ui;

#[cfg(target_os = "linux")]
pub mod cli;
#[cfg(target_os = "linux")]
pub mod config;
#[cfg(target_os = "linux")]
pub mod manager;
#[cfg(target_os = "linux")]
pub mod server;
#[cfg(target_os = "linux")]
pub mod telemetry;

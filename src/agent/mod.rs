//! The agent in the workspace pod: receives the source, runs the Pulumi CLI and journals its runs. Only this module
//! starts the CLI.
//!
//! [`init`] is the first process and starts [`serve`], which serves the controller through [`service`]. [`source`] puts
//! sources in place; [`operations`] accepts runs, [`run`] executes one and [`journal`] records it. If init containers
//! of the user need the source, [`fetch`] receives it before the agent starts.

mod bootstrap;
mod cancellation;
mod clock;
mod command;
mod config;
mod config_values;
mod durable;
mod env_file;
mod environment;
mod event_log;
mod fetch;
mod health;
mod init;
mod inputs;
mod install;
mod interactive_session;
mod journal;
mod launch;
mod layout;
mod liveness;
mod memory;
mod mounts;
mod operations;
mod output;
mod processes;
mod redactor;
mod refusal;
mod run;
mod serve;
mod service;
mod settings;
mod source;
mod termination;
mod version;
mod workspace_lock;

pub use bootstrap::{BootstrapError, bootstrap, make_project};
pub use config::AgentConfig;
pub use fetch::{FetchConfig, fetch};
pub use init::run_as_init;
pub use launch::launch;
pub use serve::serve;

//! Inside the workspace pod: takes the source, runs the CLI, journals what it does. Only this module starts processes.
//!
//! From outside inwards: [`init`] is the first process and starts [`serve`], which answers the controller by [`service`].
//! [`source`] puts sources in place; [`operations`] accepts runs, [`run`] carries one out and [`journal`] keeps it. Where init
//! containers of the user need the source, [`fetch`] has taken it before.

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

//! Interface to the Pulumi CLI: its inputs (arguments, environment, settings files and project files) and its results
//! (event logs, outputs, failures, locks and states). This module starts no processes, does not read the clock, and
//! imports no other module of the crate.

pub mod active_update;
pub mod advice;
pub mod arguments;
pub mod backend;
pub mod cli;
mod config_path;
pub mod console;
mod document;
pub mod events;
pub mod failure;
pub mod install;
pub mod oidc;
pub mod operations;
pub mod outputs;
pub mod planned_steps;
pub mod project;
pub mod run_summary;
pub mod secret_values;
pub mod settings;
pub mod stack_name;
pub mod state;
pub mod vcs;
pub mod violations;

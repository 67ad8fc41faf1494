//! Interface to the Pulumi CLI: its inputs (arguments, environment, settings files, project files) and its results (event log,
//! outputs, failures, locks, states). Starts no process, reads no clock and depends on no other module.

pub mod advice;
pub mod arguments;
pub mod backend;
pub mod commands;
mod config_path;
pub mod console;
mod document;
pub mod environment;
pub mod events;
pub mod failure;
pub mod install;
pub mod locks;
pub mod outputs;
mod place;
pub mod project;
pub mod request_ids;
pub mod settings;
pub mod stack_name;
pub mod state;
pub mod version;

//! The engine's edge: what the Pulumi CLI is given (arguments, environment, settings documents, project files) and what it
//! gives back (event log, outputs, failures, locks, states). Pure: no process, no clock, no other module; whoever runs the CLI uses it.

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

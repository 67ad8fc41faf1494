//! Workspace controller: maintains a pod in which Pulumi runs, with the requested source in place.
//!
//! `render` builds the objects of a Workspace, `observe` reads the state, `decide` selects the next action, `act` performs
//! it, and `status` reports the result.

mod act;
mod agent_probe;
mod apply_conflicts;
mod config;
mod context;
mod controller;
mod decide;
mod environment;
mod guard;
mod init_containers;
mod input_watch;
mod metadata;
mod mounted;
mod observe;
mod parts;
mod pod;
mod pod_security;
mod pod_settings;
mod pod_state;
mod reconcile;
mod references;
mod render;
mod report;
mod repository;
mod restrictions;
mod revision;
mod security;
mod service;
mod source;
mod spec_error;
mod status;
mod tls;
mod verified_parts;
mod version;
mod warnings;

#[cfg(test)]
mod apply_conflicts_tests;
#[cfg(test)]
mod cache_tests;
#[cfg(test)]
mod decide_tests;
#[cfg(test)]
mod operator_tests;
#[cfg(test)]
mod render_tests;
#[cfg(test)]
mod source_tests;

pub use agent_probe::AgentProbes;
pub use config::{config_files, settings};
pub use context::{Context, Memory};
pub use controller::{Watches, controller};
pub use environment::run_environment;
pub use input_watch::InputWatch;
pub use pod_settings::PodSettings;
pub use pod_state::is_operators_pod;
pub use reconcile::reconcile;
pub use references::references;
pub use render::{Rendered, render};
pub use restrictions::PodRestrictions;
pub use spec_error::SpecError;

//! The reconciler of Workspaces: a pod in which Pulumi runs, with the wanted source in place.

mod environment;
mod guard;
mod pod;
mod render;
mod revision;

#[cfg(test)]
mod render_tests;

pub use environment::run_environment;
pub use render::{PodSettings, Rendered, SpecError, render};

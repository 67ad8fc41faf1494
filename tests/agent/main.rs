//! Tests of the real agent, started as its container does, with the real Pulumi CLI. Without the CLI on `PATH`, the tests
//! report that they do not run, and fail if the environment variable `CI` is set.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::string_slice,
    reason = "a missing prerequisite fails the test"
)]

mod failures;
mod faults;
mod harness;
mod inputs;
mod install;
mod interactive_session;
mod kinds;
mod limits;
mod locks;
mod loud;
mod pending;
mod power_loss;
mod processes;
mod registry;
#[path = "../required_programs/mod.rs"]
mod required_programs;
mod runs;
mod settings;
mod sources;

//! Tests of the real agent, started as its container does, with the real Pulumi CLI. Without the CLI on `PATH`, the
//! tests report that they did not run.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::string_slice,
    reason = "what helps a test fails as the test does"
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
mod runs;
mod settings;
mod sources;

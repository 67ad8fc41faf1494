//! Tests the agent with the Pulumi CLI. The tests start the agent with the same arguments as in a container. If the CLI
//! is not on the `PATH`, the tests are skipped, unless the environment variable `CI` is set. With this variable, the
//! tests fail.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::large_futures,
    clippy::string_slice,
    reason = "a missing prerequisite fails the test"
)]

mod cached_plugins;
mod failures;
mod faults;
mod harness;
mod inputs;
mod install;
mod interactive_session;
mod kinds;
mod large_output;
mod limits;
mod locks;
mod login;
mod pending;
mod plans;
mod policy_packs;
mod power_loss;
mod processes;
mod registry;
#[path = "../required_programs/mod.rs"]
mod required_programs;
mod runs;
mod settings;
mod sources;
mod stack_outputs;
mod transcripts;

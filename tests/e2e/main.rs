//! End-to-end tests on a real cluster with real Flux and the real Pulumi CLI. `make test` runs them; README.md of
//! `tests/cluster` says what the cluster is.
#![allow(
    clippy::panic,
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::large_futures,
    reason = "what a test stands on fails the test"
)]

mod api_server;
mod artifact;
mod bad_programs;
mod conditions;
mod conformance;
mod crowd;
mod deletion;
mod dependencies;
mod failure;
mod first_run;
mod harness;
mod hostile_sources;
mod identity;
mod init_containers;
mod install;
mod leader;
mod pod_failures;
mod push;
mod requests;
mod restart;
mod runs_interrupted;
mod runs_parts;
mod runs_progress;
mod runs_shared;
mod settings;
mod sources;
mod suspend;
mod upgrade;
mod workspace;

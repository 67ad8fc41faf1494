//! End-to-end tests on a real cluster with Flux and the Pulumi CLI. `make test` runs the tests, and
//! `tests/cluster/README.md` describes the cluster.
#![allow(
    clippy::panic,
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::large_futures,
    reason = "a missing prerequisite fails the test"
)]

mod admission;
mod approvals;
mod artifact;
mod backends;
mod backoff;
mod bad_programs;
mod browser;
mod by_hand;
mod cancel;
mod cloud_identity;
mod concurrency;
mod conditions;
mod conformance;
mod deletion;
mod dependencies;
mod destroy_scope;
mod documents;
mod drift;
mod duplicate_stacks;
mod examples;
mod exclusive;
mod failure;
#[path = "../fake_agent/mod.rs"]
mod fake_agent;
#[path = "../bench/fake_nodes.rs"]
mod fake_nodes;
mod first_run;
mod flux_receivers;
mod git;
mod harness;
mod history;
mod hostile_sources;
mod hygiene;
mod identity;
mod init_containers;
mod install;
mod installation;
mod kubectl_plugin;
mod kubernetes_provider;
mod languages;
#[path = "../manifest_files/mod.rs"]
mod manifest_files;
mod monitoring;
mod notifications;
mod outputs;
mod pauses;
mod pod_failures;
mod policies;
mod pool;
mod prerequisites;
mod preview;
mod programs;
#[path = "../bench/progress.rs"]
mod progress;
mod pulumi_cloud;
mod push;
mod receiver;
mod references;
mod requests;
mod runs_interrupted;
mod runs_parts;
mod runs_progress;
mod runs_shared;
mod settings;
mod sleeping;
mod sources;
mod stack_not_found;
mod surface;
mod suspend;
mod ui;
mod update_alone;
mod update_template;
mod watched_inputs;
mod workspace;
mod workspace_alone;

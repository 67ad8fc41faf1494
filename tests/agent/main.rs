//! The real agent, as its container starts it, under the real Pulumi CLI. Without the CLI on `PATH` the tests say that they
//! were not run.

mod faults;
mod harness;
mod runs;
mod sources;

//! Runs the reconcilers, caches, leader election and the agent client in one process on virtual time, against an
//! in-memory API server (`crates/kube-sim`) and simulated agents, and injects faults.
//!
//! A case is a scenario, a seed and a list of faults. Each case runs in a process of its own, and equal cases have equal
//! traces. `simulation --help` lists what this program runs.

#![allow(
    clippy::panic,
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::large_futures,
    reason = "a missing prerequisite fails the test"
)]

mod agent;
mod backend;
mod clock;
#[path = "../e2e/conformance.rs"]
#[allow(dead_code, reason = "the end-to-end tests use the rest")]
mod conformance;
mod explore;
mod faults;
mod oracles;
mod process;
mod scenarios;
mod user;
mod world;

use std::process::ExitCode;

use clap::Parser;

use explore::{Case, Detail, Suite};

/// Numbers of random worlds.
const SEEDS: u64 = 200;
const NIGHT_SEEDS: u64 = 10_000;

/// Runs the simulation. Without options, runs the cases that `make sim` runs.
#[derive(Parser)]
struct Options {
    /// Runs only this number of random worlds, and repeats some of them to compare their traces
    #[arg(long)]
    seeds: Option<u64>,
    /// First seed of the random worlds
    #[arg(long, default_value_t = 0)]
    first_seed: u64,
    /// Runs only the random world with this seed, and prints its trace
    #[arg(long)]
    seed: Option<u64>,
    /// Runs only this case, as printed after a failure, and prints its trace
    #[arg(long)]
    case: Option<String>,
    /// Runs all cases that `make sim-night` runs
    #[arg(long)]
    night: bool,
    /// Prints only the trace of the scenario with this name, without faults
    #[arg(long)]
    scenario: Option<String>,
    /// Prints all requests and all events of watches with the trace
    #[arg(long)]
    requests: bool,
    /// Prints the logs of the controller with the trace. RUST_LOG selects the logs
    #[arg(long)]
    logs: bool,
}

fn main() -> ExitCode {
    let options = Options::parse();
    if options.logs {
        tracing_subscriber::fmt().with_env_filter(tracing_subscriber::EnvFilter::from_default_env()).init();
    }
    let case = match (options.case, options.seed, options.scenario) {
        (Some(case), _, _) => Some(serde_json::from_str::<Case>(&case).expect("a case as JSON")),
        (_, Some(seed), _) => Some(Case::random(seed)),
        (_, _, Some(name)) => Some(Case { scenario: name, seed: 0, faults: Vec::new() }),
        _ => None,
    };
    let is_ok = match case {
        Some(case) => explore::replay(&case, if options.requests { Detail::Requests } else { Detail::Events }),
        None => {
            let count = options.seeds.unwrap_or(if options.night { NIGHT_SEEDS } else { SEEDS });
            let seeds = options.first_seed..options.first_seed + count;
            explore::run(&Suite { seeds, is_night: options.night, has_steps: options.seeds.is_none() })
        }
    };
    if is_ok { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

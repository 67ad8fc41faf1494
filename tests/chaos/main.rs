//! Injects faults into Stacks on a real cluster, and checks that no run is lost or repeated. `make chaos` runs this
//! suite, and docs/reliability.md lists the guarantees.
#![allow(
    clippy::panic,
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::large_futures,
    reason = "a missing prerequisite fails the test"
)]

mod approver;
mod backend;
mod checks;
mod evidence;
mod facts;
mod faults;
mod many_runs;
mod plan;
mod processes;
mod provider_log;
mod report;
mod stage;
mod storm;
mod user;

#[allow(dead_code, reason = "used by the harness")]
#[path = "../e2e/conformance.rs"]
mod conformance;
#[path = "../fake_agent/mod.rs"]
mod fake_agent;
#[path = "../bench/fake_nodes.rs"]
mod fake_nodes;
#[allow(dead_code, unused_imports, reason = "the chaos test uses a part of the harness")]
#[path = "../e2e/harness/mod.rs"]
mod harness;
#[path = "../bench/progress.rs"]
mod progress;

use std::panic::{AssertUnwindSafe, resume_unwind};
use std::time::Duration;

use futures::FutureExt;
use jiff::Timestamp;

use crate::harness::{ApiServerOutage, Controller, Scene, client, in_scene, report_skipped, run_alone};

/// Default duration of the fault injection in seconds. The environment variable `CHAOS_SECONDS` overrides the default.
const SECONDS: u64 = 120;

#[test]
fn random_faults_neither_lose_nor_duplicate_runs() {
    if !ApiServerOutage::is_possible() {
        report_skipped("chaos", "the processes of an existing cluster are not accessible");
        return;
    }
    let seed = number("CHAOS_SEED").unwrap_or_else(|| u64::from(fastrand::u32(..)));
    let length = Duration::from_secs(number("CHAOS_SECONDS").unwrap_or(SECONDS));
    println!("CHAOS_SEED={seed} CHAOS_SECONDS={} make chaos", length.as_secs());
    run_alone(async || {
        let controller = Controller::new(&client().await);
        controller.scale(2).await;
        let storm = in_scene("chaos", async |scene| run_storm(scene, &controller, seed, length).await);
        let outcome = AssertUnwindSafe(storm).catch_unwind().await;
        controller.scale(1).await;
        if let Err(failure) = outcome {
            resume_unwind(failure);
        }
    });
}

async fn run_storm(scene: &Scene, controller: &Controller, seed: u64, length: Duration) {
    let began = Timestamp::now();
    let results = storm::run(scene, controller, seed, length, began).await;
    let tally = results.tally();
    let report = tally.publish(seed, length);
    println!("report: {}", report.display());
    let is_broken = |facts: &&facts::Facts| tally.broken.iter().any(|broken| broken.stack == facts.stack);
    let timelines = results.facts.iter().filter(is_broken);
    let timelines: Vec<String> =
        timelines.map(|facts| format!("===== {}\n{}", facts.stack, storm::timeline(scene, &results, facts))).collect();
    let problems = tally.problems().join("\n");
    assert!(tally.is_good(), "runs were lost or repeated (CHAOS_SEED={seed}):\n{problems}\n{}", timelines.join("\n\n"));
}

/// Returns the number in an environment variable, or `None` if the variable is not set. Panics if the value is not a
/// number.
fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok().filter(|text| !text.is_empty())?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable}={text} is not a number")))
}

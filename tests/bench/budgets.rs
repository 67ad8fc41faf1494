//! End-to-end benchmarks with budgets, on the test cluster with the installed controller. `make bench` runs the
//! benchmarks, and docs/performance.md explains them.
#![allow(
    clippy::panic,
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::large_futures,
    clippy::cast_precision_loss,
    reason = "a missing prerequisite ends the benchmark"
)]

mod api_writes;
mod bare_crowd;
mod cold;
mod controller_metrics;
mod copies;
mod crowd;
mod delete;
mod fake_nodes;
mod fleet;
mod followers;
mod git_path;
mod idle;
mod languages;
mod memory;
mod moments;
mod parts_result;
mod path;
mod peak;
mod pod_requests;
mod processes;
mod progress;
mod push_at_rest;
mod repository;
mod shallow;
mod shards;
mod size;
mod starts;
mod table;
mod tenants;
mod wake;
mod web_ui;

#[allow(dead_code, reason = "the harness applies only a part of the rules")]
#[path = "../e2e/conformance.rs"]
mod conformance;
#[path = "../fake_agent/mod.rs"]
mod fake_agent;
#[allow(dead_code, unused_imports, reason = "the benchmarks use a part of the harness")]
#[path = "../e2e/harness/mod.rs"]
mod harness;
#[allow(dead_code, reason = "the benchmarks use a part of the helpers")]
#[path = "../git/http_server.rs"]
mod http_server;

use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};

use futures::FutureExt;

use crate::harness::run_alone;
use crate::table::{Row, publish};

/// Names of all benchmarks, in execution order.
const BENCHMARKS: [&str; 16] = [
    "size",
    "parts",
    "shallow",
    "path",
    "poll",
    "cold",
    "wake",
    "languages",
    "tenants",
    "crowd",
    "rest",
    "delete",
    "idle",
    "followers",
    "memory",
    "fleet",
];

fn main() {
    // Removes the argument `--bench`, which `cargo bench` adds.
    let mut expected: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    if let [role, url, folder] = expected.as_slice()
        && role == shallow::ROLE
    {
        return shallow::fetch(url, Path::new(folder));
    }
    if let Some(unknown) = expected.iter().find(|name| !BENCHMARKS.contains(&name.as_str())) {
        println!("unknown benchmark {unknown:?}: must be one of {}", BENCHMARKS.join(" "));
        std::process::exit(2);
    }
    if expected.is_empty() {
        expected = BENCHMARKS.map(str::to_owned).into();
    }
    let folder = PathBuf::from(std::env::var("BENCH_FOLDER").unwrap_or_else(|_| "target/bench".to_owned()));
    let mut rows = Vec::new();
    run_alone(async || {
        for (number, benchmark) in
            BENCHMARKS.iter().filter(|benchmark| expected.iter().any(|name| name == *benchmark)).enumerate()
        {
            println!("\n===== benchmark {} of {}: {benchmark}", number + 1, expected.len());
            rows.extend(run(benchmark, &expected, &folder).await);
        }
    });
    if let Err(error) = publish(&rows, &folder) {
        println!("failed to write the report to {}: {error}", folder.display());
    }
    let missed = rows.iter().filter(|row| row.met == Some(false)).count();
    if missed > 0 {
        println!("{missed} of {} budgets are missed", rows.iter().filter(|row| row.met.is_some()).count());
        std::process::exit(1);
    }
}

/// Runs a benchmark. A failed benchmark does not stop the other benchmarks.
async fn run(benchmark: &str, expected: &[String], folder: &Path) -> Vec<Row> {
    let with_rest = expected.iter().any(|name| name == "rest");
    let result = AssertUnwindSafe(async {
        match benchmark {
            "size" => vec![size::measure()],
            "parts" => parts_result::measure(),
            "shallow" => shallow::measure(folder).await,
            "path" => path::measure().await,
            "poll" => vec![git_path::measure().await],
            "cold" => vec![cold::measure().await],
            "wake" => wake::measure().await,
            "languages" => languages::measure().await,
            "tenants" => tenants::measure().await,
            "crowd" => crowd::measure(with_rest).await,
            // If the selection contains `crowd`, the benchmark `crowd` also measures `rest` with the same Stacks.
            "rest" if !expected.iter().any(|name| name == "crowd") => crowd::measure(true).await,
            "rest" => Vec::new(),
            "delete" => delete::measure().await,
            "idle" => idle::measure().await,
            "followers" => followers::measure().await,
            "fleet" => fleet::measure().await,
            _ => memory::measure().await,
        }
    })
    .catch_unwind()
    .await;
    result.unwrap_or_else(|_| vec![Row::of(benchmark, "", "failed, see above", Some(false))])
}

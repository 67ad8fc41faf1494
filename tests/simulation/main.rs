//! Runs the reconcilers, caches, leader election and the agent client in one process on virtual time, against an
//! in-memory API server (`crates/kube-sim`) and simulated agents, and injects a fault at each write and at each call.

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
mod faults;
mod scenarios;
mod world;

use std::collections::BTreeMap;
use std::time::Duration;

use faults::{Fault, Kind};
use world::World;

/// Time without faults at the end of a scenario, in which the controller must not write.
const REST: Duration = Duration::from_secs(3600);

type Scenario = (&'static str, fn(&World) -> std::pin::Pin<Box<dyn Future<Output = ()> + '_>>);

const SCENARIOS: [Scenario; 2] = [
    ("first run", |world| Box::pin(scenarios::first_run(world))),
    ("destroy", |world| Box::pin(scenarios::destroy(world))),
];

/// Runs a scenario with these faults, and returns its writes and calls.
fn run((name, scenario): Scenario, planned: &[Fault]) -> Vec<String> {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().start_paused(true).build().expect("a runtime");
    runtime.block_on(async {
        let world = World::start(1, planned);
        scenario(&world).await;
        let steps = world.faults.steps();
        let cause = format!(
            "{name} with {planned:?} at {:?}",
            planned.iter().map(|fault| steps.get(fault.number)).collect::<Vec<_>>()
        );
        assert_eq!(world.backend.violations(), Vec::<String>::new(), "{cause}");
        let mut counts: BTreeMap<(&str, String), usize> = BTreeMap::new();
        for operation in world.backend.operations() {
            *counts.entry((operation.verb, operation.resource)).or_default() += 1;
        }
        assert!(counts.values().all(|count| *count == 1), "no operation is repeated: {counts:?}, {cause}");
        tokio::time::sleep(Duration::from_secs(60)).await;
        let before = world.faults.steps().len();
        tokio::time::sleep(REST).await;
        let later = world.faults.steps();
        assert_eq!(later.len(), before, "no writes at rest: {:?}, {cause}", later.get(before..));
        steps
    })
}

#[test]
fn scenarios_without_faults() {
    for scenario in SCENARIOS {
        let started = std::time::Instant::now();
        let steps = run(scenario, &[]);
        println!("{}: {} writes and calls, {:?}", scenario.0, steps.len(), started.elapsed());
        for (number, step) in steps.iter().enumerate() {
            println!("{number:>4} {step}");
        }
    }
}

/// Each write and each call of each scenario fails in each way, once.
#[test]
fn each_step_fails_in_each_way() {
    let mut failures = Vec::new();
    let mut cases = 0;
    for scenario in SCENARIOS {
        for number in 0..run(scenario, &[]).len() {
            for kind in Kind::ALL {
                cases += 1;
                let fault = Fault { number, kind };
                if let Err(panic) = std::panic::catch_unwind(|| run(scenario, &[fault])) {
                    let message = panic.downcast_ref::<String>().cloned().unwrap_or_default();
                    failures.push(format!("{} {fault:?}: {message}", scenario.0));
                }
            }
        }
    }
    assert!(failures.is_empty(), "{} of {cases} cases failed:\n{}", failures.len(), failures.join("\n"));
    println!("{cases} cases");
}

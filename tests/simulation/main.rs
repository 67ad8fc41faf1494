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
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
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

/// Each write and each call of each scenario crashes the controller or loses its response, once.
#[test]
fn each_step_crashes_or_loses_its_response() {
    each_step(&[Kind::CrashBefore, Kind::CrashAfter, Kind::LoseReply]);
}

/// Each write and each call of each scenario is rejected, once.
#[test]
#[ignore = "takes several minutes"]
fn each_step_is_rejected() {
    each_step(&[409, 422, 429, 500].map(Kind::Reject));
}

fn each_step(kinds: &[Kind]) {
    let cases: Vec<(Scenario, Fault)> = SCENARIOS
        .into_iter()
        .flat_map(|scenario| {
            let numbers = 0..run(scenario, &[]).len();
            numbers.flat_map(move |number| kinds.iter().map(move |kind| (scenario, Fault { number, kind: *kind })))
        })
        .collect();
    let (next, failures) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = || {
        while let Some((scenario, fault)) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
            if let Err(panic) = std::panic::catch_unwind(|| run(*scenario, &[*fault])) {
                let message = panic.downcast_ref::<String>().cloned().unwrap_or_default();
                let mut failures = failures.lock().unwrap_or_else(PoisonError::into_inner);
                failures.push(format!("{} {fault:?}: {message}", scenario.0));
            }
        }
    };
    // Each world has its own thread, so the number of threads does not affect a case.
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
    let failures = failures.into_inner().unwrap_or_else(PoisonError::into_inner);
    assert!(failures.is_empty(), "{} of {} cases failed:\n{}", failures.len(), cases.len(), failures.join("\n"));
    println!("{} cases", cases.len());
}

//! Which cases run, and what a case reports.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::faults::{Disturbance, Fault, StepFault};
use super::scenarios::{SCENARIOS, Scenario};
use super::world::{self, REPLICAS, World};
use super::{clock, process};

/// Time without faults at the end of a scenario, in which the controller must not write.
const REST: Duration = Duration::from_secs(3600);
/// Time after a scenario in which the controller may complete its work. The controller polls an idle agent every two
/// minutes, and then notices that its container has restarted.
const SETTLE: Duration = Duration::from_secs(180);
/// Faults at each write and call of a scenario.
const STEP_FAULTS: [StepFault; 8] = [
    StepFault::CrashBefore,
    StepFault::CrashAfter,
    StepFault::LoseReply,
    StepFault::Reject(409),
    StepFault::Reject(422),
    StepFault::Reject(429),
    StepFault::Reject(500),
    StepFault::LoseLeadership,
];
/// Number of seeds whose traces must be equal in two runs.
const REPEATED_SEEDS: u64 = 50;

/// Cases that have found faults of the controller, as JSON. They run in each suite.
const REGRESSIONS: [&str; 1] = [
    // The result of a preview, which was lost with its pod, was a failure.
    r#"{"scenario":"two approvers","seed":185,"faults":[{"At":[3215,{"Crash":{"replica":1,"restart":14424}}]},{"At":[29775,{"LoseNode":{"duration":45460}}]},{"Step":[23,"LoseLeadership"]}]}"#,
];
/// Number of failed cases whose faults are reduced.
const MOST_SHRUNK: usize = 5;

/// Scenario with a seed and faults.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Case {
    pub scenario: String,
    /// Seed of latencies and of all random numbers of the controller.
    pub seed: u64,
    pub faults: Vec<Fault>,
}

/// What happened in a case.
#[derive(Default, Serialize, Deserialize)]
pub struct Report {
    /// Descriptions of the writes and calls, in order.
    steps: Vec<String>,
    violations: Vec<String>,
    trace: Vec<String>,
    /// Hash of everything that has happened.
    hash: u64,
    /// Virtual time at the end.
    elapsed: Duration,
}

/// Cases to run.
pub struct Suite {
    pub seeds: Range<u64>,
    /// Whether all scenarios run with a fault at each of their steps, and not only the core scenarios.
    pub is_night: bool,
    /// Whether any scenario runs with a fault at each of its steps.
    pub has_steps: bool,
}

impl Case {
    /// Returns the random world with this seed.
    pub fn random(seed: u64) -> Case {
        let mut random = fastrand::Rng::with_seed(seed);
        let scenario = random.choice(&SCENARIOS).expect("a scenario").name.to_owned();
        let count = random.usize(1..=6);
        let mut faults: Vec<Fault> =
            (0..count).map(|_| Fault::At(random.u64(0..30_000), random_disturbance(&mut random))).collect();
        if random.bool() {
            let fault = random.choice(&STEP_FAULTS).expect("a fault");
            faults.push(Fault::Step(random.usize(0..40), *fault));
        }
        Case { scenario, seed: seed + 1, faults }
    }

    /// Runs the case in this process.
    fn run(&self, detail: Detail) -> Report {
        let scenario = SCENARIOS.iter().find(|scenario| scenario.name == self.scenario);
        let scenario = scenario.unwrap_or_else(|| panic!("no scenario has the name {:?}", self.scenario));
        clock::virtualize(self.seed);
        // Cases with one fault at a step have no latencies, so that the step numbers are those of the run without faults.
        let latency = (self.seed > 0).then(|| fastrand::Rng::with_seed(self.seed));
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().start_paused(true).build().expect("a runtime");
        runtime.block_on(async {
            clock::elapsed();
            let world = World::start(self.seed, &self.faults, latency);
            if detail == Detail::Requests {
                world.faults.trace_requests();
            }
            let mut report = observe(scenario, &world).await;
            if detail != Detail::None {
                report.trace = world.faults.take_trace();
            }
            report
        })
    }
}

async fn observe(scenario: &Scenario, world: &World) -> Report {
    let (run, faults) = (scenario.run, &world.faults);
    if let Err(why) = run(world).await {
        faults.violation(&why);
    }
    let steps = faults.steps();
    world.until_healed().await;
    tokio::time::sleep(SETTLE).await;
    let before = faults.steps().len();
    faults.trace("the hour of rest begins");
    tokio::time::sleep(REST).await;
    for step in faults.steps().get(before..).unwrap_or_default() {
        faults.violation(&format!("a write at rest: {step}"));
    }
    let violations = [world.backend.violations(), faults.violations()].concat();
    Report { steps, violations, hash: faults.hash(), elapsed: clock::elapsed(), trace: Vec::new() }
}

fn random_disturbance(random: &mut fastrand::Rng) -> Disturbance {
    let replica = random.usize(0..REPLICAS);
    let duration = random.u64(1_000..60_000);
    let resources = [
        "pulumi.com/stacks",
        "auto.pulumi.com/updates",
        "auto.pulumi.com/workspaces",
        "pods",
        "apps/statefulsets",
        "pulumi.com/programs",
    ];
    let resource = (*random.choice(&resources).expect("a resource")).to_owned();
    match random.u8(0..15) {
        0 | 1 => Disturbance::Crash { replica, restart: random.u64(500..45_000) },
        2 => Disturbance::PartitionAgents { replica, duration },
        3 => Disturbance::PartitionApi { replica, duration },
        4 => Disturbance::SlowApi { replica, duration, by: random.u64(100..8_000) },
        5 => Disturbance::LeaseOutage { replica, duration },
        6 => Disturbance::DelayWatch { replica, resource, duration, by: random.u64(100..10_000) },
        7 => Disturbance::CollapseWatch { replica, resource, duration },
        8 => Disturbance::ExpireWatches { replica },
        9 => Disturbance::Freeze { replica, duration },
        10 => Disturbance::EvictPod,
        11 => Disturbance::ExitContainer,
        12 => Disturbance::BackendOutage { duration },
        13 => Disturbance::FailOperation,
        _ => Disturbance::LoseNode { duration },
    }
}

/// What the trace of a case contains.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Detail {
    None,
    /// Writes, calls, faults, and changes of the conditions of Stacks and Updates.
    Events,
    /// Also all other requests, and all events of watches.
    Requests,
}

/// Runs a case, prints its trace, and returns whether it has no violations.
pub fn replay(case: &Case, detail: Detail) -> bool {
    println!("{}", serde_json::to_string(case).expect("JSON"));
    world::kinds();
    let mut is_ok = false;
    process::run_each(
        [case],
        |case| case.run(detail),
        |_, result| {
            match &result {
                Ok(report) => {
                    report.trace.iter().for_each(|line| println!("{line}"));
                    println!("virtual time: {:?}; violations: {:#?}", report.elapsed, report.violations);
                }
                Err(panics) => println!("{panics}"),
            }
            is_ok = result.is_ok_and(|report| report.violations.is_empty());
        },
    );
    is_ok
}

/// Runs a suite, and returns whether all cases have no violations.
pub fn run(suite: &Suite) -> bool {
    let started = std::time::Instant::now();
    world::kinds();
    let mut results = Results::default();
    if suite.has_steps {
        run_steps(suite, &mut results);
    }
    let regressions = REGRESSIONS.iter().map(|case| serde_json::from_str(case).expect("a case"));
    results.run("regressions", regressions.collect());
    results.run("random worlds", suite.seeds.clone().map(Case::random).collect());
    let repeated = suite.seeds.clone().take(usize::try_from(REPEATED_SEEDS).unwrap_or_default());
    results.run("random worlds a second time", repeated.map(Case::random).collect());
    println!(
        "\ntest result: {}. {} passed; {} failed; 0 ignored; 0 measured; 0 filtered out; finished in {:.2}s",
        if results.failed.is_empty() { "ok" } else { "FAILED" },
        results.passed,
        results.failed.len(),
        started.elapsed().as_secs_f64()
    );
    println!("virtual time: {:.1} days", results.elapsed.as_secs_f64() / 86_400.0);
    results.failed.is_empty()
}

fn run_steps(suite: &Suite, results: &mut Results) {
    let plain: Vec<Case> = SCENARIOS
        .iter()
        .map(|scenario| Case { scenario: scenario.name.to_owned(), seed: 0, faults: Vec::new() })
        .collect();
    let lengths = results.run("scenarios without faults", plain);
    let selected =
        |scenario: &str| suite.is_night || SCENARIOS.iter().any(|known| known.name == scenario && known.is_core);
    let steps = lengths.iter().filter(|(case, _)| selected(&case.scenario)).flat_map(|(case, length)| {
        let scenario = &case.scenario;
        (0..*length).flat_map(move |number| {
            STEP_FAULTS.map(|fault| Case {
                scenario: scenario.clone(),
                seed: 0,
                faults: vec![Fault::Step(number, fault)],
            })
        })
    });
    results.run("each write and call, with each fault", steps.collect());
}

/// Removes the faults without which the case still fails.
fn shrink(mut case: Case) -> Case {
    loop {
        let without = |index: usize| {
            let mut fewer = case.clone();
            fewer.faults.remove(index);
            fewer
        };
        let candidates: Vec<Case> = (0..case.faults.len()).map(without).collect();
        let mut failing = None;
        process::run_each(
            candidates,
            |case| case.run(Detail::None),
            |candidate, result| {
                if result.is_ok_and(|report| !report.violations.is_empty()) {
                    failing = Some(candidate);
                }
            },
        );
        match failing {
            Some(fewer) => case = fewer,
            None => return case,
        }
    }
}

#[derive(Default)]
struct Results {
    passed: usize,
    failed: BTreeSet<String>,
    elapsed: Duration,
    /// Hash of the trace of each case.
    hashes: BTreeMap<String, u64>,
}

impl Results {
    /// Runs the cases, and returns them with the numbers of their steps.
    fn run(&mut self, name: &str, cases: Vec<Case>) -> Vec<(Case, usize)> {
        let started = std::time::Instant::now();
        let (count, failed) = (cases.len(), self.failed.len());
        let (mut lengths, mut failed_cases) = (Vec::new(), Vec::<Case>::new());
        process::run_each(
            cases,
            |case| case.run(Detail::None),
            |case, result| {
                let text = serde_json::to_string(&case).expect("JSON");
                let report = result.unwrap_or_else(|panics| Report { violations: vec![panics], ..Report::default() });
                self.elapsed += report.elapsed;
                let mut violations = report.violations;
                if self.hashes.insert(text.clone(), report.hash).is_some_and(|before| before != report.hash) {
                    violations.push("the trace differs from that of the first run".to_owned());
                }
                if violations.is_empty() {
                    self.passed += 1;
                } else {
                    println!("FAILED make sim CASE='{text}'\n    {}", violations.join("\n    "));
                    self.failed.insert(text);
                    failed_cases.push(case.clone());
                }
                lengths.push((case, report.steps.len()));
            },
        );
        for case in failed_cases.into_iter().filter(|case| case.faults.len() > 1).take(MOST_SHRUNK) {
            let shrunk = serde_json::to_string(&shrink(case)).expect("JSON");
            println!("SHRUNK make sim CASE='{shrunk}'");
        }
        let failed = self.failed.len() - failed;
        println!("{name}: {count} cases, {failed} failed, {:.1} s", started.elapsed().as_secs_f64());
        lengths
    }
}

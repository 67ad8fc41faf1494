//! Measures the controller's memory with an increasing number of Stacks. The pods are on a fake node with a fake agent.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::{StreamExt, stream};
use kube::api::PostParams;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, ResourceExt};
use pulumi_controller::api::pulumi::Stack;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::api_writes::{ApiWrites, format_counts};
use crate::copies::Original;
use crate::crowd::{controller, rest_seconds};
use crate::fake_agent::FakeAgent;
use crate::fake_nodes;
use crate::harness::{Controller, Program, Scene, api_call, is_done};
use crate::processes::Process;
use crate::progress::until_count;
use crate::push_at_rest::Pushed;
use crate::table::Row;

/// Numbers of Stacks, and the memory budget for each number in MiB.
const BUDGETS: [(usize, f64); 4] = [(1, 25.0), (60, 35.0), (1_000, 80.0), (10_000, 400.0)];
/// Duration of each run of the fake agent.
pub const RUN_TIME: Duration = Duration::from_millis(200);
/// Maximum number of Stacks that run. All further Stacks are copies of a Stack whose run is complete.
const MAX_RUNS: usize = 1_000;
/// Minimum number of reconciled copies before the measurement. After this number, the caches of a new controller are
/// complete.
const RECONCILED: usize = 500;
/// Maximum number of concurrent creations.
pub const CONCURRENCY: usize = 16;
/// Maximum time per Stack until all Stacks must be Ready. [`MIN_TIMEOUT`] is the minimum.
pub const TIMEOUT_PER_STACK: Duration = Duration::from_secs(2);
/// Minimum timeout until all Stacks must be Ready.
pub const MIN_TIMEOUT: Duration = Duration::from_secs(180);
/// Duration without writes after which the benchmark regards the controller as idle.
pub const QUIET: Duration = Duration::from_secs(30);
/// Maximum time until the controller must be idle.
pub const QUIET_TIMEOUT: Duration = Duration::from_secs(600);
/// Time during which the benchmark measures the idle controller, in seconds. This time exceeds the interval at which
/// the controller queries an idle Stack's agent.
pub const REST_SECONDS: u64 = 150;

pub async fn measure() -> Vec<Row> {
    let mut scene = Scene::new("bench-memory").await;
    scene.timeline.end();
    fake_nodes::create(&scene.client).await;
    let fake_agent =
        FakeAgent::start(scene.client.clone(), fake_nodes::address(), RUN_TIME).await.expect("a fake agent");
    let source = scene.source("app").await;
    let commit = source.push(&Program::new("bench-memory").output("text", "hello".into()).files()).await;
    let artifact = source.artifact_of(&commit).await;
    let external = scene.flux_object("ExternalArtifact", "externalartifacts", "served");
    external.create(serde_json::json!({})).await;
    external.publish(&artifact).await;
    restart(&scene).await;
    let done = Done::watch(scene.api());
    let stack_of = |number: usize| scene.stack_on_kind(&name(number), None, &external);
    let mut push_scene = Scene::new("bench-push").await;
    push_scene.timeline.end();
    let mut pushed = None;
    let (mut rows, mut there) = (Vec::new(), 0);
    for (stacks, budget) in budgets() {
        println!("\n{stacks} Stacks");
        if stacks - there <= MAX_RUNS {
            let note = run(&scene, &stack_of, &fake_agent, &done, there..stacks).await;
            rows.push(row(&scene, stacks, budget).await.with_note(note));
            rows.push(get_or_start(&mut pushed, &push_scene).await.measure_at_rest(stacks).await);
        } else {
            if there == 0 {
                run(&scene, &stack_of, &fake_agent, &done, 0..1).await;
            }
            let pushed = get_or_start(&mut pushed, &push_scene).await;
            copy(&scene, &fake_agent, there.max(1)..stacks).await;
            rows.push(measure_reconciled(&scene, &fake_agent, stacks, budget).await);
            rows.push(pushed.measure(&format!("{stacks} Stacks, after a restart"), None).await);
        }
        there = stacks;
    }
    println!("the objects remain in the namespace {} until the cluster is removed", scene.namespace);
    rows
}

/// Returns the Stack that receives pushes. The first call creates the Stack.
async fn get_or_start<'a, 'b>(pushed: &'b mut Option<Pushed<'a>>, scene: &'a Scene) -> &'b Pushed<'a> {
    if pushed.is_none() {
        *pushed = Some(Pushed::start(scene).await);
    }
    pushed.as_ref().expect("the Stack exists")
}

/// Returns the budgets for the numbers of Stacks in `BENCH_STACKS` or, by default, all budgets.
fn budgets() -> Vec<(usize, f64)> {
    match std::env::var("BENCH_STACKS") {
        Ok(text) => {
            let numbers: Vec<usize> = text.split_whitespace().map(|word| word.parse().expect("a number")).collect();
            BUDGETS.into_iter().filter(|(stacks, _)| numbers.contains(stacks)).collect()
        }
        Err(_) => BUDGETS.into(),
    }
}

/// Restarts the controller, because its memory must not include the objects of earlier measurements.
pub async fn restart(scene: &Scene) {
    let before = Controller::new(&scene.client).kill().await;
    until_count("the controller has restarted", 1, MIN_TIMEOUT, async || {
        let pods: Api<k8s_openapi::api::core::v1::Pod> = Api::namespaced(scene.client.clone(), "flux-system");
        let gone = api_call("listing pods", pods.list(&Default::default())).await;
        (usize::from(gone.items.iter().all(|pod| pod.uid().as_ref() != Some(&before))), String::new())
    })
    .await;
    Controller::new(&scene.client).until_available().await;
}

/// Creates Stacks and waits until all are Ready. Returns a summary.
pub async fn run(
    scene: &Scene,
    stack_of: &impl Fn(usize) -> Stack,
    fake_agent: &FakeAgent,
    done: &Done,
    numbers: std::ops::Range<usize>,
) -> String {
    let (stacks, began) = (numbers.end, Instant::now());
    let limit = MIN_TIMEOUT + TIMEOUT_PER_STACK * u32::try_from(numbers.len()).expect("a small number");
    let mut writes = ApiWrites::from_now();
    tokio::join!(
        create(scene, stack_of, numbers.clone()),
        until_count("Stacks are Ready", stacks, limit, async || (done.number(), fake_agent.calls())),
    );
    let (rate, made) = (numbers.len() as f64 / began.elapsed().as_secs_f64(), writes.take_new());
    let each = made.values().sum::<usize>() as f64 / numbers.len() as f64;
    format!("{rate:.1} Stacks per second became Ready, with {each:.1} writes each")
}

/// Creates Stacks that are already Ready, and then starts the controller.
async fn copy(scene: &Scene, fake_agent: &FakeAgent, numbers: std::ops::Range<usize>) {
    let controller = Controller::new(&scene.client);
    controller.scale(0).await;
    println!("creating {} copies of a Stack", numbers.len());
    let original = Original::read(scene, &name(0)).await;
    original.copy(numbers.map(name)).await;
    // The copied Stacks have already run, so their agents must report an installed source.
    fake_agent.share_source();
    controller.scale(1).await;
    controller.until_available().await;
}

/// Measures the memory during the first reconciliation of all Stacks. The controller needs more memory during this time
/// than when it is idle. With ten thousand Stacks, the first reconciliations take more than an hour because of the load
/// on the API server.
async fn measure_reconciled(scene: &Scene, fake_agent: &FakeAgent, stacks: usize, budget: f64) -> Row {
    let (before, runs) = (fake_agent.workspaces(), fake_agent.runs());
    until_count("Workspaces are reconciled", RECONCILED, MIN_TIMEOUT, async || {
        (fake_agent.workspaces() - before, fake_agent.calls())
    })
    .await;
    let process = controller(scene).await;
    let work = at_rest(process, &mut ApiWrites::from_now()).await;
    assert_eq!(fake_agent.runs(), runs, "no run is due");
    Row::of(
        &format!("controller memory (RssAnon), {stacks} Stacks, after a restart"),
        format!("{budget} MiB"),
        format!("{:.1} MiB", work.memory),
        Some(work.memory < budget),
    )
    .with_note(format!("{} Workspaces were reconciled, and no run started", fake_agent.workspaces() - before))
    .with_note(format!("peak memory (VmHWM) since the start of the process: {:.1} MiB", process.peak()))
}

pub fn name(number: usize) -> String {
    format!("stack-{number:05}")
}

/// Measures the controller's memory while all Stacks are idle.
async fn row(scene: &Scene, stacks: usize, budget: f64) -> Row {
    println!("waiting until the controller is idle");
    let mut writes = ApiWrites::from_now();
    writes.until_quiet(QUIET, QUIET_TIMEOUT).await;
    let process = controller(scene).await;
    let rest = at_rest(process, &mut writes).await;
    let number: usize = rest.written.values().sum();
    println!("{:.1} MiB; {:.1} % of a CPU at rest; {number} writes", rest.memory, rest.processor);
    Row::of(
        &format!("controller memory (RssAnon), {stacks} Stacks"),
        format!("{budget} MiB, 0 writes"),
        format!("{:.1} MiB, {number}", rest.memory),
        Some(rest.memory < budget && number == 0),
    )
    .with_note(format!("CPU usage at rest: {:.1} % of a CPU; writes: {}", rest.processor, format_counts(&rest.written)))
    .with_note(format!("memory (RssAnon) at the end of the period: {:.1} MiB", rest.last_memory))
    .with_note(format!("peak memory (VmHWM) since the start of the process: {:.1} MiB", process.peak()))
}

pub struct Rest {
    /// Maximum observed memory in MiB.
    pub memory: f64,
    /// Memory at the end of the measurement in MiB.
    pub last_memory: f64,
    /// CPU usage as a percentage of one CPU.
    pub processor: f64,
    pub written: std::collections::BTreeMap<String, usize>,
}

pub async fn at_rest(process: Process, writes: &mut ApiWrites) -> Rest {
    let seconds = rest_seconds(REST_SECONDS);
    println!("observing the controller for {seconds} s");
    let (before, mut memory) = (process.cpu_time(), 0.0_f64);
    for _ in 0..seconds {
        memory = memory.max(process.rss_anon());
        sleep(Duration::from_secs(1)).await;
    }
    let processor = 100.0 * (process.cpu_time() - before) / seconds as f64;
    Rest { memory, last_memory: process.rss_anon(), processor, written: writes.take_new() }
}

async fn create(scene: &Scene, stack_of: &impl Fn(usize) -> Stack, numbers: std::ops::Range<usize>) {
    let api: Api<Stack> = scene.api();
    stream::iter(numbers)
        .map(|number| {
            let (api, stack) = (api.clone(), fake_nodes::place(stack_of(number)));
            async move { api_call("creating a Stack", api.create(&PostParams::default(), &stack)).await }
        })
        .buffer_unordered(CONCURRENCY)
        .for_each(|_| std::future::ready(()))
        .await;
}

/// Names of the Stacks that a watch has observed as Ready. The benchmark uses a watch, because polling thousands of
/// objects would dominate the load.
pub struct Done {
    names: Arc<Mutex<BTreeSet<String>>>,
    _watch: JoinSet<()>,
}

impl Done {
    pub fn watch(api: Api<Stack>) -> Done {
        let names = Arc::new(Mutex::new(BTreeSet::new()));
        let (mut watch, done) = (JoinSet::new(), names.clone());
        let stacks = watcher(api, watcher::Config::default()).default_backoff().applied_objects();
        watch.spawn(stacks.for_each(move |stack| {
            if let Ok(stack) = stack.as_ref()
                && is_done(stack)
            {
                done.lock().unwrap_or_else(PoisonError::into_inner).insert(stack.name_any());
            }
            std::future::ready(())
        }));
        Done { names, _watch: watch }
    }

    fn number(&self) -> usize {
        self.number_with("")
    }

    /// Returns the number of these Stacks whose names start with a prefix.
    pub fn number_with(&self, prefix: &str) -> usize {
        let names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        names.iter().filter(|name| name.starts_with(prefix)).count()
    }
}

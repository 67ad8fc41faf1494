//! Measures the controller with thousands of Stacks in many namespaces. A few Stacks have real workspace pods, and the
//! other Stacks' pods are on a fake node with fake agents. The benchmark measures the idle controller's memory and CPU
//! usage, the start of a new controller, and a push to one Stack. It also measures a change to a source that many
//! Stacks share, the web UI, and three shards.

use std::cell::Cell;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures::{FutureExt, StreamExt, stream};
use kube::Api;
use kube::api::PostParams;
use pulumi_controller::api::pulumi::{SourceArtifact, Stack};
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::api_writes::{ApiWrites, format_counts};
use crate::controller_metrics::ControllerMetrics;
use crate::crowd::controller;
use crate::fake_agent::FakeAgent;
use crate::fake_nodes;
use crate::harness::{Controller, FluxObject, Program, Scene, Source, api_call, client, in_scene, run_with_cleanup};
use crate::memory::{CONCURRENCY, Done, MIN_TIMEOUT, QUIET, RUN_TIME, TIMEOUT_PER_STACK, at_rest, restart};
use crate::path;
use crate::progress::{until_count, wait_for_count};
use crate::push_at_rest::Pushed;
use crate::shards;
use crate::starts::Starts;
use crate::table::Row;
use crate::web_ui;

/// Default number of Stacks, which `FLEET_STACKS` overrides.
const STACKS: usize = 10_000;
const STACKS_PER_NAMESPACE: usize = 50;
const MAX_NAMESPACES: usize = 200;
const STACKS_PER_SOURCE: usize = 20;
const MAX_SOURCES: usize = 500;
/// Number by which the benchmark divides the number of Stacks. The quotient is the number of Stacks that use the shared
/// source, unless `FLEET_SHARED` overrides it.
const SHARED_PART: usize = 10;
/// Number of Stacks that have real workspace pods.
const REAL: usize = 6;
/// Number of sources that change while no controller runs.
const PUSHES: usize = 5;
/// Name prefix of the Stacks.
const PREFIX: &str = "fleet-";

/// Budget for the idle controller's memory, in MiB.
const MEMORY_BUDGET: f64 = 250.0;
/// Budget for the idle controller's CPU usage, in percent of one CPU.
const PROCESSOR_BUDGET: f64 = 5.0;
/// Budget for the time until a new controller has started the runs for all pushes, in seconds.
const START_BUDGET: f64 = 60.0;
/// Budget for the number of API server requests that a new controller sends per Stack.
const REQUESTS_BUDGET: f64 = 3.0;
/// Budget for the duration of the push steps that the controller executes, in seconds.
const PUSH_BUDGET: f64 = 1.0;
/// Budget for the number of API writes per run.
const WRITES_BUDGET: f64 = 12.0;

/// Maximum time until a new controller must have started the runs for all pushes. The timeout exceeds the budget, so
/// the benchmark can measure a missed budget.
const START_TIMEOUT: Duration = Duration::from_secs(1800);
/// Maximum time until the controller must be idle after all Stacks have been created.
const QUIET_TIMEOUT: Duration = Duration::from_secs(3600);
/// Interval between two reads of the metrics, which contain series for each Stack.
const METRICS_INTERVAL: Duration = Duration::from_secs(5);

/// Numbers of objects.
#[derive(Clone, Copy, Debug)]
struct Size {
    stacks: usize,
    namespaces: usize,
    sources: usize,
    /// Number of Stacks that use the shared source, which is the first source.
    shared: usize,
    real: usize,
}

impl Size {
    fn of(stacks: usize, shared: Option<usize>) -> Size {
        Size {
            stacks,
            namespaces: (stacks / STACKS_PER_NAMESPACE).clamp(1, MAX_NAMESPACES),
            sources: (stacks / STACKS_PER_SOURCE).clamp(2, MAX_SOURCES),
            shared: shared.unwrap_or(stacks / SHARED_PART).min(stacks),
            real: REAL.min(stacks / 2),
        }
    }

    /// Returns the index of a Stack's source.
    fn source_of(&self, stack: usize) -> usize {
        if stack < self.shared { 0 } else { 1 + stack % (self.sources - 1) }
    }

    /// Returns the index of a source's namespace.
    fn namespace_of_source(&self, source: usize) -> usize {
        source % self.namespaces
    }

    /// Returns the index of a Stack's namespace. The Stacks with the shared source are in all namespaces.
    fn namespace_of(&self, stack: usize) -> usize {
        if stack < self.shared { stack % self.namespaces } else { self.namespace_of_source(self.source_of(stack)) }
    }

    /// Returns whether a Stack has a real pod. The last Stacks have real pods.
    fn is_real(&self, stack: usize) -> bool {
        stack >= self.stacks - self.real
    }

    /// Returns the timeout for an operation on all Stacks.
    fn timeout(&self) -> Duration {
        MIN_TIMEOUT + TIMEOUT_PER_STACK * u32::try_from(self.stacks).expect("a small number")
    }
}

pub async fn measure() -> Vec<Row> {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse().expect("a number of Stacks"));
    let stacks = number("FLEET_STACKS").unwrap_or(STACKS);
    let size = Size::of(stacks, number("FLEET_SHARED"));
    println!("{size:?}");
    let client = client().await;
    fake_nodes::create(&client).await;
    let fake_agent = FakeAgent::start(client.clone(), fake_nodes::address(), RUN_TIME).await.expect("a fake agent");
    let controller = Controller::new(&client);
    let arguments = controller.arguments().await;
    let mut rows = Vec::new();
    let measured = async || {
        // Stacks in all namespaces refer to the shared source, so the controller must permit references to other
        // namespaces.
        let open = [arguments.as_slice(), &["--no-cross-namespace-refs=false".to_owned()]].concat();
        controller.start_with(&open, 1).await;
        let scenes = create_scenes(size.namespaces).await;
        let fleet = Fleet::create(size, &scenes, &fake_agent, &controller).await;
        rows.extend(fleet.measure().await);
        rows.extend(attempt("web UI", web_ui::measure(&scenes[0], stacks, &controller, &open)).await);
        rows.extend(attempt("three shards", shards::measure(stacks, &controller, &open)).await);
        println!("the objects remain in the namespaces of the fleet until the cluster is removed");
    };
    run_with_cleanup(measured, async || controller.start_with(&arguments, 1).await).await;
    rows
}

/// Returns and prints the table rows for a measurement. A failure does not stop the other measurements, because
/// creating the Stacks takes a long time.
async fn attempt(name: &str, measuring: impl Future<Output = Vec<Row>>) -> Vec<Row> {
    println!("\nmeasuring: {name}");
    let measured = AssertUnwindSafe(measuring).catch_unwind().await;
    let rows = measured.unwrap_or_else(|_| vec![Row::of(name, "", "failed, see above", Some(false))]);
    rows.iter().for_each(|row| println!("{}: {}", row.name, row.measured));
    rows
}

/// Creates the namespaces. The harness does not record the states of the objects in these namespaces.
async fn create_scenes(namespaces: usize) -> Vec<Scene> {
    let mut scenes = Vec::new();
    for number in 1..=namespaces {
        let mut scene = Scene::new("bench-fleet").await;
        scene.timeline.end();
        scenes.push(scene);
        if number.is_multiple_of(50) {
            println!("created {number} of {namespaces} namespaces");
        }
    }
    scenes
}

fn name(number: usize) -> String {
    format!("{PREFIX}{number:05}")
}

/// All Stacks and their sources.
struct Fleet<'a> {
    size: Size,
    scenes: &'a [Scene],
    sources: Vec<FluxObject<'a>>,
    /// Repository whose artifacts the sources provide.
    program: Source<'a>,
    fake_agent: &'a FakeAgent,
    controller: &'a Controller,
}

impl<'a> Fleet<'a> {
    /// Creates the sources, and then the Stacks.
    async fn create(
        size: Size,
        scenes: &'a [Scene],
        fake_agent: &'a FakeAgent,
        controller: &'a Controller,
    ) -> Fleet<'a> {
        let program = scenes[0].source("app").await;
        let mut fleet = Fleet { size, scenes, sources: Vec::new(), program, fake_agent, controller };
        let artifact = fleet.push("start").await;
        for number in 0..size.sources {
            let scene = &scenes[size.namespace_of_source(number)];
            let source = scene.flux_object("ExternalArtifact", "externalartifacts", &format!("source-{number:03}"));
            source.create(json!({})).await;
            source.publish(&artifact).await;
            fleet.sources.push(source);
        }
        println!("created {} sources", size.sources);
        fleet.create_stacks().await;
        fleet
    }

    async fn create_stacks(&self) {
        let (size, began) = (self.size, Instant::now());
        let done = Done::watch(Api::all(self.scenes[0].client.clone()));
        let creating = stream::iter(0..size.stacks)
            .map(|number| async move {
                let (scene, stack) = (&self.scenes[size.namespace_of(number)], self.stack(number));
                api_call("creating a Stack", scene.api::<Stack>().create(&PostParams::default(), &stack)).await
            })
            .buffer_unordered(CONCURRENCY)
            .for_each(|_| std::future::ready(()));
        let state = async || (done.number_with(PREFIX), self.fake_agent.calls());
        tokio::join!(creating, until_count("Stacks are Ready", size.stacks, size.timeout(), state));
        println!("{:.1} Stacks per second became Ready", size.stacks as f64 / began.elapsed().as_secs_f64());
    }

    fn stack(&self, number: usize) -> Stack {
        let (size, source) = (self.size, self.size.source_of(number));
        let scene = &self.scenes[size.namespace_of(number)];
        let mut stack = scene.stack_on_kind(&name(number), None, &self.sources[source]);
        if let Some(reference) = &mut stack.spec.flux_source {
            reference.source_ref.namespace = Some(self.scenes[size.namespace_of_source(source)].namespace.clone());
        }
        if size.is_real(number) { stack } else { fake_nodes::place(stack) }
    }

    /// Pushes a commit with a changed program, and returns its artifact.
    async fn push(&self, text: &str) -> SourceArtifact {
        let program = Program::new("bench-fleet").output("text", text.into());
        self.program.artifact_of(&self.program.push(&program.files()).await).await
    }

    async fn measure(&self) -> Vec<Row> {
        let mut rows = attempt("controller at rest", self.measure_rest()).await;
        rows.extend(attempt("first reconciliation", self.measure_first_reconciliation()).await);
        rows.extend(attempt("pushes during a restart", self.measure_pushes_during_restart()).await);
        rows.extend(attempt("shared source", self.measure_shared_source()).await);
        rows.extend(attempt("push with many Stacks", self.measure_push()).await);
        rows
    }

    /// Waits until the controller is idle, and returns a counter of later writes.
    async fn until_quiet(&self) -> ApiWrites {
        println!("waiting until the controller is idle");
        let mut writes = ApiWrites::from_now();
        writes.until_quiet(QUIET, QUIET_TIMEOUT).await;
        writes
    }

    async fn measure_rest(&self) -> Vec<Row> {
        let mut writes = self.until_quiet().await;
        let process = controller(&self.scenes[0]).await;
        let rest = at_rest(process, &mut writes).await;
        let Size { stacks, namespaces, sources, .. } = self.size;
        let of = format!("{stacks} Stacks, {namespaces} namespaces, {sources} sources");
        let memory = Row::of(
            &format!("controller memory (RssAnon) at rest, {of}"),
            format!("{MEMORY_BUDGET} MiB"),
            format!("{:.1} MiB", rest.memory),
            Some(rest.memory <= MEMORY_BUDGET),
        )
        .with_note(format!("resident memory (RSS): {:.1} MiB; peak (VmHWM): {:.1} MiB", process.rss(), process.peak()))
        .with_note(format!("writes at rest: {}", format_counts(&rest.written)));
        let processor = Row::of(
            "CPU usage of the controller at rest",
            format!("{PROCESSOR_BUDGET} %"),
            format!("{:.1} %", rest.processor),
            Some(rest.processor <= PROCESSOR_BUDGET),
        );
        vec![memory, processor]
    }

    /// Restarts the controller, and measures the first reconciliation of all Stacks and Workspaces.
    async fn measure_first_reconciliation(&self) -> Vec<Row> {
        let (size, began) = (self.size, Instant::now());
        self.fake_agent.forget_called();
        restart(&self.scenes[0]).await;
        let called = async || (self.fake_agent.called(), self.fake_agent.calls());
        let expected = size.stacks - size.real;
        wait_for_count("Workspaces are reconciled", expected, size.timeout(), called).await;
        let end = began + size.timeout();
        let metrics = loop {
            let metrics = ControllerMetrics::read(self.controller).await;
            let reconciled = metrics.reconciled_stacks();
            if reconciled >= size.stacks || Instant::now() > end {
                break metrics;
            }
            println!("the controller has reconciled {reconciled} of {} Stacks", size.stacks);
            sleep(METRICS_INTERVAL).await;
        };
        let (took, each) = (began.elapsed().as_secs_f64(), metrics.api_requests() / size.stacks as f64);
        let process = controller(&self.scenes[0]).await;
        let requests = Row::of(
            "requests of a new controller to the API server per Stack",
            REQUESTS_BUDGET.to_string(),
            format!("{each:.1}"),
            Some(each <= REQUESTS_BUDGET),
        )
        .with_note(format!("reconciled {} Workspaces with fake agents", self.fake_agent.called()))
        .with_note(format!("peak memory (VmHWM) of the new controller: {:.1} MiB", process.peak()));
        let duration = Row::of("controller killed → all Stacks reconciled", "", format!("{took:.0} s"), None);
        vec![requests, duration]
    }

    /// Changes some sources while no controller runs, and measures the time until a new controller has started the runs
    /// for these sources.
    async fn measure_pushes_during_restart(&self) -> Vec<Row> {
        self.until_quiet().await;
        let size = self.size;
        let step = ((size.sources - 1) / PUSHES).max(1);
        let chosen: Vec<usize> = (1..size.sources).step_by(step).take(PUSHES).collect();
        let expected = (0..size.stacks).filter(|stack| chosen.contains(&size.source_of(*stack))).count();
        let artifact = self.push("during a restart").await;
        let starts = Starts::watch(&self.scenes[0].client, &artifact.revision);
        let began = Instant::now();
        self.controller.kill().await;
        for number in &chosen {
            self.sources[*number].publish(&artifact).await;
        }
        let state = async || (starts.number(), self.fake_agent.calls());
        let (found, _) = wait_for_count("runs of the pushes have started", expected, START_TIMEOUT, state).await;
        let took = began.elapsed().as_secs_f64();
        let of = format!("{} pushes to {expected} Stacks", chosen.len());
        let row = Row::of(
            &format!("controller killed → last run of {of} started"),
            format!("{START_BUDGET} s"),
            if found < expected { format!("{found} runs in {took:.0} s") } else { format!("{took:.1} s") },
            Some(found >= expected && took <= START_BUDGET),
        );
        vec![row]
    }

    /// Changes the source that many Stacks share, and measures the runs of these Stacks.
    async fn measure_shared_source(&self) -> Vec<Row> {
        let mut writes = self.until_quiet().await;
        let Size { shared, namespaces, .. } = self.size;
        let process = controller(&self.scenes[0]).await;
        let (before, peak) = (process.rss_anon(), Cell::new(0.0_f64));
        let artifact = self.push("shared").await;
        let starts = Starts::watch(&self.scenes[0].client, &artifact.revision);
        let began = Instant::now();
        self.sources[0].publish(&artifact).await;
        let state = async || {
            peak.set(peak.get().max(process.rss_anon()));
            (starts.complete(), format!("{} runs have started; {}", starts.number(), self.fake_agent.calls()))
        };
        let (found, _) =
            wait_for_count("runs of the shared source are complete", shared, self.size.timeout(), state).await;
        let took = began.elapsed().as_secs_f64();
        // After an Update is complete, the controller also writes the result to the Stack.
        let written = writes.take_until_quiet(QUIET, QUIET_TIMEOUT).await;
        let each = written.values().sum::<usize>() as f64 / found.max(1) as f64;
        let of = format!("{shared} Stacks with one source, {namespaces} namespaces");
        vec![
            Row::of(
                &format!("writes to the API per run, {of}"),
                WRITES_BUDGET.to_string(),
                format!("{each:.1}"),
                Some(each <= WRITES_BUDGET && found >= shared),
            )
            .with_note(format!("{found} of {shared} runs in {took:.0} s; writes: {}", format_counts(&written))),
            Row::of(
                "order of these runs: maximum difference between two namespaces",
                "",
                format!("{} runs", starts.spread()),
                None,
            ),
            Row::of("controller memory (RssAnon) during these runs", "", format!("{:.1} MiB", peak.get()), None)
                .with_note(format!("{before:.1} MiB before the change")),
        ]
    }

    /// Measures a push to one Stack with a fake agent, and to one Stack with a real pod.
    async fn measure_push(&self) -> Vec<Row> {
        self.until_quiet().await;
        let others = format!("{} Stacks at rest", self.size.stacks);
        let mut rows = Vec::new();
        in_scene("bench-fleet-push", async |scene| {
            let pushed = Pushed::start(scene).await;
            rows.push(pushed.measure(&others, Some(PUSH_BUDGET)).await);
        })
        .await;
        for mut row in path::measure().await {
            row.name = format!("{}, {others}", row.name);
            rows.push(row);
        }
        rows
    }
}

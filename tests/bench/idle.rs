//! Measures many Stacks with sleeping Workspaces: the total pod requests, and the controller's cost. The pods are on a
//! fake node with a fake agent.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, ResourceExt};
use pulumi_controller::api::auto::Workspace;
use pulumi_controller::api::pulumi::Stack;
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::api_writes::{ApiWrites, format_counts};
use crate::controller_metrics::ControllerMetrics;
use crate::crowd::controller;
use crate::fake_agent::FakeAgent;
use crate::fake_nodes;
use crate::followers::remove;
use crate::harness::{Controller, FluxObject, Program, Scene, api_call};
use crate::memory::{Done, QUIET, QUIET_TIMEOUT, RUN_TIME, at_rest, name, restart, run};
use crate::pod_requests::Requests;
use crate::progress::until_count;
use crate::table::Row;

/// Default number of Stacks, which `IDLE_STACKS` overrides.
const STACKS: usize = 1_000;
/// Value of `idle.after` for each Workspace, which is the minimum that the controller permits.
const IDLE_AFTER: &str = "1m";
/// Budget for the total CPU requests of all pods including the controller, in cores.
const PROCESSOR_BUDGET: f64 = 1.0;
/// Budget for the total memory requests of all pods including the controller, in MiB.
const MEMORY_BUDGET: f64 = 4096.0;
/// Maximum time until all Workspaces must sleep. The controller checks each Workspace every two minutes.
const SLEEP_TIMEOUT: Duration = Duration::from_secs(1800);

pub async fn measure() -> Vec<Row> {
    let stacks = std::env::var("IDLE_STACKS").ok().map_or(STACKS, |text| text.parse().expect("a number of Stacks"));
    let mut scene = Scene::new("bench-idle").await;
    scene.timeline.end();
    fake_nodes::create(&scene.client).await;
    let fake_agent =
        FakeAgent::start(scene.client.clone(), fake_nodes::address(), RUN_TIME).await.expect("a fake agent");
    let rows = measure_asleep(&scene, stacks, &fake_agent).await;
    remove(scene, stacks).await;
    rows
}

async fn measure_asleep(scene: &Scene, stacks: usize, fake_agent: &FakeAgent) -> Vec<Row> {
    let source = scene.source("app").await;
    let commit = source.push(&Program::new("bench-idle").output("text", "hello".into()).files()).await;
    let artifact = source.artifact_of(&commit).await;
    let external = scene.flux_object("ExternalArtifact", "externalartifacts", "served");
    external.create(json!({})).await;
    external.publish(&artifact).await;
    restart(scene).await;
    let (done, asleep) = (Done::watch(scene.api()), Asleep::watch(scene.api()));
    run(scene, &|number: usize| stack(scene, &external, number), fake_agent, &done, 0..1).await;
    // The pod still exists, because the idle time of the first Workspace has not expired.
    let awake = Requests::of(&scene.list::<Pod>().await);
    let note = run(scene, &|number: usize| stack(scene, &external, number), fake_agent, &done, 1..stacks).await;
    until_count("Workspaces are asleep", stacks, SLEEP_TIMEOUT, async || (asleep.number(), fake_agent.calls())).await;
    let pods: Api<Pod> = scene.api();
    until_count("no Workspace has a pod", 1, SLEEP_TIMEOUT, async || {
        let left = api_call("counting pods", pods.list_metadata(&ListParams::default())).await.items.len();
        (usize::from(left == 0), format!("{left} pods remain"))
    })
    .await;
    let mut rows = vec![requests(scene, stacks, awake).await.with_note(note)];
    rows.extend(controller_at_rest(scene, stacks).await);
    rows
}

/// Returns a Stack whose Workspace has the default requests and falls asleep when idle.
fn stack(scene: &Scene, external: &FluxObject<'_>, number: usize) -> Stack {
    let mut stack = scene.stack_on_kind(&name(number), None, external);
    if let Some(template) = &mut stack.spec.workspace_template {
        template["spec"]["idle"] = json!({"after": IDLE_AFTER});
        template["spec"]["resources"] = json!({});
    }
    stack
}

/// Returns the table row for the requests of all pods. `awake` contains the pod requests for one Workspace that is
/// awake.
async fn requests(scene: &Scene, stacks: usize, awake: Requests) -> Row {
    let asleep = Requests::of(&scene.list::<Pod>().await);
    let controller = Requests::of(&Controller::new(&scene.client).pods().await);
    let total = asleep.plus(controller);
    let number = stacks as f64;
    let all_awake = Requests { processor: awake.processor * number, memory: awake.memory * number };
    Row::of(
        &format!("requests of {stacks} Stacks at rest, with the controller"),
        format!("{PROCESSOR_BUDGET} core, {:.0} GiB", MEMORY_BUDGET / 1024.0),
        total.to_string(),
        Some(total.processor < PROCESSOR_BUDGET && total.memory < MEMORY_BUDGET),
    )
    .with_note(format!("the pods of the Stacks: {asleep}; the controller: {controller}"))
    .with_note(format!("the same Stacks with a pod each: {all_awake}, without the controller"))
}

/// Returns the table rows for the controller while all Workspaces sleep.
async fn controller_at_rest(scene: &Scene, stacks: usize) -> Vec<Row> {
    println!("waiting until the controller is idle");
    let mut writes = ApiWrites::from_now();
    writes.until_quiet(QUIET, QUIET_TIMEOUT).await;
    let (handle, process) = (Controller::new(&scene.client), controller(scene).await);
    let (before, began) = (ControllerMetrics::read(&handle).await.api_requests(), Instant::now());
    let rest = at_rest(process, &mut writes).await;
    let requests = ControllerMetrics::read(&handle).await.api_requests() - before;
    let per_minute = 60.0 * requests / began.elapsed().as_secs_f64();
    let number: usize = rest.written.values().sum();
    let of = format!("{stacks} Stacks asleep");
    vec![
        Row::of(
            &format!("controller memory (RssAnon), {of}"),
            "0 writes",
            format!("{:.1} MiB, {number}", rest.memory),
            Some(number == 0),
        )
        .with_note(format!("writes: {}", format_counts(&rest.written))),
        Row::of(
            &format!("requests of the controller to the API server per minute, {of}"),
            "",
            format!("{per_minute:.0}"),
            None,
        )
        .with_note(format!("CPU usage at rest: {:.1} % of a CPU", rest.processor)),
    ]
}

/// Names of the sleeping Workspaces that a watch has observed.
struct Asleep {
    names: Arc<Mutex<BTreeSet<String>>>,
    _watch: JoinSet<()>,
}

impl Asleep {
    fn watch(api: Api<Workspace>) -> Asleep {
        let names = Arc::<Mutex<BTreeSet<String>>>::default();
        let (mut watch, asleep) = (JoinSet::new(), names.clone());
        let workspaces = watcher(api, watcher::Config::default()).default_backoff().applied_objects();
        watch.spawn(workspaces.for_each(move |workspace| {
            if let Ok(workspace) = workspace.as_ref() {
                let mut names = asleep.lock().unwrap_or_else(PoisonError::into_inner);
                match workspace.is_asleep() {
                    true => names.insert(workspace.name_any()),
                    false => names.remove(&workspace.name_any()),
                };
            }
            std::future::ready(())
        }));
        Asleep { names, _watch: watch }
    }

    fn number(&self) -> usize {
        self.names.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

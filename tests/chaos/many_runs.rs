//! Tests the controller with five hundred open runs. These runs do not delay other runs, a restarted controller
//! attaches to all open runs, and the controller records each result once. One run in ten has an agent of an older
//! version.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::{FutureExt, StreamExt, stream};
use kube::api::{DeleteParams, PostParams};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, ResourceExt};
use pulumi_controller::api::auto::Update;
use pulumi_controller::api::pulumi::Stack;
use serde_json::json;
use tokio::task::JoinSet;

use crate::fake_agent::{Behavior, FakeAgent};
use crate::fake_nodes;
use crate::harness::{
    ApiServerOutage, Controller, FluxObject, Program, Scene, api_call, client, in_scene, is_done, report_skipped,
    run_alone,
};
use crate::progress::until_count;

const RUNS: usize = 500;
/// Duration of a run. The runs would last longer than the test, so the test must complete all runs itself.
const RUN_TIME: Duration = Duration::from_secs(3600);
/// Maximum number of objects that the test creates or deletes concurrently.
const CONCURRENCY: usize = 16;
/// Timeout of each step with all five hundred Stacks.
const TIMEOUT: Duration = Duration::from_secs(400);
/// Name prefix of the Stacks with the fake agent.
const PREFIX: &str = "many-";

#[test]
fn five_hundred_open_runs_block_no_stack_and_survive_a_restart() {
    if !ApiServerOutage::is_possible() {
        report_skipped("five hundred open runs", "an existing cluster has no fake nodes");
        return;
    }
    run_alone(async || {
        let client = client().await;
        let controller = Controller::new(&client);
        let before = controller.arguments().await;
        let limits = [
            "--max-concurrent-runs=600",
            "--max-concurrent-runs-per-namespace=600",
            "--max-concurrent-runs-per-node=600",
        ];
        let limits = limits.map(str::to_owned);
        controller.start_with(&[before.as_slice(), &limits].concat(), 1).await;
        let test = in_scene("many-runs", async |scene| many_runs(scene, &controller).await);
        let outcome = AssertUnwindSafe(test).catch_unwind().await;
        controller.start_with(&before, 1).await;
        if let Err(failure) = outcome {
            resume_unwind(failure);
        }
    });
}

async fn many_runs(scene: &Scene, controller: &Controller) {
    fake_nodes::create(&scene.client).await;
    let behavior =
        |workspace: &str| Behavior { run_time: RUN_TIME, is_older: workspace.ends_with('7'), ..Behavior::default() };
    let fake_agent =
        FakeAgent::start_with(scene.client.clone(), fake_nodes::address(), behavior).await.expect("a fake agent");
    let runs = Runs::watch(scene.api());

    // This Stack has a real agent in a pod on the real node.
    let prompt_source = scene.source("prompt").await;
    let with_text = |text: &str| Program::new("prompt").step("step", json!({"value": text}));
    let first = prompt_source.push(&with_text("one").files()).await;
    let prompt = scene.start(scene.stack("prompt", &prompt_source)).await;
    prompt.until_applied(&first).await;

    let served = create_source(scene).await;
    tokio::join!(
        create(scene, &served),
        until_count("runs are open", RUNS, TIMEOUT, async || (runs.open(), fake_agent.calls())),
    );
    until_count("runs are attached", RUNS, TIMEOUT, async || (fake_agent.attached(), fake_agent.calls())).await;
    let second = prompt_source.push(&with_text("two").files()).await;
    prompt.until_applied(&second).await;
    assert_eq!(runs.open(), RUNS, "a change to another Stack ran while all runs were open");

    let followed = fake_agent.attachments();
    controller.kill().await;
    controller.until_available().await;
    let again = || usize::try_from(fake_agent.attachments() - followed).unwrap_or(usize::MAX);
    until_count("runs are attached again", RUNS, TIMEOUT, async || (again(), fake_agent.calls())).await;
    until_count("runs are attached", RUNS, TIMEOUT, async || (fake_agent.attached(), fake_agent.calls())).await;
    assert_eq!(runs.open(), RUNS, "no run ended when the controller restarted");
    let third = prompt_source.push(&with_text("three").files()).await;
    prompt.until_applied(&third).await;

    fake_agent.finish_all();
    until_count("runs have ended", RUNS, TIMEOUT, async || (runs.ended(), fake_agent.calls())).await;
    let acknowledged = || usize::try_from(fake_agent.acknowledged()).unwrap_or(usize::MAX);
    until_count("results are acknowledged", RUNS, TIMEOUT, async || (acknowledged(), fake_agent.calls())).await;
    until_count("Stacks are Ready", RUNS, TIMEOUT, async || (ready(scene).await, String::new())).await;
    assert_eq!(runs.recorded_twice(), Vec::<String>::new(), "each result is recorded once");
    assert_eq!((fake_agent.runs(), fake_agent.acknowledged()), (RUNS as u64, RUNS as u64), "each run started once");
    remove(scene).await;
}

/// Creates the source that all Stacks share.
async fn create_source(scene: &Scene) -> FluxObject<'_> {
    let source = scene.source("app").await;
    let commit = source.push(&Program::new("many-runs").output("text", "hello".into()).files()).await;
    let artifact = source.artifact_of(&commit).await;
    let external = scene.flux_object("ExternalArtifact", "externalartifacts", "served");
    external.create(json!({})).await;
    external.publish(&artifact).await;
    external
}

async fn create(scene: &Scene, source: &FluxObject<'_>) {
    let api: Api<Stack> = scene.api();
    stream::iter(0..RUNS)
        .map(|number| {
            let stack = fake_nodes::place(scene.stack_on_kind(&format!("{PREFIX}{number:03}"), None, source));
            let api = api.clone();
            async move { api_call("creating a Stack", api.create(&PostParams::default(), &stack)).await }
        })
        .buffer_unordered(CONCURRENCY)
        .for_each(|_| std::future::ready(()))
        .await;
}

async fn ready(scene: &Scene) -> usize {
    let stacks = scene.list::<Stack>().await;
    stacks.iter().filter(|stack| stack.name_any().starts_with(PREFIX) && is_done(stack)).count()
}

/// Deletes the Stacks individually, because deleting five hundred Stacks at once would exceed the scene's timeout and
/// the timeout of a single API call.
async fn remove(scene: &Scene) {
    let (api, how) = (scene.api::<Stack>(), DeleteParams::default());
    stream::iter(scene.list::<Stack>().await)
        .map(|stack| {
            let (api, how) = (api.clone(), how.clone());
            async move { drop(api_call("deleting a Stack", api.delete(&stack.name_any(), &how)).await) }
        })
        .buffer_unordered(CONCURRENCY)
        .for_each(|()| std::future::ready(()))
        .await;
    until_count("all Stacks are deleted", 1, TIMEOUT, async || {
        let left = scene.list::<Stack>().await.len();
        (usize::from(left == 0), format!("{left} Stacks remain"))
    })
    .await;
}

/// Observed runs of the Stacks with the fake agent. A watch observes the runs, because polling hundreds of objects
/// would dominate the load.
struct Runs {
    seen: Arc<Mutex<BTreeMap<String, Seen>>>,
    _watch: JoinSet<()>,
}

/// Observed states of an Update.
#[derive(Default)]
struct Seen {
    is_bound: bool,
    /// All results that the watch has observed in the status.
    ends: BTreeSet<String>,
}

impl Runs {
    fn watch(api: Api<Update>) -> Runs {
        let seen: Arc<Mutex<BTreeMap<String, Seen>>> = Arc::default();
        let (mut watch, all) = (JoinSet::new(), seen.clone());
        let updates = watcher(api, watcher::Config::default()).default_backoff().applied_objects();
        watch.spawn(updates.for_each(move |update| {
            if let Ok(update) = update.as_ref()
                && update.spec.workspace_name.starts_with(PREFIX)
            {
                let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
                let seen = all.entry(update.name_any()).or_default();
                let status = update.status.clone().unwrap_or_default();
                seen.is_bound |= status.run.is_some();
                if update.is_complete() {
                    seen.ends.insert(format!("{:?} {:?}", status.end_time, status.message));
                }
            }
            std::future::ready(())
        }));
        Runs { seen, _watch: watch }
    }

    fn count(&self, predicate: impl Fn(&Seen) -> bool) -> usize {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).values().filter(|seen| predicate(seen)).count()
    }

    fn open(&self) -> usize {
        self.count(|seen| seen.is_bound && seen.ends.is_empty())
    }

    fn ended(&self) -> usize {
        self.count(|seen| !seen.ends.is_empty())
    }

    fn recorded_twice(&self) -> Vec<String> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.iter()
            .filter(|(_, seen)| seen.ends.len() > 1)
            .map(|(name, seen)| format!("{name}: {:?}", seen.ends))
            .collect()
    }
}

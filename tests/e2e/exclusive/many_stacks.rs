//! Tests a controller restart with many idle Stacks, on a fake node with a fake agent.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Duration;

use futures::{StreamExt, stream};
use kube::api::{DeleteParams, PostParams};
use kube::{Api, Resource, ResourceExt};
use pulumi_controller::api::auto::{Update, Workspace};
use pulumi_controller::api::pulumi::Stack;
use serde_json::json;
use tokio::time::Instant;

use crate::fake_agent::FakeAgent;
use crate::fake_nodes;
use crate::harness::{Controller, FluxObject, Program, Scene, api_call, in_scene, is_done, report_skipped, run_alone};
use crate::progress::until_count;

const STACKS: usize = 200;
/// Duration of each run of the fake agent.
const RUN_TIME: Duration = Duration::from_millis(200);
/// Maximum number of objects that the test creates or deletes concurrently.
const CONCURRENCY: usize = 16;
const TIMEOUT: Duration = Duration::from_secs(300);
/// Period after the controller start during which the controller reconciles each Stack exactly once.
const FIRST_RECONCILIATION: Duration = Duration::from_secs(60);

#[test]
fn a_restart_starts_no_runs_and_spreads_the_reconciliations() {
    if !fake_nodes::are_available() {
        report_skipped("many", "no fake nodes: run `tests/cluster/cluster fake-nodes`");
        return;
    }
    run_alone(async || {
        in_scene("many", async |scene| {
            fake_nodes::create(&scene.client).await;
            let fake_agent =
                FakeAgent::start(scene.client.clone(), fake_nodes::address(), RUN_TIME).await.expect("a fake agent");
            let source = create_source(scene).await;
            tokio::join!(
                create(scene, &source),
                until_count("Stacks are Ready", STACKS, TIMEOUT, async || (ready(scene).await, fake_agent.calls())),
            );
            check_restart(scene, &fake_agent).await;
            remove(scene).await;
        })
        .await;
    });
}

/// Checks the requests that the controller sends to the agents after a restart. The controller reconciles each
/// Workspace at the start, and again about two minutes later.
async fn check_restart(scene: &Scene, fake_agent: &FakeAgent) {
    let (before, runs) = (versions(scene).await, fake_agent.runs());
    let controller = Controller::new(&scene.client);
    controller.kill().await;
    let (killed, requests) = (Instant::now(), fake_agent.statuses());
    controller.until_available().await;
    // Times of the agent requests since the restart.
    let moments = RefCell::new(Vec::new());
    until_count("all agents have received two requests", STACKS, TIMEOUT, async || {
        let requests = usize::try_from(fake_agent.statuses() - requests).unwrap_or(usize::MAX);
        let mut moments = moments.borrow_mut();
        moments.resize(requests, killed.elapsed());
        (moments.iter().filter(|moment| **moment > FIRST_RECONCILIATION).count(), fake_agent.calls())
    })
    .await;
    let moments = moments.into_inner();
    assert_eq!(fake_agent.runs(), runs, "no run was due");
    let after = versions(scene).await;
    let written: Vec<_> = after.iter().filter(|(name, version)| before.get(*name) != Some(version)).collect();
    assert_eq!(written, Vec::<(&String, &String)>::new(), "the restart writes nothing");
    assert_eq!(after.len(), before.len(), "no object is created or deleted");
    let (first, second) = moments.split_at(moments.iter().filter(|moment| **moment <= FIRST_RECONCILIATION).count());
    assert!(first.len() >= STACKS, "the new controller reconciles all Workspaces: {first:?}");
    let repeated = first.len() - STACKS;
    assert!(repeated < STACKS / 2, "the new controller repeats {repeated} of {STACKS} first reconciliations");
    let most = max_in_window(second, Duration::from_secs(10));
    assert!(most <= STACKS / 2, "{most} of {STACKS} Workspaces were reconciled within ten seconds: {second:?}");
}

/// Returns the maximum number of requests during any interval of this length.
fn max_in_window(moments: &[Duration], window: Duration) -> usize {
    let within = |from: &Duration| moments.iter().filter(|moment| (*from..*from + window).contains(*moment)).count();
    moments.iter().map(within).max().unwrap_or_default()
}

/// Maps kinds and names to resource versions, for all objects that a run or a status write would change.
async fn versions(scene: &Scene) -> BTreeMap<String, String> {
    fn named<K: Resource<DynamicType = ()>>(objects: &[K]) -> Vec<(String, String)> {
        let version = |object: &K| object.resource_version().expect("resource version");
        objects.iter().map(|object| (format!("{} {}", K::kind(&()), object.name_any()), version(object))).collect()
    }
    let stacks = named(&scene.list::<Stack>().await);
    let workspaces = named(&scene.list::<Workspace>().await);
    let updates = named(&scene.list::<Update>().await);
    [stacks, workspaces, updates].concat().into_iter().collect()
}

/// Creates the source that all Stacks share.
async fn create_source(scene: &Scene) -> FluxObject<'_> {
    let source = scene.source("app").await;
    let commit = source.push(&Program::new("many").output("text", "hello".into()).files()).await;
    let artifact = source.artifact_of(&commit).await;
    let external = scene.flux_object("ExternalArtifact", "externalartifacts", "served");
    external.create(json!({})).await;
    external.publish(&artifact).await;
    external
}

async fn create(scene: &Scene, source: &FluxObject<'_>) {
    let api: Api<Stack> = scene.api();
    stream::iter(0..STACKS)
        .map(|number| {
            let mut stack = fake_nodes::place(scene.stack_on_kind(&format!("many-{number:03}"), None, source));
            // A long interval prevents periodic runs during the test.
            stack.spec.resync_frequency_seconds = Some(3600);
            stack.spec.continue_resync_on_commit_match = Some(true);
            let api = api.clone();
            async move { drop(api_call("creating a Stack", api.create(&PostParams::default(), &stack)).await) }
        })
        .buffer_unordered(CONCURRENCY)
        .for_each(|()| std::future::ready(()))
        .await;
}

async fn ready(scene: &Scene) -> usize {
    scene.list::<Stack>().await.iter().filter(|stack| is_done(stack)).count()
}

/// Deletes the Stacks before the scene, because deleting so many Stacks takes longer than the scene's timeout.
async fn remove(scene: &Scene) {
    let api = scene.api::<Stack>();
    stream::iter(scene.list::<Stack>().await)
        .map(|stack| {
            let api = api.clone();
            async move { drop(api_call("deleting a Stack", api.delete(&stack.name_any(), &DeleteParams::default())).await) }
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

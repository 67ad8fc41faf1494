//! Tests sixty concurrent Stacks on a small node. All runs must complete without failures, within the concurrency limit
//! and without starvation.

use std::collections::{BTreeMap, BTreeSet};

use clap::Parser;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use pulumi_controller::api::auto::Update;
use pulumi_controller::api::conditions::{FAILED, RECONCILING, is_true};
use pulumi_controller::api::pulumi::Stack;
use pulumi_controller::cli::{CommandLine, Role};

use crate::harness::{
    CompletionTimes, Controller, Crowd, Scene, WaitLimit, client, condition, in_scene, once, run_alone,
};

#[test]
fn sixty_stacks_created_together_on_one_source_all_succeed() {
    run_alone(async || {
        in_scene("crowd-large", async |large| {
            in_scene("crowd-middle", async |middle| {
                in_scene("crowd-small", async |small| {
                    let crowd = Crowd::start(&[(large, 40), (middle, 18), (small, 2)]).await;
                    let times = crowd.until_done(WaitLimit::Long).await;
                    println!("{times}");
                    let scenes = [large, middle, small];
                    assert_one_successful_run_each(&crowd, &scenes).await;
                    assert_concurrency_limit(&scenes).await;
                    assert_wait_reported(&scenes);
                    assert_no_starvation(&times, large, small);
                    assert_one_fetch_per_namespace(&crowd, &scenes).await;
                })
                .await;
            })
            .await;
        })
        .await;
    });
}

/// `make test` runs this shorter test.
#[test]
fn six_stacks_created_together_run_within_the_limit() {
    run_alone(async || {
        in_scene("crowd-four", async |four| {
            in_scene("crowd-two", async |two| {
                let crowd = Crowd::start(&[(four, 4), (two, 2)]).await;
                println!("{}", crowd.until_done(WaitLimit::Long).await);
                let scenes = [four, two];
                assert_one_successful_run_each(&crowd, &scenes).await;
                assert_concurrency_limit(&scenes).await;
                assert_one_fetch_per_namespace(&crowd, &scenes).await;
            })
            .await;
        })
        .await;
    });
}

async fn assert_one_successful_run_each(crowd: &Crowd<'_>, scenes: &[&Scene]) {
    let updates: Vec<Update> = scenes.iter().flat_map(|scene| scene.timeline.states_of::<Update>()).collect();
    let conditions = |update: &Update| update.status.clone().unwrap_or_default().conditions;
    let failed: Vec<&Update> = updates.iter().filter(|update| is_true(&conditions(update), FAILED)).collect();
    assert!(failed.is_empty(), "no run fails: {failed:?}");
    let runs: BTreeSet<Option<String>> = updates.iter().map(Update::uid).collect();
    assert_eq!(runs.len(), crowd.stacks.len(), "one run for each Stack");
    let pods: Vec<Pod> = scenes.iter().flat_map(|scene| scene.timeline.states_of::<Pod>()).collect();
    let uids: BTreeSet<Option<String>> = pods.iter().map(Pod::uid).collect();
    assert_eq!(uids.len(), crowd.stacks.len(), "one pod for each Stack");
    let containers =
        pods.iter().flat_map(|pod| &pod.status).flat_map(|status| status.container_statuses.iter().flatten());
    assert_eq!(containers.map(|container| container.restart_count).max(), Some(0), "no container restarted");
    for stack in &crowd.stacks {
        assert_eq!(stack.log.operations().await, once(&["create member"]), "{}", stack.name);
    }
}

/// Checks that the number of open runs never exceeds the limit. A run is open from its first record in the Update
/// status until the run completes. The resource versions determine the order of all writes.
async fn assert_concurrency_limit(scenes: &[&Scene]) {
    let version = |update: &Update| update.resource_version().and_then(|version| version.parse::<u64>().ok());
    let states = scenes.iter().flat_map(|scene| scene.timeline.states_of::<Update>());
    let in_order: BTreeMap<Option<u64>, Update> = states.map(|update| (version(&update), update)).collect();
    let mut open = BTreeSet::new();
    let mut most = 0;
    for update in in_order.values() {
        match update.status.as_ref().is_some_and(|status| status.run.is_some()) && !update.is_complete() {
            true => open.insert(update.uid()),
            false => open.remove(&update.uid()),
        };
        most = most.max(open.len());
    }
    let limit = concurrency_limit().await;
    println!("{most} concurrent runs, limit {limit}");
    assert!(most > 1, "runs are concurrent");
    assert!(most <= limit, "{most} concurrent runs exceed the limit {limit}");
}

/// Returns the limit from the installed controller's arguments or, without such an argument, the default limit.
async fn concurrency_limit() -> usize {
    let pod = Controller::new(&client().await).pod().await;
    let arguments = pod.spec.and_then(|spec| spec.containers.into_iter().next()).and_then(|container| container.args);
    let line = std::iter::once("pulumi-controller".to_owned()).chain(arguments.unwrap_or_default());
    match CommandLine::try_parse_from(line).map(CommandLine::into_role) {
        Ok(Role::Manager(flags)) => flags.max_concurrent_runs.min(flags.max_concurrent_runs_per_node),
        other => panic!("expected arguments of the manager, got {other:?}"),
    }
}

fn assert_wait_reported(scenes: &[&Scene]) {
    let states: Vec<Stack> = scenes.iter().flat_map(|scene| scene.timeline.states_of::<Stack>()).collect();
    let has_condition = |stack: &&Stack| condition(stack, RECONCILING).is_some_and(|c| c.message.contains("run slot"));
    let waiting: BTreeSet<Option<String>> = states.iter().filter(has_condition).map(Stack::uid).collect();
    println!("{} Stacks reported that they wait for a run slot", waiting.len());
    assert!(!waiting.is_empty(), "at least one Stack reports that it waits for a run slot");
}

fn assert_no_starvation(times: &CompletionTimes, large: &Scene, small: &Scene) {
    let (large, small) = (&times.done[&large.namespace], &times.done[&small.namespace]);
    let half_of_large = large[large.len() / 2 - 1];
    let last_of_small = small[small.len() - 1];
    assert!(
        last_of_small <= half_of_large,
        "the two Stacks completed after {last_of_small:?}, half of the forty after {half_of_large:?}"
    );
}

/// Checks that the controller fetches the artifact once per namespace. A namespace can use only artifacts that the
/// controller has fetched for a source in the same namespace.
async fn assert_one_fetch_per_namespace(crowd: &Crowd<'_>, scenes: &[&Scene]) {
    let lines = Controller::new(&client().await).log_lines(&crowd.digest).await;
    let fetched: Vec<&String> = lines.iter().filter(|line| line.contains("fetched artifact")).collect();
    for scene in scenes {
        let namespace = format!("\"namespace\":\"{}\"", scene.namespace);
        assert_eq!(fetched.iter().filter(|line| line.contains(&namespace)).count(), 1, "{namespace}: {fetched:?}");
    }
    assert_eq!(fetched.len(), scenes.len(), "{fetched:?}");
}

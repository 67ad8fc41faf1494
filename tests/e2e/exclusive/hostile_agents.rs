//! Tests agents that a tenant has replaced with other programs. These agents must not affect other Stacks.

use std::time::Duration;

use kube::ResourceExt;
use pulumi_controller::api::auto::Update;
use pulumi_controller::api::pulumi::Stack;
use serde_json::json;
use tokio::time::Instant;

use crate::fake_agent::{Behavior, FakeAgent, Fault};
use crate::fake_nodes;
use crate::harness::{
    File, FluxObject, Poll, Program, Scene, StackHandle, WaitLimit, in_scene, is_done, report_skipped, run_alone,
    wait_until,
};

/// Size of the source in bytes. The source is larger than a connection's buffers.
const SOURCE: usize = 8 * 1024 * 1024;
const RUN_TIME: Duration = Duration::from_secs(2);
/// Number of Stacks with slow agents, which exceeds the number of stream slots.
const SLOW: usize = 12;
/// Maximum additional delay that hostile agents may cause for another Stack. The value is sufficient for a fully loaded
/// machine.
const DELAY: Duration = Duration::from_secs(5);

#[test]
fn runs_of_hostile_agents_are_recorded_and_delay_no_other_namespace() {
    if !fake_nodes::are_available() {
        report_skipped("hostile", "no fake nodes: run `tests/cluster/cluster fake-nodes`");
        return;
    }
    run_alone(async || {
        in_scene("quiet", async |quiet| {
            in_scene("hostile", async |hostile| {
                fake_nodes::create(&quiet.client).await;
                let behavior = |name: &str| Behavior { run_time: RUN_TIME, fault: fault(name), ..Behavior::default() };
                let fake_agent = FakeAgent::start_with(quiet.client.clone(), fake_nodes::address(), behavior).await;
                let _fake_agent = fake_agent.expect("a fake agent");
                compare_with_hostile_agents(quiet, hostile).await;
            })
            .await;
        })
        .await;
    });
}

/// Returns the fault that an agent simulates. The first part of the Stack name selects the fault.
fn fault(name: &str) -> Fault {
    match name.split('-').next() {
        Some("huge") => Fault::HugeResults,
        Some("slow") => Fault::SlowSources,
        Some("flood") => Fault::Floods,
        _ => Fault::None,
    }
}

async fn compare_with_hostile_agents(quiet: &Scene, hostile: &Scene) {
    let (quiet_source, hostile_source) = (create_source(quiet).await, create_source(hostile).await);
    let alone = timed(quiet, &quiet_source, "quiet-alone").await;

    for number in 0..SLOW {
        start(hostile, &hostile_source, &format!("slow-{number:02}")).await;
    }
    let huge = start(hostile, &hostile_source, "huge-result").await;
    let begin = Instant::now();
    let flood = start(hostile, &hostile_source, "flood-progress").await;
    wait_until("sources to be streamed to agents that do not read", WaitLimit::Run, async || {
        let workspaces = hostile.list::<pulumi_controller::api::auto::Workspace>().await;
        let waits =
            workspaces.iter().filter(|workspace| format!("{:?}", workspace.status).contains("installing source"));
        match waits.count() {
            0 => Poll::NotYet(format!("{} Workspaces, none of them receives its source", workspaces.len())),
            _ => Poll::Found(()),
        }
    })
    .await;
    for name in ["quiet-one", "quiet-two"] {
        let alongside = timed(quiet, &quiet_source, name).await;
        println!("{name} took {alongside:?} with hostile agents, and {alone:?} without them");
        assert!(alongside < alone + DELAY, "{name} took {alongside:?} with hostile agents, and {alone:?} without them");
    }

    // While the slow agents occupy all stream slots, these Stacks wait for a slot.
    for stack in [&huge, &flood] {
        stack.until("to be Ready despite the hostile agents", WaitLimit::Long, is_done).await;
    }
    let lasted = begin.elapsed();
    let updates = hostile.list::<Update>().await;
    let of = |name: &str| {
        updates.iter().find(|update| update.spec.workspace_name == name).expect("the Update of the run").clone()
    };
    let recorded = of("huge-result");
    assert!(recorded.is_complete(), "{recorded:?}");
    let status = recorded.status.unwrap_or_default();
    assert!(status.changes.len() <= 32 && status.permalink.is_none(), "{} changes", status.changes.len());
    let size = serde_json::to_string(&status).expect("valid JSON").len();
    assert!(size < 64 * 1024, "the status has {size} bytes");
    let flooded = of("flood-progress").name_any();
    let states = hostile.timeline.states_of::<Update>();
    let written = states.iter().filter(|update| update.name_any() == flooded).count();
    // The controller limits the rate at which it reads the agent's messages. The run therefore takes longer, and the
    // controller writes the status only every few seconds.
    let limit = 20 + lasted.as_secs() / 2;
    assert!(written as u64 <= limit, "a run with excessive progress for {lasted:?} caused {written} status writes");
    for number in 0..SLOW {
        hostile.delete::<Stack>(&format!("slow-{number:02}")).await;
    }
}

/// Creates a Stack, and returns the time until the Stack is Ready.
async fn timed(scene: &Scene, source: &FluxObject<'_>, name: &str) -> Duration {
    let begin = Instant::now();
    start(scene, source, name).await.until("to be Ready", WaitLimit::Run, is_done).await;
    begin.elapsed()
}

async fn start<'a>(scene: &'a Scene, source: &FluxObject<'_>, name: &str) -> StackHandle<'a> {
    scene.start(fake_nodes::place(scene.stack_on_kind(name, None, source))).await
}

/// Creates a source with a large file that does not compress well.
async fn create_source(scene: &Scene) -> FluxObject<'_> {
    let source = scene.source("app").await;
    let mut files = Program::new("hostile").output("text", "hello".into()).files();
    let content = std::iter::repeat_with(fastrand::alphanumeric).take(SOURCE).collect();
    files.push(File { path: "assets.txt".to_owned(), content });
    let commit = source.push(&files).await;
    let artifact = source.artifact_of(&commit).await;
    let external = scene.flux_object("ExternalArtifact", "externalartifacts", "served");
    external.create(json!({})).await;
    external.publish(&artifact).await;
    external
}

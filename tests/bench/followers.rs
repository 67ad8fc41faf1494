//! Measures the idle controller's cost and the load on the Git server. In the first case, five hundred Stacks poll one
//! Git repository. In the second case, each of five hundred Stacks polls its own repository. The pods are on a fake
//! node with a fake agent.

use std::panic::{AssertUnwindSafe, resume_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::{FutureExt, StreamExt, stream};
use kube::Api;
use kube::api::{DeleteParams, ListParams};
use pulumi_controller::api::pulumi::Stack;
use serde::Deserialize;

use crate::api_writes::{ApiWrites, format_counts};
use crate::crowd::{controller, rest_seconds};
use crate::fake_agent::FakeAgent;
use crate::fake_nodes;
use crate::harness::{Environment, Program, Scene, Source, api_call, client};
use crate::memory::{CONCURRENCY, Done, QUIET, QUIET_TIMEOUT, REST_SECONDS, RUN_TIME, at_rest, name, restart, run};
use crate::progress::until_count;
use crate::table::Row;

const STACKS: usize = 500;
/// Maximum number of concurrent pushes.
const CONCURRENT_PUSHES: usize = 4;
/// Number of pushed repositories between two progress messages.
const PUSHES_PER_MESSAGE: usize = 50;
/// Minimum interval between two polls of a repository, in seconds.
const MIN_INTERVAL: u64 = 60;
/// Number of requests per poll: one for the server capabilities, and one for the branch reference.
const REQUESTS_PER_POLL: usize = 2;
const REMOVE_TIMEOUT: Duration = Duration::from_secs(900);

/// Counters of the read requests to the test Git server.
#[derive(Clone, Copy, Debug, Deserialize)]
struct RequestCounts {
    repositories: usize,
    sessions: usize,
    requests: usize,
}

pub async fn measure() -> Vec<Row> {
    let client = client().await;
    fake_nodes::create(&client).await;
    let fake_agent = FakeAgent::start(client, fake_nodes::address(), RUN_TIME).await.expect("a fake agent");
    let mut rows = Vec::new();
    for repositories in [1, STACKS] {
        println!("\n{STACKS} Stacks with {repositories} repositories");
        let mut scene = Scene::new("bench-followers").await;
        scene.timeline.end();
        let outcome = AssertUnwindSafe(measure_repositories(&scene, repositories, &fake_agent)).catch_unwind().await;
        // The benchmark removes the Stacks even after a failure, because later measurements must not include these
        // Stacks.
        remove(scene, STACKS).await;
        rows.extend(outcome.unwrap_or_else(|failure| resume_unwind(failure)));
    }
    rows
}

async fn measure_repositories(scene: &Scene, repositories: usize, fake_agent: &FakeAgent) -> Vec<Row> {
    let sources = pushed(scene, repositories).await;
    restart(scene).await;
    let done = Done::watch(scene.api());
    let stack_of = |number: usize| scene.stack_on_repository(&name(number), &sources[number % repositories]);
    let note = run(scene, &stack_of, fake_agent, &done, 0..STACKS).await;
    let rows = rows(scene, repositories).await;
    rows.into_iter().map(|row| row.with_note(note.clone())).collect()
}

/// Creates repositories, each with a different commit.
async fn pushed(scene: &Scene, repositories: usize) -> Vec<Source<'_>> {
    let created = AtomicUsize::new(0);
    let push = async |number: usize| {
        let source = scene.source(&format!("app-{number:03}")).await;
        let program = Program::new("bench-followers").output("number", number.into());
        source.push_without_notification(&program.files()).await;
        let created = created.fetch_add(1, Ordering::Relaxed) + 1;
        if created.is_multiple_of(PUSHES_PER_MESSAGE) {
            println!("pushed to {created} of {repositories} repositories");
        }
        source
    };
    stream::iter(0..repositories).map(push).buffered(CONCURRENT_PUSHES).collect().await
}

/// Measures memory and requests during a period in which the controller polls each repository at least twice.
async fn rows(scene: &Scene, repositories: usize) -> Vec<Row> {
    println!("waiting until the controller is idle");
    let mut writes = ApiWrites::from_now();
    writes.until_quiet(QUIET, QUIET_TIMEOUT).await;
    let process = controller(scene).await;
    let (before, seconds) = (request_counts(scene).await, rest_seconds(REST_SECONDS));
    let rest = at_rest(process, &mut writes).await;
    let after = request_counts(scene).await;
    assert_eq!(after.repositories, repositories, "every repository is polled");
    let polls = after.sessions - before.sessions;
    let requests = after.requests - before.requests;
    println!("{:.1} MiB; {polls} polls, {requests} requests in {seconds} s", rest.memory);
    let number: usize = rest.written.values().sum();
    let on = format!("{STACKS} Stacks on {repositories} repositories").replace(" 1 repositories", " one repository");
    let memory = Row::of(
        &format!("controller memory (RssAnon), {on}"),
        "0 writes",
        format!("{:.1} MiB, {number}", rest.memory),
        Some(number == 0),
    )
    .with_note(format!("CPU usage at rest: {:.1} % of a CPU; writes: {}", rest.processor, format_counts(&rest.written)))
    .with_note(format!("peak memory (VmHWM) since the start of the process: {:.1} MiB", process.peak()));
    // The number of polls must not depend on the number of Stacks per repository.
    let most = repositories * usize::try_from(seconds / MIN_INTERVAL + 1).expect("a small number");
    let requests_each = requests as f64 / polls.max(1) as f64;
    let git = Row::of(
        &format!("requests to the Git server per poll of all repositories, {on}"),
        (repositories * REQUESTS_PER_POLL).to_string(),
        format!("{:.0}", requests_each * repositories as f64),
        Some(polls <= most && requests <= polls * REQUESTS_PER_POLL),
    )
    .with_note(format!(
        "in {seconds} s, each repository was polled {:.1} times with {requests_each:.1} requests: {requests} in total",
        polls as f64 / repositories as f64
    ));
    vec![memory, git]
}

/// Returns the sum of the counters for all repositories in this scene.
async fn request_counts(scene: &Scene) -> RequestCounts {
    let client = reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(30)).build().expect("a client");
    let url = format!("{}/requests?prefix={}-", Environment::get().git_url, scene.namespace);
    let response = async { client.get(&url).send().await?.error_for_status()?.text().await };
    let text = response.await.unwrap_or_else(|error| panic!("querying the Git server for its request counts: {error}"));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{url}: {error}: {text}"))
}

/// Deletes the Stacks of a scene, and then the scene. The timeout for the Stacks is longer than the scene's timeout.
pub async fn remove(scene: Scene, number: usize) {
    let stacks: Api<Stack> = scene.api();
    stream::iter(api_call("listing Stacks", stacks.list_metadata(&ListParams::default())).await)
        .map(|stack| {
            let (stacks, name) = (stacks.clone(), stack.metadata.name.expect("object name"));
            async move { api_call("deleting a Stack", stacks.delete(&name, &DeleteParams::default())).await }
        })
        .buffer_unordered(CONCURRENCY)
        .for_each(|_| std::future::ready(()))
        .await;
    until_count("Stacks are deleted", number, REMOVE_TIMEOUT, async || {
        let left = api_call("counting Stacks", stacks.list_metadata(&ListParams::default().limit(1))).await;
        let more = left.metadata.remaining_item_count.and_then(|more| usize::try_from(more).ok()).unwrap_or_default();
        (number.saturating_sub(left.items.len() + more), String::new())
    })
    .await;
    scene.remove().await;
}

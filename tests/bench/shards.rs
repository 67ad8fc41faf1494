//! Measures three controllers that each manage one shard of the Stacks, while the benchmark kills one controller. The
//! pods are on a fake node with a fake agent, which the caller starts.

use std::time::Duration;

use futures::{StreamExt, stream};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, Client, ResourceExt};
use pulumi_controller::api::pulumi::Stack;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::crowd;
use crate::fake_nodes;
use crate::harness::{Controller, Program, Scene, api_call, kubectl, run_with_cleanup};
use crate::memory::{CONCURRENCY, Done, MIN_TIMEOUT, TIMEOUT_PER_STACK};
use crate::processes::Process;
use crate::progress::until_count;
use crate::starts::Starts;
use crate::table::Row;

/// Maximum number of Stacks. With this number, the first runs take little time compared with the fleet's first runs.
const MAX_STACKS: usize = 300;
const NAMESPACE: &str = "flux-system";
const DEPLOYMENT: &str = "pulumi-controller";
const KEY: &str = "sharding.fluxcd.io/key";
const LEASE: &str = "pulumi-controller-leader-election";
const ROLE: &str = "pulumi-controller-own-namespace";
/// Shard label values of the Stacks. Stacks without the label belong to the installed controller.
const SHARDS: [&str; 2] = ["shard1", "shard2"];
/// Shard whose controller the benchmark kills.
const KILLED: &str = SHARDS[0];
/// Suffixes of the Lease names. Each suffix is the beginning of a label selector's SHA-256 hash. The first suffix
/// belongs to the selector `!sharding.fluxcd.io/key`.
const LEASE_SUFFIXES: [&str; 3] = ["42da7484", "73fdc1be", "b5f72efd"];

/// Measures the shards. `arguments` contains the installed controller's arguments.
pub async fn measure(stacks: usize, controller: &Controller, arguments: &[String]) -> Vec<Row> {
    let mut scene = Scene::new("bench-shards").await;
    scene.timeline.end();
    let mut rows = Vec::new();
    let measured = async || {
        set_leases(&LEASE_SUFFIXES.map(|suffix| format!("{LEASE}-{suffix}"))).await;
        let own = [arguments, &[format!("--watch-label-selector=!{KEY}")]].concat();
        controller.start_with(&own, 1).await;
        for shard in SHARDS {
            start_shard(shard, arguments).await;
        }
        rows = kill_one(&scene, stacks.min(MAX_STACKS)).await;
    };
    let cleaned = async || {
        for shard in SHARDS {
            kubectl(&["delete", "deployment", &deployment(shard), "--namespace", NAMESPACE, "--ignore-not-found"], "")
                .await;
        }
        set_leases(&[LEASE.to_owned()]).await;
        controller.start_with(arguments, 1).await;
    };
    run_with_cleanup(measured, cleaned).await;
    rows
}

fn deployment(shard: &str) -> String {
    format!("{DEPLOYMENT}-{shard}")
}

/// Permits the controllers to change the Leases with these names.
async fn set_leases(names: &[String]) {
    let patch = json!([{"op": "replace", "path": "/rules/2/resourceNames", "value": names}]).to_string();
    kubectl(&["patch", "role", ROLE, "--namespace", NAMESPACE, "--type=json", "--patch", &patch], "").await;
}

/// Creates a shard's controller, which is a copy of the installed Deployment with a different name, label and selector.
async fn start_shard(shard: &str, arguments: &[String]) {
    let installed = kubectl(&["get", "deployment", DEPLOYMENT, "--namespace", NAMESPACE, "--output=json"], "").await;
    let mut copy: Value = serde_json::from_str(&installed).expect("a Deployment");
    let name = deployment(shard);
    copy["metadata"] = json!({"name": name, "namespace": NAMESPACE});
    copy["status"] = Value::Null;
    copy["spec"]["selector"]["matchLabels"]["app"] = json!(name);
    copy["spec"]["template"]["metadata"]["labels"]["app"] = json!(name);
    let own = [arguments, &[format!("--watch-label-selector={KEY}={shard}")]].concat();
    copy["spec"]["template"]["spec"]["containers"][0]["args"] = json!(own);
    kubectl(&["create", "--filename", "-"], &copy.to_string()).await;
    println!("started the controller of {shard}");
}

/// Returns the shard of a Stack, or `None` if the Stack belongs to the installed controller.
fn shard_of(number: usize) -> Option<&'static str> {
    SHARDS.get(number % (SHARDS.len() + 1)).copied()
}

fn name(number: usize) -> String {
    format!("shard-{number:05}-{}", shard_of(number).unwrap_or("none"))
}

fn is_killed(name: &str) -> bool {
    name.ends_with(KILLED)
}

async fn kill_one(scene: &Scene, stacks: usize) -> Vec<Row> {
    let source = scene.source("app").await;
    let program = |text: &str| Program::new("bench-shards").output("text", text.into()).files();
    let artifact = source.artifact_of(&source.push(&program("first")).await).await;
    let external = scene.flux_object("ExternalArtifact", "externalartifacts", "served");
    external.create(json!({})).await;
    external.publish(&artifact).await;
    let timeout = MIN_TIMEOUT + TIMEOUT_PER_STACK * u32::try_from(stacks).expect("a small number");
    let done = Done::watch(scene.api());
    let create = stream::iter(0..stacks)
        .map(|number| {
            let mut stack = fake_nodes::place(scene.stack_on_kind(&name(number), None, &external));
            stack.labels_mut().extend(shard_of(number).map(|shard| (KEY.to_owned(), shard.to_owned())));
            let api = scene.api::<Stack>();
            async move { api_call("creating a Stack", api.create(&PostParams::default(), &stack)).await }
        })
        .buffer_unordered(CONCURRENCY)
        .for_each(|_| std::future::ready(()));
    let ready = async || (done.number_with(""), "three shards".to_owned());
    tokio::join!(create, until_count("Stacks of all shards are Ready", stacks, timeout, ready));
    let memory = memory(scene).await;

    let artifact = source.artifact_of(&source.push(&program("second")).await).await;
    let starts = Starts::watch(&scene.client, &artifact.revision);
    kill(&scene.client).await;
    let others = (0..stacks).filter(|number| shard_of(*number) != Some(KILLED)).count();
    let began = Instant::now();
    external.publish(&artifact).await;
    let started = async || (starts.number(), "one shard has no controller".to_owned());
    until_count("runs of the other shards have started", others, timeout, started).await;
    let took = began.elapsed();
    let wrong = starts.number_of(is_killed);
    let restarted = Instant::now();
    scale(1).await;
    until_count("runs of all shards have started", stacks, timeout, async || (starts.number(), String::new())).await;
    rows(stacks, others, [took, restarted.elapsed()], wrong)
        .into_iter()
        .map(|row| row.with_note(memory.clone()))
        .collect()
}

fn rows(stacks: usize, others: usize, [took, resumed]: [Duration; 2], wrong: usize) -> Vec<Row> {
    let measured = format!("{:.1} s, {wrong} runs of the killed shard", took.as_secs_f64());
    let name = format!("three shards, one killed: push → last of {others} runs of the other shards started");
    let resume = format!("controller of the killed shard started → last of {} runs started", stacks - others);
    vec![
        Row::of(&name, "no runs of the killed shard", measured, Some(wrong == 0)),
        Row::of(&resume, "", format!("{:.1} s", resumed.as_secs_f64()), None),
    ]
}

async fn scale(replicas: i32) {
    let replicas = format!("--replicas={replicas}");
    kubectl(&["scale", "deployment", &deployment(KILLED), "--namespace", NAMESPACE, &replicas], "").await;
}

/// Kills the controller of a shard. First scales its Deployment to zero, so that the Deployment creates no other pod.
async fn kill(client: &Client) {
    scale(0).await;
    let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
    let of_shard = ListParams::default().labels(&format!("app={}", deployment(KILLED)));
    for pod in api_call("listing the pods of the shard", pods.list(&of_shard)).await.items {
        let name = pod.name_any();
        // Ignores an error, because the pod may have exited since the list request.
        drop(pods.delete(&name, &DeleteParams::default().grace_period(0)).await);
        println!("killed the pod {name}");
    }
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), NAMESPACE);
    until_count("the shard has no controller", 1, MIN_TIMEOUT, async || {
        let left = api_call("listing the pods of the shard", pods.list(&of_shard)).await.items.len();
        let found = api_call("reading the Deployment", deployments.get(&deployment(KILLED))).await;
        (usize::from(left == 0), format!("{left} pods, {:?}", found.status.and_then(|status| status.replicas)))
    })
    .await;
}

/// Returns a note about the memory of all controllers.
async fn memory(scene: &Scene) -> String {
    let pods: Api<Pod> = Api::namespaced(scene.client.clone(), NAMESPACE);
    let mut memory = vec![format!("{:.1} MiB", crowd::controller(scene).await.rss_anon())];
    for shard in SHARDS {
        let of_shard = ListParams::default().labels(&format!("app={}", deployment(shard)));
        let listed = api_call("listing the pods of a shard", pods.list(&of_shard)).await;
        let processes = listed.items.iter().flat_map(|pod| Process::in_pod(&pod.uid().unwrap_or_default(), "manager"));
        memory.extend(processes.map(|process| format!("{:.1} MiB", process.rss_anon())));
    }
    format!("memory (RssAnon) of the controllers: {}", memory.join(", "))
}

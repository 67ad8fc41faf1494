//! Compares the garbage collector with that of a real cluster: random objects with owners, random deletions, and then
//! the objects that remain.

use std::time::Duration;

use fastrand::Rng;
use kube_sim::{Kinds, Server};
use serde_json::{Value, json};

use crate::sides::Side;

const OBJECTS: usize = 8;
/// Time in which nothing may change until the real garbage collector is assumed to be done.
const QUIET: Duration = Duration::from_secs(5);
/// The same for the namespace controller, which waits a few seconds before it starts.
const NAMESPACE_QUIET: Duration = Duration::from_secs(30);
/// Time for which equal objects must stay equal.
const EQUAL: Duration = Duration::from_secs(1);

/// Runs a scenario. Returns the difference between the remaining objects, unless it disappears when the scenario is
/// repeated: the workers of the real garbage collector race, for example about the references to an owner whose
/// foreground deletion ends.
pub async fn run(real: &Side, served: &Kinds, seed: u64) -> Option<String> {
    let mut difference = None;
    for attempt in 0..3 {
        difference = run_once(real, served, seed, attempt).await;
        if difference.is_none() {
            break;
        }
        println!("scenario {seed}: difference in attempt {attempt}");
    }
    difference
}

async fn run_once(real: &Side, served: &Kinds, seed: u64, attempt: u8) -> Option<String> {
    let mut rng = Rng::with_seed(seed);
    let namespace = format!("kube-sim-gc-{:x}-{seed}-{attempt}", std::process::id());
    let (model, server) = Side::simulated(served, &namespace, seed);
    let body = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": namespace } });
    assert_eq!(real.send("POST", "/api/v1/namespaces", "application/json", "", Some(&body)).await.code, 201);
    let path = format!("/api/v1/namespaces/{namespace}/configmaps");
    let mut uids: [Vec<String>; 2] = [Vec::new(), Vec::new()];
    let mut log = Vec::new();
    for index in 0..OBJECTS {
        let mut owners: Vec<(usize, bool, bool)> = Vec::new();
        for owner in 0..index {
            if rng.u8(..10) < 3 {
                owners.push((owner, rng.bool(), rng.u8(..10) == 0));
            }
        }
        let has_finalizer = rng.u8(..10) < 2;
        log.push(format!("m{index}: owners {owners:?} finalizer {has_finalizer}"));
        for (side, uids) in [&model, real].into_iter().zip(&mut uids) {
            let references = owners.iter().map(|(owner, blocks, is_wrong)| {
                let uid = if *is_wrong { "00000000-0000-4000-8000-000000000000" } else { &uids[*owner] };
                json!({ "apiVersion": "v1", "kind": "ConfigMap", "name": format!("m{owner}"), "uid": uid, "blockOwnerDeletion": blocks })
            });
            let mut object = json!({ "metadata": { "name": format!("m{index}"), "ownerReferences": references.collect::<Vec<Value>>() } });
            if has_finalizer {
                object["metadata"]["finalizers"] = json!(["example.com/a"]);
            }
            let created = side.send("POST", &path, "application/json", "", Some(&object)).await;
            uids.push(created.body["metadata"]["uid"].as_str().unwrap_or_default().to_owned());
        }
    }
    settle(&model, real, &server, &path, QUIET).await;
    for _ in 0..3 {
        let (name, policy) = (rng.usize(..OBJECTS), ["Background", "Foreground", "Orphan"][rng.usize(..3)]);
        log.push(format!("delete m{name} {policy}"));
        for side in [&model, real] {
            let body = json!({ "propagationPolicy": policy });
            side.send("DELETE", &format!("{path}/m{name}"), "application/json", "", Some(&body)).await;
        }
        settle(&model, real, &server, &path, QUIET).await;
        let (ours, theirs) = (state(&model, &path).await, state(real, &path).await);
        if ours != theirs {
            let difference = format!("seed {seed}\n    model {ours:?}\n    real  {theirs:?}\n  {}", log.join("\n  "));
            return Some(difference);
        }
    }
    for side in [&model, real] {
        side.send("DELETE", &format!("/api/v1/namespaces/{namespace}"), "", "", None).await;
    }
    settle(&model, real, &server, &path, NAMESPACE_QUIET).await;
    // The namespace controller and the garbage collector work at the same time, so the owners that remain are random.
    let without_owners = |objects: Vec<String>| -> Vec<String> {
        objects.iter().map(|object| object.replace(object.split(['[', ']']).nth(1).unwrap_or_default(), "")).collect()
    };
    let (ours, theirs) = (without_owners(state(&model, &path).await), without_owners(state(real, &path).await));
    let removal = json!({ "metadata": { "finalizers": null } });
    for index in 0..OBJECTS {
        let path = format!("{path}/m{index}");
        real.send("PATCH", &path, "application/merge-patch+json", "", Some(&removal)).await;
    }
    let what = format!(
        "seed {seed}, after the deletion of the namespace\n    model {ours:?}\n    real  {theirs:?}\n  {}",
        log.join("\n  ")
    );
    (ours != theirs).then_some(what)
}

/// Lets both garbage collectors finish: waits until the objects are equal and stay equal, or until nothing changes.
async fn settle(model: &Side, real: &Side, server: &Server, path: &str, quiet: Duration) {
    server.run_controllers();
    let ours = state(model, path).await;
    let mut before = state(real, path).await;
    let mut since = tokio::time::Instant::now();
    while since.elapsed() < if before == ours { EQUAL } else { quiet } {
        tokio::time::sleep(Duration::from_millis(200)).await;
        let now = state(real, path).await;
        if now != before {
            (before, since) = (now, tokio::time::Instant::now());
        }
    }
}

/// Describes all objects.
async fn state(side: &Side, path: &str) -> Vec<String> {
    let list = side.send("GET", path, "", "", None).await;
    let items = list.body["items"].as_array().cloned().unwrap_or_default();
    let items = items.iter().filter(|item| item["metadata"]["name"] != "kube-root-ca.crt");
    let describe = |item: &Value| {
        let metadata = &item["metadata"];
        let owners: Vec<&str> = metadata["ownerReferences"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|owner| owner["name"].as_str())
            .collect();
        let deleting = if metadata["deletionTimestamp"].is_string() { " deleting" } else { "" };
        format!("{} owners {owners:?} finalizers {}{deleting}", metadata["name"], metadata["finalizers"])
    };
    items.map(describe).collect()
}

//! Sends random requests to the simulation and to a real API server, and compares the responses and the watch events.
//!
//! Only one run at a time can use a cluster, because the test deletes its CustomResourceDefinition at the end.
//!
//! The test needs a cluster: `KUBECONFIG=… cargo test --test conformance -- --nocapture`. Further variables:
//! - `SEQUENCES`: number of sequences (default 200), each of 20 requests. `SEED`: first seed (default 1).
//! - `WORKERS`: number of sequences at the same time (default 4).
//! - `KINDS`: comma-separated names of kinds (default: all that no controller of a cluster changes).
//! - `NO_CONTROLLERS=1`: the cluster has no controller manager, so the test also covers StatefulSets, budgets, owners and
//!   propagation policies.
//! - `COLLECTIONS`: number of scenarios of the garbage collector, which needs a controller manager (default 0).
//! - `DEFINITIONS`: directory with further CustomResourceDefinitions, whose objects the test generates from the schemas.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::too_many_lines,
    reason = "a failure of the test itself may panic"
)]

mod canonical;
mod collection;
mod generate;
mod sequence;
mod sides;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use kube_sim::Kinds;
use serde_json::{Value, json};

use generate::Kind;
use sides::Side;

const WIDGETS: &str = include_str!("widgets.yaml");

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

fn number(name: &str, default: u64) -> u64 {
    variable(name).map_or(default, |text| text.parse().unwrap())
}

/// Returns the definitions as JSON.
fn definitions() -> Vec<Value> {
    let mut texts = vec![WIDGETS.to_owned()];
    if let Some(folder) = variable("DEFINITIONS") {
        let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.sort();
        texts.extend(
            files
                .iter()
                .filter(|file| file.extension().is_some_and(|e| e == "yaml"))
                .map(|file| std::fs::read_to_string(file).unwrap()),
        );
    }
    let all = texts.iter().flat_map(|text| serde_saphyr::from_multiple::<Value>(text).unwrap());
    all.filter(|document| document["kind"] == "CustomResourceDefinition").collect()
}

async fn install(real: &Side, definitions: &[Value]) {
    for definition in definitions {
        let name = definition["metadata"]["name"].as_str().unwrap();
        let path =
            format!("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}?fieldManager=kube-sim&force=true");
        let response = real.send("PATCH", &path, "application/apply-patch+yaml", "", Some(definition)).await;
        assert!(response.code < 300, "{name}: {}", response.body);
        for version in definition["spec"]["versions"].as_array().unwrap() {
            let path = format!(
                "/apis/{}/{}/{}",
                definition["spec"]["group"].as_str().unwrap(),
                version["name"].as_str().unwrap(),
                definition["spec"]["names"]["plural"].as_str().unwrap()
            );
            for attempt in 0.. {
                if real.send("GET", &path, "", "", None).await.code == 200 {
                    break;
                }
                assert!(attempt < 100, "{path} is not served");
                tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            }
        }
    }
}

/// Deletes a namespace, after the removal of the finalizers that would keep it.
async fn clean_up(real: &Side, kinds: &[Kind], namespace: &str) {
    for kind in kinds {
        let list = real.send("GET", &kind.path(namespace), "", "", None).await;
        for item in list.body["items"].as_array().into_iter().flatten() {
            if item["metadata"]["finalizers"].is_array() {
                let path = format!("{}/{}", kind.path(namespace), item["metadata"]["name"].as_str().unwrap());
                let removal = json!({ "metadata": { "finalizers": null } });
                real.send("PATCH", &path, "application/merge-patch+json", "", Some(&removal)).await;
            }
        }
    }
    real.send("DELETE", &format!("/api/v1/namespaces/{namespace}"), "", "", None).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_simulation_responds_as_the_real_api_server() {
    if variable("KUBECONFIG").is_none() {
        eprintln!("SKIPPED: set KUBECONFIG to compare the simulation with a real API server");
        return;
    }
    let _ = rustls::crypto::ring::default_provider().install_default();
    let real = Side::real().await;
    let definitions = definitions();
    install(&real, &definitions).await;
    let mut served = Kinds::builtin().unwrap();
    for definition in &definitions {
        served.register(&definition.to_string()).unwrap();
    }
    let kinds: Arc<Vec<Kind>> =
        Arc::new(generate::kinds(&definitions, variable("NO_CONTROLLERS").is_some(), variable("KINDS")));
    let (first, sequences) = (number("SEED", 1), number("SEQUENCES", 200));
    let next = Arc::new(AtomicU64::new(first));
    let coverage: Arc<Mutex<BTreeMap<String, [u64; 3]>>> = Arc::default();
    let differences: Arc<Mutex<Vec<String>>> = Arc::default();
    let has_collector = variable("NO_CONTROLLERS").is_none();
    let run = format!("{:x}", std::process::id());
    let mut workers = Vec::new();
    for worker in 0..number("WORKERS", 4) {
        let (real, served, kinds) = (real.clone(), served.clone(), kinds.clone());
        let (next, coverage, differences) = (next.clone(), coverage.clone(), differences.clone());
        let namespace = format!("kube-sim-{run}-{worker}");
        workers.push(tokio::spawn(async move {
            let body = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": namespace } });
            let created = real.send("POST", "/api/v1/namespaces", "application/json", "", Some(&body)).await;
            assert_eq!(created.code, 201, "{}", created.body);
            loop {
                let seed = next.fetch_add(1, Ordering::Relaxed);
                if seed >= first + sequences || differences.lock().unwrap().len() >= 30 {
                    break;
                }
                let found = sequence::run(&real, &served, &kinds, (&namespace, has_collector), seed, &coverage).await;
                differences.lock().unwrap().extend(found);
            }
            clean_up(&real, &kinds, &namespace).await;
        }));
    }
    for worker in workers {
        worker.await.unwrap();
    }
    let widgets = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/widgets.sim.example.com";
    real.send("DELETE", widgets, "", "", None).await;
    println!("{:<60} {:>8} {:>8} {:>8}", "request", "2xx", "4xx", "5xx");
    for (row, counts) in coverage.lock().unwrap().iter() {
        println!("{row:<60} {:>8} {:>8} {:>8}", counts[0], counts[1], counts[2]);
    }
    let differences = differences.lock().unwrap();
    let done = (next.load(Ordering::Relaxed) - first).min(sequences);
    println!("{done} sequences, {} differences", differences.len());
    for difference in differences.iter() {
        println!("{difference}");
    }
    assert!(differences.is_empty(), "{} differences", differences.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_garbage_collector_keeps_the_same_objects() {
    let count = number("COLLECTIONS", 0);
    if variable("KUBECONFIG").is_none() || count == 0 {
        eprintln!("SKIPPED: set KUBECONFIG and COLLECTIONS to compare the garbage collector with a real one");
        return;
    }
    let _ = rustls::crypto::ring::default_provider().install_default();
    let (real, served, first) = (Side::real().await, Kinds::builtin().unwrap(), number("SEED", 1));
    let runs = (first..first + count).map(|seed| collection::run(&real, &served, seed));
    let found: Vec<Option<String>> =
        futures::StreamExt::collect(futures::StreamExt::buffered(futures::stream::iter(runs), 8)).await;
    let differences: Vec<String> = found.into_iter().flatten().collect();
    println!("{count} scenarios, {} differences", differences.len());
    differences.iter().for_each(|difference| println!("{difference}"));
    assert!(differences.is_empty(), "{} differences", differences.len());
}

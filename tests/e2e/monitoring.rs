//! Tests that a Prometheus server scrapes the controller metrics and evaluates the alerts.

use axum::Router;
use axum::http::header::CONTENT_TYPE;
use axum::routing::get;
use kube::{Client, ResourceExt};
use pulumi_controller::api::pulumi::Program as ProgramObject;
use pulumi_controller::telemetry::metrics;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::process::{Child, Command};

use crate::harness::{Controller, Poll, Program, WaitLimit, http, run, wait_until};

/// A Prometheus server. Drop this value to stop the server.
struct Prometheus {
    port: u16,
    _process: Child,
    _folder: tempfile::TempDir,
}

impl Prometheus {
    /// Starts a server that scrapes metrics from a local port and evaluates the alerts.
    async fn start(metrics_port: u16) -> Prometheus {
        let folder = tempfile::tempdir().expect("temporary directory");
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/config/monitoring/rules/prometheusrule.yaml");
        let text = std::fs::read_to_string(path).expect("the file with the alerts");
        let object: Value = serde_saphyr::from_str(&text).expect("a PrometheusRule");
        // JSON is also valid YAML.
        let config = json!({
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": ["rules.yaml"],
            "scrape_configs": [{
                "job_name": "pulumi-controller",
                "honor_labels": true,
                "static_configs": [{"targets": [format!("127.0.0.1:{metrics_port}")]}],
            }],
        });
        for (name, content) in [("rules.yaml", &object["spec"]), ("prometheus.yaml", &config)] {
            std::fs::write(folder.path().join(name), content.to_string()).expect("a file for Prometheus");
        }
        let port = free_port().await;
        let process = Command::new("prometheus")
            .arg(format!("--config.file={}", folder.path().join("prometheus.yaml").display()))
            .arg(format!("--storage.tsdb.path={}", folder.path().join("data").display()))
            .arg(format!("--web.listen-address=127.0.0.1:{port}"))
            .arg("--log.level=warn")
            .kill_on_drop(true)
            .spawn()
            .expect("prometheus is on the PATH after `tests/cluster/cluster prometheus`");
        Prometheus { port, _process: process, _folder: folder }
    }

    /// Returns the `data` field of a response, or `None` while the server is starting.
    async fn read(&self, path: &str) -> Option<Value> {
        let url = format!("http://127.0.0.1:{}/api/v1/{path}", self.port);
        let text = http::client().get(&url).send().await.ok()?.text().await.ok()?;
        let response: Value = serde_json::from_str(&text).ok()?;
        Some(response["data"].clone())
    }
}

async fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    listener.local_addr().expect("a bound socket").port()
}

/// Forwards a local port to the controller's metrics, and returns the port. The Prometheus server cannot connect to the
/// pods of an existing cluster.
async fn forward_metrics(client: Client) -> u16 {
    let pod = Controller::new(&client).pod().await.name_any();
    let read = move || {
        let (client, pod) = (client.clone(), pod.clone());
        async move {
            let text = Controller::new(&client).get_endpoint(&pod, 8080, "/metrics").await;
            ([(CONTENT_TYPE, metrics::CONTENT_TYPE)], text)
        }
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let port = listener.local_addr().expect("a bound socket").port();
    tokio::spawn(async move { axum::serve(listener, Router::new().route("/metrics", get(read))).await });
    port
}

#[test]
fn prometheus_reads_the_metrics_of_a_stack_and_evaluates_all_alerts() {
    run("prometheus", async |scene| {
        scene.create::<ProgramObject>(Program::new("app").output("result", json!("hello")).object("app")).await;
        let main = scene.start(scene.stack_on_program("main", "app")).await;
        main.until_revision("1").await;
        let prometheus = Prometheus::start(forward_metrics(scene.client.clone()).await).await;
        let query = format!("query?query=stacks_failing{{namespace=\"{}\",name=\"main\"}}", scene.namespace);
        wait_until("Prometheus to read the state of the Stack", WaitLimit::Reaction, async || {
            let found = prometheus.read(&query).await.unwrap_or_default();
            match found["result"][0]["value"][1] == "0" {
                true => Poll::Found(()),
                false => Poll::NotYet(found.to_string()),
            }
        })
        .await;
        wait_until("Prometheus to evaluate all alerts", WaitLimit::Reaction, async || {
            let found = prometheus.read("rules").await.unwrap_or_default();
            let rules = found["groups"].as_array().into_iter().flatten().map(|group| group["rules"].as_array());
            let health: Vec<&Value> = rules.flatten().flatten().map(|rule| &rule["health"]).collect();
            match !health.is_empty() && health.iter().all(|health| **health == "ok") {
                true => Poll::Found(()),
                false => Poll::NotYet(found.to_string()),
            }
        })
        .await;
    });
}

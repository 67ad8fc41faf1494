//! Tests run traces with a real OpenTelemetry Collector.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use kube::ResourceExt;
use pulumi_controller::api::auto::Update;
use pulumi_controller::controller::update::TraceContext;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, Command};

use crate::fake_nodes;
use crate::harness::{
    Commit, Controller, Poll, Program, Scene, StackHandle, WaitLimit, client, in_scene, report_skipped, run_alone,
    run_with_cleanup, wait_until,
};
use crate::runs_parts::slow;

/// Names of the spans that a push produces, in order.
const PHASES: [&str; 5] = ["fetch", "placement", "queue", "run", "record"];
/// Failpoint after the controller has recorded a run's result, and before it exports the run's spans.
const RECORDED: &str = "update-recorded";

/// A collector on this machine. Drop this value to stop the collector.
struct Collector {
    http_port: u16,
    grpc_port: u16,
    file: PathBuf,
    _process: Child,
    _folder: tempfile::TempDir,
}

/// A span that the collector has received.
#[derive(Clone, Debug)]
struct Collected {
    service: String,
    name: String,
    id: String,
    parent: String,
    start: u64,
    end: u64,
    attributes: BTreeMap<String, String>,
}

impl Collector {
    /// Starts a collector that writes the received spans to a file.
    async fn start() -> Collector {
        let folder = tempfile::tempdir().expect("temporary directory");
        let (http_port, grpc_port) = (free_port().await, free_port().await);
        let file = folder.path().join("spans.json");
        let endpoint = |port: u16| json!({"endpoint": format!("0.0.0.0:{port}")});
        // JSON is also valid YAML.
        let config = json!({
            "receivers": {"otlp": {"protocols": {"http": endpoint(http_port), "grpc": endpoint(grpc_port)}}},
            "exporters": {"file": {"path": file, "flush_interval": "200ms"}},
            "service": {
                "pipelines": {"traces": {"receivers": ["otlp"], "exporters": ["file"]}},
                "telemetry": {"metrics": {"level": "none"}},
            },
        });
        let config_file = folder.path().join("config.yaml");
        std::fs::write(&config_file, config.to_string()).expect("a file for the collector");
        let process = Command::new("otel-collector")
            .arg(format!("--config=file:{}", config_file.display()))
            .kill_on_drop(true)
            .spawn()
            .expect("otel-collector is on the PATH after `tests/cluster/cluster otel-collector`");
        wait_until("the collector to listen", WaitLimit::Reaction, async || {
            match TcpStream::connect(("127.0.0.1", http_port)).await {
                Ok(_) => Poll::Found(()),
                Err(error) => Poll::NotYet(error.to_string()),
            }
        })
        .await;
        Collector { http_port, grpc_port, file, _process: process, _folder: folder }
    }

    /// Returns the controller flags that send the spans from the controller and the CLI to this collector.
    fn flags(&self) -> [String; 2] {
        let node = fake_nodes::address().ip();
        [
            format!("--otlp-endpoint=http://{node}:{}", self.http_port),
            format!("--workspace-otlp-endpoint=grpc://{node}:{}", self.grpc_port),
        ]
    }

    /// Returns the spans of a trace.
    fn spans(&self, trace: &str) -> Vec<Collected> {
        let text = std::fs::read_to_string(&self.file).unwrap_or_default();
        let batches = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let mut spans = Vec::new();
        for resource in batches.flat_map(|batch| list(&batch["resourceSpans"])) {
            let service = attributes(&resource["resource"]).remove("service.name").unwrap_or_default();
            let found = list(&resource["scopeSpans"]).into_iter().flat_map(|scope| list(&scope["spans"]));
            let found = found.filter(|span| span["traceId"] == trace);
            spans.extend(found.map(|span| Collected::of(&service, &span)));
        }
        spans
    }

    /// Waits until the controller and the CLI have exported all spans for an Update's run, and returns the spans.
    async fn until_complete(&self, update: &Update) -> Vec<Collected> {
        let trace = trace_of(update);
        wait_until(format!("the spans of trace {trace}"), WaitLimit::Reaction, async || {
            let spans = self.spans(&trace);
            let has = |service: &str, name: &str| spans.iter().any(|span| span.service == service && span.name == name);
            let is_complete = PHASES.iter().chain(&["pulumi up"]).all(|name| has("pulumi-controller", name));
            match is_complete && has("pulumi-cli", "pulumi") {
                true => Poll::Found(spans),
                false => Poll::NotYet(format!("{spans:?}")),
            }
        })
        .await
    }
}

impl Collected {
    fn of(service: &str, span: &Value) -> Self {
        let text = |key: &str| span[key].as_str().unwrap_or_default().to_owned();
        let time = |key: &str| text(key).parse().expect("a time in nanoseconds");
        Collected {
            service: service.to_owned(),
            name: text("name"),
            id: text("spanId"),
            parent: text("parentSpanId"),
            start: time("startTimeUnixNano"),
            end: time("endTimeUnixNano"),
            attributes: attributes(span),
        }
    }
}

fn list(value: &Value) -> Vec<Value> {
    value.as_array().cloned().unwrap_or_default()
}

/// Returns the span attributes whose values are strings.
fn attributes(object: &Value) -> BTreeMap<String, String> {
    let text = |attribute: Value| {
        Some((attribute["key"].as_str()?.to_owned(), attribute["value"]["stringValue"].as_str()?.to_owned()))
    };
    list(&object["attributes"]).into_iter().filter_map(text).collect()
}

async fn free_port() -> u16 {
    let listener = TcpListener::bind("0.0.0.0:0").await.expect("a free port");
    listener.local_addr().expect("a bound socket").port()
}

fn trace_of(update: &Update) -> String {
    TraceContext::of(update).trace().to_string()
}

/// Returns the Update that records the first run for a commit.
async fn update_of(main: &StackHandle<'_>, commit: &Commit) -> Update {
    let revision = commit.revision();
    let is_of_commit = |update: &Update| update.artifact().is_some_and(|artifact| artifact.revision == revision);
    main.updates().await.into_iter().find(is_of_commit).expect("an Update of the commit")
}

/// Returns the only controller span with this name.
fn the<'a>(spans: &'a [Collected], name: &str) -> &'a Collected {
    let found: Vec<&Collected> =
        spans.iter().filter(|span| span.service == "pulumi-controller" && span.name == name).collect();
    let ids: BTreeSet<&str> = found.iter().map(|span| span.id.as_str()).collect();
    assert_eq!(ids.len(), 1, "{name}: {spans:#?}");
    found[0]
}

#[test]
fn each_push_is_one_trace_from_the_artifact_to_the_recorded_result() {
    if !fake_nodes::are_available() {
        report_skipped("exclusive::traces", "the pods of an existing cluster cannot connect to this machine");
        return;
    }
    run_alone(async || {
        let controller = Controller::new(&client().await);
        let before = controller.arguments().await;
        let test = async || {
            let collector = Collector::start().await;
            controller.start_with(&[before.as_slice(), &collector.flags()].concat(), 1).await;
            in_scene("traces", async |scene| check(scene, &controller, &collector).await).await;
        };
        let cleanup = async || {
            controller.restart_with_failpoint(None).await;
            controller.start_with(&before, 1).await;
        };
        run_with_cleanup(test, cleanup).await;
    });
}

async fn check(scene: &Scene, controller: &Controller, collector: &Collector) {
    let source = scene.source("app").await;
    let first = source.push(&Program::new("traces").step("step", json!({"value": "one"})).files()).await;
    let main = scene.start(scene.stack("main", &source)).await;
    main.until_applied(&first).await;
    let update = update_of(&main, &first).await;
    check_trace(scene, &update, &collector.until_complete(&update).await);
    let trace = trace_of(&update);
    let lines = controller.log_lines(&trace).await;
    for message in ["run requested", "run finished"] {
        assert!(lines.iter().any(|line| line.contains(message)), "{message}: {lines:#?}");
    }
    let log = main.pod_log("pulumi").await;
    assert!(log.contains(&trace), "the log of the agent contains the trace: {log}");

    // Kills the controller during the run. The new process exits at the failpoint before it exports the spans.
    let second = source.push(&slow("traces", 10).files()).await;
    main.log.wait_for("create", "slow", "begin").await;
    controller.kill().await;
    controller.until_available().await;
    main.until_applied(&second).await;
    let update = update_of(&main, &second).await;
    let spans = collector.until_complete(&update).await;
    check_trace(scene, &update, &spans);
    let created = spans.iter().find(|span| span.name.starts_with("create ")).expect("a span of the resource");
    assert_eq!(created.attributes.get("pulumi.resource.name").map(String::as_str), Some("slow"));
    assert!(created.end - created.start > 5_000_000_000, "the span has the times of the operation: {created:?}");

    controller.restart_with_failpoint(Some(RECORDED)).await;
    let third = source.push(&Program::new("traces").step("step", json!({"value": "three"})).files()).await;
    main.until_applied(&third).await;
    controller.until_failpoint_reached(RECORDED).await;
    let update = update_of(&main, &third).await;
    let spans = collector.until_complete(&update).await;
    for name in PHASES.iter().chain(&["pulumi up"]) {
        the(&spans, name);
    }
}

/// Checks the spans of a run. A crash must not have affected the span export.
fn check_trace(scene: &Scene, update: &Update, spans: &[Collected]) {
    let (root, run) = (the(spans, "pulumi up"), the(spans, "run"));
    assert_eq!(root.parent, "");
    assert_eq!(root.attributes.get("k8s.namespace.name"), Some(&scene.namespace));
    assert_eq!(root.attributes.get("pulumi.controller.update"), Some(&update.name_any()));
    assert_eq!(root.attributes.get("pulumi.outcome").map(String::as_str), Some("Succeeded"));
    let mut previous = root.start;
    for name in PHASES {
        let phase = the(spans, name);
        assert_eq!(phase.parent, root.id, "{name}");
        assert!(phase.start >= previous && phase.end >= phase.start && phase.end <= root.end, "{spans:#?}");
        previous = phase.end;
    }
    let resources: Vec<_> = spans.iter().filter(|span| span.attributes.contains_key("pulumi.resource.urn")).collect();
    assert!(!resources.is_empty(), "{spans:#?}");
    for resource in resources {
        assert_eq!(resource.parent, run.id);
        assert!(resource.start >= run.start && resource.end <= run.end, "{resource:?}");
    }
    let cli: Vec<_> = spans.iter().filter(|span| span.service == "pulumi-cli" && span.name == "pulumi").collect();
    assert!(!cli.is_empty() && cli.iter().all(|span| span.parent == run.id), "{spans:#?}");
}

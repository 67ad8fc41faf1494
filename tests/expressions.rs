//! Tests the evaluation of `dependsOn[].readyExpr` in child processes of the controller binary, with resource limits.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a missing prerequisite fails the test"
)]

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use futures::StreamExt;
use pulumi_controller::api::pulumi::Stack;
use pulumi_controller::controller::stack::{Evaluator, ExpressionError};
use pulumi_controller::runtime::requeue::{self, Requeues};
use pulumi_controller::subprocess::Subprocess;
use serde_json::json;
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Timeout of a response, which is long enough for a slow machine.
const TEST_TIMEOUT: Duration = Duration::from_secs(60);

struct Fixture {
    evaluator: Evaluator,
    requeued: Requeues<Stack>,
    tasks: TaskTracker,
    end: CancellationToken,
    directory: TempDir,
}

impl Fixture {
    /// Creates an evaluator that starts child processes of the controller binary, and records each start.
    fn new() -> Self {
        let directory = TempDir::new().unwrap();
        let program = directory.path().join("program");
        let (started, binary) = (directory.path().join("started"), env!("CARGO_BIN_EXE_pulumi-controller"));
        std::fs::write(&program, format!("#!/bin/sh\necho $$ >> {}\nexec {binary} \"$@\"\n", started.display()))
            .unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        let (requeue, requeued) = requeue::queue();
        let (tasks, end) = (TaskTracker::new(), CancellationToken::new());
        let evaluator = Evaluator::new(Subprocess::of(program), requeue, tasks.clone(), end.clone());
        Fixture { evaluator, requeued, tasks, end, directory }
    }

    /// Returns the process IDs of all child processes that the evaluator has started.
    fn started(&self) -> Vec<u32> {
        let started = std::fs::read_to_string(self.directory.path().join("started")).unwrap_or_default();
        started.lines().map(|line| line.parse().unwrap()).collect()
    }

    /// Waits for the final result of an expression. Like the controller, evaluates the expression again only after the
    /// evaluator has requeued the Stack.
    async fn evaluate(&mut self, expression: &str, this: &Stack, dep: &Stack) -> Result<bool, ExpressionError> {
        let response = async {
            loop {
                if let Some(result) = self.evaluator.evaluate(expression, this, dep).await {
                    return result;
                }
                while self.requeued.next().await.expect("a requeue").name != this.metadata.name.clone().unwrap() {}
            }
        };
        tokio::time::timeout(TEST_TIMEOUT, response)
            .await
            .unwrap_or_else(|_| panic!("no result within {TEST_TIMEOUT:?}: {expression}"))
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        self.end.cancel();
    }
}

fn stack(namespace: &str, name: &str, outputs: serde_json::Value) -> Stack {
    serde_json::from_value(json!({
        "apiVersion": "pulumi.com/v1", "kind": "Stack", "metadata": {"namespace": namespace, "name": name},
        "spec": {"stack": "dev", "fluxSource": {"sourceRef": {"kind": "Bucket", "name": "b"}}},
        "status": {"outputs": outputs},
    }))
    .unwrap()
}

/// Returns the resident memory of this process in bytes.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

const MEMORY: &str = "memory limit of 96Mi exceeded";
/// Error message about the CPU time limit. An unoptimized build on a busy machine can reach this limit before the
/// memory limit.
const CPU: &str = "CPU time limit of 1 s exceeded";

/// Returns an expression with nine chained calls. The calls expand a string of ten bytes to 10 GB.
fn chained_replace() -> String {
    format!("'aaaaaaaaaa'{} == ''", ".replace('a', 'aaaaaaaaaa')".repeat(9))
}

#[tokio::test(flavor = "multi_thread")]
async fn an_expression_that_exceeds_a_limit_is_stopped_and_reported() {
    let ranges = vec!["lists.range(1000000)"; 40].join(" + ");
    let nested = "lists.range(1000).all(a, lists.range(1000).all(b, lists.range(1000).all(c, a + b + c >= 0)))";
    let rows = [
        (chained_replace(), &[MEMORY, CPU][..]),
        (format!("({ranges}).size() > 1"), &[MEMORY, CPU]),
        (nested.to_owned(), &[CPU]),
    ];
    let before = resident();
    let evaluations = rows.map(|(expression, expected)| async move {
        assert!(expression.len() <= 1024, "the schema limits expressions to 1024 characters");
        let mut fixture = Fixture::new();
        let (this, dep) = (stack("apps", "app", json!({})), stack("apps", "base", json!({})));
        let response = fixture.evaluate(&expression, &this, &dep).await;
        assert!(
            matches!(&response, Err(ExpressionError::LimitExceeded(why)) if expected.iter().any(|limit| why.contains(limit))),
            "{expression}: {response:?}"
        );
        // The cache returns the result of a repeated expression, even if the first evaluation has exceeded a limit.
        assert_eq!(fixture.evaluate(&expression, &this, &dep).await, response);
        assert_eq!(fixture.started().len(), 1, "{expression}");
    });
    futures::future::join_all(evaluations).await;
    let grown = resident().saturating_sub(before);
    assert!(grown < 256 << 20, "the memory of the parent has grown by {grown} bytes");
}

#[tokio::test(flavor = "multi_thread")]
async fn expressions_that_exceed_limits_delay_no_other_namespace() {
    let mut fixture = Fixture::new();
    let mut evaluated = 0;
    let mut delays = Vec::new();
    let began = Instant::now();
    for round in 0..20 {
        for attacker in 0..4 {
            let this = stack("attacker", &format!("app-{attacker}"), json!({"round": round}));
            let response =
                fixture.evaluator.evaluate(&chained_replace(), &this, &stack("attacker", "base", json!({}))).await;
            evaluated += usize::from(matches!(response, Some(Err(ExpressionError::LimitExceeded(_)))));
        }
        let (this, dep) = (stack("victim", "app", json!({})), stack("victim", "base", json!({"round": round})));
        let start = Instant::now();
        let expression = format!("dep.status.outputs.round == {round}");
        assert_eq!(fixture.evaluate(&expression, &this, &dep).await, Ok(true));
        delays.push(start.elapsed());
    }
    // Compares the median, because other processes on a busy machine can delay a single evaluation.
    delays.sort();
    assert!(delays[delays.len() / 2] < Duration::from_secs(1), "{delays:?}");
    // After an expression has exceeded a limit, the evaluator pauses evaluations for the attacker's namespace. The
    // first expression occupies a slot for cheap evaluations. Only the next expression occupies a slot for expensive
    // evaluations.
    let pauses = usize::try_from(began.elapsed().as_secs() / 10).unwrap();
    assert!(evaluated <= 2 + pauses, "{evaluated} results in {:?}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn results_are_cached_until_the_data_changes() {
    let mut fixture = Fixture::new();
    let (this, dep) = (stack("apps", "app", json!({})), stack("apps", "base", json!({"count": 2})));
    for _ in 0..3 {
        assert_eq!(fixture.evaluate("dep.status.outputs.count == 2", &this, &dep).await, Ok(true));
    }
    assert_eq!(fixture.started().len(), 1, "one evaluation per expression");
    let changed = stack("apps", "base", json!({"count": 3}));
    assert_eq!(fixture.evaluate("dep.status.outputs.count == 2", &this, &changed).await, Ok(false));
    assert_eq!(fixture.started().len(), 2);
    assert!(fixture.evaluate("dep.status.(", &this, &dep).await.is_err());
    fixture.tasks.close();
    fixture.tasks.wait().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn maximum_size_objects_and_deep_expressions_fit_within_the_limits() {
    let mut fixture = Fixture::new();
    let zones: Vec<_> = (0..10_000).map(|n| json!({"name": format!("zone-{n:080}"), "size": n})).collect();
    let text = "x".repeat(400_000);
    let large = stack("apps", "base", json!({"zones": zones, "text": text}));
    let size = serde_json::to_vec(&large).unwrap().len();
    assert!(size > 1_400_000, "{size}: the limit of etcd is 1.5 MiB");
    let expression = "self.status.outputs.zones.all(z, z.size < 30000) && dep.status.outputs.text.size() == 400000";
    assert_eq!(fixture.evaluate(expression, &large, &large).await, Ok(true));
    let (this, dep) = (stack("apps", "app", json!({})), stack("apps", "base", json!({})));
    for (part, end, count) in [("(", ")", 500), ("[", "]", 500), ("!", "", 1000), ("1+", "", 500), ("-", "", 1000)] {
        let expression = format!("{}1{}", part.repeat(count), end.repeat(count));
        let response = fixture.evaluate(&expression, &this, &dep).await;
        assert!(matches!(response, Err(ExpressionError::Invalid(_))), "{part}: {response:?}");
    }
    for (part, end) in [("(", ")"), ("[", "]")] {
        let expression = format!("{}1{} == 1", part.repeat(45), end.repeat(45));
        let response = fixture.evaluate(&expression, &this, &dep).await;
        assert!(!matches!(response, Err(ExpressionError::LimitExceeded(_))), "{part}: {response:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_child_process_has_limits_and_inherits_nothing_from_its_parent() {
    let secret = tempfile::NamedTempFile::new().unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let fixture = Fixture::new();
    let burn = "lists.range(1000).all(a, lists.range(1000).all(b, lists.range(1000).all(c, true)))";
    let (this, dep) = (stack("apps", "app", json!({})), stack("apps", "base", json!({})));
    let result = fixture.evaluator.evaluate(burn, &this, &dep).await;
    assert_eq!(result, None, "the evaluation is still running");
    let child = PathBuf::from(format!("/proc/{}", fixture.started()[0]));
    let read = |name: &str| std::fs::read_to_string(child.join(name)).unwrap_or_default();
    let began = Instant::now();
    while !read("limits").lines().any(|line| line.starts_with("Max processes") && line.contains(" 0 ")) {
        assert!(began.elapsed() < Duration::from_millis(900), "the evaluation has no limits: {}", read("limits"));
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let limits: BTreeMap<String, String> = read("limits").lines().map(limit).collect();
    let expected = [
        ("Max address space", (512 << 20).to_string()),
        ("Max data size", (96 << 20).to_string()),
        ("Max cpu time", "1".to_owned()),
        ("Max core file size", "0".to_owned()),
        ("Max file size", "0".to_owned()),
        ("Max open files", "16".to_owned()),
    ];
    for (name, value) in expected {
        assert_eq!(limits.get(name), Some(&value), "{name}: {limits:?}");
    }
    assert_eq!(read("oom_score_adj").trim(), "1000");
    assert!(read("status").lines().any(|line| line.split_whitespace().eq(["NoNewPrivs:", "1"])), "{}", read("status"));
    assert_eq!(read("cmdline").split('\0').skip(1).collect::<Vec<_>>(), ["evaluate", ""]);
    let environment = read("environ");
    assert!(
        environment.split('\0').all(|v| v.is_empty() || v.starts_with("PWD=")),
        "the environment contains only variables of the shell: {environment}"
    );
    for descriptor in std::fs::read_dir(child.join("fd")).unwrap().flatten() {
        let target = std::fs::read_link(descriptor.path()).unwrap_or_default();
        assert_ne!(target, secret.path(), "the child has inherited an open file");
        let is_ours = std::fs::read_dir("/proc/self/fd")
            .unwrap()
            .flatten()
            .any(|own| std::fs::read_link(own.path()).is_ok_and(|own| own == target && own.starts_with("socket:")));
        assert!(!is_ours, "the child has inherited a socket: {}", target.display());
    }
    drop(listener);
}

/// Returns the name and the soft limit in a line of `/proc/PID/limits`.
fn limit(line: &str) -> (String, String) {
    let (name, values) = line.split_at(line.len().min(26));
    (name.trim().to_owned(), values.split_whitespace().next().unwrap_or_default().to_owned())
}

/// A process with the role `evaluate` must not evaluate untrusted expressions without resource limits.
#[test]
fn the_evaluate_role_does_not_start_without_limits() {
    let binary = Path::new(env!("CARGO_BIN_EXE_pulumi-controller"));
    let output =
        std::process::Command::new(binary).arg("evaluate").stdin(std::process::Stdio::null()).output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && message.contains("only the controller starts this role"), "{message}");
}

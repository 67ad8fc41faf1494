//! Tests for source lookups and source watches, with an API server whose responses change.

use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use tokio_util::task::TaskTracker;

use super::*;
use crate::api::pulumi::{FluxSource, SourceReference, StackSpec, StackStatus};
use crate::controller::stack::dependents;
use crate::runtime::fake_api::{FakeResponse, Log, RecordedRequest, client};
use crate::runtime::index::{IndexWriter, StoreWriter as _};
use crate::runtime::reconcile::ReconcileRunner;
use crate::source;
use crate::source::flux::Found;
use crate::telemetry::metrics::Metrics;

const LIMIT: Duration = Duration::from_secs(3600);
const REPORTS: &str = "/apis/artifacts.example.com/v1/namespaces/apps/reports/app";
const REVISION: &str = "main@sha1:0000000000000000000000000000000000000002";
const ALL_REPORTS: &str = "/apis/artifacts.example.com/v1/reports";

/// API server for the kind `Report`. Tests can change its responses.
#[derive(Default)]
struct Server {
    /// Current behavior: `SERVED`, `FORBIDDEN` or `NOT_SERVED`.
    behavior: AtomicUsize,
    /// 1 if the API server forbids only watches, otherwise 0.
    watch_is_forbidden: AtomicUsize,
    watches: AtomicUsize,
}

const SERVED: usize = 0;
const FORBIDDEN: usize = 1;
const NOT_SERVED: usize = 2;

impl Server {
    fn set(&self, behavior: usize) {
        self.behavior.store(behavior, Ordering::SeqCst);
    }

    fn respond(&self, request: &RecordedRequest) -> FakeResponse {
        let behavior = self.behavior.load(Ordering::SeqCst);
        let is_watched = request.path == ALL_REPORTS;
        match behavior {
            NOT_SERVED if request.path == "/apis" => discovery(&[]),
            _ if request.path == "/apis" => discovery(&["Report"]),
            NOT_SERVED => FakeResponse::Json(404, json!("404 page not found")),
            FORBIDDEN => FakeResponse::refusal(403, "Forbidden"),
            _ if is_watched && self.watch_is_forbidden.load(Ordering::SeqCst) == 1 => {
                FakeResponse::refusal(403, "Forbidden")
            }
            _ if request.query.contains("watch=true") => self.watch(),
            _ if is_watched => FakeResponse::Json(
                200,
                json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadataList",
                    "metadata": {"resourceVersion": "1"}, "items": [metadata("app", 1)]}),
            ),
            _ => FakeResponse::Json(200, report()),
        }
    }

    /// Returns watch events for changes to `app` and to another source. Later watches receive no events.
    fn watch(&self) -> FakeResponse {
        if self.watches.fetch_add(1, Ordering::SeqCst) > 0 {
            return FakeResponse::Silence;
        }
        FakeResponse::events([("MODIFIED", metadata("another", 2)), ("MODIFIED", metadata("app", 3))])
    }
}

fn metadata(name: &str, version: u32) -> Value {
    json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata",
        "metadata": {"name": name, "namespace": "apps", "resourceVersion": version.to_string()}})
}

fn report() -> Value {
    json!({"apiVersion": "artifacts.example.com/v1", "kind": "Report",
    "metadata": {"name": "app", "namespace": "apps"},
    "status": {"artifact": {
        "url": "http://sources/app.tar.gz", "revision": REVISION, "digest": format!("sha256:{:064}", 0),
    }}})
}

fn discovery(kinds: &[&str]) -> FakeResponse {
    let resources: Vec<Value> = kinds
        .iter()
        .map(|kind| {
            json!({"resource": format!("{}s", kind.to_lowercase()), "responseKind": {"kind": kind},
                "scope": "Namespaced", "verbs": ["get", "list", "watch"]})
        })
        .collect();
    FakeResponse::Json(
        200,
        json!({"items": [
            {"metadata": {"name": "apps"}, "versions": [{"version": "v1", "resources": []}]},
            {"metadata": {"name": "artifacts.example.com"}, "versions": [{"version": "v1", "resources": resources}]},
        ]}),
    )
}

fn stack(name: &str, source: &str) -> Stack {
    let source_ref = SourceReference {
        api_version: Some("artifacts.example.com/v1beta1".to_owned()),
        kind: "Report".to_owned(),
        name: source.to_owned(),
        namespace: None,
    };
    let spec = StackSpec { flux_source: Some(FluxSource { source_ref, dir: None }), ..StackSpec::default() };
    let mut stack = Stack::new(name, spec);
    stack.metadata.namespace = Some("apps".to_owned());
    stack
}

/// Watches with a fake API server. The Stack `main` refers to the source `app`, and the Stack `other` refers to the
/// source `b`.
struct Scene {
    server: Arc<Server>,
    log: Log,
    sources: Sources,
    watches: SourceWatches,
    requeued: std::pin::Pin<Box<dyn Stream<Item = ObjectRef<Stack>> + Send>>,
    stacks: IndexWriter<Stack, StackGroup>,
    end: CancellationToken,
    tasks: TaskTracker,
}

impl Scene {
    fn new() -> Self {
        let server = Arc::new(Server::default());
        let responding = server.clone();
        let (client, log) = client(move |request| responding.respond(request));
        let (store, mut stacks) = dependents::stacks();
        for stack in [stack("main", "app"), stack("other", "b")] {
            stacks.apply(&Event::Apply(stack));
        }
        let sources = Sources::new(client.clone());
        let (tasks, end) = (TaskTracker::new(), CancellationToken::new());
        let (critical_tasks, _) = CriticalTasks::new(tasks.clone());
        let (watches, requeued) =
            SourceWatches::new(client, Scope::default(), store, sources.clone(), critical_tasks, end.clone());
        Scene { server, log, sources, watches, requeued: Box::pin(requeued), stacks, end, tasks }
    }

    async fn find_source(&self) -> Result<Found, Unavailable> {
        let reference = source::reference(&stack("main", "app").spec).unwrap();
        self.sources.find("apps", &reference).await
    }

    /// Returns the names of the next requeued Stacks, sorted.
    async fn requeued(&mut self, count: usize) -> Vec<String> {
        let names = self.requeued.by_ref().take(count).map(|stack| stack.name.clone()).collect::<Vec<String>>();
        let mut names = tokio::time::timeout(LIMIT, names).await.expect("Stacks are requeued");
        names.sort();
        names
    }

    fn requests(&self, path: &str) -> usize {
        self.log.all().iter().filter(|request| request.path == path).count()
    }

    async fn tasks_end(&self) {
        self.tasks.close();
        tokio::time::timeout(LIMIT, self.tasks.wait()).await.expect("the watches end within the timeout");
    }
}

#[tokio::test(start_paused = true)]
async fn a_source_kind_is_watched_once_and_its_changes_requeue_stacks() {
    let mut scene = Scene::new();
    for _ in 0..3 {
        let found = scene.find_source().await.expect("source found");
        assert_eq!(found.resource.api_version, "artifacts.example.com/v1");
        scene.watches.keep(&found.resource).expect("watch started");
    }
    assert_eq!(scene.requeued(2).await, ["main", "other"], "the sources may have changed before the watch started");
    assert_eq!(scene.requeued(1).await, ["main"], "only the Stack of the changed source is requeued");
    assert_eq!((scene.requests("/apis"), scene.requests(REPORTS)), (1, 3), "the kinds are listed once");
    scene.end.cancel();
    scene.tasks_end().await;
}

#[tokio::test(start_paused = true)]
async fn first_reconciliations_share_the_read_of_a_source_until_it_changes() {
    let mut scene = Scene::new();
    let reference = source::reference(&stack("main", "app").spec).unwrap();
    for _ in 0..2 {
        let found = scene.watches.find_first("apps", &reference).await.expect("source found");
        assert_eq!(scene.requests(REPORTS), 1, "the second reconciliation uses the result of the first one");
        scene.watches.keep(&found.resource).expect("watch started");
    }
    scene.requeued(2).await;
    scene.requeued(1).await;
    for _ in 0..2 {
        scene.watches.find_first("apps", &reference).await.expect("source found");
        assert_eq!(scene.requests(REPORTS), 2, "the source has changed once");
    }
    scene.end.cancel();
    scene.tasks_end().await;
}

#[tokio::test(start_paused = true)]
async fn stacks_of_a_source_that_changed_before_the_start_precede_other_stacks() {
    let mut scene = Scene::new();
    let runner = Arc::new(ReconcileRunner::new::<Stack>("stack", LIMIT, Metrics::default()));
    scene.watches.set_runner(runner.clone());
    for (name, applied) in [("outdated", "main@sha1:1"), ("current", REVISION)] {
        let mut stack = stack(name, "app");
        let status = StackStatus { last_applied_revision: Some(applied.to_owned()), ..StackStatus::default() };
        stack.status = Some(status);
        scene.stacks.apply(&Event::Apply(stack));
    }
    scene.watches.promote_one_stack_per_source();
    let first = runner.promoted();
    assert_eq!(first.len(), 2, "one Stack of the source app, and the Stack of the source b: {first:?}");
    let begun: Vec<Stack> = first.iter().map(|name| stack(name, "app")).collect();
    for stack in &begun {
        runner.begin(stack);
    }
    let reference = source::reference(&stack("main", "app").spec).unwrap();
    scene.watches.find_first("apps", &reference).await.expect("source found");
    let expected = ["main", "outdated"].into_iter().filter(|name| !first.iter().any(|begun| begun == name));
    assert_eq!(runner.promoted(), expected.collect::<Vec<_>>(), "{first:?} have begun before");
}

#[tokio::test(start_paused = true)]
async fn the_first_list_requeues_only_stacks_whose_reconciliation_has_begun() {
    let mut scene = Scene::new();
    let runner = Arc::new(ReconcileRunner::new::<Stack>("stack", LIMIT, Metrics::default()));
    scene.watches.set_runner(runner.clone());
    runner.begin(&stack("other", "b"));
    let found = scene.find_source().await.expect("source found");
    scene.watches.keep(&found.resource).expect("watch started");
    assert_eq!(scene.requeued(1).await, ["other"], "the Stack main reads its source later");
    assert_eq!(scene.requeued(1).await, ["main"], "its source has changed");
    scene.end.cancel();
    scene.tasks_end().await;
}

#[tokio::test(start_paused = true)]
async fn discovery_of_an_unserved_kind_is_rate_limited() {
    let scene = Scene::new();
    scene.server.set(NOT_SERVED);
    for _ in 0..50 {
        let error = scene.find_source().await.expect_err("should not be found").to_string();
        assert!(error.contains("does not serve Report.artifacts.example.com"), "{error}");
    }
    assert_eq!(scene.log.verbs(), ["GET /apis"], "one discovery request, no watch and no read");
    scene.server.set(SERVED);
    assert!(scene.find_source().await.is_err(), "discovery is not repeated within its interval");
    tokio::time::advance(DISCOVERY_INTERVAL).await;
    assert!(scene.find_source().await.is_ok());
    assert_eq!(scene.requests("/apis"), 2);
}

const DISCOVERY_INTERVAL: Duration = Duration::from_secs(10);

#[tokio::test(start_paused = true)]
async fn an_unserved_kind_does_not_block_stacks_of_other_kinds() {
    let mut scene = Scene::new();
    let mut other = stack("other", "b");
    other.spec.flux_source.as_mut().unwrap().source_ref.kind = "Chart".to_owned();
    scene.stacks.apply(&Event::Apply(other.clone()));
    let missing = source::reference(&other.spec).unwrap();
    let error = scene.sources.find("apps", &missing).await.expect_err("should not be found").to_string();
    assert!(error.contains("does not serve Chart.artifacts.example.com"), "{error}");
    let found = scene.find_source().await.expect("source found");
    scene.watches.keep(&found.resource).expect("watch started");
    assert_eq!(scene.requeued(1).await, ["main"], "the other Stack does not reference the source");
    assert_eq!(scene.requeued(1).await, ["main"], "the source has changed");
    assert_eq!(scene.requests("/apis"), 1, "the kinds are listed once");
    scene.end.cancel();
    scene.tasks_end().await;
}

#[tokio::test(start_paused = true)]
async fn the_watch_of_a_removed_kind_ends_and_restarts_when_it_returns() {
    let mut scene = Scene::new();
    let found = scene.find_source().await.unwrap();
    scene.server.set(NOT_SERVED);
    scene.watches.keep(&found.resource).unwrap();
    assert_eq!(scene.requeued(2).await, ["main", "other"], "both Stacks are requeued");
    scene.tasks_end().await;
    let error = scene.find_source().await.expect_err("should not be found").to_string();
    assert!(error.contains("no longer serves this kind in artifacts.example.com/v1"), "{error}");
    tokio::time::advance(DISCOVERY_INTERVAL).await;
    let error = scene.find_source().await.expect_err("should not be found").to_string();
    assert!(error.contains("does not serve Report"), "{error}");

    scene.server.set(SERVED);
    tokio::time::advance(DISCOVERY_INTERVAL).await;
    let found = scene.find_source().await.expect("source found again");
    scene.watches.keep(&found.resource).expect("watch started again");
    assert_eq!(scene.requeued(2).await, ["main", "other"]);
    scene.end.cancel();
    scene.tasks_end().await;
}

#[tokio::test(start_paused = true)]
async fn a_missing_permission_is_reported_and_no_watch_starts() {
    let scene = Scene::new();
    scene.server.set(FORBIDDEN);
    let error = scene.find_source().await.expect_err("should be forbidden");
    assert!(
        matches!(&error, Unavailable::Stalled(message) if message.contains("get, list and watch on reports.artifacts.example.com")
        && message.contains("it is Forbidden") && message.contains("pulumi.com/aggregate-to-source-reader")),
        "{error:?}"
    );
    assert_eq!(scene.log.verbs(), ["GET /apis".to_owned(), format!("GET {REPORTS}")]);
    scene.server.set(SERVED);
    assert!(scene.find_source().await.is_ok(), "the new permission applies immediately");

    scene.server.set(FORBIDDEN);
    assert!(scene.find_source().await.is_err());
    scene.server.set(NOT_SERVED);
    tokio::time::advance(DISCOVERY_INTERVAL).await;
    let error = scene.find_source().await.expect_err("should be forbidden without the permission").to_string();
    assert!(error.contains("does not serve Report"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_forbidden_watch_is_reported_until_it_is_allowed() {
    let mut scene = Scene::new();
    scene.server.watch_is_forbidden.store(1, Ordering::SeqCst);
    let found = scene.find_source().await.unwrap();
    scene.watches.keep(&found.resource).expect("watch started");
    assert_eq!(scene.requeued(2).await, ["main", "other"], "both Stacks are requeued once");
    let error = scene.watches.keep(&found.resource).expect_err("should be forbidden").to_string();
    assert!(error.contains("it is Forbidden") && error.contains("reports.artifacts.example.com"), "{error}");
    assert_eq!(scene.tasks.len(), 1, "the watch retries");

    scene.server.watch_is_forbidden.store(0, Ordering::SeqCst);
    assert_eq!(scene.requeued(2).await, ["main", "other"]);
    scene.watches.keep(&found.resource).expect("watch started");
    scene.end.cancel();
    scene.tasks_end().await;
}

#[tokio::test(start_paused = true)]
async fn the_watch_of_an_unreferenced_kind_ends() {
    let mut scene = Scene::new();
    let found = scene.find_source().await.unwrap();
    scene.watches.keep(&found.resource).unwrap();
    assert_eq!(scene.requeued(2).await, ["main", "other"]);
    for (name, source) in [("main", "app"), ("other", "b")] {
        scene.stacks.apply(&Event::Delete(stack(name, source)));
    }
    scene.tasks_end().await;
    assert!(scene.watches.0.lock().is_empty());
}

//! Tests that a pod with an open run keeps its finalizer while the Update cache is incomplete or stale.

mod apply_conflicts;

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::reflector;
use kube::runtime::watcher::Event;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::super::act::{Act, Step};
use super::super::decide::Action;
use super::super::observe::observe;
use super::super::*;
use super::{ignored_call, listed};
use crate::api::auto::{ArtifactReference, Update, Workspace, WorkspaceSpec};
use crate::artifact::Digest;
use crate::controller::namespaces::Namespaces;
use crate::controller::test_parts::TestParts;
use crate::controller::update;
use crate::runtime::controller::Start;
use crate::runtime::fake_api::{FakeResponse, Log, RecordedRequest, client};
use crate::runtime::first_objects::FirstObjects;
use crate::runtime::index::{CacheSync, StoreWriter as _};
use crate::runtime::reconcile::{Outcome, ReconcileRunner};
use crate::runtime::requeue::{self, Requeue};
use crate::runtime::tolerant_watcher;

/// Delay that is longer than any operation that does not wait for a cache.
const WHILE: Duration = Duration::from_secs(25);

/// Returns the object at a path: either a Workspace that is being deleted, or its terminating pod. The pod has the
/// finalizer for the run of the Update with the UID `uid`.
fn object_at(path: &str) -> Option<Value> {
    let deleted = "2026-01-01T00:00:00Z";
    match path {
        "/apis/auto.pulumi.com/v1alpha1/namespaces/apps/workspaces/web" => Some(json!({
            "apiVersion": "auto.pulumi.com/v1alpha1", "kind": "Workspace",
            "metadata": {
                "name": "web", "namespace": "apps", "uid": "workspace", "resourceVersion": "1", "generation": 1,
                "deletionTimestamp": deleted, "finalizers": ["finalizer.workspace.auto.pulumi.com"],
            },
            "spec": {},
        })),
        "/api/v1/namespaces/apps/pods/web-workspace-0" => Some(json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": "web-workspace-0", "namespace": "apps", "uid": "pod", "resourceVersion": "1",
                "deletionTimestamp": deleted, "finalizers": ["auto.pulumi.com/run"],
                "labels": {"auto.pulumi.com/workspace-name": "web", "auto.pulumi.com/component": "workspace"},
                "annotations": {"auto.pulumi.com/run-id": "uid"},
            },
            "spec": {"containers": []},
        })),
        _ => None,
    }
}

/// Returns the Update with the UID `uid`. If `is_bound` is `true`, the run is bound to the pod.
fn update(is_bound: bool) -> Value {
    let run = is_bound.then(|| json!({"podUID": "pod", "agentStartID": "start", "settingsDigest": "s"}));
    json!({
        "apiVersion": "auto.pulumi.com/v1alpha1", "kind": "Update",
        "metadata": {"name": "by-hand", "namespace": "apps", "uid": "uid", "resourceVersion": "1"},
        "spec": {"workspaceName": "web", "stackName": "dev", "type": "up"}, "status": {"run": run},
    })
}

fn list(items: &[Value]) -> FakeResponse {
    let metadata = json!({"resourceVersion": "1"});
    FakeResponse::Json(200, json!({"apiVersion": "v1", "kind": "List", "metadata": metadata, "items": items}))
}

/// Responds to requests as the API server does, but with separate Updates for the cache and for direct reads.
fn respond(request: &RecordedRequest, cached: &FakeResponse, live: &[Value]) -> FakeResponse {
    let updates = "/apis/auto.pulumi.com/v1alpha1/namespaces/apps/updates";
    match request.path.as_str() {
        _ if request.query.contains("watch=true") => FakeResponse::Silence,
        "/apis/auto.pulumi.com/v1alpha1/updates" => cached.clone(),
        "/apis/auto.pulumi.com/v1alpha1/workspaces" => list(
            &object_at("/apis/auto.pulumi.com/v1alpha1/namespaces/apps/workspaces/web").into_iter().collect::<Vec<_>>(),
        ),
        "/api/v1/pods" | "/apis/apps/v1/statefulsets" => list(&[]),
        path if path == updates => list(live),
        path if path == format!("{updates}/by-hand") => live
            .first()
            .map_or_else(|| FakeResponse::refusal(404, "NotFound"), |live| FakeResponse::Json(200, live.clone())),
        path => match object_at(path.trim_end_matches("/status")) {
            Some(object) => FakeResponse::Json(200, object),
            None => FakeResponse::refusal(404, "NotFound"),
        },
    }
}

fn context(parts: &TestParts, updates: update::Updates, requeue: Requeue<Workspace>) -> Context {
    Context {
        reader: parts.reader.clone(),
        writer: parts.writer.clone(),
        agents: parts.agents.clone(),
        authority: parts.authority.clone(),
        artifacts: parts.store.clone(),
        artifact_limits: crate::artifact::Limits::default(),
        fetcher: parts.fetcher.clone(),
        git: parts.git.clone(),
        metrics: parts.metrics.clone(),
        caches: CacheSync::default().with(&updates),
        updates,
        events: parts.events.clone(),
        pods: PodSettings {
            agent_image: "agent".to_owned(),
            agent_image_pull_policy: None,
            default_image: "pulumi".to_owned(),
            default_access_token_secret: None,
            assigns_user: true,
            eviction_protection: true,
            restrictions: PodRestrictions::default(),
            storage: Default::default(),
        },
        default_service_account: None,
        default_idle_after: None,
        watched: None,
        probes: AgentProbes::new(requeue.clone(), parts.agents.clone(), parts.tasks.clone(), parts.end.clone()),
        inputs: InputWatch::new(requeue),
        polls: Polls::default(),
        references: parts.references.clone(),
        namespaces: Namespaces::without_watch(parts.reader.clone(), false),
        pool: Pool::new(0).0,
        first_workspaces: FirstObjects::default(),
        memory: Memory::default(),
    }
}

fn start(cached: FakeResponse, live: Vec<Value>) -> (Log, tokio::task::JoinHandle<()>) {
    start_with(move |request| respond(request, &cached, &live))
}

fn start_with(
    respond: impl Fn(&RecordedRequest) -> FakeResponse + Send + Sync + 'static,
) -> (Log, tokio::task::JoinHandle<()>) {
    let (client, log) = client(respond);
    let parts = TestParts::new(client);
    let (requeue, requeues) = requeue::queue();
    let (updates, mut updates_writer) = update::updates();
    let listed = tolerant_watcher::watcher::<Update>(parts.scope.api(parts.client.clone()), parts.scope.own_kinds());
    tokio::spawn(listed.for_each(move |event| {
        event.into_iter().for_each(|event| updates_writer.apply(&event));
        std::future::ready(())
    }));
    let context = Arc::new(context(&parts, updates, requeue));
    let (_, workspaces) = reflector::store::<Workspace>();
    let feeds = Feeds { requeues, on_event: |_: &Event<Workspace>| (), on_pod: |_: &Pod| () };
    let runner = ReconcileRunner::new::<Workspace>("workspace", Duration::from_secs(300), parts.metrics.clone());
    let start = Start {
        client: parts.client.clone(),
        reader: parts.reader.clone(),
        writer: parts.writer.clone(),
        events: parts.events.clone(),
        scope: parts.scope.clone(),
        store: workspaces,
        runner: Arc::new(runner),
        end: parts.end.clone(),
    };
    let task = tokio::spawn(controller(start, feeds, context));
    (log, task)
}

fn is_finalizer_removed(log: &Log) -> bool {
    log.verbs().iter().any(|verb| verb == "PATCH /api/v1/namespaces/apps/pods/web-workspace-0")
}

fn written_statuses(log: &Log) -> String {
    let statuses = log.all().into_iter().filter(|request| request.path.ends_with("/workspaces/web/status"));
    statuses.map(|request| request.body.to_string()).collect()
}

async fn until(what: &str, log: &Log, predicate: impl Fn(&Log) -> bool) {
    let limit = tokio::time::Instant::now() + Duration::from_secs(60);
    while !predicate(log) {
        assert!(tokio::time::Instant::now() < limit, "timed out: {what}: {:?}", log.verbs());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn no_pod_finalizer_is_removed_before_the_update_cache_is_synced() {
    let (let_out, is_out) = watch::channel(false);
    let held = FakeResponse::Held(is_out, Box::new(list(&[update(true)])));
    // The API server returns no Update, so a direct read does not find the open run.
    let (log, task) = start(held, Vec::new());
    until("started", &log, |log| log.verbs().iter().any(|verb| verb.ends_with("v1alpha1/workspaces"))).await;
    tokio::time::sleep(WHILE).await;
    assert!(!is_finalizer_removed(&log) && written_statuses(&log).is_empty(), "{:?}", log.verbs());
    let_out.send_replace(true);
    until("waiting for the run", &log, |log| written_statuses(log).contains("by-hand")).await;
    assert!(!is_finalizer_removed(&log), "{:?}", log.verbs());
    task.abort();
}

#[tokio::test(start_paused = true)]
async fn updates_are_read_from_the_api_before_a_pod_finalizer_is_removed() {
    for (name, cached) in [("behind", vec![update(false)]), ("without the Update", Vec::new())] {
        let (log, task) = start(list(&cached), vec![update(true)]);
        until("waiting for the run", &log, |log| written_statuses(log).contains("by-hand")).await;
        assert!(!is_finalizer_removed(&log), "a cache that is {name}: {:?}", log.verbs());
        task.abort();
    }
    let (log, task) = start(list(&[update(false)]), Vec::new());
    until("removing the finalizer", &log, is_finalizer_removed).await;
    task.abort();
}

#[tokio::test(start_paused = true)]
async fn the_update_that_marked_a_pod_is_read_by_name() {
    let (cached, live) = (list(&[]), [update(true)]);
    let (log, task) = start_with(move |request| match respond(request, &cached, &live) {
        FakeResponse::Json(200, mut pod) if request.path.ends_with("/pods/web-workspace-0") => {
            pod["metadata"]["annotations"]["auto.pulumi.com/run-update"] = json!("by-hand/uid");
            FakeResponse::Json(200, pod)
        }
        response => response,
    });
    until("waiting for the run", &log, |log| written_statuses(log).contains("by-hand")).await;
    assert!(!is_finalizer_removed(&log), "{:?}", log.verbs());
    let lists = log.verbs().into_iter().filter(|verb| verb.ends_with("/namespaces/apps/updates")).count();
    assert_eq!(lists, 0, "{:?}", log.verbs());
    task.abort();
}

#[tokio::test]
async fn events_of_any_size_do_not_prevent_a_reconciliation() {
    let now: jiff::Timestamp = "2026-01-01T12:00:00Z".parse().unwrap();
    let warning = |time: &str, message: &str| json!({"type": "Warning", "reason": "FailedCreate", "message": message, "lastTimestamp": time});
    let quota = warning("2026-01-01T11:59:00Z", "exceeded quota");
    let cases = [
        (vec![quota.clone()], Some("FailedCreate: exceeded quota")),
        (vec![warning("yesterday", "malformed"), quota.clone()], Some("FailedCreate: exceeded quota")),
        (vec![warning("2026-01-01T11:59:30Z", &"x".repeat(300_000)), quota], None),
    ];
    for (events, expected) in cases {
        let (client, log) = client(move |_| list(&events));
        let parts = TestParts::new(client);
        let context = context(&parts, update::updates().0, requeue::queue().0);
        let ready = json!({"type": "Ready", "status": "False", "reason": "Waiting", "message": "",
            "lastTransitionTime": "2026-01-01T11:00:00Z"});
        let workspace: Workspace = serde_json::from_value(json!({
            "apiVersion": "auto.pulumi.com/v1alpha1", "kind": "Workspace",
            "metadata": {"name": "web", "namespace": "apps"}, "spec": {}, "status": {"conditions": [ready]},
        }))
        .unwrap();
        let found = pod_state::find_start_event(&workspace, Some(("uid", None)), None, &context, now).await.unwrap();
        let expected = expected.map(|message| pod_state::StartEvent::Warning(message.to_owned()));
        assert_eq!(found, expected);
        assert!(log.all()[0].query.contains("limit=50"), "{}", log.all()[0].query);
    }
}

#[tokio::test(start_paused = true)]
async fn a_listed_workspace_is_used_only_in_the_version_of_the_watch() {
    let (client, _) = client(|_| FakeResponse::refusal(404, "NotFound"));
    let parts = TestParts::new(client);
    let workspace = |version: &str| {
        let mut workspace = Workspace::new("web", WorkspaceSpec::default());
        workspace.metadata.namespace = Some("apps".to_owned());
        workspace.metadata.resource_version = Some(version.to_owned());
        workspace
    };
    for (version, is_used) in [("1", true), ("2", false)] {
        let context = context(&parts, update::updates().0, requeue::queue().0);
        for event in [Event::Init, Event::InitApply(workspace("1")), Event::InitDone] {
            context.first_workspaces.handle(&event);
        }
        assert_eq!(listed(&workspace(version), &context).is_some(), is_used, "version {version}");
        assert!(listed(&workspace(version), &context).is_none(), "the second reconciliation");
    }
}

#[test]
fn a_call_that_the_agent_accepts_without_effect_is_detected() {
    let source = |content: &str| {
        let (digest, revision) = (Digest::of(content.as_bytes()), "main".to_owned());
        Action::PutSource { artifact: ArtifactReference { digest, revision, dir: String::new() } }
    };
    let apply = || Action::Apply { service: true, tls: false, budget: false, stateful_set: false };
    let rows = [
        ("different calls", vec![source("a"), Action::Drain], None),
        ("another source", vec![source("a"), source("b")], None),
        ("actions without agent calls", vec![apply(), apply(), Action::Sleep, Action::Sleep], None),
        ("the same source", vec![source("a"), source("a")], Some("PutSource")),
        ("the same source after another call", vec![source("a"), Action::Drain, source("a")], Some("PutSource")),
        ("a second drain", vec![Action::Drain, Action::Drain], Some("Drain")),
    ];
    for (name, actions, expected) in rows {
        let mut earlier = Vec::new();
        let found = actions.iter().find_map(|action| ignored_call(&mut earlier, action));
        let expected = expected.map(|call| format!("agent accepted {call}, but does not report the result"));
        assert_eq!(found, expected, "{name}");
    }
}

#[tokio::test]
async fn a_source_that_the_agent_accepts_and_drops_is_delivered_with_backoff() {
    let (client, log) = client(|request| respond(request, &list(&[]), &[]));
    let parts = TestParts::new(client);
    let context = context(&parts, update::updates().0, requeue::queue().0);
    let now: jiff::Timestamp = "2026-01-01T12:00:00Z".parse().unwrap();
    let (observed, _) = Box::pin(observe("apps", "web", None, &context, now)).await.unwrap().unwrap();
    let act = Act { observed: &observed, agent: None, context: &context, now };
    let digest = Digest::of(b"a");
    let delivery = format!("pod {digest} infra");
    let artifact = ArtifactReference { digest, revision: "main".to_owned(), dir: "infra".to_owned() };
    for accepted in 0..4 {
        let step = Box::pin(act.deliver_source(&artifact)).await.unwrap();
        let is_delayed = matches!(step, Step::Done(Outcome::After(_)));
        assert_eq!(is_delayed, accepted == 3, "the agent has accepted the source {accepted} times");
        context.memory.deliveries.record(("apps", "web"), &delivery);
    }
    let message = "agent accepted source main, but dropped it before the installation was complete";
    assert!(written_statuses(&log).contains(message), "{}", written_statuses(&log));
    let other = ArtifactReference { digest: Digest::of(b"b"), ..artifact };
    let step = Box::pin(act.deliver_source(&other)).await.unwrap();
    assert!(matches!(step, Step::Again), "another source is delivered immediately");
}

//! Tests for the reconcile loop of the Update controller.

use std::sync::Mutex;

use futures::FutureExt;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};

use super::*;
use crate::api::auto::{ArtifactReference, RunBinding, UpdateSpec, UpdateStatus, WorkspaceSpec, WorkspaceStatus};
use crate::api::conditions::{self, COMPLETE, ConditionUpdate, READY, Status};
use crate::artifact::Digest;
use crate::controller::namespaces::Namespaces;
use crate::controller::test_parts::TestParts;
use crate::controller::update::attachments::Attachments;
use crate::controller::update::interruptions::Interruptions;
use crate::controller::update::queue::updates;
use crate::controller::update::request::RunTimeouts;
use crate::controller::update::stored_secrets::StoredSecrets;
use crate::controller::update::trace::RunTraces;
use crate::runtime::fake_api::{FakeResponse, Log, apply_json_merge_patch, client};
use crate::runtime::index::StoreWriter as _;
use crate::runtime::requeue;
use crate::runtime::run_limiter::{Limits, RunLimiter};

const UPDATE: &str = "/apis/auto.pulumi.com/v1alpha1/namespaces/apps/updates/app-1";
const STATUS: &str = "/apis/auto.pulumi.com/v1alpha1/namespaces/apps/updates/app-1/status";
const WORKSPACE: &str = "/apis/auto.pulumi.com/v1alpha1/namespaces/apps/workspaces/app";
const MARKED_UPDATE: &str = "/apis/auto.pulumi.com/v1alpha1/namespaces/apps/updates/app-0";
const POD: &str = "/api/v1/namespaces/apps/pods/app-workspace-0";
const SECRET: &str = "/api/v1/namespaces/apps/secrets/aws";
const NAMESPACE: &str = "/api/v1/namespaces/apps";

fn context(parts: &TestParts) -> Context {
    let (requeue, _) = requeue::queue();
    let limits = Limits { all: 1, each_namespace: 1, each_node: 1 };
    Context {
        reader: parts.reader.clone(),
        writer: parts.writer.clone(),
        attachments: Attachments::new(parts.agents.clone(), requeue.clone(), parts.tasks.clone(), parts.end.clone()),
        interruptions: Interruptions::new(requeue),
        history: None,
        stored_secrets: StoredSecrets::default(),
        run_limiter: RunLimiter::new(limits, parts.metrics.clone()),
        events: parts.events.clone(),
        references: parts.references.clone(),
        namespaces: Namespaces::without_watch(parts.reader.clone(), false),
        concurrency_groups: Arc::default(),
        metrics: parts.metrics.clone(),
        updates: updates().0,
        adopted: Arc::default(),
        timeouts: RunTimeouts::default(),
        eviction_protection: true,
        cluster_name: "".into(),
        traces: RunTraces::default(),
    }
}

fn artifact() -> ArtifactReference {
    ArtifactReference { digest: Digest::of(b"a"), revision: "main@sha1:a".to_owned(), dir: String::new() }
}

/// Returns an Update whose run can start if its Workspace is ready.
fn pending() -> Update {
    let (workspace_name, stack_name) = ("app".to_owned(), "dev".to_owned());
    let spec = UpdateSpec { workspace_name, stack_name, artifact: Some(artifact()), ..UpdateSpec::default() };
    let mut update = Update::new("app-1", spec);
    update.metadata.namespace = Some("apps".to_owned());
    update.metadata.uid = Some("update-uid".to_owned());
    update.metadata.finalizers = Some(vec![names::UPDATE_FINALIZER.to_owned()]);
    update
}

/// Returns a ready Workspace that references the Secret `aws`.
fn workspace() -> Workspace {
    let env_from = vec![json!({"secretRef": {"name": "aws"}})];
    let spec = WorkspaceSpec { artifact: Some(artifact()), env_from, ..WorkspaceSpec::default() };
    let mut workspace = Workspace::new("app", spec);
    workspace.metadata.namespace = Some("apps".to_owned());
    workspace.metadata.generation = Some(1);
    let mut conditions = Vec::new();
    let ready = ConditionUpdate { kind: READY, status: Status::True, reason: "Succeeded", message: "" };
    conditions::set(&mut conditions, &ready, 1, Timestamp::UNIX_EPOCH);
    workspace.status = Some(WorkspaceStatus {
        observed_generation: Some(1),
        conditions,
        artifact: Some(artifact()),
        agent_protocol_version: Some(u32::MAX),
        pod_uid: Some("pod-uid".to_owned()),
        agent_start_id: Some("start".to_owned()),
        ..WorkspaceStatus::default()
    });
    workspace
}

/// Returns the next action for an Update, and the log of the requests.
async fn action(update: Update, workspace: &Workspace, namespace: Value, secret: FakeResponse) -> (Action, Log) {
    let workspace = serde_json::to_value(workspace).unwrap();
    let mut pod = Pod::default();
    (pod.metadata.name, pod.metadata.uid) = (Some("app-workspace-0".to_owned()), Some("pod-uid".to_owned()));
    let pod = serde_json::to_value(pod).unwrap();
    let (client, log) = client(move |request| match request.path.as_str() {
        WORKSPACE => FakeResponse::Json(200, workspace.clone()),
        POD => FakeResponse::Json(200, pod.clone()),
        NAMESPACE => FakeResponse::Json(200, namespace.clone()),
        SECRET => secret.clone(),
        _ => FakeResponse::refusal(404, "NotFound"),
    });
    let parts = TestParts::new(client);
    let (_, action) = Box::pin(next_action(update, &context(&parts), Timestamp::UNIX_EPOCH)).await.unwrap();
    (action, log)
}

fn namespace(annotations: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "apps", "annotations": annotations}})
}

fn reads_of_secret(log: &Log) -> usize {
    log.all().iter().filter(|request| request.path == SECRET).count()
}

#[tokio::test]
async fn references_are_checked_only_if_nothing_else_prevents_the_run() {
    let changed = |change: fn(&mut WorkspaceStatus)| {
        let mut workspace = workspace();
        change(workspace.status.as_mut().unwrap());
        workspace
    };
    let with = |change: fn(&mut Update)| {
        let mut update = pending();
        change(&mut update);
        update
    };
    let rows = [
        ("no finalizer", with(|update| update.metadata.finalizers = None), workspace(), json!({})),
        ("an invalid field", with(|update| update.spec.timeout = Some("soon".to_owned())), workspace(), json!({})),
        ("a paused namespace", pending(), workspace(), json!({"pulumi.com/pause": "maintenance"})),
        ("an outdated status", pending(), changed(|status| status.observed_generation = Some(0)), json!({})),
        ("no condition Ready", pending(), changed(|status| status.conditions.clear()), json!({})),
        ("another source", pending(), changed(|status| status.artifact = None), json!({})),
        ("another pod", pending(), changed(|status| status.pod_uid = Some("other".to_owned())), json!({})),
        ("no agent", pending(), changed(|status| status.agent_start_id = None), json!({})),
    ];
    for (name, update, workspace, annotations) in rows {
        let missing = FakeResponse::refusal(404, "NotFound");
        let (action, log) = Box::pin(action(update, &workspace, namespace(annotations), missing)).await;
        assert_eq!(reads_of_secret(&log), 0, "{name}: {action:?}");
        assert!(!matches!(action, Action::AwaitReferences(_) | Action::RecordBinding(_)), "{name}: {action:?}");
    }
}

#[tokio::test]
async fn the_references_of_a_ready_run_are_checked_once() {
    let missing = FakeResponse::refusal(404, "NotFound");
    let (waits, log) = Box::pin(action(pending(), &workspace(), namespace(json!({})), missing)).await;
    let message = "waiting for Secret \"aws\" (envFrom): not found in namespace apps";
    assert_eq!((waits, reads_of_secret(&log)), (Action::AwaitReferences(message.to_owned()), 1));
    let row = json!({"cells": [1], "object": {"metadata": {"name": "aws"}}});
    let table = json!({"kind": "Table", "columnDefinitions": [{"name": "Data"}], "rows": [row]});
    let found = FakeResponse::Json(200, table);
    let (starts, log) = Box::pin(action(pending(), &workspace(), namespace(json!({})), found)).await;
    assert!(matches!(starts, Action::RecordBinding(_)), "{starts:?}");
    assert_eq!(reads_of_secret(&log), 1);
}

#[tokio::test]
async fn the_references_of_a_waiting_run_are_read_once() {
    let (update, workspace) = (Mutex::new(serde_json::to_value(pending()).unwrap()), workspace());
    let pod = json!({"metadata": {"name": "app-workspace-0", "namespace": "apps", "uid": "pod-uid"}});
    let (client, log) = client(move |request| match request.path.as_str() {
        UPDATE => FakeResponse::Json(200, update.lock().unwrap().clone()),
        STATUS => {
            let mut update = update.lock().unwrap();
            apply_json_merge_patch(&mut update, &request.body);
            FakeResponse::Json(200, update.clone())
        }
        WORKSPACE => FakeResponse::Json(200, serde_json::to_value(&workspace).unwrap()),
        POD => FakeResponse::Json(200, pod.clone()),
        NAMESPACE => FakeResponse::Json(200, namespace(json!({}))),
        _ => FakeResponse::refusal(404, "NotFound"),
    });
    let parts = TestParts::new(client);
    let context = Arc::new(context(&parts));
    for attempt in ["first", "repeated"] {
        let outcome = Box::pin(reconcile(Arc::new(pending()), context.clone())).await.unwrap();
        assert!(matches!(outcome, Outcome::After(_)), "{attempt}");
        assert_eq!(reads_of_secret(&log), 1, "{attempt}: only the poll reads the missing Secret again");
    }
    let reports = log.verbs().iter().filter(|verb| **verb == format!("PATCH {STATUS}")).count();
    assert_eq!(reports, 1, "the message does not change");
}

#[test]
fn only_a_released_update_is_not_read_again() {
    let mut released = Update::new("app-1", UpdateSpec::default());
    let status = UpdateStatus { run: Some(RunBinding::default()), ..UpdateStatus::default() };
    let complete = ConditionUpdate { kind: COMPLETE, status: Status::True, reason: "Updated", message: "" };
    released.metadata.finalizers = Some(vec![names::STACK_FINALIZER.to_owned()]);
    let status = released.status.insert(status);
    conditions::set(&mut status.conditions, &complete, 1, Timestamp::UNIX_EPOCH);
    let changed = |change: fn(&mut Update)| {
        let mut update = released.clone();
        change(&mut update);
        update
    };
    let rows = [
        ("released", changed(|_| ()), true),
        ("open", changed(|update| update.status.as_mut().unwrap().conditions.clear()), false),
        ("not started", changed(|update| update.status.as_mut().unwrap().run = None), false),
        (
            "being deleted",
            changed(|update| update.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH))),
            false,
        ),
        ("with a TTL", changed(|update| update.spec.ttl_after_completed = Some("1h".to_owned())), false),
        (
            "not released",
            changed(|update| update.metadata.finalizers.as_mut().unwrap().push(names::UPDATE_FINALIZER.to_owned())),
            false,
        ),
    ];
    for (name, update, expected) in rows {
        assert_eq!(is_released(&update), expected, "{name}");
    }
}

/// Returns an Update that was created at the given time. Its name is also its UID.
fn created(name: &str, second: i64) -> Update {
    let mut update = pending();
    (update.metadata.name, update.metadata.uid) = (Some(name.to_owned()), Some(name.to_owned()));
    update.metadata.creation_timestamp = Timestamp::from_second(second).ok().map(Time);
    update
}

fn bound(mut update: Update) -> Update {
    update.status.get_or_insert_default().run = Some(RunBinding::default());
    update
}

fn completed(mut update: Update) -> Update {
    let complete = ConditionUpdate { kind: COMPLETE, status: Status::True, reason: "Updated", message: "" };
    conditions::set(&mut update.status.get_or_insert_default().conditions, &complete, 1, Timestamp::UNIX_EPOCH);
    update
}

fn without_finalizers(mut update: Update) -> Update {
    update.metadata.finalizers = None;
    update
}

/// Returns the names of the Updates that an event requeues, in alphabetical order. `listed` is the first list.
fn requeued_by(event: &Event<Update>, listed: &[Update]) -> String {
    let (known, mut store) = updates();
    store.apply(&Event::Init);
    listed.iter().for_each(|update| store.apply(&Event::InitApply(update.clone())));
    store.apply(&Event::InitDone);
    if matches!(event, Event::Apply(_) | Event::Delete(_)) {
        store.apply(event);
    }
    let (requeue, mut requeues) = requeue::queue();
    requeue_after_run(known, requeue)(event);
    let requeued = std::iter::from_fn(|| requeues.next().now_or_never().flatten());
    let mut names: Vec<String> = requeued.map(|update| update.name).collect();
    names.sort();
    names.join(" ")
}

/// Returns the next action for the Update `app-1`. Its pod is marked for the run of the Update `marked_for`. The cache
/// contains the Update `cached`, and the API server returns `live` as the Update `app-0`.
async fn action_in_marked_pod(
    marked_for: &str,
    cached: Option<Update>,
    live: FakeResponse,
) -> Result<Action, ReadError> {
    let workspace = serde_json::to_value(workspace()).unwrap();
    let update = format!("{marked_for}/{marked_for}");
    let annotations = json!({names::ANNOTATION_RUN: marked_for, names::ANNOTATION_RUN_UPDATE: update});
    let pod = json!({"metadata": {
        "name": "app-workspace-0", "namespace": "apps", "uid": "pod-uid", "annotations": annotations,
    }});
    let (client, _) = client(move |request| match request.path.as_str() {
        WORKSPACE => FakeResponse::Json(200, workspace.clone()),
        POD => FakeResponse::Json(200, pod.clone()),
        NAMESPACE => FakeResponse::Json(200, namespace(json!({}))),
        MARKED_UPDATE => live.clone(),
        _ => FakeResponse::refusal(404, "NotFound"),
    });
    let parts = TestParts::new(client);
    let (updates, mut store) = updates();
    cached.into_iter().for_each(|update| store.apply(&Event::Apply(update)));
    let context = Context { updates, ..context(&parts) };
    let update = created("app-1", 5);
    Box::pin(next_action(update, &context, Timestamp::UNIX_EPOCH)).await.map(|(_, action)| action)
}

#[tokio::test]
async fn a_run_waits_for_the_open_run_for_which_its_pod_is_marked() {
    let live = |update: Update| FakeResponse::Json(200, serde_json::to_value(update).unwrap());
    let renamed = |mut update: Update| {
        update.metadata.uid = Some("another-uid".to_owned());
        update
    };
    let rows = [
        ("an open run", live(bound(created("app-0", 9))), true),
        ("a completed run", live(completed(bound(created("app-0", 1)))), false),
        ("a deleted Update", FakeResponse::refusal(404, "NotFound"), false),
        ("another Update with the same name", live(renamed(bound(created("app-0", 1)))), false),
        ("an older Update without a binding", live(created("app-0", 1)), true),
        ("a newer Update without a binding, which can be bound at any time", live(created("app-0", 9)), true),
    ];
    for (name, live, waits) in rows {
        let action = Box::pin(action_in_marked_pod("app-0", None, live)).await.unwrap();
        let wait = Action::Wait("Queued", "waiting for Update app-0 of the same Workspace".to_owned());
        assert_eq!(action == wait, waits, "{name}: {action:?}");
        assert!(waits || matches!(action, Action::AwaitReferences(_)), "{name}: {action:?}");
    }
    let failed = FakeResponse::refusal(500, "InternalError");
    let unreadable = Box::pin(action_in_marked_pod("app-0", None, failed)).await;
    assert!(unreadable.is_err(), "{unreadable:?}");
}

#[tokio::test]
async fn the_run_for_which_the_pod_is_marked_waits_only_for_an_open_run() {
    let rows = [
        ("an older Update without a binding", created("app-0", 1), false),
        ("an open run", bound(created("app-0", 9)), true),
        ("a completed run", completed(bound(created("app-0", 1))), false),
    ];
    for (name, cached, waits) in rows {
        let missing = FakeResponse::refusal(404, "NotFound");
        let action = Box::pin(action_in_marked_pod("app-1", Some(cached), missing)).await.unwrap();
        let wait = Action::Wait("Queued", "waiting for Update app-0 of the same Workspace".to_owned());
        assert_eq!(action == wait, waits, "{name}: {action:?}");
        assert!(waits || matches!(action, Action::AwaitReferences(_)), "{name}: {action:?}");
    }
}

#[test]
fn the_end_of_an_update_requeues_only_the_next_update_of_its_workspace() {
    let [a, b, c] = [created("a", 1), created("b", 2), created("c", 3)];
    let mut of_other_workspace = created("x", 1);
    of_other_workspace.spec.workspace_name = "other".to_owned();
    let rows = [
        ("a started run", Event::Apply(bound(a.clone())), ""),
        ("a waiting Update", Event::Apply(c.clone()), ""),
        ("a completed run", Event::Apply(completed(bound(a.clone()))), "b"),
        ("the first Update, canceled before its start", Event::Apply(completed(a.clone())), "b"),
        (
            "a completed run of the Pulumi Kubernetes Operator",
            Event::Apply(completed(without_finalizers(a.clone()))),
            "b",
        ),
        ("a completed run that started before older Updates", Event::Apply(completed(bound(c.clone()))), "a"),
        ("a canceled Update, whose name the next message contains", Event::Apply(completed(b.clone())), "c"),
        ("the last Update, canceled", Event::Apply(completed(c.clone())), ""),
        ("a deleted open run without finalizers", Event::Delete(without_finalizers(bound(a.clone()))), "b"),
        ("a deleted Update that has not started", Event::Delete(a.clone()), "b"),
        ("a deleted Update behind another", Event::Delete(b.clone()), "c"),
        ("an Update of another Workspace", Event::Apply(completed(of_other_workspace)), ""),
        ("an Update in a list", Event::InitApply(completed(a.clone())), ""),
        ("a new list after an interrupted watch", Event::InitDone, "a b c"),
    ];
    for (name, event, expected) in rows {
        assert_eq!(requeued_by(&event, &[c.clone(), a.clone(), b.clone()]), expected, "{name}");
    }
}

/// Returns the names of the Updates that an event about a Workspace requeues, in alphabetical order.
fn requeued_by_workspace(event: &Event<Workspace>, listed: &[Update]) -> String {
    let (known, mut store) = updates();
    listed.iter().for_each(|update| store.apply(&Event::Apply(update.clone())));
    let (requeue, mut requeues) = requeue::queue();
    requeue_of_workspace(known, requeue)(event);
    let requeued = std::iter::from_fn(|| requeues.next().now_or_never().flatten());
    let mut names: Vec<String> = requeued.map(|update| update.name).collect();
    names.sort();
    names.join(" ")
}

#[test]
fn a_change_to_a_workspace_requeues_only_the_updates_that_do_not_wait_for_another_update() {
    let mut of_other_workspace = created("x", 1);
    of_other_workspace.spec.workspace_name = "other".to_owned();
    let waiting = [completed(bound(created("old", 1))), created("c", 4), created("b", 3), of_other_workspace];
    let with_open_run: Vec<Update> = waiting.iter().cloned().chain([bound(created("open", 5))]).collect();
    let (waiting, with_open_run) = (waiting.as_slice(), with_open_run.as_slice());
    let rows = [
        ("a changed Workspace", Event::Apply(workspace()), waiting, "b"),
        ("a deleted Workspace", Event::Delete(workspace()), waiting, "b"),
        ("a changed Workspace with an open run", Event::Apply(workspace()), with_open_run, "b open"),
        ("a changed Workspace without open Updates", Event::Apply(workspace()), &waiting[..1], ""),
        ("the start of a list", Event::Init, with_open_run, ""),
        ("a listed Workspace", Event::InitApply(workspace()), with_open_run, ""),
        ("the end of a list, which may lack deleted Workspaces", Event::InitDone, with_open_run, "b open x"),
    ];
    for (name, event, listed, expected) in rows {
        assert_eq!(requeued_by_workspace(&event, listed), expected, "{name}");
    }
}

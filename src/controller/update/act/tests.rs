//! Tests for the writes of an Update reconciliation.

mod mark;
mod slots;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};

use crate::api::auto::{RunBinding, Update};
use crate::controller::namespaces::{Namespaces, RunShare};
use crate::controller::test_parts::TestParts;
use crate::controller::update::act::{Next, act};
use crate::controller::update::attachments::Attachments;
use crate::controller::update::context::Context;
use crate::controller::update::decide::Action;
use crate::controller::update::events::end_event;
use crate::controller::update::history::HistoryWriter;
use crate::controller::update::interruptions::Interruptions;
use crate::controller::update::observe::{Observed, Owner};
use crate::controller::update::outcome::RunOutcome;
use crate::controller::update::plans::PlanFile;
use crate::controller::update::pod_termination::NodeState;
use crate::controller::update::queue::updates;
use crate::controller::update::request::RunTimeouts;
use crate::controller::update::stored_secrets::StoredSecrets;
use crate::controller::update::trace::RunTraces;
use crate::history::{HistoryStore, Retention};
use crate::rpc::proto;
use crate::runtime::events::EventKind;
use crate::runtime::fake_api::{FakeResponse, Log, RecordedRequest, apply_json_merge_patch, client};
use crate::runtime::reconcile::ReconcileError;
use crate::runtime::requeue::{self, Requeues};
use crate::runtime::run_limiter::{Limits, RunLimiter};

const PATH: &str = "/apis/auto.pulumi.com/v1alpha1/namespaces/apps/updates/app-1/status";
const SECRETS: &str = "/api/v1/namespaces/apps/secrets";
const POD: &str = "/api/v1/namespaces/apps/pods/app-workspace-0";

fn stored() -> Value {
    json!({
        "apiVersion": "auto.pulumi.com/v1alpha1", "kind": "Update",
        "metadata": {
            "name": "app-1", "namespace": "apps", "uid": "uid", "resourceVersion": "1", "generation": 1,
            "creationTimestamp": "2026-01-01T12:00:00Z", "finalizers": ["finalizer.update.auto.pulumi.com"],
        },
        "spec": {"workspaceName": "app", "stackName": "dev", "type": "up"},
        "status": {"run": RunBinding::default(), "progress": {"summary": "long", "stepsDone": 1, "inWork": 0, "pid": 42}},
    })
}

/// Returns the Update before the controller has recorded its binding.
fn unbound() -> Value {
    let mut update = stored();
    update["status"] = json!({});
    update
}

/// Returns the pod of the Workspace.
fn pod() -> Value {
    json!({
        "metadata": {"name": "app-workspace-0", "namespace": "apps", "uid": "pod-uid", "resourceVersion": "1"},
        "spec": {"nodeName": "node", "containers": []},
        "status": {"podIP": "10.0.0.1"},
    })
}

/// Returns a fake API server that rejects the first `times` status writes and accepts all later writes.
fn rejecting(times: usize, response: FakeResponse) -> (kube::Client, Arc<Mutex<Value>>) {
    let object = Arc::new(Mutex::new(stored()));
    let (kept, left) = (object.clone(), Mutex::new(times));
    let (client, _log) = client(move |request: &RecordedRequest| {
        if request.method != "PATCH" || request.path != PATH {
            return FakeResponse::refusal(404, "NotFound");
        }
        let mut left = left.lock().unwrap();
        if *left > 0 {
            *left -= 1;
            return response.clone();
        }
        let mut object = kept.lock().unwrap();
        apply_json_merge_patch(&mut object, &request.body);
        FakeResponse::Json(200, object.clone())
    });
    (client, object)
}

fn context(parts: &TestParts) -> Context {
    let (requeue, _) = requeue::queue();
    let limits = Limits { all: 1, each_namespace: 1, each_node: 1 };
    Context {
        reader: parts.reader.clone(),
        writer: parts.writer.clone(),
        attachments: Attachments::new(parts.agents.clone(), requeue, parts.tasks.clone(), parts.end.clone()),
        interruptions: Interruptions::new(requeue::queue().0),
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

fn hostile() -> proto::Result {
    proto::Result {
        outcome: proto::Outcome::Failed.into(),
        message: "boom".to_owned(),
        last_output: "x".repeat(10_000),
        changes: (0..30).map(|number| (format!("create-{number}"), 1)).collect(),
        permalink: "https://app.pulumi.com/x".to_owned(),
        started: 4_000_000_000_000,
        interrupted: true,
        ..proto::Result::default()
    }
}

fn observed(update: Value, pod: Option<Value>) -> Observed {
    Observed {
        update: serde_json::from_value(update).unwrap(),
        workspace: None,
        pod: pod.map(|pod| serde_json::from_value(pod).unwrap()),
        node: NodeState::NotRead,
        disruption: None,
        preceding_update: None,
        timeouts: RunTimeouts::default(),
        run_state: None,
        progress: None,
        agent_ip: None,
        task_may_start: false,
        stack: Owner::Lives,
        forbidden: None,
        restriction: None,
        run_share: RunShare::default(),
        plan: PlanFile::NotNeeded,
        references: None,
    }
}

async fn recorded(times: usize, response: FakeResponse) -> (Result<Next, ReconcileError>, Value) {
    let (client, object) = rejecting(times, response);
    let parts = TestParts::new(client);
    let observed = observed(stored(), None);
    let now = "2026-01-01T12:10:00Z".parse().unwrap();
    let action = Action::Record(Box::new(RunOutcome::of(&hostile())));
    let next = act(&observed, action, &context(&parts), now).await;
    let object = object.lock().unwrap()["status"].clone();
    (next, object)
}

#[tokio::test]
async fn a_result_rejected_by_the_api_server_is_recorded_without_details() {
    let etcd = FakeResponse::Json(
        500,
        json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": "etcdserver: request is too large", "reason": "InternalError", "code": 500}),
    );
    let responses = [
        FakeResponse::refusal(413, "RequestEntityTooLarge"),
        FakeResponse::refusal(422, "Invalid"),
        FakeResponse::refusal(400, "BadRequest"),
        etcd,
    ];
    for response in responses {
        let (next, status) = Box::pin(recorded(1, response.clone())).await;
        assert!(matches!(next, Ok(Next::Again(update)) if update.is_complete()), "{response:?}");
        let absent = ["changes", "permalink", "lastOutput"].map(|field| status.get(field).is_none());
        assert_eq!(absent, [true; 3], "{status}");
        let message = status["message"].as_str().unwrap();
        assert!(message.starts_with("boom; the API server rejected the details of the result: "), "{message}");
        assert_eq!(
            (&status["interrupted"], &status["progress"]["pid"]),
            (&json!(true), &json!(42)),
            "the fields identify the lock"
        );
        assert_eq!(status["endTime"], "2026-01-01T12:10:00Z");
    }
}

#[tokio::test]
async fn an_accepted_result_keeps_its_details_and_plausible_times() {
    let (_, status) = Box::pin(recorded(0, FakeResponse::Silence)).await;
    assert_eq!(status["changes"].as_object().map(serde_json::Map::len), Some(30));
    assert!(status.get("startTime").is_none(), "the start time is not in the future: {status}");
    let (next, status) = Box::pin(recorded(9, FakeResponse::refusal(413, "RequestEntityTooLarge"))).await;
    assert!(next.is_err() && status.get("message").is_none(), "the status write is retried");
    let (next, _) = Box::pin(recorded(1, FakeResponse::refusal(503, "ServiceUnavailable"))).await;
    assert!(next.is_err(), "the full status is retried after an API server outage");
}

/// Returns a context with a run history, the history store, and the stream of the Updates that the tasks requeue.
fn context_with_history(parts: &TestParts) -> (Context, HistoryStore, Requeues<Update>) {
    let retention = Retention { max_runs: 9, max_age: Duration::ZERO, max_size: None };
    let store = HistoryStore::in_memory("", retention, parts.metrics.clone());
    let (requeue, requeues) = requeue::queue();
    let (tasks, end, metrics) = (parts.tasks.clone(), parts.end.clone(), parts.metrics.clone());
    let history = HistoryWriter::new(store.clone(), parts.agents.clone(), requeue, tasks, end, metrics);
    (Context { history: Some(history), ..context(parts) }, store, requeues)
}

#[tokio::test]
async fn the_history_contains_the_failure_of_a_preview_whose_plan_is_not_stored() {
    let (client, object) = rejecting(0, FakeResponse::Silence);
    let parts = TestParts::new(client);
    let (context, store, mut requeues) = context_with_history(&parts);
    let mut preview = stored();
    preview["spec"]["type"] = json!("preview");
    preview["spec"]["savePlan"] = json!(true);
    let observed = observed(preview, None);
    let now = "2026-01-01T12:10:00Z".parse().unwrap();
    let result = proto::Result { outcome: proto::Outcome::Succeeded.into(), ..proto::Result::default() };
    let action = || Action::Record(Box::new(RunOutcome::of(&result)));
    assert!(matches!(act(&observed, action(), &context, now).await, Ok(Next::Done(Some(_)))));
    futures::StreamExt::next(&mut requeues).await.unwrap();
    let names = store.names("").await.unwrap();
    let name = names.iter().find(|name| name.ends_with("summary.json")).expect("summary");
    let summary = store.read_object(name).await.unwrap().unwrap();
    let summary: Value = serde_json::from_slice(&summary).unwrap();
    let message = "failed to store the plan: the agent returned no plan";
    assert_eq!((&summary["result"], &summary["message"]), (&json!("failed"), &json!(message)));
    assert!(matches!(act(&observed, action(), &context, now).await, Ok(Next::Again(update)) if update.is_complete()));
    assert_eq!(object.lock().unwrap()["status"]["message"], message, "the status has the same result");
}

#[tokio::test]
async fn a_result_is_recorded_with_the_reference_to_the_stored_run() {
    let (client, object) = rejecting(0, FakeResponse::Silence);
    let parts = TestParts::new(client);
    let (context, _, mut requeues) = context_with_history(&parts);
    let observed = observed(stored(), None);
    let now = "2026-01-01T12:10:00Z".parse().unwrap();
    let action = || Action::Record(Box::new(RunOutcome::of(&hostile())));
    let next = act(&observed, action(), &context, now).await;
    assert!(matches!(next, Ok(Next::Done(Some(_)))), "{next:?}");
    assert!(object.lock().unwrap()["status"].get("message").is_none(), "the run is not stored yet");
    futures::StreamExt::next(&mut requeues).await.unwrap();
    let next = act(&observed, action(), &context, now).await;
    assert!(matches!(next, Ok(Next::Again(update)) if update.is_complete()));
    let history = object.lock().unwrap()["status"]["history"].clone();
    assert_eq!(history["url"], "s3://runs/apps/app/unknown/20260101T120000Z-up-uid");
    assert_eq!(history["message"], "the transcript was lost with the pod");
}

/// Returns a fake API server that stores one Secret and the status of the Update.
fn with_secret() -> (kube::Client, Log) {
    let (secret, update) = (Mutex::new(None::<Value>), Mutex::new(stored()));
    client(move |request: &RecordedRequest| {
        let mut secret = secret.lock().unwrap();
        match (request.method.as_str(), request.path.as_str(), secret.clone()) {
            ("POST", SECRETS, None) => FakeResponse::Json(201, secret.insert(request.body.clone()).clone()),
            ("POST", SECRETS, Some(_)) => FakeResponse::refusal(409, "AlreadyExists"),
            ("GET", _, Some(secret)) => FakeResponse::Json(200, secret),
            ("PATCH", PATH, _) => {
                let mut update = update.lock().unwrap();
                apply_json_merge_patch(&mut update, &request.body);
                FakeResponse::Json(200, update.clone())
            }
            _ => FakeResponse::refusal(404, "NotFound"),
        }
    })
}

#[tokio::test]
async fn the_outputs_secret_is_created_once_unless_the_controller_restarts() {
    let (client, log) = with_secret();
    let parts = TestParts::new(client);
    let (with_history, _, mut requeues) = context_with_history(&parts);
    let observed = observed(stored(), None);
    let now = "2026-01-01T12:10:00Z".parse().unwrap();
    let output = proto::Output { name: "url".to_owned(), value: "\"http://x\"".to_owned(), secret: false };
    let (outcome, outputs) = (proto::Outcome::Succeeded.into(), vec![output]);
    let result = proto::Result { outcome, outputs, ..proto::Result::default() };
    let action = || Action::Record(Box::new(RunOutcome::of(&result)));
    let creations = || log.verbs().iter().filter(|verb| **verb == format!("POST {SECRETS}")).count();
    assert!(matches!(act(&observed, action(), &with_history, now).await, Ok(Next::Done(Some(_)))));
    futures::StreamExt::next(&mut requeues).await.unwrap();
    let next = act(&observed, action(), &with_history, now).await;
    assert!(matches!(next, Ok(Next::Again(update)) if update.is_complete()));
    assert_eq!(creations(), 1, "the process remembers the Secret");
    let restarted = context(&parts);
    for _ in 0..2 {
        let next = act(&observed, action(), &restarted, now).await;
        let Ok(Next::Again(update)) = next else { panic!("the result is recorded: {next:?}") };
        let status = update.status.unwrap();
        assert_eq!((status.outputs.as_deref(), status.outputs_unavailable), (Some("app-1-stack-outputs"), None));
        assert_eq!(creations(), 2, "the restarted process finds the existing Secret once");
    }
    restarted.forget(&observed.update);
    act(&observed, action(), &restarted, now).await.unwrap();
    assert_eq!(creations(), 3, "the process forgets the Secret with the run");
}

#[test]
fn a_canceled_drift_check_is_not_reported_as_a_failure() {
    let event = |spec: Value, outcome: proto::Outcome| {
        let mut update = stored();
        update["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        let result = proto::Result { outcome: outcome.into(), message: "why".to_owned(), ..proto::Result::default() };
        let event = end_event(&serde_json::from_value(update).unwrap(), &RunOutcome::of(&result)).expect("an event");
        (event.kind, event.reason)
    };
    let check = json!({"type": "preview", "previewOf": "refresh"});
    let plan = json!({"type": "preview", "previewOf": "up", "savePlan": true});
    let reported = |kind, reason: &str| (kind, reason.to_owned());
    assert_eq!(event(check.clone(), proto::Outcome::Canceled), reported(EventKind::Trace, "UpdateCanceled"));
    assert_eq!(event(check, proto::Outcome::Failed), reported(EventKind::Warning, "UpdateFailed"));
    assert_eq!(event(plan, proto::Outcome::Canceled), reported(EventKind::Warning, "UpdateFailed"));
    assert_eq!(event(json!({}), proto::Outcome::Canceled), reported(EventKind::Warning, "UpdateFailed"));
}

#[test]
fn the_success_of_a_stacks_run_is_reported_only_by_the_stack() {
    let event = |owner: Option<&str>, outcome: proto::Outcome| {
        let mut update = stored();
        let owner = owner.map(|kind| json!({"apiVersion": "pulumi.com/v1", "kind": kind, "name": "app", "uid": "s"}));
        update["metadata"]["ownerReferences"] = json!(owner.into_iter().collect::<Vec<_>>());
        let result = proto::Result { outcome: outcome.into(), ..proto::Result::default() };
        end_event(&serde_json::from_value(update).unwrap(), &RunOutcome::of(&result)).map(|event| event.reason)
    };
    let reported = |reason: &str| Some(reason.to_owned());
    assert_eq!(event(None, proto::Outcome::Succeeded), reported("UpdateSucceeded"));
    assert_eq!(event(Some("Workspace"), proto::Outcome::Succeeded), reported("UpdateSucceeded"));
    assert_eq!(event(Some("Stack"), proto::Outcome::Succeeded), None);
    assert_eq!(event(Some("Stack"), proto::Outcome::Failed), reported("UpdateFailed"));
}

#[tokio::test]
async fn the_pod_of_an_expired_run_is_deleted_after_the_status_is_written() {
    let grace_periods = [(None, true), (Some(600), true), (Some(60), false)];
    for (grace, is_deleted) in grace_periods {
        let mut metadata = json!({"name": "app-workspace-0", "namespace": "apps", "uid": "pod-uid"});
        if let Some(grace) = grace {
            metadata["deletionTimestamp"] = json!("2026-01-01T12:00:00Z");
            metadata["deletionGracePeriodSeconds"] = json!(grace);
        }
        let (client, log) = client(|request: &RecordedRequest| match request.method.as_str() {
            "DELETE" => FakeResponse::Json(200, json!({"kind": "Status", "status": "Success"})),
            _ => FakeResponse::Json(200, stored()),
        });
        let parts = TestParts::new(client);
        let observed = observed(stored(), Some(json!({ "metadata": metadata })));
        let now = "2026-01-01T12:10:00Z".parse().unwrap();
        let action = Action::DeletePod("too late".to_owned());
        act(&observed, action, &context(&parts), now).await.unwrap();
        let requests = log.all();
        let message = &requests[0].body["status"]["conditions"][0]["message"];
        assert_eq!((requests[0].path.as_str(), message), (PATH, &json!("too late; deleting pod app-workspace-0")));
        let deletion = requests.iter().find(|request| request.method == "DELETE");
        assert_eq!(deletion.is_some(), is_deleted, "{grace:?}");
        if let Some(deletion) = deletion {
            assert!(deletion.path.ends_with("/namespaces/apps/pods/app-workspace-0"), "{}", deletion.path);
            assert_eq!(deletion.body["gracePeriodSeconds"], 60);
            assert_eq!(deletion.body["preconditions"]["uid"], "pod-uid");
        }
    }
}

//! Tests for the run slots of runs that tenants try to keep open.

use futures::{FutureExt, StreamExt};
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher::Event;

use super::*;
use crate::api::auto::Workspace;
use crate::controller::update::attachments::Target;
use crate::controller::update::controller::reconcile;
use crate::controller::update::run_slot;
use crate::rpc::client::AgentAddress;
use crate::runtime::index::StoreWriter;
use crate::runtime::run_limiter::Run;

#[tokio::test]
async fn a_task_attaches_to_a_bound_run_without_a_valid_workspace_but_does_not_start_it() {
    let (client, _) = client(|_| FakeResponse::refusal(404, "NotFound"));
    let parts = TestParts::new(client);
    let workspace = |env: Value| -> Workspace {
        let workspace = json!({
            "apiVersion": "auto.pulumi.com/v1alpha1", "kind": "Workspace",
            "metadata": {"name": "app", "namespace": "apps"}, "spec": {"env": env},
        });
        serde_json::from_value(workspace).unwrap()
    };
    let mut pod = pod();
    pod["status"]["podIP"] = json!("127.0.0.1");
    let rows = [
        ("valid Workspace", Some(workspace(json!([]))), true),
        ("invalid Workspace", Some(workspace(json!([{"name": "A=B", "value": "x"}]))), false),
        ("no Workspace", None, false),
    ];
    for (name, workspace, expected) in rows {
        let context = context(&parts);
        let observed = Observed { workspace, ..observed(stored(), Some(pod.clone())) };
        let now = "2026-01-01T12:10:00Z".parse().unwrap();
        let next = act(&observed, Action::Attach(RunBinding::default()), &context, now).await;
        assert!(next.is_ok(), "{name}: {next:?}");
        let may_start = context.attachments.snapshot("uid").map(|snapshot| snapshot.may_start);
        assert_eq!(may_start, Some(expected), "{name}");
    }
}

/// Makes the run of the stored Update hold the only slot. The binding of the run was recorded at the time `bound_at`.
fn hold_slot(context: &Context, bound_at: &str) {
    let run = Run { uid: "uid".to_owned(), namespace: "apps".to_owned(), node: "node".to_owned(), ..Run::default() };
    let permit = context.run_limiter.acquire(&run, ObjectRef::new("app-1").within("apps")).unwrap();
    let update: Update = serde_json::from_value(unbound()).unwrap();
    context.hold_slot(&update, permit, bound_at.parse().unwrap());
}

/// Returns whether a run of another namespace can start.
fn is_slot_free(context: &Context) -> bool {
    let (uid, namespace) = ("other".to_owned(), "other".to_owned());
    let run = Run { uid, namespace, node: "node".to_owned(), ..Run::default() };
    let permit = context.run_limiter.acquire(&run, ObjectRef::new("other").within("other"));
    context.run_limiter.withdraw("other");
    permit.is_ok()
}

/// Tries to record a binding. Returns whether the attempt ends without an error, and whether the slot is then free.
/// `mark` and `status` are the responses to the two writes.
async fn bind(mark: FakeResponse, status: FakeResponse) -> (bool, bool) {
    let (client, _) = client(move |request: &RecordedRequest| match request.path.as_str() {
        POD => mark.clone(),
        PATH => status.clone(),
        _ => FakeResponse::refusal(404, "NotFound"),
    });
    let parts = TestParts::new(client);
    let context = context(&parts);
    let observed = observed(unbound(), Some(pod()));
    let now = "2026-01-01T12:10:00Z".parse().unwrap();
    let next = act(&observed, Action::RecordBinding(RunBinding::default()), &context, now).await;
    (next.is_ok(), is_slot_free(&context))
}

#[tokio::test(start_paused = true)]
async fn a_run_whose_binding_is_not_recorded_holds_no_slot() {
    let (marked, bound) = (|| FakeResponse::Json(200, pod()), || FakeResponse::Json(200, stored()));
    let refused = FakeResponse::refusal;
    let too_large = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": "etcdserver: request is too large", "reason": "InternalError", "code": 500});
    let rows = [
        ("success", marked(), bound(), (true, false)),
        ("pod too large", refused(422, "Invalid"), bound(), (true, true)),
        ("changed pod", refused(409, "Conflict"), bound(), (false, true)),
        ("no response to the mark", FakeResponse::Silence, bound(), (false, true)),
        ("changed Update", marked(), refused(409, "Conflict"), (false, true)),
        ("Update too large", marked(), FakeResponse::Json(500, too_large), (false, true)),
        ("no response to the binding", marked(), FakeResponse::Silence, (false, false)),
        ("failed storage", marked(), refused(500, "InternalError"), (false, false)),
    ];
    for (name, mark, status, expected) in rows {
        assert_eq!(Box::pin(bind(mark, status)).await, expected, "{name}");
    }
}

/// Tries to bind the run of an Update with these owners while no slot is free. Returns the number of writes.
async fn writes_while_queued(owners: Value, conditions: Value, created: &str) -> usize {
    let (client, log) = client(|_| FakeResponse::Json(200, unbound()));
    let parts = TestParts::new(client);
    let context = context(&parts);
    let _open = context.run_limiter.adopt(&Run { uid: "open".to_owned(), ..Run::default() });
    let mut update = unbound();
    update["metadata"]["ownerReferences"] = owners;
    update["metadata"]["creationTimestamp"] = json!(created);
    update["status"] = json!({ "conditions": conditions });
    let now = "2026-01-01T12:10:00Z".parse().unwrap();
    let bind = Action::RecordBinding(RunBinding::default());
    let next = act(&observed(update, Some(pod())), bind, &context, now).await;
    assert!(matches!(next, Ok(Next::Done(Some(_)))), "{next:?}");
    log.all().len()
}

#[tokio::test(start_paused = true)]
async fn the_wait_of_a_stacks_run_is_not_written_to_its_update() {
    let stack = json!([{"apiVersion": "pulumi.com/v1", "kind": "Stack", "name": "app", "uid": "s"}]);
    let not_ready = json!([{"type": "Progressing", "status": "False", "reason": "WorkspaceNotReady", "message": "",
        "lastTransitionTime": "2026-01-01T12:09:00Z"}]);
    let (new, old) = ("2026-01-01T12:10:00Z", "2026-01-01T12:09:00Z");
    let rows = [
        ("Update of a user", json!([]), json!([]), old, 1),
        ("new Update of a user", json!([]), json!([]), new, 0),
        ("Update of a Stack", stack.clone(), json!([]), old, 0),
        ("Update of a Stack with an outdated reason", stack, not_ready, old, 1),
    ];
    for (name, owners, conditions, created, expected) in rows {
        assert_eq!(Box::pin(writes_while_queued(owners, conditions, created)).await, expected, "{name}");
    }
}

const PAST: &str = "2020-01-01T12:00:00Z";
const FUTURE: &str = "2999-01-01T12:00:00Z";

/// Reconciles an Update whose run holds the only slot. The fake API server returns `live` as the Update, and fails all
/// other requests. Returns whether the slot is free after the reconciliation has failed.
async fn is_free_after_failure(cached: Value, bound_at: &str, live: FakeResponse, timeouts: RunTimeouts) -> bool {
    let (client, _) = client(move |request: &RecordedRequest| match request.path.as_str() {
        path if path == PATH.trim_end_matches("/status") => live.clone(),
        _ => FakeResponse::refusal(500, "InternalError"),
    });
    let parts = TestParts::new(client);
    let context = Arc::new(Context { timeouts, ..context(&parts) });
    hold_slot(&context, bound_at);
    assert!(!is_slot_free(&context));
    let cached = Arc::new(serde_json::from_value(cached).unwrap());
    assert!(Box::pin(reconcile(cached, context.clone())).await.is_err());
    is_slot_free(&context)
}

#[tokio::test]
async fn the_slot_of_an_unknown_attempt_is_free_unless_the_binding_is_recorded() {
    for (live, expected) in [(unbound(), true), (stored(), false)] {
        let response = FakeResponse::Json(200, live.clone());
        let is_free = Box::pin(is_free_after_failure(unbound(), PAST, response, RunTimeouts::default())).await;
        assert_eq!(is_free, expected, "{live}");
    }
}

#[tokio::test]
async fn a_completed_run_holds_no_slot_while_its_pod_cannot_be_unmarked() {
    let conflicts = Mutex::new(1);
    let (client, log) = client(move |request: &RecordedRequest| {
        let mut conflicts = conflicts.lock().unwrap();
        match request.path.as_str() {
            POD if *conflicts > 0 => {
                *conflicts -= 1;
                FakeResponse::refusal(409, "Conflict")
            }
            POD => FakeResponse::Json(200, pod()),
            _ => FakeResponse::Json(200, stored()),
        }
    });
    let parts = TestParts::new(client);
    let context = context(&parts);
    hold_slot(&context, PAST);
    let mut marked = pod();
    marked["metadata"]["annotations"] = json!({"auto.pulumi.com/run-id": "uid"});
    // Without an address, the controller does not acknowledge the result to the agent.
    marked["status"] = json!({});
    let observed = observed(stored(), Some(marked));
    let now = "2026-01-01T12:10:00Z".parse().unwrap();
    assert!(act(&observed, Action::Release, &context, now).await.is_err());
    assert!(is_slot_free(&context));
    assert!(act(&observed, Action::Release, &context, now).await.is_ok());
    let unmarks = log.verbs().iter().filter(|verb| **verb == format!("PATCH {POD}")).count();
    assert_eq!(unmarks, 2, "the controller retries the write");
}

#[tokio::test]
async fn a_run_with_an_unknown_outcome_loses_its_slot_after_its_deadline() {
    let timeouts = RunTimeouts { default: Duration::from_secs(60), maximum: Duration::ZERO };
    let mut update = stored();
    update["status"]["run"]["podUID"] = json!("pod-uid");
    for (bound_at, expected) in [(PAST, true), (FUTURE, false)] {
        let (client, _) = client(|_| FakeResponse::Json(200, stored()));
        let parts = TestParts::new(client);
        let context = Context { timeouts, ..context(&parts) };
        hold_slot(&context, bound_at);
        let observed = observed(update.clone(), Some(pod()));
        let unknown = Action::OutcomeUnknown("the pod ended".to_owned());
        let now = "2026-01-01T12:10:00Z".parse().unwrap();
        let next = Box::pin(act(&observed, unknown, &context, now)).await;
        assert!(next.is_ok(), "{next:?}");
        assert_eq!(is_slot_free(&context), expected, "bound at {bound_at}");
    }
}

#[tokio::test]
async fn a_run_that_cannot_be_reconciled_loses_its_slot_after_its_deadline() {
    let unreadable = || FakeResponse::refusal(500, "InternalError");
    let limited = RunTimeouts { default: Duration::from_secs(60), maximum: Duration::ZERO };
    let mut invalid = stored();
    invalid["spec"]["timeout"] = json!("soon");
    let rows = [
        ("unreadable Update", stored(), PAST, unreadable(), limited, true),
        ("unreadable Workspace", stored(), PAST, FakeResponse::Json(200, stored()), limited, true),
        ("binding unknown to the cache", unbound(), PAST, unreadable(), limited, true),
        ("timeout changed to an invalid value", invalid, PAST, unreadable(), limited, true),
        ("before the deadline", stored(), FUTURE, unreadable(), limited, false),
        ("no timeout", stored(), PAST, unreadable(), RunTimeouts::default(), false),
    ];
    for (name, cached, bound_at, live, timeouts, expected) in rows {
        assert_eq!(Box::pin(is_free_after_failure(cached, bound_at, live, timeouts)).await, expected, "{name}");
    }
}

#[tokio::test]
async fn the_task_of_a_run_without_a_slot_is_detached_with_its_update() {
    let (client, _) = client(|_| FakeResponse::refusal(404, "NotFound"));
    let parts = TestParts::new(client);
    let context = context(&parts);
    hold_slot(&context, PAST);
    let (ip, server_name) = (std::net::IpAddr::from([127, 0, 0, 1]), "app".to_owned());
    let address = AgentAddress { ip, port: 1, server_name, namespace: "apps".to_owned() };
    let request = proto::RunRequest { id: "uid".to_owned(), ..proto::RunRequest::default() };
    let update = ObjectRef::new("app-1").within("apps");
    context.attachments.attach(Target { update, address, request, may_start: false });
    context.attachments.release_slot("uid");
    assert!(is_slot_free(&context) && context.attachments.snapshot("uid").is_some());
    context.attachments.forget("apps", "app-1");
    assert!(context.attachments.snapshot("uid").is_none());
}

#[tokio::test]
async fn a_failed_status_write_does_not_prevent_the_deletion_of_an_expired_pod() {
    let (client, log) = client(|request: &RecordedRequest| match request.method.as_str() {
        "DELETE" => FakeResponse::Json(200, json!({"kind": "Status", "status": "Success"})),
        _ => FakeResponse::refusal(409, "Conflict"),
    });
    let parts = TestParts::new(client);
    let observed = observed(stored(), Some(pod()));
    let now = "2026-01-01T12:10:00Z".parse().unwrap();
    let next = act(&observed, Action::DeletePod("too late".to_owned()), &context(&parts), now).await;
    assert!(next.is_err(), "the status write is retried");
    assert_eq!(log.verbs(), [format!("PATCH {PATH}"), format!("DELETE {POD}")]);
}

#[tokio::test]
async fn an_adopted_run_has_the_share_of_its_namespace() {
    let raised = json!({"pulumi.com/max-concurrent-runs": "4", "pulumi.com/run-weight": "100"});
    for (annotations, expected) in [(json!({}), true), (raised, false)] {
        let metadata = json!({"name": "apps", "annotations": annotations});
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata});
        let (client, _) = client(move |request: &RecordedRequest| match request.path.as_str() {
            "/api/v1/namespaces/apps" => FakeResponse::Json(200, namespace.clone()),
            _ => FakeResponse::refusal(404, "NotFound"),
        });
        let parts = TestParts::new(client);
        let (updates, mut writer) = updates();
        for number in 0..4 {
            let mut update = stored();
            update["metadata"]["name"] = json!(format!("app-{number}"));
            update["metadata"]["uid"] = json!(format!("uid-{number}"));
            writer.apply(&Event::Apply(serde_json::from_value(update).unwrap()));
        }
        // With the default share, the adopted runs count as half of the slots.
        let limits = Limits { all: 4, each_namespace: 2, each_node: 4 };
        let run_limiter = RunLimiter::new(limits, parts.metrics.clone());
        let context = Context { updates, run_limiter, ..context(&parts) };
        context.adopt_open_runs().await;
        assert_eq!(is_slot_free(&context), expected, "{metadata}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_run_is_queued_only_while_the_cache_contains_its_update() {
    let mut namesake = unbound();
    namesake["metadata"]["uid"] = json!("another");
    for (name, cached, expected) in
        [("cached", Some(unbound()), true), ("deleted", None, false), ("a new Update", Some(namesake), false)]
    {
        let (client, _) = client(|_| FakeResponse::refusal(404, "NotFound"));
        let parts = TestParts::new(client);
        let (updates, mut writer) = updates();
        if let Some(update) = cached {
            writer.apply(&Event::Apply(serde_json::from_value(update).unwrap()));
        }
        let context = Context { updates, ..context(&parts) };
        let open = context.run_limiter.adopt(&Run { uid: "open".to_owned(), ..Run::default() });
        let pod: Pod = serde_json::from_value(pod()).unwrap();
        assert!(run_slot::acquire(&observed(unbound(), None), &pod, &context).is_err(), "{name}");
        drop(open);
        let mut requeues = Box::pin(context.run_limiter.requeues());
        let requeued = requeues.next().now_or_never().flatten();
        assert_eq!(requeued.is_some(), expected, "{name}");
    }
}

use tokio_util::sync::CancellationToken;

use super::*;

const TEST_TIMEOUT: Duration = Duration::from_secs(60);

fn operations(share: &std::path::Path) -> Operations {
    let (layout, workspace_lock) = (Layout::new(share), WorkspaceLock::default());
    layout.create().unwrap();
    let settings = Arc::new(Settings::open(layout.clone()));
    let stop = CancellationToken::new();
    let source = Arc::new(Source::open(layout.clone(), workspace_lock.clone(), settings.clone(), stop).unwrap());
    let journal = Arc::new(Journal::open(&layout.operations()).unwrap());
    let identity = Identity::new("pod".into()).unwrap();
    Operations::new(identity, layout, workspace_lock, journal, source, settings, TEST_TIMEOUT)
}

#[test]
fn a_run_that_starts_after_the_termination_of_the_agent_is_canceled() {
    let directory = tempfile::tempdir().unwrap();
    let operations = operations(directory.path());
    operations.terminate();
    let latest = Instant::now() + TEST_TIMEOUT;
    let (sender, cancel_request) = watch::channel(CancelRequest::default());
    *lock(&operations.open) = Some(RunningOperation { id: "late".into(), cancel_request: sender });
    assert!(!cancel_request.borrow().is_requested());
    operations.cancel_if_terminated();
    assert!(cancel_request.borrow().is_requested());
    assert!(cancel_request.borrow().forced_at.is_some_and(|forced_at| forced_at <= latest));
}

#[test]
fn a_run_that_another_call_is_starting_is_not_started_again() {
    let directory = tempfile::tempdir().unwrap();
    let operations = Arc::new(operations(directory.path()));
    let request = |id: &str| proto::RunRequest {
        id: id.to_owned(),
        kind: proto::OperationKind::Up.into(),
        pod_uid: operations.identity.pod_uid.clone(),
        start_id: operations.identity.start_id.clone(),
        ..proto::RunRequest::default()
    };
    let run = |id: &str| operations.run(&operations.starting.register(id), request(id), String::new());
    let _guard = operations.workspace_lock.lock_for_operation("one").unwrap();
    assert!(matches!(run("one"), Ok(Admission::Known)));
    let Ok(Admission::Held(why)) = run("two") else { panic!("expected a wait: another operation is running") };
    assert_eq!(why, "run one, whose Update was deleted, is still open in the pod");
    operations.workspace_lock.drain();
    let Err(refusal) = run("two") else { panic!("expected an error: the pod will be replaced") };
    assert!(refusal.to_string().contains("draining"), "{refusal}");
}

#[test]
fn an_operation_that_a_call_is_starting_is_not_unknown_and_can_be_canceled() {
    let directory = tempfile::tempdir().unwrap();
    let operations = operations(directory.path());
    let (settings, environment) = (proto::Settings::default(), Environment::default());
    for (id, is_canceled) in [("canceled", true), ("continued", false)] {
        assert!(matches!(operations.find(id), Err(Refusal::UnknownOperation(_))), "{id}");
        assert!(matches!(operations.cancel(id, 0), Err(Refusal::UnknownOperation(_))), "{id}");
        let call = operations.starting.register(id);
        assert!(matches!(operations.find(id), Err(Refusal::Starting(_))), "{id}");
        if is_canceled {
            operations.cancel(id, 0).unwrap();
        }
        let request = proto::RunRequest { id: id.to_owned(), ..proto::RunRequest::default() };
        operations.begin(&request, &settings, &environment, &call.cancel_request).unwrap();
        drop(call);
        assert!(operations.find(id).is_ok(), "{id}");
        let open = lock(&operations.open);
        assert!(open.as_ref().is_some_and(|open| open.cancel_request.borrow().is_requested() == is_canceled), "{id}");
    }
}

#[test]
fn the_end_of_the_pod_brings_the_forced_cancellation_forward() {
    let directory = tempfile::tempdir().unwrap();
    let operations = operations(directory.path());
    let (sender, cancel_request) = watch::channel(CancelRequest::default());
    let call = operations.starting.register("one");
    let request = proto::RunRequest { id: "one".to_owned(), ..proto::RunRequest::default() };
    operations.begin(&request, &proto::Settings::default(), &Environment::default(), &call.cancel_request).unwrap();
    *lock(&operations.open) = Some(RunningOperation { id: "one".into(), cancel_request: sender });
    operations.terminate();
    operations.cancel("one", 20).unwrap();
    let forced_at = cancel_request.borrow().forced_at.unwrap();
    assert!(forced_at <= Instant::now() + Duration::from_secs(10), "half of the time is left for the state");
    operations.cancel("one", 600).unwrap();
    assert_eq!(cancel_request.borrow().forced_at, Some(forced_at), "a later end has no effect");
    assert_eq!(cancel_request.borrow().cause, Some(Cause::Terminated));
}

#[test]
fn a_call_that_fails_to_start_an_operation_leaves_it_unknown() {
    let directory = tempfile::tempdir().unwrap();
    let operations = operations(directory.path());
    drop(operations.starting.register("one"));
    assert!(matches!(operations.find("one"), Err(Refusal::UnknownOperation(_))));
}

#[test]
fn an_operation_whose_start_is_prevented_never_begins() {
    let directory = tempfile::tempdir().unwrap();
    let operations = operations(directory.path());
    let call = operations.register("starting").unwrap();
    assert!(matches!(operations.find_or_prevent("starting"), Err(Refusal::Starting(_))), "the call can begin it");
    let request = proto::RunRequest { id: "starting".to_owned(), ..proto::RunRequest::default() };
    let (settings, environment) = (proto::Settings::default(), Environment::default());
    operations.begin(&request, &settings, &environment, &call.cancel_request).unwrap();
    drop(call);
    assert!(operations.find_or_prevent("starting").is_ok());
    assert!(operations.register("starting").is_ok(), "a repeated call for an operation that has begun");
    assert!(matches!(operations.find_or_prevent("unread"), Err(Refusal::UnknownOperation(_))));
    let refusal = operations.register("unread").unwrap_err();
    assert!(refusal.to_string().contains("operation unread was canceled before it began"), "{refusal}");
    assert!(matches!(operations.find("unread"), Err(Refusal::UnknownOperation(_))), "the rejected call has ended");
    assert!(matches!(operations.find_or_prevent("../escape"), Err(Refusal::Invalid(_))));
}

//! Tests for the task's reports, their timing, and the rate limit.

use futures::{FutureExt, StreamExt};
use jiff::SignedDuration;
use kube::runtime::reflector::ObjectRef;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::Status;

use super::*;
use crate::api::auto::Update;
use crate::rpc::client::tests::FakeAgent;
use crate::rpc::client::{AgentAddress, Agents};
use crate::rpc::identity::Authority;
use crate::rpc::proto::{ResourceStep, Started, StepState, progress};
use crate::rpc::server_tls::tests::Serving;
use crate::runtime::requeue::{self, Requeues};
use crate::runtime::run_limiter::{Limits, Run, RunLimiter};

fn attachments() -> (Attachments, Requeues<Update>) {
    let now = jiff::Timestamp::now();
    let authority = Authority::generate(now).expect("valid authority");
    let client = authority.issue_client(now).expect("valid certificate");
    let agents = Agents::new(&[client], authority.certificate_pem()).expect("valid identity");
    let (requeue, requeues) = requeue::queue();
    (Attachments::new(agents, requeue, TaskTracker::new(), CancellationToken::new()), requeues)
}

fn target() -> Target {
    Target {
        update: ObjectRef::new("app-1").within("apps"),
        address: AgentAddress {
            ip: [10, 0, 0, 1].into(),
            port: 1,
            server_name: "app".to_owned(),
            namespace: "apps".to_owned(),
        },
        request: proto::RunRequest { id: "uid".to_owned(), ..Default::default() },
        may_start: true,
    }
}

/// Returns the state of a task that has the given serial number, without running the task.
fn followed(attachments: &Attachments, serial: u64) -> Following {
    let target = target();
    let attachment = Attachment {
        serial,
        run_state: RunState::Connecting,
        progress: None,
        steps: None,
        address: target.address.clone(),
        may_start: true,
        silent_since: None,
        _guard: CancellationToken::new().drop_guard(),
    };
    attachments.lock().insert("uid".to_owned(), attachment);
    Following::new(target, serial)
}

fn progress_event(sequence: u64, event: progress::Event) -> proto::Progress {
    proto::Progress { sequence, time: 1_000, event: Some(event) }
}

fn begun(sequence: u64) -> proto::Progress {
    let urn = format!("urn:pulumi:dev::app::aws:s3/bucket:Bucket::b{sequence}");
    let step = ResourceStep { urn, operation: "create".to_owned(), state: StepState::Begun.into() };
    progress_event(sequence, progress::Event::Resource(step))
}

/// Returns 1 if the Update was requeued since the last call, and 0 otherwise.
fn count_requeues(requeues: &mut Requeues<Update>) -> usize {
    std::iter::from_fn(|| requeues.next().now_or_never().flatten()).count()
}

#[tokio::test(start_paused = true)]
async fn a_new_process_is_reported_immediately_and_progress_is_throttled() {
    let (attachments, mut requeues) = attachments();
    let mut following = followed(&attachments, 1);
    attachments.record(&mut following, &progress_event(0, progress::Event::Started(Started { pid: 42 })));
    assert_eq!((count_requeues(&mut requeues), following.due), (1, None), "no pending progress");
    let published = |attachments: &Attachments| {
        attachments.snapshot("uid").and_then(|snapshot| snapshot.progress).expect("published")
    };
    assert_eq!(published(&attachments).pid, Some(42));

    let begin = Instant::now();
    for sequence in 1..100 {
        attachments.record(&mut following, &begun(sequence));
    }
    assert_eq!((count_requeues(&mut requeues), following.due), (0, Some(begin + PROGRESS_INTERVAL)));
    assert_eq!((published(&attachments).in_work, following.from), (0, 100), "unpublished progress is not visible");
    tokio::time::advance(PROGRESS_INTERVAL).await;
    attachments.publish_progress(&mut following);
    assert_eq!((count_requeues(&mut requeues), following.due), (1, None));
    assert!(published(&attachments).summary.contains("aws:s3:Bucket b1 and "), "{:?}", published(&attachments));

    attachments.record(&mut following, &begun(5));
    assert_eq!((count_requeues(&mut requeues), following.due), (0, None), "known progress is not published again");
}

#[tokio::test(start_paused = true)]
async fn repeated_process_starts_requeue_the_update_at_most_once_per_second() {
    let (attachments, mut requeues) = attachments();
    let mut following = followed(&attachments, 1);
    let begin = Instant::now();
    let mut requeued = 0;
    for number in 0..20_000 {
        attachments
            .record(&mut following, &progress_event(number, progress::Event::Started(Started { pid: number as u32 })));
        tokio::time::advance(Duration::from_millis(1)).await;
        // Simulates that the task waits for the next message.
        if following.due.is_some_and(|due| due <= Instant::now()) {
            attachments.publish_progress(&mut following);
        }
        requeued += count_requeues(&mut requeues);
    }
    let seconds = begin.elapsed().as_secs() as usize;
    assert!(requeued <= seconds + 1 && requeued > seconds / 2, "requeued {requeued} times in {seconds} s");
}

#[tokio::test(start_paused = true)]
async fn the_last_progress_is_reported_with_the_result() {
    let (attachments, mut requeues) = attachments();
    let mut following = followed(&attachments, 1);
    following.published = Some(Instant::now());
    attachments.record(&mut following, &begun(1));
    attachments.publish(&mut following, RunState::Ended(Box::default()));
    assert_eq!(count_requeues(&mut requeues), 1);
    let snapshot = attachments.snapshot("uid").expect("attachment is kept");
    assert_eq!(
        (snapshot.run_state, snapshot.progress.map(|progress| progress.in_work)),
        (RunState::Ended(Box::default()), Some(1))
    );
}

#[tokio::test(start_paused = true)]
async fn the_resource_operations_of_an_ended_run_are_kept_if_they_are_recorded() {
    let (attachments, _requeues) = attachments();
    let mut following = followed(&attachments, 1);
    attachments.record(&mut following, &begun(1));
    attachments.publish(&mut following, RunState::Ended(Box::default()));
    assert_eq!(attachments.steps("uid"), None, "without traces, no operations are recorded");
    let mut following = followed(&attachments, 2);
    following.steps = Some(ResourceSteps::default());
    attachments.publish(&mut following, RunState::Running);
    attachments.record(&mut following, &begun(1));
    assert_eq!(attachments.steps("uid"), None, "the run has not ended");
    attachments.publish(&mut following, RunState::Ended(Box::default()));
    let names: Vec<String> =
        attachments.steps("uid").expect("operations").steps().iter().map(|step| step.name.clone()).collect();
    assert_eq!(names, ["b1"]);
}

#[tokio::test(start_paused = true)]
async fn a_replaced_task_reports_nothing_and_its_progress_is_kept() {
    let (attachments, mut requeues) = attachments();
    let mut old = followed(&attachments, 1);
    attachments.record(&mut old, &progress_event(0, progress::Event::Started(Started { pid: 42 })));
    let elsewhere = AgentAddress { ip: [10, 0, 0, 2].into(), ..target().address };
    attachments.attach(Target { address: elsewhere, ..target() });
    assert_eq!(count_requeues(&mut requeues), 1);
    let snapshot = attachments.snapshot("uid").expect("attachment exists");
    assert_eq!((snapshot.ip.to_string(), snapshot.run_state.clone()), ("10.0.0.2".to_owned(), RunState::Connecting));
    assert_eq!(snapshot.progress.and_then(|progress| progress.pid), Some(42));
    let mut old = Following { serial: u64::MAX, ..Following::new(target(), 0) };
    attachments.publish(&mut old, RunState::Unreachable("no route".to_owned()));
    assert_eq!(
        (count_requeues(&mut requeues), attachments.snapshot("uid").map(|snapshot| snapshot.run_state)),
        (0, Some(RunState::Connecting))
    );
    attachments.attach(Target { address: AgentAddress { ip: [10, 0, 0, 2].into(), ..target().address }, ..target() });
    attachments.detach("uid");
    assert!(attachments.snapshot("uid").is_none());
    attachments.publish(&mut old, RunState::Running);
    assert!(attachments.snapshot("uid").is_none(), "the attachment stays removed");
}

/// Returns a run limiter with a single slot.
fn run_limiter() -> RunLimiter<ObjectRef<Update>> {
    let limits = Limits { all: 1, each_namespace: 1, each_node: 1 };
    RunLimiter::new(limits, crate::telemetry::metrics::Metrics::default())
}

fn run(uid: &str) -> Run {
    Run {
        uid: uid.to_owned(),
        namespace: "apps".to_owned(),
        workspace: uid.to_owned(),
        node: "n".to_owned(),
        ..Run::default()
    }
}

#[tokio::test]
async fn a_run_whose_agent_is_unreachable_for_a_long_time_loses_its_slot() {
    let now = Timestamp::now();
    let after = |hours: i64| now + SignedDuration::from_hours(hours);
    let unreachable = || RunState::Unreachable("no route".to_owned());
    let rows = [
        ("no timeout", None, unreachable(), 25, true),
        ("no timeout, before the limit", None, unreachable(), 23, false),
        ("no timeout, but a response", None, RunState::Running, 25, false),
        ("after the deadline", Some(after(2)), unreachable(), 3, true),
        ("before the deadline", Some(after(30)), unreachable(), 29, false),
        ("after the deadline, but a response", Some(after(2)), RunState::Running, 3, false),
    ];
    for (name, deadline, run_state, hours, expected) in rows {
        let ((attachments, _requeues), run_limiter) = (attachments(), run_limiter());
        attachments.hold_slot("uid", target().update, run_limiter.adopt(&run("uid")), deadline);
        let mut following = followed(&attachments, 1);
        attachments.publish(&mut following, unreachable());
        attachments.publish(&mut following, run_state);
        attachments.release_silent_slot("uid", after(hours));
        let another = run_limiter.acquire(&run("another"), ObjectRef::new("another").within("apps"));
        assert_eq!(another.is_ok(), expected, "{name}");
        assert!(attachments.snapshot("uid").is_some(), "{name}: the run stays open");
    }
}

#[tokio::test]
async fn a_deleted_update_is_detached_from_its_run_and_frees_its_slot() {
    let ((attachments, _news), run_limiter) = (attachments(), run_limiter());
    let gone = target().update;
    attachments.hold_slot("uid", gone.clone(), run_limiter.adopt(&run("uid")), None);
    followed(&attachments, 1);
    let another = || run_limiter.acquire(&run("another"), ObjectRef::new("another").within("apps"));
    for (namespace, name) in [("apps", "app-2"), ("others", "app-1")] {
        attachments.forget(namespace, name);
        assert!(
            attachments.snapshot("uid").is_some() && another().is_err(),
            "expected an attachment of {namespace}/{name} only"
        );
    }
    attachments.forget("apps", "app-1");
    assert!(attachments.snapshot("uid").is_none());
    assert!(another().is_ok(), "the slot is free");
}

#[test]
fn agent_messages_are_reduced_to_one_bounded_line() {
    let message = one_line(&format!("alice\nworks {}", "x".repeat(9000)));
    assert!(message.starts_with("alice works x") && message.len() <= MAX_MESSAGE, "{message}");
}

#[tokio::test(start_paused = true)]
async fn reading_the_progress_of_an_ordinary_run_is_not_rate_limited() {
    let mut limit = ByteRate::new(RATE, BURST, Instant::now());
    let replay = (0..20_000).map(|_| limit.spend(MESSAGE + 300, Instant::now())).max();
    assert_eq!(replay, Some(Duration::ZERO), "reattached to a large run");
}

#[tokio::test(start_paused = true)]
async fn reading_from_an_agent_that_sends_too_fast_is_rate_limited() {
    let begin = Instant::now();
    let mut limit = ByteRate::new(RATE, BURST, begin);
    let mut read = 0;
    while begin.elapsed() < Duration::from_secs(60) {
        tokio::time::sleep(limit.spend(MESSAGE + 100, Instant::now())).await;
        read += 1;
    }
    let most = (BURST as usize + 61 * RATE as usize) / (MESSAGE + 100);
    assert!(read <= most && read > most / 2, "{read} messages in a minute, of at most {most}");
}

#[tokio::test(start_paused = true)]
async fn a_message_larger_than_the_burst_delays_reading_once() {
    let mut limit = ByteRate::new(RATE, BURST, Instant::now());
    let pause = limit.spend(32 * 1024 * 1024, Instant::now());
    assert_eq!(pause.as_secs(), 16);
    tokio::time::advance(pause).await;
    assert!(limit.spend(MESSAGE + 300, Instant::now()) < Duration::from_millis(1));
}

#[tokio::test]
async fn a_run_that_has_not_started_is_never_started_later() {
    let (attach, run, prevent) = ("attach uid 0", "run uid", "attach uid 0 to prevent the start");
    let rows = [
        (false, Status::internal("not called"), RunState::NeverStarted, vec![prevent]),
        (
            true,
            Status::invalid_argument("no kind"),
            RunState::Rejected("no kind".to_owned()),
            vec![attach, run, prevent],
        ),
        (
            true,
            Status::failed_precondition("no key"),
            RunState::PreconditionFailed("no key".to_owned()),
            vec![attach, run, prevent],
        ),
    ];
    for (may_start, refusal, expected, calls) in rows {
        let agent = FakeAgent::without_operations(refusal);
        let serving = Serving::start(agent.clone()).await;
        let (requeue, _requeues) = requeue::queue();
        let attachments = Attachments::new(serving.agents(), requeue, TaskTracker::new(), CancellationToken::new());
        let mut following = Following::new(Target { address: serving.address(), may_start, ..target() }, 1);
        let found = Box::pin(attachments.follow_once(&mut following)).await;
        assert_eq!(found, Ok(expected));
        assert_eq!(agent.calls(), calls);
    }
}

//! Tests for leader election: a table test for the decision, and tests in which candidates use a fake API server that
//! stores one Lease and injects faults. The tests use tokio's paused clock, which advances only while all tasks wait.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::config::LeaderElection;
use crate::runtime::fake_api::{FakeResponse, Log, RecordedRequest, client};
use crate::runtime::lease::state::{Observation, Step, decide, next_lease_spec};
use crate::runtime::lease::{Elector, Identity, LeaseLost, Term};
use crate::runtime::writes::Leadership;
use crate::telemetry::metrics::Metrics;

const LEASE: Duration = Duration::from_secs(35);
const DEADLINE: Duration = Duration::from_secs(30);
const RETRY: Duration = Duration::from_secs(5);
/// Maximum delay between two attempts of a candidate, including jitter.
const MAX_RETRY: Duration = Duration::from_secs(6);

/// Faults of the API server.
#[derive(Clone, Copy, Debug, Default)]
enum Behavior {
    #[default]
    Normal,
    /// The server ignores requests and does not respond.
    Unreachable,
    /// The server executes requests and does not respond.
    Unresponsive,
    /// The server responds with an error.
    Failing,
}

#[derive(Clone, Default)]
struct Server(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    lease: Option<Value>,
    version: u64,
    behavior: Behavior,
}

impl Server {
    fn candidate(&self, identity: &str) -> (Elector, Leadership, Log) {
        let server = self.clone();
        let (client, log) = client(move |request| server.respond(request));
        let times = LeaderElection {
            lease_name: "lead".to_owned(),
            lease_duration: LEASE,
            renew_deadline: DEADLINE,
            retry_period: RETRY,
            release: true,
        };
        let (elector, leadership) =
            Elector::new(client, ("flux-system", "lead"), identity_of(identity), times, Metrics::default());
        (elector, leadership, log)
    }

    fn respond(&self, request: &RecordedRequest) -> FakeResponse {
        let mut state = self.0.lock().unwrap();
        match state.behavior {
            Behavior::Normal => state.serve(request),
            Behavior::Unreachable => FakeResponse::Silence,
            Behavior::Unresponsive => {
                state.serve(request);
                FakeResponse::Silence
            }
            Behavior::Failing => FakeResponse::refusal(500, "InternalError"),
        }
    }

    fn set_behavior(&self, behavior: Behavior) {
        self.0.lock().unwrap().behavior = behavior;
    }

    fn spec(&self) -> Value {
        self.0.lock().unwrap().lease.clone().map(|lease| lease["spec"].clone()).unwrap_or_default()
    }

    /// Changes the Lease as another client would change it.
    fn touch(&self, change: impl FnOnce(&mut Value)) {
        let mut state = self.0.lock().unwrap();
        let mut lease = state.lease.clone().unwrap_or_else(|| json!({ "metadata": { "name": "lead" }, "spec": {} }));
        change(&mut lease);
        state.store(lease);
    }

    fn remove(&self) {
        self.0.lock().unwrap().lease = None;
    }
}

impl State {
    fn serve(&mut self, request: &RecordedRequest) -> FakeResponse {
        match (request.method.as_str(), self.lease.clone()) {
            ("GET" | "PATCH", None) => FakeResponse::refusal(404, "NotFound"),
            ("GET", Some(lease)) => FakeResponse::Json(200, lease),
            ("POST", Some(_)) => FakeResponse::refusal(409, "AlreadyExists"),
            ("POST", None) => FakeResponse::Json(201, self.store(request.body.clone())),
            ("PATCH", Some(lease))
                if request.body["metadata"]["resourceVersion"] != lease["metadata"]["resourceVersion"] =>
            {
                FakeResponse::refusal(409, "Conflict")
            }
            ("PATCH", Some(mut lease)) => {
                for (field, value) in request.body["spec"].as_object().unwrap() {
                    lease["spec"][field] = value.clone();
                }
                FakeResponse::Json(200, self.store(lease))
            }
            (method, _) => panic!("{method} is not expected of a candidate"),
        }
    }

    fn store(&mut self, mut lease: Value) -> Value {
        self.version += 1;
        lease["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.lease = Some(lease.clone());
        lease
    }
}

/// Returns a candidate that has become the leader.
async fn leading(server: &Server, identity: &str) -> (Term, Leadership, Log) {
    let (mut elector, leadership, log) = server.candidate(identity);
    elector.acquire().await;
    assert!(leadership.is_held());
    (Term::begin(elector), leadership, log)
}

fn identity_of(process: &str) -> Identity {
    Identity { process: process.to_owned(), container: None }
}

fn spec(holder: &str, seconds: i32) -> LeaseSpec {
    let duration = Some(seconds).filter(|seconds| *seconds > 0);
    LeaseSpec { holder_identity: Some(holder.to_owned()), lease_duration_seconds: duration, ..LeaseSpec::default() }
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_acquired_only_if_unchanged_for_its_whole_duration() {
    let since = Instant::now();
    let no_holder = LeaseSpec::default();
    let cases = [
        ("no Lease", None, 0, Step::Create),
        ("no holder", Some(no_holder), 0, Step::Take),
        ("released", Some(spec("", 1)), 0, Step::Take),
        ("held by this process", Some(spec("me", 35)), 0, Step::Renew),
        ("held by this process, expired", Some(spec("me", 35)), 1000, Step::Renew),
        ("held by another process, first observation", Some(spec("other", 35)), 0, Step::Wait),
        ("held by another process, just before expiry", Some(spec("other", 35)), 34_999, Step::Wait),
        ("held by another process, at expiry", Some(spec("other", 35)), 35_000, Step::Take),
        ("held by another process with a longer duration", Some(spec("other", 60)), 59_999, Step::Wait),
        ("held by another process with a shorter duration", Some(spec("other", 15)), 15_000, Step::Take),
        ("held by another process without a duration", Some(spec("other", 0)), 34_999, Step::Wait),
        (
            "held by another process without a duration, at the default expiry",
            Some(spec("other", 0)),
            35_000,
            Step::Take,
        ),
        ("held by an exited process of this container", Some(spec("pod_1_x", 35)), 0, Step::Take),
        ("held by another pod with the same name", Some(spec("pod_2_x", 35)), 0, Step::Wait),
    ];
    let me = Identity { container: Some("pod_1_".to_owned()), ..identity_of("me") };
    for (case, spec, milliseconds, step) in cases {
        let seen = spec.map(|spec| Observation { lease: Lease { spec: Some(spec), ..Lease::default() }, since });
        let now = since + Duration::from_millis(milliseconds);
        assert_eq!(decide(seen.as_ref(), &me, LEASE, now), step, "{case}");
    }
}

#[test]
fn an_identity_is_recognized_after_a_restart_but_not_in_another_pod() {
    let [before, after, namesake] = ["1", "1", "2"].map(|uid| Identity::new("pod", uid));
    assert_ne!(before.as_str(), after.as_str());
    assert!(after.is_successor_of(before.as_str()));
    assert!(!namesake.is_successor_of(before.as_str()));
    let [one, other] = ["", ""].map(|uid| Identity::new("pod", uid));
    assert!(one.as_str() != other.as_str() && !one.is_successor_of(other.as_str()));
}

#[test]
fn lease_transitions_count_holder_changes_but_not_renewals() {
    let (then, now) = (Timestamp::from_second(100).unwrap(), Timestamp::from_second(200).unwrap());
    let before = LeaseSpec { acquire_time: Some(MicroTime(then)), lease_transitions: Some(4), ..spec("x", 35) };
    let cases =
        [(Step::Renew, &before, then, 4), (Step::Take, &before, now, 5), (Step::Create, &LeaseSpec::default(), now, 0)];
    for (step, before, acquired, transitions) in cases {
        let spec = next_lease_spec(step, before, "me", LEASE, now);
        assert_eq!(spec.acquire_time, Some(MicroTime(acquired)), "{step:?}");
        assert_eq!(spec.lease_transitions, Some(transitions), "{step:?}");
        assert_eq!((spec.holder_identity.as_deref(), spec.lease_duration_seconds), (Some("me"), Some(35)), "{step:?}");
        assert_eq!(spec.renew_time, Some(MicroTime(now)), "{step:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn no_other_candidate_leads_while_the_leader_renews_the_lease() {
    let server = Server::default();
    let (mut term, leadership, _) = leading(&server, "a").await;
    let (mut rival, rivals, log) = server.candidate("b");
    let ten_minutes = tokio::time::sleep(Duration::from_secs(600));
    tokio::select! {
        () = rival.acquire() => panic!("two leaders"),
        lost = term.lost() => panic!("{lost}"),
        () = ten_minutes => {}
    }
    assert!(leadership.is_held() && !rivals.is_held());
    assert!(log.all().iter().all(|request| request.method == "GET"), "{:?}", log.verbs());
    assert_eq!((&server.spec()["holderIdentity"], &server.spec()["leaseTransitions"]), (&json!("a"), &json!(0)));
}

#[tokio::test(start_paused = true)]
async fn an_expired_lease_is_acquired_regardless_of_the_holders_clock() {
    for year in ["2000", "2100"] {
        let server = Server::default();
        server.touch(|lease| {
            lease["spec"] = json!({
                "holderIdentity": "dead", "leaseDurationSeconds": 35, "leaseTransitions": 7,
                "acquireTime": format!("{year}-01-01T00:00:00.000000Z"), "renewTime": format!("{year}-01-01T00:00:00.000000Z"),
            });
        });
        let (mut elector, leadership, _) = server.candidate("b");
        let begun = Instant::now();
        elector.acquire().await;
        let waited = begun.elapsed();
        assert!((LEASE..LEASE + MAX_RETRY).contains(&waited), "{year}: {waited:?}");
        assert!(leadership.is_held());
        assert_eq!((&server.spec()["holderIdentity"], &server.spec()["leaseTransitions"]), (&json!("b"), &json!(8)));
    }
}

#[tokio::test(start_paused = true)]
async fn a_disconnected_leader_stops_writing_before_its_lease_expires() {
    for behavior in [Behavior::Unreachable, Behavior::Unresponsive, Behavior::Failing] {
        let server = Server::default();
        let (mut term, leadership, log) = leading(&server, "a").await;
        tokio::time::sleep(RETRY * 4).await;
        // Other candidates can observe the last renewal only after this point in time.
        let last_renewal = Instant::now();
        let requests = log.all().len();
        server.set_behavior(behavior);
        let lost = term.lost().await;
        assert!(matches!(&lost, LeaseLost::NotRenewed { .. }), "{behavior:?}: {lost}");
        let stopped = last_renewal.elapsed();
        assert!(
            stopped <= DEADLINE && stopped > DEADLINE - RETRY - Duration::from_secs(1),
            "{behavior:?}: {stopped:?}"
        );
        assert!(!leadership.is_held(), "{behavior:?}");
        assert!(log.all().len() > requests, "{behavior:?}: no renewal was attempted");
        server.set_behavior(Behavior::Normal);
        let (mut rival, rivals, _) = server.candidate("b");
        rival.acquire().await;
        assert!(rivals.is_held() && !leadership.is_held(), "{behavior:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_process_paused_past_the_renew_deadline_loses_the_lease() {
    let server = Server::default();
    let (mut elector, leadership, log) = server.candidate("a");
    elector.acquire().await;
    let requests = log.all().len();
    // While the process is suspended, none of its tasks can signal that the Lease is lost.
    tokio::time::advance(DEADLINE).await;
    assert!(!leadership.is_held(), "the first check after the deadline returns false");
    let lost = Term::begin(elector).lost().await;
    let expected =
        "failed to renew Lease flux-system/lead for 30 s: this process was suspended; restarting as a follower";
    assert_eq!(lost.to_string(), expected);
    assert_eq!(log.all().len(), requests);
}

#[tokio::test(start_paused = true)]
async fn a_leader_loses_its_lease_only_if_another_candidate_acquires_it() {
    let server = Server::default();
    let (mut term, leadership, _) = leading(&server, "a").await;
    let disturb: [fn(&Server); 3] = [
        |server| server.touch(|lease| lease["metadata"]["labels"] = json!({ "a": "b" })),
        Server::remove,
        |server| server.touch(|lease| lease["spec"]["holderIdentity"] = json!("")),
    ];
    for disturb in disturb {
        disturb(&server);
        tokio::select! {
            lost = term.lost() => panic!("{lost}"),
            () = tokio::time::sleep(DEADLINE * 2) => {}
        }
        assert!(leadership.is_held());
        assert_eq!(server.spec()["holderIdentity"], json!("a"));
    }
    server.touch(|lease| lease["spec"]["holderIdentity"] = json!("b"));
    let begun = Instant::now();
    let lost = term.lost().await;
    let expected = "lost Lease flux-system/lead to b; restarting as a follower";
    assert_eq!(lost.to_string(), expected);
    assert!(begun.elapsed() <= RETRY, "the loss is detected at the next renewal: {:?}", begun.elapsed());
    assert!(!leadership.is_held());
}

#[tokio::test(start_paused = true)]
async fn a_released_lease_is_free_for_the_next_candidate() {
    let server = Server::default();
    let (term, leadership, _) = leading(&server, "a").await;
    let (mut next, nexts, _) = server.candidate("b");
    let taken = tokio::spawn(async move {
        next.acquire().await;
        Instant::now()
    });
    tokio::time::sleep(DEADLINE * 3).await;
    assert!(!nexts.is_held());
    let ended = Instant::now();
    term.end(true).await;
    assert!(!leadership.is_held());
    let free = server.spec();
    assert_eq!((&free["holderIdentity"], &free["leaseDurationSeconds"]), (&json!(""), &json!(1)));
    let waited = taken.await.unwrap().duration_since(ended);
    assert!(waited <= MAX_RETRY && nexts.is_held(), "{waited:?}");
    assert_eq!(server.spec()["leaseTransitions"], json!(1));
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_released_only_if_enabled_and_still_held() {
    let server = Server::default();
    let (term, leadership, _) = leading(&server, "a").await;
    term.end(false).await;
    assert!(!leadership.is_held());
    assert_eq!(server.spec()["holderIdentity"], json!("a"));

    let (mut elector, _, _) = server.candidate("b");
    elector.acquire().await;
    server.touch(|lease| lease["spec"]["holderIdentity"] = json!("c"));
    elector.release().await.unwrap();
    assert_eq!(server.spec()["holderIdentity"], json!("c"), "the lease of another process is not released");
}

#[tokio::test(start_paused = true)]
async fn only_one_of_two_concurrent_candidates_gets_the_lease() {
    for (dead, time) in [(None, LEASE / 2), (Some("dead"), LEASE + MAX_RETRY)] {
        let server = Server::default();
        if let Some(dead) = dead {
            server.touch(|lease| lease["spec"] = json!({ "holderIdentity": dead, "leaseDurationSeconds": 35 }));
        }
        let (mut one, ones, _) = server.candidate("a");
        let (mut other, others, _) = server.candidate("b");
        tokio::select! {
            _ = async { tokio::join!(one.acquire(), other.acquire()) } => panic!("two leaders"),
            () = tokio::time::sleep(time) => {}
        }
        assert_ne!(server.spec()["holderIdentity"], json!("dead"));
        assert_ne!(ones.is_held(), others.is_held(), "exactly one process is the leader");
    }
}

#[tokio::test]
async fn leader_election_errors_contain_the_name_of_the_lease() {
    let (client, _) = client(|request: &RecordedRequest| match request.method.as_str() {
        "GET" => FakeResponse::refusal(404, "NotFound"),
        _ => FakeResponse::refusal(403, "Forbidden"),
    });
    let times = LeaderElection {
        lease_name: "lead".to_owned(),
        lease_duration: LEASE,
        renew_deadline: DEADLINE,
        retry_period: RETRY,
        release: true,
    };
    let (mut elector, leadership) =
        Elector::new(client, ("flux-system", "lead"), identity_of("a"), times, Metrics::default());
    let error = elector.try_acquire_or_renew().await.unwrap_err();
    assert_eq!(error.to_string(), "failed to create Lease flux-system/lead: it is Forbidden (Forbidden, 403)");
    assert!(!leadership.is_held());
}

//! Tests for the source in a running pod, and for a pod whose init containers wait for the source.

use super::{Change, Is, at_rest, check, deleted, now, outdated, pod, reference, reply, responded, run, workspace};
use crate::api::conditions::workspace_reason as reason;
use crate::controller::workspace::decide::{Action, decide};
use crate::controller::workspace::observe::{Agent, Observed};
use crate::controller::workspace::pod_state::PodState;
use crate::controller::workspace::report::State;
use crate::rpc::proto::{Artifact, Candidate, StatusReply};
use crate::source::Origin;

#[test]
fn the_desired_source_is_fetched_and_installed() {
    check(vec![
        (
            "bytes that the Workspace provides",
            |o| {
                o.agent = responded(reply("old"));
                o.artifact_stored = false;
                if let Ok(expected) = &mut o.desired {
                    expected.source.origin = Some(Origin::Url("http://a/b".to_owned()));
                }
            },
            Is::Action(Action::Fetch),
        ),
        (
            "an empty pod",
            |o| o.agent = responded(StatusReply { artifact: None, ..reply("") }),
            Is::Action(Action::PutSource { artifact: reference("new") }),
        ),
        (
            "a CLI that is too old",
            |o| o.agent = responded(StatusReply { pulumi_version: "v3.104.2".to_owned(), ..reply("old") }),
            Is::Report(State::Stalled, reason::INCOMPATIBLE_CONFIGURATION, "version v3.104.2"),
        ),
        (
            "an older source",
            |o| o.agent = responded(reply("old")),
            Is::Action(Action::PutSource { artifact: reference("new") }),
        ),
        (
            "another directory of the source",
            |o| {
                let artifact = Some(Artifact { digest: super::digest("new").to_string(), directory: String::new() });
                o.agent = responded(StatusReply { artifact, ..reply("") });
            },
            Is::Action(Action::PutSource { artifact: reference("new") }),
        ),
        (
            "bytes that are not in the store",
            |o| {
                o.agent = responded(reply("old"));
                o.artifact_stored = false;
            },
            Is::Report(State::Failing, reason::ARTIFACT_UNAVAILABLE, "main@sha1:2"),
        ),
        (
            "bytes that are not needed",
            |o| o.artifact_stored = false,
            Is::Report(State::Ready, reason::SUCCEEDED, "is ready"),
        ),
    ]);
}

#[test]
fn the_source_is_not_replaced_during_a_run() {
    check(vec![
        (
            "a run that is recorded as open",
            |o| {
                o.agent = responded(reply("old"));
                o.open_runs = run();
            },
            Is::Report(State::Working, reason::INSTALLING, "waiting for run app-12 to end"),
        ),
        (
            "a run that only the agent reports",
            |o| {
                let open_operation = "unknown".to_owned();
                o.agent = responded(StatusReply { open_operation, ..reply("old") });
            },
            Is::Report(State::Working, reason::INSTALLING, "waiting for run unknown to end"),
        ),
        (
            "a run on the expected source",
            |o| o.open_runs = run(),
            Is::Report(State::Ready, reason::SUCCEEDED, "is ready"),
        ),
    ]);
}

fn with_candidate(content: &str, failure: &str, in_place: &str) -> Agent {
    let artifact = Some(Artifact { digest: super::digest(content).to_string(), directory: "infra".to_owned() });
    let candidate = Candidate { artifact, doing: "installing".to_owned(), failure: failure.to_owned() };
    responded(StatusReply { candidate: Some(candidate), ..reply(in_place) })
}

#[test]
fn a_candidate_source_is_replaced_only_if_it_is_not_desired() {
    let put = || Is::Action(Action::PutSource { artifact: reference("new") });
    check(vec![
        (
            "the expected source",
            |o| o.agent = with_candidate("new", "", "old"),
            Is::Report(State::Working, reason::INSTALLING, "installing source main@sha1:2: installing"),
        ),
        (
            "the expected source, after a failure",
            |o| o.agent = with_candidate("new", "no such package", "old"),
            Is::Report(State::Failing, reason::INSTALLATION_FAILED, "no such package"),
        ),
        ("another source", |o| o.agent = with_candidate("newer", "", "old"), put()),
        ("another source instead of the expected source", |o| o.agent = with_candidate("newer", "", "new"), put()),
        (
            "another source instead of the expected source during a run",
            |o| {
                o.agent = with_candidate("newer", "no such package", "new");
                o.open_runs = run();
            },
            Is::Report(State::Ready, reason::SUCCEEDED, "is ready"),
        ),
    ]);
}

#[test]
fn the_poll_interval_grows_with_the_duration_of_the_installation() {
    let again = |installing_for: Option<i64>| {
        let mut observed = at_rest();
        observed.agent = with_candidate("new", "", "old");
        if let Some(seconds) = installing_for {
            observed.workspace = workspace(serde_json::json!({}), reason::INSTALLING);
            let status = observed.workspace.status.as_mut().expect("status is set");
            let since = now() - k8s_openapi::jiff::SignedDuration::from_secs(seconds);
            status.conditions[0].last_transition_time.0 = since;
        }
        match decide(&observed, now()) {
            Action::Report(report) => report.again.expect("the agent is polled").as_millis(),
            action => panic!("expected a report, not {action:?}"),
        }
    };
    for (installing_for, expected) in [(None, 250), (Some(0), 250), (Some(4), 500), (Some(8), 1000), (Some(600), 2000)]
    {
        assert_eq!(again(installing_for), expected, "{installing_for:?} s");
    }
}

/// Sets the state of a pod whose init container `fetch` has been running for `seconds`.
fn fetching(observed: &mut Observed, seconds: i64) {
    let since = now() - k8s_openapi::jiff::SignedDuration::from_secs(seconds);
    observed.pod = Some(PodState { running: false, ready: false, fetching: Some(since), ..pod() });
    observed.agent = responded(reply("old"));
}

fn silent(observed: &mut Observed, seconds: i64) {
    fetching(observed, seconds);
    observed.agent = Agent::Unreachable("refused".to_owned());
}

/// Sets a status that reports that the source was delivered to the pod with the UID `pod`.
fn delivered_to(observed: &mut Observed, pod: &str) {
    silent(observed, 60);
    observed.workspace = workspace(serde_json::json!({}), reason::INITIALIZING);
    observed.workspace.status.as_mut().expect("status is set").pod_uid = Some(pod.to_owned());
}

#[test]
fn the_source_is_sent_to_the_waiting_fetch_container() {
    let put = || Is::Action(Action::PutSource { artifact: reference("new") });
    let cases: Vec<(&'static str, Change, Is)> = vec![
        ("waiting for the source", |o| fetching(o, 1), put()),
        (
            "restarted with the installed source",
            |o| {
                fetching(o, 1);
                o.agent = responded(reply("new"));
            },
            put(),
        ),
        (
            "an open run without a possible process",
            |o| {
                fetching(o, 1);
                o.open_runs = run();
            },
            put(),
        ),
        (
            "bytes that are not in the store",
            |o| {
                fetching(o, 1);
                o.artifact_stored = false;
            },
            Is::Report(State::Failing, reason::ARTIFACT_UNAVAILABLE, "main@sha1:2"),
        ),
        (
            "not listening yet",
            |o| silent(o, 1),
            Is::Report(State::Working, reason::WAITING_FOR_REPLICAS, "is starting"),
        ),
        ("not responding", |o| silent(o, 60), Is::Report(State::Failing, reason::CONNECTION_FAILED, "refused")),
        (
            "the kubelet has not reported the end yet",
            |o| delivered_to(o, "pod"),
            Is::Report(State::Working, reason::INITIALIZING, "init containers"),
        ),
        (
            "the source was delivered to the previous pod",
            |o| delivered_to(o, "before"),
            Is::Report(State::Failing, reason::CONNECTION_FAILED, "refused"),
        ),
        (
            "the agent of another pod",
            |o| {
                fetching(o, 1);
                o.pod.as_mut().expect("pod is set").uid = "other".to_owned();
            },
            Is::Report(State::Failing, reason::CONNECTION_FAILED, "another pod"),
        ),
    ];
    check(cases);
}

#[test]
fn an_initializing_pod_is_reported_and_replaced_without_draining() {
    fn initializing(o: &mut Observed) {
        let initializing = Some("prepare".to_owned());
        o.pod = Some(PodState { running: false, ready: false, initializing, ..pod() });
        o.agent = Agent::NotCalled;
    }
    let delete = || Is::Action(Action::DeletePod { uid: "pod".to_owned() });
    check(vec![
        (
            "a running init container",
            initializing,
            Is::Report(State::Working, reason::INITIALIZING, "running init container prepare"),
        ),
        (
            "a restarted init container after a failure",
            |o| {
                initializing(o);
                o.pod.as_mut().expect("pod").problem = Some("init container prepare: CrashLoopBackOff".to_owned());
            },
            Is::Report(State::Failing, reason::POD_FAILED, "init container prepare: CrashLoopBackOff"),
        ),
        (
            "another source is expected during the fetch",
            |o| {
                outdated(o);
                let since = Some(now());
                o.pod = o.pod.take().map(|pod| PodState { running: false, ready: false, fetching: since, ..pod });
                o.agent = Agent::NotCalled;
            },
            delete(),
        ),
        (
            "the Workspace is deleted during the fetch",
            |o| {
                fetching(o, 1);
                deleted(o);
                o.agent = Agent::NotCalled;
            },
            Is::Action(Action::DeleteStatefulSet),
        ),
    ]);
}

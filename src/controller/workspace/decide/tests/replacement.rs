//! Tests for the replacement of pods that fail although the spec has not changed.

use std::time::Duration;

use super::*;

/// Sets a pod that fails to start. `template` is the revision of the StatefulSet from which the pod was created.
fn failing(observed: &mut Observed, template: &str) {
    observed.pod = Some(PodState {
        running: false,
        ready: false,
        problem: Some("init container bootstrap: ImagePullBackOff".to_owned()),
        template_revision: Some(template.to_owned()),
        ..pod()
    });
    observed.agent = Agent::NotCalled;
    observed.template_revision = Some("current".to_owned());
}

#[test]
fn a_pod_that_fails_with_an_earlier_template_is_replaced() {
    let delete = || Is::Action(Action::DeletePod { uid: "pod".to_owned() });
    let fails = || Is::Report(State::Failing, reason::POD_FAILED, "ImagePullBackOff");
    check(vec![
        ("an earlier template", |o| failing(o, "before"), delete()),
        ("the current template", |o| failing(o, "current"), fails()),
        (
            "the current template is unknown",
            |o| {
                failing(o, "before");
                o.template_revision = None;
            },
            fails(),
        ),
        (
            "a pod from a pool",
            |o| {
                failing(o, "before");
                o.pod.as_mut().expect("a pod").template_revision = None;
            },
            fails(),
        ),
        (
            "the agent has responded before",
            |o| {
                failing(o, "before");
                o.workspace.status.as_mut().expect("status").pod_uid = Some("pod".to_owned());
            },
            fails(),
        ),
        (
            "a run is open",
            |o| {
                failing(o, "before");
                o.open_runs = run();
            },
            Is::Report(State::Working, reason::ROLLING_UPDATE, "app-12"),
        ),
        (
            "a volume that cannot be mounted",
            |o| {
                failing(o, "before");
                o.pod.as_mut().expect("a pod").problem = None;
                o.start_event = Some(StartEvent::Warning("FailedMount: not found".to_owned()));
            },
            delete(),
        ),
        (
            "a pod that starts normally",
            |o| {
                failing(o, "before");
                o.pod.as_mut().expect("a pod").problem = None;
            },
            Is::Report(State::Working, reason::WAITING_FOR_REPLICAS, "is starting"),
        ),
    ]);
}

#[test]
fn a_pod_that_each_replacement_leaves_outdated_is_replaced_with_delay() {
    let paused = |change: fn(&mut Observed)| {
        let mut observed = Observed { replacement_pause: Some(Duration::from_secs(90)), ..at_rest() };
        change(&mut observed);
        decide(&observed, now())
    };
    let rows: [(&str, fn(&mut Observed), &str); 2] = [
        (
            "the agent is too old",
            |o| {
                o.is_agent_too_old = true;
                o.agent = responded(StatusReply { agent_version: "0.1.0".to_owned(), ..reply("new") });
            },
            "agent in pod app-workspace-0 has version 0.1.0, which is too old",
        ),
        ("another client changes the annotation of the pod", outdated, "pod app-workspace-0 does not match the spec"),
    ];
    for (name, change, message) in rows {
        let Action::Report(report) = paused(change) else { panic!("{name}: expected a report") };
        let found = (report.state, report.reason, report.again);
        assert_eq!(found, (State::Failing, reason::POD_FAILED, Some(Duration::from_secs(90))), "{name}");
        assert!(report.message.starts_with(message), "{name}: {}", report.message);
    }
    let ready = paused(|_| ());
    assert_eq!(summary(ready, "is ready"), Is::Report(State::Ready, reason::SUCCEEDED, "is ready"), "a current pod");
    let delete = Action::DeletePod { uid: "pod".to_owned() };
    assert_eq!(paused(|o| o.agent = draining("new")), delete, "the pod starts no run");
}

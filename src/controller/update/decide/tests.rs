//! What an Update needs next, as tables.

use super::*;
use crate::api::auto::{ArtifactReference, Update, UpdateSpec, UpdateStatus, WorkspaceSpec, WorkspaceStatus};
use crate::api::conditions::{Claim, Status};
use crate::rpc::proto;
use k8s_openapi::api::core::v1::{ContainerState, ContainerStatus, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

fn now() -> jiff::Timestamp {
    jiff::Timestamp::from_second(1000).expect("in range")
}

fn artifact() -> ArtifactReference {
    ArtifactReference { digest: "sha256:a".to_owned(), revision: "main@sha1:a".to_owned(), dir: String::new() }
}

fn update(run: Option<RunBinding>) -> Update {
    let spec = UpdateSpec { workspace_name: "app".to_owned(), artifact: artifact(), ..UpdateSpec::default() };
    let mut update = Update::new("app-1", spec);
    update.metadata.uid = Some("update-uid".to_owned());
    update.metadata.finalizers = Some(vec![names::UPDATE_FINALIZER.to_owned()]);
    update.status = Some(UpdateStatus { run, ..UpdateStatus::default() });
    update
}

fn bound() -> RunBinding {
    RunBinding { pod_uid: "pod-uid".to_owned(), agent_start_id: "start".to_owned(), ..RunBinding::default() }
}

fn pod(uid: &str) -> Pod {
    let mut pod = Pod::default();
    pod.metadata.uid = Some(uid.to_owned());
    pod
}

fn workspace() -> Workspace {
    let mut workspace = Workspace::new("app", WorkspaceSpec { artifact: Some(artifact()), ..WorkspaceSpec::default() });
    workspace.metadata.generation = Some(1);
    let mut conditions = Vec::new();
    let claim = Claim { kind: "Ready", status: Status::True, reason: "Succeeded", message: "" };
    conditions::set(&mut conditions, &claim, 1, now());
    workspace.status = Some(WorkspaceStatus {
        observed_generation: Some(1),
        conditions,
        artifact: Some(artifact()),
        pod_uid: Some("pod-uid".to_owned()),
        agent_start_id: Some("start".to_owned()),
        ..WorkspaceStatus::default()
    });
    workspace
}

fn observed(update: Update) -> Observed {
    Observed {
        update,
        workspace: Some(workspace()),
        pod: Some(pod("pod-uid")),
        ahead: None,
        seen: None,
        stack: Owner::Lives,
    }
}

fn waits_because(observed: &Observed) -> String {
    match decide(observed) {
        Action::Wait(reason, message) => format!("{reason}: {message}"),
        other => format!("{other:?}"),
    }
}

#[test]
fn a_run_is_announced_when_nothing_is_in_its_way() {
    let Action::Announce(binding) = decide(&observed(update(None))) else { panic!("it is not announced") };
    assert_eq!((binding.pod_uid.as_str(), binding.agent_start_id.as_str()), ("pod-uid", "start"));
}

#[test]
fn what_is_in_its_way_is_named() {
    let new = || observed(update(None));
    let changed = |change: fn(&mut Workspace)| {
        let mut workspace = workspace();
        change(&mut workspace);
        Observed { workspace: Some(workspace), ..new() }
    };
    let rows = [
        (Observed { ahead: Some("app-0".to_owned()), ..new() }, "Queued: waits for update app-0"),
        (Observed { workspace: None, ..new() }, "WorkspaceNotFound: workspace app does not exist"),
        (changed(|w| w.metadata.generation = Some(2)), "WorkspaceNotReady: workspace app is not ready"),
        (
            changed(|w| w.status.as_mut().expect("there").artifact = None),
            "WorkspaceNotReady: workspace app does not have revision main@sha1:a in place",
        ),
        (Observed { pod: None, ..new() }, "WorkspaceNotReady: workspace app is getting a new pod"),
        (Observed { pod: Some(pod("other")), ..new() }, "WorkspaceNotReady: workspace app is getting a new pod"),
    ];
    for (observed, wanted) in rows {
        let found = waits_because(&observed);
        assert!(found.starts_with(wanted), "{found:?} does not start with {wanted:?}");
    }
}

#[test]
fn an_announced_run_is_found_again_and_never_started_elsewhere() {
    let announced = || observed(update(Some(bound())));
    assert_eq!(decide(&announced()), Action::Attach(bound()));
    let rows = [
        (Seen::Connecting, "Await"),
        (Seen::Running, "Await"),
        (Seen::Unreachable("x".to_owned()), "Await"),
        (Seen::Refused("no such kind".to_owned()), "Record"),
        (Seen::NotNow("a Secret is missing".to_owned()), "Record"),
        (Seen::Ended(Box::default()), "Record"),
    ];
    for (seen, wanted) in rows {
        let action = format!("{:?}", decide(&Observed { seen: Some(seen.clone()), ..announced() }));
        assert!(action.starts_with(wanted), "{seen:?}: {action}");
    }
    let elsewhere = Observed { pod: Some(pod("other")), ..announced() };
    let Action::Record(verdict) = decide(&elsewhere) else { panic!("it is not recorded") };
    assert_eq!(verdict.failure, Some(update_reason::RUN_OUTCOME_UNKNOWN));
}

#[test]
fn a_result_counts_even_when_the_pod_is_gone() {
    let result = proto::Result { outcome: proto::Outcome::Succeeded.into(), ..proto::Result::default() };
    let seen = Some(Seen::Ended(Box::new(result)));
    let Action::Record(verdict) = decide(&Observed { seen, pod: None, ..observed(update(Some(bound()))) }) else {
        panic!("it is not recorded")
    };
    assert_eq!(verdict.failure, None);
}

#[test]
fn the_last_words_of_a_pod_that_ended_are_taken() {
    let mut ended = pod("pod-uid");
    ended.metadata.deletion_timestamp = Some(Time(now()));
    let terminated = k8s_openapi::api::core::v1::ContainerStateTerminated {
        message: Some(r#"{"id":"update-uid","outcome":"OUTCOME_SUCCEEDED"}"#.to_owned()),
        ..Default::default()
    };
    let state = ContainerState { terminated: Some(terminated), ..ContainerState::default() };
    let container = ContainerStatus { name: "pulumi".to_owned(), state: Some(state), ..ContainerStatus::default() };
    ended.status = Some(PodStatus { container_statuses: Some(vec![container]), ..PodStatus::default() });
    let Action::Record(verdict) = decide(&Observed { pod: Some(ended), ..observed(update(Some(bound()))) }) else {
        panic!("it is not recorded")
    };
    assert_eq!(verdict.failure, None);
}

#[test]
fn a_deleted_update_is_cancelled_unless_its_stack_goes_too() {
    let mut deleted = update(Some(bound()));
    deleted.metadata.deletion_timestamp = Some(Time(now()));
    let running = Observed { seen: Some(Seen::Running), ..observed(deleted) };
    assert_eq!(decide(&running), Action::Cancel);
    assert!(matches!(decide(&Observed { stack: Owner::Deleting, ..running }), Action::Await(_)));
    let mut unstarted = update(None);
    unstarted.metadata.deletion_timestamp = Some(Time(now()));
    let Action::Record(verdict) = decide(&observed(unstarted)) else { panic!("it is not recorded") };
    assert_eq!(verdict.failure, Some(update_reason::CANCELED));
}

#[test]
fn a_pod_that_is_over_ends_its_run_even_when_nothing_is_known_of_its_container() {
    let running = ContainerState { running: Some(Default::default()), ..ContainerState::default() };
    let container = ContainerStatus { name: "pulumi".to_owned(), state: Some(running), ..ContainerStatus::default() };
    let ended = |phase: &str, reason: Option<&str>, containers: Vec<ContainerStatus>| {
        let mut pod = pod("pod-uid");
        pod.status = Some(PodStatus {
            phase: Some(phase.to_owned()),
            reason: reason.map(str::to_owned),
            message: reason.map(|_| "The node was low on memory.".to_owned()),
            container_statuses: Some(containers),
            ..PodStatus::default()
        });
        let seen = Some(Seen::Unreachable("no route".to_owned()));
        decide(&Observed { pod: Some(pod), seen, ..observed(update(Some(bound()))) })
    };
    for (action, wanted) in [
        (ended("Failed", Some("Evicted"), Vec::new()), "Evicted: The node was low on memory."),
        (ended("Failed", None, vec![container.clone()]), "(Failed)"),
        (ended("Succeeded", None, Vec::new()), "(Succeeded)"),
    ] {
        let Action::Record(verdict) = action else { panic!("{wanted}: {action:?}") };
        assert_eq!(verdict.failure, Some(update_reason::ABORTED));
        assert!(verdict.message.contains(wanted), "{}", verdict.message);
    }
    let goes_on = ended("Running", None, vec![container]);
    assert_eq!(goes_on, Action::Await("the agent does not answer: no route".to_owned()));
}

#[test]
fn a_recorded_run_is_released_once() {
    let mut complete = update(Some(bound()));
    let mut conditions = Vec::new();
    let claim = Claim { kind: "Complete", status: Status::True, reason: "Updated", message: "" };
    conditions::set(&mut conditions, &claim, 1, now());
    complete.status = Some(UpdateStatus { conditions, run: Some(bound()), ..UpdateStatus::default() });
    assert_eq!(decide(&observed(complete.clone())), Action::Release);
    complete.metadata.finalizers = Some(vec![names::STACK_FINALIZER.to_owned()]);
    assert_eq!(decide(&observed(complete.clone())), Action::Nothing);
    complete.metadata.deletion_timestamp = Some(Time(now()));
    assert_eq!(decide(&observed(complete.clone())), Action::Nothing, "its Stack lets go of it");
    assert_eq!(decide(&Observed { stack: Owner::Gone, ..observed(complete) }), Action::Abandon);
}

#[test]
fn the_log_does_not_hold_what_a_verdict_carries() {
    let result = proto::Result {
        outputs: vec![proto::Output { name: "token".to_owned(), value: "hidden".to_owned(), secret: true }],
        ..proto::Result::default()
    };
    let action = Action::Record(Box::new(Verdict::of(&result)));
    assert_eq!(action.name(), "Record");
}

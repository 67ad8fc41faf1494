//! Tests for the next action of an Update.

mod deadline;
mod interruption;
mod lost_journal;
mod start;
mod ttl;

use super::*;
use crate::api::auto::{
    ArtifactReference, Update, UpdateKind, UpdateSpec, UpdateStatus, Workspace, WorkspacePolicyPack, WorkspaceSpec,
    WorkspaceStatus,
};
use crate::api::conditions::{ConditionUpdate, Status};
use crate::artifact::Digest;
use crate::controller::namespaces::RunShare;
use crate::controller::references::Checked;
use crate::controller::update::plans::PlanFile;
use crate::controller::update::pod_termination::NodeState;
use crate::controller::update::request::RunTimeouts;
use crate::rpc::proto;
use k8s_openapi::api::core::v1::{ContainerState, ContainerStateTerminated, ContainerStatus, Pod, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{OwnerReference, Time};

fn now() -> jiff::Timestamp {
    jiff::Timestamp::from_second(1000).expect("timestamp in range")
}

fn artifact() -> ArtifactReference {
    ArtifactReference { digest: Digest::of(b"a"), revision: "main@sha1:a".to_owned(), dir: String::new() }
}

fn update(run: Option<RunBinding>) -> Update {
    let (workspace_name, stack_name) = ("app".to_owned(), "dev".to_owned());
    let spec = UpdateSpec { workspace_name, stack_name, artifact: Some(artifact()), ..UpdateSpec::default() };
    let mut update = Update::new("app-1", spec);
    update.metadata.owner_references =
        Some(vec![OwnerReference { kind: "Stack".to_owned(), ..OwnerReference::default() }]);
    update.metadata.uid = Some("update-uid".to_owned());
    update.metadata.finalizers = Some(vec![names::UPDATE_FINALIZER.to_owned()]);
    update.status = Some(UpdateStatus { run, ..UpdateStatus::default() });
    update
}

fn decide(observed: &Observed) -> Action {
    super::decide(observed, now())
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
    let condition = ConditionUpdate { kind: "Ready", status: Status::True, reason: "Succeeded", message: "" };
    conditions::set(&mut conditions, &condition, 1, now());
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
        references: Some(Checked::default()),
    }
}

#[test]
fn a_run_started_by_pko_ends_when_its_pod_is_gone() {
    let mut started = update(None);
    let mut conditions = Vec::new();
    let condition = ConditionUpdate { kind: "Progressing", status: Status::True, reason: "Progressing", message: "" };
    conditions::set(&mut conditions, &condition, 1, now());
    started.status = Some(UpdateStatus { conditions, ..UpdateStatus::default() });
    let with = |pod: Option<Pod>| decide(&Observed { pod, ..observed(started.clone()) });
    let theirs = serde_saphyr::from_str::<serde_json::Value>(include_str!("../../../../tests/operator/pods.yaml"));
    let theirs = serde_json::from_value::<Pod>(theirs.expect("YAML")["items"][0].clone()).expect("a pod");
    assert!(matches!(with(Some(theirs)), Action::Await(_)), "the run may still be open");
    for pod in [None, Some(pod("ours"))] {
        let Action::Record(outcome) = with(pod) else { panic!("expected Action::Record") };
        assert_eq!((outcome.failure, outcome.interrupted), (Some(update_reason::ABORTED), true));
    }
}

#[test]
fn a_run_started_by_another_controller_is_not_started_again() {
    let mut update = update(None);
    let condition =
        ConditionUpdate { kind: conditions::PROGRESSING, status: Status::True, reason: "Progressing", message: "" };
    conditions::set(&mut update.status.as_mut().expect("there").conditions, &condition, 1, now());
    let Action::Record(outcome) = decide(&observed(update)) else { panic!("expected Action::Record") };
    assert_eq!((outcome.failure, outcome.interrupted), (Some(update_reason::ABORTED), true));
}

#[test]
fn the_controller_reattaches_to_a_bound_run_only_in_its_pod() {
    let recorded = || observed(update(Some(bound())));
    assert_eq!(decide(&recorded()), Action::Attach(bound()));
    let rows = [
        (RunState::Connecting, "Await"),
        (RunState::Running, "Await"),
        (RunState::Unreachable("x".to_owned()), "Await"),
        (RunState::Rejected("no such kind".to_owned()), "Record"),
        (RunState::PreconditionFailed("a Secret is missing".to_owned()), "Record"),
        (RunState::Ended(Box::default()), "Record"),
    ];
    for (run_state, expected) in rows {
        let action = format!("{:?}", decide(&Observed { run_state: Some(run_state.clone()), ..recorded() }));
        assert!(action.starts_with(expected), "{run_state:?}: {action}");
    }
    let elsewhere = Observed { pod: Some(pod("other")), ..recorded() };
    assert!(matches!(decide(&elsewhere), Action::OutcomeUnknown(_)), "the run may still be open in its first pod");
    let refused = Some(RunState::PreconditionFailed("another pod".to_owned()));
    assert!(
        matches!(decide(&Observed { run_state: refused, ..elsewhere }), Action::OutcomeUnknown(_)),
        "the response of another pod proves nothing"
    );
}

#[test]
fn a_result_is_recorded_even_if_the_pod_is_gone() {
    let result = proto::Result { outcome: proto::Outcome::Succeeded.into(), ..proto::Result::default() };
    let run_state = Some(RunState::Ended(Box::new(result)));
    let Action::Record(outcome) = decide(&Observed { run_state, pod: None, ..observed(update(Some(bound()))) }) else {
        panic!("expected Action::Record")
    };
    assert_eq!(outcome.failure, None);
}

#[test]
fn the_termination_message_of_an_ended_pod_is_used() {
    let outcome = outcome_of_termination_message(UpdateKind::Up);
    assert_eq!(outcome.failure, None);
}

#[test]
fn a_preview_whose_changes_were_lost_with_the_pod_is_interrupted() {
    let outcome = outcome_of_termination_message(UpdateKind::Preview);
    assert_eq!((outcome.failure, outcome.interrupted), (Some(update_reason::ABORTED), true));
    assert!(outcome.message.contains("before the controller read the result"), "{}", outcome.message);
}

/// Returns the recorded outcome of a run that has succeeded according to the termination message of its pod.
fn outcome_of_termination_message(kind: UpdateKind) -> Box<RunOutcome> {
    let mut ended = pod("pod-uid");
    ended.metadata.deletion_timestamp = Some(Time(now()));
    let terminated = k8s_openapi::api::core::v1::ContainerStateTerminated {
        message: Some(r#"{"id":"update-uid","outcome":"OUTCOME_SUCCEEDED"}"#.to_owned()),
        ..Default::default()
    };
    let state = ContainerState { terminated: Some(terminated), ..ContainerState::default() };
    let container = ContainerStatus { name: "pulumi".to_owned(), state: Some(state), ..ContainerStatus::default() };
    ended.status = Some(PodStatus { container_statuses: Some(vec![container]), ..PodStatus::default() });
    let mut update = update(Some(bound()));
    update.spec.kind = kind;
    let Action::Record(outcome) = decide(&Observed { pod: Some(ended), ..observed(update) }) else {
        panic!("expected Action::Record")
    };
    outcome
}

#[test]
fn deleting_an_update_cancels_its_run_unless_the_stack_is_deleted() {
    let mut deleted = update(Some(bound()));
    deleted.metadata.deletion_timestamp = Some(Time(now()));
    let running = Observed { run_state: Some(RunState::Running), ..observed(deleted) };
    assert_eq!(decide(&running), Action::Cancel);
    assert!(matches!(decide(&Observed { stack: Owner::Deleting, ..running }), Action::Await(_)));
    let mut unstarted = update(None);
    unstarted.metadata.deletion_timestamp = Some(Time(now()));
    let Action::Record(outcome) = decide(&observed(unstarted)) else { panic!("expected Action::Record") };
    assert_eq!(outcome.failure, Some(update_reason::CANCELED));
}

#[test]
fn the_cancel_annotation_works_while_the_stack_is_deleted() {
    let annotated = |run: Option<RunBinding>| {
        let mut update = update(run);
        update.annotations_mut().insert(names::ANNOTATION_CANCEL.to_owned(), "now".to_owned());
        update
    };
    let running = Observed { run_state: Some(RunState::Running), ..observed(annotated(Some(bound()))) };
    assert_eq!(decide(&running), Action::Cancel);
    assert_eq!(decide(&Observed { stack: Owner::Deleting, ..running }), Action::Cancel);
    let Action::Record(outcome) = decide(&observed(annotated(None))) else { panic!("expected Action::Record") };
    assert_eq!(
        (outcome.failure, outcome.message.as_str()),
        (Some(update_reason::CANCELED), "the run was canceled before it started")
    );
    let canceled = proto::Result { outcome: proto::Outcome::Canceled.into(), ..proto::Result::default() };
    let ended = Observed {
        run_state: Some(RunState::Ended(Box::new(canceled))),
        pod: None,
        ..observed(annotated(Some(bound())))
    };
    let Action::Record(outcome) = decide(&ended) else { panic!("expected Action::Record") };
    assert_eq!(outcome.failure, Some(update_reason::CANCELED), "the agent reports the outcome");
}

/// Returns the pod of the run with the given phase and the given container state.
fn pod_with(phase: &str, state: ContainerState) -> Pod {
    let mut pod = pod("pod-uid");
    let container = ContainerStatus { name: "pulumi".to_owned(), state: Some(state), ..ContainerStatus::default() };
    let containers = Some(vec![container]);
    pod.status =
        Some(PodStatus { phase: Some(phase.to_owned()), container_statuses: containers, ..PodStatus::default() });
    pod
}

#[test]
fn a_run_with_unknown_outcome_stays_open_until_proof_or_resolution() {
    let running = ContainerState { running: Some(Default::default()), ..ContainerState::default() };
    let run_state = || Some(RunState::Unreachable("no route".to_owned()));
    let lost = |update: Update| Observed {
        pod: Some(pod_with("Failed", running.clone())),
        run_state: run_state(),
        node: NodeState::Ready,
        ..observed(update)
    };
    let resolved_with = |resolution: Option<&str>| {
        let mut update = update(Some(bound()));
        if let Some(resolution) = resolution {
            update.annotations_mut().insert(names::ANNOTATION_RESOLVE.to_owned(), resolution.to_owned());
        }
        lost(update)
    };
    let rows = [
        (None, "app-1=retry"),
        (Some("app-0=retry"), "the annotation names app-0"),
        (Some("nonsense"), "must have the form"),
    ];
    for (resolution, expected) in rows {
        let Action::OutcomeUnknown(message) = decide(&resolved_with(resolution)) else {
            panic!("{resolution:?}: expected Action::OutcomeUnknown")
        };
        assert!(message.contains(expected) && message.contains("app-workspace-0"), "{message}");
    }
    for resolution in ["app-1=retry", "app-1=clear", "app-1=abandon"] {
        let Action::Record(outcome) = decide(&resolved_with(Some(resolution))) else {
            panic!("{resolution}: expected Action::Record")
        };
        assert_eq!((outcome.failure, outcome.interrupted), (Some(update_reason::RUN_OUTCOME_UNKNOWN), true));
    }
    let Action::Record(outcome) = decide(&Observed { node: NodeState::Gone, ..resolved_with(None) }) else {
        panic!("expected Action::Record for later evidence")
    };
    assert_eq!(outcome.failure, Some(update_reason::ABORTED));
    let is_running = Observed { pod: Some(pod_with("Running", running.clone())), ..resolved_with(None) };
    assert_eq!(decide(&is_running), Action::Await("agent is unreachable: no route".to_owned()));
    let reporting =
        Observed { run_state: Some(RunState::Running), pod: None, node: NodeState::NotRead, ..resolved_with(None) };
    assert_eq!(
        decide(&reporting),
        Action::Await("run is starting".to_owned()),
        "the report of the agent is the best evidence"
    );
}

#[test]
fn a_canceled_run_in_a_terminating_or_missing_pod_is_aborted() {
    let canceled = || proto::Result { outcome: proto::Outcome::Canceled.into(), ..proto::Result::default() };
    let ended = |update: Update, pod: Option<Pod>| {
        let run_state = Some(RunState::Ended(Box::new(canceled())));
        match decide(&Observed { run_state, pod, ..observed(update) }) {
            Action::Record(outcome) => outcome.failure,
            other => panic!("{other:?}"),
        }
    };
    let mut going = pod("pod-uid");
    going.metadata.deletion_timestamp = Some(Time(now()));
    let mut deleted = update(Some(bound()));
    deleted.metadata.deletion_timestamp = Some(Time(now()));
    let (aborted, canceled) = (Some(update_reason::ABORTED), Some(update_reason::CANCELED));
    assert_eq!(ended(update(Some(bound())), Some(pod("pod-uid"))), canceled, "for example, a timeout canceled the run");
    assert_eq!(ended(update(Some(bound())), Some(going.clone())), aborted);
    assert_eq!(ended(update(Some(bound())), None), aborted);
    assert_eq!(ended(deleted, Some(going)), canceled);
}

#[test]
fn the_message_of_a_timed_out_run_names_the_controller_flag() {
    let timeout_flag = |default: u64, maximum: u64, seconds: i64, change: fn(&mut Update, &mut proto::Result)| {
        let mut update = update(Some(bound()));
        let mut result = proto::Result {
            outcome: proto::Outcome::Canceled.into(),
            message: "the run exceeded its timeout of 1m and was canceled".to_owned(),
            started: 1_000,
            ended: 1_000 + seconds * 1_000,
            ..proto::Result::default()
        };
        change(&mut update, &mut result);
        let run_state = Some(RunState::Ended(Box::new(result)));
        let timeouts = RunTimeouts { default: Duration::from_secs(default), maximum: Duration::from_secs(maximum) };
        match decide(&Observed { run_state, timeouts, ..observed(update) }) {
            Action::Record(outcome) => {
                let flags = ["--default-run-timeout", "--max-run-timeout"];
                flags.into_iter().find(|flag| outcome.message.contains(flag))
            }
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(timeout_flag(60, 0, 61, |_, _| {}), Some("--default-run-timeout"));
    assert_eq!(timeout_flag(0, 0, 61, |_, _| {}), None, "there is no timeout");
    assert_eq!(timeout_flag(60, 0, 30, |_, _| {}), None, "canceled for another reason");
    let own_timeout = |update: &mut Update, _: &mut proto::Result| update.spec.timeout = Some("1m".to_owned());
    assert_eq!(timeout_flag(60, 0, 61, own_timeout), None);
    assert_eq!(timeout_flag(60, 40, 41, own_timeout), Some("--max-run-timeout"));
    assert_eq!(
        timeout_flag(60, 0, 61, |update, _| update.metadata.deletion_timestamp = Some(Time(now()))),
        None,
        "a user"
    );
    assert_eq!(timeout_flag(60, 0, 61, |_, result| result.outcome = proto::Outcome::Failed.into()), None);
}

#[test]
fn a_result_is_recorded_after_the_reason_for_the_pod_termination_is_known() {
    let ended_before = |seconds: i64| proto::Result {
        outcome: proto::Outcome::Canceled.into(),
        message: "interrupted".to_owned(),
        ended: now().as_millisecond() - seconds * 1000,
        pod_terminated: true,
        ..proto::Result::default()
    };
    let decided = |update: Update, pod: Pod, seconds| {
        let run_state = Some(RunState::Ended(Box::new(ended_before(seconds))));
        decide(&Observed { run_state, pod: Some(pod), ..observed(update) })
    };
    let here = || pod("pod-uid");
    assert!(matches!(decided(update(Some(bound())), here(), 5), Action::Await(_)), "an eviction is not reported yet");

    let mut evicted = here();
    let status = evicted.status.get_or_insert_default();
    status.phase = Some("Failed".to_owned());
    status.reason = Some("Evicted".to_owned());
    status.message = Some("The node was low on memory.".to_owned());
    status.container_statuses = Some(vec![ContainerStatus {
        name: names::PULUMI_CONTAINER.to_owned(),
        state: Some(ContainerState {
            terminated: Some(ContainerStateTerminated {
                container_id: Some("c1".to_owned()),
                reason: Some("Completed".to_owned()),
                ..Default::default()
            }),
            ..Default::default()
        }),
        ..Default::default()
    }]);
    let bound_there = RunBinding { container_id: "c1".to_owned(), ..bound() };
    let Action::Record(outcome) = decided(update(Some(bound_there)), evicted, 5) else {
        panic!("expected an explanation of the eviction")
    };
    assert_eq!(outcome.failure, Some(update_reason::ABORTED));
    assert!(outcome.message.contains("interrupted (Evicted: The node was low on memory.;"), "{}", outcome.message);

    let Action::Record(outcome) = decided(update(Some(bound())), here(), 61) else {
        panic!("expected Action::Record after the timeout")
    };
    assert_eq!(outcome.failure, Some(update_reason::ABORTED));
    let mut deleted = update(Some(bound()));
    deleted.metadata.deletion_timestamp = Some(Time(now()));
    let Action::Record(outcome) = decided(deleted, here(), 5) else {
        panic!("expected Action::Record after the deletion")
    };
    assert_eq!(outcome.failure, Some(update_reason::CANCELED));
}

#[test]
fn the_message_of_an_interrupted_run_states_the_termination_reason() {
    let end = ContainerStateTerminated {
        container_id: Some("c1".to_owned()),
        exit_code: 137,
        reason: Some("OOMKilled".to_owned()),
        ..Default::default()
    };
    let mut restarted = pod_with("Running", ContainerState { running: Some(Default::default()), ..Default::default() });
    let containers = restarted.status.as_mut().and_then(|status| status.container_statuses.as_mut());
    containers.expect("there")[0].last_state =
        Some(ContainerState { terminated: Some(end), ..ContainerState::default() });
    let binding = RunBinding { container_id: "c1".to_owned(), ..bound() };
    let result = proto::Result { outcome: proto::Outcome::Interrupted.into(), ..proto::Result::default() };
    let run_state = Some(RunState::Ended(Box::new(result)));
    let Action::Record(outcome) =
        decide(&Observed { run_state, pod: Some(restarted), ..observed(update(Some(binding))) })
    else {
        panic!("expected Action::Record")
    };
    assert!(outcome.message.contains("OOMKilled") && outcome.interrupted, "{}", outcome.message);
}

#[test]
fn a_waiting_run_is_not_started_after_its_update_is_deleted() {
    let held = || Some(RunState::Held("alice runs `pulumi import`".to_owned()));
    let waits = Observed { run_state: held(), pod: None, workspace: None, ..observed(update(Some(bound()))) };
    assert_eq!(decide(&waits), Action::Hold("alice runs `pulumi import`".to_owned()));
    let mut deleted = update(Some(bound()));
    deleted.metadata.deletion_timestamp = Some(Time(now()));
    assert_eq!(
        decide(&Observed { run_state: held(), task_may_start: true, ..observed(deleted.clone()) }),
        Action::Attach(bound()),
        "the new task must not start the run"
    );
    let Action::Record(outcome) = decide(&Observed { run_state: Some(RunState::NeverStarted), ..observed(deleted) })
    else {
        panic!("expected Action::Record")
    };
    assert_eq!(outcome.failure, Some(update_reason::CANCELED));
}

#[test]
fn the_controller_attaches_to_a_run_at_the_new_address_of_its_pod() {
    let mut moved = pod("pod-uid");
    moved.status = Some(PodStatus { pod_ip: Some("10.0.0.2".to_owned()), ..PodStatus::default() });
    let at = |ip: &str, run_state: RunState| {
        let agent_ip = Some(ip.parse().expect("an address"));
        decide(&Observed {
            run_state: Some(run_state),
            agent_ip,
            pod: Some(moved.clone()),
            ..observed(update(Some(bound())))
        })
    };
    assert_eq!(at("10.0.0.1", RunState::Unreachable("no route".to_owned())), Action::Attach(bound()));
    assert!(matches!(at("10.0.0.2", RunState::Unreachable("no route".to_owned())), Action::Await(_)));
    assert!(matches!(at("10.0.0.1", RunState::Running), Action::Await(_)));
}

#[test]
fn the_finalizer_of_a_completed_update_is_removed_once() {
    let mut complete = update(Some(bound()));
    let mut conditions = Vec::new();
    let condition = ConditionUpdate { kind: "Complete", status: Status::True, reason: "Updated", message: "" };
    conditions::set(&mut conditions, &condition, 1, now());
    complete.status = Some(UpdateStatus { conditions, run: Some(bound()), ..UpdateStatus::default() });
    assert_eq!(decide(&observed(complete.clone())), Action::Release);
    complete.metadata.finalizers = Some(vec![names::STACK_FINALIZER.to_owned()]);
    assert_eq!(decide(&observed(complete.clone())), Action::Nothing);
    complete.metadata.deletion_timestamp = Some(Time(now()));
    let waits = Action::Keep(OWNER_CHECK_INTERVAL);
    assert_eq!(decide(&observed(complete.clone())), waits, "kept until the Stack has recorded the result");
    assert_eq!(decide(&Observed { stack: Owner::Gone, ..observed(complete.clone()) }), Action::Abandon);
    complete.metadata.finalizers = Some(vec![names::UPDATE_FINALIZER.to_owned(), names::STACK_FINALIZER.to_owned()]);
    assert_eq!(decide(&observed(complete.clone())), waits, "the Stack controller removes both finalizers");
    assert_eq!(decide(&Observed { stack: Owner::Gone, ..observed(complete.clone()) }), Action::Abandon);
    let mut marked = pod("pod-uid");
    marked.annotations_mut().insert(names::ANNOTATION_RUN.to_owned(), "update-uid".to_owned());
    let marked = Observed { pod: Some(marked), ..observed(complete.clone()) };
    assert_eq!(decide(&marked), Action::Release, "the pod is marked for the run");
    complete.metadata.deletion_timestamp = None;
    assert_eq!(decide(&observed(complete)), Action::Nothing);
}

#[test]
fn action_names_in_the_log_do_not_contain_outputs() {
    let result = proto::Result {
        outputs: vec![proto::Output { name: "token".to_owned(), value: "hidden".to_owned(), secret: true }],
        ..proto::Result::default()
    };
    let action = Action::Record(Box::new(RunOutcome::of(&result)));
    assert_eq!(action.name(), "Record");
}

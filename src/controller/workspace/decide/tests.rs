//! Tests for the next action of a Workspace.

mod apply_conflicts;
mod deletion;
mod pko;
mod policy_packs;
mod pool;
mod replacement;
mod silence;
mod sleep;
mod source;

use crate::artifact::Digest;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use crate::api::auto::{ArtifactReference, Workspace, WorkspaceSpec};
use crate::api::conditions::workspace_reason as reason;
use crate::controller::workspace::decide::{Action, decide};
use crate::controller::workspace::idle::Idle;
use crate::controller::workspace::input_versions::Inputs;
use crate::controller::workspace::observe::{Agent, DesiredState, Observed, OpenRun};
use crate::controller::workspace::parts::PartState;
use crate::controller::workspace::pod_state::{PodState, StartEvent};
use crate::controller::workspace::pool::Pooled;
use crate::controller::workspace::report::{Report, State};
use crate::controller::workspace::source::DesiredSource;
use crate::controller::workspace::{PodSettings, render};
use crate::rpc::proto::{Artifact, InteractiveSession, StatusReply, Uncached};
use crate::source::Unavailable;

const HASH: &str = "current";

fn now() -> Timestamp {
    "2026-01-01T12:00:00Z".parse().expect("valid time")
}

fn workspace(metadata: Value, ready_reason: &str) -> Workspace {
    let mut value = json!({
        "metadata": {
            "name": "app", "namespace": "team", "generation": 3, "finalizers": ["finalizer.workspace.auto.pulumi.com"],
        },
        "spec": {"artifact": {"digest": digest("new"), "revision": "main@sha1:2", "dir": "infra"}},
        "status": {"conditions": [{
            "type": "Ready", "status": "False", "reason": ready_reason, "message": "",
            "lastTransitionTime": "2026-01-01T11:00:00Z",
        }]},
    });
    for (field, content) in metadata.as_object().expect("is a map") {
        value["metadata"][field] = content.clone();
    }
    serde_json::from_value(value).expect("valid Workspace")
}

/// Returns the observed state of a ready Workspace that needs no action.
fn at_rest() -> Observed {
    let settings = PodSettings {
        agent_image: "controller:1".to_owned(),
        agent_image_pull_policy: None,
        default_image: "pulumi".to_owned(),
        default_access_token_secret: None,
        assigns_user: true,
        eviction_protection: true,
        restrictions: Default::default(),
        storage: Default::default(),
    };
    let workspace = workspace(json!({}), "Succeeded");
    let plain = Workspace::new("app", WorkspaceSpec::default());
    let mut rendered = render("app", "team", &plain, &settings).expect("renders");
    rendered.revision_hash = HASH.to_owned();
    let source = DesiredSource { artifact: reference("new"), origin: None };
    Observed {
        workspace,
        desired: Ok(DesiredState { rendered, source, policy_packs: Vec::new() }),
        service: PartState::Current,
        tls: PartState::Current,
        pooled_tls: PartState::Current,
        budget: PartState::Current,
        stateful_set: PartState::Current,
        template_revision: None,
        contested: None,
        pod: Some(pod()),
        pooled: Pooled::None,
        pool_template: None,
        pod_version: Some("7".to_owned()),
        is_namespace_terminating: false,
        start_event: None,
        open_runs: Vec::new(),
        agent: responded(reply("new")),
        silent_since: None,
        is_agent_too_old: false,
        replacement_pause: None,
        artifact_stored: true,
        idle: Idle { after: None, since: now(), pending_update: None, inputs: Inputs::NotRead },
    }
}

fn digest(content: &str) -> Digest {
    Digest::of(content.as_bytes())
}

fn reference(content: &str) -> ArtifactReference {
    ArtifactReference { digest: digest(content), revision: "main@sha1:2".to_owned(), dir: "infra".to_owned() }
}

fn pod() -> PodState {
    PodState {
        name: "app-workspace-0".to_owned(),
        uid: "pod".to_owned(),
        ip: Some("10.0.0.1".to_owned()),
        revision_hash: Some(HASH.to_owned()),
        running: true,
        ready: true,
        ..PodState::default()
    }
}

fn reply(content: &str) -> StatusReply {
    StatusReply {
        pod_uid: "pod".to_owned(),
        start_id: "start".to_owned(),
        artifact: Some(Artifact { digest: digest(content).to_string(), directory: "infra".to_owned() }),
        ..StatusReply::default()
    }
}

fn responded(reply: StatusReply) -> Agent {
    Agent::Responded(Box::new(reply))
}

fn run() -> Vec<OpenRun> {
    vec![OpenRun { name: "app-12".to_owned(), uid: "update".to_owned() }]
}

fn deleted(observed: &mut Observed) {
    observed.workspace = workspace(json!({"deletionTimestamp": "2026-01-01T11:59:00Z"}), "Succeeded");
}

fn outdated(observed: &mut Observed) {
    observed.pod = Some(PodState { revision_hash: Some("before".to_owned()), ..pod() });
}

/// Expected action.
#[derive(Debug, PartialEq)]
enum Is {
    Action(Action),
    Report(State, &'static str, &'static str),
}

fn summary(action: Action, message: &'static str) -> Is {
    match action {
        Action::Report(Report { state, reason, message: text, .. }) if text.contains(message) => {
            Is::Report(state, reason, message)
        }
        other => Is::Action(other),
    }
}

type Change = fn(&mut Observed);

fn check(cases: Vec<(&'static str, Change, Is)>) {
    for (name, change, expected) in cases {
        let mut observed = at_rest();
        change(&mut observed);
        let message = match &expected {
            Is::Report(_, _, message) => message,
            Is::Action(_) => "",
        };
        assert_eq!(summary(decide(&observed, now()), message), expected, "{name}");
    }
}

#[test]
fn a_missing_pod_is_requested_when_the_api_server_accepts_it_again() {
    let observed = Observed { pod: None, start_event: Some(StartEvent::Resolved), ..at_rest() };
    let action = decide(&observed, now());
    let waits = "waiting for the pod to be created";
    assert!(matches!(&action, Action::RequestPod(report) if report.message == waits), "{action:?}");
}

#[test]
fn the_deletion_of_a_namespace_deletes_its_idle_pods_at_once() {
    let in_deleted_namespace = |change: fn(&mut Observed)| {
        let mut observed = Observed { is_namespace_terminating: true, ..at_rest() };
        change(&mut observed);
        decide(&observed, now())
    };
    let (pod_name, uid, version) = ("app-workspace-0".to_owned(), "pod".to_owned(), "7".to_owned());
    let expected = Action::DeleteIdlePod { pod: pod_name, uid, version };
    assert_eq!(in_deleted_namespace(|_| ()), expected);
    assert_eq!(in_deleted_namespace(|observed| observed.agent = Agent::NotCalled), expected, "the pod is starting");
    let rows: [(&str, fn(&mut Observed)); 8] = [
        ("the agent does not respond", |observed| observed.agent = Agent::Unreachable("timeout".to_owned())),
        ("the agent does not respond, and its readiness probe fails", |observed| {
            observed.agent = Agent::Unreachable("timeout".to_owned());
            observed.pod = Some(PodState { ready: false, ..pod() });
        }),
        ("a user runs a command", |observed| {
            let interactive_session = Some(InteractiveSession::default());
            observed.agent = responded(StatusReply { interactive_session, ..reply("new") });
        }),
        ("a run is open", |observed| observed.open_runs = run()),
        ("an Update requires the pod", |observed| observed.idle.pending_update = Some("app-12".to_owned())),
        ("the pod is held for a run", |observed| observed.pod = Some(PodState { held: true, ..pod() })),
        ("the pod terminates", |observed| observed.pod = Some(PodState { terminating: true, ..pod() })),
        ("the pod does not exist", |observed| observed.pod = None),
    ];
    for (what, change) in rows {
        let action = in_deleted_namespace(change);
        assert!(!matches!(action, Action::DeleteIdlePod { .. }), "{what}: {action:?}");
    }
}

#[test]
fn missing_objects_are_created_and_invalid_specs_are_reported() {
    let apply = |service, tls, budget, stateful_set| Is::Action(Action::Apply { service, tls, budget, stateful_set });
    check(vec![
        ("unchanged", |_| {}, Is::Report(State::Ready, reason::SUCCEEDED, "main@sha1:2 is ready")),
        ("new", |o| o.workspace = workspace(json!({"finalizers": []}), "Succeeded"), Is::Action(Action::AddFinalizer)),
        (
            "invalid",
            |o| o.desired = Err(Unavailable::Invalid("podTemplate.spec.hostPID is not supported".to_owned())),
            Is::Report(State::Stalled, reason::SPEC_INVALID, "hostPID"),
        ),
        (
            "a foreign Service",
            |o| o.service = PartState::Foreign,
            Is::Report(State::Stalled, reason::SPEC_INVALID, "Service app-workspace exists"),
        ),
        (
            "no objects",
            |o| {
                o.service = PartState::Missing;
                o.tls = PartState::Missing;
                o.budget = PartState::Missing;
                o.stateful_set = PartState::Missing;
            },
            apply(true, true, true, true),
        ),
        ("a certificate that is due", |o| o.tls = PartState::Outdated, apply(false, true, false, false)),
        ("a workspace of an older controller", |o| o.budget = PartState::Missing, apply(false, false, true, false)),
        ("another template", |o| o.stateful_set = PartState::Outdated, apply(false, false, false, true)),
    ]);
}

#[test]
fn the_condition_of_a_pod_that_does_not_start_states_the_reason() {
    check(vec![
        (
            "no pod yet",
            |o| o.pod = None,
            Is::Report(State::Working, reason::WAITING_FOR_REPLICAS, "waiting for the pod"),
        ),
        (
            "a quota forbids the pod",
            |o| {
                o.pod = None;
                o.start_event = Some(StartEvent::Warning("FailedCreate: exceeded quota".to_owned()));
            },
            Is::Report(State::Failing, reason::POD_FAILED, "exceeded quota"),
        ),
        (
            "a starting pod",
            |o| {
                o.pod = Some(PodState { running: false, ready: false, ..pod() });
                o.agent = Agent::NotCalled;
            },
            Is::Report(State::Working, reason::WAITING_FOR_REPLICAS, "is starting"),
        ),
        (
            "a slow pull of an image",
            |o| {
                o.pod = Some(PodState { running: false, ready: false, ..pod() });
                o.agent = Agent::NotCalled;
                o.start_event = Some(StartEvent::Step("pulling an image: Pulling image \"x\"".to_owned()));
            },
            Is::Report(State::Working, reason::WAITING_FOR_REPLICAS, "is starting: pulling an image: Pulling image"),
        ),
        (
            "a volume that cannot be mounted",
            |o| {
                o.pod = Some(PodState { running: false, ready: false, ..pod() });
                o.agent = Agent::NotCalled;
                o.start_event = Some(StartEvent::Warning("FailedMount: configmap not found".to_owned()));
            },
            Is::Report(State::Failing, reason::POD_FAILED, "FailedMount"),
        ),
        (
            "an image that cannot be pulled",
            |o| {
                let problem = Some("container pulumi: ImagePullBackOff".to_owned());
                o.pod = Some(PodState { ready: false, running: false, problem, ..pod() });
                o.agent = Agent::NotCalled;
            },
            Is::Report(State::Failing, reason::POD_FAILED, "ImagePullBackOff"),
        ),
    ]);
}

#[test]
fn only_the_agent_of_the_current_pod_is_trusted() {
    check(vec![
        (
            "an agent that responds before the pod is ready",
            |o| o.pod = Some(PodState { ready: false, running: false, ..pod() }),
            Is::Report(State::Ready, reason::SUCCEEDED, "is ready"),
        ),
        (
            "an unreachable agent",
            |o| o.agent = Agent::Unreachable("refused".to_owned()),
            Is::Report(State::Failing, reason::CONNECTION_FAILED, "refused"),
        ),
        (
            "an agent after a restart of its container",
            |o| {
                o.pod = Some(PodState { ready: false, ..pod() });
                o.agent = Agent::Unreachable("refused".to_owned());
            },
            Is::Report(State::Working, reason::WAITING_FOR_REPLICAS, "is starting"),
        ),
        (
            "the agent of another pod",
            |o| o.pod = Some(PodState { uid: "other".to_owned(), ..pod() }),
            Is::Report(State::Failing, reason::CONNECTION_FAILED, "another pod"),
        ),
    ]);
}

fn draining(content: &str) -> Agent {
    responded(StatusReply { draining: true, ..reply(content) })
}

#[test]
fn an_outdated_pod_is_drained_and_replaced_when_no_run_is_open() {
    let delete = || Is::Action(Action::DeletePod { uid: "pod".to_owned() });
    check(vec![
        ("other inputs", outdated, Is::Action(Action::Drain)),
        (
            "other inputs, a run is open",
            |o| {
                outdated(o);
                o.open_runs = run();
            },
            Is::Action(Action::Drain),
        ),
        (
            "drained, a run is open",
            |o| {
                outdated(o);
                o.agent = draining("new");
                o.open_runs = run();
            },
            Is::Report(State::Working, reason::ROLLING_UPDATE, "waiting for run app-12 to end"),
        ),
        (
            "drained, no run is open",
            |o| {
                outdated(o);
                o.agent = draining("new");
            },
            delete(),
        ),
        ("drained for a reverted change", |o| o.agent = draining("new"), delete()),
    ]);
}

#[test]
fn an_undrained_outdated_pod_is_replaced_only_if_no_run_is_open() {
    let delete = || Is::Action(Action::DeletePod { uid: "pod".to_owned() });
    check(vec![
        (
            "outdated and never started",
            |o| {
                outdated(o);
                o.agent = Agent::NotCalled;
            },
            delete(),
        ),
        (
            "never started again, with a recorded run",
            |o| {
                outdated(o);
                o.agent = Agent::NotCalled;
                o.open_runs = run();
            },
            Is::Report(State::Working, reason::ROLLING_UPDATE, "app-12"),
        ),
    ]);
}

#[test]
fn a_terminating_pod_loses_its_finalizer_when_no_run_is_open() {
    fn going(o: &mut Observed, held: bool, running: bool) {
        o.agent = Agent::NotCalled;
        o.pod = Some(PodState { terminating: true, held, running, ready: false, ..pod() });
    }
    check(vec![
        ("no run", |o| going(o, false, true), Is::Report(State::Working, reason::ROLLING_UPDATE, "is terminating")),
        (
            "held by an open run",
            |o| {
                going(o, true, false);
                o.open_runs = run();
            },
            Is::Report(State::Working, reason::ROLLING_UPDATE, "waiting for run app-12 to end"),
        ),
        ("held by an ended run", |o| going(o, true, false), Is::Action(Action::RemovePodFinalizer)),
        (
            "held and still running",
            |o| going(o, true, true),
            Is::Report(State::Working, reason::ROLLING_UPDATE, "is terminating"),
        ),
    ]);
}

fn with_session(reply: StatusReply) -> Agent {
    let session = InteractiveSession { command: "pulumi import".to_owned(), pid: 7, since: 0 };
    responded(StatusReply { interactive_session: Some(session), ..reply })
}

#[test]
fn a_manual_pulumi_command_blocks_source_and_pod_changes() {
    let waits = |why| Is::Report(State::Working, why, "waiting for interactive session `pulumi import` (PID 7) to end");
    check(vec![
        (
            "unchanged",
            |o| o.agent = with_session(reply("new")),
            Is::Report(State::Ready, reason::SUCCEEDED, "is ready; runs wait for interactive session `pulumi import`"),
        ),
        (
            "dependencies that the cache does not contain",
            |o| {
                let uncached = Some(Uncached { reason: "no lock file".to_owned(), plugins: Vec::new() });
                o.agent = responded(StatusReply { uncached, ..reply("new") });
            },
            Is::Report(
                State::Ready,
                reason::SUCCEEDED,
                "is ready; the dependency cache does not keep the dependencies: no lock file",
            ),
        ),
        (
            "plugins that the cache does not contain",
            |o| {
                let plugins = vec!["resource-a-v1.0.0".to_owned(), "resource-b-v1.0.0".to_owned()];
                let uncached = Some(Uncached { reason: String::new(), plugins });
                o.agent = responded(StatusReply { uncached, ..reply("new") });
            },
            Is::Report(
                State::Ready,
                reason::SUCCEEDED,
                "that runs download (resource-a-v1.0.0, resource-b-v1.0.0): use",
            ),
        ),
        ("another source", |o| o.agent = with_session(reply("old")), waits(reason::INSTALLING)),
        (
            "other inputs",
            |o| {
                outdated(o);
                o.agent = with_session(StatusReply { draining: true, ..reply("new") });
            },
            waits(reason::ROLLING_UPDATE),
        ),
        (
            "the Workspace is being deleted",
            |o| {
                deleted(o);
                o.agent = with_session(StatusReply { draining: true, ..reply("new") });
            },
            waits(reason::DELETING),
        ),
    ]);
}

#[test]
fn an_outdated_agent_is_replaced_when_no_run_is_open() {
    check(vec![
        ("unchanged", |o| o.is_agent_too_old = true, Is::Action(Action::Drain)),
        (
            "a run is open",
            |o| {
                o.is_agent_too_old = true;
                o.agent = draining("new");
                o.open_runs = run();
            },
            Is::Report(State::Working, reason::ROLLING_UPDATE, "waiting for run app-12 to end"),
        ),
        (
            "idle",
            |o| {
                o.is_agent_too_old = true;
                o.agent = draining("new");
            },
            Is::Action(Action::DeletePod { uid: "pod".to_owned() }),
        ),
    ]);
}

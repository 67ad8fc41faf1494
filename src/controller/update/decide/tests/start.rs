//! Tests for the conditions under which a run can start.

use super::*;
use crate::api::auto::{RunProgress, WorkspaceSleep};
use crate::controller::references::{Reference, ReferencedKind};

fn waits_because(observed: &Observed) -> String {
    match decide(observed) {
        Action::Wait(reason, message) => format!("{reason}: {message}"),
        other => format!("{other:?}"),
    }
}

#[test]
fn the_binding_is_recorded_if_nothing_blocks_the_run() {
    let Action::RecordBinding(binding) = decide(&observed(update(None))) else {
        panic!("expected Action::RecordBinding")
    };
    assert_eq!((binding.pod_uid.as_str(), binding.agent_start_id.as_str()), ("pod-uid", "start"));
}

/// Returns the state of a run that has targets, which require an agent with protocol version 1 or later. The agent
/// has the given protocol version.
fn with_targets(protocol_version: u32) -> Observed {
    let mut observed = observed(update(None));
    observed.update.spec.target = vec!["urn".to_owned()];
    let status = observed.workspace.as_mut().and_then(|workspace| workspace.status.as_mut());
    status.expect("there").agent_protocol_version = Some(protocol_version);
    observed
}

#[test]
fn a_run_waits_for_an_agent_that_supports_its_options() {
    assert!(matches!(decide(&with_targets(1)), Action::RecordBinding(_)));
    assert!(matches!(decide(&with_targets(0)), Action::Wait(..)));
    let mut plain = with_targets(0);
    plain.update.spec.target = Vec::new();
    assert!(matches!(decide(&plain), Action::RecordBinding(_)), "the run needs no newer protocol");
}

#[test]
fn a_run_with_other_policy_packs_than_requested_fails() {
    let pack = |digest: &str| -> WorkspacePolicyPack {
        let digest = Digest::of(digest.as_bytes());
        serde_json::from_value(serde_json::json!({"name": "house", "artifact": {"digest": digest}}))
            .expect("a valid policy pack")
    };
    let requested = WorkspaceSpec { policy_packs: vec![pack("a")], ..WorkspaceSpec::default() }.policy_packs_digest();
    let action = |packs: Vec<WorkspacePolicyPack>| {
        let mut observed = observed(update(None));
        observed.update.spec.policy_packs_digest = requested.clone();
        let workspace = observed.workspace.as_mut().expect("there");
        workspace.spec.policy_packs = packs;
        workspace.status.as_mut().expect("there").agent_protocol_version = Some(u32::MAX);
        decide(&observed)
    };
    assert!(matches!(action(vec![pack("a")]), Action::RecordBinding(_)));
    for others in [vec![pack("b")], Vec::new()] {
        let Action::Record(outcome) = action(others) else { panic!("expected Action::Record") };
        assert!(outcome.message.contains("policy packs of Workspace"), "{}", outcome.message);
    }
}

fn by_hand(artifact: Option<ArtifactReference>) -> Update {
    let mut update = update(None);
    update.metadata.owner_references = None;
    update.spec.artifact = artifact;
    update
}

#[test]
fn a_manual_update_runs_with_the_current_source_of_the_workspace() {
    let bare = |update: Update| Observed { update, ..observed(by_hand(None)) };
    let Action::RecordBinding(binding) = decide(&bare(by_hand(None))) else { panic!("expected Action::RecordBinding") };
    assert_eq!(binding.artifact, Some(artifact()));
    let without_finalizer = |mut update: Update| {
        update.metadata.finalizers = None;
        update
    };
    assert_eq!(decide(&bare(without_finalizer(by_hand(None)))), Action::AddFinalizer);
    let named = ArtifactReference { revision: String::new(), dir: "./".to_owned(), ..artifact() };
    assert!(matches!(decide(&bare(by_hand(Some(named)))), Action::RecordBinding(_)), "only the digest is compared");
    let empty = |o: &mut Observed| o.workspace.as_mut().expect("there").status.as_mut().expect("there").artifact = None;
    let mut nothing = bare(by_hand(None));
    empty(&mut nothing);
    assert_eq!(waits_because(&nothing), "WorkspaceNotReady: Workspace app has no source installed");
    // An Update that was deleted before its first reconciliation has no finalizer and requires no write.
    let mut deleted = without_finalizer(by_hand(None));
    deleted.metadata.deletion_timestamp = Some(Time(now()));
    let Action::Record(outcome) = decide(&bare(deleted)) else { panic!("expected Action::Record") };
    assert_eq!(outcome.failure, Some(update_reason::CANCELED));
}

#[test]
fn a_manual_update_for_another_source_fails_immediately() {
    let other = ArtifactReference { digest: Digest::of(b"b"), ..artifact() };
    let Action::Record(outcome) = decide(&observed(by_hand(Some(other.clone())))) else {
        panic!("expected Action::Record")
    };
    assert_eq!(outcome.failure, Some(update_reason::SPEC_INVALID));
    let (requests, has) = (format!("requests source {}", other.digest), format!("has {}", artifact().digest));
    assert!(outcome.message.contains(&requests) && outcome.message.contains(&has), "{outcome:?}");
    let mut on_its_way = observed(by_hand(Some(other.clone())));
    on_its_way.workspace.as_mut().expect("there").metadata.generation = Some(2);
    assert!(waits_because(&on_its_way).starts_with("WorkspaceNotReady"), "the artifact can still be installed");
    let mut asleep = observed(by_hand(Some(other.clone())));
    let status = asleep.workspace.as_mut().and_then(|workspace| workspace.status.as_mut()).expect("there");
    (status.sleep, status.pod_uid) = (Some(WorkspaceSleep::default()), None);
    assert!(waits_because(&asleep).starts_with("WorkspaceNotReady"), "the Workspace can wake up with this artifact");
    let mut of_stack = update(None);
    of_stack.spec.artifact = Some(other);
    assert!(waits_because(&observed(of_stack)).starts_with("WorkspaceNotReady"), "the Stack revokes the run");
}

#[test]
fn an_update_with_a_missing_field_fails_with_the_name_of_the_field() {
    let mut update = by_hand(None);
    update.spec.stack_name = String::new();
    let Action::Record(outcome) = decide(&observed(update)) else { panic!("expected Action::Record") };
    assert_eq!(
        (outcome.failure, outcome.message.as_str()),
        (Some(update_reason::SPEC_INVALID), "spec.stackName is required")
    );
}

#[test]
fn the_condition_of_a_waiting_run_states_the_reason() {
    let new = || observed(update(None));
    let changed = |change: fn(&mut Workspace)| {
        let mut workspace = workspace();
        change(&mut workspace);
        Observed { workspace: Some(workspace), ..new() }
    };
    let rows = [
        (Observed { preceding_update: Some("app-0".to_owned()), ..new() }, "Queued: waiting for Update app-0"),
        (Observed { workspace: None, ..new() }, "WorkspaceNotFound: Workspace app not found"),
        (changed(|w| w.metadata.generation = Some(2)), "WorkspaceNotReady: Workspace app is not ready"),
        (
            changed(|w| w.status.as_mut().expect("there").artifact = None),
            "WorkspaceNotReady: Workspace app does not have source main@sha1:a installed",
        ),
        (Observed { pod: None, ..new() }, "WorkspaceNotReady: Workspace app is waiting for a new pod"),
        (
            changed(|w| {
                let status = w.status.as_mut().expect("there");
                (status.sleep, status.pod_uid) = (Some(WorkspaceSleep::default()), None);
            }),
            "WorkspaceNotReady: Workspace app is sleeping",
        ),
        (with_targets(0), "WorkspaceNotReady: Workspace app has an agent that does not support"),
        (Observed { pod: Some(pod("other")), ..new() }, "WorkspaceNotReady: Workspace app is waiting for a new pod"),
    ];
    for (observed, expected) in rows {
        let found = waits_because(&observed);
        assert!(found.starts_with(expected), "{found:?} does not start with {expected:?}");
    }
}

#[test]
fn an_update_with_an_invalid_timeout_fails_before_it_starts() {
    let mut wrong = update(None);
    wrong.spec.idle_timeout = Some("99999999999999999999h".to_owned());
    let Action::Record(outcome) = decide(&observed(wrong)) else { panic!("expected Action::Record") };
    assert_eq!(outcome.failure, Some(update_reason::SPEC_INVALID));
}

#[test]
fn a_run_waits_until_all_referenced_objects_exist() {
    let reference = Reference {
        kind: ReferencedKind::Secret,
        name: "aws".to_owned(),
        referrer: "envFrom".to_owned(),
        directory: "/mounts/aws".to_owned(),
    };
    let mut observed = observed(update(None));
    let checked = observed.references.as_mut().expect("checked");
    checked.missing.push(reference);
    checked.empty.insert("ConfigMap/defaults".to_owned());
    observed.update.metadata.namespace = Some("apps".to_owned());
    let message = "waiting for Secret \"aws\" (envFrom): not found in namespace apps";
    assert_eq!(decide(&observed), Action::AwaitReferences(message.to_owned()));
    let deleted = |mut observed: Observed| {
        observed.update.metadata.deletion_timestamp = Some(Time(now()));
        observed
    };
    assert!(
        matches!(decide(&deleted(observed.clone())), Action::Record(_)),
        "the Update can be deleted while it waits"
    );
    observed.references.as_mut().expect("checked").missing.clear();
    let Action::RecordBinding(binding) = decide(&observed) else { panic!("expected Action::RecordBinding") };
    assert_eq!(binding.empty_references, ["ConfigMap/defaults"]);
    let mut unchecked = Observed { references: None, ..observed };
    assert!(matches!(decide(&unchecked), Action::AwaitReferences(_)), "no run starts without the check");
    unchecked.pod = None;
    assert!(waits_because(&unchecked).starts_with("WorkspaceNotReady"), "without a pod, the check is not necessary");
}

#[test]
fn the_message_of_a_bound_run_changes_when_the_cli_starts() {
    let with_pid = |pid: Option<i64>| Some(RunProgress { pid, ..RunProgress::default() });
    let rows = [
        ("no progress", None, None, "run is starting"),
        ("progress without a process", with_pid(None), None, "run is starting"),
        ("process reported", with_pid(Some(42)), None, "run in progress"),
        ("process recorded before a restart", None, with_pid(Some(42)), "run in progress"),
    ];
    for (name, progress, written, expected) in rows {
        for run_state in [RunState::Connecting, RunState::Running] {
            let mut update = update(Some(bound()));
            update.status.as_mut().expect("value is set").progress = written.clone();
            let open = Observed { run_state: Some(run_state), progress: progress.clone(), ..observed(update) };
            assert_eq!(decide(&open), Action::Await(expected.to_owned()), "{name}");
        }
    }
}

#[test]
fn the_message_of_an_open_run_names_its_terminating_pod() {
    let mut deleted = update(Some(bound()));
    deleted.metadata.deletion_timestamp = Some(Time(now()));
    let rows = [
        (
            "the namespace is being deleted",
            "pod-uid",
            true,
            "pod p is terminating; waiting for the agent to end the run",
        ),
        ("only the Stack is being deleted", "pod-uid", false, "run in progress"),
        ("the pod is not the pod of the run", "other", true, "run in progress"),
    ];
    for (name, uid, is_terminating, expected) in rows {
        let mut pod = pod(uid);
        pod.metadata.name = Some("p".to_owned());
        pod.metadata.deletion_timestamp = is_terminating.then(|| Time(now()));
        let progress = Some(RunProgress { pid: Some(42), ..RunProgress::default() });
        let (run_state, stack) = (Some(RunState::Running), Owner::Deleting);
        let open = Observed { pod: Some(pod), run_state, progress, stack, ..observed(deleted.clone()) };
        assert_eq!(decide(&open), Action::Await(expected.to_owned()), "{name}");
    }
}

#[test]
fn a_bound_run_causes_no_status_write_until_the_cli_starts() {
    let mut update = update(None);
    update.status = Some(status::bound(&update, &bound(), now()));
    let open = Observed { run_state: Some(RunState::Running), ..observed(update.clone()) };
    assert_eq!(decide(&open), Action::AwaitShortRun(SignedDuration::from_secs(2)));
    let later = now() + SignedDuration::from_secs(2);
    let Action::Await(message) = super::super::decide(&open, later) else { panic!("expected Action::Await") };
    assert_eq!(Some(status::running(&update, None, &message, later)), update.status);
    let unreachable = Some(RunState::Unreachable("no route".to_owned()));
    let action = decide(&Observed { run_state: unreachable, ..open });
    assert!(matches!(action, Action::Await(_)), "a problem is reported immediately: {action:?}");
}

//! Tests for the decisions about a Stack with a sleeping Workspace.

use super::*;
use crate::api::auto::WorkspaceSleep;
use crate::api::pulumi::DriftPolicy;
use crate::controller::stack::policy_packs::{ResolvedPack, artifacts};

/// Returns the observed state of a Stack whose last run succeeded, with a sleeping Workspace and without the artifact in
/// the store.
fn asleep() -> Observed {
    let mut done = stack();
    let mut last = last("up", "succeeded");
    last.inputs.config_inputs = Some("a".to_owned());
    done.status = Some(StackStatus { last_update: Some(last), ..StackStatus::default() });
    let mut workspace = workspace(&done, Status::True, "Sleeping");
    let status = workspace.status.as_mut().expect("value is set");
    status.config_inputs = Some("a".to_owned());
    status.sleep = Some(WorkspaceSleep::default());
    Observed { workspace: Some(workspace), in_store: false, ..observed(done) }
}

fn wakes(action: &Action) -> bool {
    matches!(action, Action::WakeWorkspace(message) if message.starts_with("waking up workspace: "))
}

#[test]
fn a_stack_without_a_due_run_does_not_wake_its_workspace() {
    assert_eq!(decide(&asleep(), now()), Action::Settled(Settled::Done(None)));
    let mut suspended = asleep();
    suspended.stack.spec.suspend = Some(true);
    assert_eq!(decide(&suspended, now()), Action::Settled(Settled::Suspended));
}

#[test]
fn a_due_run_fetches_its_artifacts_wakes_the_workspace_and_starts_afterwards() {
    let mut requested = asleep();
    let request = (names::ANNOTATION_RECONCILIATION_REQUEST.to_owned(), "now".to_owned());
    requested.stack.metadata.annotations = Some([request].into());
    assert_eq!(brief(&decide(&requested, now())), "Fetch", "the new pod needs the bytes");
    requested.in_store = true;
    let action = decide(&requested, now());
    assert!(wakes(&action), "{action:?}");

    let mut awake = requested;
    let workspace = awake.workspace.as_mut().expect("value is set");
    workspace.status = workspace_status(&awake.stack, "Succeeded");
    assert_eq!(brief(&decide(&awake, now())), "Start up: Sync request: \"now\"");
}

fn workspace_status(stack: &Stack, reason: &str) -> Option<WorkspaceStatus> {
    workspace(stack, Status::True, reason).status
}

#[test]
fn drift_checks_and_retries_wake_the_workspace() {
    let later = now() + SignedDuration::from_hours(2);
    let mut checked = Observed { in_store: true, ..asleep() };
    checked.stack.spec.drift =
        Some(Box::new(DriftPolicy { interval: Some("1h".to_owned()), ..DriftPolicy::default() }));
    assert!(matches!(decide(&checked, now()), Action::Settled(Settled::Done(Some(_)))));
    assert!(wakes(&decide(&checked, later)));

    let mut failed = Observed { in_store: true, ..asleep() };
    let status = failed.stack.status.as_mut().expect("value is set");
    status.last_update.as_mut().expect("value is set").state = Some("failed".to_owned());
    assert!(matches!(decide(&failed, now()), Action::Settled(Settled::RetryAfter(_))));
    assert!(wakes(&decide(&failed, later)));
}

#[test]
fn a_pod_that_a_user_woke_receives_its_source_although_no_run_is_due() {
    let mut failed = asleep();
    let status = failed.stack.status.as_mut().expect("value is set");
    status.last_update.as_mut().expect("value is set").state = Some("failed".to_owned());
    assert!(matches!(decide(&failed, now()), Action::Settled(Settled::RetryAfter(_))), "the Workspace is asleep");
    let woken = workspace(&failed.stack, Status::False, "ArtifactUnavailable");
    failed.workspace = Some(woken);
    assert_eq!(brief(&decide(&failed, now())), "Fetch");
    failed.in_store = true;
    assert!(matches!(decide(&failed, now()), Action::Settled(Settled::RetryAfter(_))));
}

#[test]
fn a_pod_that_a_user_woke_receives_the_source_of_a_suspended_stack() {
    let mut suspended = asleep();
    suspended.stack.spec.suspend = Some(true);
    suspended.workspace = Some(workspace(&suspended.stack, Status::False, "ArtifactUnavailable"));
    assert_eq!(brief(&decide(&suspended, now())), "Fetch");
    suspended.in_store = true;
    assert_eq!(decide(&suspended, now()), Action::Settled(Settled::Suspended));
    suspended.in_store = false;
    for source in [None, Some(Err(Unavailable::NotYet("no artifact".to_owned())))] {
        suspended.source = source;
        assert_eq!(decide(&suspended, now()), Action::Settled(Settled::Suspended));
    }
}

#[test]
fn a_due_run_fetches_its_policy_packs_before_the_workspace_wakes() {
    let action = |in_store: bool| {
        let (name, namespace) = ("house".to_owned(), "flux-system".to_owned());
        let pack = ResolvedPack { name, namespace, resolved: resolved(), config: [].into(), in_store };
        let packs = vec![pack];
        let mut observed = Observed { in_store: true, ..asleep() };
        let desired = build_workspace::with_policy_packs(&observed.stack, &reference(&resolved()), artifacts(&packs))
            .expect("valid");
        let workspace = observed.workspace.as_mut().expect("value is set");
        (workspace.spec, workspace.metadata.annotations) = (desired.spec, desired.metadata.annotations);
        observed.policy_packs = Ok(packs);
        decide(&observed, now())
    };
    assert_eq!(action(false).name(), "FetchPolicyPack", "the new pod needs the bytes");
    assert!(wakes(&action(true)), "{:?}", action(true));
}

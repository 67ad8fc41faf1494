//! Tests for the Workspace of a Stack without a due run.

use super::*;
use crate::api::auto::WorkspaceSleep;
use crate::controller::stack::ownership::{ANNOTATION_DESIRED_HASH, desired_hash};

/// Returns a Stack whose last run used the Workspace with this hash.
fn ran(state: &str, workspace_hash: Option<&str>) -> Stack {
    let mut stack = stack();
    let mut last = last("up", state);
    last.inputs.workspace_hash = workspace_hash.map(str::to_owned);
    stack.status = Some(StackStatus { last_update: Some(last), ..StackStatus::default() });
    stack
}

fn ready() -> Workspace {
    workspace(&stack(), Status::True, "Succeeded")
}

fn hash() -> String {
    desired_hash(&ready()).expect("the Workspace has a hash").to_owned()
}

/// Returns the Workspace for a changed spec that no run has used.
fn changed() -> Workspace {
    let mut changed = stack();
    changed.spec.workspace_template = Some(json!({"spec": {"image": "nope.invalid/x:1"}}));
    workspace(&changed, Status::False, "PodFailed")
}

fn with_hash(mut workspace: Workspace, hash: &str) -> Workspace {
    let annotations = workspace.metadata.annotations.get_or_insert_default();
    annotations.insert(ANNOTATION_DESIRED_HASH.to_owned(), hash.to_owned());
    workspace
}

fn decided(stack: Stack, workspace: Workspace) -> Action {
    decide(&Observed { workspace: Some(workspace), ..observed(stack) }, now())
}

#[test]
fn a_reverted_change_is_removed_from_the_workspace_without_a_run() {
    let mut asleep = changed();
    asleep.status.as_mut().expect("value is set").sleep = Some(WorkspaceSleep::default());
    let mut newer = ready();
    newer.spec.artifact = Some(ArtifactReference { digest: Digest::of(b"newer"), ..reference(&resolved()) });
    let edited = || {
        let mut workspace = ready();
        workspace.spec.image = Some("edited".to_owned());
        workspace.spec.service_account_name = Some("admin".to_owned());
        workspace
    };
    let rows = [
        ("an invalid image", "succeeded", changed()),
        ("the last run failed", "failed", changed()),
        ("the Workspace is sleeping", "succeeded", asleep),
        ("another source", "succeeded", with_hash(newer, "of the newer source")),
        ("a user edited the Workspace", "succeeded", edited()),
    ];
    for (name, state, live) in rows {
        let stack = ran(state, Some(&hash()));
        let Action::ReplaceWorkspace(restored) = decided(stack.clone(), live) else { panic!("{name}") };
        assert_eq!(desired_hash(&restored), Some(hash().as_str()), "{name}");
        assert_eq!(restored.spec, ready().spec, "{name}");
        let after = decided(stack, ready());
        assert!(matches!(after, Action::Settled(Settled::Done(None) | Settled::RetryAfter(_))), "{name}: {after:?}");
    }
    let observed =
        Observed { workspace: Some(edited()), is_workspace_mutated: true, ..observed(ran("succeeded", Some(&hash()))) };
    assert_eq!(decide(&observed, now()), Action::Settled(Settled::Done(None)), "a webhook edits the Workspace");
}

#[test]
fn a_workspace_that_only_another_controller_version_renders_differently_stays() {
    let settled = Action::Settled(Settled::Done(None));
    let earlier = "of an earlier version";
    assert_eq!(decided(ran("succeeded", Some(earlier)), with_hash(changed(), earlier)), settled);
    assert_eq!(decided(ran("succeeded", None), changed()), settled, "the hash of the last run is unknown");
    // A drift check has applied the Workspace that this version renders.
    let Action::AdoptBaseline(status) = decided(ran("succeeded", Some(earlier)), ready()) else {
        panic!("the hash is recorded")
    };
    let recorded = Stack { status: Some(*status), ..stack() };
    assert_eq!(decided(recorded, ready()), settled);
}

#[test]
fn the_workspace_of_a_due_or_removed_run_is_not_restored() {
    let mut due = ran("succeeded", Some(&hash()));
    due.metadata.generation = Some(2);
    due.spec.refresh = Some(true);
    assert_eq!(decided(due, changed()).name(), "ApplyWorkspace", "a run is due");
    let mut reclaimed = ran("succeeded", Some(&hash()));
    reclaimed.spec.workspace_reclaim_policy = WorkspaceReclaimPolicy::Delete;
    assert_eq!(decided(reclaimed, changed()), Action::ReclaimWorkspace);
    let mut deleted = changed();
    deleted.metadata.deletion_timestamp = Some(Time(now()));
    assert_eq!(decided(ran("succeeded", Some(&hash())), deleted), Action::Settled(Settled::Done(None)));
    let mut suspended = ran("succeeded", Some(&hash()));
    suspended.spec.suspend = Some(true);
    assert_eq!(decided(suspended, changed()), Action::Settled(Settled::Suspended));
}

//! Table tests for the next action.

mod dependencies;
mod inputs;
mod open_run;
mod policy_packs;
mod repacked;
mod restored_workspace;
mod restrictions;
mod sleep;
mod source;

use super::*;
use crate::api::auto::{
    ArtifactReference, PendingCreates, SourceMetadata, Update, UpdateKind, UpdateSpec, UpdateStatus, Workspace,
    WorkspaceStatus,
};
use crate::api::conditions::{ConditionUpdate, PROGRESSING, Status};
use crate::api::pulumi::{LastUpdate, PulumiStack, RunInputs, StackSpec, StackStatus, WorkspaceReclaimPolicy};
use crate::artifact::Digest;
use crate::controller::stack::duplicate_stacks::DuplicateStack;
use crate::controller::stack::observed::{Deletion, OtherClaim};
use crate::controller::stack::run::{DueRun, PlanUse, current_update, reference};
use crate::controller::stack::status;
use crate::source::{Origin, Resolved};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::json;

const DIGEST: &str = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

fn now() -> Timestamp {
    Timestamp::from_second(1000).expect("timestamp in range")
}

/// Returns an `up` without a plan.
fn up() -> DueRun {
    DueRun { operation: UpdateKind::Up, message: "why".to_owned(), refresh: false, plan: PlanUse::None }
}

fn resolved() -> Resolved {
    Resolved {
        origin: Origin::Url("http://source/a.tar.gz".to_owned()),
        revision: "main@sha1:a".to_owned(),
        origin_revision: None,
        metadata: None,
        content_id: None,
        digest: DIGEST.parse().expect("valid"),
        directory: "".parse().expect("root"),
    }
}

fn stack() -> Stack {
    let mut stack = Stack::new("app", StackSpec { stack: "dev".to_owned(), ..StackSpec::default() });
    stack.metadata.namespace = Some("apps".to_owned());
    stack.metadata.uid = Some("uid-1".to_owned());
    stack.metadata.generation = Some(1);
    stack.metadata.finalizers = Some(vec![names::STACK_FINALIZER.to_owned()]);
    stack.status = Some(StackStatus::default());
    stack
}

fn observed(stack: Stack) -> Observed {
    Observed {
        source: Some(Ok(resolved())),
        in_store: true,
        deletion: Some(Deletion::default()),
        ..Observed::of(stack)
    }
}

/// Returns the desired Workspace, with this `Ready` condition and the source in its pod.
fn workspace(stack: &Stack, ready: Status, reason: &str) -> Workspace {
    let mut workspace = build_workspace::workspace(stack, &reference(&resolved())).expect("valid");
    workspace.metadata.generation = Some(1);
    let mut conditions = Vec::new();
    conditions::set(
        &mut conditions,
        &ConditionUpdate { kind: "Ready", status: ready, reason, message: "detail" },
        1,
        now(),
    );
    workspace.status = Some(WorkspaceStatus {
        observed_generation: Some(1),
        conditions,
        artifact: workspace.spec.artifact.clone(),
        ..WorkspaceStatus::default()
    });
    workspace
}

fn last(kind: &str, state: &str) -> LastUpdate {
    LastUpdate {
        inputs: RunInputs { generation: 1, digest: DIGEST.parse().ok(), ..RunInputs::default() },
        kind: Some(kind.to_owned()),
        state: Some(state.to_owned()),
        last_attempted_commit: Some("main@sha1:a".to_owned()),
        last_resync_time: Some(Time(now())),
        ..LastUpdate::default()
    }
}

fn open(status: Status, reason: &str) -> Observed {
    let mut open = stack();
    let current = current_update(&observed(open.clone()), &resolved(), &up());
    let mut update = Update::new(&current.name, UpdateSpec::default());
    open.status.as_mut().expect("value is set").current_update = Some(Box::new(current));
    let mut conditions = Vec::new();
    conditions::set(
        &mut conditions,
        &ConditionUpdate { kind: PROGRESSING, status, reason, message: "detail" },
        1,
        now(),
    );
    let run = Some(crate::api::auto::RunBinding::default());
    update.status = Some(UpdateStatus { conditions, run, ..UpdateStatus::default() });
    Observed { update: Some(update), workspace: Some(workspace(&stack(), Status::True, "Succeeded")), ..observed(open) }
}

/// Returns the name and the message of an action.
fn brief(action: &Action) -> String {
    match action {
        Action::Fetch(_) => "Fetch".to_owned(),
        Action::ApplyWorkspace(..) => "ApplyWorkspace".to_owned(),
        Action::Start(current) => format!("Start {}: {}", current.kind.as_str(), current.message),
        Action::CreateUpdate(current) => format!("CreateUpdate {}", current.name),
        other => format!("{other:?}"),
    }
}

#[test]
fn a_source_that_is_missing_from_pod_and_store_is_fetched_again() {
    let mut done = stack();
    done.status = Some(StackStatus { last_update: Some(last("up", "succeeded")), ..StackStatus::default() });
    let lacking = workspace(&done, Status::False, "ArtifactUnavailable");
    let mut of_another = lacking.clone();
    of_another.spec.artifact = Some(ArtifactReference { dir: "other".to_owned(), ..reference(&resolved()) });
    let settled = "Settled(Done(None))";
    let rows = [
        ("neither the Workspace nor the pod has the artifact", Some(lacking.clone()), false, "Fetch"),
        ("the Workspace finds the artifact in the store", Some(lacking), true, settled),
        ("the pod has the artifact", Some(workspace(&done, Status::True, "Succeeded")), false, settled),
        ("the Workspace waits for an artifact that cannot be fetched", Some(of_another), false, settled),
        ("the Workspace does not exist", None, false, settled),
    ];
    for (name, workspace, in_store, expected) in rows {
        let observed = Observed { workspace, in_store, ..observed(done.clone()) };
        assert_eq!(brief(&decide(&observed, now())), expected, "{name}");
    }
    let mut destroyed = done;
    destroyed.status = Some(StackStatus { last_update: Some(last("destroy", "succeeded")), ..StackStatus::default() });
    let lacking = workspace(&destroyed, Status::False, "ArtifactUnavailable");
    let observed = Observed { workspace: Some(lacking), in_store: false, ..observed(destroyed) };
    let action = run_if_due(&observed, &resolved(), false, UpdateKind::Destroy, now());
    assert_eq!(brief(&action), settled, "a destroyed Stack is deleted even if its source is unavailable");
}

#[test]
fn a_new_stack_passes_all_steps_before_its_first_run() {
    let mut new = stack();
    new.metadata.finalizers = None;
    assert_eq!(decide(&observed(new), now()), Action::AddFinalizer);
    let missing = Observed { source: Some(Err(Unavailable::NotYet("no artifact".to_owned()))), ..observed(stack()) };
    assert_eq!(decide(&missing, now()), Action::WaitForSource("no artifact".to_owned(), None));
    let invalid = Observed { source: Some(Err(Unavailable::Invalid("bad kind".to_owned()))), ..observed(stack()) };
    assert_eq!(decide(&invalid, now()), Action::Invalid("bad kind".to_owned()));
    let steps = [(Observed { in_store: false, ..observed(stack()) }, "Fetch"), (observed(stack()), "ApplyWorkspace")];
    for (observed, expected) in steps {
        assert_eq!(brief(&decide(&observed, now())), expected);
    }
    let with = |status, reason| Observed { workspace: Some(workspace(&stack(), status, reason)), ..observed(stack()) };
    let mut edited = with(Status::True, "Succeeded");
    edited.workspace.as_mut().expect("value is set").spec.service_account_name = Some("other".to_owned());
    assert_eq!(brief(&decide(&edited, now())), "ApplyWorkspace", "a field that the Stack sets was edited");
    edited.is_workspace_mutated = true;
    assert_eq!(
        brief(&decide(&edited, now())),
        "Start up: Initial stack update",
        "an admission webhook sets the field on each write"
    );
    let rows = [
        (Status::True, "Succeeded", "Start up: Initial stack update"),
        (
            Status::False,
            "WaitingForReplicas",
            "WaitForWorkspace(\"detail (WaitingForReplicas); waiting for workspace: up of revision main@sha1:a\")",
        ),
        (Status::False, "PodFailed", "WorkspaceFailed(\"PodFailed: detail\")"),
        (Status::False, "IncompatibleConfiguration", "VersionTooLow(\"IncompatibleConfiguration: detail\")"),
        (Status::False, "ArtifactRefused", "SourceStalled(\"detail\")"),
    ];
    for (status, reason, expected) in rows {
        assert_eq!(brief(&decide(&with(status, reason), now())), expected);
    }
}

#[test]
fn a_workspace_with_reclaim_policy_delete_is_deleted_after_success() {
    let mut done = stack();
    done.spec.workspace_reclaim_policy = WorkspaceReclaimPolicy::Delete;
    let there = |stack: &Stack| Some(workspace(stack, Status::True, "Succeeded"));
    let start = "Start up: Initial stack update";
    assert_eq!(brief(&decide(&Observed { workspace: there(&done), ..observed(done.clone()) }, now())), start);
    done.status = Some(StackStatus { last_update: Some(last("up", "succeeded")), ..StackStatus::default() });
    let mut going = workspace(&done, Status::True, "Succeeded");
    going.metadata.deletion_timestamp = Some(Time(now()));
    let settled = Action::Settled(Settled::Done(None));
    let rows = [(there(&done), Action::ReclaimWorkspace), (Some(going), settled.clone()), (None, settled.clone())];
    for (workspace, expected) in rows {
        assert_eq!(decide(&Observed { workspace, ..observed(done.clone()) }, now()), expected);
    }
    let mut failed = done.clone();
    failed.status = Some(StackStatus { last_update: Some(last("up", "failed")), ..StackStatus::default() });
    let action = decide(&Observed { workspace: there(&failed), ..observed(failed) }, now());
    assert!(matches!(action, Action::Settled(Settled::RetryAfter(_))), "{action:?}");
    done.spec.workspace_reclaim_policy = WorkspaceReclaimPolicy::Retain;
    assert_eq!(decide(&Observed { workspace: there(&done), ..observed(done) }, now()), settled);
}

#[test]
fn an_outdated_workspace_is_applied_again() {
    let mut edited = stack();
    edited.spec.config.insert("key".to_owned(), json!("value"));
    let observed = Observed { workspace: Some(workspace(&stack(), Status::True, "Succeeded")), ..observed(edited) };
    assert_eq!(brief(&decide(&observed, now())), "ApplyWorkspace");
}

#[test]
fn a_run_waits_until_a_ready_workspace_has_the_current_source() {
    let mut workspace = workspace(&stack(), Status::True, "Succeeded");
    workspace.status.as_mut().expect("value is set").artifact = None;
    let observed = Observed { workspace: Some(workspace), ..observed(stack()) };
    assert!(matches!(decide(&observed, now()), Action::WaitForWorkspace(_)));
}

/// Returns a Workspace whose pod rejected a newer source.
fn refusing(stack: &Stack) -> Workspace {
    let mut workspace = workspace(stack, Status::False, "ArtifactRefused");
    let newer = ArtifactReference { digest: Digest::of(b"newer"), ..reference(&resolved()) };
    workspace.spec.artifact = Some(newer);
    workspace.metadata.annotations = None;
    workspace
}

#[test]
fn a_stack_with_a_rejected_source_is_destroyed_from_the_source_in_its_pod() {
    let stack = deleted(true, Some(last("up", "succeeded")));
    let refused =
        Observed { workspace: Some(refusing(&stack)), source: None, in_store: false, ..observed(stack.clone()) };
    let Action::ApplyWorkspace(expected, _) = decide(&refused, now()) else { panic!("the workspace is not changed") };
    assert_eq!(expected.spec.artifact, Some(reference(&resolved())));
    let placed = Observed { workspace: Some(workspace(&stack, Status::True, "Succeeded")), ..refused };
    assert_eq!(brief(&decide(&placed, now())), "Start destroy: Stack marked for deletion");
}

#[test]
fn a_suspended_stack_starts_no_run() {
    let mut suspended = stack();
    suspended.spec.suspend = Some(true);
    assert_eq!(decide(&observed(suspended), now()), Action::Settled(Settled::Suspended));
}

fn deleted(destroy: bool, last_update: Option<LastUpdate>) -> Stack {
    let mut stack = stack();
    stack.metadata.deletion_timestamp = Some(Time(now()));
    stack.spec.destroy_on_finalize = Some(destroy);
    let is_destroyed = last_update == Some(last("destroy", "succeeded"));
    let applied_stack = (!is_destroyed).then(|| PulumiStack { name: "dev".to_owned(), ..PulumiStack::default() });
    stack.status = Some(StackStatus { attempts: Some(1), last_update, applied_stack, ..StackStatus::default() });
    stack
}

#[test]
fn a_deleted_stack_is_destroyed_once_and_only_if_requested() {
    let up = || Some(last("up", "succeeded"));
    let rows = [
        ("destroyOnFinalize is not set", deleted(false, up()), "RemoveFinalizer"),
        ("destroyOnFinalize is set", deleted(true, up()), "Start destroy: Stack marked for deletion"),
        ("destroyed", deleted(true, Some(last("destroy", "succeeded"))), "RemoveFinalizer"),
        ("destroy failed", deleted(true, Some(last("destroy", "failed"))), "Settled(RetryAfter(10s))"),
    ];
    for (name, stack, expected) in rows {
        let workspace = Some(workspace(&stack, Status::True, "Succeeded"));
        let found = decide(&Observed { workspace, source: None, ..observed(stack) }, now());
        assert_eq!(brief(&found), expected, "{name}");
    }
}

#[test]
fn a_deleted_stack_that_never_ran_is_not_destroyed() {
    let mut stack = deleted(true, None);
    stack.status = Some(StackStatus::default());
    assert_eq!(decide(&Observed { source: None, ..observed(stack) }, now()), Action::RemoveFinalizer);
}

#[test]
fn a_deleted_suspended_stack_is_not_destroyed() {
    let mut stack = deleted(true, Some(last("up", "succeeded")));
    stack.spec.suspend = Some(true);
    let workspace = Some(workspace(&stack, Status::True, "Succeeded"));
    let observed = Observed { workspace, source: None, ..observed(stack) };
    assert_eq!(decide(&observed, now()), Action::Settled(Settled::DeletionSuspended));
}

#[test]
fn a_successful_stack_without_changes_needs_no_action() {
    let mut done = stack();
    done.status = Some(StackStatus { last_update: Some(last("up", "succeeded")), ..StackStatus::default() });
    assert_eq!(decide(&observed(done), now()), Action::Settled(Settled::Done(None)));
}

#[test]
fn the_interval_until_the_next_run_includes_the_configured_jitter() {
    let mut done = stack();
    done.spec.interval = Some("1h".to_owned());
    let last = LastUpdate { name: Some("app-1".to_owned()), ..last("up", "succeeded") };
    done.status = Some(StackStatus { last_update: Some(last), ..StackStatus::default() });
    // Columns: the jitter in percent, and the bounds of the wait in seconds. The name of this Update results in a
    // positive jitter.
    for (interval_jitter, bounds) in [(0, 3600..=3600), (5, 3601..=3780), (50, 3781..=5400)] {
        let action = decide(&Observed { interval_jitter, ..observed(done.clone()) }, now());
        let Action::Settled(Settled::Done(Some(wait))) = action else { panic!("{interval_jitter}: {action:?}") };
        assert!(bounds.contains(&wait.as_secs()), "{interval_jitter}: {wait:?}");
    }
}

#[test]
fn the_finalizer_of_a_destroyed_stack_is_removed_without_its_source() {
    let destroyed = deleted(true, Some(last("destroy", "succeeded")));
    let gone = Some(Err(Unavailable::NotYet("the source does not exist".to_owned())));
    assert_eq!(decide(&Observed { source: gone, ..observed(destroyed.clone()) }, now()), Action::RemoveFinalizer);
    assert_eq!(decide(&Observed { source: None, ..observed(destroyed) }, now()), Action::RemoveFinalizer);
}

#[test]
fn handling_pending_creates_depends_on_last_run_and_user_decision() {
    let started = |resolution: Option<&str>| {
        let mut cut = stack();
        let last = LastUpdate {
            name: Some("app-1".to_owned()),
            reason: Some("Aborted".to_owned()),
            pending_creates: Some(PendingCreates::Stop),
            interruptions: 1,
            ..last("up", "failed")
        };
        cut.status = Some(StackStatus { last_update: Some(last), ..StackStatus::default() });
        if let Some(resolution) = resolution {
            cut.annotations_mut().insert(names::ANNOTATION_RESOLVE.to_owned(), resolution.to_owned());
        }
        let observed = Observed { workspace: Some(workspace(&cut, Status::True, "Succeeded")), ..observed(cut) };
        match decide(&observed, now()) {
            Action::Start(current) => Some((current.pending_creates, current.message)),
            other => {
                assert_eq!(other, Action::Settled(Settled::Abandoned));
                None
            }
        }
    };
    let again = "Retry after interruption: 0s".to_owned();
    assert_eq!(started(None), Some((Some(PendingCreates::Stop), again.clone())));
    assert_eq!(
        started(Some("app-0=clear")),
        Some((Some(PendingCreates::Stop), again)),
        "the annotation names another run"
    );
    let message = "Retry requested by user".to_owned();
    assert_eq!(started(Some("app-1=retry")), Some((Some(PendingCreates::Keep), message.clone())));
    assert_eq!(started(Some("app-1=clear")), Some((Some(PendingCreates::Clear), message)));
    assert_eq!(started(Some("app-1=abandon")), None);
}

#[test]
fn a_stack_with_an_invalid_duration_is_rejected() {
    let mut wrong = stack();
    wrong.spec.timeout = Some("99999999999999999999h".to_owned());
    let Action::Invalid(message) = decide(&observed(wrong), now()) else {
        panic!("expected Action::Invalid for an invalid timeout")
    };
    assert!(message.contains("spec.timeout"), "{message}");
}

#[test]
fn two_simultaneous_leaders_record_the_same_run() {
    let ready = || Observed { workspace: Some(workspace(&stack(), Status::True, "Succeeded")), ..observed(stack()) };
    let Action::Start(first) = decide(&ready(), now()) else { panic!("expected Action::Start") };
    let later = now().checked_add(SignedDuration::from_secs(3)).expect("timestamp in range");
    let Action::Start(second) = decide(&ready(), later) else { panic!("expected Action::Start") };
    assert_eq!(first, second, "the same status leads to the same Update");
    let mut recorded = stack();
    recorded.status.as_mut().expect("value is set").current_update = Some(Box::new(first.clone()));
    let made = Observed { stack: recorded, ..ready() };
    assert_eq!(decide(&made, later), Action::CreateUpdate(first), "the Update of the recorded run is created");
}

#[test]
fn force_and_reset_require_the_value_of_the_reconcile_request() {
    use crate::controller::stack::annotations::force_and_reset_requests;
    let handled = |requested: Option<&str>, value: &str| {
        let mut stack = stack();
        let annotations = stack.annotations_mut();
        annotations.extend(requested.map(|value| (names::ANNOTATION_REQUESTED_AT.to_owned(), value.to_owned())));
        annotations.insert(names::ANNOTATION_FORCE_AT.to_owned(), value.to_owned());
        annotations.insert(names::ANNOTATION_RESET_AT.to_owned(), value.to_owned());
        force_and_reset_requests(&stack)
    };
    assert_eq!(handled(Some("t"), "t"), (Some("t".to_owned()), Some("t".to_owned())));
    assert_eq!(handled(Some("t"), "u"), (None, None));
    assert_eq!(handled(None, "t"), (None, None));
}

#[test]
fn a_run_records_the_requests_and_the_origin() {
    let mut stack = stack();
    for key in [names::ANNOTATION_REQUESTED_AT, names::ANNOTATION_FORCE_AT, names::ANNOTATION_RESET_AT] {
        stack.annotations_mut().insert(key.to_owned(), "t".to_owned());
    }
    let metadata = Some(SourceMetadata { head: Some("o".to_owned()), ..SourceMetadata::default() });
    let origin = Resolved { origin_revision: Some("main@sha1:o".to_owned()), metadata, ..resolved() };
    let workspace = Some(workspace(&stack, Status::True, "Succeeded"));
    let observed = Observed { source: Some(Ok(origin)), workspace, ..observed(stack) };
    let Action::Start(current) = decide(&observed, now()) else { panic!("expected Action::Start") };
    let requests =
        [current.inputs.requested_at, current.inputs.force_at, current.inputs.reset_at, current.origin_revision];
    assert_eq!(requests.map(Option::unwrap), ["t", "t", "t", "main@sha1:o"]);
    assert_eq!(current.source.and_then(|source| source.head).as_deref(), Some("o"));
}

#[test]
fn a_duplicate_starts_no_run_except_a_destroy_of_its_own_resources() {
    let first = DuplicateStack { namespace: "apps".to_owned(), name: "first".to_owned(), project: "web".to_owned() };
    let elsewhere = DuplicateStack { namespace: "others".to_owned(), ..first.clone() };
    let second = |stack| Observed { duplicate: Some(first.clone()), ..observed(stack) };
    let Action::Conflict(message) = decide(&second(stack()), now()) else { panic!("expected Action::Conflict") };
    assert!(message.starts_with("Pulumi stack dev of project web is already managed by Stack apps/first"), "{message}");
    assert!(message.contains("the deletion of Stack apps/first does not destroy the resources"), "{message}");
    let beside = Observed { duplicate: Some(elsewhere.clone()), ..observed(stack()) };
    let Action::Conflict(message) = decide(&beside, now()) else { panic!("expected Action::Conflict") };
    assert!(message.contains("The deletion of Stack others/first destroys the resources"), "{message}");
    let mut suspended = stack();
    suspended.spec.suspend = Some(true);
    assert_eq!(decide(&second(suspended), now()), Action::Settled(Settled::Suspended));
    let mut running = open(Status::True, "Progressing");
    running.duplicate = Some(first.clone());
    assert!(matches!(decide(&running, now()), Action::AwaitUpdate(_)), "an open run is awaited");

    let end_of = |applied: Option<&str>, destroys: bool| {
        let mut stack = deleted(destroys, Some(last("up", "succeeded")));
        let applied = applied.map(|name| PulumiStack { name: name.to_owned(), ..PulumiStack::default() });
        stack.status.as_mut().expect("value is set").applied_stack = applied;
        let workspace = Some(workspace(&stack, Status::True, "Succeeded"));
        decide(&Observed { workspace, duplicate: Some(elsewhere.clone()), ..observed(stack) }, now())
    };
    assert_eq!(end_of(None, true), Action::RemoveFinalizer, "the duplicate has applied nothing");
    assert_eq!(end_of(Some("dev"), false), Action::RemoveFinalizer, "destroyOnFinalize is not set");
    let end = end_of(Some("dev"), true);
    assert!(matches!(end, Action::Start(_)), "Stacks in other namespaces do not block the destroy: {end:?}");
    let Action::Conflict(message) = end_of(Some("prod"), true) else {
        panic!("expected Action::Conflict for another Pulumi stack")
    };
    assert!(message.contains("To delete them, restore spec.stack and spec.backend"), "{message}");
    assert_eq!(end_of(Some("prod"), false), Action::RemoveFinalizer, "destroyOnFinalize is not set");
}

#[test]
fn a_stack_in_the_pulumi_stack_of_another_stack_runs_again_after_a_change() {
    let first = DuplicateStack { namespace: "apps".to_owned(), name: "first".to_owned(), project: "web".to_owned() };
    let mut stack = stack();
    let message = "Stack first manages stack dev; no resource was changed".to_owned();
    let refused =
        LastUpdate { reason: Some("DuplicateStack".to_owned()), message: Some(message), ..last("up", "failed") };
    stack.status.as_mut().expect("value is set").last_update = Some(refused);
    let workspace = Some(workspace(&stack, Status::True, "Succeeded"));
    let waiting = Observed { owner: Some(first), workspace, ..observed(stack) };
    let Action::Conflict(message) = decide(&waiting, now()) else { panic!("expected Action::Conflict") };
    assert!(message.starts_with("Stack first manages stack dev; no resource was changed. To hand the"), "{message}");
    let released = Observed { owner: None, ..waiting.clone() };
    let again = decide(&released, now());
    assert!(matches!(again, Action::Settled(Settled::RetryAfter(_))), "a false report: {again:?}");
    let later = now() + SignedDuration::from_hours(1);
    assert!(matches!(decide(&released, later), Action::Start(_)), "the other Stack was deleted");
    let mut requested = waiting.clone();
    let request = (names::ANNOTATION_REQUESTED_AT.to_owned(), "t".to_owned());
    requested.stack.metadata.annotations = Some([request].into());
    assert!(matches!(decide(&requested, now()), Action::Start(_)), "a user requests a run");
    let mut changed = waiting;
    let inputs = &mut changed.stack.status.as_mut().expect("value is set").last_update.as_mut().expect("is set").inputs;
    inputs.mounted_inputs = [("Secret/backend".to_owned(), "before".to_owned())].into();
    let status = changed.workspace.as_mut().and_then(|workspace| workspace.status.as_mut()).expect("value is set");
    status.mounted_inputs = [("Secret/backend".to_owned(), "after".to_owned())].into();
    assert!(matches!(decide(&changed, now()), Action::Start(_)), "the Secret with the backend has changed");
}

/// Returns a deleted Stack whose Pulumi stack has this claim.
fn deleted_beside(claim: OtherClaim, destroy: bool) -> Observed {
    let stack = deleted(destroy, Some(last("up", "succeeded")));
    let workspace = Some(workspace(&stack, Status::True, "Succeeded"));
    let deletion = Some(Deletion { claim, ..Deletion::default() });
    Observed { workspace, deletion, ..observed(stack) }
}

#[test]
fn a_destroy_waits_while_another_stack_claims_the_pulumi_stack() {
    let renamed = || OtherClaim::By("renamed".to_owned());
    assert_eq!(
        brief(&decide(&deleted_beside(OtherClaim::None, true), now())),
        "Start destroy: Stack marked for deletion"
    );
    let unknown = decide(&deleted_beside(OtherClaim::Unknown, true), now());
    assert!(matches!(unknown, Action::DelayReport(_)), "the cache can lack a Stack: {unknown:?}");
    let handed_over = decide(&deleted_beside(renamed(), false), now());
    assert_eq!(handed_over, Action::RemoveFinalizer, "the user hands the resources over");
    let Action::Conflict(message) = decide(&deleted_beside(renamed(), true), now()) else {
        panic!("expected Action::Conflict")
    };
    for part in [
        "the destroy of stack dev in the default backend of the workspace waits for a decision",
        "Stack apps/renamed also claims this Pulumi stack",
        r#"kubectl patch --namespace apps stack app --type merge --patch '{"spec":{"destroyOnFinalize":false}}'"#,
        "To destroy the resources, delete Stack renamed",
    ] {
        assert!(message.contains(part), "{message}");
    }
    let unconfirmed = Observed { is_destroy_limit_exceeded: true, ..deleted_beside(renamed(), true) };
    assert!(matches!(decide(&unconfirmed, now()), Action::AwaitConfirmation(_)), "the confirmation remains recorded");
}

/// Records a destroy and, if `has_update`, creates its Update.
fn with_destroy(mut observed: Observed, is_bound: bool, has_update: bool) -> Observed {
    let due = DueRun { operation: UpdateKind::Destroy, ..up() };
    let current = current_update(&observed, &resolved(), &due);
    let mut update = build_update::update(&observed.stack, &current).expect("valid");
    let run = is_bound.then(crate::api::auto::RunBinding::default);
    update.status = Some(UpdateStatus { run, ..UpdateStatus::default() });
    observed.stack.status.as_mut().expect("value is set").current_update = Some(Box::new(current));
    Observed { update: has_update.then_some(update), ..observed }
}

#[test]
fn a_stack_from_a_backup_does_not_continue_the_destroy_of_its_status() {
    let restored = |has_update: bool| {
        let mut observed = with_destroy(deleted_beside(OtherClaim::None, true), false, has_update);
        observed.stack.metadata.deletion_timestamp = None;
        decide(&observed, now())
    };
    assert_eq!((restored(false).name(), restored(true).name()), ("ForgetUpdate", "RevokeUpdate"));
}

#[test]
fn a_destroy_that_has_not_started_is_revoked_when_another_stack_claims_the_pulumi_stack() {
    let with_run = |claim: OtherClaim, is_bound: bool, has_update: bool| {
        let observed = with_destroy(deleted_beside(claim, true), is_bound, has_update);
        decide(&observed, now())
    };
    let by = || OtherClaim::By("renamed".to_owned());
    let rows = [
        ("recorded", with_run(OtherClaim::None, false, false), "CreateUpdate"),
        ("recorded, and claimed", with_run(by(), false, false), "ForgetUpdate"),
        ("recorded, and the claim is unknown", with_run(OtherClaim::Unknown, false, false), "ForgetUpdate"),
        ("created, and claimed", with_run(by(), false, true), "RevokeUpdate"),
        ("started before the claim", with_run(by(), true, true), "AwaitUpdate"),
    ];
    for (name, action, expected) in rows {
        assert_eq!(action.name(), expected, "{name}: {action:?}");
    }
}

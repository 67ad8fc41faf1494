//! Table tests for the next action of a deleted Stack.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::json;

use super::*;
use crate::api::auto::{RunProject, Update, UpdateSpec, WorkspaceStatus};
use crate::api::conditions::{ConditionUpdate, Status};
use crate::api::pulumi::RunInputs;
use crate::api::pulumi::{LastUpdate, PulumiStack, StackSpec, StackStatus};
use crate::controller::stack::build_workspace;
use crate::controller::stack::observed::Deletion;
use crate::source::Unavailable;

const DELETED_AT: i64 = 1000;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).expect("timestamp in range")
}

/// Returns a time after the grace period for dependents.
fn now() -> Timestamp {
    at(DELETED_AT + 60)
}

/// Returns a deleted Stack whose status contains its project name.
fn stack() -> Stack {
    let spec = StackSpec { stack: "dev".to_owned(), destroy_on_finalize: Some(true), ..StackSpec::default() };
    let mut stack = Stack::new("app", spec);
    stack.metadata.namespace = Some("apps".to_owned());
    stack.metadata.uid = Some("uid-1".to_owned());
    stack.metadata.generation = Some(2);
    stack.metadata.finalizers = Some(vec![names::STACK_FINALIZER.to_owned()]);
    stack.metadata.deletion_timestamp = Some(Time(at(DELETED_AT)));
    let last = LastUpdate { kind: Some("up".to_owned()), state: Some("succeeded".to_owned()), ..LastUpdate::default() };
    let project = RunProject { name: "hello".to_owned(), runtime: "nodejs".to_owned() };
    stack.status = Some(StackStatus { last_update: Some(last), project_info: Some(project), ..StackStatus::default() });
    stack
}

fn resolved(bytes: &[u8]) -> Resolved {
    Resolved {
        origin: Origin::Url("http://source/a.tar.gz".to_owned()),
        revision: "main@sha1:a".to_owned(),
        origin_revision: None,
        metadata: None,
        content_id: None,
        digest: Digest::of(bytes),
        directory: Directory::root(),
    }
}

/// Returns the observed state of a Stack whose source does not exist.
fn observed(stack: Stack) -> Observed {
    let deletion = Deletion { without_source: without_source(&stack), ..Deletion::default() };
    Observed {
        source: Some(Err(Unavailable::NotYet("GitRepository apps/app does not exist".to_owned()))),
        deletion: Some(deletion),
        ..Observed::of(stack)
    }
}

/// Returns the Workspace of the Stack with this source and this `Ready` condition. If `placed` is true, the pod
/// contains the source.
fn workspace(stack: &Stack, source: &Resolved, status: Status, reason: &str, placed: bool) -> Workspace {
    let mut workspace = build_workspace::workspace(stack, &reference(source)).expect("valid");
    workspace.metadata.generation = Some(1);
    let mut conditions = Vec::new();
    conditions::set(&mut conditions, &ConditionUpdate { kind: "Ready", status, reason, message: "detail" }, 1, now());
    workspace.status = Some(WorkspaceStatus {
        observed_generation: Some(1),
        conditions,
        artifact: workspace.spec.artifact.clone().filter(|_| placed),
        ..WorkspaceStatus::default()
    });
    workspace
}

fn deletion(observed: &mut Observed) -> &mut Deletion {
    observed.deletion.as_mut().expect("deletion state")
}

/// Returns the name of the action and the revision of its artifact.
fn brief(action: &Action) -> String {
    match action {
        Action::Fetch(resolved) => format!("Fetch {}", resolved.revision),
        Action::ApplyWorkspace(expected, _) => {
            format!("ApplyWorkspace {}", expected.spec.artifact.as_ref().expect("artifact is set").revision)
        }
        Action::Start(current) => {
            format!("Start {} of {}", current.kind.as_str(), current.commit.clone().unwrap_or_default())
        }
        other => format!("{other:?}"),
    }
}

#[test]
fn a_destroy_uses_the_best_available_source() {
    type Change = fn(&mut Observed);
    let found: Change = |o| o.source = Some(Ok(resolved(b"source")));
    let rows: Vec<(&str, Vec<Change>, &str)> = vec![
        ("the source is deleted", vec![], "Fetch state-alone"),
        ("the generated project is installed", vec![|o| deletion(o).is_stored = true], "ApplyWorkspace state-alone"),
        ("the source has an artifact", vec![found], "Fetch main@sha1:a"),
        ("the artifact was fetched", vec![found, |o| o.in_store = true], "ApplyWorkspace main@sha1:a"),
        (
            "the artifact could not be fetched",
            vec![found, |o| deletion(o).is_stored = true],
            "ApplyWorkspace state-alone",
        ),
        (
            "the Workspace requests a stored artifact",
            vec![|o| deletion(o).requested = Some(Resolved { revision: "asked".to_owned(), ..resolved(b"asked") })],
            "ApplyWorkspace asked",
        ),
        (
            "the pod has an artifact",
            vec![|o| {
                o.source = None;
                o.workspace = Some(workspace(&o.stack, &resolved(b"placed"), Status::True, "Succeeded", true));
            }],
            "Start destroy of main@sha1:a",
        ),
        (
            "its dependencies cannot be installed",
            vec![found, |o| {
                o.in_store = true;
                let source = resolved(b"source");
                o.workspace = Some(workspace(&o.stack, &source, Status::False, "InstallationFailed", false));
            }],
            "Fetch state-alone",
        ),
        (
            "the agent rejects it",
            vec![found, |o| {
                o.in_store = true;
                let source = resolved(b"source");
                o.workspace = Some(workspace(&o.stack, &source, Status::False, "ArtifactRefused", false));
                deletion(o).is_stored = true;
            }],
            "ApplyWorkspace state-alone",
        ),
        (
            "the operator installed it",
            vec![|o| o.stack.status.as_mut().expect("value is set").attempts = None],
            "Fetch state-alone",
        ),
    ];
    for (name, changes, expected) in rows {
        let mut observed = observed(stack());
        changes.into_iter().for_each(|change| change(&mut observed));
        assert_eq!(brief(&decide(&observed, now())), expected, "{name}");
    }
}

#[test]
fn a_destroy_without_source_and_project_waits_and_suggests_a_fix() {
    let waits = |change: fn(&mut Stack)| {
        let mut stack = stack();
        change(&mut stack);
        match decide(&observed(stack), now()) {
            Action::WaitForSource(message, _) => message,
            other => brief(&other),
        }
    };
    let unknown = waits(|stack| stack.status.as_mut().expect("value is set").project_info = None);
    assert!(unknown.starts_with("destroy failed: GitRepository apps/app does not exist; "), "{unknown}");
    assert!(unknown.contains("set spec.stack to"), "{unknown}");
    let program = waits(|stack| stack.spec.run_program = Some(true));
    assert!(program.contains("unset spec.runProgram"), "{program}");
    let named = waits(|stack| {
        stack.status.as_mut().expect("value is set").project_info = None;
        stack.spec.stack = "org/web/dev".to_owned();
    });
    assert_eq!(named, "Fetch state-alone", "the stack name contains the project");
}

#[test]
fn the_generated_project_has_the_known_name_and_no_program() {
    let made = without_source(&stack()).expect("project is known");
    let Origin::Made(bytes) = &made.origin else { panic!("expected a generated source") };
    assert_eq!(Digest::of(bytes), made.digest);
    let directory = tempfile::TempDir::new().expect("a directory");
    let mut archive = bytes.as_ref();
    crate::artifact::unpack(&mut archive, directory.path(), &crate::artifact::Limits::default())
        .expect("valid archive");
    let project = project::Project::read(directory.path()).expect("valid project file");
    assert_eq!(
        (project.name.as_str(), project.runtime.as_str()),
        ("hello", "yaml"),
        "the runtime needs no installation"
    );
    let mut other = stack();
    other.metadata.uid = Some("uid-2".to_owned());
    let other = without_source(&other).expect("project is known");
    assert_ne!(other.digest, made.digest, "a failed fetch of another artifact has no effect");
}

#[test]
fn only_dependents_that_are_also_deleted_are_destroyed_first() {
    let dependent = |deleted: bool, finalizers: &[&str]| -> Stack {
        let mut stack = Stack::new("upper", StackSpec::default());
        stack.metadata.deletion_timestamp = deleted.then(|| Time(at(DELETED_AT)));
        stack.metadata.finalizers = Some(finalizers.iter().map(|f| (*f).to_owned()).collect());
        stack
    };
    let ours = [names::STACK_FINALIZER];
    let rows = [
        ("no dependents", vec![], now(), "Fetch state-alone"),
        ("deleted, too", vec![dependent(true, &ours)], now(), "waiting for dependent Stacks: upper"),
        ("the dependent is destroyed", vec![dependent(true, &["foregroundDeletion"])], now(), "Fetch state-alone"),
        ("the dependent Stack exists", vec![dependent(false, &ours)], now(), "Fetch state-alone"),
        (
            "the dependent Stack exists within the grace period",
            vec![dependent(false, &ours)],
            at(DELETED_AT + 1),
            "checking whether dependent Stacks",
        ),
        (
            "one of two dependents is being deleted",
            vec![dependent(false, &ours), dependent(true, &ours)],
            now(),
            "waiting for dependent Stacks: upper",
        ),
    ];
    for (name, dependents, now, expected) in rows {
        let mut observed = observed(stack());
        deletion(&mut observed).dependents = dependents.into_iter().map(Arc::new).collect();
        let found = match decide(&observed, now) {
            Action::WaitForDependents(message, wait) => {
                assert!(wait.is_positive(), "{name}");
                message
            }
            other => brief(&other),
        };
        assert!(found.starts_with(expected), "{name}: {found}");
        let mut kept = observed;
        kept.stack.spec.destroy_on_finalize = Some(false);
        assert_eq!(
            decide(&kept, now),
            Action::RemoveFinalizer,
            "{name}: nothing is destroyed, so the deletion does not wait"
        );
    }
}

#[test]
fn a_deleted_suspended_stack_waits_unless_it_keeps_its_resources() {
    let mut suspended = stack();
    suspended.spec.suspend = Some(true);
    assert_eq!(decide(&observed(suspended.clone()), now()), Action::Settled(Settled::DeletionSuspended));
    let unconfirmed = Observed { is_destroy_limit_exceeded: true, ..observed(suspended.clone()) };
    assert!(matches!(decide(&unconfirmed, now()), Action::AwaitConfirmation(_)));
    suspended.spec.destroy_on_finalize = Some(false);
    assert_eq!(decide(&observed(suspended), now()), Action::RemoveFinalizer, "a suspended Stack starts no run");
}

#[test]
fn a_failed_destroy_is_retried_indefinitely_and_keeps_the_finalizer() {
    for (failures, expected) in [(1, 10), (4, 270), (50, 86_400)] {
        let mut failed = stack();
        let last = LastUpdate {
            inputs: RunInputs { generation: 2, digest: Some(resolved(b"a").digest), ..RunInputs::default() },
            kind: Some("destroy".to_owned()),
            state: Some("failed".to_owned()),
            last_resync_time: Some(Time(now())),
            failures,
            ..LastUpdate::default()
        };
        let applied = PulumiStack { name: "dev".to_owned(), ..PulumiStack::default() };
        let status = failed.status.as_mut().expect("value is set");
        (status.last_update, status.applied_stack) = (Some(last), Some(applied));
        let wait = Action::Settled(Settled::RetryAfter(SignedDuration::from_secs(expected)));
        assert_eq!(decide(&observed(failed), now()), wait);
    }
}

#[test]
fn only_a_stack_that_may_have_resources_is_destroyed() {
    let has_to = |change: fn(&mut Stack)| {
        let mut stack = stack();
        let applied = PulumiStack { name: "dev".to_owned(), ..PulumiStack::default() };
        let status = stack.status.as_mut().expect("value is set");
        let last = status.last_update.as_mut().expect("value is set");
        (last.inputs.digest, status.applied_stack) = (Some(Digest::of(b"a")), Some(applied));
        change(&mut stack);
        has_to_destroy(&stack)
    };
    let left = |preview: bool, destroy: bool| {
        let mut stack = stack();
        let applied = PulumiStack { name: "dev".to_owned(), ..PulumiStack::default() };
        stack.status.as_mut().expect("value is set").applied_stack = Some(applied);
        (stack.spec.preview, stack.spec.destroy_on_finalize) = (Some(preview), Some(destroy));
        kept(&stack).map(|(by, left)| (by, left.name))
    };
    assert_eq!(left(true, true), Some((Kept::ByPreview, "dev".to_owned())));
    assert_eq!(left(false, true), None);
    for preview in [false, true] {
        assert_eq!(left(preview, false), Some((Kept::ByUser, "dev".to_owned())));
    }
    fn status(stack: &mut Stack) -> &mut StackStatus {
        stack.status.as_mut().expect("value is set")
    }
    assert!(has_to(|_| {}));
    assert!(!has_to(|stack| status(stack).applied_stack = None), "no run has applied the stack");
    assert!(!has_to(|stack| stack.spec.preview = Some(true)), "another Stack may manage the Pulumi stack");
    fn destroyed(stack: &mut Stack) {
        let last = status(stack).last_update.as_mut().expect("value is set");
        last.kind = Some("destroy".to_owned());
        status(stack).applied_stack = None;
    }
    assert!(!has_to(destroyed));
    fn edited(stack: &mut Stack) {
        let last = status(stack).last_update.as_mut().expect("value is set");
        (last.kind, last.inputs.generation) = (Some("destroy".to_owned()), 1);
        status(stack).applied_stack = None;
        (stack.spec.stack, stack.metadata.generation) = ("of-another".to_owned(), Some(7));
    }
    assert!(!has_to(edited), "the destroyed Pulumi stack is not the one in the spec");
}

#[test]
fn a_foreign_workspace_is_neither_changed_nor_deleted() {
    let mut observed = observed(stack());
    deletion(&mut observed).is_stored = true;
    let theirs = json!({"metadata": {"name": "app", "namespace": "apps"}, "spec": {}});
    observed.workspace = Some(serde_json::from_value(theirs).expect("valid Workspace"));
    let Action::Invalid(message) = decide(&observed, now()) else { panic!("expected Action::Invalid") };
    assert!(message.contains("Workspace app already exists"), "{message}");
}

/// Returns a Stack after a destroy that failed for this reason. If `reason` is `None`, the destroy succeeded.
fn after_destroy(reason: Option<&str>) -> Stack {
    let mut stack = stack();
    let status = stack.status.as_mut().expect("value is set");
    status.applied_stack = Some(PulumiStack { name: "dev".to_owned(), ..PulumiStack::default() });
    status.last_update = Some(LastUpdate {
        inputs: RunInputs { generation: 2, digest: Some(resolved(b"a").digest), ..RunInputs::default() },
        name: Some("app-1".to_owned()),
        kind: Some("destroy".to_owned()),
        state: Some(if reason.is_some() { "failed" } else { "succeeded" }.to_owned()),
        reason: reason.map(str::to_owned),
        ..LastUpdate::default()
    });
    stack
}

#[test]
fn a_stack_is_kept_until_a_missing_pulumi_stack_is_resolved() {
    let not_found = |resolution: Option<&str>| {
        let mut stack = after_destroy(Some("StackNotFound"));
        if let Some(resolution) = resolution {
            stack.annotations_mut().insert(names::ANNOTATION_RESOLVE.to_owned(), resolution.to_owned());
        }
        let workspace = workspace(&stack, &resolved(b"a"), Status::True, "Succeeded", true);
        let observed = Observed { workspace: Some(workspace), source: None, ..observed(stack) };
        brief(&decide(&observed, now()))
    };
    let kept = "Settled(DecisionRequired(\"StackNotFound\"))";
    assert_eq!(not_found(None), kept);
    assert_eq!(not_found(Some("app-1=retry")), "Start destroy of main@sha1:a");
    assert_eq!(not_found(Some("app-1=abandon")), "RemoveFinalizer");
    assert_eq!(not_found(Some("app-0=abandon")), kept, "the annotation names another run");
    assert_eq!(not_found(Some("app-1=clear")), kept, "there is no state to clear");
    let gone = observed(after_destroy(None));
    assert_eq!(decide(&gone, now()), Action::RemoveFinalizer);
}

#[test]
fn a_failed_preview_of_a_destroy_does_not_start_the_next_preview_immediately() {
    type Change = fn(&mut Stack);
    fn last(stack: &mut Stack) -> &mut LastUpdate {
        stack.status.as_mut().and_then(|status| status.last_update.as_mut()).expect("value is set")
    }
    let abandon: Change = |stack| {
        stack.annotations_mut().insert(names::ANNOTATION_RESOLVE.to_owned(), "app-1=abandon".to_owned());
    };
    let start = "Start preview of main@sha1:a";
    let rows: [(&str, Option<&str>, Change, &str); 8] = [
        ("failed", Some("UpdateFailed"), |_| {}, "Settled(RetryAfter(10s))"),
        ("retried", Some("UpdateFailed"), |stack| last(stack).last_resync_time = Some(Time(at(0))), start),
        ("canceled", Some("Canceled"), |stack| last(stack).canceled_by_user = Some(true), "Settled(Canceled)"),
        ("not found", Some("StackNotFound"), |_| {}, "Settled(DecisionRequired(\"StackNotFound\"))"),
        ("abandoned", Some("StackNotFound"), abandon, "RemoveFinalizer"),
        ("of an up", Some("UpdateFailed"), |stack| last(stack).inputs.generation = 1, start),
        ("its plan is no longer available", None, |_| {}, start),
        ("the approval was disabled", None, |stack| stack.spec.approval = None, "Start destroy of main@sha1:a"),
    ];
    for (name, reason, change, expected) in rows {
        let mut stack = after_destroy(reason);
        let approval = json!({"mode": "Always", "destroy": true});
        stack.spec.approval = serde_json::from_value(approval).expect("valid settings");
        let preview = last(&mut stack);
        (preview.kind, preview.last_resync_time) = (Some("preview".to_owned()), Some(Time(now())));
        change(&mut stack);
        let workspace = workspace(&stack, &resolved(b"a"), Status::True, "Succeeded", true);
        let observed = Observed { workspace: Some(workspace), source: None, ..observed(stack) };
        assert_eq!(brief(&decide(&observed, now())), expected, "{name}");
    }
}

#[test]
fn a_user_can_abandon_a_destroy_without_a_source() {
    let mut stack = after_destroy(Some("StackNotFound"));
    stack.spec.run_program = Some(true);
    assert!(matches!(decide(&observed(stack.clone()), now()), Action::WaitForSource(..)));
    stack.annotations_mut().insert(names::ANNOTATION_RESOLVE.to_owned(), "app-1=abandon".to_owned());
    assert_eq!(decide(&observed(stack), now()), Action::RemoveFinalizer);
}

#[test]
fn an_unstarted_destroy_is_revoked_if_only_another_source_is_available() {
    let bound_to = |bytes: &[u8]| CurrentUpdate {
        inputs: RunInputs { digest: Some(resolved(bytes).digest), ..RunInputs::default() },
        kind: UpdateKind::Destroy,
        ..CurrentUpdate::default()
    };
    let placed = |o: &mut Observed| {
        o.workspace = Some(workspace(&o.stack, &resolved(b"a"), Status::True, "Succeeded", true));
    };
    let mut in_pod = observed(stack());
    placed(&mut in_pod);
    assert!(!has_another_source(&in_pod, &bound_to(b"a")));
    let with = |source| Observed { source: Some(source), ..observed(stack()) };
    assert!(!has_another_source(&with(Ok(resolved(b"a"))), &bound_to(b"a")), "the source can be fetched again");
    assert!(has_another_source(&with(Ok(resolved(b"b"))), &bound_to(b"a")), "the source has a newer revision");
    assert!(has_another_source(&observed(stack()), &bound_to(b"a")), "without a source, only the state remains");
    let resolving = with(Err(Unavailable::Resolving("querying the repository".to_owned())));
    assert!(!has_another_source(&resolving, &bound_to(b"a")));
    let mut nothing = observed(stack());
    deletion(&mut nothing).without_source = None;
    assert!(!has_another_source(&nothing, &bound_to(b"a")), "without a fetched source, the destroy waits");
}

#[test]
fn a_slow_deletion_of_the_workspace_or_the_updates_is_reported() {
    let workspace = |ready: Status, finalizers: &[&str]| {
        let stack = stack();
        let mut workspace = workspace(&stack, &resolved(b"placed"), ready, "Deleting", true);
        workspace.metadata.finalizers = Some(finalizers.iter().map(|name| (*name).to_owned()).collect());
        Observed { workspace: Some(workspace), ..observed(stack) }
    };
    let updates = |count: usize, finalizers: &[&str]| {
        let update = |number: usize| {
            let mut update = Update::new(&format!("app-{number}"), UpdateSpec::default());
            update.metadata.finalizers = Some(finalizers.iter().map(|name| (*name).to_owned()).collect());
            update.metadata.deletion_timestamp = Some(Time(at(DELETED_AT)));
            Arc::new(update)
        };
        Observed { updates: (1..=count).map(update).collect(), ..observed(stack()) }
    };
    let (ours, foreign) = (names::WORKSPACE_FINALIZER, "example.com/hold");
    let of_another = |mut observed: Observed| {
        let workspace = observed.workspace.as_mut().expect("value is set");
        (workspace.metadata.annotations, workspace.metadata.labels) = (None, None);
        workspace.metadata.owner_references = None;
        observed
    };
    let rows = [
        ("nothing remains", observed(stack()), None),
        ("the condition contains the cause", workspace(Status::False, &[ours]), Some("Workspace app: detail")),
        (
            "the Workspace controller has finished",
            workspace(Status::False, &[foreign]),
            Some("Workspace app (finalizers: example.com/hold)"),
        ),
        (
            "the condition is outdated",
            workspace(Status::True, &[ours]),
            Some("Workspace app (finalizers: finalizer.workspace.auto.pulumi.com)"),
        ),
        ("the Workspace of another owner", of_another(workspace(Status::False, &[ours])), None),
        ("an Update", updates(1, &[foreign]), Some("Updates: app-1 (finalizers: example.com/hold)")),
        ("many Updates", updates(5, &[]), Some("Updates: app-1; app-2; app-3 and 2 more")),
    ];
    for (name, mut observed, expected) in rows {
        let deleted = Some(Time(at(DELETED_AT)));
        if let Some(workspace) = &mut observed.workspace {
            workspace.metadata.deletion_timestamp.clone_from(&deleted);
        }
        assert_eq!(delayed_by(&observed, at(DELETED_AT + 9)), None, "{name}: most deletions take a few seconds");
        let expected = expected.map(|rest| format!("waiting for the deletion of {rest}"));
        assert_eq!(delayed_by(&observed, at(DELETED_AT + 10)), expected, "{name}");
    }
}

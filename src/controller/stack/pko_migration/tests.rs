//! Tests with Stacks that version 2.9 of the Pulumi Kubernetes Operator created.

use jiff::Timestamp;
use kube::ResourceExt;
use serde_json::{Value, json};

use super::*;
use crate::api::auto::Update;
use crate::api::conditions::update_reason;
use crate::api::names;
use crate::artifact::Digest;
use crate::controller::stack::action::{Action, Settled};
use crate::controller::stack::decide::decide;
use crate::controller::stack::observed::Deletion;
use crate::controller::stack::observed::Observed;
use crate::controller::stack::status::State;
use crate::controller::stack::{build_workspace, deletion, status};
use crate::source::{Origin, Unavailable};

/// Returns the objects in a file in `tests/operator`.
fn list(text: &str) -> Vec<Value> {
    let document: Value = serde_saphyr::from_str(text).expect("valid YAML");
    document["items"].as_array().cloned().unwrap_or_else(|| vec![document])
}

fn left(name: &str) -> Stack {
    let all = list(include_str!("../../../../tests/operator/stacks.yaml"));
    let found = all.into_iter().find(|stack| stack["metadata"]["name"] == name).expect("object in the file");
    serde_json::from_value(found).expect("valid Stack")
}

fn workspace_of(name: &str) -> Workspace {
    let all = list(include_str!("../../../../tests/operator/workspaces.yaml"));
    let found = all.into_iter().find(|workspace| workspace["metadata"]["name"] == name).expect("object in the file");
    serde_json::from_value(found).expect("valid Workspace")
}

/// Returns a Stack that a user deleted while the operator ran an Update, and this Update.
fn caught_in_a_run() -> (Stack, Update) {
    let one = |text: &str| list(text).remove(0);
    let stack = one(include_str!("../../../../tests/operator/stack-deleted-during-update.yaml"));
    let update = one(include_str!("../../../../tests/operator/update-running.yaml"));
    (serde_json::from_value(stack).expect("valid Stack"), serde_json::from_value(update).expect("valid Update"))
}

const COMMIT: &str = "5f18866e70838870f34ab0479bc7512ad5bdbb52";

fn source(revision: &str) -> Resolved {
    Resolved {
        origin: Origin::Url("http://source/a.tar.gz".to_owned()),
        revision: revision.to_owned(),
        origin_revision: None,
        metadata: None,
        content_id: None,
        digest: crate::artifact::Digest::of(b"source"),
        directory: crate::artifact::Directory::root(),
    }
}

fn observed(stack: Stack, revision: &str, workspace: Option<Workspace>) -> Observed {
    let deletion = stack.metadata.deletion_timestamp.as_ref().map(|_| Deletion::default());
    Observed { source: Some(Ok(source(revision))), in_store: true, workspace, deletion, ..Observed::of(stack) }
}

/// Returns the Stack after the controller has taken it over and has renamed the field managers of the Pulumi Kubernetes
/// Operator.
fn taken_over(mut stack: Stack) -> Stack {
    stack.status = Some(adopted(&stack));
    stack.metadata.managed_fields = field_managers::managed_fields(&stack).or(stack.metadata.managed_fields);
    stack
}

fn now() -> Timestamp {
    "2026-11-21T09:02:00Z".parse().expect("valid time")
}

/// Returns the names of the next actions until no action is due or a run starts. Simulates the results of these
/// actions.
fn steps(mut observed: Observed, now: Timestamp) -> Vec<String> {
    let mut names = Vec::new();
    for _ in 0..10 {
        let action = decide(&observed, now);
        names.push(action.name().to_owned());
        match action {
            Action::TakeOver => observed.stack = taken_over(observed.stack),
            Action::AdoptBaseline(status) => observed.stack.status = Some(*status),
            Action::ReplaceWorkspace(expected) => observed.workspace = Some(*expected),
            Action::Settled(settled) => {
                names.push(format!("{settled:?}"));
                return names;
            }
            _ => return names,
        }
    }
    names
}

#[test]
fn a_migrated_stack_starts_no_run_that_pko_would_not_start() {
    let main = format!("main@sha1:{COMMIT}");
    let taken = ["TakeOver", "AdoptBaseline", "ReplaceWorkspace", "Settled"];
    let rows = [
        ("from-flux", main.as_str(), "Done(Some("),
        ("from-program", "1", "Done(None)"),
        ("failing", main.as_str(), "FailedPermanently"),
    ];
    for (name, revision, end) in rows {
        let found = steps(observed(left(name), revision, Some(workspace_of(name))), now());
        assert_eq!(found[..4], taken, "{name}: {found:?}");
        assert!(found[4].starts_with(end), "{name}: {found:?}");
    }
}

#[test]
fn a_migrated_stack_starts_each_run_that_pko_would_start() {
    let other = "main@sha1:0000000000000000000000000000000000000000";
    let first = |name: &str, revision: &str, at: &str| {
        let later = at.parse().expect("valid time");
        steps(observed(left(name), revision, Some(workspace_of(name))), later)
    };
    let soon = "2026-11-21T09:02:00Z";
    assert_eq!(first("from-flux", other, soon), ["TakeOver", "ApplyWorkspace"], "a new commit");
    assert_eq!(first("failing", other, soon), ["TakeOver", "ApplyWorkspace"], "a new commit after the last retry");
    assert_eq!(first("from-program", "2", soon), ["TakeOver", "ApplyWorkspace"], "another generation of the Program");
    let main = format!("main@sha1:{COMMIT}");
    let later = first("from-flux", &main, "2026-11-21T10:00:00Z");
    assert_eq!(later, ["TakeOver", "AdoptBaseline", "ApplyWorkspace"], "the resync is due");
}

#[test]
fn a_flux_request_starts_a_run_only_if_made_after_the_migration() {
    let main = format!("main@sha1:{COMMIT}");
    let requested = |stack: &mut Stack, value: &str| {
        stack.annotations_mut().insert(names::ANNOTATION_REQUESTED_AT.to_owned(), value.to_owned());
    };
    let mut stack = left("from-program");
    requested(&mut stack, "long ago");
    let end = steps(observed(stack.clone(), "1", Some(workspace_of("from-program"))), now());
    assert_eq!(end.last().map(String::as_str), Some("Done(None)"), "{end:?}");
    let mut taken = taken_over(stack);
    requested(&mut taken, "now");
    let end = steps(observed(taken, "1", Some(workspace_of("from-program"))), now());
    assert_eq!(end.last().map(String::as_str), Some("ApplyWorkspace"), "{end:?}");
    let mut flux = left("from-flux");
    flux.annotations_mut().insert(names::ANNOTATION_RECONCILIATION_REQUEST.to_owned(), "x".to_owned());
    let end = steps(observed(flux, &main, Some(workspace_of("from-flux"))), now());
    assert_eq!(
        end.last().map(String::as_str),
        Some("ApplyWorkspace"),
        "the operator would have started a run: {end:?}"
    );
}

#[test]
fn a_revision_in_each_format_of_pko_identifies_the_same_artifact() {
    let digest = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    let hash = digest.strip_prefix("sha256:").expect("SHA-256 digest");
    let main = format!("main@sha1:{COMMIT}");
    let latest = format!("latest@{digest}");
    let rows = [
        (main.as_str(), main.as_str(), true),
        (COMMIT, main.as_str(), true),
        (main.as_str(), COMMIT, true),
        (&format!("main/{COMMIT}"), main.as_str(), true),
        (&format!("sha1:{COMMIT}"), main.as_str(), true),
        (digest, latest.as_str(), true),
        (hash, latest.as_str(), true),
        (digest, "any revision format", true),
        ("1", "1", true),
        ("1", "2", false),
        ("", "", true),
        ("", main.as_str(), false),
        ("main", "main", true),
        ("main@sha1:0000000000000000000000000000000000000000", main.as_str(), false),
        ("0000000000000000000000000000000000000000", main.as_str(), false),
        ("feed", "main@sha1:feed", false),
    ];
    for (commit, revision, expected) in rows {
        let last = LastUpdate { last_attempted_commit: Some(commit.to_owned()), ..LastUpdate::default() };
        assert_eq!(
            is_same_artifact(&last, &candidate(revision, digest.parse().ok())),
            expected,
            "{commit} is {revision}"
        );
        let ours = LastUpdate { inputs: RunInputs { digest: digest.parse().ok(), ..last.inputs.clone() }, ..last };
        // For a Git repository that the controller polls, the status contains only the commit hash.
        let is_same = commit == revision || revision.strip_prefix("main@sha1:") == Some(COMMIT) && commit == COMMIT;
        let is_same = is_same || (commit == hash && revision == latest);
        assert_eq!(
            is_same_artifact(&ours, &candidate(revision, digest.parse().ok())),
            is_same,
            "record of this controller: {commit} is {revision}"
        );
        let other = candidate(revision, Some(Digest::of(b"other")));
        assert!(!is_same_artifact(&ours, &other), "another digest: {commit} is {revision}");
    }
}

#[test]
fn the_pko_workspace_is_replaced_even_if_no_run_is_due() {
    let main = format!("main@sha1:{COMMIT}");
    let stack = taken_over(left("from-flux"));
    let recorded = Stack { status: baseline(&stack, &source(&main)), ..stack };
    let theirs = || Some(workspace_of("from-flux"));
    let Action::ReplaceWorkspace(expected) = decide(&observed(recorded.clone(), &main, theirs()), now()) else {
        panic!("expected Action::ApplyWorkspace")
    };
    let spec = serde_json::to_value(&expected.spec).expect("valid JSON");
    assert_eq!(spec["artifact"]["revision"], main.as_str());
    assert_eq!(spec.get("podTemplate"), None, "the pod template of the operator is removed");
    let lost = Observed { in_store: false, ..observed(recorded.clone(), &main, theirs()) };
    assert!(matches!(decide(&lost, now()), Action::Fetch(_)), "the new pod needs the artifact");
    let gone = observed(recorded.clone(), &main, None);
    assert!(matches!(decide(&gone, now()), Action::Settled(Settled::Done(_))), "no Workspace is created");
    let applied =
        build_workspace::workspace(&recorded, expected.spec.artifact.as_ref().expect("an artifact")).expect("valid");
    assert_eq!(applied, *expected);
}

#[test]
fn the_workspace_of_a_pko_run_is_replaced_before_the_run_is_awaited() {
    let (mut stack, update) = caught_in_a_run();
    stack.metadata.deletion_timestamp = None;
    let main = format!("main@sha1:{COMMIT}");
    let mut seen =
        Observed { update: Some(update), ..observed(taken_over(stack), &main, Some(workspace_of("from-flux"))) };
    let Action::ReplaceWorkspace(expected) = decide(&seen, now()) else { panic!("expected Action::ReplaceWorkspace") };
    seen.workspace = Some(*expected);
    assert!(matches!(decide(&seen, now()), Action::AwaitUpdate(_)), "the run may continue until its pod is deleted");
}

#[test]
fn deleting_a_stack_without_a_source_replaces_its_pko_workspace() {
    let (mut stack, update) = caught_in_a_run();
    stack.spec.stack = "organization/hello/dev".to_owned();
    let stack = taken_over(stack);
    let known = Deletion { without_source: deletion::without_source(&stack), ..Deletion::default() };
    let gone = Some(Err(Unavailable::NotYet("source deleted".to_owned())));
    let mut seen = Observed {
        update: Some(update),
        source: gone,
        deletion: Some(known.clone()),
        ..observed(stack, "", Some(workspace_of("from-flux")))
    };
    assert!(matches!(decide(&seen, now()), Action::Fetch(_)), "a project for the destroy");
    seen.deletion = Some(Deletion { is_stored: true, ..known });
    assert!(matches!(decide(&seen, now()), Action::ReplaceWorkspace(_)), "expected Action::ReplaceWorkspace");
}

/// Sets the result that the Update controller records after the pod of a run no longer exists.
fn interrupt(update: &mut Update) {
    let result = update.status.as_mut().expect("value is set");
    for condition in &mut result.conditions {
        let (status, reason) = match condition.type_.as_str() {
            "Progressing" => ("False", "Failed"),
            "Failed" => ("True", update_reason::ABORTED),
            _ => ("True", "Updated"),
        };
        (condition.status, condition.reason) = (status.to_owned(), reason.to_owned());
    }
    result.interrupted = Some(true);
}

#[test]
fn a_deleted_stack_is_destroyed_after_the_run_of_pko_ends() {
    let (stack, mut update) = caught_in_a_run();
    assert!(update.is_started_by_operator());
    let running = |update: &Update| Observed {
        update: Some(update.clone()),
        source: None,
        ..observed(taken_over(stack.clone()), "", Some(workspace_of("from-flux")))
    };
    assert!(matches!(decide(&running(&update), now()), Action::AwaitUpdate(_)), "the run may still be open");
    let mut never = update.clone();
    never.status = None;
    assert!(matches!(decide(&running(&never), now()), Action::RevokeUpdate(_)), "the operator never started it");

    interrupt(&mut update);
    let ended = running(&update);
    assert_eq!(decide(&ended, now()), Action::RecordResult);
    let with_result = status::with_result(&ended.stack, &update, None, now());
    let last = with_result.last_update.clone().expect("a run");
    assert_eq!((last.kind.as_deref(), last.state.as_deref()), (Some("up"), Some("failed")));
    assert!(last.pending_creates.is_some(), "the next run checks for pending creates of the interrupted run");
    assert_eq!(with_result.current_update, None);
    let stack = Stack { status: Some(with_result), ..ended.stack.clone() };
    let next = decide(&Observed { update: None, ..observed(stack, &format!("main@sha1:{COMMIT}"), None) }, now());
    let Action::ApplyWorkspace(_, message) = next else { panic!("{next:?}") };
    assert!(message.contains("destroy"), "{message}");
}

/// Returns a deleted Stack whose program has no outputs, after this last run of the operator.
fn without_outputs(kind: &str, state: &str, generation: i64) -> Stack {
    let (mut stack, _) = caught_in_a_run();
    let status = stack.status.as_mut().expect("value is set");
    status.outputs.clear();
    status.current_update = None;
    let last = status.last_update.as_mut().expect("a run");
    (last.kind, last.state) = (Some(kind.to_owned()), Some(state.to_owned()));
    last.failures = PKO_MAX_FAILURES;
    last.inputs.generation = generation;
    stack
}

/// Returns a Stack without outputs after the takeover has interrupted a destroy of the operator.
fn after_interrupted_destroy(last_update: Option<LastUpdate>) -> Stack {
    let (mut stack, mut update) = caught_in_a_run();
    let before = stack.status.as_mut().expect("value is set");
    before.outputs.clear();
    before.last_update = last_update;
    update.spec.kind = UpdateKind::Destroy;
    interrupt(&mut update);
    let stack = taken_over(stack);
    Stack { status: Some(status::with_result(&stack, &update, None, now())), ..stack }
}

/// Returns the Stack after a run of this controller that failed before it changed a resource.
fn after_failed(kind: UpdateKind, stack: Stack) -> Stack {
    let inputs = RunInputs {
        generation: stack.metadata.generation.unwrap_or_default(),
        digest: Some(Digest::of(b"newer")),
        ..RunInputs::default()
    };
    let current = CurrentUpdate { inputs, name: "from-flux-1".to_owned(), kind, ..CurrentUpdate::default() };
    let stack = Stack { status: Some(status::with_current_update(&stack, current)), ..stack };
    let failed = json!({"type": "Failed", "status": "True", "reason": "InvalidAccessToken", "message": "",
        "lastTransitionTime": "2026-11-21T09:02:00Z"});
    let update = json!({
        "metadata": {"name": "from-flux-1"},
        "spec": {"workspaceName": "from-flux", "stackName": "from-flux", "type": kind.as_str()},
        "status": {"conditions": [failed], "terminationEvidence": "Agent"},
    });
    let update: Update = serde_json::from_value(update).expect("valid Update");
    Stack { status: Some(status::with_result(&stack, &update, None, now())), ..stack }
}

/// Returns a deleted Stack without outputs. The operator had not run the latest spec before the takeover. `change`
/// simulates the time between the takeover and the deletion.
fn deleted_after(state: &str, change: impl FnOnce(Stack) -> Stack) -> Stack {
    let mut stack = without_outputs("up", state, 2);
    let deleted = stack.metadata.deletion_timestamp.take();
    let mut stack = change(taken_over(stack));
    (stack.metadata.deletion_timestamp, stack.metadata.generation) = (deleted, Some(4));
    stack
}

/// Removes the record that the takeover by an earlier version did not contain.
fn by_earlier_version(mut stack: Stack) -> Stack {
    stack.status.as_mut().expect("value is set").applied_stack = None;
    stack
}

#[test]
fn a_stack_without_outputs_keeps_its_finalizer_until_a_destroy_succeeds() {
    let main = format!("main@sha1:{COMMIT}");
    let later: Timestamp = "2026-11-23T09:00:00Z".parse().expect("valid time");
    let by_pko = |kind, state, generation| taken_over(without_outputs(kind, state, generation));
    let last_up = || without_outputs("up", "succeeded", 2).status.and_then(|status| status.last_update);
    let with_baseline = |stack: Stack| Stack { status: baseline(&stack, &source(&main)), ..stack };
    let destroy = UpdateKind::Destroy;
    let rows = [
        ("PKO gave up the destroy", by_pko("destroy", "failed", 3), true),
        ("PKO gave up the destroy, and the spec has changed", by_pko("destroy", "failed", 2), true),
        ("a destroy of PKO was interrupted", after_interrupted_destroy(last_up()), true),
        ("the first run of PKO was a destroy", after_interrupted_destroy(None), true),
        ("its retry failed, too", after_failed(destroy, after_interrupted_destroy(None)), true),
        ("deleted before the takeover", by_pko("up", "succeeded", 2), true),
        ("the first destroy failed", after_failed(destroy, by_pko("up", "succeeded", 2)), true),
        (
            "an earlier version recorded the failed destroy",
            by_earlier_version(after_failed(destroy, by_pko("up", "succeeded", 2))),
            true,
        ),
        (
            "the first up failed before the deletion",
            deleted_after("succeeded", |stack| after_failed(UpdateKind::Up, stack)),
            true,
        ),
        (
            "an earlier version has taken over the Stack",
            deleted_after("failed", |stack| with_baseline(by_earlier_version(stack))),
            true,
        ),
        ("PKO destroyed the Stack", by_pko("destroy", "succeeded", 3), false),
        ("the last run of PKO was a preview", by_pko("preview", "succeeded", 2), false),
    ];
    for (name, stack, is_kept) in rows {
        let applied = identity::recorded(&stack).map(|applied| applied.name);
        assert_eq!(applied.as_deref(), is_kept.then_some("from-flux"), "{name}");
        let found = steps(observed(stack, &main, None), later);
        let expected = if is_kept { "ApplyWorkspace" } else { "RemoveFinalizer" };
        assert_eq!(found.last().map(String::as_str), Some(expected), "{name}: {found:?}");
    }
}

/// Returns whether the Pulumi Kubernetes Operator considers a Stack up to date. Implements the operator's check for
/// Stacks that are not being deleted.
fn is_synced_for_the_operator(stack: &Value, commit: &str) -> bool {
    let last = &stack["status"]["lastUpdate"];
    let request = &stack["metadata"]["annotations"][names::ANNOTATION_RECONCILIATION_REQUEST];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    last["generation"] == stack["metadata"]["generation"]
        && text(&last["reconcileRequest"]) == text(request)
        && last["state"] == "succeeded"
        && last["lastSuccessfulCommit"] == commit
        && stack["status"]["currentUpdate"].is_null()
}

#[test]
fn pko_regards_a_migrated_stack_as_synced_after_a_rollback() {
    let main = format!("main@sha1:{COMMIT}");
    for (name, commit) in [("from-flux", main.as_str()), ("from-program", "1")] {
        let stack = taken_over(left(name));
        let recorded = Stack { status: baseline(&stack, &source(commit)), ..stack };
        let settled = status::with_state(&recorded, &State::Done, now());
        let ours = serde_json::to_value(Stack { status: Some(settled), ..recorded }).expect("valid JSON");
        assert!(is_synced_for_the_operator(&ours, commit), "{name} would run again: {}", ours["status"]);
        let theirs = serde_json::to_value(left(name)).expect("valid JSON");
        assert_eq!(ours["spec"], theirs["spec"]);
        assert_eq!(ours["metadata"]["finalizers"], theirs["metadata"]["finalizers"]);
        for field in ["outputs", "projectInfo"] {
            assert_eq!(ours["status"][field], theirs["status"][field], "{name}");
        }
    }
}

fn candidate(revision: &str, digest: Option<Digest>) -> RunCandidate {
    RunCandidate { revision: revision.to_owned(), inputs: RunInputs { digest, ..RunInputs::default() } }
}

//! Tests for archives that a source has repacked for the revision of the last run.

use super::*;
use crate::api::pulumi::CurrentUpdate;
use crate::api::pulumi::RunInputs;
use crate::controller::stack::run::RunCandidate;

const COMMIT: &str = "main@sha1:a";

/// Returns the repacked archive of the source.
fn packed_again(content_id: Option<&str>) -> Resolved {
    Resolved { digest: crate::artifact::Digest::of(b"again"), content_id: content_id.map(str::to_owned), ..resolved() }
}

/// Returns a Stack after a run of an artifact with this content ID.
fn ran(state: &str, content_id: Option<&str>) -> Stack {
    let mut stack = stack();
    let last = LastUpdate {
        inputs: RunInputs { content_id: content_id.map(str::to_owned), ..last("up", state).inputs },
        ..last("up", state)
    };
    stack.status = Some(StackStatus { last_update: Some(last), ..StackStatus::default() });
    stack
}

fn seen(stack: Stack, source: Resolved) -> Observed {
    let workspace = Some(workspace(&stack, Status::True, "Succeeded"));
    Observed { source: Some(Ok(source)), workspace, ..observed(stack) }
}

#[test]
fn a_repacked_archive_is_delivered_and_recorded_without_a_run() {
    let source = packed_again(Some("a"));
    let mut observed = seen(ran("succeeded", Some("a")), source.clone());
    observed.in_store = false;
    assert_eq!(decide(&observed, now()), Action::Fetch(source.clone()));
    observed.in_store = true;
    let Action::ReplaceWorkspace(expected) = decide(&observed, now()) else {
        panic!("expected a Workspace with the artifact")
    };
    assert_eq!(expected.spec.artifact, Some(reference(&source)));
    // If the controller crashes at this point, the next reconciliation still records the archive.
    observed.workspace = Some(*expected);
    let Action::AdoptBaseline(status) = decide(&observed, now()) else { panic!("expected a new baseline") };
    let last = status.last_update.as_ref().expect("last update is kept");
    assert_eq!((last.inputs.digest.as_ref(), last.inputs.content_id.as_deref()), (Some(&source.digest), Some("a")));
    observed.stack.status = Some(*status);
    assert_eq!(decide(&observed, now()), Action::Settled(Settled::Done(None)));
}

#[test]
fn only_unchanged_content_of_the_same_revision_skips_the_run() {
    let moved = |content_id| Resolved { revision: "main@sha1:b".to_owned(), ..packed_again(content_id) };
    let rows = [
        ("the same content", Some("a"), packed_again(Some("a")), "ReplaceWorkspace"),
        ("a record of an earlier version", None, packed_again(Some("a")), "ReplaceWorkspace"),
        ("a kind whose revision does not identify the content", None, packed_again(None), "Start"),
        ("the source options have changed", Some("a"), packed_again(Some("a+b")), "Start"),
        ("the source options have changed, recorded by an earlier version", None, packed_again(Some("a+b")), "Start"),
        ("another revision", Some("a"), moved(Some("b")), "Start"),
    ];
    for (name, before, source, expected) in rows {
        let mut observed = seen(ran("succeeded", before), source.clone());
        if expected == "Start" {
            let workspace = observed.workspace.as_mut().expect("value is set");
            *workspace = build_workspace::workspace(&observed.stack, &reference(&source)).expect("valid");
            workspace.metadata.generation = Some(1);
            workspace.status = self::workspace(&observed.stack, Status::True, "Succeeded").status;
            workspace.status.as_mut().expect("value is set").artifact = Some(reference(&source));
        }
        assert_eq!(decide(&observed, now()).name(), expected, "{name}");
    }
}

#[test]
fn without_a_workspace_a_repacked_archive_is_recorded_but_not_delivered() {
    let observed = Observed { workspace: None, ..seen(ran("succeeded", Some("a")), packed_again(Some("a"))) };
    assert_eq!(decide(&observed, now()).name(), "AdoptBaseline");
    let mut deleted_after_runs = seen(ran("succeeded", Some("a")), packed_again(Some("a")));
    deleted_after_runs.stack.spec.workspace_reclaim_policy = WorkspaceReclaimPolicy::Delete;
    assert_eq!(decide(&deleted_after_runs, now()).name(), "AdoptBaseline");
}

#[test]
fn a_failed_run_keeps_its_retry_time_when_the_archive_is_repacked() {
    let mut observed = seen(ran("failed", Some("a")), packed_again(Some("a")));
    assert_eq!(decide(&observed, now()).name(), "ReplaceWorkspace");
    let repacked = RunCandidate::new(&observed, &packed_again(Some("a")));
    observed.stack.status = Some(status::with_repacked_archive(&observed.stack, &repacked.inputs));
    assert!(matches!(decide(&observed, now()), Action::Settled(Settled::RetryAfter(_))));
    let last = observed.stack.status.as_ref().and_then(|status| status.last_update.as_ref()).expect("value is set");
    assert_eq!(last.last_attempted_commit.as_deref(), Some(COMMIT));
}

#[test]
fn a_new_directory_in_a_repacked_archive_starts_a_run() {
    let mut stack = ran("succeeded", Some("a"));
    stack.metadata.generation = Some(2);
    let source = Resolved { directory: "other".parse().expect("valid"), ..packed_again(Some("a")) };
    let Action::ApplyWorkspace(expected, _) = decide(&seen(stack, source), now()) else { panic!("expected a new run") };
    assert_eq!(expected.spec.artifact.map(|artifact| artifact.dir).as_deref(), Some("other"));
}

#[test]
fn a_queued_run_is_kept_while_the_pod_has_the_older_archive() {
    let queued = |source: Resolved, is_placed: bool| {
        let mut stack = ran("succeeded", Some("a"));
        let current = CurrentUpdate {
            inputs: RunInputs {
                generation: 1,
                digest: DIGEST.parse().ok(),
                content_id: Some("a".to_owned()),
                ..RunInputs::default()
            },
            name: "app-1".to_owned(),
            commit: Some(COMMIT.to_owned()),
            ..CurrentUpdate::default()
        };
        stack.status.as_mut().expect("value is set").current_update = Some(Box::new(current));
        let mut observed = seen(stack, source);
        if !is_placed {
            observed.workspace.as_mut().and_then(|w| w.status.as_mut()).expect("value is set").artifact = None;
        }
        let update = Update::new("app-1", UpdateSpec::default());
        decide(&Observed { update: Some(update), ..observed }, now()).name()
    };
    let moved = Resolved { revision: "main@sha1:b".to_owned(), ..packed_again(Some("b")) };
    let rows = [
        ("the same archive", queued(resolved(), true), "AwaitUpdate"),
        ("an archive that the source repacked", queued(packed_again(Some("a")), true), "AwaitUpdate"),
        ("the pod no longer has the older archive", queued(packed_again(Some("a")), false), "RevokeUpdate"),
        ("a kind whose revision does not identify the content", queued(packed_again(None), true), "RevokeUpdate"),
        ("the source options have changed", queued(packed_again(Some("a+b")), true), "RevokeUpdate"),
        ("another revision", queued(moved, true), "RevokeUpdate"),
    ];
    for (name, found, expected) in rows {
        assert_eq!(found, expected, "{name}");
    }
}

//! Tests the pending creates that a run leaves if its CLI is killed.

use pulumi_controller::rpc::proto::{Outcome, PendingCreates, Progress, RunRequest, progress};

use crate::harness::{Workspace, has_pulumi, signal};
use crate::runs::SLOW;

async fn with_pending_create(workspace: &Workspace) {
    workspace.put(SLOW).await;
    let request = workspace.request(&[]).await;
    workspace.run(&request).await.unwrap();
    signal(workspace.until_operation_begins(&request.id).await, "KILL");
    let (result, _) = workspace.result(&request.id).await;
    assert!(result.interrupted, "{}", result.message);
    workspace.put(&SLOW.replace("seconds: 60", "seconds: 0.1")).await;
}

async fn request(workspace: &Workspace, pending_creates: PendingCreates) -> RunRequest {
    let pending_creates = pending_creates.into();
    RunRequest { lock_recovery: true, pending_creates, ..workspace.request(&[]).await }
}

fn was_started(progress: &[Progress]) -> bool {
    progress.iter().any(|step| matches!(step.event, Some(progress::Event::Started(_))))
}

#[tokio::test]
async fn pending_creates_block_the_run_until_they_are_cleared() {
    if !has_pulumi("pending_creates_block_the_run_until_they_are_cleared") {
        return;
    }
    let workspace = Workspace::start().await;
    with_pending_create(&workspace).await;
    for _ in 0..2 {
        let stop = request(&workspace, PendingCreates::Stop).await;
        workspace.run(&stop).await.unwrap();
        let (result, progress) = workspace.result(&stop.id).await;
        assert_eq!(result.outcome(), Outcome::PendingCreates, "{}", result.message);
        let urn = "urn:pulumi:dev::example::testing:index:Step::step";
        assert_eq!(result.pending_creates, [urn]);
        assert!(
            result.message.contains(urn) && result.message.contains("the Pulumi command was not started"),
            "{}",
            result.message
        );
        assert!(result.interrupted, "the pending creates remain");
        assert!(!was_started(&progress));
        assert_eq!(workspace.locks().len(), 1, "only the lock of the killed run exists");
    }
    let clear = request(&workspace, PendingCreates::Clear).await;
    let result = workspace.run_to_end(&clear).await;
    assert_eq!(result.outcome(), Outcome::Succeeded, "{}", result.message);
    assert_eq!(result.changes.get("create"), Some(&1), "{:?}", result.changes);
    assert!(!result.interrupted);
    let stop = request(&workspace, PendingCreates::Stop).await;
    let result = workspace.run_to_end(&stop).await;
    assert_eq!(result.outcome(), Outcome::Succeeded, "no pending creates remain: {}", result.message);
    assert!(!workspace.path("share/operations").join(&stop.id).join("state.json").exists());
}

#[tokio::test]
async fn pending_creates_are_retried_on_request() {
    if !has_pulumi("pending_creates_are_retried_on_request") {
        return;
    }
    let workspace = Workspace::start().await;
    with_pending_create(&workspace).await;
    let keep = request(&workspace, PendingCreates::Keep).await;
    let result = workspace.run_to_end(&keep).await;
    assert_eq!(result.outcome(), Outcome::Succeeded, "{}", result.message);
    assert_eq!(result.changes.get("create"), Some(&1), "{:?}", result.changes);
}

#[tokio::test]
async fn a_missing_stack_has_no_pending_creates() {
    if !has_pulumi("a_missing_stack_has_no_pending_creates") {
        return;
    }
    for response in [PendingCreates::Stop, PendingCreates::Clear] {
        let workspace = Workspace::start().await;
        workspace.put("name: example\nruntime: yaml\noutputs: {one: 1}\n").await;
        let first = request(&workspace, response).await;
        let result = workspace.run_to_end(&first).await;
        assert_eq!(result.outcome(), Outcome::Succeeded, "{}", result.message);
    }
}

#[tokio::test]
async fn an_unreadable_state_fails_the_run_and_marks_it_as_interrupted() {
    let cli = "case \"$*\" in
        *export*) echo 'error: the bucket is on fire' >&2; exit 1;;
        *up*) touch \"$HOME/ran\";;
    esac";
    let workspace = Workspace::start_with(Some(cli), &[]).await;
    workspace.put("name: example\nruntime: yaml\n").await;
    let stop = request(&workspace, PendingCreates::Stop).await;
    let result = workspace.run_to_end(&stop).await;
    assert_eq!(result.outcome(), Outcome::Failed);
    assert!(result.interrupted && result.message.contains("the bucket is on fire"), "{}", result.message);
    assert!(result.last_output.contains("the bucket is on fire") && !workspace.path("home/ran").exists());
}

#[tokio::test]
async fn pending_creates_are_not_cleared_from_a_state_that_another_client_changes() {
    // Each export contains another state.
    let cli = r#"case "$*" in
        *export*)
            for word; do case "$word" in --file=*) file=${word#--file=} ;; esac; done
            echo export >>"$HOME/exports"
            printf '{"deployment":{"manifest":{"time":"%s"},"pending_operations":[{"type":"creating"}]}}' \
                "$(wc -l <"$HOME/exports")" >"$file" ;;
        *import*) touch "$HOME/imported" ;;
        *up*) touch "$HOME/ran" ;;
    esac"#;
    let workspace = Workspace::start_with(Some(cli), &[]).await;
    workspace.put("name: example\nruntime: yaml\n").await;
    let clear = request(&workspace, PendingCreates::Clear).await;
    let result = workspace.run_to_end(&clear).await;
    assert_eq!(result.outcome(), Outcome::Failed);
    assert!(
        result.interrupted && result.message.contains("another client has changed the state"),
        "{}",
        result.message
    );
    assert!(!workspace.path("home/imported").exists() && !workspace.path("home/ran").exists());
}

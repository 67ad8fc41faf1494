//! Tests for locks that belong to interrupted runs or other clients.

use pulumi_controller::rpc::proto::{DeadRun, Outcome, PendingCreates, RunOptions, RunRequest};

use crate::harness::{Workspace, has_pulumi, signal};
use crate::runs::SLOW;

const PROGRAM: &str = "name: example\nruntime: yaml\noutputs: {one: 1}\n";

/// Creates a stack that a run has locked, and kills the CLI of this run. Returns the CLI's process ID.
async fn with_lock_of_killed_cli(workspace: &Workspace) -> u32 {
    workspace.put(SLOW).await;
    let request = workspace.request(&[]).await;
    workspace.run(&request).await.unwrap();
    let cli = workspace.until_operation_begins(&request.id).await;
    // If the test killed the CLI while the CLI was writing the state, the state file would be incomplete. The next run
    // would then fail because of this file instead of the lock.
    let start = std::time::Instant::now();
    signal(cli, "STOP");
    while !workspace.has_complete_state() {
        assert!(start.elapsed() < std::time::Duration::from_secs(20), "the state was incomplete in all attempts");
        signal(cli, "CONT");
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        signal(cli, "STOP");
    }
    signal(cli, "KILL");
    let (result, _) = workspace.result(&request.id).await;
    assert_eq!(result.outcome(), Outcome::Interrupted, "{}", result.message);
    assert_eq!(workspace.locks().len(), 1);
    workspace.put(PROGRAM).await;
    cli
}

#[tokio::test]
async fn lock_recovery_removes_the_lock_of_a_known_interrupted_run() {
    if !has_pulumi("lock_recovery_removes_the_lock_of_a_known_interrupted_run") {
        return;
    }
    let workspace = Workspace::start().await;
    let cli = with_lock_of_killed_cli(&workspace).await;
    let manual = workspace.request(&[]).await;
    let result = workspace.run_to_end(&manual).await;
    assert_eq!(result.outcome(), Outcome::Conflict, "{}", result.message);
    assert_eq!(result.holders.iter().map(|holder| holder.pid).collect::<Vec<_>>(), [cli]);
    assert_eq!(workspace.locks().len(), 1, "the lock is kept without lock recovery");

    let automatic = RunRequest { lock_recovery: true, ..workspace.request(&[]).await };
    let result = workspace.run_to_end(&automatic).await;
    assert_eq!(result.outcome(), Outcome::Succeeded, "{}", result.message);
    assert!(workspace.log().contains("removed the lock of a run that has ended"));
    assert_eq!(workspace.locks(), Vec::<std::path::PathBuf>::new());
}

#[tokio::test]
async fn a_restarted_agent_identifies_the_lock_owner_from_its_journal() {
    if !has_pulumi("a_restarted_agent_identifies_the_lock_owner_from_its_journal") {
        return;
    }
    let mut workspace = Workspace::start().await;
    workspace.put(SLOW).await;
    let request = workspace.request(&[]).await;
    workspace.run(&request).await.unwrap();
    workspace.until_operation_begins(&request.id).await;
    signal(workspace.agent_pid(), "KILL");
    workspace.wait_for_exit().await;
    workspace.start_agent().await;
    assert_eq!(workspace.locks().len(), 1);
    workspace.put(PROGRAM).await;
    let automatic = RunRequest { lock_recovery: true, ..workspace.request(&[]).await };
    let result = workspace.run_to_end(&automatic).await;
    assert_eq!(result.outcome(), Outcome::Succeeded, "{}", result.message);
}

#[tokio::test]
async fn the_lock_of_a_run_in_another_pod_is_removed_only_with_proof() {
    if !has_pulumi("the_lock_of_a_run_in_another_pod_is_removed_only_with_proof") {
        return;
    }
    let workspace = Workspace::start().await;
    workspace.put(PROGRAM).await;
    let first = workspace.request(&[]).await;
    workspace.run_to_end(&first).await;
    workspace.put_lock("gone-0", 4711, "2026-01-01T00:00:30Z");
    let time = |text: &str| text.parse::<jiff::Timestamp>().unwrap().as_millisecond();
    let dead = DeadRun {
        host: "gone-0".into(),
        pid: 4711,
        started: time("2026-01-01T00:00:00Z"),
        ended: time("2026-01-01T00:01:00Z"),
        permalink: String::new(),
    };
    let run = async |dead_runs: Vec<DeadRun>| {
        let request = RunRequest { lock_recovery: true, dead_runs, ..workspace.request(&[]).await };
        workspace.run_to_end(&request).await.outcome()
    };
    let early = DeadRun { ended: time("2026-01-01T00:00:10Z"), ..dead.clone() };
    for (dead_runs, why) in [
        (vec![], "no evidence"),
        (
            vec![DeadRun { pid: 4712, ..dead.clone() }, DeadRun { host: "other-0".into(), ..dead.clone() }],
            "the evidence is about other runs",
        ),
        (vec![early], "the lock was created after the end of the run"),
    ] {
        assert_eq!(run(dead_runs).await, Outcome::Conflict, "{why}");
        assert_eq!(workspace.locks().len(), 1, "{why}");
    }
    workspace.put_lock("laptop", 7, "2026-01-01T00:00:40Z");
    assert_eq!(run(vec![dead.clone()]).await, Outcome::Conflict, "another lock remains");
    assert_eq!(workspace.locks().len(), 2);
    let foreign = |lock: &std::path::PathBuf| std::fs::read_to_string(lock).unwrap().contains("laptop");
    std::fs::remove_file(workspace.locks().into_iter().find(foreign).unwrap()).unwrap();
    assert_eq!(run(vec![dead]).await, Outcome::Succeeded);
    assert_eq!(workspace.locks(), Vec::<std::path::PathBuf>::new());
}

#[tokio::test]
async fn a_stale_lock_does_not_block_clearing_pending_creates() {
    if !has_pulumi("a_stale_lock_does_not_block_clearing_pending_creates") {
        return;
    }
    let workspace = Workspace::start().await;
    with_lock_of_killed_cli(&workspace).await;
    let clear = RunRequest {
        lock_recovery: true,
        pending_creates: PendingCreates::Clear.into(),
        ..workspace.request(&[]).await
    };
    let result = workspace.run_to_end(&clear).await;
    assert_eq!(result.outcome(), Outcome::Succeeded, "{}", result.message);
    assert!(!result.interrupted);
}

/// Script that replaces the CLI. The script reports a lock that has the host and the process ID of its first run, and
/// was created during this run.
const LOCKED_BY_NAMESAKE: &str = r#"
case "$*" in
    *cancel*) touch "$HOME/removed" ;;
    *up*)
        [ -e "$HOME/lock" ] || echo "$(uname -n) (pid $$) at $(date -u +%Y-%m-%dT%H:%M:%SZ)" > "$HOME/lock"
        echo "error: the stack is currently locked by 1 lock(s). Either wait for the other process(es) to end" >&2
        echo "  file:///a.json: created by somebody@$(cat "$HOME/lock")" >&2
        exit 1 ;;
esac
"#;

#[tokio::test]
async fn the_lock_of_a_process_with_the_same_host_and_id_is_kept_if_the_own_process_was_not_interrupted() {
    let workspace = Workspace::start_with(Some(LOCKED_BY_NAMESAKE), &[]).await;
    workspace.put(PROGRAM).await;
    for _ in 0..2 {
        let request = RunRequest { lock_recovery: true, ..workspace.request(&[]).await };
        let result = workspace.run_to_end(&request).await;
        assert_eq!(result.outcome(), Outcome::Conflict, "{}", result.message);
    }
    assert!(!workspace.path("home/removed").exists(), "the agent removed the lock of another client");
}

/// Script that replaces the CLI. The first `up` locks the stack and is killed. Like versions before 3.229, the script
/// locks the stack even for a preview of a refresh.
const LOCKED_BY_KILLED_UP: &str = r#"
case "$*" in
    *" cancel "*) rm "$HOME/lock" ;;
    *" refresh "*)
        if [ ! -e "$HOME/lock" ]; then
            for word; do case "$word" in --event-log=*) log=${word#--event-log=} ;; esac; done
            printf '{"preludeEvent":{}}\n{"summaryEvent":{"resourceChanges":{"same":1}}}\n' >"$log"
            exit 0
        fi
        echo "error: the stack is currently locked by 1 lock(s). Either wait for the other process(es) to end" >&2
        echo "  file:///a.json: created by somebody@$(cat "$HOME/lock")" >&2
        exit 1 ;;
    *" up "*)
        [ -e "$HOME/killed" ] && exit 0
        touch "$HOME/killed"
        echo "$(uname -n) (pid $$) at $(date -u +%Y-%m-%dT%H:%M:%SZ)" > "$HOME/lock"
        kill -KILL $$ ;;
esac
"#;

#[tokio::test]
async fn a_stale_lock_does_not_block_the_drift_check_before_an_update() {
    let workspace = Workspace::start_with(Some(LOCKED_BY_KILLED_UP), &[]).await;
    workspace.put(PROGRAM).await;
    let result = workspace.run_to_end(&workspace.request(&[]).await).await;
    assert_eq!(result.outcome(), Outcome::Interrupted, "{}", result.message);
    assert!(workspace.path("home/lock").exists());
    let options = Some(RunOptions { expect_no_refresh_changes: true, ..RunOptions::default() });
    let request = RunRequest { lock_recovery: true, refresh: true, options, ..workspace.request(&[]).await };
    let result = workspace.run_to_end(&request).await;
    assert_eq!(result.outcome(), Outcome::Succeeded, "{}", result.message);
    assert!(!workspace.path("home/lock").exists());
}

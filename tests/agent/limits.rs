//! Tests the timeouts that the agent enforces, and the signals that the agent sends.

use std::time::Duration;

use pulumi_controller::rpc::proto::{Outcome, PendingCreates, Progress, RunRequest, progress};

use crate::harness::{Workspace, has_pulumi};
use crate::runs::SLOW;

fn idle(progress: &[Progress]) -> Vec<i64> {
    let since = |step: &Progress| match &step.event {
        Some(progress::Event::Idle(idle)) => Some(idle.since),
        _ => None,
    };
    progress.iter().filter_map(since).collect()
}

#[tokio::test]
async fn a_run_that_exceeds_its_timeout_is_ended_gracefully() {
    if !has_pulumi("a_run_that_exceeds_its_timeout_is_ended_gracefully") {
        return;
    }
    let workspace = Workspace::start().await;
    workspace.put(SLOW).await;
    let request = RunRequest { timeout_seconds: 3, ..workspace.request(&[]).await };
    let result = workspace.run_to_end(&request).await;
    assert_eq!(result.outcome(), Outcome::Canceled, "{}", result.message);
    assert!(result.message.starts_with("the run exceeded its timeout of 3s and was canceled"), "{}", result.message);
    assert!(!result.interrupted && result.ended - result.started >= 3000);
    assert_eq!(workspace.locks(), Vec::<std::path::PathBuf>::new());
}

#[tokio::test]
async fn an_idle_run_is_reported_and_then_ended() {
    if !has_pulumi("an_idle_run_is_reported_and_then_ended") {
        return;
    }
    let workspace = Workspace::start().await;
    workspace.put(&SLOW.replace("steps: 60", "steps: 1")).await;
    let request = RunRequest { idle_timeout_seconds: 4, ..workspace.request(&[]).await };
    workspace.run(&request).await.unwrap();
    let (result, progress) = workspace.result(&request.id).await;
    assert_eq!(result.outcome(), Outcome::Canceled, "{}", result.message);
    assert!(result.message.contains("exceeded its idle timeout of 4s"), "{}", result.message);
    let reported = idle(&progress);
    assert!(
        !reported.is_empty() && reported.iter().all(|since| (result.started..result.ended).contains(since)),
        "{reported:?}"
    );
    assert_eq!(workspace.locks(), Vec::<std::path::PathBuf>::new());
}

/// Beginning of a script that replaces the CLI. The engine starts when the script runs `begin`.
const BEGIN: &str = r#"
begin() {
    for word; do case "$word" in --event-log=*) echo '{"preludeEvent":{}}' >"${word#--event-log=}" ;; esac; done
}
"#;

#[tokio::test]
async fn a_run_is_not_idle_while_the_cli_opens_the_stack() {
    let cli = "case \"$*\" in *event-log=*) sleep 4; begin \"$@\";; *select*) sleep 3;; esac";
    let workspace = Workspace::start_with(Some(&format!("{BEGIN}{cli}")), &[]).await;
    workspace.put("name: example\nruntime: yaml\n").await;
    let request = RunRequest { idle_timeout_seconds: 2, ..workspace.request(&[]).await };
    workspace.run(&request).await.unwrap();
    let (result, progress) = workspace.result(&request.id).await;
    assert_eq!(result.outcome(), Outcome::Succeeded, "{}", result.message);
    assert_eq!(idle(&progress), Vec::<i64>::new());
    let is_step = |step: &Progress| matches!(&step.event, Some(progress::Event::Step(_)));
    let steps: Vec<_> = progress.iter().filter(|step| is_step(step)).filter_map(|step| step.event.clone()).collect();
    let step = |step: &str| progress::Event::Step(step.to_owned());
    assert_eq!(steps, [step("selecting the stack"), step("opening the stack"), step("")]);
}

#[tokio::test]
async fn the_timeout_of_a_run_limits_its_commands_and_the_message_names_the_step() {
    let canceled = "the run exceeded its timeout of 2s and was canceled while the CLI was";
    let run = async |hanging: &str, expected: &str| {
        let cli = format!("case \"$*\" in {hanging}) exec sleep 3600;; esac");
        let workspace = Workspace::start_with(Some(&cli), &[]).await;
        workspace.put("name: example\nruntime: yaml\n").await;
        let request = RunRequest { timeout_seconds: 2, ..workspace.request(&[]).await };
        let result = workspace.run_to_end(&request).await;
        let expected = format!("{canceled} {expected}");
        assert_eq!((result.outcome(), result.message), (Outcome::Canceled, expected), "{hanging}");
    };
    // The agent kills a command that can lock the stack only after 15 seconds.
    tokio::join!(
        run("*select*", "selecting the stack"),
        run("*event-log=*", "opening the stack: the Pulumi CLI was killed by signal 2"),
    );
}

#[tokio::test]
async fn a_cancellation_interrupts_a_command_at_once() {
    let cli = "case \"$*\" in *stack*export*) echo exporting; exec sleep 3600;; esac";
    let workspace = Workspace::start_with(Some(cli), &[]).await;
    workspace.put("name: example\nruntime: yaml\n").await;
    let stop = PendingCreates::Stop.into();
    let request = RunRequest { pending_creates: stop, ..workspace.request(&[]).await };
    workspace.run(&request).await.unwrap();
    workspace.until_logged("exporting").await;
    let start = std::time::Instant::now();
    workspace.connect().await.cancel(&request.id).await.unwrap();
    let (result, _) = workspace.result(&request.id).await;
    assert!(start.elapsed() < Duration::from_secs(5), "the run ended after {:?}", start.elapsed());
    let expected = "the run was canceled while the CLI was exporting the state";
    assert_eq!((result.outcome(), result.message.as_str()), (Outcome::Canceled, expected));
}

#[tokio::test]
async fn a_run_with_occasional_output_is_not_idle() {
    let cli = "case \"$*\" in *up*) begin \"$@\"; for word in $(seq 20); do echo $word; sleep 0.4; done;; esac";
    let cli = &format!("{BEGIN}{cli}");
    let workspace = Workspace::start_with(Some(cli), &[]).await;
    workspace.put("name: example\nruntime: yaml\n").await;
    let request = RunRequest { idle_timeout_seconds: 5, ..workspace.request(&[]).await };
    let result = workspace.run_to_end(&request).await;
    assert_eq!(result.outcome(), Outcome::Succeeded, "{}", result.message);
    assert!(result.ended - result.started > 7000, "the run took longer than the idle timeout");
    let text: Vec<_> = result.last_output.lines().collect();
    assert_eq!((text.first(), text.last(), text.len()), (Some(&"1"), Some(&"20"), 20));
}

#[tokio::test]
async fn a_canceled_run_that_does_not_stop_is_killed_within_the_grace_period() {
    if !has_pulumi("a_canceled_run_that_does_not_stop_is_killed_within_the_grace_period") {
        return;
    }
    // Of the termination grace period of 16 seconds, the agent reserves four seconds for the forced cancellation, and
    // four seconds for reporting the result.
    let workspace = Workspace::start_with_grace(16).await;
    workspace.put(&SLOW.replace("name: slow", "name: slow, ignoreCancel: true")).await;
    let request = workspace.request(&[]).await;
    workspace.run(&request).await.unwrap();
    workspace.until_operation_begins(&request.id).await;
    let start = std::time::Instant::now();
    workspace.connect().await.cancel(&request.id).await.unwrap();
    let (result, _) = workspace.result(&request.id).await;
    assert!(start.elapsed() >= Duration::from_secs(8), "the run ended after {:?}", start.elapsed());
    assert_eq!(result.outcome(), Outcome::Canceled, "{}", result.message);
    assert!(result.interrupted, "a resource step was interrupted");
    assert_eq!(workspace.locks(), Vec::<std::path::PathBuf>::new());
}

#[tokio::test]
async fn a_canceled_run_that_waits_for_its_compiler_ends_early() {
    if !has_pulumi("a_canceled_run_that_waits_for_its_compiler_ends_early") {
        return;
    }
    let workspace = Workspace::start_with_grace(600).await;
    workspace.put("name: example\nruntime:\n  name: yaml\n  options:\n    compiler: sleep 3600\n").await;
    let request = workspace.request(&[]).await;
    workspace.run(&request).await.unwrap();
    workspace.until_logged("Updating (dev)").await;
    let start = std::time::Instant::now();
    workspace.connect().await.cancel(&request.id).await.unwrap();
    let (result, _) = workspace.result(&request.id).await;
    assert!(start.elapsed() >= Duration::from_secs(30), "the run ended after {:?}", start.elapsed());
    assert_eq!(result.outcome(), Outcome::Canceled, "{}", result.message);
    assert_eq!(workspace.locks(), Vec::<std::path::PathBuf>::new());
}

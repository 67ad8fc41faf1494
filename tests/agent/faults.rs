//! Tests for crashes of the CLI, the agent and the container. After each crash, all child processes terminate, and each
//! run has a result.

use std::process::Command;
use std::time::{Duration, Instant};

use pulumi_controller::rpc::proto::{Outcome, RunRequest};

use crate::harness::{TEST_TIMEOUT, Workspace, children, descendants, has_programs, has_pulumi, processes, signal};
use crate::runs::SLOW;

#[tokio::test]
async fn a_killed_cli_interrupts_the_run_and_leaves_no_descendants() {
    if !has_pulumi("a_killed_cli_interrupts_the_run_and_leaves_no_descendants") {
        return;
    }
    let workspace = Workspace::start().await;
    workspace.put(SLOW).await;
    let request = workspace.request(&[]).await;
    workspace.run(&request).await.unwrap();
    let cli = workspace.until_operation_begins(&request.id).await;
    let plugins = descendants(cli);
    assert!(!plugins.is_empty());
    signal(cli, "KILL");
    let (result, _) = workspace.result(&request.id).await;
    assert_eq!(result.outcome(), Outcome::Interrupted, "{}", result.message);
    assert!(result.interrupted && result.last_output.contains("Updating (dev)"), "{}", result.last_output);
    let states = processes();
    let left: Vec<_> = plugins.iter().filter(|pid| states.get(pid).is_some_and(|(_, state)| *state != 'Z')).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[tokio::test]
async fn sigterm_makes_the_agent_cancel_the_run_and_report_its_result() {
    if !has_pulumi("sigterm_makes_the_agent_cancel_the_run_and_report_its_result") {
        return;
    }
    let mut workspace = Workspace::start().await;
    workspace.put(SLOW).await;
    let request = workspace.request(&[]).await;
    workspace.run(&request).await.unwrap();
    workspace.until_operation_begins(&request.id).await;
    let client = workspace.connect().await;
    workspace.terminate();
    let (result, _) = workspace.result(&request.id).await;
    assert_eq!(result.outcome(), Outcome::Canceled, "{}", result.message);
    assert_eq!(workspace.locks(), Vec::<std::path::PathBuf>::new());
    let other = RunRequest { id: "another".into(), ..request.clone() };
    assert!(workspace.run(&other).await.unwrap_err().message.contains("terminating"));
    assert!(workspace.readiness().await.contains("503"));
    let began = Instant::now();
    client.acknowledge(&request.id).await.unwrap();
    assert_eq!(workspace.wait_for_exit().await, Some(0));
    assert!(began.elapsed() < Duration::from_secs(20), "the process lingered for {:?}", began.elapsed());
    let reported = std::fs::read(workspace.path("termination-log")).unwrap();
    let reported: serde_json::Value = serde_json::from_slice(&reported).unwrap();
    assert_eq!(
        (reported["id"].as_str(), reported["outcome"].as_str()),
        (Some(request.id.as_str()), Some("OUTCOME_CANCELED"))
    );
}

#[tokio::test]
async fn an_idle_agent_exits_immediately_on_sigterm() {
    let mut workspace = Workspace::start_with(Some("exit 0"), &[]).await;
    let reported = Instant::now();
    workspace.terminate();
    assert_eq!(workspace.wait_for_exit().await, Some(0));
    assert!(reported.elapsed() < Duration::from_secs(10), "took {:?}", reported.elapsed());
    assert!(!workspace.path("termination-log").exists());
}

#[tokio::test]
async fn a_restarted_agent_reports_interrupted_and_finished_runs() {
    if !has_pulumi("a_restarted_agent_reports_interrupted_and_finished_runs") {
        return;
    }
    let mut workspace = Workspace::start().await;
    workspace.put("name: example\nruntime: yaml\noutputs:\n  one: 1\n").await;
    let finished = workspace.request(&[]).await;
    workspace.run_to_end(&finished).await;
    let artifact = workspace.put(SLOW).await;
    let open = workspace.request(&[]).await;
    workspace.run(&open).await.unwrap();
    let cli = workspace.until_operation_begins(&open.id).await;
    signal(workspace.agent_pid(), "KILL");
    assert_eq!(workspace.wait_for_exit().await, Some(128 + 9), "the first process exits after its agent");
    workspace.start_agent().await;

    let (result, progress) = workspace.result(&open.id).await;
    assert_eq!(result.outcome(), Outcome::Interrupted);
    assert!(result.interrupted && result.message.contains("restarted"), "{}", result.message);
    assert!(!progress.is_empty());
    assert!(!processes().contains_key(&cli) || processes()[&cli].1 == 'Z');
    let (result, _) = workspace.result(&finished.id).await;
    assert_eq!(result.outputs.len(), 1);
    assert_eq!(workspace.status().await.artifact, Some(artifact));
    assert!(workspace.run(&open).await.unwrap(), "this is the ID of the interrupted run");
}

#[tokio::test]
async fn a_stopped_agent_is_resumed_and_killed_after_repeated_stops() {
    let mut workspace = Workspace::start_with(Some("exit 0"), &[]).await;
    let agent = workspace.agent_pid();
    signal(agent, "STOP");
    workspace.status().await;
    let stop = async || {
        while processes().contains_key(&agent) {
            signal(agent, "STOP");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    let (code, ()) = tokio::join!(workspace.wait_for_exit(), stop());
    assert_eq!(code, Some(128 + 9), "the first process kills the agent and exits");
}

/// Script that starts an orphaned process, and exits after three seconds. The orphan continues to run.
const LEAVES_ORPHAN: &str = "case \"$*\" in *up*) (setsid sleep 1000 &); sleep 3; exit 1;; esac";

#[tokio::test]
async fn an_agent_that_cannot_list_processes_exits_without_a_result() {
    if !has_programs("an_agent_that_cannot_list_processes_exits_without_a_result", &["prlimit"]) {
        return;
    }
    let mut workspace = Workspace::start_with(Some(LEAVES_ORPHAN), &[]).await;
    workspace.put("name: example\nruntime: yaml\n").await;
    let request = workspace.request(&[]).await;
    workspace.run(&request).await.unwrap();
    let agent = workspace.agent_pid();
    let end = Instant::now() + TEST_TIMEOUT;
    while descendants(agent).len() < 2 {
        assert!(Instant::now() < end, "descendants of the agent: {:?}", descendants(agent));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let left = descendants(workspace.init_pid());
    let lowered = Command::new("prlimit").args(["--pid", &agent.to_string(), "--nofile=3:3"]).status().unwrap();
    assert!(lowered.success());
    assert_eq!(workspace.wait_for_exit().await, Some(71), "{}", workspace.log());
    workspace.start_agent().await;
    let (result, _) = workspace.result(&request.id).await;
    assert_eq!(result.outcome(), Outcome::Interrupted, "{}", result.message);
    let states = processes();
    let left: Vec<_> = left.iter().filter(|pid| states.get(pid).is_some_and(|(_, state)| *state != 'Z')).collect();
    assert!(left.is_empty(), "processes of the run: {left:?}");
}

/// Script that starts three orphaned processes: a short-lived process, a long-lived process, and a long-lived process
/// with an empty environment.
const ORPHANS: &str = "case \"$*\" in *up*)
    (setsid sleep 0.2 &); (setsid sleep 1000 &); (env -i \"$(command -v setsid)\" \"$(command -v sleep)\" 1000 &)
    exit 1;; esac";

#[tokio::test]
async fn orphans_are_reaped_if_the_agent_is_not_pid_1() {
    let workspace = Workspace::start_with(Some(ORPHANS), &[]).await;
    leaves_no_orphans(&workspace, workspace.init_pid()).await;
}

#[tokio::test]
async fn orphans_are_reaped_if_the_agent_is_pid_1() {
    if !has_programs("orphans_are_reaped_if_the_agent_is_pid_1", &["unshare"]) {
        return;
    }
    let wrapper = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"];
    let workspace = Workspace::start_with(Some(ORPHANS), &wrapper).await;
    leaves_no_orphans(&workspace, children(workspace.init_pid())[0]).await;
}

/// Runs the program, and then checks that the agent is the only descendant of PID 1.
async fn leaves_no_orphans(workspace: &Workspace, init: u32) {
    workspace.put("name: example\nruntime: yaml\n").await;
    let request = workspace.request(&[]).await;
    let result = workspace.run_to_end(&request).await;
    assert_eq!(result.outcome(), Outcome::Failed, "{}", result.message);
    let states = processes();
    let left: Vec<_> =
        children(init).into_iter().filter(|pid| states.get(pid).is_some_and(|(_, state)| *state != 'Z')).collect();
    assert_eq!(left.len(), 1, "all processes of the run end before its result is reported: {left:?}");
    let end = Instant::now() + TEST_TIMEOUT;
    while descendants(init).len() != 1 {
        assert!(Instant::now() < end, "descendants of the first process: {:?}", descendants(init));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

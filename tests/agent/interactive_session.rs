//! Tests the interactive use of the CLI in the pod. During an interactive session, the agent starts no installation and
//! no run. The user's commands have the same project and environment as the last run.

use pulumi_controller::rpc::proto::{DeadRun, Outcome, RunRequest};

use crate::harness::{POLL, Workspace, archive, children, has_programs, has_pulumi};

const YAML: &str = "name: example\nruntime: yaml\n";
const SECRET: &str = "hunter22";

#[tokio::test]
async fn an_interactive_session_blocks_source_changes_and_runs() {
    let workspace = Workspace::start_with(Some("exit 0"), &[]).await;
    let before = workspace.put(YAML).await;
    assert_eq!(workspace.status().await.interactive_session, None);
    let session = workspace.session(&["config", "set", "--secret", "password", SECRET]);

    let request = workspace.request(&[]).await;
    let why = workspace.held(&request).await;
    let words = format!("interactive session in the pod: `pulumi config set` (process {}", session.pid());
    assert!(why.starts_with(&words), "{why}");
    assert!(
        workspace.connect().await.attach(&request.id, 0).await.unwrap_err().is_not_found(),
        "the journal does not contain the run"
    );
    let (artifact, bytes) = archive(&[("Pulumi.yaml", YAML), ("more", "more")]);
    workspace.put_archive(artifact.clone(), bytes).await.unwrap();
    let status = workspace.status().await;
    let reported = status.interactive_session.unwrap();
    assert_eq!((reported.command.as_str(), reported.pid), ("pulumi config set", session.pid()));
    let age = jiff::Timestamp::now().as_millisecond() - reported.since;
    assert!((-2000..600_000).contains(&age), "the reported age is {age} ms");
    let doing = status.candidate.unwrap().doing;
    assert!(doing.contains(&words), "{doing}");
    assert_eq!(status.artifact, Some(before));
    assert!(!format!("{why}{doing}{reported:?}{}", workspace.log()).contains(SECRET));

    drop(session);
    workspace.until_installed(&artifact).await.unwrap();
    let request = RunRequest { artifact: Some(artifact), ..request };
    assert_eq!(workspace.run_to_end(&request).await.outcome(), Outcome::Succeeded);
    assert_eq!(workspace.status().await.interactive_session, None);
}

#[tokio::test]
async fn informational_and_agent_cli_calls_are_not_interactive_sessions() {
    // The run lasts long enough for the agent to detect other CLI processes.
    let workspace = Workspace::start_with(Some("case \"$*\" in *up*) sleep 2;; esac"), &[]).await;
    workspace.put(YAML).await;
    let _query = workspace.session(&["version"]);
    let request = workspace.request(&[]).await;
    workspace.run(&request).await.unwrap();
    assert_eq!(workspace.status().await.interactive_session, None);
    assert_eq!(workspace.result(&request.id).await.0.outcome(), Outcome::Succeeded);
}

#[tokio::test]
async fn a_session_in_the_container_of_the_agent_is_detected_in_any_directory() {
    let test = "a_session_in_the_container_of_the_agent_is_detected_in_any_directory";
    if !has_programs(test, &["unshare", "nsenter"]) {
        return;
    }
    let wrapper = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"];
    let workspace = Workspace::start_with(Some("exit 0"), &wrapper).await;
    workspace.put(YAML).await;
    let root = std::path::Path::new("/");
    let elsewhere = workspace.session_with(&[], root, &["up"]);
    let first = children(workspace.init_pid())[0].to_string();
    assert_eq!(workspace.status().await.interactive_session, None, "sessions in other containers are not detected");
    let wrapper = ["nsenter", "--target", &first, "--pid"];
    let session = workspace.session_with(&wrapper, root, &["--stack", "dev", "import"]);
    let status = workspace.until("the session is detected", |status| status.interactive_session.is_some()).await;
    assert_eq!(status.interactive_session.unwrap().command, "pulumi import");
    drop(session);
    workspace.until("the session has ended", |status| status.interactive_session.is_none()).await;
    drop(elsewhere);
}

/// Script that replaces the CLI. The script waits, and then reports a stack lock until a command has removed the lock.
const LOCKED: &str = r#"
case "$*" in
    *cancel*) touch "$HOME/removed" ;;
    *up*)
        touch "$HOME/began"
        while [ ! -e "$HOME/go" ]; do sleep 0.05; done
        [ ! -e "$HOME/removed" ] || exit 0
        echo "error: the stack is currently locked by 1 lock(s). Either wait for the other process(es) to end" >&2
        echo "  file:///a.json: created by somebody@dead-0 (pid 42) at 2026-01-01T00:00:30Z" >&2
        exit 1 ;;
esac
"#;

#[tokio::test]
async fn no_lock_is_removed_during_an_interactive_session() {
    let workspace = Workspace::start_with(Some(LOCKED), &[]).await;
    workspace.put(YAML).await;
    let time = |text: &str| text.parse::<jiff::Timestamp>().unwrap().as_millisecond();
    let (started, ended) = (time("2026-01-01T00:00:00Z"), time("2026-01-01T00:01:00Z"));
    let dead_runs = vec![DeadRun { host: "dead-0".into(), pid: 42, started, ended, ..DeadRun::default() }];
    let request = RunRequest { lock_recovery: true, dead_runs, ..workspace.request(&[]).await };
    workspace.run(&request).await.unwrap();
    while !workspace.path("home/began").exists() {
        tokio::time::sleep(POLL).await;
    }
    let mut session = workspace.session(&["up"]);
    workspace.until("the session is detected", |status| status.interactive_session.is_some()).await;
    std::fs::write(workspace.path("home/go"), "").unwrap();
    let (result, _) = workspace.result(&request.id).await;
    assert_eq!(result.outcome(), Outcome::Conflict, "{}", result.message);
    assert!(
        !workspace.path("home/removed").exists()
            && workspace.log().contains("keeping the lock of a run that has ended: interactive session in the pod")
    );
    assert!(session.is_running(), "the end of the run does not end the session");

    drop(session);
    let request = RunRequest { id: "again".into(), ..request };
    let result = workspace.run_to_end(&request).await;
    assert_eq!(result.outcome(), Outcome::Succeeded, "{}", result.message);
    assert!(workspace.path("home/removed").exists());
}

#[tokio::test]
async fn interactive_commands_find_project_stack_and_backend_after_a_run() {
    if !has_pulumi("interactive_commands_find_project_stack_and_backend_after_a_run") {
        return;
    }
    let workspace = Workspace::start().await;
    workspace.put("name: example\nruntime: yaml\nconfig: {size: {type: string}}\noutputs: {one: 1}\n").await;
    let request = workspace.request(&[("size", "\"big\"")]).await;
    let result = workspace.run_to_end(&request).await;
    assert_eq!(result.outcome(), Outcome::Succeeded, "{}", result.message);
    assert_eq!(workspace.exec("pulumi stack --show-name").trim(), "dev");
    assert!(workspace.exec("pulumi stack ls").contains("dev*"), "the stack is selected");
    assert_eq!(workspace.exec("pulumi config get size").trim(), "big");
    assert_eq!(workspace.exec("pulumi stack output one").trim(), "1");
    let import = "pulumi import testing:index:Step mine some-id --yes --generate-code=false --protect=false";
    let text = workspace.exec(import);
    assert!(text.contains("1 imported"), "{text}");
}

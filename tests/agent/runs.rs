//! Tests the results, the preconditions and the cancellation of runs.

use pulumi_controller::rpc::proto::environment_variable::Source;
use pulumi_controller::rpc::proto::{self, Outcome};

use crate::harness::{POLL, TOKEN, Workspace, has_pulumi, outputs, variable};

/// Program that needs no provider and has outputs of every type.
const OUTPUTS: &str = "
name: example
runtime: yaml
config:
  size: {type: string, default: small}
  extra: {type: string, default: none}
outputs:
  size: ${size}
  extra: ${extra}
  list: [1, {two: 3}]
  password:
    fn::secret: hunter22
";

/// Program with a single resource that takes a minute to create.
pub const SLOW: &str = "
name: example
runtime: yaml
resources:
  step:
    type: testing:index:Step
    properties: {name: slow, seconds: 60, steps: 60}
";

/// Message that the agent logs for each SIGINT.
const INTERRUPTING: &str = "interrupting the CLI";

#[tokio::test]
async fn a_first_run_creates_the_stack_and_returns_outputs_with_secrets() {
    if !has_pulumi("a_first_run_creates_the_stack_and_returns_outputs_with_secrets") {
        return;
    }
    let workspace = Workspace::start().await;
    workspace.put(OUTPUTS).await;
    let request = workspace.request(&[("size", "\"big\"")]).await;
    assert!(!workspace.run(&request).await.unwrap());
    let (result, progress) = workspace.result(&request.id).await;
    assert_eq!(result.outcome(), Outcome::Succeeded, "{}", result.message);
    let found = outputs(&result);
    assert_eq!(found["size"], ("\"big\"", false));
    assert_eq!(found["password"], ("\"hunter22\"", true));
    assert_eq!(serde_json::from_str::<serde_json::Value>(found["list"].0).unwrap(), serde_json::json!([1, {"two": 3}]));
    assert_eq!(result.changes.get("create"), Some(&1), "{:?}", result.changes);
    assert!(progress.windows(2).all(|pair| pair[0].sequence + 1 == pair[1].sequence));
    let log = workspace.log();
    assert!(log.contains(&format!("{}: Updating (dev)", request.name)), "{log}");
    assert!(!log.contains("hunter22"), "{log}");
    assert_eq!(workspace.locks(), Vec::<std::path::PathBuf>::new());

    let again = workspace.request(&[("size", "\"big\"")]).await;
    let result = workspace.run_to_end(&again).await;
    assert_eq!(outputs(&result)["password"], ("\"hunter22\"", true), "an update without changes returns outputs");
    assert_eq!(result.changes.get("same"), Some(&1), "{:?}", result.changes);
}

#[tokio::test]
async fn a_config_key_that_is_no_longer_sent_is_removed() {
    if !has_pulumi("a_config_key_that_is_no_longer_sent_is_removed") {
        return;
    }
    let workspace = Workspace::start().await;
    workspace.put(OUTPUTS).await;
    let both = workspace.request(&[("size", "\"big\""), ("example:extra", "\"yes\"")]).await;
    let result = workspace.run_to_end(&both).await;
    assert_eq!((outputs(&result)["size"].0, outputs(&result)["extra"].0), ("\"big\"", "\"yes\""), "{}", result.message);
    let one = workspace.request(&[("size", "\"big\"")]).await;
    let result = workspace.run_to_end(&one).await;
    assert_eq!((outputs(&result)["size"].0, outputs(&result)["extra"].0), ("\"big\"", "\"none\""));
    assert_eq!(workspace.status().await.settings_digest, one.settings_digest);
}

#[tokio::test]
async fn a_failing_program_reports_the_reason() {
    if !has_pulumi("a_failing_program_reports_the_reason") {
        return;
    }
    let workspace = Workspace::start().await;
    workspace.put("name: example\nruntime: yaml\noutputs:\n  broken: ${nothing.here}\n").await;
    let request = workspace.request(&[]).await;
    let result = workspace.run_to_end(&request).await;
    assert_eq!(result.outcome(), Outcome::Failed);
    assert!(result.message.contains("nothing"), "{}", result.message);
    assert!(result.outputs.is_empty());
}

#[tokio::test]
async fn another_run_waits_until_the_open_run_is_canceled() {
    if !has_pulumi("another_run_waits_until_the_open_run_is_canceled") {
        return;
    }
    let workspace = Workspace::start().await;
    let artifact = workspace.put(SLOW).await;
    let request = workspace.request(&[]).await;
    assert!(!workspace.run(&request).await.unwrap());
    workspace.until_operation_begins(&request.id).await;
    assert!(workspace.run(&request).await.unwrap(), "the agent identifies the run by its ID");
    assert_eq!(workspace.status().await.open_operation, request.id);
    assert_eq!(workspace.locks().len(), 1);

    let other = proto::RunRequest { id: "another".into(), ..request.clone() };
    let held = workspace.held(&other).await;
    assert!(held.contains(&request.id), "{held}");
    let changed = proto::RunRequest { refresh: true, ..request.clone() };
    let refusal = workspace.run(&changed).await.unwrap_err();
    assert!(refusal.message.contains("different value of refresh"), "{refusal}");
    let (next, archive) = crate::harness::archive(&[("Pulumi.yaml", OUTPUTS)]);
    let refusal = workspace.put_archive(next, archive).await.unwrap_err();
    assert!(refusal.message.contains(&request.id), "{refusal}");

    workspace.connect().await.cancel(&request.id).await.unwrap();
    let (result, _) = workspace.result(&request.id).await;
    assert_eq!(result.outcome(), Outcome::Canceled, "{}", result.message);
    assert!(!result.interrupted, "the resource steps completed");
    assert!(result.last_output.contains("Duration: "), "{}", result.last_output);
    assert_eq!(workspace.locks(), Vec::<std::path::PathBuf>::new());
    assert_eq!(workspace.status().await.artifact, Some(artifact));
    assert_eq!(workspace.status().await.open_operation, "");
}

#[tokio::test]
async fn a_repeated_cancel_does_not_interrupt_the_resource_steps() {
    if !has_pulumi("a_repeated_cancel_does_not_interrupt_the_resource_steps") {
        return;
    }
    let workspace = Workspace::start().await;
    let step = "seconds: 15, steps: 15, ignoreCancel: true";
    workspace.put(&SLOW.replace("seconds: 60, steps: 60", step)).await;
    let request = workspace.request(&[]).await;
    workspace.run(&request).await.unwrap();
    workspace.until_operation_begins(&request.id).await;
    let client = workspace.connect().await;
    client.cancel(&request.id).await.unwrap();
    workspace.until_logged(INTERRUPTING).await;
    for _ in 0..3 {
        client.cancel(&request.id).await.unwrap();
    }
    assert_eq!(workspace.status().await.open_operation, request.id, "the resource step continues");
    let (result, _) = workspace.result(&request.id).await;
    assert_eq!(result.outcome(), Outcome::Canceled, "{}", result.message);
    assert!(!result.interrupted, "the resource step completed");
    assert_eq!(workspace.log().matches(INTERRUPTING).count(), 1, "{}", workspace.log());
    assert_eq!(workspace.locks(), Vec::<std::path::PathBuf>::new());
}

#[tokio::test]
async fn a_run_that_waits_for_a_mount_is_not_unknown_and_can_be_canceled() {
    let workspace = Workspace::start_with(Some("case \"$*\" in *up*) touch \"$HOME/ran\";; esac"), &[]).await;
    workspace.put(OUTPUTS).await;
    let directory = workspace.path("secrets/late");
    std::fs::create_dir(&directory).unwrap();
    let required_directories = vec![directory.to_str().unwrap().to_owned()];
    let request = proto::RunRequest { required_directories, ..workspace.request(&[]).await };
    let client = workspace.connect().await;
    let cancel = async {
        let mut error = client.attach(&request.id, 0).await.unwrap_err();
        while error.is_not_found() {
            tokio::time::sleep(POLL).await;
            error = client.attach(&request.id, 0).await.unwrap_err();
        }
        assert!(error.is_unavailable() && error.message.contains("is still starting"), "{error}");
        client.cancel(&request.id).await.unwrap();
        std::fs::write(directory.join("key"), "value").unwrap();
    };
    let (known, ()) = tokio::join!(workspace.run(&request), cancel);
    assert!(!known.unwrap());
    let (result, _) = workspace.result(&request.id).await;
    assert_eq!(result.outcome(), Outcome::Canceled, "{}", result.message);
    assert!(!workspace.path("home/ran").exists());
}

#[tokio::test]
async fn a_run_that_the_controller_has_given_up_is_rejected() {
    let workspace = Workspace::start_with(Some("exit 0"), &[]).await;
    workspace.put(OUTPUTS).await;
    let (client, request) = (workspace.connect().await, workspace.request(&[]).await);
    assert!(client.attach_or_prevent_start(&request.id, 0).await.unwrap_err().is_not_found());
    let refusal = workspace.run(&request).await.unwrap_err();
    assert!(refusal.is_precondition() && refusal.message.contains("was canceled before it began"), "{refusal}");
    assert!(client.attach(&request.id, 0).await.unwrap_err().is_not_found());
}

#[tokio::test]
async fn a_foreign_lock_is_reported_as_a_conflict_with_its_holder() {
    if !has_pulumi("a_foreign_lock_is_reported_as_a_conflict_with_its_holder") {
        return;
    }
    let workspace = Workspace::start().await;
    workspace.put(OUTPUTS).await;
    let first = workspace.request(&[]).await;
    workspace.run_to_end(&first).await;
    workspace.put_lock("elsewhere", 4711, "2026-01-01T00:00:00Z");
    let second = workspace.request(&[]).await;
    let result = workspace.run_to_end(&second).await;
    assert_eq!(result.outcome(), Outcome::Conflict, "{}", result.message);
    assert!(result.message.contains("elsewhere"), "{}", result.message);
    let time = "2026-01-01T00:00:00Z".to_owned();
    let holder = proto::LockHolder { user: "somebody".into(), host: "elsewhere".into(), pid: 4711, time };
    assert_eq!(result.holders, [holder]);
    assert!(!result.interrupted);
}

#[tokio::test]
async fn a_run_is_rejected_unless_its_pod_agent_and_inputs_match() {
    if !has_pulumi("a_run_is_rejected_unless_its_pod_agent_and_inputs_match") {
        return;
    }
    let workspace = Workspace::start().await;
    let empty = workspace.request(&[]).await;
    let refusal = workspace.run(&empty).await.unwrap_err();
    assert!(refusal.message.contains("no source is installed"), "{refusal}");
    workspace.put(OUTPUTS).await;
    let good = workspace.request(&[]).await;
    let artifact = |digest: &str, directory: &str| {
        Some(proto::Artifact { digest: digest.to_owned(), directory: directory.to_owned() })
    };
    let digest = good.artifact.clone().unwrap().digest;
    let missing = workspace.path("secrets/not-there").to_str().unwrap().to_owned();
    for (request, words) in [
        (proto::RunRequest { pod_uid: "other".into(), ..good.clone() }, vec!["another pod", "other"]),
        (proto::RunRequest { start_id: "other".into(), ..good.clone() }, vec!["another instance of the agent"]),
        (
            proto::RunRequest { artifact: artifact("sha256:12", ""), ..good.clone() },
            vec!["another source", "sha256:12"],
        ),
        (proto::RunRequest { artifact: artifact(&digest, "deep"), ..good.clone() }, vec!["another source", "\"deep\""]),
        (proto::RunRequest { settings_digest: "sha256:12".into(), ..good.clone() }, vec!["settings", "sha256:12"]),
        (proto::RunRequest { kind: 0, ..good.clone() }, vec!["kind 0"]),
        (proto::RunRequest { id: "../escape".into(), ..good.clone() }, vec!["invalid ID"]),
        (
            proto::RunRequest { environment: vec![variable("KEY", Source::File(missing.clone()))], ..good.clone() },
            vec!["KEY", missing.as_str()],
        ),
    ] {
        let refusal = workspace.run(&request).await.unwrap_err();
        assert!(
            refusal.is_refusal() && words.iter().all(|word| refusal.message.contains(word)),
            "{words:?}: {refusal}"
        );
    }
    let client = workspace.connect().await;
    client.drain().await.unwrap();
    let refusal = workspace.run(&good).await.unwrap_err();
    assert!(refusal.message.contains("draining"), "{refusal}");
    assert!(client.attach("unknown", 0).await.unwrap_err().is_not_found());
    assert!(client.cancel("unknown").await.unwrap_err().is_not_found());
}

#[tokio::test]
async fn a_rotated_secret_reaches_the_next_run_but_never_the_log() {
    let cli = "case \"$*\" in *up*) echo \"the token is $TOKEN\"; echo \"$TOKEN\" > \"$HOME/seen\"; exit 1;; esac";
    let workspace = Workspace::start_with(Some(cli), &[]).await;
    workspace.put(OUTPUTS).await;
    let first = workspace.request(&[]).await;
    let result = workspace.run_to_end(&first).await;
    let seen = || std::fs::read_to_string(workspace.path("home/seen")).unwrap();
    assert_eq!(seen().trim(), TOKEN, "{}", result.message);
    std::fs::write(workspace.path("secrets/token"), "rotated-token").unwrap();
    let second = workspace.request(&[]).await;
    let result = workspace.run_to_end(&second).await;
    assert_eq!(seen().trim(), "rotated-token");
    let log = workspace.log();
    assert!(log.contains("the token is [secret]"), "{log}");
    for text in [&log, &result.message] {
        assert!(!text.contains(TOKEN) && !text.contains("rotated-token"), "{text}");
    }
}

/// The agent must redact a message before it truncates the message. Otherwise, a part of a secret could remain.
#[tokio::test]
async fn truncating_a_message_reveals_no_part_of_a_secret() {
    let cli = r#"
        case "$*" in *--event-log=*) ;; *) exit 0 ;; esac
        for word; do case "$word" in --event-log=*) log=${word#--event-log=} ;; esac; done
        pad() { head -c "$1" /dev/zero | tr '\0' x; }
        for length in 2040 2045 4090 8170 8190; do
            printf '{"diagnosticEvent":{"severity":"error","message":"%s"}}\n' "$(pad $length)$TOKEN$(pad 40000)"
        done >"$log"
        printf '%s\n' "$(pad 65530)$TOKEN$(pad 4060)$TOKEN$(pad 20)" >&2
        exit 255
    "#;
    let workspace = Workspace::start_with(Some(cli), &[]).await;
    workspace.put(OUTPUTS).await;
    let request = workspace.request(&[]).await;
    workspace.run(&request).await.unwrap();
    let (result, progress) = workspace.result(&request.id).await;
    assert_eq!(result.outcome(), Outcome::Failed);
    let reported = format!("{}{}{progress:?}{}", result.message, result.last_output, workspace.log());
    for part in ["token-", "that", "nobody", "-may", "-see"] {
        assert!(!reported.contains(part), "{part} is visible");
    }
    assert!(reported.contains("[secret]") && result.last_output.ends_with(&"x".repeat(20)), "{}", result.last_output);
}

#[tokio::test]
async fn destroying_a_stack_missing_from_the_backend_fails() {
    if !has_pulumi("destroying_a_stack_missing_from_the_backend_fails") {
        return;
    }
    let workspace = Workspace::start().await;
    workspace.put(OUTPUTS).await;
    let up = workspace.request(&[]).await;
    let destroy = proto::RunRequest { kind: proto::OperationKind::Destroy.into(), ..up.clone() };
    let result = workspace.run_to_end(&destroy).await;
    assert_eq!(result.outcome(), Outcome::StackNotFound, "{}", result.message);
    assert!(result.message.contains("not found"), "{}", result.message);
    assert!(result.backend.starts_with("file://"), "{}", result.backend);
    assert_eq!(result.project.as_ref().map(|project| project.name.as_str()), Some("example"));
    assert!(result.last_output.contains("no stack named"), "{}", result.last_output);

    let up = proto::RunRequest { id: "up".into(), ..up };
    workspace.run_to_end(&up).await;
    let destroy = proto::RunRequest { id: "destroy".into(), ..destroy };
    let result = workspace.run_to_end(&destroy).await;
    assert_eq!(result.outcome(), Outcome::Succeeded, "{}", result.message);
    assert_eq!(result.changes.get("delete"), Some(&1), "{:?}", result.changes);
}

//! Tests pushes to a Stack's repository before and during runs.

use serde_json::json;

use crate::harness::{Program, WaitLimit, once, run};
use crate::runs_parts::{failure, slow};

#[test]
fn a_push_replaces_the_source_and_starts_a_run_in_the_same_pod() {
    run("push", async |scene| {
        let source = scene.source("app").await;
        let with_text = |text: &str| {
            Program::new("push").step("step", json!({"value": text})).output("result", json!("${step.value}"))
        };
        let first = source.push(&with_text("one").files()).await;
        let main = scene.start(scene.stack("main", &source)).await;
        main.until_applied(&first).await;
        let pod = main.pod_and_restarts().await;

        let second = source.push(&with_text("two").files()).await;
        let stack = main.until_applied(&second).await;

        assert_eq!(json!(stack.status.expect("a status").outputs), json!({"result": "two"}));
        assert_eq!(main.pod_and_restarts().await, pod, "the pod and its containers are not replaced");
        assert_eq!(pod.1, 0, "no container has restarted");
        assert_eq!(main.log.operations().await, once(&["create step", "update step"]));
        assert_eq!(main.updates().await.len(), 2);
        let installed = main.workspace().await.status.and_then(|status| status.artifact).expect("artifact in status");
        assert_eq!(installed.revision, second.revision());
    });
}

#[test]
fn a_push_during_a_run_starts_another_run_after_the_open_run() {
    run("push-in-run", async |scene| {
        let source = scene.source("app").await;
        let first = source.push(&slow("push-in-run", 15).files()).await;
        let main = scene.start(scene.stack("main", &source)).await;
        main.log.wait_for("create", "slow", "begin").await;
        let pod = main.pod_and_restarts().await;

        let second = source.push(&slow("push-in-run", 1).files()).await;
        source.artifact_of(&second).await;
        assert_eq!(
            main.log.operations().await,
            ["create slow begin"],
            "the run is open when the source has a new revision"
        );

        main.until_applied(&second).await;
        assert_eq!(main.log.operations().await, once(&["create slow", "update slow"]), "the runs are sequential");
        assert_eq!(main.pod_and_restarts().await, pod, "the pod and its containers are not replaced");
        let updates = main.updates().await;
        let ran: Vec<_> = updates.iter().map(|update| update.artifact().map(|a| a.revision.clone())).collect();
        assert_eq!(ran, [Some(first.revision()), Some(second.revision())]);
        let failures: Vec<&str> = updates.iter().filter_map(failure).collect();
        assert!(failures.is_empty(), "{failures:?}");
        let messages: Vec<String> = updates.into_iter().filter_map(|update| update.spec.message).collect();
        assert_eq!(
            messages,
            ["Initial stack update".to_owned(), format!("New commit detected: \"{}\"", second.revision())]
        );
    });
}

#[test]
fn a_file_that_a_push_removes_is_missing_from_the_next_run() {
    run("removed-file", async |scene| {
        let source = scene.source("app").await;
        let program = |text| Program::new("removed-file").output("text", text);
        let mut files = program(json!({"fn::readFile": "./note.txt"})).files();
        files.push(crate::harness::File { path: "note.txt".to_owned(), content: "a note".to_owned() });
        let first = source.push(&files).await;
        let main = scene.start(scene.stack("main", &source)).await;
        let stack = main.until_applied(&first).await;
        assert_eq!(json!(stack.status.expect("a status").outputs), json!({"text": "a note"}));

        source.push(&program(json!({"fn::readFile": "./note.txt"})).files()).await;
        main.until("to report that the file does not exist", WaitLimit::Run, |stack| {
            let last = stack.status.as_ref().and_then(|status| status.last_update.as_ref());
            last.and_then(|update| update.message.as_deref()).is_some_and(|message| message.contains("note.txt"))
        })
        .await;
    });
}

#[test]
fn the_same_revision_is_not_run_twice() {
    run("same-revision", async |scene| {
        let source = scene.source("app").await;
        let commit = source.push(&Program::new("same-revision").step("step", json!({"value": "one"})).files()).await;
        let main = scene.start(scene.stack("main", &source)).await;
        main.until_applied(&commit).await;

        for _ in 0..2 {
            let request = source.request_reconciliation().await;
            source.until_handled(&request).await;
        }
        // The run of a second Stack with the same source proves that the controller has observed all pushes.
        let witness = scene.start(scene.stack("witness", &source)).await;
        witness.until_applied(&commit).await;

        assert_eq!(main.updates().await.len(), 1);
        assert_eq!(main.log.operations().await, once(&["create step"]));
    });
}

#[test]
fn stacks_with_the_same_digest_share_one_fetch() {
    run("one-fetch", async |scene| {
        let source = scene.source("app").await;
        // Both Stacks wait for the source, so both request the artifact simultaneously.
        let first = scene.start(scene.stack("first", &source)).await;
        let second = scene.start(scene.stack("second", &source)).await;
        let program = Program::new("one-fetch").output("scene", json!(scene.id));
        let commit = source.push(&program.files()).await;
        first.until_applied(&commit).await;
        second.until_applied(&commit).await;

        let digest = source.artifact_of(&commit).await.digest;
        let lines = crate::harness::Controller::new(&scene.client).log_lines(&digest).await;
        let fetches: Vec<_> = lines.iter().filter(|line| line.contains("fetched artifact")).collect();
        assert_eq!(fetches.len(), 1, "log lines of the controller about {digest}: {lines:#?}");
    });
}

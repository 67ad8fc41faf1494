//! Tests for the task that stores a completed run.

use object_store::ObjectStore;
use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;
use serde_json::json;

use super::*;
use crate::api::auto::TerminationEvidence;
use crate::api::conditions::update_reason;
use crate::controller::test_parts::TestParts;
use crate::history::{File, Place, Retention};
use crate::runtime::fake_api::{FakeResponse, client};
use crate::runtime::requeue::{self, Requeues};

const RETENTION: Retention = Retention { max_runs: 5, max_age: Duration::ZERO, max_size: None };

fn update() -> Update {
    let update = json!({
        "apiVersion": "auto.pulumi.com/v1alpha1", "kind": "Update",
        "metadata": {
            "name": "web-1", "namespace": "apps", "uid": "uid-1", "creationTimestamp": "2026-11-26T18:42:07Z",
            "ownerReferences": [{"kind": "Stack", "apiVersion": "pulumi.com/v1", "name": "web", "uid": "stack-uid"}],
        },
        "spec": {"workspaceName": "web", "stackName": "dev", "type": "up"},
        "status": {"run": {"podUID": "pod", "agentStartID": "start", "settingsDigest": "sha256:00"}},
    });
    serde_json::from_value(update).unwrap()
}

struct Fixture {
    writer: HistoryWriter,
    store: HistoryStore,
    requeues: Requeues<Update>,
    _parts: TestParts,
}

fn fixture(storage: Box<dyn ObjectStore>) -> Fixture {
    let (client, _) = client(|_| FakeResponse::refusal(404, "NotFound"));
    let parts = TestParts::new(client);
    let (requeue, requeues) = requeue::queue();
    let place = Place { storage, prefix: String::new(), base: "s3://runs".to_owned(), retention: RETENTION };
    let store = HistoryStore::new(place, parts.metrics.clone());
    let (tasks, end, metrics) = (parts.tasks.clone(), parts.end.clone(), parts.metrics.clone());
    let writer = HistoryWriter::new(store.clone(), parts.agents.clone(), requeue, tasks, end, metrics);
    Fixture { writer, store, requeues, _parts: parts }
}

/// Stores a run without an agent, and waits until the task has completed.
async fn stored(fixture: &mut Fixture) -> RunHistory {
    let outcome = RunOutcome::interrupted("the node is gone", TerminationEvidence::NodeGone, None);
    assert_eq!(fixture.writer.store(&update(), None, &outcome, None), Stored::NotYet);
    assert_eq!(fixture.writer.store(&update(), None, &outcome, None), Stored::NotYet, "the run has only one task");
    let requeued = futures::StreamExt::next(&mut fixture.requeues).await;
    assert_eq!(requeued, Some(ObjectRef::from_obj(&update())));
    match fixture.writer.store(&update(), None, &outcome, None) {
        Stored::Done(history) => history,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_run_without_an_agent_is_stored_without_its_transcript() {
    let mut fixture = fixture(Box::new(InMemory::new()));
    let history = stored(&mut fixture).await;
    assert_eq!(history.url.as_deref(), Some("s3://runs/apps/web/stack-uid/20261126T184207Z-up-uid-1"));
    assert_eq!(history.message.as_deref(), Some("the transcript was lost with the pod"));
    let run = summary::run_name(&update(), None);
    let summary = fixture.store.read(&run, File::Summary).await.unwrap().unwrap();
    let summary: serde_json::Value = serde_json::from_slice(&summary).unwrap();
    assert_eq!((&summary["update"], &summary["reason"]), (&json!("web-1"), &json!("Aborted")));
    fixture.writer.forget("uid-1");
    assert_eq!(stored(&mut fixture).await, history, "a new process stores the same files");
}

#[tokio::test]
async fn the_summary_of_a_previous_process_is_kept_without_an_agent() {
    let rows = [
        (r#"{"version":1,"files":[{"name":"output.log.gz","size":7}]}"#, true, None),
        (r#"{"version":1,"transcriptMissing":"no transcript"}"#, true, Some("no transcript")),
        ("incomplete {", false, Some("the transcript was lost with the pod")),
    ];
    for (previous, is_kept, message) in rows {
        let mut fixture = fixture(Box::new(InMemory::new()));
        let run = summary::run_name(&update(), None);
        fixture.store.write(&run, File::Summary, previous.as_bytes().to_vec()).await.unwrap();
        let history = stored(&mut fixture).await;
        assert_eq!(history.url, Some(fixture.store.url(&run)), "{previous}");
        assert_eq!(history.message.as_deref(), message, "{previous}");
        let content = fixture.store.read(&run, File::Summary).await.unwrap().unwrap();
        assert_eq!(&content[..] == previous.as_bytes(), is_kept, "{previous}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_unavailable_storage_delays_only_the_first_run() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("history");
    std::fs::create_dir(&path).unwrap();
    let mut fixture = fixture(Box::new(LocalFileSystem::new_with_prefix(&path).unwrap()));
    std::fs::remove_dir(&path).unwrap();
    std::fs::write(&path, "not a directory").unwrap();
    let started = Instant::now();
    let history = stored(&mut fixture).await;
    assert_eq!(history.url, None);
    let message = history.message.unwrap();
    assert!(message.contains("to the history of runs"), "{message}");
    assert!(started.elapsed() < Duration::from_secs(60));
    fixture.writer.forget("uid-1");
    let started = Instant::now();
    assert_eq!(stored(&mut fixture).await.url, None);
    assert!(started.elapsed() <= Duration::from_secs(5), "{:?}", started.elapsed());
}

#[tokio::test]
async fn a_run_that_did_not_start_has_no_history() {
    let fixture = fixture(Box::new(InMemory::new()));
    let mut update = update();
    update.status = None;
    let outcome = RunOutcome::failed(update_reason::CANCELED, "canceled");
    assert_eq!(fixture.writer.store(&update, None, &outcome, None), Stored::Never);
}

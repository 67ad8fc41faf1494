use std::time::Duration;

use prost::Message;

use super::*;
use crate::rpc::proto::TranscriptPart;
use crate::rpc::proto::progress::Event;

fn request(id: &str, started: i64) -> Request {
    Request {
        id: id.into(),
        name: format!("update-{id}"),
        kind: proto::OperationKind::Up.into(),
        digest: "sha256:00".into(),
        directory: String::new(),
        stack: "dev".into(),
        settings_digest: "sha256:11".into(),
        refresh: false,
        message: String::new(),
        start_id: "first".into(),
        process_space: "here".into(),
        started,
        ..Request::default()
    }
}

fn diagnostic(message: String) -> Event {
    Event::Diagnostic(proto::Diagnostic { severity: "warning".into(), urn: String::new(), message })
}

fn result(message: &str) -> proto::Result {
    proto::Result { outcome: proto::Outcome::Succeeded.into(), message: message.into(), ..Default::default() }
}

async fn sequences(reader: &mut Reader) -> (Vec<u64>, Option<Arc<proto::Result>>) {
    let mut sequences = Vec::new();
    while let Some(item) = reader.next().await {
        match item {
            Item::Progress(progress) => sequences.push(progress.sequence),
            Item::Result(result) => return (sequences, Some(result)),
        }
    }
    (sequences, None)
}

#[test]
fn an_operation_id_must_be_a_valid_directory_name() {
    for id in ["6b1c8f0e-4d53-4a0c-9d37-1f1b7a3f6d11", "a", "0"] {
        validate_id(id).unwrap();
    }
    for id in ["", ".", "..", "a/b", "-a", "a b", "ä", "a\0", &"a".repeat(65)] {
        validate_id(id).unwrap_err();
    }
}

#[tokio::test]
async fn a_reader_gets_earlier_and_later_progress_and_then_the_result() {
    let directory = tempfile::tempdir().unwrap();
    let journal = Arc::new(Journal::open(directory.path()).unwrap());
    let record = journal.begin(request("a", 1)).unwrap();
    record.append(diagnostic("one".into()));
    record.append(diagnostic("two".into()));
    let mut reader = Reader::new(record.clone(), 1);
    let late = tokio::spawn({
        let (journal, record) = (journal.clone(), record.clone());
        async move {
            tokio::time::sleep(Duration::from_millis(20)).await;
            record.append(diagnostic("three".into()));
            journal.finish(&record, result("done"));
        }
    });
    let (seen, end) = tokio::time::timeout(Duration::from_secs(10), sequences(&mut reader)).await.unwrap();
    late.await.unwrap();
    assert_eq!(seen, [1, 2]);
    assert_eq!(end.unwrap().message, "done");
    assert_eq!(reader.next().await, None);
}

#[tokio::test]
async fn a_reopened_journal_contains_finished_and_unfinished_operations() {
    let directory = tempfile::tempdir().unwrap();
    let journal = Journal::open(directory.path()).unwrap();
    let finished = journal.begin(request("finished", 1)).unwrap();
    finished.append(diagnostic("one".into()));
    journal.finish(&finished, result("done"));
    let open = journal.begin(request("open", 2)).unwrap();
    open.append(Event::Started(proto::Started { pid: 41 }));
    open.append(Event::Exited(proto::Exited { interrupted: false }));
    open.append(Event::Started(proto::Started { pid: 42 }));
    std::fs::create_dir(directory.path().join("never-begun")).unwrap();
    drop(journal);

    let journal = Journal::open(directory.path()).unwrap();
    let unfinished = journal.unfinished();
    assert_eq!(unfinished.len(), 1);
    let process = |pid, interrupted| StartedProcess { pid, permalink: None, interrupted };
    assert_eq!(Reader::processes(unfinished[0].clone()).unwrap(), [process(41, Some(false)), process(42, None)]);
    assert!(!directory.path().join("never-begun").exists());
    let (seen, end) = sequences(&mut Reader::new(journal.find("finished").unwrap(), 0)).await;
    assert_eq!((seen, end.unwrap().message.as_str()), (vec![0], "done"));
}

#[test]
fn a_reopened_journal_completes_the_transcript_of_a_finished_operation() {
    let directory = tempfile::tempdir().unwrap();
    let journal = Journal::open(directory.path()).unwrap();
    for id in ["finished", "unfinished"] {
        journal.begin(request(id, 1)).unwrap().transcript().add_output("one");
    }
    // The agent ends after it has written the result.
    std::fs::write(directory.path().join("finished/result"), result("done").encode_to_vec()).unwrap();
    drop(journal);

    let journal = Journal::open(directory.path()).unwrap();
    let size = |id: &str| journal.find(id).unwrap().transcript().read(TranscriptPart::Output, 0).unwrap().1;
    assert!(size("finished") > 0);
    assert_eq!(size("unfinished"), 0, "the recovery of the operation completes its transcript");
}

#[test]
fn a_result_that_cannot_be_written_frees_the_space_of_the_progress() {
    let directory = tempfile::tempdir().unwrap();
    let journal = Journal::open(directory.path()).unwrap();
    let record = journal.begin(request("a", 1)).unwrap();
    record.append(diagnostic("one".into()));
    let open = std::fs::File::open(record.segment(0)).unwrap();
    assert!(open.metadata().unwrap().len() > 0);
    // A file cannot replace a directory. A directory at the path of the result therefore simulates a full disk.
    std::fs::create_dir(directory.path().join("a/result")).unwrap();
    journal.finish(&record, result("done"));
    assert_eq!(open.metadata().unwrap().len(), 0, "a reader does not prevent that the space is freed");
    assert!(!record.segment(0).exists());
    assert_eq!(record.result().unwrap().message, "done");
}

#[tokio::test]
async fn progress_continues_after_a_segment_that_cannot_be_opened() {
    let directory = tempfile::tempdir().unwrap();
    let journal = Journal::open(directory.path()).unwrap();
    let record = journal.begin(request("a", 1)).unwrap();
    record.append(Event::Started(proto::Started { pid: 42 }));
    // A directory at the path of the next segment simulates a full disk.
    std::fs::create_dir(record.segment(1)).unwrap();
    while std::fs::metadata(record.segment(0)).unwrap().len() < 8 * 1024 * 1024 {
        record.append(diagnostic("x".repeat(900 * 1024)));
    }
    let complete = std::fs::metadata(record.segment(0)).unwrap().len();
    for _ in 0..3 {
        record.append(diagnostic("lost".into()));
    }
    let written = record.watch().borrow().next;
    std::fs::remove_dir(record.segment(1)).unwrap();
    record.append(diagnostic("kept".into()));
    assert_eq!(std::fs::metadata(record.segment(0)).unwrap().len(), complete);
    let state = record.watch().borrow().clone();
    assert_eq!((state.segment, state.next), (1, written + 1), "readers read the new segment");
    assert_eq!(
        Reader::processes(record.clone()).unwrap(),
        [StartedProcess { pid: 42, permalink: None, interrupted: None }]
    );
    journal.finish(&record, result("done"));
    let (seen, end) = sequences(&mut Reader::new(record, 0)).await;
    assert_eq!((seen.last(), end.is_some()), (Some(&written), true));
}

#[test]
fn only_the_pod_of_an_unfinished_operation_can_report_its_end() {
    let directory = tempfile::tempdir().unwrap();
    let journal = Journal::open(directory.path()).unwrap();
    let in_pod = |id: &str, pod: Option<&str>| {
        journal.begin(Request { pod_uid: pod.map(str::to_owned), ..request(id, 1) }).unwrap()
    };
    in_pod("own", Some("this"));
    in_pod("earlier-version", None);
    in_pod("other", Some("previous"));
    journal.finish(&in_pod("finished", Some("previous")), result("done"));
    drop(journal);

    let journal = Journal::open(directory.path()).unwrap();
    journal.forget_unfinished_of_other_pods("this");
    let kept: Vec<String> = journal.records().keys().cloned().collect();
    assert_eq!(kept, ["earlier-version", "finished", "own"]);
    assert!(!directory.path().join("other").exists());
}

#[test]
fn an_operation_with_an_unreadable_result_is_unfinished() {
    let directory = tempfile::tempdir().unwrap();
    let journal = Journal::open(directory.path()).unwrap();
    for id in ["no-result", "no-request"] {
        let record = journal.begin(request(id, 1)).unwrap();
        journal.finish(&record, result("done"));
    }
    std::fs::write(directory.path().join("no-result/result"), b"\xff").unwrap();
    std::fs::write(directory.path().join("no-request/request.json"), b"{").unwrap();
    for _ in 0..2 {
        let journal = Journal::open(directory.path()).unwrap();
        let unfinished: Vec<_> = journal.unfinished().iter().map(|record| record.request().id.clone()).collect();
        assert_eq!(unfinished, ["no-result"]);
        assert!(journal.find("no-request").is_none());
        assert!(directory.path().join("no-request.unreadable/result").is_file());
    }
}

#[tokio::test]
async fn the_result_is_returned_even_if_the_progress_is_damaged() {
    let directory = tempfile::tempdir().unwrap();
    let journal = Journal::open(directory.path()).unwrap();
    let record = journal.begin(request("a", 1)).unwrap();
    record.append(diagnostic("one".into()));
    let path = record.segment(0);
    let whole = std::fs::read(&path).unwrap();
    std::fs::write(&path, [whole.as_slice(), &[0xff; 64]].concat()).unwrap();
    journal.finish(&record, result("done"));
    let (seen, end) = sequences(&mut Reader::new(record, 0)).await;
    assert_eq!((seen, end.unwrap().message.as_str()), (vec![0], "done"));
}

#[test]
fn acknowledged_records_are_removed_first_and_five_records_are_kept() {
    let directory = tempfile::tempdir().unwrap();
    let journal = Journal::open(directory.path()).unwrap();
    for number in 0..7 {
        let record = journal.begin(request(&format!("id-{number}"), number)).unwrap();
        journal.finish(&record, result("done"));
        if number >= 2 {
            record.acknowledge().unwrap();
        }
    }
    let kept: Vec<String> = journal.records().keys().cloned().collect();
    assert_eq!(kept, ["id-0", "id-1", "id-4", "id-5", "id-6"]);
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 5);
    assert_eq!(journal.unacknowledged().len(), 2);
}

#[tokio::test]
async fn recorded_progress_is_limited_to_the_newest_events() {
    let directory = tempfile::tempdir().unwrap();
    let journal = Journal::open(directory.path()).unwrap();
    let record = journal.begin(request("a", 1)).unwrap();
    let mut slow = Reader::new(record.clone(), 0);
    record.append(diagnostic("first".into()));
    assert!(matches!(slow.next().await, Some(Item::Progress(progress)) if progress.sequence == 0));
    let count = 40;
    for _ in 0..count {
        record.append(diagnostic("x".repeat(900 * 1024)));
    }
    journal.finish(&record, result("done"));
    let size: u64 = std::fs::read_dir(directory.path().join("a"))
        .unwrap()
        .map(|entry| entry.unwrap().metadata().unwrap().len())
        .sum();
    assert!(size < 18 * 1024 * 1024, "{size}");
    let (seen, end) = sequences(&mut Reader::new(record.clone(), 0)).await;
    assert_eq!(seen.last(), Some(&count));
    assert!(seen.windows(2).all(|pair| pair[0] + 1 == pair[1]), "{seen:?}");
    assert!(end.is_some());
    let (seen, end) = sequences(&mut slow).await;
    assert_eq!(seen.last(), Some(&count));
    assert!(end.is_some());
}

use flate2::read::GzDecoder;

use super::*;

fn text(transcript: &Transcript, part: TranscriptPart) -> String {
    let mut content = Vec::new();
    loop {
        let (chunk, size) = transcript.read(part, content.len() as u64).unwrap();
        content.extend(chunk);
        if content.len() as u64 == size {
            break;
        }
    }
    let mut text = String::new();
    if !content.is_empty() {
        GzDecoder::new(content.as_slice()).read_to_string(&mut text).unwrap();
    }
    text
}

#[test]
fn a_short_transcript_is_complete() {
    let directory = tempfile::tempdir().unwrap();
    let transcript = Transcript::new(directory.path());
    transcript.add_output("one");
    transcript.add_output("two");
    transcript.add_event(br#"{"sequence":1,"message":"hunter22"}"#, &Redactor::new(["hunter22"]));
    assert_eq!(transcript.read(TranscriptPart::Output, 0).unwrap(), (Vec::new(), 0), "the operation has not ended");
    transcript.finish().unwrap();
    transcript.finish().unwrap();
    assert_eq!(text(&transcript, TranscriptPart::Output), "one\ntwo\n");
    assert_eq!(text(&transcript, TranscriptPart::Events), "{\"message\":\"[secret]\",\"sequence\":1}\n");
    assert_eq!(text(&transcript, TranscriptPart::Steps), "");
}

#[test]
fn a_complete_part_is_not_replaced_by_its_beginning() {
    let directory = tempfile::tempdir().unwrap();
    let transcript = Transcript::new(directory.path());
    transcript.add_output("one");
    transcript.finish().unwrap();
    // A previous agent has ended before it removed the beginning.
    let beginning = path(directory.path(), TranscriptPart::Output);
    std::fs::write(&beginning, "on").unwrap();
    Transcript::new(directory.path()).finish().unwrap();
    assert_eq!(text(&transcript, TranscriptPart::Output), "one\n");
    assert!(!beginning.exists());
}

#[test]
fn only_changed_resources_are_steps_and_their_texts_are_redacted() {
    let directory = tempfile::tempdir().unwrap();
    let transcript = Transcript::new(directory.path());
    let step = |operation: &str| ResourceStep {
        urn: "urn:hunter22-a".into(),
        operation: operation.into(),
        resource_type: "aws:s3/bucket:Bucket".into(),
        properties: Some(vec!["tags.hunter22".into()]),
        ..ResourceStep::default()
    };
    let redactor = Redactor::new(["hunter22"]);
    transcript.add_step(&step("same"), false, &redactor);
    transcript.add_step(&step("update"), false, &redactor);
    transcript.add_step(&step("read"), true, &redactor);
    transcript.finish().unwrap();
    let line = |operation: &str, failed: bool| {
        format!(
            "{{\"operation\":\"{operation}\",\"urn\":\"urn:[secret]-a\",\"type\":\"aws:s3/bucket:Bucket\",\
             \"failed\":{failed},\"properties\":[\"tags.[secret]\"]}}\n"
        )
    };
    assert_eq!(text(&transcript, TranscriptPart::Steps), line("update", false) + &line("read", true));
}

#[test]
fn a_long_transcript_contains_its_beginning_and_its_end() {
    let directory = tempfile::tempdir().unwrap();
    let transcript = Transcript::new(directory.path());
    for number in 0..100_000 {
        transcript.add_output(&format!("line {number:095}"));
    }
    transcript.add_output(&"x".repeat(limit(TranscriptPart::Output)));
    transcript.add_output("the last line");
    transcript.finish().unwrap();
    let text = text(&transcript, TranscriptPart::Output);
    assert!(text.len() <= limit(TranscriptPart::Output), "{} bytes", text.len());
    assert!(text.len() > limit(TranscriptPart::Output) - 1024, "{} bytes", text.len());
    assert!(text.starts_with("line 0000") && text.ends_with("the last line\n"));
    let marks: Vec<&str> = text.lines().filter(|line| line.ends_with(" bytes omitted]")).collect();
    assert_eq!(marks.len(), 1, "{marks:?}");
}

#[test]
fn the_beginning_survives_a_restart_of_the_agent() {
    let directory = tempfile::tempdir().unwrap();
    Transcript::new(directory.path()).add_output("before the restart");
    let restarted = Transcript::new(directory.path());
    restarted.finish().unwrap();
    assert_eq!(text(&restarted, TranscriptPart::Output), "before the restart\n");
}

#[test]
fn a_write_error_does_not_stop_the_operation() {
    let directory = tempfile::tempdir().unwrap();
    let transcript = Transcript::new(&directory.path().join("missing"));
    transcript.add_output("one");
    transcript.add_output("two");
    assert!(transcript.finish().is_err());
}

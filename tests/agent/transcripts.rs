//! Tests the transcript of a run, which the controller stores in the run history.

use std::io::Read;

use flate2::read::GzDecoder;
use pulumi_controller::rpc::proto::{Outcome, TranscriptPart};

use crate::harness::{TOKEN, Workspace, has_pulumi, signal};

/// A program with a secret output. The tests configure the program with a secret from the environment.
const SECRETS: &str = "
name: example
runtime: yaml
config:
  size: {type: string, default: small}
resources:
  step:
    type: testing:index:Step
    properties: {name: first, value: \"${size}\"}
outputs:
  size: ${size}
  password:
    fn::secret: correct-horse-battery
";

async fn part(workspace: &Workspace, id: &str, part: TranscriptPart) -> String {
    let content = workspace.connect().await.transcript(id, part).await.unwrap();
    let mut text = String::new();
    GzDecoder::new(content.as_slice()).read_to_string(&mut text).unwrap();
    text
}

#[tokio::test]
async fn the_transcript_contains_output_events_and_steps_without_secrets() {
    if !has_pulumi("the_transcript_contains_output_events_and_steps_without_secrets") {
        return;
    }
    let mut workspace = Workspace::start().await;
    workspace.put(SECRETS).await;
    let request = workspace.request(&[("size", &format!("\"{TOKEN}\""))]).await;
    let result = workspace.run_to_end(&request).await;
    assert_eq!(result.outcome(), Outcome::Succeeded, "{}", result.message);
    let output = part(&workspace, &request.id, TranscriptPart::Output).await;
    let events = part(&workspace, &request.id, TranscriptPart::Events).await;
    let steps = part(&workspace, &request.id, TranscriptPart::Steps).await;
    assert!(output.contains("Updating (dev)") && events.contains("summaryEvent"), "{output}\n{events}");
    assert!(steps.lines().any(|line| line.contains("\"operation\":\"create\"")), "{steps}");
    for line in events.lines().chain(steps.lines()) {
        serde_json::from_str::<serde_json::Value>(line).unwrap_or_else(|error| panic!("{error}: {line}"));
    }
    for text in [&output, &events, &steps] {
        assert!(!text.contains(TOKEN) && !text.contains("correct-horse-battery"), "{text}");
    }

    signal(workspace.agent_pid(), "KILL");
    workspace.wait_for_exit().await;
    workspace.start_agent().await;
    assert_eq!(
        part(&workspace, &request.id, TranscriptPart::Events).await,
        events,
        "the transcript survives a restart"
    );
}

#[tokio::test]
async fn the_transcript_of_an_unknown_run_is_not_found() {
    let workspace = Workspace::start_with(Some("exit 1\n"), &[]).await;
    let error = workspace.connect().await.transcript("unknown", TranscriptPart::Output).await.unwrap_err();
    assert!(error.is_not_found(), "{error}");
}

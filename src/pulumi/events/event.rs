//! Engine events, parsed from lines of the event log.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;

use crate::pulumi::console;
use crate::pulumi::outputs::{self, Output};

/// Type of the resource that represents the stack itself. Its outputs are the stack's outputs.
const STACK_TYPE: &str = "pulumi:pulumi:Stack";
/// Maximum length of a message in bytes.
const MAX_MESSAGE: usize = 16 * 1024;

/// Error while parsing a line of the event log. Callers continue with the next line.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum EventError {
    #[error("event log line exceeds {limit} bytes")]
    Oversized { limit: usize },
    #[error("event log line is not an engine event: {reason}")]
    Malformed { reason: String },
}

/// One event of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineEvent {
    /// Sequence number, which increases with each event of a run.
    pub sequence: u64,
    /// Seconds since 1970.
    pub timestamp: i64,
    pub kind: EventKind,
}

/// Type of an event, with its content.
#[derive(Clone, Debug, PartialEq)]
pub enum EventKind {
    /// The engine has loaded the program and starts its steps. Diagnostics may precede this event.
    Prelude,
    /// A step on a resource started.
    ResourcePre(ResourceStep),
    /// A step on a resource is complete.
    ResourceOutputs(ResourceStep),
    /// A step on a resource failed.
    ResourceFailed(ResourceStep),
    /// Message of the engine, a provider or the program.
    Diagnostic(Diagnostic),
    /// Result of the run, as reported by the engine.
    Summary(Summary),
    /// Message of the engine itself, such as the notice that it received a signal.
    Stdout { message: String },
    /// Progress of a plugin download or installation.
    Progress(PluginProgress),
    /// Last event of every run, including successful ones.
    Cancel,
    /// Event of a kind that is ignored or unknown.
    Other,
}

/// A step on a resource.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ResourceStep {
    pub urn: String,
    /// Operation name of the engine: create, update, delete, same, ...
    pub operation: String,
    /// Type token of the resource.
    pub resource_type: String,
    /// Outputs of the stack; only in `ResourceOutputs` of the resource that represents the stack.
    pub stack_outputs: Option<Vec<Output>>,
}

/// A diagnostic message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Diagnostic {
    /// `debug`, `info`, `info#err` (stderr of the program), `warning` or `error`.
    pub severity: String,
    /// URN of the resource; empty if the message is not about a resource.
    pub urn: String,
    /// Text without colors; at most 16 KiB.
    pub message: String,
    /// Whether the message is only shown during the run and not kept.
    pub ephemeral: bool,
}

/// Progress of a plugin download or installation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PluginProgress {
    /// `plugin-download` or `plugin-install`.
    pub kind: String,
    pub message: String,
    pub done: bool,
}

/// Result of a run, as reported by the engine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Duration in seconds, rounded up.
    pub duration_seconds: u64,
    /// Number of resources by operation name.
    pub resource_changes: BTreeMap<String, u64>,
    /// `succeeded`, `failed` or `canceled`; absent before CLI 3.237. A gracefully canceled run reports `failed`.
    pub result: Option<String>,
}

/// A line of the event log. Unknown fields are skipped without allocating memory for them.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Line {
    #[serde(default)]
    sequence: u64,
    #[serde(default)]
    timestamp: i64,
    prelude_event: Option<IgnoredAny>,
    cancel_event: Option<IgnoredAny>,
    stdout_event: Option<Message>,
    progress_event: Option<Progress>,
    diagnostic_event: Option<Message>,
    policy_event: Option<Violation>,
    summary_event: Option<RunResult>,
    resource_pre_event: Option<Step>,
    res_outputs_event: Option<Step>,
    res_op_failed_event: Option<Step>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Message {
    message: String,
    severity: String,
    urn: String,
    ephemeral: bool,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Violation {
    message: String,
    resource_urn: String,
    policy_name: String,
    policy_pack_name: String,
    policy_pack_version: String,
    enforcement_level: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Progress {
    r#type: String,
    message: String,
    done: bool,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct RunResult {
    duration_seconds: u64,
    resource_changes: Option<BTreeMap<String, u64>>,
    result: Option<String>,
}

#[derive(Deserialize)]
struct Step {
    metadata: Metadata,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Metadata {
    op: String,
    urn: String,
    r#type: String,
}

/// A line of the event log, with only the outputs of the stack.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct OutputsLine {
    res_outputs_event: OutputsEvent,
}

#[derive(Deserialize)]
struct OutputsEvent {
    metadata: OutputsMetadata,
}

#[derive(Deserialize)]
struct OutputsMetadata {
    new: Option<NewState>,
}

#[derive(Deserialize)]
struct NewState {
    outputs: Option<serde_json::Map<String, Value>>,
}

impl EngineEvent {
    /// Parses one line. Never panics, whatever the bytes.
    pub fn parse(line: &[u8]) -> Result<EngineEvent, EventError> {
        EngineEvent::parse_without(line, &str::to_owned)
    }

    /// Parses one line and redacts its messages with `redact`. `redact` receives whole messages, because it would not recognize a
    /// secret that is cut in half.
    pub fn parse_without(line: &[u8], redact: &dyn Fn(&str) -> String) -> Result<EngineEvent, EventError> {
        let read: Line = serde_json::from_slice(line).map_err(|error| malformed(&error))?;
        Ok(EngineEvent { sequence: read.sequence, timestamp: read.timestamp, kind: kind(read, line, redact)? })
    }
}

fn malformed(error: &serde_json::Error) -> EventError {
    // serde's error message may quote a value.
    let what = if error.is_data() { "unexpected type" } else { "invalid JSON" };
    EventError::Malformed { reason: format!("{what} at column {}", error.column()) }
}

fn kind(read: Line, line: &[u8], redact: &dyn Fn(&str) -> String) -> Result<EventKind, EventError> {
    Ok(if let Some(step) = read.resource_pre_event {
        EventKind::ResourcePre(resource_step(step))
    } else if let Some(step) = read.res_outputs_event {
        let mut step = resource_step(step);
        if step.resource_type == STACK_TYPE {
            step.stack_outputs = Some(stack_outputs(line)?);
        }
        EventKind::ResourceOutputs(step)
    } else if let Some(step) = read.res_op_failed_event {
        EventKind::ResourceFailed(resource_step(step))
    } else if let Some(event) = read.diagnostic_event {
        let message = clean(&event.message, redact);
        EventKind::Diagnostic(Diagnostic {
            severity: event.severity,
            urn: event.urn,
            message,
            ephemeral: event.ephemeral,
        })
    } else if let Some(violation) = read.policy_event {
        EventKind::Diagnostic(policy_diagnostic(&violation, redact))
    } else if let Some(result) = read.summary_event {
        EventKind::Summary(Summary {
            duration_seconds: result.duration_seconds,
            resource_changes: result.resource_changes.unwrap_or_default(),
            result: result.result,
        })
    } else if let Some(event) = read.stdout_event {
        EventKind::Stdout { message: clean(&event.message, redact) }
    } else if let Some(progress) = read.progress_event {
        let message = clean(&progress.message, redact);
        EventKind::Progress(PluginProgress { kind: progress.r#type, message, done: progress.done })
    } else if read.prelude_event.is_some() {
        EventKind::Prelude
    } else if read.cancel_event.is_some() {
        EventKind::Cancel
    } else {
        EventKind::Other
    })
}

/// Converts a policy violation to a diagnostic. The engine reports it only in this event, even if the violation makes the run
/// fail.
fn policy_diagnostic(violation: &Violation, redact: &dyn Fn(&str) -> String) -> Diagnostic {
    let Violation { message, resource_urn, policy_name, policy_pack_name, policy_pack_version, .. } = violation;
    let policy = format!("{policy_name} of {policy_pack_name} {policy_pack_version}");
    let text = format!("violates the policy {}: {message}", policy.trim_end());
    let severity = if violation.enforcement_level == "mandatory" { "error" } else { "warning" };
    let message = clean(&text, redact);
    Diagnostic { severity: severity.to_owned(), urn: resource_urn.clone(), message, ephemeral: false }
}

fn resource_step(step: Step) -> ResourceStep {
    let Metadata { op, urn, r#type } = step.metadata;
    ResourceStep { urn, operation: op, resource_type: r#type, stack_outputs: None }
}

fn stack_outputs(line: &[u8]) -> Result<Vec<Output>, EventError> {
    let read: OutputsLine = serde_json::from_slice(line).map_err(|error| malformed(&error))?;
    let outputs = read.res_outputs_event.metadata.new.and_then(|state| state.outputs);
    Ok(outputs::from_events(outputs.unwrap_or_default()))
}

/// Cleans a message: removes colors and trailing whitespace, redacts it and limits its length. A very long message is shortened
/// before the colors are removed.
fn clean(message: &str, redact: &dyn Fn(&str) -> String) -> String {
    let cut = console::shorten(&redact(message.trim_end()), 4 * MAX_MESSAGE);
    // Redact again: color tags may have split a secret.
    console::shorten(redact(&console::without_colors(&cut)).trim_end(), MAX_MESSAGE)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn parse(line: &Value) -> EventKind {
        EngineEvent::parse(line.to_string().as_bytes()).expect("it is an event").kind
    }

    #[test]
    fn each_kind_of_event_is_parsed() {
        let metadata =
            json!({"op": "create", "urn": "urn:x", "type": "a:b:C", "old": null, "new": {"outputs": {"x": 1}}});
        let step = ResourceStep {
            urn: "urn:x".into(),
            operation: "create".into(),
            resource_type: "a:b:C".into(),
            stack_outputs: None,
        };
        let diagnostic =
            Diagnostic { severity: "error".into(), urn: "urn:x".into(), message: "no\nway".into(), ephemeral: false };
        let progress = PluginProgress { kind: "plugin-download".into(), message: "half".into(), done: false };
        let table = [
            (json!({"preludeEvent": {"config": {}}}), EventKind::Prelude),
            (json!({"cancelEvent": {}}), EventKind::Cancel),
            (json!({"resourcePreEvent": {"metadata": metadata}}), EventKind::ResourcePre(step.clone())),
            (json!({"resOutputsEvent": {"metadata": metadata}}), EventKind::ResourceOutputs(step.clone())),
            (
                json!({"resOpFailedEvent": {"metadata": metadata, "status": 0, "steps": 1}}),
                EventKind::ResourceFailed(step),
            ),
            (
                json!({"diagnosticEvent": {"urn": "urn:x", "prefix": "<{%fg 1%}>error: <{%reset%}>",
                    "message": "<{%reset%}>no\nway<{%reset%}>\n\n", "color": "raw", "severity": "error"}}),
                EventKind::Diagnostic(diagnostic),
            ),
            (
                json!({"stdoutEvent": {"message": "^C received\n", "color": "never"}}),
                EventKind::Stdout { message: "^C received".into() },
            ),
            (
                json!({"progressEvent": {"type": "plugin-download", "id": "x", "message": "half", "received": 1, "total": 2, "done": false}}),
                EventKind::Progress(progress),
            ),
            (
                json!({"summaryEvent": {"durationSeconds": 2, "resourceChanges": null, "PolicyPacks": {}, "isPreview": false}}),
                EventKind::Summary(Summary { duration_seconds: 2, ..Summary::default() }),
            ),
            (json!({"policyLoadEvent": {}}), EventKind::Other),
            (json!({"somethingNew": [1, 2]}), EventKind::Other),
        ];
        for (line, expected) in table {
            assert_eq!(parse(&line), expected, "{line}");
        }
    }

    #[test]
    fn only_the_stack_resource_has_stack_outputs() {
        let event = |resource_type: &str, new: Value| json!({"resOutputsEvent": {"metadata": {"op": "create", "urn": "urn:x", "type": resource_type, "new": new}}});
        let table = [
            (event("pulumi:pulumi:Stack", json!({"outputs": {"port": 1}})), Some(1)),
            (event("pulumi:pulumi:Stack", Value::Null), Some(0)),
            (event("pulumi:pulumi:StackReference", json!({"outputs": {"port": 1}})), None),
        ];
        for (line, expected) in table {
            let EventKind::ResourceOutputs(step) = parse(&line) else { panic!("another kind: {line}") };
            assert_eq!(step.stack_outputs.map(|outputs| outputs.len()), expected, "{line}");
        }
    }

    #[test]
    fn an_invalid_event_is_an_error_without_its_content() {
        let deep = format!("{{\"a\": {}", "[".repeat(100_000));
        let lines: [&[u8]; 7] =
            [b"", b"null", b"[]", b"{", b"\xff\xfe", br#"{"sequence": "hunter2"}"#, deep.as_bytes()];
        for line in lines {
            let error = EngineEvent::parse(line).expect_err("it is no event").to_string();
            assert!(error.starts_with("event log line is not an engine event: "), "{error}");
            assert!(!error.contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn a_long_message_is_truncated() {
        let kind = parse(&json!({"diagnosticEvent": {"message": "é".repeat(1_000_000), "severity": "error"}}));
        let EventKind::Diagnostic(diagnostic) = kind else { panic!("another kind") };
        assert!(diagnostic.message.len() <= MAX_MESSAGE, "{}", diagnostic.message.len());
    }

    #[test]
    fn secrets_are_masked_before_truncation() {
        let secret = "s3cr3t-".repeat(20);
        // The secret lies across each position where a message is cut, with and without color tags in it.
        for (length, said) in [
            (MAX_MESSAGE / 2, secret.clone()),
            (2 * MAX_MESSAGE, secret.clone()),
            (10, secret.replacen("s3cr", "s3<{%reset%}>cr", 1)),
        ] {
            let message = format!("{}{said}{}", "x".repeat(length - 10), "y".repeat(5 * MAX_MESSAGE - length));
            let line = json!({"diagnosticEvent": {"message": message, "severity": "error"}}).to_string();
            let hide = |text: &str| text.replace(&secret, "[secret]");
            let event = EngineEvent::parse_without(line.as_bytes(), &hide).expect("it is an event");
            let EventKind::Diagnostic(diagnostic) = event.kind else { panic!("another kind") };
            assert!(!diagnostic.message.contains("3cr3t"), "a part of it is left, {length} bytes into the message");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_do_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = EngineEvent::parse(&bytes);
        }

        #[test]
        fn a_corrupted_real_event_does_not_panic(at in 0_usize..5000, byte in any::<u8>()) {
            let mut log = include_bytes!("../testdata/succeeded.events.jsonl").to_vec();
            let at = at % log.len();
            log[at] = byte;
            for line in log.split(|byte| *byte == b'\n') {
                let _ = EngineEvent::parse(line);
            }
        }
    }
}

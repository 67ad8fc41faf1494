use proptest::prelude::*;
use serde_json::json;

use super::*;

fn parse(line: &Value) -> EventKind {
    EngineEvent::parse(line.to_string().as_bytes()).expect("valid engine event").kind
}

#[test]
fn each_kind_of_event_is_parsed() {
    let metadata = json!({"op": "create", "urn": "urn:x", "type": "a:b:C", "old": null, "new": {"outputs": {"x": 1}}});
    let step = ResourceStep {
        urn: "urn:x".into(),
        operation: "create".into(),
        resource_type: "a:b:C".into(),
        new: Some(ResourceState::default()),
        ..ResourceStep::default()
    };
    let diagnostic =
        Diagnostic { severity: "error".into(), urn: "urn:x".into(), message: "no\nway".into(), ephemeral: false };
    let progress = PluginProgress { kind: "plugin-download".into(), message: "half".into(), done: false };
    let table = [
        (json!({"preludeEvent": {"config": {}}}), EventKind::Prelude),
        (json!({"cancelEvent": {}}), EventKind::Cancel),
        (json!({"resourcePreEvent": {"metadata": metadata}}), EventKind::ResourcePre(step.clone())),
        (json!({"resOutputsEvent": {"metadata": metadata}}), EventKind::ResourceOutputs(step.clone())),
        (json!({"resOpFailedEvent": {"metadata": metadata, "status": 0, "steps": 1}}), EventKind::ResourceFailed(step)),
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
        (
            json!({"policyEvent": {
                "resourceUrn": "urn:a", "message": "<{%fg 13%}>public<{%reset%}>\n", "color": "raw", "policyName": "no-public",
                "policyPackName": "house", "policyPackVersion": "1.2.0", "enforcementLevel": "advisory",
            }}),
            EventKind::PolicyViolation(PolicyViolation {
                pack: "house".into(),
                version: "1.2.0".into(),
                policy: "no-public".into(),
                is_mandatory: false,
                exemption: String::new(),
                urn: "urn:a".into(),
                message: "public".into(),
            }),
        ),
        (json!({"somethingNew": [1, 2]}), EventKind::Other),
    ];
    for (line, expected) in table {
        assert_eq!(parse(&line), expected, "{line}");
    }
}

#[test]
fn a_violation_contains_the_exceptions_that_exempt_it() {
    let line = json!({"policyEvent": {
        "resourceUrn": "urn:a", "message": "public", "policyName": "no-public", "policyPackName": "house",
        "enforcementLevel": "mandatory", "severity": "high",
        "exceptions": [{"id": "EXC-1", "reason": "<{%fg 13%}>legacy<{%reset%}>"}, {"id": "EXC-2", "reason": "b"}],
    }});
    let expected = PolicyViolation {
        pack: "house".into(),
        policy: "no-public".into(),
        is_mandatory: true,
        exemption: "EXC-1: legacy; EXC-2: b".into(),
        urn: "urn:a".into(),
        message: "public".into(),
        ..PolicyViolation::default()
    };
    assert_eq!(expected.diagnostic().severity, "info");
    assert_eq!(parse(&line), EventKind::PolicyViolation(expected));
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
        let EventKind::ResourceOutputs(step) = parse(&line) else { panic!("unexpected kind: {line}") };
        assert_eq!(step.stack_outputs.map(|outputs| outputs.len()), expected, "{line}");
    }
}

#[test]
fn the_error_for_an_invalid_event_omits_its_content() {
    let deep = format!("{{\"a\": {}", "[".repeat(100_000));
    let lines: [&[u8]; 7] = [b"", b"null", b"[]", b"{", b"\xff\xfe", br#"{"sequence": "hunter2"}"#, deep.as_bytes()];
    for line in lines {
        let error = EngineEvent::parse(line).expect_err("should be rejected").to_string();
        assert!(error.starts_with("event log line is not an engine event: "), "{error}");
        assert!(!error.contains("hunter2"), "{error}");
    }
}

#[test]
fn a_long_message_is_truncated() {
    let kind = parse(&json!({"diagnosticEvent": {"message": "é".repeat(1_000_000), "severity": "error"}}));
    let EventKind::Diagnostic(diagnostic) = kind else { panic!("unexpected kind") };
    assert!(diagnostic.message.len() <= MAX_MESSAGE, "{}", diagnostic.message.len());
}

#[test]
fn secrets_are_redacted_before_truncation() {
    let secret = "s3cr3t-".repeat(20);
    // Places the secret across each position at which `clean` truncates a message, with and without color tags inside
    // the secret.
    for (length, output) in [
        (MAX_MESSAGE / 2, secret.clone()),
        (2 * MAX_MESSAGE, secret.clone()),
        (10, secret.replacen("s3cr", "s3<{%reset%}>cr", 1)),
    ] {
        let message = format!("{}{output}{}", "x".repeat(length - 10), "y".repeat(5 * MAX_MESSAGE - length));
        let line = json!({"diagnosticEvent": {"message": message, "severity": "error"}}).to_string();
        let hide = |text: &str| text.replace(&secret, "[secret]");
        let event = EngineEvent::parse_without(line.as_bytes(), &hide).expect("valid engine event");
        let EventKind::Diagnostic(diagnostic) = event.kind else { panic!("unexpected kind") };
        assert!(!diagnostic.message.contains("3cr3t"), "a part of the secret remains {length} bytes into the message");
    }
}

#[test]
fn secrets_in_property_paths_and_overlong_urns_are_redacted_before_truncation() {
    let secret = "s3cr3t-".repeat(20);
    let hide = |text: &str| text.replace(&secret, "[secret]");
    let parse = |line: Value| EngineEvent::parse_without(line.to_string().as_bytes(), &hide).expect("valid event").kind;
    let path = format!("{}{secret}", "x".repeat(MAX_PATH - 10));
    for metadata in [json!({"diffs": [path]}), json!({"detailedDiff": {path.as_str(): {"kind": "update"}}})] {
        let EventKind::ResourcePre(step) = parse(json!({"resourcePreEvent": {"metadata": metadata}})) else {
            panic!("unexpected kind: {metadata}")
        };
        let paths = step.properties.expect("paths");
        assert!(paths.len() == 1 && paths[0].len() <= MAX_PATH && !paths[0].contains("3cr3t"), "{paths:?}");
    }
    // Later steps truncate only the long URN. The short URN identifies the resource.
    for (length, is_unchanged) in [(MAX_URN - 10, false), (10, true)] {
        let urn = format!("{}{secret}", "x".repeat(length));
        let expected = if is_unchanged { urn.clone() } else { hide(&urn) };
        let found = [
            json!({"resourcePreEvent": {"metadata": {"urn": urn}}}),
            json!({"diagnosticEvent": {"urn": urn}}),
            json!({"policyEvent": {"resourceUrn": urn}}),
        ]
        .map(|line| match parse(line) {
            EventKind::ResourcePre(step) => step.urn,
            EventKind::Diagnostic(diagnostic) => diagnostic.urn,
            EventKind::PolicyViolation(violation) => violation.urn,
            kind => panic!("unexpected kind: {kind:?}"),
        });
        assert!(found.iter().all(|urn| *urn == expected), "{length}");
    }
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_cause_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = EngineEvent::parse(&bytes);
    }

    #[test]
    fn corrupted_events_never_cause_a_panic(at in 0_usize..5000, byte in any::<u8>()) {
        let mut log = include_bytes!("../testdata/succeeded.events.jsonl").to_vec();
        let at = at % log.len();
        log[at] = byte;
        for line in log.split(|byte| *byte == b'\n') {
            let _ = EngineEvent::parse(line);
        }
    }
}

fn push(splitter: &mut LineSplitter, chunk: &str) -> Vec<String> {
    let lines = splitter.push(chunk.as_bytes()).into_iter();
    lines
        .map(|line| line.map_or_else(|error| error.to_string(), |line| String::from_utf8(line).expect("text")))
        .collect()
}

#[test]
fn only_complete_lines_are_returned() {
    let mut splitter = LineSplitter::default();
    assert_eq!(push(&mut splitter, "on"), [""; 0]);
    assert_eq!(push(&mut splitter, "e\ntwo\n\nthr"), ["one", "two"]);
    assert_eq!(push(&mut splitter, "ee"), [""; 0]);
    assert_eq!(push(&mut splitter, "\n"), ["three"]);
    assert_eq!(push(&mut splitter, ""), [""; 0]);
}

#[test]
fn an_overlong_line_is_an_error_and_the_next_line_is_read() {
    let mut splitter = LineSplitter::new(4);
    assert_eq!(push(&mut splitter, "1234\n12345"), ["1234", "event log line exceeds 4 bytes"]);
    assert_eq!(push(&mut splitter, "67890"), [""; 0]);
    assert_eq!(push(&mut splitter, "\n1\n123456\n2\n"), ["1", "event log line exceeds 4 bytes", "2"]);
}

proptest! {
    #[test]
    fn line_splitting_is_independent_of_chunk_boundaries(text in "[ab\n]{0,60}", cuts in proptest::collection::vec(0_usize..60, 0..8)) {
        let mut whole = LineSplitter::new(5);
        let mut cut = LineSplitter::new(5);
        let mut cuts: Vec<usize> = cuts.into_iter().map(|at| at.min(text.len())).chain([0, text.len()]).collect();
        cuts.sort_unstable();
        let pieces = cuts.windows(2).flat_map(|pair| push(&mut cut, text.get(pair[0]..pair[1]).expect("ASCII text"))).collect::<Vec<_>>();
        prop_assert_eq!(push(&mut whole, &text), pieces);
    }
}

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::pulumi::run_summary::summary_of;

const LOCKED: &str = "error: the stack is currently locked by 1 lock(s). Either wait for the other process(es) to end or \
                      delete the lock file with `pulumi cancel`.\n  \
                      s3://state/.pulumi/locks/organization/web/dev/ca464fc2-cf70-41c2-8428-70623e5d23fa.json?region=x: \
                      created by pulumi@web-workspace-0 (pid 16251) at 2026-11-21T10:22:01Z\n";

fn exited(code: i32) -> Exit {
    Exit { code: Some(code), signal: None }
}

fn lock() -> Lock {
    Lock {
        url: "s3://state/.pulumi/locks/organization/web/dev/ca464fc2-cf70-41c2-8428-70623e5d23fa.json?region=x".into(),
        user: "pulumi".into(),
        host: "web-workspace-0".into(),
        pid: 16251,
        time: "2026-11-21T10:22:01Z".into(),
    }
}

/// Output of CLI 3.275 and later for a backend with the legacy layout.
const LEGACY: &str = "error: \n================================================================================\nLegacy DIY state is no longer \
                      supported, please use Pulumi v3.274.1 or earlier\nto upgrade your state to project mode using:\n'pulumi \
                      state upgrade'\n\nSee https://github.com/pulumi/pulumi/issues/19566.\n=================================\
                      ===============================================\n";

#[test]
fn a_backend_with_the_legacy_layout_is_a_failure_only_before_the_engine_starts() {
    let failure = classify(exited(255), "", LEGACY, &RunSummary::default());
    assert!(failure.message.starts_with("Legacy DIY state is no longer supported"), "{}", failure.message);
    assert!(failure.message.contains("run `pulumi state upgrade` with Pulumi CLI 3.274.1 or earlier"));
    let run = summary_of("{\"sequence\": 0, \"timestamp\": 1, \"preludeEvent\": {\"config\": {}}}\n");
    assert_eq!(classify(exited(255), "", LEGACY, &run).kind, FailureKind::Failed);
}

#[test]
fn failures_are_classified_by_the_stderr_of_the_cli() {
    let table = [
        (1, LOCKED, FailureKind::Conflict { holders: vec![lock()] }),
        (
            255,
            "error: [409] Conflict: Another update is currently in progress.\n",
            FailureKind::Conflict { holders: vec![] },
        ),
        (1, "error: pulumi service: request rate-limit exceeded\n", FailureKind::BackendUnavailable),
        (1, "error: [503] Service Unavailable\n", FailureKind::BackendUnavailable),
        (6, "error: no stack named 'dev' found\n", FailureKind::StackMissing),
        (255, "warning: old\nerror: no stack named 'organization/web/dev' found\n", FailureKind::StackMissing),
        (6, "error: something newer\n", FailureKind::StackMissing),
        (255, LEGACY, FailureKind::LegacyLayout),
        (1, "error: could not read Legacy DIY state is old\n", FailureKind::Failed),
        (
            3,
            "error: PULUMI_ACCESS_TOKEN must be set for login during non-interactive CLI sessions\n",
            FailureKind::InvalidAccessToken,
        ),
        (
            1,
            "Logging in using access token from PULUMI_ACCESS_TOKEN\nerror: Unauthorized: No credentials provided or are invalid.\n",
            FailureKind::InvalidAccessToken,
        ),
        (1, "error: problem logging in: Invalid access token\n", FailureKind::InvalidAccessToken),
        (8, "error: update cancelled\n", FailureKind::Canceled),
        (1, "error: could not create stack\n", FailureKind::Failed),
        (1, "no stack named x found, says a plugin\n", FailureKind::Failed),
    ];
    for (code, stderr, expected) in table {
        assert_eq!(classify(exited(code), "", stderr, &RunSummary::default()).kind, expected, "{stderr}");
    }
}

#[test]
fn the_failure_message_contains_the_relevant_error() {
    let failed = summary_of(include_str!("../testdata/failed.events.jsonl"));
    let program = summary_of(include_str!("../testdata/program-failed.events.jsonl"));
    let canceled = summary_of(include_str!("../testdata/canceled.events.jsonl"));
    let none = RunSummary::default();
    let missing = "warning: x\nerror: no stack named 'dev' found\n";
    let table = [
        (&failed, exited(1), "", "testing:index:Step bad: creating bad: it fails because its input failOn is create"),
        (
            &program,
            exited(1),
            "",
            "Pulumi.yaml line 4: Error: resource, variable, or config value \"missing\" not found\n  on Pulumi.yaml line 4:\n   \
             4:   greeting: {type: \"pulumi:index:Stash\", properties: {input: \"${missing}\"}}",
        ),
        (
            &canceled,
            exited(1),
            "",
            "the run was canceled: testing:index:Step long: cancelled while creating long: interrupted in step 5 of 30: \
             context canceled",
        ),
        (&none, exited(6), missing, "no stack named 'dev' found"),
        (
            &none,
            exited(1),
            LOCKED,
            "the stack is locked by pulumi@web-workspace-0 (pid 16251) since 2026-11-21T10:22:01Z; if no process holds \
             the lock anymore, remove it with `pulumi cancel`",
        ),
        (&none, exited(2), "", "the Pulumi CLI exited with code 2\nfirst\nlast"),
        (
            &none,
            Exit { code: None, signal: Some(9) },
            "",
            "the Pulumi CLI was killed by signal 9: last output of the Pulumi CLI:\nfirst\nlast",
        ),
    ];
    for (run, exit, stderr, expected) in table {
        assert_eq!(classify(exit, "first\n\nlast\n", stderr, run).message, expected);
    }
    let silent = classify(Exit { code: None, signal: Some(9) }, "", "", &none);
    assert_eq!(silent.message, "the Pulumi CLI was killed by signal 9");
}

/// Returns the failure message for a run with this event log.
fn message_of(events: &[&str]) -> String {
    let log: Vec<String> = events.iter().map(|event| format!("{event}\n")).collect();
    classify(exited(1), "", "", &summary_of(&log.concat())).message
}

fn diagnostic(urn: &str, severity: &str, message: &str) -> String {
    json!({"diagnosticEvent": {"urn": urn, "severity": severity, "message": message, "color": "never"}}).to_string()
}

const STACK: &str = "urn:pulumi:dev::web::pulumi:pulumi:Stack::web-dev";

#[test]
fn the_output_of_a_program_takes_precedence_over_its_exit_code() {
    let failed = diagnostic(STACK, "error", "update failed\n");
    for (exit, output, expected) in [
        (
            "an unhandled error occurred: program exited with non-zero exit code: 2",
            &["panic: boom", "", "goroutine 1 [running]:", "main.main.func1(0x0)", "\t/share/source/main.go:14 +0x1d"]
                [..],
            "main.go line 14: panic: boom\nmain.main.func1(0x0)\n\t/share/source/main.go:14",
        ),
        (
            "error in compiling Go: unable to run `go build`: exit status 1",
            &["# web", "./main.go:12:5: undefined: x"][..],
            "main.go line 12: undefined: x",
        ),
        (
            "an unhandled error occurred: Program exited with non-zero exit code: 1",
            &["REGION is not set"][..],
            "REGION is not set",
        ),
        (
            "an unhandled error occurred: Program exited with non-zero exit code: 1",
            &[][..],
            "Program exited with non-zero exit code: 1",
        ),
    ] {
        let exit = diagnostic(STACK, "error", exit);
        let output: Vec<String> = output.iter().map(|line| diagnostic("", "info#err", line)).collect();
        let mut events: Vec<&str> = output.iter().map(String::as_str).collect();
        events.extend([exit.as_str(), failed.as_str()]);
        let message = message_of(&events);
        assert!(message.starts_with(expected), "{message}");
    }
}

#[test]
fn failure_messages_include_advice_and_the_source_location() {
    let stack = STACK;
    let bucket = "urn:pulumi:dev::web::aws:s3/bucket:Bucket::logs";
    let failed = diagnostic(stack, "error", "update failed\n");
    let violation = json!({"policyEvent": {
        "resourceUrn": bucket, "message": "<{%fg 13%}>No bucket is public.\nMake it private.<{%reset%}>\n", "color": "raw",
        "policyName": "no-public", "policyPackName": "house", "policyPackVersion": "1.2.0", "policyPackVersionTag": "1.2.0",
        "enforcementLevel": "mandatory",
    }})
    .to_string();
    let failed_run = summary_of(&format!("{violation}\n"));
    assert_eq!(classify(exited(1), "", "", &failed_run).kind, FailureKind::PolicyViolated);
    let advisory = summary_of(&format!("{}\n", violation.replace("mandatory", "advisory")));
    assert_eq!(classify(exited(1), "", "", &advisory).kind, FailureKind::Failed);
    let exempted = violation
        .replace(r#""enforcementLevel""#, r#""exceptions": [{"id": "EXC-1", "reason": "legacy"}], "enforcementLevel""#);
    let exempted_run = summary_of(&format!("{exempted}\n"));
    assert_eq!(classify(exited(1), "", "", &exempted_run).kind, FailureKind::Failed);
    assert!(exempted_run.errors().is_empty() && exempted_run.violations().exempted() == 1);
    let remark = violation.replace("mandatory", "advisory").replace("No bucket", "Hardly any bucket");
    let violated = message_of(&[&remark, &violation, &failed]);
    let words = "aws:s3/bucket:Bucket logs: violates the policy no-public of house 1.2.0: No bucket is public.\nMake it private.\n(";
    assert!(violated.starts_with(words) && violated.contains("comply with the policy"), "{violated}");

    let trace =
        "Running program failed with an unhandled exception:\nError: boom\n    at f (/share/source/index.js:7:5)";
    let placed = message_of(&[&diagnostic(stack, "error", trace), &failed]);
    assert_eq!(placed, "index.js line 7: Error: boom\n    at f (/share/source/index.js:7:5)");
    let words: Vec<String> = trace.lines().map(|line| diagnostic("", "info#err", line)).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    assert_eq!(message_of(&words), placed, "some language runtimes report errors only on stderr");
    let of_provider = diagnostic(bucket, "error", "panic in provider.go:7: boom");
    assert_eq!(message_of(&[&of_provider, &failed]), "aws:s3/bucket:Bucket logs: panic in provider.go:7: boom");

    let unlocked = classify(exited(1), "", "error: getting stack: incorrect passphrase\n", &RunSummary::default());
    assert!(unlocked.message.starts_with("getting stack: incorrect passphrase\n("), "{}", unlocked.message);
    assert!(unlocked.message.contains("PULUMI_CONFIG_PASSPHRASE"), "{}", unlocked.message);
}

#[test]
fn canceled_and_killed_runs_are_distinguished() {
    let canceled = summary_of(include_str!("../testdata/canceled.events.jsonl"));
    assert_eq!(classify(exited(1), "", "", &canceled).kind, FailureKind::Canceled);
    let killed = Exit { code: None, signal: Some(9) };
    assert_eq!(classify(killed, "", LOCKED, &canceled).kind, FailureKind::Killed { signal: 9 });
}

#[test]
fn program_output_does_not_affect_classification() {
    let failed = summary_of(include_str!("../testdata/failed.events.jsonl"));
    let failure = classify(exited(1), LOCKED, "no stack named 'x' found\n[401]\n", &failed);
    assert_eq!(failure.kind, FailureKind::Failed);
}

#[test]
fn an_existing_stack_error_is_distinguished_from_other_errors() {
    let table = [
        ("error: stack 'organization/web/dev' already exists\n", true),
        ("error: could not create stack: it already exists\n", true),
        ("error: file already exists\n", false),
        ("stack 'dev' already exists\n", false),
    ];
    for (stderr, expected) in table {
        assert_eq!(stack_exists(stderr), expected, "{stderr}");
    }
}

#[test]
fn the_failure_message_is_bounded_and_has_no_control_characters() {
    let stderr = format!("error: \u{1b}[31m{}\u{7}\u{0}end\n", "x".repeat(100_000));
    let message = classify(exited(1), "", &stderr, &RunSummary::default()).message;
    assert!(message.len() <= MAX_MESSAGE && message.starts_with("xxx") && message.ends_with("xend"));
}

proptest! {
    #[test]
    fn arbitrary_output_never_causes_a_panic(stdout in any::<String>(), stderr in "(error: |warning: |: created by |@| \\(pid |\\) at |no stack named |.|\\n){0,30}", code in any::<i32>()) {
        let _ = classify(exited(code), &stdout, &stderr, &RunSummary::default());
        let _ = parse_locks(&stderr);
        let _ = stack_exists(&stderr);
    }
}

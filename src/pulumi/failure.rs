//! Classifies failed calls of the CLI into kinds that callers act on, with messages for users.

use super::events::{Diagnostic, RunSummary};
use super::{advice, console, place};

/// Maximum length of a message in bytes.
const MAX_MESSAGE: usize = 8 * 1024;
/// Number of output lines in a message if the CLI reported no error.
const LAST_LINES: usize = 20;
/// Maximum number of locks that a message names.
const NAMED_LOCKS: usize = 5;
/// Exit code of the CLI for authentication failures (since CLI 3.227).
const EXIT_AUTHENTICATION: i32 = 3;
/// Exit code of the CLI for a stack that does not exist (since CLI 3.227).
const EXIT_NO_STACK: i32 = 6;
/// Exit code of the CLI after a second signal (since CLI 3.227).
pub const EXIT_CANCELED: i32 = 8;

/// Start of the message of a canceled run.
pub const CANCELED: &str = "the run was canceled";

/// Exit status of the CLI process: a code or a signal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Exit {
    pub code: Option<i32>,
    pub signal: Option<i32>,
}

impl Exit {
    /// Whether the CLI reported success.
    pub fn success(&self) -> bool {
        self.code == Some(0) && self.signal.is_none()
    }
}

/// Lock on a stack in a DIY backend (file system or object store), as reported by the CLI.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lock {
    /// URL of the lock in the backend.
    pub url: String,
    pub user: String,
    pub host: String,
    pub pid: u32,
    /// Creation time in RFC 3339 format.
    pub time: String,
}

/// Kind of a failure, by the reaction that it requires.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FailureKind {
    /// Another update of the stack is running or left its lock. Pulumi Cloud names no holder.
    Conflict { holders: Vec<Lock> },
    /// The backend rejected the access token or received none.
    InvalidAccessToken,
    /// The stack does not exist in the backend.
    StackMissing,
    /// The run was canceled.
    Canceled,
    /// A signal killed the CLI.
    Killed { signal: i32 },
    /// The program, a provider or the CLI failed.
    Failed,
}

/// A failed call of the CLI.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    pub kind: FailureKind,
    /// Message for users; at most 8 KiB.
    pub message: String,
}

/// Classifies a failed call. The tails are the last part of the CLI's output; `run` is the summary of its event log (empty for
/// calls without an event log).
pub fn classify(exit: Exit, stdout_tail: &str, stderr_tail: &str, run: &RunSummary) -> Failure {
    let stderr = error_text(stderr_tail);
    let kind = kind(exit, &stderr, run);
    let cause = cause(exit, stdout_tail, stderr_tail, &stderr, run);
    let message = match &kind {
        FailureKind::Conflict { holders } if !holders.is_empty() => locked(holders),
        FailureKind::Killed { signal } => with_cause(&format!("the Pulumi CLI was killed by signal {signal}"), &cause),
        FailureKind::Canceled => with_cause(CANCELED, &cause),
        _ => advice::with(&cause.join("\n")),
    };
    Failure { kind, message: console::shorten(&console::for_display(&message), MAX_MESSAGE) }
}

fn kind(exit: Exit, stderr: &str, run: &RunSummary) -> FailureKind {
    if let Some(signal) = exit.signal {
        return FailureKind::Killed { signal };
    }
    let code = exit.code.unwrap_or_default();
    let holders = parse_locks(stderr);
    if !holders.is_empty()
        || stderr.contains("the stack is currently locked by")
        || stderr.contains("Another update is currently in progress")
    {
        return FailureKind::Conflict { holders };
    }
    if run.cancel_requested() || run.result() == Some("canceled") || code == EXIT_CANCELED || reports_cancellation(run)
    {
        return FailureKind::Canceled;
    }
    if rejects_token(stderr) || (code == EXIT_AUTHENTICATION && !run.began()) {
        return FailureKind::InvalidAccessToken;
    }
    if reports_missing_stack(stderr) || (code == EXIT_NO_STACK && !run.began()) {
        return FailureKind::StackMissing;
    }
    FailureKind::Failed
}

/// Whether the CLI rejected a flag or a command as unknown, which means that the CLI is older than required.
pub fn is_unknown_flag(stderr: &str) -> bool {
    let unknown = ["unknown flag: --", "unknown command "];
    stderr.lines().any(|line| unknown.iter().any(|words| line.contains(words)))
}

fn rejects_token(stderr: &str) -> bool {
    let stderr = stderr.to_lowercase();
    let rejections = [
        "invalid access token",
        "pulumi_access_token must be set",
        "this command requires logging in",
        "unauthorized: no credentials provided or are invalid",
        "[401]",
    ];
    rejections.iter().any(|rejection| stderr.contains(rejection))
}

fn reports_missing_stack(stderr: &str) -> bool {
    stderr.lines().any(|line| line.split_once("no stack named ").is_some_and(|(_, rest)| rest.contains(" found")))
}

/// A run that is canceled before its first step reports this only in a message.
fn reports_cancellation(run: &RunSummary) -> bool {
    let is_cancellation = |word: &str| {
        ["update", "destroy", "refresh"]
            .iter()
            .any(|action| word == format!("{action} canceled") || word == format!("{action} cancelled"))
    };
    run.errors().iter().any(|error| is_cancellation(&error.message))
}

/// Returns the causes of a failure from the most specific source that has any: errors of the engine, errors of the CLI, output
/// of the program, last lines of the output.
fn cause(exit: Exit, stdout: &str, stderr: &str, stderr_errors: &str, run: &RunSummary) -> Vec<String> {
    let (errors, verdicts): (Vec<_>, Vec<_>) = run.errors().into_iter().partition(|error| !is_verdict(error));
    if !errors.is_empty() {
        let mut lines = unique(errors.iter().map(describe));
        if run.omitted_errors() > 0 {
            lines.insert(lines.len() / 2, format!("({} more errors)", run.omitted_errors()));
        }
        let of_program: Vec<_> =
            errors.iter().filter(|error| resource(error).is_none()).map(|error| error.message.as_str()).collect();
        return placed(&of_program.join("\n"), lines);
    }
    if !stderr_errors.is_empty() {
        return vec![stderr_errors.to_owned()];
    }
    let lines: Vec<_> = run.program_stderr().into_iter().map(str::to_owned).collect();
    if !lines.is_empty() {
        return placed(&lines.join("\n"), lines);
    }
    if !verdicts.is_empty() {
        return unique(verdicts.iter().map(describe));
    }
    let mut lines = last_lines(stderr);
    if lines.is_empty() {
        lines = last_lines(stdout);
    }
    match exit.code {
        Some(code) => lines.insert(0, format!("the Pulumi CLI exited with code {code}")),
        None if lines.is_empty() => {}
        None => lines.insert(0, "last output of the Pulumi CLI:".to_owned()),
    }
    lines
}

/// Whether an error only repeats that the run failed.
fn is_verdict(error: &Diagnostic) -> bool {
    ["update failed", "destroy failed", "refresh failed", "preview failed"].contains(&error.message.trim())
        || error.message.ends_with(" canceled") && error.urn.is_empty()
}

/// Formats an error with its resource.
fn describe(error: &Diagnostic) -> String {
    match resource(error) {
        Some((resource_type, name)) => format!("{resource_type} {name}: {}", error.message),
        None => error.message.clone(),
    }
}

/// Returns the type and name of the resource that an error is about: the last type in its URN, and its name. Returns `None` if
/// the error is about the program as a whole.
fn resource(error: &Diagnostic) -> Option<(&str, &str)> {
    let mut parts = error.urn.splitn(4, "::").skip(2);
    let (types, name) = (parts.next()?, parts.next()?);
    let resource_type = types.rsplit('$').next().unwrap_or(types);
    (resource_type != "pulumi:pulumi:Stack").then_some((resource_type, name))
}

/// Inserts the location in the program as the first line, because the program's output may contain it only between frames of
/// libraries.
fn placed(of_program: &str, mut lines: Vec<String>) -> Vec<String> {
    if let Some(place) = place::of(of_program) {
        lines.insert(0, format!("the program failed in {place}:"));
    }
    lines
}

fn unique(lines: impl Iterator<Item = String>) -> Vec<String> {
    let mut known = Vec::new();
    for line in lines {
        if !known.contains(&line) {
            known.push(line);
        }
    }
    known
}

/// Returns the CLI's own errors on stderr, without their prefix, notices and warnings.
fn error_text(stderr: &str) -> String {
    let mut lines = Vec::new();
    let mut in_error = false;
    for line in stderr.lines() {
        if let Some(error) = line.strip_prefix("error: ") {
            in_error = true;
            lines.push(error.trim_end());
        } else if line.starts_with("warning: ") {
            in_error = false;
        } else if in_error && !line.trim().is_empty() {
            lines.push(line.trim_end());
        }
    }
    lines.join("\n")
}

fn last_lines(text: &str) -> Vec<String> {
    let mut lines: Vec<_> =
        text.lines().rev().filter(|line| !line.trim().is_empty()).take(LAST_LINES).map(str::to_owned).collect();
    lines.reverse();
    lines
}

fn with_cause(message: &str, cause: &[String]) -> String {
    if cause.is_empty() { message.to_owned() } else { format!("{message}: {}", cause.join("\n")) }
}

fn locked(holders: &[Lock]) -> String {
    let mut named: Vec<_> = holders
        .iter()
        .take(NAMED_LOCKS)
        .map(|lock| format!("{}@{} (pid {}) since {}", lock.user, lock.host, lock.pid, lock.time))
        .collect();
    if holders.len() > NAMED_LOCKS {
        named.push(format!("{} more", holders.len() - NAMED_LOCKS));
    }
    format!(
        "the stack is locked by {}; if this process no longer runs, remove the lock with `pulumi cancel`",
        named.join(", ")
    )
}

/// Parses the locks in an error of the CLI, one per line: `<url>: created by USER@HOST (pid P) at TIME`.
pub fn parse_locks(text: &str) -> Vec<Lock> {
    text.lines().filter_map(parse_lock).collect()
}

fn parse_lock(line: &str) -> Option<Lock> {
    let (rest, time) = line.trim().rsplit_once(" at ")?;
    let (rest, pid) = rest.strip_suffix(')')?.rsplit_once(" (pid ")?;
    let (url, holder) = rest.split_once(": created by ")?;
    let (user, host) = holder.rsplit_once('@')?;
    Some(Lock {
        url: url.to_owned(),
        user: user.to_owned(),
        host: host.to_owned(),
        pid: pid.parse().ok()?,
        time: time.to_owned(),
    })
}

/// Whether `stack init` failed because the stack exists.
pub fn stack_exists(stderr_tail: &str) -> bool {
    let errors = error_text(stderr_tail);
    errors.lines().any(|line| line.split_once("stack").is_some_and(|(_, rest)| rest.contains("already exists")))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::pulumi::events::summary_of;

    const LOCKED: &str = "error: the stack is currently locked by 1 lock(s). Either wait for the other process(es) to end or \
                          delete the lock file with `pulumi cancel`.\n  \
                          s3://state/.pulumi/locks/organization/web/dev/ca464fc2-cf70-41c2-8428-70623e5d23fa.json?region=x: \
                          created by pulumi@web-workspace-0 (pid 16251) at 2026-11-21T10:22:01Z\n";

    fn exited(code: i32) -> Exit {
        Exit { code: Some(code), signal: None }
    }

    fn lock() -> Lock {
        Lock {
            url: "s3://state/.pulumi/locks/organization/web/dev/ca464fc2-cf70-41c2-8428-70623e5d23fa.json?region=x"
                .into(),
            user: "pulumi".into(),
            host: "web-workspace-0".into(),
            pid: 16251,
            time: "2026-11-21T10:22:01Z".into(),
        }
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
            (6, "error: no stack named 'dev' found\n", FailureKind::StackMissing),
            (255, "warning: old\nerror: no stack named 'organization/web/dev' found\n", FailureKind::StackMissing),
            (6, "error: something newer\n", FailureKind::StackMissing),
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
    fn the_message_contains_the_relevant_error() {
        let failed = summary_of(include_str!("testdata/failed.events.jsonl"));
        let program = summary_of(include_str!("testdata/program-failed.events.jsonl"));
        let canceled = summary_of(include_str!("testdata/canceled.events.jsonl"));
        let none = RunSummary::default();
        let missing = "warning: x\nerror: no stack named 'dev' found\n";
        let table = [
            (
                &failed,
                exited(1),
                "",
                "testing:index:Step bad: creating bad: it fails because its input failOn is create",
            ),
            (
                &program,
                exited(1),
                "",
                "Error: resource, variable, or config value \"missing\" not found\n  on Pulumi.yaml line 4:\n   \
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
                "the stack is locked by pulumi@web-workspace-0 (pid 16251) since 2026-11-21T10:22:01Z; if this process no longer \
                 runs, remove the lock with `pulumi cancel`",
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

    #[test]
    fn failure_messages_include_advice_and_the_source_location() {
        let message_of = |events: &[&str]| {
            let log: Vec<String> = events.iter().map(|event| format!("{event}\n")).collect();
            classify(exited(1), "", "", &summary_of(&log.concat())).message
        };
        let stack = "urn:pulumi:dev::web::pulumi:pulumi:Stack::web-dev";
        let bucket = "urn:pulumi:dev::web::aws:s3/bucket:Bucket::logs";
        let diagnostic = |urn: &str, severity: &str, message: &str| {
            json!({"diagnosticEvent": {"urn": urn, "severity": severity, "message": message, "color": "never"}})
                .to_string()
        };
        let failed = diagnostic(stack, "error", "update failed\n");
        let violation = json!({"policyEvent": {
            "resourceUrn": bucket, "message": "<{%fg 13%}>No bucket is public.\nMake it private.<{%reset%}>\n", "color": "raw",
            "policyName": "no-public", "policyPackName": "house", "policyPackVersion": "1.2.0", "policyPackVersionTag": "1.2.0",
            "enforcementLevel": "mandatory",
        }})
        .to_string();
        let remark = violation.replace("mandatory", "advisory").replace("No bucket", "Hardly any bucket");
        let violated = message_of(&[&remark, &violation, &failed]);
        let words = "aws:s3/bucket:Bucket logs: violates the policy no-public of house 1.2.0: No bucket is public.\nMake it private.\n(";
        assert!(violated.starts_with(words) && violated.contains("comply with the policy"), "{violated}");

        let trace =
            "Running program failed with an unhandled exception:\nError: boom\n    at f (/share/source/index.js:7:5)";
        let placed = message_of(&[&diagnostic(stack, "error", trace), &failed]);
        assert_eq!(placed, format!("the program failed in index.js line 7:\n{trace}"));
        let words: Vec<String> = trace.lines().map(|line| diagnostic("", "info#err", line)).collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        assert_eq!(message_of(&words), placed, "some languages report it only on stderr");
        let of_provider = diagnostic(bucket, "error", "panic in provider.go:7: boom");
        assert_eq!(message_of(&[&of_provider, &failed]), "aws:s3/bucket:Bucket logs: panic in provider.go:7: boom");

        let unlocked = classify(exited(1), "", "error: getting stack: incorrect passphrase\n", &RunSummary::default());
        assert!(unlocked.message.starts_with("getting stack: incorrect passphrase\n("), "{}", unlocked.message);
        assert!(unlocked.message.contains("PULUMI_CONFIG_PASSPHRASE"), "{}", unlocked.message);
    }

    #[test]
    fn canceled_and_killed_runs_are_distinguished() {
        let canceled = summary_of(include_str!("testdata/canceled.events.jsonl"));
        assert_eq!(classify(exited(1), "", "", &canceled).kind, FailureKind::Canceled);
        let killed = Exit { code: None, signal: Some(9) };
        assert_eq!(classify(killed, "", LOCKED, &canceled).kind, FailureKind::Killed { signal: 9 });
    }

    #[test]
    fn program_output_does_not_affect_classification() {
        let failed = summary_of(include_str!("testdata/failed.events.jsonl"));
        let failure = classify(exited(1), LOCKED, "no stack named 'x' found\n[401]\n", &failed);
        assert_eq!(failure.kind, FailureKind::Failed);
    }

    #[test]
    fn every_lock_in_the_error_is_parsed() {
        let text = "two locks\n  file:///state/a.json?no_tmp_dir=true: created by a b@x.org@host (pid 1) at 2026-01-01T00:00:00Z\n  \
                    gs://b/c.json: created by r@h (pid 2) at 2026-01-01T00:00:00+02:00\n  gs://b: created by r@h (pid x) at y\n";
        let locks = parse_locks(text);
        assert_eq!(locks.len(), 2);
        assert_eq!((locks[0].user.as_str(), locks[0].host.as_str(), locks[0].pid), ("a b@x.org", "host", 1));
        assert_eq!(locks[1].time, "2026-01-01T00:00:00+02:00");
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
    fn the_message_is_bounded_and_has_no_control_characters() {
        let stderr = format!("error: \u{1b}[31m{}\u{7}\u{0}end\n", "x".repeat(100_000));
        let message = classify(exited(1), "", &stderr, &RunSummary::default()).message;
        assert!(message.len() <= MAX_MESSAGE && message.starts_with("xxx") && message.ends_with("xend"));
    }

    proptest! {
        #[test]
        fn arbitrary_text_does_not_panic(stdout in any::<String>(), stderr in "(error: |warning: |: created by |@| \\(pid |\\) at |no stack named |.|\\n){0,30}", code in any::<i32>()) {
            let _ = classify(exited(code), &stdout, &stderr, &RunSummary::default());
            let _ = parse_locks(&stderr);
            let _ = stack_exists(&stderr);
        }
    }
}

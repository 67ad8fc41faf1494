//! Limits for agent replies. A tenant's program can impersonate an agent. Before other code reads a reply, this module
//! therefore truncates the fields that the controller keeps in memory or writes to a status or a message.

use url::Url;

use crate::api::bounds;
use crate::rpc::proto::attach_reply::Part;
use crate::rpc::proto::progress::Event;
use crate::rpc::proto::{
    Artifact, AttachReply, DrainReply, Outcome, PlannedStep, Progress, Result, RunReply, StatusReply,
};

/// Maximum length of an identifier, a version or an engine operation name, in bytes.
const MAX_WORD: usize = 128;
/// Maximum length of a directory, a URN or a command, in bytes.
const MAX_LINE: usize = 4 * 1024;
/// Maximum length of a message for users, in bytes.
const MAX_TEXT: usize = 8 * 1024;
/// Maximum length of the last CLI output in a result, in bytes.
const MAX_OUTPUT: usize = 64 * 1024;
/// Maximum length of a URL in bytes.
const MAX_LINK: usize = 2 * 1024;
/// Maximum number of different engine operations in a result's change counts. The engine has about twenty operations.
const MAX_OPERATIONS: usize = 32;
/// Maximum number of pending creates in a result, which is also the maximum number of lock holders.
const MAX_LISTED: usize = 50;
/// Maximum number of ignored environment variables in a result.
const MAX_IGNORED: usize = bounds::IGNORED_VARIABLES as usize;
/// Maximum size of a compressed plan in bytes. The controller stores the plan in a Secret, whose size limit is 1 MiB.
const MAX_PLAN: usize = 768 * 1024;
/// Maximum number of planned steps in a result.
const MAX_STEPS: usize = 200;
/// Maximum total size of the planned steps in a result, in bytes.
const MAX_STEPS_SIZE: usize = 256 * 1024;
/// Maximum number of property paths per planned step.
const MAX_PATHS: usize = 20;
/// Maximum length of a property path in bytes.
const MAX_PATH: usize = 256;
/// Maximum number of policy packs in a status reply.
const MAX_POLICY_PACKS: usize = 40;
/// Maximum number of uncached plugins in a status reply.
const MAX_PLUGINS: usize = 10;
/// Maximum length of a policy pack's progress message, and of its error message, in bytes.
const MAX_PACK_TEXT: usize = 2 * 1024;
/// Maximum number of policy violations in a result.
const MAX_VIOLATIONS: usize = 50;
/// Maximum length of a policy violation message in bytes.
const MAX_VIOLATION: usize = 1024;
/// Maximum time by which the clock of an agent can be ahead of the controller's clock, in milliseconds. The controller
/// keeps times within this limit, because it compares them with the times in the locks of the run's CLI.
const MAX_CLOCK_DIFFERENCE: i64 = 5 * 60 * 1000;

/// Truncates a status reply that the controller has received at `now`, in milliseconds since the Unix epoch. The
/// function removes the hashes of directories that are not in `requested`, the list of requested directories.
pub(super) fn truncate_status(reply: &mut StatusReply, requested: &[String], now: i64) {
    for word in [
        &mut reply.agent_version,
        &mut reply.pulumi_version,
        &mut reply.start_id,
        &mut reply.pod_uid,
        &mut reply.settings_digest,
        &mut reply.open_operation,
        &mut reply.project_name,
    ] {
        cut(word, MAX_WORD);
    }
    if reply.config_inputs.len() > MAX_WORD {
        reply.config_inputs.clear();
    }
    reply.mounted_inputs.retain(|directory, word| requested.contains(directory) && word.len() <= MAX_WORD);
    reply.artifact.iter_mut().for_each(truncate_artifact);
    if let Some(candidate) = &mut reply.candidate {
        candidate.artifact.iter_mut().for_each(truncate_artifact);
        cut(&mut candidate.doing, MAX_TEXT);
        cut(&mut candidate.failure, MAX_TEXT);
    }
    reply.policy_packs.truncate(MAX_POLICY_PACKS);
    for pack in &mut reply.policy_packs {
        pack.artifact.iter_mut().for_each(truncate_artifact);
        cut(&mut pack.doing, MAX_PACK_TEXT);
        cut(&mut pack.failure, MAX_PACK_TEXT);
    }
    if let Some(uncached) = &mut reply.uncached {
        cut(&mut uncached.reason, MAX_LINE);
        uncached.plugins.truncate(MAX_PLUGINS);
        uncached.plugins.iter_mut().for_each(|plugin| cut(plugin, MAX_WORD));
    }
    if let Some(session) = &mut reply.interactive_session {
        cut(&mut session.command, MAX_LINE);
        limit_time(&mut session.since, now);
    }
}

pub(super) fn truncate_run_reply(reply: &mut RunReply) {
    cut(&mut reply.held, MAX_TEXT);
}

pub(super) fn truncate_drain_reply(reply: &mut DrainReply) {
    cut(&mut reply.open_operation, MAX_WORD);
}

/// Truncates a message about a run that the controller has received at `now`, in milliseconds since the Unix epoch.
pub(super) fn truncate_attach_reply(reply: &mut AttachReply, now: i64) {
    match &mut reply.part {
        Some(Part::Progress(part)) => truncate_progress(part, now),
        Some(Part::Result(ended)) => truncate_result(ended, now),
        None => {}
    }
}

fn truncate_progress(progress: &mut Progress, now: i64) {
    limit_time(&mut progress.time, now);
    match &mut progress.event {
        Some(Event::Resource(step)) => {
            cut(&mut step.urn, MAX_LINE);
            cut(&mut step.operation, MAX_WORD);
        }
        Some(Event::Diagnostic(diagnostic)) => {
            cut(&mut diagnostic.severity, MAX_WORD);
            cut(&mut diagnostic.urn, MAX_LINE);
            cut(&mut diagnostic.message, MAX_TEXT);
        }
        Some(Event::Idle(idle)) => limit_time(&mut idle.since, now),
        Some(Event::Permalink(link)) if !is_link(link) => link.clear(),
        Some(Event::Step(step)) => cut(step, MAX_WORD),
        Some(Event::Started(_) | Event::Exited(_) | Event::Permalink(_)) | None => {}
    }
}

/// Truncates a result except its outputs. The controller writes the outputs to a Secret, whose size the API server
/// limits.
fn truncate_result(result: &mut Result, now: i64) {
    reject_large_plan(result);
    truncate_steps(result);
    truncate_violations(result);
    cut(&mut result.message, MAX_TEXT);
    limit_run_times(result, now);
    let changes = std::mem::take(&mut result.changes);
    let known = changes.into_iter().filter(|(word, _)| is_operation(word));
    result.changes = known.take(MAX_OPERATIONS).collect();
    if !is_link(&result.permalink) {
        result.permalink.clear();
    }
    let begin = result.last_output.len().saturating_sub(MAX_OUTPUT);
    result.last_output.drain(..result.last_output.ceil_char_boundary(begin));
    result.holders.truncate(MAX_LISTED);
    for holder in &mut result.holders {
        [&mut holder.user, &mut holder.host, &mut holder.time].into_iter().for_each(|word| cut(word, MAX_WORD));
    }
    result.pending_creates.truncate(MAX_LISTED);
    result.pending_creates.iter_mut().for_each(|urn| cut(urn, MAX_LINE));
    result.ignored_variables.truncate(MAX_IGNORED);
    result.ignored_variables.iter_mut().for_each(|name| cut(name, MAX_WORD));
    if result.config_inputs.len() > MAX_WORD {
        result.config_inputs.clear();
    }
    if let Some(project) = &mut result.project {
        cut(&mut project.name, MAX_WORD);
        cut(&mut project.runtime, MAX_WORD);
    }
}

/// Replaces a result with a failure if its plan is too large, because an incomplete plan is useless.
fn reject_large_plan(result: &mut Result) {
    let size = result.plan.len();
    if size > MAX_PLAN {
        result.plan = Vec::new();
        result.set_outcome(Outcome::Failed);
        result.message = format!(
            "the compressed plan of {size} bytes exceeds the limit of {MAX_PLAN} bytes: split the stack into smaller \
             stacks, or set spec.approval.mode to Never"
        );
    }
}

/// Truncates the planned steps, and removes steps with an invalid operation.
fn truncate_steps(result: &mut Result) {
    result.planned_steps.truncate(MAX_STEPS);
    result.planned_steps.retain(|step| is_operation(&step.operation));
    let mut size = 0;
    result.planned_steps.retain_mut(|step| {
        cut_line(&mut step.urn, MAX_LINE);
        step.properties.truncate(MAX_PATHS);
        step.properties.shrink_to_fit();
        step.properties.iter_mut().for_each(|path| cut_line(path, MAX_PATH));
        size += step_size(step);
        size <= MAX_STEPS_SIZE
    });
    result.planned_steps.shrink_to_fit();
    let listed = u32::try_from(result.planned_steps.len()).unwrap_or(u32::MAX);
    result.planned_step_count = result.planned_step_count.max(listed);
}

/// Truncates the policy violations, and corrects the violation counts.
fn truncate_violations(result: &mut Result) {
    for list in [&mut result.policy_violations, &mut result.exempted_violations] {
        list.truncate(MAX_VIOLATIONS);
        list.shrink_to_fit();
    }
    for violation in result.policy_violations.iter_mut().chain(&mut result.exempted_violations) {
        [&mut violation.pack, &mut violation.version, &mut violation.policy]
            .into_iter()
            .for_each(|word| cut_line(word, 2 * MAX_WORD));
        cut_line(&mut violation.urn, MAX_LINE);
        cut(&mut violation.message, MAX_VIOLATION);
        cut_line(&mut violation.exemption, MAX_VIOLATION);
    }
    let exempted = u32::try_from(result.exempted_violations.len()).unwrap_or(u32::MAX);
    result.exempted_violation_count = result.exempted_violation_count.max(exempted);
    let listed = |mandatory: bool| {
        let listed = result.policy_violations.iter().filter(|violation| violation.mandatory == mandatory).count();
        u32::try_from(listed).unwrap_or(u32::MAX)
    };
    let (mandatory, advisory) = (listed(true), listed(false));
    result.mandatory_violation_count = result.mandatory_violation_count.max(mandatory);
    result.advisory_violation_count = result.advisory_violation_count.max(advisory);
}

fn step_size(step: &PlannedStep) -> usize {
    step.properties.iter().chain([&step.urn, &step.operation]).map(String::len).sum()
}

fn truncate_artifact(artifact: &mut Artifact) {
    cut(&mut artifact.digest, 2 * MAX_WORD);
    cut(&mut artifact.directory, MAX_LINE);
}

/// Returns whether `word` can be an engine operation name, such as `create-replacement`.
fn is_operation(word: &str) -> bool {
    (1..=MAX_WORD).contains(&word.len()) && word.chars().all(|c| c.is_ascii_alphanumeric() || c == '-')
}

fn is_link(link: &str) -> bool {
    link.len() <= MAX_LINK
        && !link.chars().any(|c| c.is_control() || c.is_whitespace())
        && Url::parse(link).is_ok_and(|url| matches!(url.scheme(), "http" | "https"))
}

/// Limits the start and the end of a run. The controller waits for some time after the end of a run, so a run that ends
/// in the distant future would hold its run slot forever. A time that is too late is usually the result of a wrong
/// clock. The function therefore moves both times, which keeps the duration of the run.
fn limit_run_times(result: &mut Result, now: i64) {
    let ahead = result.ended.saturating_sub(now);
    if ahead > MAX_CLOCK_DIFFERENCE {
        result.started = result.started.saturating_sub(ahead);
        result.ended = now;
    }
    limit_time(&mut result.started, now);
    limit_time(&mut result.ended, now);
}

/// Replaces a time before 1970 with 0, and a time that is too far in the future with the time `now`.
fn limit_time(milliseconds: &mut i64, now: i64) {
    *milliseconds = match *milliseconds {
        time if time.saturating_sub(now) > MAX_CLOCK_DIFFERENCE => now,
        time => time.max(0),
    };
}

/// Truncates a string and replaces its control characters, because control characters can forge log lines.
pub(super) fn cut(text: &mut String, max_length: usize) {
    if text.len() > max_length {
        text.truncate(text.floor_char_boundary(max_length));
        // Frees unused memory, because the received string can be much longer.
        text.shrink_to_fit();
    }
    if text.contains(|c: char| c.is_control() && c != '\n') {
        *text = text.chars().map(|c| if c.is_control() && c != '\n' { ' ' } else { c }).collect();
    }
}

/// Truncates a string and replaces its control characters and line breaks.
fn cut_line(text: &mut String, max_length: usize) {
    cut(text, max_length);
    if text.contains('\n') {
        *text = text.replace('\n', " ");
    }
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;
    use crate::rpc::proto;

    /// Time at which the controller receives the replies.
    const NOW: i64 = 1_770_000_000_000;

    /// Returns a string that exceeds all limits and contains characters that must not appear in logs.
    fn long() -> String {
        "\u{1b}ä".repeat(100_000)
    }

    /// Returns a string that exceeds the maximum line length. A list of such strings needs much less memory than a list
    /// of strings from [`long`].
    fn long_line() -> String {
        "\u{1b}ä".repeat(2_000)
    }

    #[test]
    fn every_field_of_a_hostile_status_is_bounded() {
        let place = || Some(Artifact { digest: long(), directory: long() });
        let line = || Some(Artifact { digest: long_line(), directory: long_line() });
        let pack =
            proto::PolicyPackState { artifact: line(), installed: false, doing: long_line(), failure: long_line() };
        let directories = (0..1000).map(|number| (format!("/mnt/{number}"), long()));
        let mut reply = StatusReply {
            agent_version: long(),
            pulumi_version: long(),
            start_id: long(),
            pod_uid: long(),
            artifact: place(),
            settings_digest: long(),
            open_operation: long(),
            draining: true,
            candidate: Some(proto::Candidate { artifact: place(), doing: long(), failure: long() }),
            interactive_session: Some(proto::InteractiveSession { command: long(), pid: 1, since: i64::MIN }),
            config_inputs: long(),
            project_name: long(),
            protocol_version: 1,
            mounted_inputs: directories.chain([("/mnt/requested".to_owned(), "word".to_owned())]).collect(),
            policy_packs: vec![pack; 100],
            uncached: Some(proto::Uncached { reason: long(), plugins: vec![long(); 1000] }),
        };
        truncate_status(&mut reply, &["/mnt/requested".to_owned(), "/mnt/7".to_owned()], NOW);
        assert_eq!(reply.policy_packs.len(), MAX_POLICY_PACKS);
        assert_eq!(reply.uncached.as_ref().map(|uncached| uncached.plugins.len()), Some(MAX_PLUGINS));
        assert!(reply.encoded_len() < 400 * 1024, "{} bytes", reply.encoded_len());
        assert_eq!(
            reply.mounted_inputs.into_iter().collect::<Vec<_>>(),
            [("/mnt/requested".to_owned(), "word".to_owned())]
        );
        assert_eq!(reply.interactive_session.map(|session| session.since), Some(0));
        assert!(!reply.agent_version.contains('\u{1b}') && reply.agent_version.starts_with(" ä"));
    }

    #[test]
    fn every_field_of_a_hostile_result_except_outputs_is_bounded() {
        let holder = || proto::LockHolder { user: long(), host: long(), pid: 1, time: long() };
        let mut reply = proto::Result {
            message: long(),
            started: i64::MIN,
            ended: i64::MAX,
            changes: (0..100_000).map(|number| (format!("create{number}"), 1)).collect(),
            permalink: format!("https://app.pulumi.com/{}", "x".repeat(1_000_000)),
            last_output: format!("{}\nlast", long()),
            holders: (0..1000).map(|_| holder()).collect(),
            pending_creates: vec![long(); 1000],
            project: Some(proto::Project { name: long(), runtime: long() }),
            planned_steps: vec![step(&long_line()); 250],
            ..proto::Result::default()
        };
        truncate_result(&mut reply, NOW);
        assert!(reply.encoded_len() < 700 * 1024, "{} bytes", reply.encoded_len());
        assert_eq!((reply.started, reply.ended, reply.changes.len()), (0, NOW, MAX_OPERATIONS));
        assert!(reply.permalink.is_empty() && reply.last_output.ends_with("\nlast"));
    }

    fn step(text: &str) -> PlannedStep {
        let properties = vec![text.to_owned(); MAX_PATHS + 5];
        PlannedStep { urn: text.to_owned(), operation: "update".to_owned(), properties }
    }

    #[test]
    fn planned_steps_are_bounded_and_have_no_control_characters() {
        let forged = PlannedStep { operation: "up date".to_owned(), ..step("forged") };
        let steps = [vec![step("a\n\u{1b}b"), forged], vec![step(&long_line()); 250]].concat();
        let mut reply = proto::Result { planned_steps: steps, planned_step_count: 7, ..proto::Result::default() };
        truncate_result(&mut reply, NOW);
        let size: usize = reply.planned_steps.iter().map(step_size).sum();
        assert!(size <= MAX_STEPS_SIZE && size > MAX_STEPS_SIZE - 2 * MAX_LINE - MAX_PATHS * MAX_PATH, "{size}");
        assert_eq!((reply.planned_steps[0].urn.as_str(), reply.planned_steps[0].properties.len()), ("a  b", MAX_PATHS));
        assert_eq!(reply.planned_steps[0].properties[0], "a  b");
        assert!(reply.planned_steps[1].properties[0].len() <= MAX_PATH);
        assert!(reply.planned_steps.iter().all(|step| step.operation == "update"));
        assert_eq!(reply.planned_step_count as usize, reply.planned_steps.len());
        reply = proto::Result { planned_steps: vec![step("urn"); 250], planned_step_count: 250, ..reply };
        truncate_result(&mut reply, NOW);
        assert_eq!((reply.planned_steps.len(), reply.planned_step_count), (MAX_STEPS, 250));
    }

    #[test]
    fn policy_violations_are_bounded_and_counted() {
        let violation = |text: &str, mandatory| proto::PolicyViolation {
            pack: text.to_owned(),
            version: text.to_owned(),
            policy: text.to_owned(),
            mandatory,
            urn: text.to_owned(),
            message: text.to_owned(),
            exemption: text.to_owned(),
        };
        let exempted_violations = vec![violation(&long_line(), true); 100];
        let violations = [vec![violation("a\n\u{1b}b", true)], vec![violation(&long_line(), false); 100]].concat();
        let mut reply = proto::Result {
            policy_violations: violations,
            advisory_violation_count: 300,
            exempted_violations,
            ..proto::Result::default()
        };
        truncate_result(&mut reply, NOW);
        assert_eq!((reply.policy_violations.len(), reply.mandatory_violation_count), (MAX_VIOLATIONS, 1));
        assert_eq!(reply.advisory_violation_count, 300);
        assert_eq!((reply.exempted_violations.len(), reply.exempted_violation_count), (MAX_VIOLATIONS, 50));
        let first = &reply.policy_violations[0];
        assert_eq!((first.policy.as_str(), first.message.as_str()), ("a  b", "a\n b"));
        assert!(reply.encoded_len() < 2 * MAX_VIOLATIONS * 8 * 1024, "{} bytes", reply.encoded_len());
    }

    #[test]
    fn a_plan_that_is_too_large_is_a_failure() {
        let mut reply = proto::Result { plan: vec![7; MAX_PLAN], ..proto::Result::default() };
        reply.set_outcome(Outcome::Succeeded);
        truncate_result(&mut reply, NOW);
        assert_eq!((reply.plan.len(), reply.outcome()), (MAX_PLAN, Outcome::Succeeded));
        reply.plan.push(7);
        truncate_result(&mut reply, NOW);
        assert_eq!((reply.plan.len(), reply.outcome()), (0, Outcome::Failed));
        assert!(reply.message.contains("786433 bytes exceeds the limit of 786432 bytes"), "{}", reply.message);
    }

    #[test]
    fn a_valid_result_is_unchanged() {
        let mut reply = proto::Result {
            message: "failed\nto create".to_owned(),
            started: 1_760_000_000_000,
            ended: 1_760_000_001_000,
            changes: [("create-replacement".to_owned(), 2), ("same".to_owned(), 5)].into(),
            permalink: "https://app.pulumi.com/acme/web/dev/updates/7".to_owned(),
            last_output: "Resources:\n    2 created".to_owned(),
            plan: vec![1, 2],
            planned_steps: vec![PlannedStep { properties: vec!["tags[\"a\"]".to_owned()], ..step("urn:a") }],
            planned_step_count: 3,
            ..proto::Result::default()
        };
        let before = reply.clone();
        truncate_result(&mut reply, NOW);
        assert_eq!(reply, before);
        for link in ["javascript:alert(1)", "not a link", "https://a b", "ftp://x"] {
            assert!(!is_link(link), "{link}");
        }
        for word in ["", "with space", "ä", "new\nline"] {
            assert!(!is_operation(word), "{word:?}");
        }
    }

    #[test]
    fn a_result_ends_at_most_shortly_after_its_receipt() {
        let year_2099 = 4_102_444_799_000;
        let (minute, near) = (60_000, NOW + MAX_CLOCK_DIFFERENCE);
        let rows = [
            ("in the past", (NOW - 9 * minute, NOW - minute), (NOW - 9 * minute, NOW - minute)),
            ("clock slightly ahead", (NOW + minute, near), (NOW + minute, near)),
            ("clock far ahead", (near - minute, near + minute), (NOW - 2 * minute, NOW)),
            ("end in the distant future", (NOW - minute, year_2099), (0, NOW)),
            ("maximum", (i64::MAX, i64::MAX), (NOW, NOW)),
            ("start after the end", (year_2099, NOW - minute), (NOW, NOW - minute)),
            ("before 1970", (i64::MIN, -1), (0, 0)),
            ("unknown", (0, 0), (0, 0)),
        ];
        for (name, (started, ended), expected) in rows {
            let mut reply = proto::Result { started, ended, ..proto::Result::default() };
            truncate_result(&mut reply, NOW);
            assert_eq!((reply.started, reply.ended), expected, "{name}");
        }
    }

    #[test]
    fn hostile_progress_is_bounded() {
        let step = proto::ResourceStep { urn: long(), operation: long(), state: 1 };
        let diagnostic = proto::Diagnostic { severity: long(), urn: long(), message: long() };
        let idle = proto::Idle { since: i64::MIN };
        let link = format!("https://app.pulumi.com/{}", long());
        for event in [
            Event::Resource(step),
            Event::Diagnostic(diagnostic),
            Event::Idle(idle),
            Event::Permalink(link),
            Event::Step(long()),
        ] {
            let mut reply = AttachReply {
                part: Some(Part::Progress(Progress { sequence: 1, time: i64::MAX, event: Some(event) })),
            };
            truncate_attach_reply(&mut reply, NOW);
            assert!(reply.encoded_len() < 16 * 1024, "{} bytes", reply.encoded_len());
            assert!(matches!(&reply.part, Some(Part::Progress(progress)) if progress.time == NOW), "{reply:?}");
        }
    }
}

//! Result of an operation and its message.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::agent::journal;
use crate::agent::output::{self, Tail};
use crate::agent::redactor::Redactor;
use crate::pulumi::console;
use crate::pulumi::events::PolicyViolation;
use crate::pulumi::failure::FailureKind;
use crate::pulumi::failure::lock::Lock;
use crate::pulumi::outputs::{self, Output};
use crate::pulumi::planned_steps::{PlannedStep, PlannedSteps};
use crate::pulumi::violations::Violations;
use crate::rpc::proto;

const SIGKILL: i32 = rustix::process::Signal::KILL.as_raw();
/// Maximum size of a message in bytes.
const MAX_MESSAGE: usize = 8 * 1024;
/// Maximum total size of the outputs in bytes, which equals the size limit of a Secret.
const MAX_OUTPUTS: usize = 1024 * 1024;
/// Maximum number of lines in a result's last output.
const MAX_LAST_LINES: usize = 20;
/// Maximum size of a result's last output in bytes.
const MAX_LAST_OUTPUT: usize = 4 * 1024;
/// Maximum number of pending creates in a result.
const MAX_PENDING: usize = 50;
/// Maximum number of locks in a result.
const MAX_HOLDERS: usize = 10;
/// Maximum length of a name in bytes.
pub(super) const MAX_NAME: usize = 4 * 1024;
/// Maximum number of resources in a message.
const MAX_LISTED: usize = 5;

/// Result of an operation whose strings the agent has not yet redacted and truncated.
#[derive(Debug, Default)]
pub(super) struct OperationResult {
    pub(super) outcome: proto::Outcome,
    pub(super) message: String,
    pub(super) outputs: Vec<Output>,
    /// Whether outputs of a successful `up` are unknown. The result then contains no hidden values of outputs.
    pub(super) outputs_unavailable: bool,
    /// Whether the state contained no resources before an `up`, although earlier runs have created resources.
    pub(super) state_was_empty: bool,
    pub(super) changes: BTreeMap<String, u64>,
    pub(super) permalink: Option<String>,
    /// Last CLI output, without secrets.
    pub(super) last_output: String,
    /// Time after which another attempt can succeed, if known.
    pub(super) retry_after: Option<Duration>,
    pub(super) holders: Vec<Lock>,
    pub(super) pending_creates: Vec<String>,
    /// Whether the state can contain pending operations.
    pub(super) interrupted: bool,
    /// Whether the termination of the pod canceled the operation.
    pub(super) pod_terminated: bool,
    /// Compressed plan of a preview.
    pub(super) plan: Vec<u8>,
    pub(super) planned_steps: Vec<PlannedStep>,
    /// Number of resources that a preview would change.
    pub(super) planned_step_count: usize,
    pub(super) violations: Violations,
    /// Whether the engine has started. When the engine starts, it resolves the pending creates of earlier runs.
    pub(super) engine_began: bool,
}

impl OperationResult {
    pub(super) fn succeeded(message: &str) -> Self {
        OperationResult {
            outcome: proto::Outcome::Succeeded,
            message: message.to_owned(),
            ..OperationResult::default()
        }
    }

    /// Returns the result of a successful `up` whose outputs are unknown. Without any outputs, the controller keeps the
    /// previous outputs.
    pub(super) fn without_outputs(message: &str) -> Self {
        OperationResult { outputs_unavailable: true, ..OperationResult::succeeded(message) }
    }

    pub(super) fn failed(message: String) -> Self {
        OperationResult { outcome: proto::Outcome::Failed, message, ..OperationResult::default() }
    }

    /// Returns the result of an operation whose program would omit these resources, because config keys have the same
    /// names.
    pub(super) fn resources_omitted(names: &[String]) -> Self {
        let more = names.len().saturating_sub(MAX_LISTED);
        let listed = names.iter().take(MAX_LISTED).map(String::as_str).collect::<Vec<_>>().join(", ");
        let listed = if more > 0 { format!("{listed} and {more} more") } else { listed };
        OperationResult::failed(format!(
            "the configuration contains a key with the name of a resource: {listed}. Pulumi YAML would omit this resource \
             from the program, and delete it if it exists: rename the key or the resource"
        ))
    }

    /// Returns the result of an operation that deviates from its plan.
    pub(super) fn plan_violated(message: String) -> Self {
        OperationResult { outcome: proto::Outcome::PlanViolated, message, ..OperationResult::default() }
    }

    /// Returns the result of an operation that the agent does not start because resources differ from the state.
    /// Returns `None` if no resource differs.
    pub(super) fn drifted(planned: &PlannedSteps) -> Option<Self> {
        let describe = |step: &PlannedStep| match step.properties.as_slice() {
            [] => format!("{} {}", step.operation, step.urn),
            properties => format!("{} {} ({})", step.operation, step.urn, properties.join(", ")),
        };
        let named = planned.steps().take(MAX_LISTED).map(describe).collect::<Vec<_>>().join("; ");
        let more = more(planned.count());
        let count = planned.count();
        let message = format!("no changes were expected, but {count} resource(s) differ from the state: {named}{more}");
        (count > 0).then(|| OperationResult::failed(message))
    }

    /// Adds the resources that a preview would change.
    pub(super) fn with_planned_steps(self, planned: &PlannedSteps) -> Self {
        OperationResult {
            planned_steps: planned.steps().cloned().collect(),
            planned_step_count: planned.count(),
            ..self
        }
    }

    /// Returns the result of an operation that the agent does not start because an interrupted run left pending
    /// creates.
    pub(super) fn pending_creates(urns: Vec<String>) -> Self {
        let named = urns.iter().take(MAX_LISTED).map(String::as_str).collect::<Vec<_>>().join(", ");
        let more = more(urns.len());
        let (resources, them) = if urns.len() == 1 { ("a resource", "it") } else { ("resources", "them") };
        let message = format!(
            "an earlier run was interrupted while it created {resources} that may therefore exist: {named}{more}; \
             the Pulumi command was not started, because it could create {them} a second time"
        );
        let outcome = proto::Outcome::PendingCreates;
        OperationResult { outcome, message, pending_creates: urns, ..OperationResult::default() }
    }

    /// Returns the result of an operation whose stack does not exist in the state backend, or has an empty state. The
    /// resources may still exist, because the state backend may have lost the stack, or the access token may lack
    /// permissions for the stack.
    pub(super) fn stack_not_found(stack: &str) -> Self {
        let message = format!("stack {stack} not found in the backend; no resource was changed");
        OperationResult { outcome: proto::Outcome::StackNotFound, message, ..OperationResult::default() }
    }

    /// Returns the result of an operation whose state contains no resources, although earlier runs have created
    /// resources in this stack. For the next run, such a state is the same as a missing stack.
    pub(super) fn state_empty(stack: &str) -> Self {
        let message = format!("the state of stack {stack} contains no resources; no resource was changed");
        OperationResult { outcome: proto::Outcome::StateEmpty, message, ..OperationResult::default() }
    }

    /// Adds a warning to the message of a successful operation.
    pub(super) fn with_warning(self, warning: &str) -> Self {
        let message = if self.message.is_empty() { warning.to_owned() } else { format!("{warning}; {}", self.message) };
        OperationResult { message, ..self }
    }

    /// Returns the result of a destroy that the agent does not start because another Pulumi stack manages the Stack's
    /// resources. The destroy would not delete these resources, but could delete the resources of another owner.
    pub(super) fn another_stack(stack: &str) -> Self {
        let message =
            format!("stack {stack} in this backend is not the stack that manages the resources; nothing was destroyed");
        OperationResult { outcome: proto::Outcome::StackNotFound, message, ..OperationResult::default() }
    }

    /// Returns the result of an operation that the agent does not start because another Stack has applied its Pulumi
    /// stack. The operation could delete the resources of the other Stack.
    pub(super) fn duplicate_stack(stack: &str, owner: &str) -> Self {
        let message = format!("Stack {owner} manages stack {stack} in this backend; no resource was changed");
        OperationResult { outcome: proto::Outcome::DuplicateStack, message, ..OperationResult::default() }
    }

    /// Adds a CLI call's last output lines.
    pub(super) fn with_last_output(self, stdout: &Tail, stderr: &Tail) -> Self {
        OperationResult { last_output: output::last_lines([stdout, stderr], MAX_LAST_LINES), ..self }
    }

    /// Converts this result into the journal format. The conversion redacts and truncates all strings, but does not
    /// redact the values of secret outputs.
    pub(super) fn into_result(self, redactor: &Redactor, started: i64) -> proto::Result {
        let mut message = console::remove_request_ids(&self.message);
        let outputs = self.outputs.into_iter().map(|known| output(known, self.outputs_unavailable));
        let mut outputs: Vec<proto::Output> = outputs.collect();
        let size: usize = outputs.iter().map(|output| output.name.len() + output.value.len()).sum();
        let is_too_large = size > MAX_OUTPUTS;
        if is_too_large {
            outputs.clear();
            message = format!("the outputs were omitted: their {size} bytes exceed the limit of {MAX_OUTPUTS} bytes");
        }
        let changes = self.changes.into_iter().map(|(word, count)| (word, u32::try_from(count).unwrap_or(u32::MAX)));
        let pending_creates = self.pending_creates.iter().take(MAX_PENDING);
        proto::Result {
            outcome: self.outcome.into(),
            message: first_bytes(&redactor.redact(&message), MAX_MESSAGE),
            started,
            ended: journal::now(),
            outputs,
            changes: changes.collect(),
            permalink: self.permalink.unwrap_or_default(),
            last_output: last_bytes(&redactor.redact(&console::for_display(&self.last_output)), MAX_LAST_OUTPUT),
            holders: self.holders.iter().take(MAX_HOLDERS).map(holder).collect(),
            pending_creates: pending_creates.map(|urn| first_bytes(&redactor.redact(urn), MAX_NAME)).collect(),
            interrupted: self.interrupted,
            pod_terminated: self.pod_terminated,
            project: None,
            backend: String::new(),
            config_inputs: String::new(),
            plan: self.plan,
            planned_steps: self.planned_steps.iter().map(|step| planned_step(step, redactor)).collect(),
            planned_step_count: number(self.planned_step_count),
            policy_violations: self.violations.list().map(|violation| policy_violation(violation, redactor)).collect(),
            mandatory_violation_count: number(self.violations.mandatory()),
            advisory_violation_count: number(self.violations.advisory()),
            exempted_violations: (self.violations.exempted_list())
                .map(|violation| policy_violation(violation, redactor))
                .collect(),
            exempted_violation_count: number(self.violations.exempted()),
            outputs_unavailable: self.outputs_unavailable || is_too_large,
            retry_after_seconds: self.retry_after.map_or(0, |delay| delay.as_secs().saturating_add(1)),
            ignored_variables: Vec::new(),
            state_was_empty: self.state_was_empty,
        }
    }
}

/// Returns the number of resources that a message omits.
fn more(count: usize) -> String {
    match count.saturating_sub(MAX_LISTED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    }
}

/// Returns the outcome for a failed operation.
pub(super) fn outcome(kind: &FailureKind, is_cancelled: bool) -> proto::Outcome {
    match kind {
        // After SIGKILL, the run is interrupted even if the agent sent the signal: the CLI has neither saved the state
        // nor unlocked the stack.
        FailureKind::Killed { signal } if *signal == SIGKILL => proto::Outcome::Interrupted,
        _ if is_cancelled => proto::Outcome::Canceled,
        FailureKind::Killed { .. } => proto::Outcome::Interrupted,
        FailureKind::Canceled => proto::Outcome::Canceled,
        FailureKind::Conflict { .. } => proto::Outcome::Conflict,
        FailureKind::InvalidAccessToken => proto::Outcome::InvalidAccessToken,
        FailureKind::BackendUnavailable => proto::Outcome::BackendUnavailable,
        FailureKind::LegacyLayout => proto::Outcome::BackendUpgradeRequired,
        FailureKind::PlanViolated => proto::Outcome::PlanViolated,
        FailureKind::PolicyViolated => proto::Outcome::PolicyViolated,
        FailureKind::StackMissing | FailureKind::Failed => proto::Outcome::Failed,
    }
}

/// Returns the locks that caused a conflict.
pub(super) fn holders(kind: FailureKind) -> Vec<Lock> {
    match kind {
        FailureKind::Conflict { holders } => holders,
        _ => Vec::new(),
    }
}

/// Converts an output. If `omits_hidden` is true, omits the value if it is hidden.
fn output(output: Output, omits_hidden: bool) -> proto::Output {
    let is_omitted = omits_hidden && outputs::is_hidden(&output);
    let value = if is_omitted { String::new() } else { output.value.to_string() };
    proto::Output { name: output.name, value, secret: output.secret }
}

/// Converts a planned step. A resource name can contain a secret. A property path can also contain a secret, for
/// example as the key of an object.
fn planned_step(step: &PlannedStep, redactor: &Redactor) -> proto::PlannedStep {
    let clean = |text: &str| redactor.redact(text).replace(char::is_control, " ");
    proto::PlannedStep {
        urn: clean(&step.urn),
        operation: clean(&step.operation),
        properties: step.properties.iter().map(|path| clean(path)).collect(),
    }
}

fn number(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// Converts a policy violation. All strings in the violation except the URN are already redacted.
fn policy_violation(violation: &PolicyViolation, redactor: &Redactor) -> proto::PolicyViolation {
    let clean = |text: &str| redactor.redact(text).replace(|c: char| c.is_control() && c != '\n', " ");
    proto::PolicyViolation {
        pack: clean(&violation.pack),
        version: clean(&violation.version),
        policy: clean(&violation.policy),
        mandatory: violation.is_mandatory,
        urn: clean(&violation.urn),
        message: clean(&console::remove_request_ids(&violation.message)),
        exemption: clean(&violation.exemption),
    }
}

fn holder(lock: &Lock) -> proto::LockHolder {
    proto::LockHolder {
        user: first_bytes(&lock.user, MAX_NAME),
        host: first_bytes(&lock.host, MAX_NAME),
        pid: lock.pid,
        time: first_bytes(&lock.time, MAX_NAME),
    }
}

/// Returns at most `limit` bytes from the start of a string.
pub(super) fn first_bytes(text: &str, limit: usize) -> String {
    let end = text.floor_char_boundary(limit);
    text.get(..end).unwrap_or_default().to_owned()
}

/// Returns at most `limit` bytes from the end of a string.
fn last_bytes(text: &str, limit: usize) -> String {
    let start = text.ceil_char_boundary(text.len().saturating_sub(limit));
    text.get(start..).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn canceled(message: &str) -> OperationResult {
        OperationResult { outcome: proto::Outcome::Canceled, message: message.to_owned(), ..OperationResult::default() }
    }

    #[test]
    fn run_messages_are_redacted_but_stack_outputs_keep_their_secrets() {
        let output = Output { name: "password".into(), value: json!("hunter22"), secret: true };
        let last_output = "hunter22\nit is \u{1b}[1mhunt\u{1b}[0mer22\u{7}".to_owned();
        let operation_result =
            OperationResult { outputs: vec![output], last_output, ..canceled("cannot use hunter22") };
        let result = operation_result.into_result(&Redactor::new(["hunter22"]), 1);
        assert_eq!(result.message, "cannot use [secret]");
        assert_eq!(result.last_output, "[secret]\nit is [secret]");
        assert_eq!(result.outputs[0].value, "\"hunter22\"");
    }

    #[test]
    fn the_urns_in_a_result_are_redacted() {
        let urn = "urn:pulumi:dev::web::aws:s3/bucket:Bucket::hunter22".to_owned();
        let properties = vec!["tags.hunter22".to_owned()];
        let step = PlannedStep { urn: urn.clone(), operation: "create".to_owned(), properties };
        let operation_result =
            OperationResult { planned_steps: vec![step], ..OperationResult::pending_creates(vec![urn]) };
        let result = operation_result.into_result(&Redactor::new(["hunter22"]), 1);
        let expected = "urn:pulumi:dev::web::aws:s3/bucket:Bucket::[secret]";
        assert_eq!(result.pending_creates, [expected]);
        assert_eq!(result.planned_steps[0].urn, expected);
        assert_eq!(result.planned_steps[0].operation, "create");
        assert_eq!(result.planned_steps[0].properties, ["tags.[secret]"]);
        assert!(!result.message.contains("hunter22"), "{}", result.message);
    }

    #[test]
    fn outputs_and_messages_are_bounded_and_reveal_no_part_of_a_secret() {
        let output = Output { name: "big".into(), value: json!("x".repeat(MAX_OUTPUTS)), secret: false };
        let result = OperationResult { outputs: vec![output], ..OperationResult::succeeded("") }
            .into_result(&Redactor::default(), 1);
        assert!(result.outputs.is_empty() && result.outputs_unavailable && result.message.contains("omitted"));
        let lock =
            Lock { url: String::new(), user: "u".repeat(5000), host: "h".into(), pid: 1, time: "t".repeat(5000) };
        let secret = "s3cr3t".repeat(10);
        let result = OperationResult {
            last_output: format!("{secret}{}end", "ä".repeat(MAX_LAST_OUTPUT / 2 - 5)),
            holders: vec![lock; 100],
            pending_creates: vec!["u".repeat(5000); 100],
            ..canceled(&format!("{}{secret}", "ä".repeat(MAX_MESSAGE / 2 - 5)))
        };
        let result = result.into_result(&Redactor::new([secret.as_str()]), 1);
        assert!(result.message.len() <= MAX_MESSAGE && result.last_output.len() <= MAX_LAST_OUTPUT);
        assert!(!result.message.contains("s3c") && !result.last_output.contains("3t"), "{}", result.last_output);
        assert!(result.last_output.ends_with("end"));
        assert_eq!((result.holders.len(), result.pending_creates.len()), (MAX_HOLDERS, MAX_PENDING));
        assert!(result.holders[0].user.len() + result.pending_creates[0].len() <= 2 * MAX_NAME);
    }

    #[test]
    fn the_message_of_a_run_lists_drift() {
        let log = |names: &[&str]| {
            let event = |name: &&str| {
                json!({"resOutputsEvent": {"metadata": {
                    "op": "update", "urn": format!("urn:{name}"), "type": "a:b:C", "detailedDiff": {"tags": {}},
                }}})
            };
            names.iter().map(|name| format!("{}\n", event(name))).collect::<String>()
        };
        let message = |names| {
            let summary = crate::pulumi::run_summary::summary_of(&log(names));
            OperationResult::drifted(summary.planned()).map(|result| result.message)
        };
        assert_eq!(message(&[]), None);
        let one = "no changes were expected, but 1 resource(s) differ from the state: update urn:1 (tags)";
        assert_eq!(message(&["1"]).as_deref(), Some(one));
        let many = message(&["1", "2", "3", "4", "5", "6"]).unwrap();
        assert!(many.ends_with("; update urn:5 (tags) and 1 more"), "{many}");
    }

    #[test]
    fn the_message_of_a_run_lists_pending_creates() {
        let one = OperationResult::pending_creates(vec!["urn:a".into()]);
        assert!(
            one.message
                .contains("created a resource that may therefore exist: urn:a; the Pulumi command was not started"),
            "{}",
            one.message
        );
        let many = OperationResult::pending_creates((0..7).map(|number| format!("urn:{number}")).collect());
        assert!(many.message.contains("urn:4 and 2 more; the Pulumi command was not started"), "{}", many.message);
        assert_eq!(many.pending_creates.len(), 7);
    }

    #[test]
    fn the_outcome_depends_on_the_kind_of_failure_and_on_cancellation() {
        use proto::Outcome::{
            BackendUnavailable, BackendUpgradeRequired, Canceled, Conflict, Failed, Interrupted, InvalidAccessToken,
            PlanViolated, PolicyViolated,
        };
        for (kind, alone, canceled) in [
            (FailureKind::Killed { signal: 9 }, Interrupted, Interrupted),
            (FailureKind::Killed { signal: 2 }, Interrupted, Canceled),
            (FailureKind::Canceled, Canceled, Canceled),
            (FailureKind::Conflict { holders: vec![] }, Conflict, Canceled),
            (FailureKind::InvalidAccessToken, InvalidAccessToken, Canceled),
            (FailureKind::BackendUnavailable, BackendUnavailable, Canceled),
            (FailureKind::LegacyLayout, BackendUpgradeRequired, Canceled),
            (FailureKind::StackMissing, Failed, Canceled),
            (FailureKind::PlanViolated, PlanViolated, Canceled),
            (FailureKind::PolicyViolated, PolicyViolated, Canceled),
            (FailureKind::Failed, Failed, Canceled),
        ] {
            assert_eq!((outcome(&kind, false), outcome(&kind, true)), (alone, canceled), "{kind:?}");
        }
    }
}

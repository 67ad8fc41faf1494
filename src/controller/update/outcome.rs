//! Outcome of a run, from which the controller builds the Update status. All functions are pure.

use std::collections::{BTreeMap, HashMap};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ContainerStateTerminated;
use serde::Deserialize;

use crate::api::auto::{
    AppliedByOther, PreviewOf, RunHistory, RunProject, TerminationEvidence, UpdateKind, UpdatePlan, UpdateSpec,
};
use crate::api::conditions::{self, update_reason};
use crate::api::pulumi::{PolicyViolations, PulumiStack};
use crate::api::{bounds, names};
use crate::controller;
use crate::controller::update::request::TimeoutSource;
use crate::controller::update::{planned_changes, policy_violations};
use crate::pulumi::{backend, stack_name};
use crate::rpc::proto;

/// Maximum length of the CLI output in the status, in bytes. The status contains only the end of a longer output.
const MAX_OUTPUT: usize = 2048;
/// Maximum number of entries in each list of an outcome, such as pending creates and lock holders.
const MAX_LISTED: usize = 50;
/// Maximum time before the next attempt in seconds. An agent could otherwise prevent the retries of its Stack.
const MAX_RETRY_AFTER: i64 = 3660;
/// Maximum length of a string from the agent, in bytes.
const MAX_LINE: usize = 512;

/// Outcome of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct RunOutcome {
    /// Reason of the failure, or `None` if the run succeeded.
    pub failure: Option<&'static str>,
    pub message: String,
    pub started: Option<Timestamp>,
    pub ended: Option<Timestamp>,
    pub outputs: Vec<proto::Output>,
    pub changes: BTreeMap<String, i64>,
    pub permalink: Option<String>,
    pub last_output: Option<String>,
    /// URNs of the resources whose creation is pending.
    pub pending_creates: Vec<String>,
    /// Whether the run was interrupted. If `true`, the Pulumi state can contain pending operations.
    pub interrupted: bool,
    /// Whether the outputs are unknown, or the controller could not store them.
    pub outputs_unavailable: bool,
    /// Whether the state contained no resources before the run, although earlier runs have created resources.
    pub state_was_empty: bool,
    /// Minimum time before the next attempt in seconds.
    pub retry_after: Option<i64>,
    /// Evidence that the run has ended, or `None` if the run did not start.
    pub evidence: Option<TerminationEvidence>,
    /// Pulumi project of the run.
    pub project: Option<RunProject>,
    /// State backend of the run.
    pub backend: Option<String>,
    /// Keyed hash of the values in the configuration that come from Secrets and ConfigMaps.
    pub config_inputs: Option<String>,
    /// Environment variables that the agent did not pass to the CLI.
    pub ignored_variables: Vec<String>,
    /// Changes that a preview reports.
    pub plan: Option<UpdatePlan>,
    /// Policy violations, or `None` if the run violates no policy.
    pub policy_violations: Option<PolicyViolations>,
    /// Compressed plan file of a preview, or an empty vector if the run saved no plan.
    pub plan_file: Vec<u8>,
    /// Reference to the run in the run history, or `None` if the history does not contain the run.
    pub history: Option<RunHistory>,
}

/// Termination message that the agent writes for its container.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct TerminationMessage {
    id: String,
    outcome: String,
    #[serde(default)]
    message: String,
    /// Whether the run was interrupted. Older agents do not set this field.
    interrupted: Option<bool>,
}

impl RunOutcome {
    /// Returns the outcome of a run after the controller has detected a failure.
    pub fn failed(reason: &'static str, message: &str) -> Self {
        RunOutcome {
            failure: Some(reason),
            message: message.to_owned(),
            started: None,
            ended: None,
            outputs: Vec::new(),
            changes: BTreeMap::new(),
            permalink: None,
            last_output: None,
            pending_creates: Vec::new(),
            interrupted: false,
            outputs_unavailable: false,
            state_was_empty: false,
            retry_after: None,
            evidence: None,
            project: None,
            backend: None,
            config_inputs: None,
            ignored_variables: Vec::new(),
            plan: None,
            policy_violations: None,
            plan_file: Vec::new(),
            history: None,
        }
    }

    /// Converts the result that the agent reports. The agent is not trusted, so an unknown outcome becomes a failure.
    pub fn of(result: &proto::Result) -> Self {
        let outputs_unavailable = result.outputs_unavailable && result.outcome() == proto::Outcome::Succeeded;
        let mut outcome = RunOutcome {
            failure: failure(result.outcome()),
            message: result.message.clone(),
            started: Timestamp::from_millisecond(result.started).ok(),
            ended: Timestamp::from_millisecond(result.ended).ok(),
            outputs: result.outputs.clone(),
            changes: changes(&result.changes),
            permalink: Some(result.permalink.clone()).filter(|link| !link.is_empty()),
            last_output: Some(tail(&result.last_output)).filter(|output| !output.is_empty()),
            pending_creates: result.pending_creates.iter().take(MAX_LISTED).map(|urn| one_line(urn)).collect(),
            interrupted: result.interrupted || result.outcome() == proto::Outcome::Interrupted,
            outputs_unavailable,
            state_was_empty: result.state_was_empty,
            retry_after: retry_after(result),
            evidence: Some(TerminationEvidence::Agent),
            project: result.project.as_ref().map(project),
            backend: backend::without_credentials(&one_line(&result.backend)),
            config_inputs: Some(one_line(&result.config_inputs)).filter(|word| !word.is_empty()),
            ignored_variables: result.ignored_variables.iter().map(|name| one_line(name)).collect(),
            plan: planned_changes::changes(result),
            policy_violations: policy_violations::violations(result),
            plan_file: result.plan.clone(),
            history: None,
        };
        match result.outcome() {
            proto::Outcome::Conflict => outcome.message = conflict_message(&outcome.message, &result.holders),
            proto::Outcome::PendingCreates => outcome.message = pending_creates_message(&outcome.pending_creates),
            _ => {}
        }
        outcome
    }

    /// If the agent did not find the Pulumi stack or its resources, or if another Stack has applied the Pulumi stack,
    /// sets a message that contains the name and the backend of the stack. The agent cannot provide this message, because
    /// it redacts values from Secrets. `outcome` is the outcome that the agent reported.
    pub fn of_stack(mut self, spec: &UpdateSpec, outcome: proto::Outcome) -> Self {
        let project = self.project.as_ref().map(|project| project.name.clone());
        let stack = PulumiStack { name: spec.stack_name.clone(), project, backend: self.backend.clone() };
        if self.failure == Some(update_reason::DUPLICATE_STACK) {
            self.message = duplicate_message(&stack, &spec.applied_by_others);
        }
        if self.failure == Some(update_reason::STACK_NOT_FOUND) {
            let is_destroy = spec.kind == UpdateKind::Destroy || spec.preview_of == Some(PreviewOf::Destroy);
            let applied = spec.applied_stack.as_ref().filter(|_| is_destroy);
            self.message = match applied.filter(|applied| controller::differ(applied, &stack)) {
                Some(_) => format!("{stack} is not the stack that manages the resources; nothing was destroyed"),
                None if is_destroy => format!("{stack} not found; nothing was destroyed"),
                None if outcome == proto::Outcome::StateEmpty => {
                    format!("the state of {stack} contains no resources; no resource was changed")
                }
                None => format!("{stack} not found; no resource was changed"),
            };
        }
        self
    }

    /// Returns the outcome from the termination message if the agent wrote the message for this run. The termination
    /// message is short and contains no outputs.
    pub fn from_termination_message(terminated: &ContainerStateTerminated, id: &str) -> Option<Self> {
        let words: TerminationMessage = serde_json::from_str(terminated.message.as_deref()?).ok()?;
        if words.id != id {
            return None;
        }
        let reported = proto::Outcome::from_str_name(&words.outcome).unwrap_or(proto::Outcome::Unspecified);
        let mut outcome = RunOutcome::failed(update_reason::ABORTED, &words.message);
        outcome.failure = failure(reported);
        outcome.evidence = Some(TerminationEvidence::Container);
        outcome.interrupted = words.interrupted.unwrap_or_else(|| outcome.failure.is_some());
        if outcome.failure.is_none() {
            outcome.outputs_unavailable = true;
            outcome.message =
                "run succeeded; its outputs were lost with the pod, and the next run stores them".to_owned();
        }
        Some(outcome)
    }

    /// Returns the outcome of an interrupted run. `evidence` proves that all processes of the run have ended.
    pub fn interrupted(why: &str, evidence: TerminationEvidence, ended: Option<Timestamp>) -> Self {
        let message = format!("run interrupted: {why}");
        RunOutcome {
            interrupted: true,
            evidence: Some(evidence),
            ended,
            ..RunOutcome::failed(update_reason::ABORTED, &message)
        }
    }

    /// Returns the outcome of a run that a user has resolved with an annotation.
    pub fn resolved(resolution: &str, cause: &str) -> Self {
        let message =
            format!("a user resolved the run with annotation {}: {resolution}; {cause}", names::ANNOTATION_RESOLVE);
        RunOutcome {
            interrupted: true,
            evidence: Some(TerminationEvidence::User),
            ..RunOutcome::failed(update_reason::RUN_OUTCOME_UNKNOWN, &message)
        }
    }

    /// Removes outputs that the controller cannot store, and adds the reason to the message. The run does not fail,
    /// because its operation has completed.
    pub fn without_outputs(self, why: &str) -> Self {
        let lost = format!("failed to store the outputs: {why}; the next run stores them");
        let message = if self.message.is_empty() { lost } else { format!("{}; {lost}", self.message) };
        RunOutcome { message, outputs: Vec::new(), outputs_unavailable: true, ..self }
    }

    /// Changes the outcome to a failure, because the controller cannot store the plan. Without the plan, the preview
    /// is useless.
    pub fn without_plan(self, why: &str) -> Self {
        let plan = self.plan.map(|plan| UpdatePlan { file_digest: None, ..plan });
        let failure = Some(update_reason::UPDATE_FAILED);
        let message = format!("failed to store the plan: {why}");
        RunOutcome { failure, message, plan, plan_file: Vec::new(), ..self }
    }

    /// Adds the reference to the run in the run history.
    pub fn with_history(self, history: Option<RunHistory>) -> Self {
        RunOutcome { history, ..self }
    }

    /// Sets the end time if the outcome contains no end time.
    pub fn ended_by(self, ended: Option<Timestamp>) -> Self {
        RunOutcome { ended: self.ended.or(ended), ..self }
    }

    /// Changes a cancellation to an interruption, because no user canceled the run: the termination of the pod ended
    /// it.
    pub fn terminated_with_pod(mut self) -> Self {
        if self.failure == Some(update_reason::CANCELED) {
            self.failure = Some(update_reason::ABORTED);
            self.message = format!("pod terminated: {}", self.message);
        }
        self
    }

    /// Adds to the message that the controller deleted the pod because the agent did not enforce the timeout.
    pub fn after_deadline(mut self, timeout: &str) -> Self {
        self.message = format!(
            "the run exceeded its timeout of {timeout}, and the controller deleted its pod because the agent did not end the \
             run; {}",
            self.message
        );
        self
    }

    /// Adds advice about the timeout that ended the run.
    pub fn with_timeout_advice(mut self, source: TimeoutSource) -> Self {
        if let Some(advice) = source.advice() {
            self.message = format!("{}; {advice}", self.message);
        }
        self
    }

    /// Adds the cause of an interruption from the Kubernetes API, because the agent cannot observe this cause.
    pub fn with_cause(mut self, cause: Option<String>) -> Self {
        let is_new = |cause: &String| !self.message.contains(cause.as_str());
        if let Some(cause) = cause.filter(|_| self.failure == Some(update_reason::ABORTED)).filter(is_new) {
            self.message = format!("{} ({cause})", self.message);
        }
        self
    }
}

/// Returns the message about a run that did not start because another Stack has applied its Pulumi stack.
fn duplicate_message(stack: &PulumiStack, others: &[AppliedByOther]) -> String {
    let Some(other) = others.iter().find(|other| !controller::differ(&other.stack, stack)) else {
        return format!("another Stack manages {stack}; no resource was changed");
    };
    let owner = &other.owner;
    let has_organization = |name: &str| stack_name::parts(name).organization.is_some();
    let advice = match &other.stack.backend {
        None => format!("; the backend of Stack {owner} is unknown until its next run"),
        Some(url) if backend::is_pulumi_cloud(url) && !has_organization(&stack.name) => {
            "; if this Stack uses another organization, add the organization to its stack name".to_owned()
        }
        Some(_) => String::new(),
    };
    format!("Stack {owner} manages {stack}; no resource was changed{advice}")
}

/// Returns the number of resources for each operation.
fn changes(counts: &HashMap<String, u32>) -> BTreeMap<String, i64> {
    let max_operations = usize::try_from(bounds::OPERATIONS).unwrap_or(usize::MAX);
    counts.iter().take(max_operations).map(|(operation, count)| (one_line(operation), i64::from(*count))).collect()
}

/// Describes the lock holders. The message does not contain the age of the lock, so that the message remains the same
/// while the lock exists.
fn conflict_message(message: &str, holders: &[proto::LockHolder]) -> String {
    if holders.is_empty() {
        return message.to_owned();
    }
    let describe = |holder: &proto::LockHolder| {
        let (user, host, time) = (one_line(&holder.user), one_line(&holder.host), one_line(&holder.time));
        format!("{user}@{host} (pid {}) since {time}", holder.pid)
    };
    let all: Vec<String> = holders.iter().take(MAX_LISTED).map(describe).collect();
    format!(
        "the stack is locked by {}; if no process holds the lock anymore, remove it with `pulumi cancel`",
        all.join(" and by ")
    )
}

fn pending_creates_message(urns: &[String]) -> String {
    format!(
        "run not started: an earlier run was interrupted during the creation of resources; if they exist, another run would \
         create them again: {}",
        urns.join(", ")
    )
}

fn project(project: &proto::Project) -> RunProject {
    RunProject { name: one_line(&project.name), runtime: one_line(&project.runtime) }
}

/// Returns the last lines of the output, limited to [`MAX_OUTPUT`] bytes.
fn tail(output: &str) -> String {
    let output = output.trim_end();
    let begin = output.ceil_char_boundary(output.len().saturating_sub(MAX_OUTPUT));
    let tail = output.get(begin..).unwrap_or_default();
    match tail.split_once('\n') {
        Some((_, whole_lines)) if begin > 0 => whole_lines.to_owned(),
        _ => tail.to_owned(),
    }
}

/// Replaces control characters in a string from the agent, and limits the length of the string.
fn one_line(text: &str) -> String {
    let line: String = text.chars().take(MAX_LINE).map(|c| if c.is_control() { ' ' } else { c }).collect();
    conditions::shorten(&line, MAX_LINE)
}

fn failure(outcome: proto::Outcome) -> Option<&'static str> {
    match outcome {
        proto::Outcome::Succeeded => None,
        proto::Outcome::Failed | proto::Outcome::Unspecified => Some(update_reason::UPDATE_FAILED),
        proto::Outcome::Canceled => Some(update_reason::CANCELED),
        proto::Outcome::Conflict => Some(update_reason::UPDATE_CONFLICT),
        proto::Outcome::Interrupted => Some(update_reason::ABORTED),
        proto::Outcome::InvalidAccessToken => Some(update_reason::INVALID_ACCESS_TOKEN),
        proto::Outcome::BackendUnavailable => Some(update_reason::BACKEND_UNAVAILABLE),
        proto::Outcome::BackendUpgradeRequired => Some(update_reason::BACKEND_UPGRADE_REQUIRED),
        proto::Outcome::PendingCreates => Some(update_reason::PENDING_CREATES),
        proto::Outcome::StackNotFound | proto::Outcome::StateEmpty => Some(update_reason::STACK_NOT_FOUND),
        proto::Outcome::DuplicateStack => Some(update_reason::DUPLICATE_STACK),
        proto::Outcome::PlanViolated => Some(update_reason::PLAN_VIOLATED),
        proto::Outcome::PolicyViolated => Some(update_reason::POLICY_VIOLATION),
    }
}

/// Returns the minimum time before the next attempt after a failed run.
fn retry_after(result: &proto::Result) -> Option<i64> {
    let seconds = i64::try_from(result.retry_after_seconds).unwrap_or(i64::MAX).min(MAX_RETRY_AFTER);
    Some(seconds).filter(|seconds| *seconds > 0 && result.outcome() != proto::Outcome::Succeeded)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn terminated(message: Option<&str>) -> ContainerStateTerminated {
        ContainerStateTerminated {
            exit_code: 137,
            reason: Some("OOMKilled".to_owned()),
            message: message.map(str::to_owned),
            ..ContainerStateTerminated::default()
        }
    }

    #[test]
    fn a_termination_message_is_used_only_for_the_run_that_it_names() {
        let words = r#"{"id":"u1","outcome":"OUTCOME_SUCCEEDED","message":""}"#;
        let succeeded = RunOutcome::from_termination_message(&terminated(Some(words)), "u1").expect("same run");
        assert_eq!((succeeded.failure, succeeded.interrupted), (None, false));
        assert!(succeeded.message.contains("outputs were lost"), "{}", succeeded.message);
        assert_eq!(RunOutcome::from_termination_message(&terminated(Some(words)), "u2"), None);
        assert_eq!(RunOutcome::from_termination_message(&terminated(Some("not json")), "u1"), None);
        assert_eq!(RunOutcome::from_termination_message(&terminated(None), "u1"), None);
        let unknown = r#"{"id":"u1","outcome":"WHATEVER"}"#;
        let unknown = RunOutcome::from_termination_message(&terminated(Some(unknown)), "u1").expect("same run");
        assert_eq!((unknown.failure, unknown.interrupted), (Some(update_reason::UPDATE_FAILED), true));
        let in_order = r#"{"id":"u1","outcome":"OUTCOME_CANCELED","interrupted":false}"#;
        let in_order = RunOutcome::from_termination_message(&terminated(Some(in_order)), "u1").expect("same run");
        assert!(!in_order.interrupted);
    }

    #[test]
    fn an_unknown_outcome_is_a_failure() {
        let result = proto::Result { outcome: 99, ..proto::Result::default() };
        assert_eq!(RunOutcome::of(&result).failure, Some(update_reason::UPDATE_FAILED));
    }

    #[test]
    fn the_time_before_the_next_attempt_is_limited() {
        use proto::Outcome::{Failed, Succeeded};
        for (outcome, retry_after_seconds, expected) in [
            (Failed, 0, None),
            (Failed, 61, Some(61)),
            (Failed, u64::MAX, Some(MAX_RETRY_AFTER)),
            (Succeeded, 61, None),
        ] {
            let outcome = outcome.into();
            let result = proto::Result { outcome, retry_after_seconds, ..proto::Result::default() };
            assert_eq!(RunOutcome::of(&result).retry_after, expected);
        }
    }

    #[test]
    fn a_successful_run_can_have_unknown_outputs() {
        use proto::Outcome::{Failed, Succeeded};
        let output = proto::Output { name: "url".to_owned(), value: "1".to_owned(), secret: false };
        for (outcome, unavailable, expected) in
            [(Succeeded, false, (1, false)), (Succeeded, true, (1, true)), (Failed, true, (1, false))]
        {
            let result = proto::Result {
                outcome: outcome.into(),
                outputs: vec![output.clone()],
                outputs_unavailable: unavailable,
                ..proto::Result::default()
            };
            let outcome = RunOutcome::of(&result);
            assert_eq!((outcome.outputs.len(), outcome.outputs_unavailable), expected);
        }
    }

    #[test]
    fn a_lock_conflict_message_names_the_holder_and_time() {
        let holder = |time: &str| proto::LockHolder {
            user: "alice".to_owned(),
            host: "laptop\n".to_owned(),
            pid: 7,
            time: time.to_owned(),
        };
        let result = proto::Result {
            outcome: proto::Outcome::Conflict.into(),
            message: "message of the CLI".to_owned(),
            holders: vec![holder("2026-01-01T12:00:00Z"), holder("yesterday")],
            ..proto::Result::default()
        };
        assert_eq!(
            RunOutcome::of(&result).message,
            "the stack is locked by alice@laptop  (pid 7) since 2026-01-01T12:00:00Z and by alice@laptop  (pid 7) \
             since yesterday; if no process holds the lock anymore, remove it with `pulumi cancel`"
        );
        let cloud = proto::Result { holders: Vec::new(), ..result };
        assert_eq!(RunOutcome::of(&cloud).message, "message of the CLI");
    }

    #[test]
    fn the_message_about_a_duplicate_names_the_other_stack() {
        let result = |backend: &str| proto::Result {
            outcome: proto::Outcome::DuplicateStack.into(),
            project: Some(proto::Project { name: "web".to_owned(), runtime: String::new() }),
            backend: backend.to_owned(),
            ..proto::Result::default()
        };
        let cloud = "https://api.pulumi.com";
        // Columns: the backend of the run, the name and the backend of the other Stack, and the message.
        let rows = [
            ("s3://a", "dev", Some("s3://a"), "Stack first manages stack dev of project web in backend s3://a"),
            ("s3://a", "dev", None, "; the backend of Stack first is unknown until its next run"),
            (cloud, "acme/dev", Some(cloud), "add the organization to its stack name"),
            ("s3://a", "dev", Some("s3://b"), "another Stack manages stack dev of project web in backend s3://a"),
        ];
        for (backend, name, other, expected) in rows {
            let stack = PulumiStack {
                name: name.to_owned(),
                project: Some("web".to_owned()),
                backend: other.map(str::to_owned),
            };
            let spec = UpdateSpec {
                stack_name: "dev".to_owned(),
                applied_by_others: vec![AppliedByOther { owner: "first".to_owned(), stack }],
                ..UpdateSpec::default()
            };
            let result = result(backend);
            let outcome = RunOutcome::of(&result).of_stack(&spec, result.outcome());
            assert_eq!(outcome.failure, Some(update_reason::DUPLICATE_STACK));
            assert!(outcome.message.contains(expected), "{}", outcome.message);
            assert!(outcome.message.contains("no resource was changed"), "{}", outcome.message);
        }
    }

    #[test]
    fn a_stack_not_found_message_names_the_stack_and_backend() {
        let result = |backend: &str| proto::Result {
            outcome: proto::Outcome::StackNotFound.into(),
            message: "message of the agent".to_owned(),
            project: Some(proto::Project { name: "web".to_owned(), runtime: "yaml".to_owned() }),
            backend: backend.to_owned(),
            ..proto::Result::default()
        };
        let spec = |kind: UpdateKind, applied_stack: Option<PulumiStack>| UpdateSpec {
            kind,
            stack_name: "dev".to_owned(),
            applied_stack,
            ..UpdateSpec::default()
        };
        let of_stack =
            |result: &proto::Result, spec: &UpdateSpec| RunOutcome::of(result).of_stack(spec, result.outcome());
        let destroy = spec(UpdateKind::Destroy, None);
        let outcome = of_stack(&result("s3://user:word@state?key=x"), &destroy);
        assert_eq!(outcome.failure, Some(update_reason::STACK_NOT_FOUND));
        assert_eq!(outcome.message, "stack dev of project web in backend s3://state not found; nothing was destroyed");
        let message = of_stack(&result(""), &destroy).message;
        assert!(message.contains("in the default backend of the workspace not found"), "{message}");
        let applied = |backend: &str| PulumiStack {
            name: "dev".to_owned(),
            project: Some("web".to_owned()),
            backend: Some(backend.to_owned()),
        };
        let message = |kind, outcome: proto::Outcome, backend: &str| {
            let result = proto::Result { outcome: outcome.into(), ..result("s3://state") };
            let outcome = of_stack(&result, &spec(kind, Some(applied(backend))));
            assert_eq!(outcome.failure, Some(update_reason::STACK_NOT_FOUND));
            outcome.message
        };
        let here = "stack dev of project web in backend s3://state";
        let rows = [
            (UpdateKind::Destroy, proto::Outcome::StackNotFound, "s3://state", "{} not found; nothing was destroyed"),
            (
                UpdateKind::Destroy,
                proto::Outcome::StackNotFound,
                "s3://other",
                "{} is not the stack that manages the resources; nothing was destroyed",
            ),
            (UpdateKind::Up, proto::Outcome::StackNotFound, "s3://state", "{} not found; no resource was changed"),
            (
                UpdateKind::Preview,
                proto::Outcome::StateEmpty,
                "s3://state",
                "the state of {} contains no resources; no resource was changed",
            ),
        ];
        for (kind, outcome, backend, expected) in rows {
            assert_eq!(message(kind, outcome, backend), expected.replace("{}", here), "{kind:?} {outcome:?}");
        }
        let failed = proto::Result { outcome: proto::Outcome::Failed.into(), ..result("") };
        assert_eq!(of_stack(&failed, &destroy).message, "message of the agent");
    }

    #[test]
    fn only_the_last_complete_lines_of_the_output_are_kept() {
        assert_eq!(tail("one\ntwo\n"), "one\ntwo");
        let long = tail(&format!("{}\n{}last", "ä".repeat(2000), "line\n".repeat(100)));
        assert!(long.len() <= MAX_OUTPUT && long.starts_with("line\n") && long.ends_with("last"), "{long}");
    }

    #[test]
    fn a_run_canceled_by_the_termination_of_its_pod_is_aborted() {
        let of =
            |outcome: proto::Outcome| RunOutcome::of(&proto::Result { outcome: outcome.into(), ..Default::default() });
        assert_eq!(of(proto::Outcome::Canceled).terminated_with_pod().failure, Some(update_reason::ABORTED));
        assert_eq!(of(proto::Outcome::Succeeded).terminated_with_pod().failure, None);
        assert_eq!(of(proto::Outcome::Failed).terminated_with_pod().failure, Some(update_reason::UPDATE_FAILED));
        let interrupted = of(proto::Outcome::Interrupted).with_cause(Some("OOMKilled".to_owned()));
        assert!(interrupted.interrupted && interrupted.message.ends_with("(OOMKilled)"), "{}", interrupted.message);
    }
}

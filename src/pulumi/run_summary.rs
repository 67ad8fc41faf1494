//! Summary of a run's events.

use std::collections::{BTreeMap, VecDeque};

use super::events::{Diagnostic, EngineEvent, EventKind, MAX_URN, ResourceStep, STACK_TYPE, Summary};
use super::planned_steps::{HashedSet, PlannedSteps};
use crate::pulumi::console;
use crate::pulumi::outputs::Output;
use crate::pulumi::violations::Violations;

/// Maximum total size of the errors that the summary stores, in bytes. The first errors use one half of this size, and
/// the last errors use the other half.
const MAX_ERRORS: usize = 16 * 1024;
/// Maximum size of the program output that the summary stores, in bytes. The summary stores the program's last
/// messages.
const MAX_STDERR: usize = 8 * 1024;
/// Maximum length of a message that the summary stores, in bytes.
const MAX_KEPT: usize = 4 * 1024;
/// Assumed memory overhead per message, in bytes.
const OVERHEAD: usize = 64;
/// Maximum number of distinct operation names that the summary counts. The engine has about twenty operations.
const MAXIMUM_OPERATIONS: usize = 64;
/// Maximum number of operations in flight that the summary tracks. The number of operations in flight depends on
/// `--parallel`.
const MAX_IN_FLIGHT: usize = 4096;
/// Type prefix of providers. The engine does not count providers as resources.
const PROVIDER_TYPE: &str = "pulumi:providers:";
/// Operation that the engine reports for the refresh before an update. The engine does not count a refresh as a change.
const REFRESH: &str = "refresh";
const CREATE: &str = "create";
const READ: &str = "read";
/// Parts of the messages that the engine writes after a signal.
const STOPPING: [&str; 2] = ["received; cancelling", "received; terminating"];

/// Summary of a run's events, with a limited size.
#[derive(Clone, Debug, Default)]
pub struct RunSummary {
    began: bool,
    cancel_requested: bool,
    summary: Option<Summary>,
    steps: BTreeMap<String, u64>,
    /// Number of operations in flight per URN and operation name. A number can exceed 1, because the engine can delete
    /// several old copies of a resource simultaneously.
    in_flight: BTreeMap<(String, String), u64>,
    /// Whether the engine had more than [`MAX_IN_FLIGHT`] operations in flight.
    in_flight_exceeded: bool,
    outputs: Option<Vec<Output>>,
    /// Whether the engine has created the resource of the stack itself.
    created_stack_resource: bool,
    /// The resources that the run changes, or that the previewed operation would change.
    planned: PlannedSteps,
    /// URNs of all resources for which the engine has reported a step.
    seen: HashedSet,
    violations: Violations,
    first_errors: Vec<Diagnostic>,
    first_errors_full: bool,
    last_errors: Tail,
    stderr: Tail,
}

impl RunSummary {
    /// Creates an empty summary. `planned` collects the resources that the run changes.
    pub fn new(planned: PlannedSteps) -> Self {
        RunSummary { planned, ..RunSummary::default() }
    }

    /// Adds the next event of the run.
    pub fn observe(&mut self, event: &EngineEvent) {
        self.began = true;
        match &event.kind {
            EventKind::ResourcePre(step) => self.begin_operation(step),
            EventKind::ResourceOutputs(step) => {
                self.end_operation(step);
                self.observe_done(step);
            }
            EventKind::ResourceFailed(step) => self.end_operation(step),
            EventKind::Diagnostic(diagnostic) if !diagnostic.ephemeral => self.observe_diagnostic(diagnostic),
            EventKind::PolicyViolation(violation) => {
                self.observe_diagnostic(&violation.diagnostic());
                self.violations.observe(violation);
            }
            EventKind::Summary(summary) => {
                let mut summary = summary.clone();
                while summary.resource_changes.len() > MAXIMUM_OPERATIONS {
                    summary.resource_changes.pop_last();
                }
                self.summary = Some(summary);
            }
            EventKind::Stdout { message } => {
                self.cancel_requested |= STOPPING.iter().any(|words| message.contains(words));
            }
            _ => {}
        }
    }

    fn begin_operation(&mut self, step: &ResourceStep) {
        self.seen.insert(&step.urn);
        match self.in_flight.len() < MAX_IN_FLIGHT {
            true => *self.in_flight.entry(operation(step)).or_default() += 1,
            false => self.in_flight_exceeded = true,
        }
    }

    fn end_operation(&mut self, step: &ResourceStep) {
        if let Some(count) = self.in_flight.get_mut(&operation(step)) {
            *count -= 1;
            if *count == 0 {
                self.in_flight.remove(&operation(step));
            }
        }
    }

    fn observe_done(&mut self, step: &ResourceStep) {
        if let Some(outputs) = &step.stack_outputs {
            self.outputs = Some(outputs.clone());
        }
        self.created_stack_resource |= step.resource_type == STACK_TYPE && step.operation == CREATE;
        self.planned.observe(step);
        if step.resource_type.starts_with(PROVIDER_TYPE) || step.operation == REFRESH {
            return;
        }
        let known = self.steps.len() < MAXIMUM_OPERATIONS || self.steps.contains_key(&step.operation);
        if known {
            *self.steps.entry(step.operation.clone()).or_default() += 1;
        }
    }

    fn observe_diagnostic(&mut self, diagnostic: &Diagnostic) {
        let short = Diagnostic {
            message: console::shorten(&diagnostic.message, MAX_KEPT),
            urn: console::shorten(&diagnostic.urn, MAX_URN),
            ..diagnostic.clone()
        };
        match diagnostic.severity.as_str() {
            "error" => {
                let kept: usize = self.first_errors.iter().map(size).sum();
                self.first_errors_full |= kept + size(&short) > MAX_ERRORS / 2;
                if self.first_errors_full {
                    self.last_errors.push(short, MAX_ERRORS / 2);
                } else {
                    self.first_errors.push(short);
                }
            }
            "info#err" => self.stderr.push(short, MAX_STDERR),
            _ => {}
        }
    }

    /// Returns whether the state contained no resources when the engine started. In this case, the engine creates the
    /// resource of the stack itself, and neither changes nor deletes any resource.
    pub fn began_with_empty_state(&self) -> bool {
        self.created_stack_resource
            && self.resource_changes().keys().all(|operation| [CREATE, READ].contains(&operation.as_str()))
    }

    /// Returns the engine's summary event, if the engine has reported one.
    pub fn summary(&self) -> Option<&Summary> {
        self.summary.as_ref()
    }

    /// Returns `succeeded`, `failed` or `canceled`, if the engine has reported a result.
    pub fn result(&self) -> Option<&str> {
        self.summary.as_ref()?.result.as_deref()
    }

    /// Returns the number of resources per operation from the engine's summary event, and the number for each operation
    /// that the engine does not report. If the engine has not reported a summary, counts the completed steps instead.
    pub fn resource_changes(&self) -> BTreeMap<String, u64> {
        let counted = self.summary.as_ref().map_or(&self.steps, |summary| &summary.resource_changes);
        let derived = self.planned.derived().iter().map(|(operation, count)| ((*operation).to_owned(), *count));
        counted.clone().into_iter().chain(derived).collect()
    }

    /// Returns the first and the last error diagnostics. The maximum total size is 16 KiB.
    pub fn errors(&self) -> Vec<Diagnostic> {
        self.first_errors.iter().chain(&self.last_errors.kept).cloned().collect()
    }

    /// Returns whether the engine failed to save a change to the state, for example because the access token expired.
    /// Version 3.259 of the CLI reports success even after such a failure.
    pub fn lost_state(&self) -> bool {
        let of_state = |error: &Diagnostic| {
            error.message.contains(" event returned an error: ") && !error.message.contains(" violates plan: ")
        };
        self.errors().iter().any(of_state)
    }

    /// Returns the number of error diagnostics that [`RunSummary::errors`] omits.
    pub fn omitted_errors(&self) -> u64 {
        self.last_errors.omitted
    }

    /// Returns the program's last messages on stderr. The maximum total size is 8 KiB. Some language runtimes report
    /// errors only on stderr.
    pub fn program_stderr(&self) -> Vec<&str> {
        self.stderr.kept.iter().map(|diagnostic| diagnostic.message.as_str()).collect()
    }

    /// Returns the stack outputs that the engine reported last, with masked secrets. Returns `None` if the engine has
    /// reported no outputs.
    pub fn outputs(&self) -> Option<&[Output]> {
        self.outputs.as_deref()
    }

    /// Returns the resources that the run changes.
    pub fn planned(&self) -> &PlannedSteps {
        &self.planned
    }

    /// Returns the policy violations.
    pub fn violations(&self) -> &Violations {
        &self.violations
    }

    /// Returns whether the engine may have reported a step for a resource. Returns `true` for every URN if the set of
    /// URNs is full.
    pub fn may_have_seen(&self, urn: &str) -> bool {
        self.seen.is_full() || self.seen.contains(urn)
    }

    /// Returns whether the run has emitted an event. If a failed run has emitted no event, the engine has not started.
    pub fn began(&self) -> bool {
        self.began
    }

    /// Returns whether a resource operation is in flight. Also returns `true` if the number of operations in flight has
    /// exceeded [`MAX_IN_FLIGHT`].
    pub fn has_operations_in_flight(&self) -> bool {
        self.in_flight_exceeded || !self.in_flight.is_empty()
    }

    /// Returns whether the engine has reported a signal that cancels the run.
    pub fn cancel_requested(&self) -> bool {
        self.cancel_requested
    }
}

/// Returns the URN and the name of an operation.
fn operation(step: &ResourceStep) -> (String, String) {
    (step.urn.clone(), step.operation.clone())
}

fn size(diagnostic: &Diagnostic) -> usize {
    diagnostic.message.len() + diagnostic.urn.len() + OVERHEAD
}

/// The last messages, with a limited total size.
#[derive(Clone, Debug, Default)]
struct Tail {
    kept: VecDeque<Diagnostic>,
    omitted: u64,
}

impl Tail {
    fn push(&mut self, diagnostic: Diagnostic, limit: usize) {
        self.kept.push_back(diagnostic);
        while self.kept.iter().map(size).sum::<usize>() > limit && self.kept.len() > 1 {
            self.kept.pop_front();
            self.omitted += 1;
        }
    }
}

/// Returns the summary of a run with this event log.
#[cfg(test)]
pub(crate) fn summary_of(log: &str) -> RunSummary {
    let mut run = RunSummary::default();
    for line in super::events::LineSplitter::default().push(log.as_bytes()) {
        run.observe(&EngineEvent::parse(&line.expect("event within the size limit")).expect("valid engine event"));
    }
    run
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::summary_of as run;
    use super::*;

    fn changes(run: &RunSummary) -> Vec<(String, u64)> {
        run.resource_changes().into_iter().collect()
    }

    #[test]
    fn a_change_that_is_not_in_the_state_is_detected() {
        let log = |message: &str| {
            serde_json::json!({"diagnosticEvent": {"severity": "error", "message": message, "color": "never"}})
                .to_string()
                + "\n"
        };
        let lost =
            "resource complete event returned an error: failed to serialize snapshot: this command requires logging in";
        assert!(summary_of(&log(lost)).lost_state());
        assert!(!summary_of(&log("creating bad: it fails")).lost_state());
    }

    #[test]
    fn a_successful_run_has_its_outputs_and_changes() {
        let run = run(include_str!("testdata/succeeded.events.jsonl"));
        assert_eq!(run.result(), Some("succeeded"));
        assert_eq!(changes(&run), [("create".to_owned(), 1), ("same".to_owned(), 1)]);
        let outputs = run.outputs().expect("outputs exist");
        let found: Vec<_> = outputs.iter().map(|output| (output.name.as_str(), output.secret)).collect();
        let expected = [
            ("file", false),
            ("hosts", false),
            ("nested", true),
            ("nothing", false),
            ("port", false),
            ("text", false),
            ("token", true),
        ];
        assert_eq!(found, expected);
        assert_eq!(outputs[4].value, json!(8080));
        assert!(run.errors().is_empty() && !run.cancel_requested());
    }

    #[test]
    fn a_run_with_a_refresh_returns_the_last_outputs() {
        let run = run(include_str!("testdata/refreshed.events.jsonl"));
        assert_eq!(run.outputs().map(<[_]>::len), Some(7));
        assert_eq!(changes(&run), [("same".to_owned(), 2)]);
    }

    #[test]
    fn an_empty_state_is_detected_by_the_first_steps() {
        let step = |operation: &str, resource_type: &str| {
            let urn = format!("urn:pulumi:dev::web::{resource_type}::a");
            json!({"resOutputsEvent": {"metadata": {"op": operation, "urn": urn, "type": resource_type}}}).to_string()
                + "\n"
        };
        let stack = |operation: &str| step(operation, STACK_TYPE);
        let rows = [
            ("a new stack", stack("create") + &step("create", "a:b:C") + &step("read", "a:b:C"), true),
            ("only the stack resource", stack("create"), true),
            ("no changes", stack("same"), false),
            ("another resource was in the state", stack("create") + &step("delete", "a:b:C"), false),
            ("no steps", String::new(), false),
        ];
        for (name, log, expected) in rows {
            assert_eq!(run(&log).began_with_empty_state(), expected, "{name}");
        }
    }

    #[test]
    fn a_destroyed_stack_has_no_outputs() {
        let run = run(include_str!("testdata/destroyed.events.jsonl"));
        assert_eq!(run.outputs(), Some(&[][..]));
        assert_eq!(changes(&run), [("delete".to_owned(), 2)]);
    }

    #[test]
    fn a_failed_run_has_its_errors() {
        let run = run(include_str!("testdata/failed.events.jsonl"));
        assert_eq!(run.result(), Some("failed"));
        let errors: Vec<_> = run.errors().into_iter().map(|error| error.message).collect();
        assert_eq!(errors, ["creating bad: it fails because its input failOn is create", "update failed"]);
    }

    #[test]
    fn the_summary_of_a_canceled_run_shows_the_cancellation() {
        let run = run(include_str!("testdata/canceled.events.jsonl"));
        assert!(run.cancel_requested());
        assert_eq!(run.result(), Some("failed"));
    }

    #[test]
    fn operations_are_in_flight_until_their_end() {
        let event = |kind: fn(ResourceStep) -> EventKind, urn: &str| {
            let step = ResourceStep { urn: urn.to_owned(), operation: "delete".to_owned(), ..ResourceStep::default() };
            EngineEvent { sequence: 0, timestamp: 0, kind: kind(step) }
        };
        let mut run = RunSummary::default();
        assert!(!run.has_operations_in_flight());
        // `a` has two old copies.
        for urn in ["a", "a", "b"] {
            run.observe(&event(EventKind::ResourcePre, urn));
        }
        run.observe(&event(EventKind::ResourceOutputs, "a"));
        run.observe(&event(EventKind::ResourceFailed, "b"));
        assert!(run.has_operations_in_flight());
        run.observe(&event(EventKind::ResourceOutputs, "a"));
        run.observe(&event(EventKind::ResourceOutputs, "stack"));
        assert!(!run.has_operations_in_flight());
        for number in 0..=MAX_IN_FLIGHT {
            run.observe(&event(EventKind::ResourcePre, &number.to_string()));
        }
        for number in 0..=MAX_IN_FLIGHT {
            run.observe(&event(EventKind::ResourceOutputs, &number.to_string()));
        }
        assert!(run.has_operations_in_flight(), "an operation that was not tracked may be in flight");
    }

    #[test]
    fn no_operation_is_in_flight_after_a_complete_run() {
        for log in [
            include_str!("testdata/succeeded.events.jsonl"),
            include_str!("testdata/refreshed.events.jsonl"),
            include_str!("testdata/destroyed.events.jsonl"),
            include_str!("testdata/failed.events.jsonl"),
            include_str!("testdata/canceled.events.jsonl"),
        ] {
            assert!(!run(log).has_operations_in_flight(), "{log}");
        }
    }

    #[test]
    fn changes_are_counted_from_steps_without_a_summary_event() {
        let log = include_str!("testdata/succeeded.events.jsonl");
        let log: String = log.split_inclusive('\n').filter(|line| !line.contains("summaryEvent")).collect();
        assert_eq!(changes(&run(&log)), [("create".to_owned(), 1), ("same".to_owned(), 1)]);
    }

    #[test]
    fn only_the_first_and_last_of_many_errors_are_kept() {
        let mut run = RunSummary::default();
        for number in 0..10_000 {
            let message = format!("{number} {}", "x".repeat(1000));
            for severity in ["error", "info#err"] {
                let diagnostic =
                    Diagnostic { severity: severity.into(), message: message.clone(), ..Diagnostic::default() };
                run.observe(&EngineEvent { sequence: 0, timestamp: 0, kind: EventKind::Diagnostic(diagnostic) });
            }
        }
        let errors = run.errors();
        assert!(errors[0].message.starts_with("0 "));
        assert!(errors[errors.len() - 1].message.starts_with("9999 "));
        assert!(errors.iter().map(size).sum::<usize>() <= MAX_ERRORS);
        assert_eq!(errors.len() as u64 + run.omitted_errors(), 10_000);
        assert!(run.program_stderr().iter().map(|words| words.len()).sum::<usize>() <= MAX_STDERR);
    }

    #[test]
    fn a_run_without_engine_events_has_not_started_the_engine() {
        assert!(!RunSummary::default().began());
        assert!(run(include_str!("testdata/destroyed.events.jsonl")).began());
    }
}

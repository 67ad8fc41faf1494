//! Runs a CLI process until the process and all its descendants have exited.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::Signal;
use tokio::process::Child;
use tokio::time::{Instant, MissedTickBehavior};

use super::context::{AttemptError, Run};
use super::operation_result::first_bytes;
use crate::agent::cancellation::{Cancellation, Step};
use crate::agent::command;
use crate::agent::durable;
use crate::agent::output::{self, EventLog, Tail};
use crate::agent::processes::{self, RunProcesses};
use crate::agent::redactor::Redactor;
use crate::pulumi::active_update::ActiveUpdate;
use crate::pulumi::arguments::OperationKind;
use crate::pulumi::events::{Diagnostic, EngineEvent, EventKind, ResourceStep};
use crate::pulumi::failure::exit::Exit;
use crate::pulumi::failure::{self, Failure, FailureKind, lock};
use crate::pulumi::planned_steps::PlannedSteps;
use crate::pulumi::run_summary::RunSummary;
use crate::pulumi::{backend, console};
use crate::rpc::proto::{self, StepState, progress};

/// Interval at which the agent reads the event log.
const POLL: Duration = Duration::from_millis(50);
/// Maximum number of attempts to read the rest of the event log after the CLI has exited.
const MAX_LAST_READS: usize = 20;
/// Maximum time that the agent waits for output after the last process has exited.
const OUTPUT_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum size of a diagnostic message in the journal, in bytes.
const MAX_DIAGNOSTIC: usize = 8 * 1024;
const MAX_URN: usize = 4 * 1024;

/// Exit status and output of a CLI process.
pub(super) struct Attempt {
    pub(super) exit: Exit,
    pub(super) stdout: Tail,
    pub(super) stderr: Tail,
    pub(super) summary: RunSummary,
    pub(super) permalink: Option<String>,
    /// Pulumi Cloud update that blocked this attempt, if the agent has identified the update.
    pub(super) blocked_by: Option<ActiveUpdate>,
    /// Whether the agent has sent the CLI a signal to abandon the resource operations in flight.
    pub(super) was_forced: bool,
}

impl Attempt {
    /// Returns the reason why the CLI failed.
    pub(super) fn failure(&self) -> Failure {
        failure::classify(self.exit, &self.stdout.text(), &self.stderr.text(), &self.summary)
    }

    /// Returns the reason why a CLI that follows a plan failed. `unnamed` describes the resources whose URNs the CLI
    /// omits from its errors.
    pub(super) fn failure_with_plan(&self, unnamed: Option<&str>) -> Failure {
        failure::classify_with_plan(self.exit, &self.stdout.text(), &self.stderr.text(), &self.summary, unnamed)
    }

    /// Returns whether the CLI failed because the state backend does not contain the stack, before the engine started.
    pub(super) fn is_stack_missing(&self) -> bool {
        !self.exit.success() && !self.summary.began() && self.failure().kind == FailureKind::StackMissing
    }

    /// Returns whether the CLI failed because another client has locked the stack.
    pub(super) fn is_locked_out(&self) -> bool {
        !self.exit.success() && matches!(self.failure().kind, FailureKind::Conflict { .. })
    }

    /// Returns whether the run has succeeded and the state contains all changes of the run.
    pub(super) fn is_successful(&self) -> bool {
        self.exit.success() && !self.summary.lost_state()
    }

    /// Returns whether the event log contains the end of the run. The CLI reports no error if it cannot write its event
    /// log, for example because the disk is full.
    pub(super) fn has_complete_log(&self) -> bool {
        self.summary.summary().is_some()
    }

    /// Returns whether the state can contain pending operations. This is the case if the engine has started but not
    /// finished, or if the engine could not save the state.
    pub(super) fn is_interrupted(&self) -> bool {
        let engine_is_missing_its_end = self.summary.began() && self.summary.summary().is_none();
        let left = self.exit.code == Some(failure::exit::EXIT_CANCELED) || self.exit.signal.is_some();
        self.summary.lost_state() || !self.exit.success() && (left || self.was_forced || engine_is_missing_its_end)
    }

    /// Returns whether the lock of the CLI can remain in the state backend, because the CLI was interrupted or could
    /// not delete its lock. A CLI that failed because of another client's lock has no lock.
    fn can_leave_lock(&self) -> bool {
        let is_interrupted = self.exit.is_interrupted() || self.is_interrupted();
        lock::remains(&self.stderr.text()) || (is_interrupted && !self.is_locked_out())
    }

    pub(super) fn changes(&self) -> BTreeMap<String, u64> {
        self.summary.resource_changes()
    }
}

/// Runs the CLI, and returns when all its processes have exited.
pub(super) async fn run(run: &Run, kind: OperationKind, arguments: Vec<OsString>) -> Result<Attempt, AttemptError> {
    let id = &run.record.request().id;
    durable::remove(&run.record.event_log()).map_err(AttemptError::EventLog)?;
    let mut child = command::spawn(&arguments, &run.layout.program(), &run.environment.variables, id, Stdio::null())
        .map_err(AttemptError::Start)?;
    let session = child.id();
    let run_processes = RunProcesses::new(id, session.into_iter().collect());
    if let Some(pid) = session {
        run.record.append(progress::Event::Started(proto::Started { pid }));
    }
    let log = run.log();
    run.begin_step(match kind {
        _ if kind == run.parameters.kind => "opening the stack",
        OperationKind::DriftCheck => "checking for drift",
        _ => "comparing the operation with its plan",
    });
    let is_in_cloud = run.with_qualified(|stack| stack.backend.is_some_and(backend::is_pulumi_cloud));
    let mut permalink = None;
    let (out, err) = (child.stdout.take(), child.stderr.take());
    let reading = async {
        let out = async {
            let see = |line: &str| {
                run.liveness.record();
                if permalink.is_none() {
                    permalink = console::permalink(line, &run.stack).filter(|_| is_in_cloud);
                    permalink.iter().for_each(|url| run.record.append(progress::Event::Permalink(url.clone())));
                }
            };
            match out {
                Some(out) => output::copy(out, log.clone(), see).await,
                None => Tail::default(),
            }
        };
        let err = async {
            match err {
                Some(err) => output::copy(err, log.clone(), |_| run.liveness.record()).await,
                None => Tail::default(),
            }
        };
        tokio::join!(out, err)
    };
    let cancellation = Cancellation::default();
    let mut watch =
        Watch { run, run_processes: &run_processes, events: Events::new(run, kind), cancellation, is_idle: false };
    let (status, (stdout, stderr)) = join_output(reading, watch.until_ended(&mut child)).await;
    // The caller kills the processes of a CLI whose end is unknown.
    let exited = |interrupted| run.record.append(progress::Event::Exited(proto::Exited { interrupted }));
    let exit = command::exit(status.inspect_err(|_| exited(true))?);
    let was_forced = watch.cancellation.was_forced();
    let summary = watch.events.summary;
    let attempt = Attempt { exit, stdout, stderr, summary, permalink, blocked_by: None, was_forced };
    exited(attempt.can_leave_lock());
    Ok(attempt)
}

/// Reads the output until the process has exited, and then for at most [`OUTPUT_TIMEOUT`].
async fn join_output<T>(
    reading: impl Future<Output = (Tail, Tail)>,
    living: impl Future<Output = T>,
) -> (T, (Tail, Tail)) {
    let mut reading = std::pin::pin!(reading);
    let mut living = std::pin::pin!(living);
    tokio::select! {
        read = &mut reading => (living.await, read),
        ended = &mut living => (ended, tokio::time::timeout(OUTPUT_TIMEOUT, reading).await.unwrap_or_default()),
    }
}

/// Monitors a CLI process.
struct Watch<'a> {
    run: &'a Run,
    run_processes: &'a RunProcesses,
    events: Events<'a>,
    cancellation: Cancellation,
    /// Whether the agent has already reported that the run is idle.
    is_idle: bool,
}

impl Watch<'_> {
    /// Waits until all processes have exited, and reads all events.
    async fn until_ended(&mut self, child: &mut Child) -> Result<ExitStatus, AttemptError> {
        let mut poll = tokio::time::interval(POLL);
        poll.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let pid = child.id();
        let status = loop {
            tokio::select! {
                status = child.wait() => break status.map_err(AttemptError::Wait)?,
                _ = poll.tick() => {
                    self.events.read();
                    self.report_idle();
                    self.cancel(pid).await;
                }
            }
        };
        self.run_processes.end().await;
        self.read_rest().await;
        Ok(status)
    }

    /// Reads all remaining events. After a read error, for example because the agent has no free file descriptor, the
    /// function tries again for a limited time.
    async fn read_rest(&mut self) {
        for _ in 0..MAX_LAST_READS {
            while self.events.read() {
                tokio::task::yield_now().await;
            }
            if self.events.is_readable {
                return;
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// Returns the time since the last activity of the engine. The idle timeout does not apply before the first event of
    /// the engine, because the CLI prints nothing while it opens the stack, for example with a slow secrets provider.
    fn idle_time(&self) -> Duration {
        if self.events.summary.began() { self.run.liveness.idle_time() } else { Duration::ZERO }
    }

    /// Reports that the run has become idle.
    fn report_idle(&mut self) {
        let is_idle = self.run.parameters.limits.is_idle(self.idle_time());
        let was_idle = std::mem::replace(&mut self.is_idle, is_idle);
        if self.is_idle && !was_idle {
            tracing::warn!(operation = self.run.record.request().id, "run idle: no progress and no output");
            let since = self.run.liveness.last_time();
            self.run.record.append(progress::Event::Idle(proto::Idle { since }));
        }
    }

    async fn cancel(&mut self, pid: Option<u32>) {
        self.run.cancel_at_timeouts(self.idle_time());
        if self.events.summary.began() {
            self.cancellation.engine_began();
            self.cancellation.observe_operations(self.events.summary.has_operations_in_flight(), Instant::now());
        }
        let cancel_request = *self.run.cancel_request.borrow();
        let operation = &self.run.record.request().id;
        match self.cancellation.next_signal(&cancel_request, Instant::now()) {
            None => {}
            Some(Step::Interrupt) => {
                tracing::info!(operation, "interrupting the CLI");
                pid.into_iter().for_each(|pid| processes::send(pid, Signal::INT));
            }
            Some(Step::Kill) => {
                tracing::warn!(operation, "killing all processes of the run");
                self.run_processes.kill().await;
            }
        }
    }
}

/// Converts the events from the event log into a run's progress and summary.
struct Events<'a> {
    run: &'a Run,
    log: EventLog,
    redactor: Redactor,
    summary: RunSummary,
    /// Whether the engine steps are part of the operation's progress. `false` for a check before the operation.
    has_progress: bool,
    /// Whether the last read of the event log succeeded.
    is_readable: bool,
}

impl<'a> Events<'a> {
    fn new(run: &'a Run, kind: OperationKind) -> Self {
        let transcript = run.record.transcript().clone();
        let log = EventLog::new(run.record.event_log(), run.redactor(), transcript);
        let needs_deletions = run.parameters.saves_plan() || !run.parameters.plan().is_empty();
        let planned = match kind {
            OperationKind::PreviewRefresh | OperationKind::DriftCheck => PlannedSteps::of_refresh(),
            OperationKind::PreviewDestroy if needs_deletions => PlannedSteps::of_destroy(),
            _ => PlannedSteps::default(),
        };
        let has_progress = kind == run.parameters.kind;
        let (redactor, summary) = (run.redactor(), RunSummary::new(planned));
        Events { run, log, redactor, summary, has_progress, is_readable: true }
    }

    /// Reads new events. Returns `false` if the event log contains no new events, or if it is unreadable. An unreadable
    /// event log does not stop the run. The next call continues at the same position.
    fn read(&mut self) -> bool {
        match self.log.read() {
            Ok(events) => {
                self.is_readable = true;
                if !events.is_empty() {
                    self.run.liveness.record();
                }
                for event in &events {
                    self.summary.observe(event);
                    self.add_step(event);
                    if let Some(progress) = self.progress(event) {
                        self.run.record.append(progress);
                    }
                }
                if self.has_progress && self.summary.began() {
                    self.run.end_step();
                }
                !events.is_empty()
            }
            Err(error) => {
                if std::mem::take(&mut self.is_readable) {
                    tracing::warn!(operation = self.run.record.request().id, %error, "failed to read the event log");
                }
                false
            }
        }
    }

    /// Adds a resource that the operation has changed, or would change, to the transcript.
    fn add_step(&self, event: &EngineEvent) {
        let (step, failed) = match &event.kind {
            EventKind::ResourceOutputs(step) => (step, false),
            EventKind::ResourceFailed(step) => (step, true),
            _ => return,
        };
        if self.has_progress {
            self.run.record.transcript().add_step(step, failed, &self.redactor);
        }
    }

    fn progress(&self, event: &EngineEvent) -> Option<progress::Event> {
        let step = |step: &ResourceStep, state: StepState| {
            self.has_progress.then(|| progress::Event::Resource(resource_step(step, state, &self.redactor)))
        };
        match &event.kind {
            EventKind::ResourcePre(begun) => step(begun, StepState::Begun),
            EventKind::ResourceOutputs(done) => step(done, StepState::Done),
            EventKind::ResourceFailed(failed) => step(failed, StepState::Failed),
            EventKind::Diagnostic(diagnostic) => reported(diagnostic, &self.redactor),
            EventKind::PolicyViolation(violation) => reported(&violation.diagnostic(), &self.redactor),
            _ => None,
        }
    }
}

/// Converts a step into a progress message. The program chooses the name of a resource, so the URN can contain a
/// secret.
fn resource_step(step: &ResourceStep, state: StepState, redactor: &Redactor) -> proto::ResourceStep {
    proto::ResourceStep {
        urn: first_bytes(&redactor.redact(&step.urn), MAX_URN),
        operation: first_bytes(&step.operation, MAX_URN),
        state: state.into(),
    }
}

/// Returns the progress event for an error or a warning. The message is already redacted, but the URN is not.
fn reported(diagnostic: &Diagnostic, redactor: &Redactor) -> Option<progress::Event> {
    is_kept(diagnostic).then(|| {
        progress::Event::Diagnostic(proto::Diagnostic {
            severity: diagnostic.severity.clone(),
            urn: first_bytes(&redactor.redact(&diagnostic.urn), MAX_URN),
            message: first_bytes(&diagnostic.message, MAX_DIAGNOSTIC),
        })
    })
}

fn is_kept(diagnostic: &Diagnostic) -> bool {
    !diagnostic.ephemeral && matches!(diagnostic.severity.as_str(), "warning" | "error")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_urns_in_the_progress_are_redacted() {
        let redactor = Redactor::new(["hunter22"]);
        let rows = [
            ("urn:pulumi:dev::web::a:b:C::name", "urn:pulumi:dev::web::a:b:C::name"),
            ("urn:pulumi:dev::web::a:b:C::hunter22", "urn:pulumi:dev::web::a:b:C::[secret]"),
            ("", ""),
        ];
        for (urn, expected) in rows {
            let step = ResourceStep { urn: urn.to_owned(), operation: "create".to_owned(), ..ResourceStep::default() };
            let step = resource_step(&step, StepState::Done, &redactor);
            assert_eq!((step.urn.as_str(), step.operation.as_str()), (expected, "create"));
            assert_eq!(step.state, i32::from(StepState::Done));
            let (severity, urn) = ("error".to_owned(), urn.to_owned());
            let diagnostic = Diagnostic { severity, urn, ..Diagnostic::default() };
            let Some(progress::Event::Diagnostic(diagnostic)) = reported(&diagnostic, &redactor) else {
                panic!("no progress");
            };
            assert_eq!(diagnostic.urn, expected);
        }
        // The redaction is before the truncation, so no part of the secret remains.
        let urn = format!("{}hunter22", "x".repeat(MAX_URN - 4));
        let step = ResourceStep { urn, ..ResourceStep::default() };
        assert!(!resource_step(&step, StepState::Begun, &redactor).urn.contains("hunt"));
    }
}

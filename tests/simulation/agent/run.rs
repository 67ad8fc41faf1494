//! What the agent does in a run: the same steps, in the same order, as in `src/agent/run`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use pulumi_controller::agent::OperationRequest;
use pulumi_controller::agent::can_hold_lock;
use pulumi_controller::agent::cancellation::{CancelRequest, Cancellation, Cause, Step as Signal};
use pulumi_controller::agent::journal::{Journal, JournalRecord, Reader, now};
use pulumi_controller::pulumi::arguments::OperationKind;
use pulumi_controller::pulumi::failure::lock::{ExitedProcess, Lock, exited_holder};
use pulumi_controller::pulumi::stack_name::Qualified;
use pulumi_controller::rpc::proto::{self, Outcome, PendingCreates, progress};
use tokio::sync::watch;
use tokio::time::Instant;

use super::super::backend::history::{Process, Started};
use super::super::backend::{Backend, StackId, Unavailable};
use super::cli::{Cli, End, Engine, Failure, Operation, Plan, Seen};
use super::plan;
use super::program::Program;

/// Time that a CLI call needs which does not run the engine.
const CALL: Duration = Duration::from_millis(500);
/// Interval at which the agent looks at the CLI.
const POLL: Duration = Duration::from_millis(250);

pub struct Run {
    pub backend: Backend,
    pub journal: Arc<Journal>,
    pub record: Arc<JournalRecord>,
    pub request: proto::RunRequest,
    pub parameters: OperationRequest,
    pub program: Program,
    pub config: BTreeMap<String, String>,
    pub config_inputs: String,
    pub stack: StackId,
    pub pod: String,
    /// Host name in the locks of the pod.
    pub host: String,
    /// Next process ID in the container.
    pub pids: Arc<AtomicU32>,
    pub cancel_request: watch::Sender<CancelRequest>,
    pub cancellation_grace: Duration,
    pub begun: Instant,
    /// Whether the run selects the stack first.
    pub selects: bool,
}

/// A process that has ended.
struct Attempt {
    end: End,
    seen: Seen,
    was_forced: bool,
}

impl Attempt {
    /// Returns whether the state can contain pending operations.
    fn is_interrupted(&self) -> bool {
        let is_left =
            matches!(self.end, End::Signaled | End::Abandoned | End::Killed | End::Failed(Failure::StateLost));
        is_left || (self.was_forced && self.end != End::Succeeded)
    }

    fn can_leave_lock(&self) -> bool {
        self.seen.lock_remains || (self.is_interrupted() && !matches!(self.end, End::Failed(Failure::Locked(_))))
    }

    fn is_stack_missing(&self) -> bool {
        self.end == End::Failed(Failure::StackMissing)
    }
}

/// Result of an operation, with whether the engine has started.
#[derive(Default)]
struct Ended {
    result: proto::Result,
    engine_began: bool,
}

impl Ended {
    fn new(outcome: Outcome, message: &str) -> Ended {
        let result = proto::Result { outcome: outcome.into(), message: message.to_owned(), ..Default::default() };
        Ended { result, engine_began: false }
    }
}

/// The run was canceled between two processes, or a call has failed.
enum Stopped {
    Canceled,
    Ended(Box<Ended>),
}

impl From<Unavailable> for Stopped {
    fn from(_: Unavailable) -> Stopped {
        Stopped::Ended(Box::new(Ended::new(Outcome::BackendUnavailable, "the state backend is unavailable")))
    }
}

type Checked = Result<(), Stopped>;

impl Run {
    /// Runs the operation, and returns its result.
    pub async fn execute(&self) -> proto::Result {
        let mut ended = match self.perform().await {
            Ok(ended) => ended,
            Err(Stopped::Ended(ended)) => *ended,
            Err(Stopped::Canceled) => Ended::new(Outcome::Canceled, "run canceled"),
        };
        let outcome = ended.result.outcome();
        let was_in_doubt = self.parameters.pending_creates != PendingCreates::Unspecified;
        ended.result.interrupted |= was_in_doubt && !ended.engine_began && outcome != Outcome::Succeeded;
        let cause = self.cancel_request.borrow().cause;
        let project = proto::Project { name: self.program.project.clone(), runtime: self.program.runtime.clone() };
        proto::Result {
            started: self.record.request().started,
            ended: now(),
            pod_terminated: outcome != Outcome::Succeeded && cause == Some(Cause::Terminated),
            project: Some(project),
            backend: self.stack.backend.clone(),
            config_inputs: self.config_inputs.clone(),
            ..ended.result
        }
    }

    async fn perform(&self) -> Result<Ended, Stopped> {
        if self.with_qualified(|stack| self.parameters.destroys_another(stack)) {
            return Ok(Ended::new(Outcome::StackNotFound, "another stack manages the resources"));
        }
        if let Some(owner) = self.with_qualified(|stack| self.parameters.owner(stack).map(str::to_owned)) {
            return Ok(Ended::new(Outcome::DuplicateStack, &format!("Stack {owner} manages the stack")));
        }
        self.stop_if_canceled()?;
        self.settle_pending_creates().await?;
        let creates = self.with_qualified(|stack| self.parameters.creates(stack));
        let expects_state = self.with_qualified(|stack| self.parameters.expects_state(stack));
        if self.selects && self.parameters.kind.is_forward() {
            self.call().await?;
            // The run itself reports an unavailable backend.
            let _ = if creates { self.backend.create(&self.stack) } else { Ok(()) };
        }
        self.follow_plan_of_destroy().await?;
        self.check_drift().await?;
        let kind = self.parameters.kind;
        let first = self.unlocked_attempt(kind).await?;
        if !first.is_stack_missing() {
            return Ok(self.conclude(kind, first));
        }
        if expects_state {
            return Ok(Ended::new(Outcome::StackNotFound, "stack not found in the backend"));
        }
        if !creates {
            return Ok(Ended::new(Outcome::Failed, "stack not found in the backend, and this run must not create it"));
        }
        self.call().await?;
        self.backend.create(&self.stack)?;
        self.stop_if_canceled()?;
        let second = self.attempt(kind).await?;
        Ok(self.conclude(kind, second))
    }

    async fn settle_pending_creates(&self) -> Checked {
        let policy = self.parameters.pending_creates;
        if !matches!(policy, PendingCreates::Stop | PendingCreates::Clear) {
            return Ok(());
        }
        self.call().await?;
        let Some(mut deployment) = self.backend.read(&self.stack)? else { return Ok(()) };
        if policy == PendingCreates::Clear {
            if deployment.pending.is_empty() {
                return Ok(());
            }
            return self.clear_pending_creates().await;
        }
        let expects_resources =
            !self.parameters.kind.is_destroy() && self.with_qualified(|stack| self.parameters.expects_state(stack));
        let ended = match () {
            () if !deployment.pending.is_empty() => {
                let pending_creates = std::mem::take(&mut deployment.pending).into_iter().collect();
                let mut ended = Ended::new(Outcome::PendingCreates, "the state contains pending creates");
                ended.result.pending_creates = pending_creates;
                ended
            }
            () if expects_resources && deployment.is_empty() => Ended::new(Outcome::StateEmpty, "the state is empty"),
            () => return Ok(()),
        };
        Err(Stopped::Ended(Box::new(ended)))
    }

    /// Imports the state without the pending creates. The import needs the lock of the stack.
    async fn clear_pending_creates(&self) -> Checked {
        for is_last in [false, true] {
            let process = self.process(BTreeSet::new());
            self.record.append(progress::Event::Started(proto::Started { pid: process.pid }));
            let locked = self.backend.lock(&self.stack, &process)?;
            let imported = match &locked {
                Ok(()) => {
                    self.call().await?;
                    if let Some(mut deployment) = self.backend.read(&self.stack)? {
                        deployment.pending.clear();
                        self.backend.write(&self.stack, &deployment)?;
                    }
                    self.backend.unlock(&self.stack, &process).is_ok()
                }
                Err(_) => true,
            };
            self.record.append(progress::Event::Exited(proto::Exited { interrupted: !imported }));
            let Err(holders) = locked else { return Ok(()) };
            if is_last || !self.remove_stale_lock(&holders).await? {
                return Err(Stopped::Ended(Box::new(conflict(&holders))));
            }
        }
        Ok(())
    }

    /// Compares the resources that a destroy would delete with its plan.
    async fn follow_plan_of_destroy(&self) -> Checked {
        let compressed = self.parameters.plan();
        if compressed.is_empty() || self.parameters.kind != OperationKind::Destroy {
            return Ok(());
        }
        let Some(planned) = plan::deletions(compressed) else { return Err(invalid_plan()) };
        let preview = self.unlocked_attempt(OperationKind::PreviewDestroy).await?;
        if preview.is_stack_missing() {
            return Ok(());
        }
        if preview.end != End::Succeeded {
            return Err(self.conclude_check(OperationKind::PreviewDestroy, preview));
        }
        match plan::deletions_of(&preview.seen.steps) == planned {
            true => Ok(()),
            false => Err(Stopped::Ended(Box::new(Ended::new(
                Outcome::PlanViolated,
                "the resources to delete differ from the plan",
            )))),
        }
    }

    async fn check_drift(&self) -> Checked {
        if !self.parameters.expects_no_drift() {
            return Ok(());
        }
        let check = self.unlocked_attempt(OperationKind::DriftCheck).await?;
        if check.is_stack_missing() {
            return Ok(());
        }
        if check.end != End::Succeeded {
            return Err(self.conclude_check(OperationKind::DriftCheck, check));
        }
        match check.seen.steps.iter().filter_map(|step| step.planned()).count() {
            0 => Ok(()),
            count => {
                let message = format!("no changes were expected, but {count} resource(s) differ from the state");
                Err(Stopped::Ended(Box::new(Ended::new(Outcome::Failed, &message))))
            }
        }
    }

    fn conclude_check(&self, kind: OperationKind, attempt: Attempt) -> Stopped {
        let mut ended = self.conclude(kind, attempt);
        (ended.result.interrupted, ended.engine_began) = (false, false);
        ended.result.changes.clear();
        Stopped::Ended(Box::new(ended))
    }

    /// Runs a process. If the lock of an interrupted run blocks it, removes the lock and runs a second process.
    async fn unlocked_attempt(&self, kind: OperationKind) -> Result<Attempt, Stopped> {
        let first = self.attempt(kind).await?;
        match &first.end {
            End::Failed(Failure::Locked(holders))
                if !self.is_cancelled() && self.remove_stale_lock(holders).await? =>
            {
                self.stop_if_canceled()?;
                self.attempt(kind).await
            }
            _ => Ok(first),
        }
    }

    /// Removes the only lock of the stack if its process has exited. Returns whether it has been removed.
    async fn remove_stale_lock(&self, holders: &[Lock]) -> Result<bool, Stopped> {
        let Some(reported) = &self.parameters.exited_processes else { return Ok(false) };
        let known: Vec<_> = reported.iter().cloned().chain(self.own_exited_processes()).collect();
        let [lock] = holders else { return Ok(false) };
        if exited_holder(lock, &known).is_none() || self.backend.has_session() {
            return Ok(false);
        }
        self.call().await?;
        Ok(self.backend.cancel(&self.stack).is_ok())
    }

    /// Returns the interrupted processes of the finished runs in the journal.
    fn own_exited_processes(&self) -> Vec<ExitedProcess> {
        let mut exited = Vec::new();
        for record in self.journal.finished(&self.record.request().stack) {
            let (Some(result), Ok(processes)) = (record.result(), Reader::processes(record.clone())) else { continue };
            let left = processes.into_iter().filter(|process| can_hold_lock(process, &result));
            exited.extend(left.map(|process| ExitedProcess {
                host: self.host.clone(),
                pid: process.pid,
                started: record.request().started,
                ended: result.ended,
                permalink: None,
            }));
        }
        exited
    }

    /// Runs a process until it ends, and cancels it as the agent does.
    async fn attempt(&self, kind: OperationKind) -> Result<Attempt, Stopped> {
        let operation = self.operation(kind)?;
        let process = self.process(self.may_exist());
        let (engine, signals) = (Engine::new(), watch::Sender::new(0));
        self.record.append(progress::Event::Started(proto::Started { pid: process.pid }));
        let started = Started {
            time: jiff::Timestamp::now(),
            run: self.request.id.clone(),
            name: self.request.name.clone(),
            stack: process.stack_name.clone(),
            kind,
            has_plan: !self.request.plan.is_empty(),
            pod: self.pod.clone(),
        };
        let living = self.backend.start(started, &process);
        let cli = Cli {
            backend: &self.backend,
            process: &process,
            operation: &operation,
            engine: &engine,
            record: &self.record,
            signals: signals.subscribe(),
        };
        let mut cancellation = Cancellation::default();
        let end = {
            let mut running = std::pin::pin!(cli.run());
            loop {
                tokio::select! {
                    biased;
                    end = &mut running => break end,
                    () = tokio::time::sleep(POLL) => {}
                }
                match self.next_signal(&engine.seen(), &mut cancellation) {
                    None => {}
                    Some(Signal::Interrupt) => signals.send_modify(|count| *count += 1),
                    Some(Signal::Kill) => break End::Killed,
                }
            }
        };
        drop(living);
        let attempt = Attempt { end, seen: engine.seen(), was_forced: cancellation.was_forced() };
        self.record.append(progress::Event::Exited(proto::Exited { interrupted: attempt.can_leave_lock() }));
        Ok(attempt)
    }

    fn next_signal(&self, seen: &Seen, cancellation: &mut Cancellation) -> Option<Signal> {
        self.cancel_at_timeouts(if seen.began { seen.last_activity.elapsed() } else { Duration::ZERO });
        if seen.began {
            cancellation.engine_began();
            cancellation.observe_operations(seen.is_in_flight, Instant::now());
        }
        let cancel_request = *self.cancel_request.borrow();
        cancellation.next_signal(&cancel_request, Instant::now())
    }

    fn operation(&self, kind: OperationKind) -> Result<Operation, Stopped> {
        let plan: Option<Plan> = match self.parameters.follows_cli_plan() {
            true => Some(plan::of_up(self.parameters.plan()).ok_or_else(invalid_plan)?),
            false => None,
        };
        Ok(Operation {
            kind,
            desired: self.program.resources(&self.stack, &self.config),
            refresh: self.request.refresh,
            options: self.request.options.clone().unwrap_or_default(),
            plan,
        })
    }

    fn process(&self, may_exist: BTreeSet<String>) -> Process {
        Process {
            name: self.request.name.clone(),
            host: self.host.clone(),
            pid: self.pids.fetch_add(1, Ordering::Relaxed),
            stack: self.stack.clone(),
            stack_name: self.record.request().stack.clone(),
            may_exist,
        }
    }

    /// Returns the resources about whose pending creates a user has decided.
    fn may_exist(&self) -> BTreeSet<String> {
        match self.parameters.pending_creates {
            PendingCreates::Unspecified | PendingCreates::Stop => BTreeSet::new(),
            PendingCreates::Keep | PendingCreates::Clear => {
                self.program.resources(&self.stack, &self.config).into_keys().collect()
            }
        }
    }

    fn conclude(&self, kind: OperationKind, attempt: Attempt) -> Ended {
        let lost_state = attempt.seen.began_empty && self.with_qualified(|stack| self.parameters.expects_state(stack));
        let is_cancelled = self.is_cancelled();
        let canceled = |otherwise| if is_cancelled { Outcome::Canceled } else { otherwise };
        let mut ended = match &attempt.end {
            End::Succeeded if lost_state && kind.is_preview() => Ended::new(Outcome::StateEmpty, "the state is empty"),
            End::Succeeded => self.success(kind, &attempt.seen),
            End::Killed => Ended::new(Outcome::Interrupted, "the Pulumi CLI was killed by signal 9"),
            End::Canceled | End::Abandoned => Ended::new(Outcome::Canceled, "run canceled"),
            End::Signaled => Ended::new(canceled(Outcome::Interrupted), "the Pulumi CLI was killed by signal 2"),
            End::Failed(failure) => {
                let (outcome, message) = match failure {
                    Failure::Locked(holders) => {
                        let mut ended = conflict(holders);
                        ended.result.outcome = canceled(Outcome::Conflict).into();
                        return ended;
                    }
                    Failure::BackendUnavailable => (Outcome::BackendUnavailable, "the state backend is unavailable"),
                    Failure::StackMissing => (Outcome::Failed, "stack not found in the backend"),
                    Failure::StateLost => (Outcome::Failed, "failed to save the state"),
                    Failure::PlanViolated(why) => (Outcome::PlanViolated, why.as_str()),
                    Failure::Failed(why) => (Outcome::Failed, why.as_str()),
                };
                Ended::new(canceled(outcome), message)
            }
        };
        ended.result.changes = attempt.seen.changes.clone().into_iter().collect();
        ended.result.interrupted = !kind.is_preview() && attempt.is_interrupted();
        ended.engine_began = attempt.seen.began;
        ended
    }

    fn success(&self, kind: OperationKind, seen: &Seen) -> Ended {
        let mut ended = Ended::new(Outcome::Succeeded, "");
        let result = &mut ended.result;
        match kind {
            OperationKind::Up => {
                let output = |(name, value)| proto::Output { name, value, secret: false };
                result.outputs = self.program.outputs(&self.config).into_iter().map(output).collect();
            }
            OperationKind::Destroy if self.request.options.as_ref().is_some_and(|options| options.remove) => {
                // The CLI removes the stack in the same process.
                let _ = self.backend.remove(&self.stack);
            }
            _ if kind.is_preview() => {
                let mut planned: Vec<_> = seen.steps.iter().filter_map(|step| step.planned()).collect();
                planned.sort_by_key(|step| match step.operation.as_str() {
                    "delete" | "missing" => 0,
                    "replace" => 1,
                    _ => 2,
                });
                result.planned_step_count = u32::try_from(planned.len()).unwrap_or(u32::MAX);
                result.planned_steps = planned;
                if self.parameters.saves_plan() {
                    result.plan = plan::of_preview(kind, &seen.steps);
                }
            }
            _ => {}
        }
        ended
    }

    /// Waits for a CLI call that does not run the engine.
    async fn call(&self) -> Checked {
        tokio::time::sleep(CALL).await;
        self.stop_if_canceled()
    }

    fn stop_if_canceled(&self) -> Checked {
        if self.is_cancelled() { Err(Stopped::Canceled) } else { Ok(()) }
    }

    fn is_cancelled(&self) -> bool {
        self.cancel_at_timeouts(Duration::ZERO);
        self.cancel_request.borrow().is_requested()
    }

    /// Cancels the run if it has exceeded one of its timeouts.
    fn cancel_at_timeouts(&self, silent: Duration) {
        let Some(cause) = self.parameters.limits.exceeded(self.begun.elapsed(), silent) else { return };
        if !self.cancel_request.borrow().is_requested() {
            let now = Instant::now();
            self.cancel_request.send_modify(|request| request.cancel(cause, now, now + self.cancellation_grace));
        }
    }

    fn with_qualified<T>(&self, evaluate: impl FnOnce(&Qualified<'_>) -> T) -> T {
        let name = &self.record.request().stack;
        evaluate(&Qualified { name, project: Some(&self.program.project), backend: Some(&self.stack.backend) })
    }
}

fn conflict(holders: &[Lock]) -> Ended {
    let holder = |lock: &Lock| proto::LockHolder {
        user: lock.user.clone(),
        host: lock.host.clone(),
        pid: lock.pid,
        time: lock.time.clone(),
    };
    let mut ended = Ended::new(Outcome::Conflict, "the stack is locked");
    ended.result.holders = holders.iter().map(holder).collect();
    ended
}

fn invalid_plan() -> Stopped {
    Stopped::Ended(Box::new(Ended::new(Outcome::Failed, "the compressed plan of the request is invalid")))
}

//! A process of the simulated Pulumi CLI that runs the engine. If its future is dropped, the process is killed: the lock
//! and the pending creates remain in the backend.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use pulumi_controller::agent::journal::JournalRecord;
use pulumi_controller::pulumi::arguments::OperationKind;
use pulumi_controller::pulumi::failure::lock::Lock;
use pulumi_controller::rpc::proto::{self, StepState, progress};
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::Instant;

use super::super::backend::history::Process;
use super::super::backend::provider::Verb;
use super::super::backend::{Backend, Deployment, StackId, Unavailable};

const ROOT: &str = "pulumi:pulumi:Stack";

/// What the process does.
pub struct Operation {
    pub kind: OperationKind,
    /// Resources of the program, by URN, with their properties.
    pub desired: BTreeMap<String, String>,
    pub refresh: bool,
    pub options: proto::RunOptions,
    /// Plan that the process must follow.
    pub plan: Option<Plan>,
}

/// Planned operation on each resource, with the properties after the operation.
pub type Plan = BTreeMap<String, (String, String)>;

/// Why a process failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    BackendUnavailable,
    StackMissing,
    Locked(Vec<Lock>),
    /// The provider or a check of the CLI failed.
    Failed(String),
    PlanViolated(String),
    /// The engine could not write the state.
    StateLost,
}

/// How a process ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    Succeeded,
    Failed(Failure),
    /// A first SIGINT ended the process before the engine started.
    Signaled,
    /// The engine canceled the operation after the first SIGINT.
    Canceled,
    /// The engine abandoned its operations after the second SIGINT.
    Abandoned,
    /// SIGKILL ended the process.
    Killed,
}

/// What the agent knows about the engine of a process while the process is running.
pub struct Engine(Mutex<Seen>);

#[derive(Clone, Debug)]
pub struct Seen {
    pub began: bool,
    pub is_in_flight: bool,
    pub last_activity: Instant,
    pub began_empty: bool,
    pub changes: BTreeMap<String, u32>,
    /// Changes that a preview reports.
    pub steps: Vec<Step>,
    /// Whether the process could not remove its lock.
    pub lock_remains: bool,
}

/// Operation on a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    pub operation: &'static str,
    pub urn: String,
    pub from: Option<String>,
    pub to: Option<String>,
}

impl Engine {
    pub fn new() -> Engine {
        Engine(Mutex::new(Seen {
            began: false,
            is_in_flight: false,
            last_activity: Instant::now(),
            began_empty: false,
            changes: BTreeMap::new(),
            steps: Vec::new(),
            lock_remains: false,
        }))
    }

    pub fn seen(&self) -> Seen {
        self.lock().clone()
    }

    fn change(&self, change: impl FnOnce(&mut Seen)) {
        let mut seen = self.lock();
        seen.last_activity = Instant::now();
        change(&mut seen);
    }

    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub struct Cli<'a> {
    pub backend: &'a Backend,
    pub process: &'a Process,
    pub operation: &'a Operation,
    pub engine: &'a Engine,
    pub record: &'a JournalRecord,
    /// Number of SIGINTs that the process has received.
    pub signals: watch::Receiver<u32>,
}

impl Cli<'_> {
    /// Runs the process until it ends by itself.
    pub async fn run(mut self) -> End {
        match self.operate().await {
            Ok(()) => End::Succeeded,
            Err(end) => end,
        }
    }

    async fn operate(&mut self) -> Result<(), End> {
        // The CLI opens the stack. It handles no signals yet.
        tokio::select! {
            biased;
            _ = self.signals.wait_for(|count| *count > 0) => return Err(End::Signaled),
            () = tokio::time::sleep(self.backend.step()) => {}
        }
        let (stack, process) = (&self.process.stack, self.process);
        let deployment = self.backend.read(stack).map_err(unavailable)?;
        let deployment = deployment.ok_or(End::Failed(Failure::StackMissing))?;
        let locks = matches!(self.operation.kind, OperationKind::Up | OperationKind::Destroy | OperationKind::Refresh);
        if locks {
            let locked = self.backend.lock(stack, process).map_err(unavailable)?;
            locked.map_err(|holders| End::Failed(Failure::Locked(holders)))?;
        }
        let ended = self.run_engine(deployment).await;
        // After the second SIGINT, the process ends without removing its lock.
        if locks && ended != Err(End::Abandoned) && self.backend.unlock(stack, process).is_err() {
            self.engine.change(|seen| seen.lock_remains = true);
        }
        ended
    }

    async fn run_engine(&mut self, mut state: Deployment) -> Result<(), End> {
        let kind = self.operation.kind;
        let stack = self.process.stack.clone();
        let is_empty = state.is_empty();
        self.engine.change(|seen| (seen.began, seen.began_empty) = (true, is_empty));
        let mut missing = Vec::new();
        let refreshes =
            matches!(kind, OperationKind::Refresh | OperationKind::PreviewRefresh | OperationKind::DriftCheck);
        if refreshes || self.operation.refresh {
            let (steps, refreshed) = self.compare(&state);
            self.work().await?;
            if refreshes {
                self.report(steps)?;
                return if kind == OperationKind::Refresh { self.save(&refreshed) } else { Ok(()) };
            }
            missing = steps.into_iter().filter(|step| step.operation == "delete").collect();
            state = refreshed;
            if !kind.is_preview() {
                self.save(&state)?;
            }
        }
        let steps = steps(self.operation, &stack, &state);
        if kind.is_preview() {
            let missing = missing.into_iter().map(|step| Step { operation: "missing", ..step });
            self.engine.change(|seen| seen.steps.extend(missing));
            return self.report(steps);
        }
        if kind == OperationKind::Up && !state.has_root {
            state.has_root = true;
            self.save(&state)?;
        }
        self.apply_all(&steps, state).await
    }

    /// Does the steps of an `up` or a destroy, in accordance with the plan.
    async fn apply_all(&mut self, steps: &[Step], mut state: Deployment) -> Result<(), End> {
        let failed = |why: &str| Err(End::Failed(Failure::Failed(why.to_owned())));
        let planned = self.operation.plan.as_ref();
        let mut failure = None;
        for step in steps {
            if *self.signals.borrow() > 0 {
                return Err(End::Canceled);
            }
            if let Some(deviation) = planned.and_then(|plan| deviation(plan, step)) {
                return Err(End::Failed(Failure::PlanViolated(deviation)));
            }
            match self.apply(step, &mut state).await {
                Err(End::Failed(Failure::Failed(why))) if self.operation.options.continue_on_error => {
                    failure = Some(why);
                }
                applied => applied?,
            }
        }
        if let Some(urn) = planned.and_then(|plan| unseen(plan, steps)) {
            let deviation = format!("the planned operation on {urn} did not take place");
            return Err(End::Failed(Failure::PlanViolated(deviation)));
        }
        match failure {
            Some(why) => failed(&why),
            None if self.operation.options.expect_no_changes && steps.iter().any(|step| step.operation != "same") => {
                failed("no changes were expected but changes occurred")
            }
            None => Ok(()),
        }
    }

    /// Compares the state with the actual resources. Returns the differences, and the state without them.
    fn compare(&self, state: &Deployment) -> (Vec<Step>, Deployment) {
        let (mut steps, mut refreshed) = (Vec::new(), state.clone());
        for (urn, properties) in &state.resources {
            let actual = self.backend.actual(&self.process.stack, urn);
            let operation = match &actual {
                None => "delete",
                Some(actual) if actual == properties => "same",
                Some(_) => "update",
            };
            match &actual {
                None => drop(refreshed.resources.remove(urn)),
                Some(actual) => drop(refreshed.resources.insert(urn.clone(), actual.clone())),
            }
            steps.push(Step { operation, urn: urn.clone(), from: Some(properties.clone()), to: actual });
        }
        (steps, refreshed)
    }

    /// Reports steps that change no resource.
    fn report(&self, steps: Vec<Step>) -> Result<(), End> {
        for step in steps {
            self.count(&step);
            self.progress(&step, StepState::Done);
            self.engine.change(|seen| seen.steps.push(step));
        }
        if *self.signals.borrow() > 0 { Err(End::Canceled) } else { Ok(()) }
    }

    /// Does a step, and writes the state before and after it.
    async fn apply(&mut self, step: &Step, state: &mut Deployment) -> Result<(), End> {
        let verb = match step.operation {
            "create" => Verb::Create,
            "update" => Verb::Update,
            "replace" => Verb::Replace,
            "delete" => Verb::Delete,
            _ => {
                self.count(step);
                self.progress(step, StepState::Done);
                return Ok(());
            }
        };
        self.progress(step, StepState::Begun);
        let urn = &step.urn;
        if is_root(urn) {
            state.has_root = verb != Verb::Delete;
            self.save(state)?;
            self.count(step);
            self.progress(step, StepState::Done);
            return Ok(());
        }
        // The pending create of an earlier run remains until a user clears it.
        let is_pending = !state.pending.contains(urn) && verb == Verb::Create;
        if verb == Verb::Create && !is_pending && !self.process.may_exist.contains(urn) {
            self.backend.violate(format!("{} creates {urn}, which may exist", self.process));
        }
        if is_pending {
            state.pending.insert(urn.clone());
        }
        self.save(state)?;
        let (backend, process) = (self.backend, self.process);
        let sent = backend.send(process, verb, urn, step.to.as_deref());
        self.engine.change(|seen| seen.is_in_flight = true);
        self.work().await?;
        let fails = backend.fails();
        if fails {
            sent.fail()
        } else {
            sent.complete()
        }
        if is_pending {
            state.pending.remove(urn);
        }
        self.engine.change(|seen| seen.is_in_flight = false);
        if fails {
            self.save(state)?;
            self.progress(step, StepState::Failed);
            return Err(End::Failed(Failure::Failed(format!("{urn}: the provider failed"))));
        }
        match &step.to {
            Some(properties) => drop(state.resources.insert(urn.clone(), properties.clone())),
            None => drop(state.resources.remove(urn)),
        }
        self.save(state)?;
        backend.record_completed(&process.stack, verb, urn, step.to.as_deref());
        self.count(step);
        self.progress(step, StepState::Done);
        Ok(())
    }

    /// Waits for the provider, until the second SIGINT.
    async fn work(&mut self) -> Result<(), End> {
        tokio::select! {
            biased;
            _ = self.signals.wait_for(|count| *count > 1) => Err(End::Abandoned),
            () = tokio::time::sleep(self.backend.step()) => Ok(()),
        }
    }

    fn save(&self, state: &Deployment) -> Result<(), End> {
        self.backend.write(&self.process.stack, state).map_err(|Unavailable| End::Failed(Failure::StateLost))
    }

    fn count(&self, step: &Step) {
        self.engine.change(|seen| *seen.changes.entry(step.operation.to_owned()).or_default() += 1);
    }

    fn progress(&self, step: &Step, state: StepState) {
        let (urn, operation) = (step.urn.clone(), step.operation.to_owned());
        let step = proto::ResourceStep { urn, operation, state: state.into() };
        if self.operation.kind != OperationKind::DriftCheck {
            self.record.append(progress::Event::Resource(step));
        }
    }
}

fn unavailable(Unavailable: Unavailable) -> End {
    End::Failed(Failure::BackendUnavailable)
}

/// Returns the steps of an `up`, a destroy or the preview of one, in the order of the URNs.
fn steps(operation: &Operation, stack: &StackId, state: &Deployment) -> Vec<Step> {
    let options = &operation.options;
    let is_target = |urn: &str| options.targets.is_empty() || options.targets.iter().any(|target| target == urn);
    let is_destroy = operation.kind.is_destroy();
    let empty = BTreeMap::new();
    let desired = if is_destroy { &empty } else { &operation.desired };
    let root = stack.urn(ROOT, &format!("{}-{}", stack.project, stack.stack));
    let root = |operation| Step { operation, urn: root.clone(), from: None, to: None };
    let mut steps = Vec::new();
    if !is_destroy {
        steps.push(root(if state.has_root { "same" } else { "create" }));
    }
    for (urn, to) in desired.iter().filter(|(urn, _)| is_target(urn)) {
        let from = state.resources.get(urn);
        let operation = match from {
            None => "create",
            Some(_) if options.replace.contains(urn) => "replace",
            Some(from) if from == to => "same",
            Some(_) => "update",
        };
        steps.push(Step { operation, urn: urn.clone(), from: from.cloned(), to: Some(to.clone()) });
    }
    let deleted = state.resources.iter().filter(|(urn, _)| !desired.contains_key(*urn) && is_target(urn));
    steps.extend(deleted.map(|(urn, from)| Step {
        operation: "delete",
        urn: urn.clone(),
        from: Some(from.clone()),
        to: None,
    }));
    if is_destroy && state.has_root && options.targets.is_empty() {
        steps.push(root("delete"));
    }
    steps
}

/// Returns a resource of the plan that no step has changed.
fn unseen<'p>(plan: &'p Plan, steps: &[Step]) -> Option<&'p String> {
    let is_seen = |urn: &String| steps.iter().any(|step| step.urn == *urn);
    plan.iter().find(|(urn, (operation, _))| operation != "same" && !is_seen(urn)).map(|(urn, _)| urn)
}

/// Describes how a step deviates from a plan. A planned change need not take place if the resource is already as planned.
fn deviation(plan: &Plan, step: &Step) -> Option<String> {
    let to = step.to.clone().unwrap_or_default();
    match plan.get(&step.urn) {
        None => Some(format!("operation {} on {}, which is not in the plan", step.operation, step.urn)),
        Some((_, planned)) if *planned != to => Some(format!("{}: other properties than planned", step.urn)),
        Some((operation, _)) if operation != step.operation && step.operation != "same" => {
            Some(format!("operation {} on {}, but the planned operation is {operation}", step.operation, step.urn))
        }
        Some(_) => None,
    }
}

impl Step {
    /// Returns the operation for the list of changes. `None` if nothing changes.
    pub fn planned(&self) -> Option<proto::PlannedStep> {
        (self.operation != "same" && !is_root(&self.urn)).then(|| proto::PlannedStep {
            urn: self.urn.clone(),
            operation: self.operation.to_owned(),
            properties: self.changed_properties(),
        })
    }

    fn changed_properties(&self) -> Vec<String> {
        let parse = |text: &Option<String>| -> BTreeMap<String, Value> {
            text.as_deref().and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
        };
        let (Some(_), Some(_)) = (&self.from, &self.to) else { return Vec::new() };
        let (from, to) = (parse(&self.from), parse(&self.to));
        let names: BTreeSet<&String> = from.keys().chain(to.keys()).collect();
        names.into_iter().filter(|name| from.get(*name) != to.get(*name)).cloned().collect()
    }
}

pub fn is_root(urn: &str) -> bool {
    urn.contains(&format!("::{ROOT}::"))
}

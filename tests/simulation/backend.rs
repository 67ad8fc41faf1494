//! The simulated state backend: the deployments and locks of all Pulumi stacks. The actual resources are in `provider`,
//! and what the processes did is in `history`.

pub mod history;
pub mod provider;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pulumi_controller::pulumi::failure::lock::Lock;
use pulumi_controller::pulumi::stack_name;

use history::{History, Operation, Process, Started, Verdict};
use provider::{Provider, Verb};

/// Default time that the CLI needs to start, and to change a resource.
const STEP: Duration = Duration::from_secs(1);

/// The backend and the provider of a world. Cloning is cheap.
#[derive(Clone, Default)]
pub struct Backend(Arc<Mutex<Content>>);

struct Content {
    deployments: BTreeMap<StackId, Deployment>,
    locks: BTreeMap<StackId, Vec<Lock>>,
    provider: Provider,
    history: History,
    random: fastrand::Rng,
    step: Duration,
    is_down: bool,
    /// Number of the next operations of the provider that fail.
    failing: u32,
    has_session: bool,
}

impl Default for Content {
    fn default() -> Self {
        Content {
            deployments: BTreeMap::new(),
            locks: BTreeMap::new(),
            provider: Provider::default(),
            history: History::default(),
            random: fastrand::Rng::with_seed(0),
            step: STEP,
            is_down: false,
            failing: 0,
            has_session: false,
        }
    }
}

/// Pulumi stack in a backend. A self-managed backend has no organizations.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct StackId {
    pub backend: String,
    pub project: String,
    pub stack: String,
}

impl StackId {
    pub fn new(name: &str, project: &str, backend: &str) -> StackId {
        let parts = stack_name::parts(name);
        let project = parts.project.unwrap_or(project).to_owned();
        StackId { backend: backend.to_owned(), project, stack: parts.stack.to_owned() }
    }

    fn has_name(&self, name: &str) -> bool {
        let parts = stack_name::parts(name);
        self.stack == parts.stack && parts.project.is_none_or(|project| project == self.project)
    }

    pub fn urn(&self, kind: &str, name: &str) -> String {
        format!("urn:pulumi:{}::{}::{kind}::{name}", self.stack, self.project)
    }
}

impl fmt::Display for StackId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{} in {}", self.project, self.stack, self.backend)
    }
}

/// State of a Pulumi stack.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Deployment {
    /// Whether the state contains the resource of the stack itself. A destroy removes this resource last.
    pub has_root: bool,
    /// Resources, by URN, with their properties.
    pub resources: BTreeMap<String, String>,
    /// URNs of the pending creates.
    pub pending: BTreeSet<String>,
}

impl Deployment {
    pub fn is_empty(&self) -> bool {
        !self.has_root && self.resources.is_empty()
    }
}

/// The backend does not respond.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unavailable;

// What the lead of a world reads and changes.
#[allow(dead_code, reason = "not every scenario uses all switches")]
impl Backend {
    /// Seeds the random decisions, such as whether a killed create has created its resource.
    pub fn seed(&self, seed: u64) {
        self.content().random.seed(seed);
    }

    /// Returns the names of the resources in the state of a Pulumi stack.
    pub fn resources(&self, stack: &str) -> Vec<String> {
        let content = self.content();
        let found = content.deployments.iter().filter(|(id, _)| id.has_name(stack));
        let mut names: Vec<String> =
            found.flat_map(|(_, deployment)| deployment.resources.keys().map(|urn| name(urn).to_owned())).collect();
        names.sort();
        names
    }

    /// Returns the names of the pending creates in the state of a Pulumi stack.
    pub fn pending_creates(&self, stack: &str) -> Vec<String> {
        let content = self.content();
        let found = content.deployments.iter().filter(|(id, _)| id.has_name(stack));
        found.flat_map(|(_, deployment)| deployment.pending.iter().map(|urn| name(urn).to_owned())).collect()
    }

    /// Returns the names of the actual resources of a Pulumi stack.
    pub fn actual_resources(&self, stack: &str) -> Vec<String> {
        let content = self.content();
        let urns = content.provider.resources().filter(|(id, _)| id.has_name(stack));
        urns.map(|(_, urn)| name(urn).to_owned()).collect()
    }

    /// Returns the locks of a Pulumi stack.
    pub fn locks(&self, stack: &str) -> Vec<Lock> {
        let content = self.content();
        content.locks.iter().filter(|(id, _)| id.has_name(stack)).flat_map(|(_, locks)| locks.clone()).collect()
    }

    /// Returns whether a process uses the Pulumi stack.
    pub fn is_running(&self, stack: &str) -> bool {
        self.content().history.living.values().any(|process| process.stack.has_name(stack))
    }

    /// Returns the number of processes that run now.
    pub fn running(&self) -> usize {
        self.content().history.living.len()
    }

    /// Returns the operations that providers have completed.
    pub fn operations(&self) -> Vec<Operation> {
        self.content().history.operations.clone()
    }

    /// Returns the CLI processes that ran the engine.
    pub fn started(&self) -> Vec<Started> {
        self.content().history.started.clone()
    }

    /// Returns how a run really ended, or `None` if no agent has accepted the run.
    pub fn verdict(&self, run: &str) -> Option<Verdict> {
        self.content().history.verdicts.get(run).copied()
    }

    /// Returns the IDs of all accepted runs, with how they really ended.
    pub fn verdicts(&self) -> BTreeMap<String, Verdict> {
        self.content().history.verdicts.clone()
    }

    /// Returns what must never happen: two processes of a stack at the same time, a run that is executed twice, a
    /// resource that is created twice, and a completed operation that is repeated.
    pub fn violations(&self) -> Vec<String> {
        self.content().history.violations.clone()
    }

    /// Changes or removes an actual resource, as a user does outside Pulumi. Returns whether the resource exists.
    pub fn drift(&self, stack: &str, resource: &str, properties: Option<&str>) -> bool {
        let mut content = self.content();
        let is_meant = |(id, urn): &(&StackId, &str)| id.has_name(stack) && name(urn) == resource;
        let found = content.provider.resources().find(is_meant).map(|(id, urn)| (id.clone(), urn.to_owned()));
        let Some((id, urn)) = found else { return false };
        content.provider.drift(&id, &urn, properties);
        true
    }

    /// Removes the state of a Pulumi stack, for example because a user has deleted the bucket.
    pub fn lose_stack(&self, stack: &str) {
        self.content().deployments.retain(|id, _| !id.has_name(stack));
    }

    /// Makes the backend unavailable or available.
    pub fn set_down(&self, is_down: bool) {
        self.content().is_down = is_down;
    }

    /// Makes the next operation of the provider fail.
    pub fn fail_next_operation(&self) {
        self.content().failing += 1;
    }

    /// Sets the time that the CLI needs to start, and to change a resource.
    pub fn set_step(&self, step: Duration) {
        self.content().step = step;
    }

    /// Sets whether a user runs the CLI in all pods, so that no run can start.
    pub fn set_interactive_session(&self, has_session: bool) {
        self.content().has_session = has_session;
    }
}

// What the agents and the CLI processes do.
impl Backend {
    pub fn step(&self) -> Duration {
        self.content().step
    }

    pub fn has_session(&self) -> bool {
        self.content().has_session
    }

    /// Returns the state of a Pulumi stack, or `None` if the stack does not exist.
    pub fn read(&self, stack: &StackId) -> Result<Option<Deployment>, Unavailable> {
        let content = self.content();
        if content.is_down { Err(Unavailable) } else { Ok(content.deployments.get(stack).cloned()) }
    }

    pub fn write(&self, stack: &StackId, deployment: &Deployment) -> Result<(), Unavailable> {
        let mut content = self.content();
        if content.is_down {
            return Err(Unavailable);
        }
        content.deployments.insert(stack.clone(), deployment.clone());
        Ok(())
    }

    /// Creates a Pulumi stack, unless it exists.
    pub fn create(&self, stack: &StackId) -> Result<(), Unavailable> {
        match self.read(stack)? {
            Some(_) => Ok(()),
            None => self.write(stack, &Deployment::default()),
        }
    }

    pub fn remove(&self, stack: &StackId) -> Result<(), Unavailable> {
        let mut content = self.content();
        if content.is_down {
            return Err(Unavailable);
        }
        content.deployments.remove(stack);
        Ok(())
    }

    /// Locks a Pulumi stack, or returns the locks that prevent this.
    pub fn lock(&self, stack: &StackId, process: &Process) -> Result<Result<(), Vec<Lock>>, Unavailable> {
        let mut content = self.content();
        if content.is_down {
            return Err(Unavailable);
        }
        let locks = content.locks.entry(stack.clone()).or_default();
        if !locks.is_empty() {
            return Ok(Err(locks.clone()));
        }
        // The CLI writes whole seconds.
        let time = jiff::Timestamp::from_second(jiff::Timestamp::now().as_second()).unwrap_or_default();
        let url = format!("{}/.pulumi/locks/{}/{}", stack.backend, stack.project, stack.stack);
        let (host, pid) = (process.host.clone(), process.pid);
        locks.push(Lock { url, user: "pulumi".to_owned(), host, pid, time: time.to_string() });
        Ok(Ok(()))
    }

    /// Removes the lock of a process that ends.
    pub fn unlock(&self, stack: &StackId, process: &Process) -> Result<(), Unavailable> {
        let mut content = self.content();
        if content.is_down {
            return Err(Unavailable);
        }
        if let Some(locks) = content.locks.get_mut(stack) {
            locks.retain(|lock| (lock.host.as_str(), lock.pid) != (process.host.as_str(), process.pid));
        }
        Ok(())
    }

    /// Removes all locks of a Pulumi stack, as `pulumi cancel` does.
    pub fn cancel(&self, stack: &StackId) -> Result<(), Unavailable> {
        let mut content = self.content();
        if content.is_down {
            return Err(Unavailable);
        }
        content.locks.remove(stack);
        Ok(())
    }

    /// Returns the actual properties of a resource.
    pub fn actual(&self, stack: &StackId, urn: &str) -> Option<String> {
        self.content().provider.actual(stack, urn).map(str::to_owned)
    }

    /// Returns whether the next operation of the provider fails, and counts it.
    pub fn fails(&self) -> bool {
        let mut content = self.content();
        let fails = content.failing > 0;
        content.failing = content.failing.saturating_sub(1);
        fails
    }

    /// Sends an operation to the provider, which completes it with [`Sent::complete`].
    pub fn send<'a>(&'a self, process: &'a Process, verb: Verb, urn: &str, properties: Option<&str>) -> Sent<'a> {
        let (urn, properties) = (urn.to_owned(), properties.unwrap_or_default().to_owned());
        Sent { backend: self, process, verb, urn, properties, is_complete: false }
    }

    /// Records that the state contains the result of an operation.
    pub fn record_completed(&self, stack: &StackId, verb: Verb, urn: &str, properties: Option<&str>) {
        self.content().provider.record_completed(stack, verb, urn, properties.unwrap_or_default());
    }

    pub fn violate(&self, violation: String) {
        self.content().history.violations.push(violation);
    }

    /// Records that an agent has accepted a run. The run counts as killed if it does not call [`Execution::end`].
    pub fn accept(&self, run: &str, pod: &str) -> Execution {
        self.content().history.accept(run, pod);
        Execution { backend: self.clone(), run: run.to_owned(), is_over: false }
    }

    /// Records the start of a CLI process that runs the engine. The process ends when the returned guard is dropped.
    pub fn start(&self, started: Started, process: &Process) -> Living {
        let number = self.content().history.start(started, process);
        Living { backend: self.clone(), number }
    }

    fn content(&self) -> MutexGuard<'_, Content> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Operation that a CLI process has sent to the provider. If the process ends before the operation completes, the
/// operation can nevertheless take place.
pub struct Sent<'a> {
    backend: &'a Backend,
    process: &'a Process,
    verb: Verb,
    urn: String,
    properties: String,
    is_complete: bool,
}

impl Sent<'_> {
    pub fn complete(mut self) {
        self.apply();
    }

    /// The operation fails, and changes nothing.
    pub fn fail(mut self) {
        self.is_complete = true;
    }

    fn apply(&mut self) {
        self.is_complete = true;
        let mut content = self.backend.content();
        let Content { provider, history, .. } = &mut *content;
        let violation = provider.apply(self.process, self.verb, &self.urn, &self.properties);
        history.violations.extend(violation);
        let stack = self.process.stack_name.clone();
        history.operations.push(Operation { stack, verb: self.verb.word(), resource: name(&self.urn).to_owned() });
    }
}

impl Drop for Sent<'_> {
    fn drop(&mut self) {
        if !self.is_complete && self.backend.content().random.bool() {
            self.apply();
        }
    }
}

/// A run that an agent executes.
pub struct Execution {
    backend: Backend,
    run: String,
    is_over: bool,
}

impl Execution {
    pub fn end(&mut self, verdict: Verdict) {
        self.is_over = true;
        self.backend.content().history.verdicts.insert(self.run.clone(), verdict);
    }
}

impl Drop for Execution {
    fn drop(&mut self) {
        if !self.is_over {
            self.end(Verdict::Killed);
        }
    }
}

/// A CLI process that is running.
pub struct Living {
    backend: Backend,
    number: usize,
}

impl Drop for Living {
    fn drop(&mut self) {
        self.backend.content().history.living.remove(&self.number);
    }
}

/// Returns the name in a URN.
pub fn name(urn: &str) -> &str {
    urn.rsplit("::").next().unwrap_or_default()
}

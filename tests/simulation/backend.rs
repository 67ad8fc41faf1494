//! The simulated Pulumi CLI, with a state backend and a provider. The CLI reads the names of the resources from the
//! program in the source, and changes one resource per second.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pulumi_controller::rpc::proto;
use tokio_util::sync::CancellationToken;

/// Time that the CLI needs to start, and to change a resource.
const STEP: Duration = Duration::from_secs(1);

/// State of all Pulumi stacks, and the operations that providers have completed. Cloning is cheap.
#[derive(Clone, Default)]
pub struct Backend(Arc<Mutex<Content>>);

#[derive(Default)]
struct Content {
    stacks: BTreeMap<String, State>,
    operations: Vec<Operation>,
    violations: Vec<String>,
}

/// State of a Pulumi stack.
#[derive(Default)]
struct State {
    /// Resources, by name, with their properties.
    resources: BTreeMap<String, String>,
    /// Resources whose creation has begun.
    pending: BTreeSet<String>,
    /// Process that holds the lock.
    lock: Option<String>,
}

/// Operation that a provider has completed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    pub stack: String,
    pub verb: &'static str,
    pub resource: String,
}

/// What a CLI process does.
pub struct Process {
    /// Name of the process in violations and locks.
    pub name: String,
    pub kind: proto::OperationKind,
    pub stack: String,
    /// Resources of the program, by name, with their properties.
    pub program: BTreeMap<String, String>,
}

/// Lock of a running process. The end of the process releases the lock.
struct Lock<'a> {
    backend: &'a Backend,
    stack: &'a str,
}

impl Drop for Lock<'_> {
    fn drop(&mut self) {
        if let Some(state) = self.backend.content().stacks.get_mut(self.stack) {
            state.lock = None;
        }
    }
}

impl Backend {
    /// Returns the names of the resources in the state of a Pulumi stack.
    pub fn resources(&self, stack: &str) -> Vec<String> {
        let content = self.content();
        content.stacks.get(stack).map(|state| state.resources.keys().cloned().collect()).unwrap_or_default()
    }

    /// Returns whether a process uses the Pulumi stack.
    pub fn is_running(&self, stack: &str) -> bool {
        self.content().stacks.get(stack).is_some_and(|state| state.lock.is_some())
    }

    /// Returns the operations that providers have completed.
    pub fn operations(&self) -> Vec<Operation> {
        self.content().operations.clone()
    }

    /// Returns what must never happen: two processes of a stack at the same time, and a resource that is created twice.
    pub fn violations(&self) -> Vec<String> {
        self.content().violations.clone()
    }

    /// Runs a process until it ends or is canceled, and returns its result.
    pub async fn run(
        &self,
        process: &Process,
        canceled: &CancellationToken,
    ) -> (proto::Outcome, BTreeMap<String, u32>) {
        let Some(_lock) = self.lock(process) else { return (proto::Outcome::Conflict, BTreeMap::new()) };
        tokio::time::sleep(STEP).await;
        let mut changes = BTreeMap::new();
        for (verb, resource) in self.plan(process) {
            if canceled.is_cancelled() {
                return (proto::Outcome::Canceled, changes);
            }
            *changes.entry(verb.to_owned()).or_insert(0) += 1;
            if process.kind == proto::OperationKind::Preview || verb == "same" {
                continue;
            }
            self.begin(process, verb, &resource);
            tokio::time::sleep(STEP).await;
            self.complete(process, verb, resource);
        }
        (proto::Outcome::Succeeded, changes)
    }

    fn lock<'a>(&'a self, process: &'a Process) -> Option<Lock<'a>> {
        let mut content = self.content();
        let state = content.stacks.entry(process.stack.clone()).or_default();
        if let Some(holder) = state.lock.replace(process.name.clone()) {
            state.lock = Some(holder.clone());
            let violation = format!("{} starts while {holder} uses {}", process.name, process.stack);
            content.violations.push(violation);
            return None;
        }
        Some(Lock { backend: self, stack: &process.stack })
    }

    /// Returns the steps of the process, in the order of the resource names.
    fn plan(&self, process: &Process) -> Vec<(&'static str, String)> {
        let content = self.content();
        let empty = BTreeMap::new();
        let state = content.stacks.get(&process.stack).map_or(&empty, |state| &state.resources);
        let desired = if process.kind == proto::OperationKind::Destroy { &empty } else { &process.program };
        let changed = desired.iter().map(|(name, properties)| match state.get(name) {
            None => ("create", name.clone()),
            Some(current) if current == properties => ("same", name.clone()),
            Some(_) => ("update", name.clone()),
        });
        let deleted = state.keys().filter(|name| !desired.contains_key(*name)).map(|name| ("delete", name.clone()));
        changed.chain(deleted).collect()
    }

    fn begin(&self, process: &Process, verb: &str, resource: &str) {
        let mut content = self.content();
        let state = content.stacks.entry(process.stack.clone()).or_default();
        if verb == "create" && !state.pending.insert(resource.to_owned()) {
            content.violations.push(format!("{} creates {resource}, which may exist", process.name));
        }
    }

    fn complete(&self, process: &Process, verb: &'static str, resource: String) {
        let mut content = self.content();
        let state = content.stacks.entry(process.stack.clone()).or_default();
        state.pending.remove(&resource);
        match process.program.get(&resource).filter(|_| verb != "delete") {
            Some(properties) => state.resources.insert(resource.clone(), properties.clone()),
            None => state.resources.remove(&resource),
        };
        content.operations.push(Operation { stack: process.stack.clone(), verb, resource });
    }

    fn content(&self) -> MutexGuard<'_, Content> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

//! What the agents and CLI processes of a world really did.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use jiff::Timestamp;
use pulumi_controller::pulumi::arguments::OperationKind;
use pulumi_controller::rpc::proto;

use super::StackId;

/// Operation that a provider has completed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// Name of the Pulumi stack in the settings.
    pub stack: String,
    pub verb: &'static str,
    pub resource: String,
}

/// CLI process that ran the engine.
#[derive(Clone, Debug)]
#[allow(dead_code, reason = "not every scenario reads all fields")]
pub struct Started {
    pub time: Timestamp,
    /// UID of the Update.
    pub run: String,
    /// Name of the Update.
    pub name: String,
    /// Name of the Pulumi stack in the settings.
    pub stack: String,
    pub kind: OperationKind,
    /// Whether the run follows a plan.
    pub has_plan: bool,
    pub pod: String,
}

/// How a run really ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The run has not ended.
    Running,
    /// The agent has written this outcome to its journal.
    Ended(proto::Outcome),
    /// The agent was killed before it had written an outcome.
    Killed,
}

/// Identity of a CLI process.
#[derive(Clone, Debug, Default)]
pub struct Process {
    /// Name of the Update.
    pub name: String,
    pub host: String,
    pub pid: u32,
    pub stack: StackId,
    /// Name of the Pulumi stack in the settings.
    pub stack_name: String,
    /// Resources that the process may create again, because a user has decided about their pending creates.
    pub may_exist: BTreeSet<String>,
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on {} (pid {})", self.name, self.host, self.pid)
    }
}

#[derive(Default)]
pub struct History {
    pub operations: Vec<Operation>,
    pub started: Vec<Started>,
    pub verdicts: BTreeMap<String, Verdict>,
    pub violations: Vec<String>,
    /// CLI processes that run the engine now.
    pub living: BTreeMap<usize, Process>,
}

impl History {
    pub fn accept(&mut self, run: &str, pod: &str) {
        if let Some(earlier) = self.verdicts.insert(run.to_owned(), Verdict::Running) {
            self.violations.push(format!("run {run} is executed again on {pod} after {earlier:?}"));
        }
    }

    /// Records the start of a process. Returns its number.
    pub fn start(&mut self, started: Started, process: &Process) -> usize {
        let others = self.living.values().filter(|other| other.stack == process.stack);
        self.violations.extend(others.map(|other| format!("{process} starts while {other} uses {}", process.stack)));
        let number = self.started.len();
        self.started.push(started);
        self.living.insert(number, process.clone());
        number
    }
}

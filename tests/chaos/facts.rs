//! Facts at the end of the fault injection: events of the test provider, states of the stacks, and results of the Updates.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde::Deserialize;

/// Operation of the provider on a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Operation {
    Create,
    Update,
    Delete,
}

/// Phase of an operation. If a begin has no end, the provider was interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    Begin,
    Done,
    Failed,
    Cancelled,
}

/// One event of the provider.
#[derive(Clone, Debug, Deserialize)]
pub struct Event {
    /// Order of arrival.
    pub sequence: u64,
    pub urn: String,
    /// Resource and revision: `first@7`.
    #[serde(rename = "resource")]
    pub called: String,
    pub operation: Operation,
    pub phase: Phase,
    pub pid: i64,
    pub time: Timestamp,
    /// Common ID of a begin and its end.
    pub id: String,
}

/// A resource that a user removed from the provider after the log contained these events.
#[derive(Clone, Debug)]
pub struct RemovedManually {
    pub urn: String,
    pub after: u64,
    pub at: Timestamp,
}

/// State of a Pulumi stack.
#[derive(Clone, Debug, Default)]
pub struct State {
    /// Resource names by URN.
    pub resources: BTreeMap<String, String>,
    /// URNs of interrupted creations.
    pub pending_creates: BTreeSet<String>,
}

/// Expected final revision.
#[derive(Clone, Debug)]
pub struct LatestRevision {
    /// Revision in Flux's format.
    pub revision: String,
    pub number: u64,
}

/// The result of a run that its Update records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunOutcome {
    Succeeded,
    Failed { reason: String, message: String },
}

/// Latest observed state of an Update.
#[derive(Clone, Debug)]
pub struct Run {
    pub update: String,
    /// Number of the program revision that ran.
    pub number: u64,
    pub is_destroy: bool,
    pub created: Timestamp,
    /// Whether the status records a started run.
    pub has_begun: bool,
    pub ended: Option<Timestamp>,
    pub outcome: Option<RunOutcome>,
    /// Whether the object still exists.
    pub is_there: bool,
}

/// All facts about one Stack.
#[derive(Clone, Debug)]
pub struct Facts {
    pub stack: String,
    /// Events in order.
    pub events: Vec<Event>,
    pub removed_manually: Vec<RemovedManually>,
    pub state: State,
    pub locks: Vec<String>,
    pub latest: LatestRevision,
    /// Applied revision in the status of the Stack.
    pub applied: Option<String>,
    /// Reason why the Stack has not reached the latest revision, if any.
    pub stuck: Option<String>,
    /// Runs in order.
    pub runs: Vec<Run>,
    /// Times at which a fault affected the Stack's pod, agent, CLI or provider, or at which the Stack was deleted.
    pub hits: Vec<Timestamp>,
}

/// Returns the name in a URN.
pub fn name_of(urn: &str) -> &str {
    urn.rsplit("::").next().unwrap_or(urn)
}

/// Returns the resources in a revision of the program. One of them changes with each push.
pub fn resources_of(number: u64) -> [String; 4] {
    ["first".to_owned(), "second".to_owned(), "third".to_owned(), format!("turn{}", number % 3)]
}

/// Returns the provider's name for a resource of a revision.
pub fn called(name: &str, number: u64) -> String {
    format!("{name}@{number}")
}

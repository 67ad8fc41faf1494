//! Facts that the checks examine after the fault injection: provider events, Pulumi states, and Update results.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde::Deserialize;

/// Provider operation on a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Operation {
    Create,
    Update,
    Delete,
}

/// Phase of an operation. An interrupted operation begins but never ends.
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
    /// Sequence number, in the order in which the log received the events.
    pub sequence: u64,
    pub urn: String,
    /// Resource and revision, such as `first@7`.
    #[serde(rename = "resource")]
    pub called: String,
    pub operation: Operation,
    pub phase: Phase,
    pub pid: i64,
    pub time: Timestamp,
    /// Operation ID, which all events of one operation share.
    pub id: String,
}

/// A resource that the simulated user has removed from the provider after the event with the sequence number `after`.
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

/// Latest revision of a repository, which all Stacks of the repository must reach.
#[derive(Clone, Debug)]
pub struct LatestRevision {
    /// Revision in the Flux format.
    pub revision: String,
    pub number: u64,
}

/// Result in the status of an Update.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunOutcome {
    Succeeded,
    Failed { reason: String, message: String },
}

/// Latest observed state of an Update.
#[derive(Clone, Debug)]
pub struct Run {
    pub update: String,
    /// Revision number of the program.
    pub number: u64,
    pub is_destroy: bool,
    pub created: Timestamp,
    /// Whether the status contains a started run.
    pub has_begun: bool,
    pub ended: Option<Timestamp>,
    pub outcome: Option<RunOutcome>,
    /// Whether the Update still exists.
    pub exists: bool,
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
    /// Applied revision in the Stack status.
    pub applied: Option<String>,
    /// Reason why the Stack has not reached the latest revision, if any.
    pub stuck: Option<String>,
    /// Runs in order.
    pub runs: Vec<Run>,
    /// Times of the faults that affected the Stack's pod, agent, CLI or provider, and times at which the Stack was
    /// deleted.
    pub hits: Vec<Timestamp>,
}

/// Returns the resource name in a URN.
pub fn name_of(urn: &str) -> &str {
    urn.rsplit("::").next().unwrap_or(urn)
}

/// Returns the resource names in a program revision. One name changes with each revision.
pub fn resources_of(number: u64) -> [String; 4] {
    ["first".to_owned(), "second".to_owned(), "third".to_owned(), format!("turn{}", number % 3)]
}

/// Returns the provider's name for a resource, which contains the revision.
pub fn called(name: &str, number: u64) -> String {
    format!("{name}@{number}")
}

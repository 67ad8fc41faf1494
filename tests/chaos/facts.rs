//! What is known when the storm is over: what the test provider reported, what the states say, what became of the objects.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde::Deserialize;

/// What the provider did with a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Operation {
    Create,
    Update,
    Delete,
}

/// How far it got. A begin without an end means that the provider was cut off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    Begin,
    Done,
    Failed,
    Cancelled,
}

/// One report of the provider.
#[derive(Clone, Debug, Deserialize)]
pub struct Event {
    /// In the order of arrival.
    pub sequence: u64,
    pub urn: String,
    /// The resource and the revision that it is of: `first@7`.
    #[serde(rename = "resource")]
    pub called: String,
    pub operation: Operation,
    pub phase: Phase,
    pub pid: i64,
    pub time: Timestamp,
    /// The same for a begin and its end.
    pub id: String,
}

/// Something that a person removed, once the log had these events.
#[derive(Clone, Debug)]
pub struct RemovedByHand {
    pub urn: String,
    pub after: u64,
    pub at: Timestamp,
}

/// The state of a Pulumi stack.
#[derive(Clone, Debug, Default)]
pub struct State {
    /// By URN, what each is called.
    pub resources: BTreeMap<String, String>,
    /// URNs of creations that were cut off.
    pub pending_creates: BTreeSet<String>,
}

/// What shall be there in the end.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// As Flux writes it.
    pub revision: String,
    pub number: u64,
}

/// How a run ended, by its Update.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunOutcome {
    Succeeded,
    Failed { reason: String, message: String },
}

/// An Update, as it was last seen.
#[derive(Clone, Debug)]
pub struct Run {
    pub update: String,
    /// Of the program that it ran.
    pub number: u64,
    pub is_destroy: bool,
    pub created: Timestamp,
    /// Whether a run was announced for it.
    pub has_begun: bool,
    pub ended: Option<Timestamp>,
    pub verdict: Option<RunOutcome>,
    /// Whether the object is still there.
    pub is_there: bool,
}

/// All about one Stack.
#[derive(Clone, Debug)]
pub struct Facts {
    pub stack: String,
    /// In order.
    pub events: Vec<Event>,
    pub removed_by_hand: Vec<RemovedByHand>,
    pub state: State,
    pub locks: Vec<String>,
    pub wanted: Wanted,
    /// The revision that the Stack says is applied.
    pub applied: Option<String>,
    /// What keeps it from being done, if anything.
    pub stuck: Option<String>,
    /// In order.
    pub runs: Vec<Run>,
    /// When its own pod, agent, CLI or provider was hit, or it was deleted.
    pub hits: Vec<Timestamp>,
}

/// The name in a URN.
pub fn name_of(urn: &str) -> &str {
    urn.rsplit("::").next().unwrap_or(urn)
}

/// The resources of a program's revision. One of them comes and goes with each push.
pub fn resources_of(number: u64) -> [String; 4] {
    ["first".to_owned(), "second".to_owned(), "third".to_owned(), format!("turn{}", number % 3)]
}

/// What the provider calls a resource of a revision.
pub fn called(name: &str, number: u64) -> String {
    format!("{name}@{number}")
}

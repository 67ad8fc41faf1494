//! Checks the guarantees. Pure functions derive the violations from the facts that a chaos test has collected.

mod doubt;
mod life;
mod verdicts;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;

pub use doubt::find_pending_creates;
pub use verdicts::was_hit;

use crate::facts::{Facts, called, name_of, resources_of};

/// Kind of violation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Doubled,
    TwoRunsAtOnce,
    Orphan,
    Lock,
    NotApplied,
    NoVerdict,
    FalseVerdict,
    Stuck,
    UnreportedPendingCreate,
}

impl Kind {
    /// Returns whether a violation of this kind means that a requested change was lost.
    pub fn is_loss(self) -> bool {
        matches!(self, Kind::NotApplied | Kind::NoVerdict | Kind::Orphan)
    }

    /// Returns whether a violation of this kind means that an operation was repeated, or that two runs were concurrent.
    pub fn is_double(self) -> bool {
        matches!(self, Kind::Doubled | Kind::TwoRunsAtOnce)
    }
}

/// A violated guarantee.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    pub stack: String,
    pub kind: Kind,
    pub how: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {:?}: {}", self.stack, self.kind, self.how)
    }
}

/// Returns all violations in the facts about a Stack.
pub fn find_violations(facts: &Facts) -> Vec<Violation> {
    let found = [
        (Kind::Doubled, life::doubled(facts)),
        (Kind::TwoRunsAtOnce, life::concurrent_runs(facts)),
        (Kind::Orphan, orphans(facts)),
        (Kind::Lock, facts.locks.iter().map(|lock| format!("lock {lock} remains")).collect()),
        (Kind::NotApplied, not_applied(facts)),
        (Kind::NoVerdict, verdicts::missing(facts)),
        (Kind::FalseVerdict, verdicts::wrong(facts)),
        (Kind::Stuck, facts.stuck.iter().cloned().collect()),
        (Kind::UnreportedPendingCreate, unreported_pending_creates(facts)),
    ];
    let broken = |(kind, how): (Kind, Vec<String>)| {
        let stack = facts.stack.clone();
        how.into_iter().map(move |how| Violation { stack: stack.clone(), kind, how })
    };
    found.into_iter().flat_map(broken).collect()
}

/// Returns the resources that exist in the provider but are missing from the state.
fn orphans(facts: &Facts) -> Vec<String> {
    let remaining = life::existing(facts, None).into_keys();
    remaining
        .filter(|urn| !facts.state.resources.contains_key(*urn))
        .map(|urn| format!("{} was created and not deleted, and is not in the state", name_of(urn)))
        .collect()
}

fn not_applied(facts: &Facts) -> Vec<String> {
    let mut problems = Vec::new();
    let latest = &facts.latest;
    if facts.applied.as_ref() != Some(&latest.revision) {
        problems.push(format!("{} was pushed last, but {:?} is applied", latest.revision, facts.applied));
    }
    let expected: BTreeMap<String, String> =
        resources_of(latest.number).into_iter().map(|name| (name.clone(), called(&name, latest.number))).collect();
    let found: BTreeMap<String, String> =
        facts.state.resources.iter().map(|(urn, called)| (name_of(urn).to_owned(), called.clone())).collect();
    if found != expected {
        problems.push(format!("the state has {found:?} instead of {expected:?}"));
    }
    problems
}

fn unreported_pending_creates(facts: &Facts) -> Vec<String> {
    let names = facts.state.pending_creates.iter().map(|urn| name_of(urn));
    names.map(|name| format!("the state has a pending create of {name} that was not reported to the user")).collect()
}

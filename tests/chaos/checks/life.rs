//! Derives resource lifecycles from the provider events.

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::facts::{Event, Facts, Operation, Phase, RemovedManually, name_of};

/// Step in the lifecycle of a Stack's resources.
enum Step<'a> {
    Event(&'a Event),
    RemovedManually(&'a RemovedManually),
}

/// Returns the provider events and the manual removals in chronological order.
fn steps(facts: &Facts) -> impl Iterator<Item = Step<'_>> {
    let events = facts.events.iter().map(|event| ((event.sequence, 0), Step::Event(event)));
    let removals = facts.removed_manually.iter().map(|removed| ((removed.after, 1), Step::RemovedManually(removed)));
    let mut steps: Vec<_> = events.chain(removals).collect();
    steps.sort_by_key(|(order, _)| *order);
    steps.into_iter().map(|(_, step)| step)
}

/// Returns the URN and the latest name of each resource that exists at the time `until` or, if `until` is `None`, after
/// the last event.
pub(super) fn existing(facts: &Facts, until: Option<Timestamp>) -> BTreeMap<&str, &str> {
    let counts = |time: Timestamp| until.is_none_or(|until| time <= until);
    let mut names = BTreeMap::new();
    for step in steps(facts) {
        match step {
            Step::RemovedManually(removed) if counts(removed.at) => drop(names.remove(removed.urn.as_str())),
            Step::Event(event) if event.phase == Phase::Done && counts(event.time) => match event.operation {
                Operation::Create | Operation::Update => drop(names.insert(event.urn.as_str(), event.called.as_str())),
                Operation::Delete => drop(names.remove(event.urn.as_str())),
            },
            Step::RemovedManually(_) | Step::Event(_) => {}
        }
    }
    names
}

/// Returns a description of each operation that created a resource that already existed.
pub(super) fn doubled(facts: &Facts) -> Vec<String> {
    let mut resources: BTreeMap<&str, &Event> = BTreeMap::new();
    let mut doubled = Vec::new();
    for step in steps(facts) {
        let event = match step {
            Step::Event(event) if event.phase == Phase::Done => event,
            Step::Event(_) => continue,
            Step::RemovedManually(removed) => {
                resources.remove(removed.urn.as_str());
                continue;
            }
        };
        match event.operation {
            Operation::Update => {}
            Operation::Delete => drop(resources.remove(event.urn.as_str())),
            Operation::Create => {
                if let Some(first) = resources.insert(&event.urn, event) {
                    let name = name_of(&event.urn);
                    doubled.push(format!("{name} was created at {} and again at {}", first.time, event.time));
                }
            }
        }
    }
    doubled
}

/// Returns a description of each operation that overlaps with an operation of another process.
pub(super) fn concurrent_runs(facts: &Facts) -> Vec<String> {
    let ends: BTreeMap<&str, &Event> = facts
        .events
        .iter()
        .filter(|event| event.phase != Phase::Begin)
        .map(|event| (event.id.as_str(), event))
        .collect();
    let begins: Vec<&Event> = facts.events.iter().filter(|event| event.phase == Phase::Begin).collect();
    let mut overlaps = Vec::new();
    for (position, first) in begins.iter().enumerate() {
        let Some(end) = ends.get(first.id.as_str()) else { continue };
        let other = begins.iter().skip(position + 1).take_while(|second| second.sequence < end.sequence);
        for second in other.filter(|second| second.pid != first.pid) {
            overlaps.push(format!(
                "{:?} of {} by process {} lasted from {} to {}, and process {} began {:?} of {} at {}",
                first.operation,
                first.called,
                first.pid,
                first.time,
                end.time,
                second.pid,
                second.operation,
                second.called,
                second.time
            ));
        }
    }
    overlaps
}

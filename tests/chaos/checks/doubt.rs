//! Checks whether a Stack has a reason to wait for a decision, and returns the facts that a user needs for the
//! decision.

use super::life;
use crate::facts::{Facts, name_of};

/// Pending creates in the state of a Stack.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PendingCreates {
    /// URNs of resources that exist but are missing from the state. The simulated user removes these resources.
    pub exist: Vec<String>,
    /// URNs of resources that do not exist.
    pub do_not_exist: Vec<String>,
}

/// Finds the pending creates in the state, and checks in the provider whether their resources exist. If no create is
/// pending, returns an error with the reason why the Stack waits.
pub fn find_pending_creates(facts: &Facts) -> Result<PendingCreates, String> {
    if facts.state.pending_creates.is_empty() {
        return Err("the state has no pending create".to_owned());
    }
    let remaining = life::existing(facts, None);
    let mut found = PendingCreates::default();
    for urn in &facts.state.pending_creates {
        if facts.state.resources.contains_key(urn) {
            return Err(format!("{} is in the state: its creation is not pending", name_of(urn)));
        }
        let list = if remaining.contains_key(urn.as_str()) { &mut found.exist } else { &mut found.do_not_exist };
        list.push(urn.clone());
    }
    Ok(found)
}

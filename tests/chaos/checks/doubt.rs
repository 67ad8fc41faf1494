//! Stacks that wait for a decision: whether the question is justified, and the facts that a user would find.

use super::life;
use crate::facts::{Facts, name_of};

/// Pending creates as a user would find them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InDoubt {
    /// URNs of resources that exist but are missing in the state. The user removes them.
    pub exist: Vec<String>,
    /// URNs of resources that do not exist.
    pub do_not_exist: Vec<String>,
}

/// Checks the state and the provider, as a user would. An error tells why no operation is pending.
pub fn look_into(facts: &Facts) -> Result<InDoubt, String> {
    if facts.state.pending_creates.is_empty() {
        return Err("the state has no creation that was interrupted".to_owned());
    }
    let there = life::there(facts, None);
    let mut found = InDoubt::default();
    for urn in &facts.state.pending_creates {
        if facts.state.resources.contains_key(urn) {
            return Err(format!("{} is in the state: its creation is not in doubt", name_of(urn)));
        }
        let list = if there.contains_key(urn.as_str()) { &mut found.exist } else { &mut found.do_not_exist };
        list.push(urn.clone());
    }
    Ok(found)
}

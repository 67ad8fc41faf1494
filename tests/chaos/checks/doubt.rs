//! A Stack that waits for a person: whether it is right to, and what the person finds out.

use super::life;
use crate::facts::{Facts, name_of};

/// What a person learns about creations in doubt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InDoubt {
    /// URNs of what does exist, though no state knows it. A person removes it.
    pub exist: Vec<String>,
    /// URNs of what does not.
    pub do_not_exist: Vec<String>,
}

/// Looks into the state and asks the provider, as a person would. An error says why nothing is in doubt.
pub fn look_into(facts: &Facts) -> Result<InDoubt, String> {
    if facts.state.pending_creates.is_empty() {
        return Err("the state has no creation that was cut off".to_owned());
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

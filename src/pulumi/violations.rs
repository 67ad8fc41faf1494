//! The policy violations of a run. The list has a limited size, because each of 100,000 resources can violate a policy.

use super::events::{MAX_URN, PolicyViolation};
use super::planned_steps::HashedSet;
use crate::pulumi::console;

/// Maximum number of violations in the list.
pub const MAX_VIOLATIONS: usize = 50;
/// Maximum length of a message, in bytes.
const MAX_MESSAGE: usize = 1024;
/// Maximum length of a name or a version, in bytes.
const MAX_WORD: usize = 256;

/// Collects policy violations. Counts each violation once, even if the engine reports the violation repeatedly.
#[derive(Clone, Debug, Default)]
pub struct Violations {
    mandatory: Vec<PolicyViolation>,
    advisory: Vec<PolicyViolation>,
    /// Violations that an exception exempts.
    exempted: Vec<PolicyViolation>,
    mandatory_count: usize,
    advisory_count: usize,
    exempted_count: usize,
    /// Hashes of all violations that the engine has reported.
    known: HashedSet,
}

impl Violations {
    /// Adds a violation. If the list is full, a mandatory violation replaces the last advisory violation. Exempted
    /// violations have a list of their own.
    pub(super) fn observe(&mut self, violation: &PolicyViolation) {
        if !self.known.insert(violation) {
            return;
        }
        let (list, count) = match (violation.is_exempted(), violation.is_mandatory) {
            (true, _) => (&mut self.exempted, &mut self.exempted_count),
            (false, true) => (&mut self.mandatory, &mut self.mandatory_count),
            (false, false) => (&mut self.advisory, &mut self.advisory_count),
        };
        *count += 1;
        if list.len() < MAX_VIOLATIONS {
            list.push(bounded(violation));
        }
        self.advisory.truncate(MAX_VIOLATIONS.saturating_sub(self.mandatory.len()));
    }

    /// Returns the number of mandatory policy violations that are not exempted.
    pub fn mandatory(&self) -> usize {
        self.mandatory_count
    }

    /// Returns the number of advisory policy violations that are not exempted.
    pub fn advisory(&self) -> usize {
        self.advisory_count
    }

    /// Returns the number of exempted policy violations.
    pub fn exempted(&self) -> usize {
        self.exempted_count
    }

    /// Returns the first violations that are not exempted. Mandatory violations precede advisory violations.
    pub fn list(&self) -> impl Iterator<Item = &PolicyViolation> {
        self.mandatory.iter().chain(&self.advisory)
    }

    /// Returns the first exempted violations.
    pub fn exempted_list(&self) -> impl Iterator<Item = &PolicyViolation> {
        self.exempted.iter()
    }
}

fn bounded(violation: &PolicyViolation) -> PolicyViolation {
    PolicyViolation {
        pack: console::shorten(&violation.pack, MAX_WORD),
        version: console::shorten(&violation.version, MAX_WORD),
        policy: console::shorten(&violation.policy, MAX_WORD),
        is_mandatory: violation.is_mandatory,
        exemption: console::shorten(&violation.exemption, MAX_MESSAGE),
        urn: console::shorten(&violation.urn, MAX_URN),
        message: console::shorten(&violation.message, MAX_MESSAGE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn violation(number: usize, is_mandatory: bool) -> PolicyViolation {
        PolicyViolation { policy: format!("p{number}"), is_mandatory, ..PolicyViolation::default() }
    }

    fn names(violations: &Violations) -> Vec<&str> {
        violations.list().map(|violation| violation.policy.as_str()).collect()
    }

    #[test]
    fn mandatory_violations_come_first_and_repeated_violations_count_once() {
        let mut violations = Violations::default();
        for (number, is_mandatory) in [(1, false), (2, true), (1, false), (3, true), (2, true)] {
            violations.observe(&violation(number, is_mandatory));
        }
        assert_eq!(names(&violations), ["p2", "p3", "p1"]);
        assert_eq!((violations.mandatory(), violations.advisory()), (2, 1));
    }

    #[test]
    fn exempted_violations_are_neither_mandatory_nor_advisory() {
        let mut violations = Violations::default();
        violations.observe(&violation(1, true));
        let exempted = PolicyViolation { exemption: "EXC-1: legacy".to_owned(), ..violation(2, true) };
        (0..2).for_each(|_| violations.observe(&exempted));
        assert_eq!((violations.mandatory(), violations.advisory(), violations.exempted()), (1, 0, 1));
        assert_eq!(names(&violations), ["p1"]);
        assert_eq!(violations.exempted_list().collect::<Vec<_>>(), [&exempted]);
    }

    #[test]
    fn the_number_and_the_length_of_violations_are_limited() {
        let mut violations = Violations::default();
        (0..1000).for_each(|number| violations.observe(&violation(number, false)));
        (0..30).for_each(|number| violations.observe(&violation(number, true)));
        assert_eq!((violations.mandatory(), violations.advisory()), (30, 1000));
        assert_eq!(violations.list().filter(|violation| violation.is_mandatory).count(), 30);
        assert_eq!(violations.list().count(), MAX_VIOLATIONS);
        let long = "x".repeat(100_000);
        let (pack, version, policy) = (long.clone(), long.clone(), long.clone());
        let (exemption, urn) = (long.clone(), long.clone());
        let huge = PolicyViolation { pack, version, policy, is_mandatory: true, exemption, urn, message: long };
        let mut violations = Violations::default();
        violations.observe(&huge);
        let sizes = violations.exempted_list().map(|kept| kept.exemption.len() + kept.urn.len() + kept.message.len());
        assert!((1..8 * 1024).contains(&sizes.sum::<usize>()));
    }
}

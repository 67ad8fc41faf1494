//! Converts the policy violations that a run reports.

use crate::api::pulumi::{EnforcementLevel, PolicyViolation, PolicyViolations};
use crate::api::{bounds, conditions};
use crate::rpc::proto;

/// Returns the violations that a run reports in a fixed order, or `None` if the run reports no violations.
pub fn violations(result: &proto::Result) -> Option<PolicyViolations> {
    let listed = |mandatory: bool| {
        let listed = result.policy_violations.iter().filter(|violation| violation.mandatory == mandatory).count();
        i64::try_from(listed).unwrap_or(i64::MAX)
    };
    let mandatory = i64::from(result.mandatory_violation_count).max(listed(true));
    let advisory = i64::from(result.advisory_violation_count).max(listed(false));
    let listed_exempted = i64::try_from(result.exempted_violations.len()).unwrap_or(i64::MAX);
    let exempted = i64::from(result.exempted_violation_count).max(listed_exempted);
    if mandatory == 0 && advisory == 0 && exempted == 0 {
        return None;
    }
    // The engine evaluates policies in any order. Sorting before the truncation makes the result deterministic.
    let reported = result.policy_violations.iter().chain(&result.exempted_violations);
    let mut violations: Vec<PolicyViolation> = reported.map(violation).collect();
    violations.sort_unstable();
    violations.dedup();
    violations.truncate(usize::try_from(bounds::POLICY_VIOLATIONS).unwrap_or(usize::MAX));
    Some(PolicyViolations { mandatory, advisory, exempted: Some(exempted).filter(|count| *count > 0), violations })
}

fn violation(violation: &proto::PolicyViolation) -> PolicyViolation {
    let limit = |limit: u32| usize::try_from(limit).unwrap_or(usize::MAX);
    let line = |text: &str, most: u32| conditions::shorten(&text.replace(char::is_control, " "), limit(most));
    PolicyViolation {
        exemption: line(&violation.exemption, bounds::WORD),
        enforcement_level: match violation.mandatory {
            true => EnforcementLevel::Mandatory,
            false => EnforcementLevel::Advisory,
        },
        pack: line(&violation.pack, bounds::WORD),
        version: line(&violation.version, bounds::WORD),
        policy: line(&violation.policy, bounds::WORD),
        urn: line(&violation.urn, bounds::URN),
        message: conditions::shorten(violation.message.trim_end(), limit(bounds::WORD)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reported(policy: &str, mandatory: bool) -> proto::PolicyViolation {
        let (pack, message) = ("house".to_owned(), "m".repeat(5000));
        proto::PolicyViolation {
            pack,
            policy: policy.to_owned(),
            mandatory,
            urn: "u\n".repeat(9000),
            message,
            ..proto::PolicyViolation::default()
        }
    }

    #[test]
    fn the_reported_violations_are_sorted_and_bounded() {
        assert_eq!(violations(&proto::Result::default()), None);
        let some = [reported("b", false), reported("c", true), reported("a", true), reported("c", true)];
        let result = proto::Result { policy_violations: some.to_vec(), ..proto::Result::default() };
        let found = violations(&result).expect("the result has violations");
        let policies: Vec<&str> = found.violations.iter().map(|violation| violation.policy.as_str()).collect();
        assert_eq!(policies, ["a", "c", "b"]);
        assert_eq!((found.mandatory, found.advisory, found.count()), (3, 1, 4));
        let first = &found.violations[0];
        assert!(first.message.len() <= 1024 && first.urn.len() <= 4096 && !first.urn.contains('\n'));
        let many = (0..50).map(|number| reported(&number.to_string(), true)).collect();
        let (policy_violations, mandatory_violation_count) = (many, 300);
        let result = proto::Result { policy_violations, mandatory_violation_count, ..proto::Result::default() };
        let found = violations(&result).expect("the result has violations");
        assert_eq!((found.violations.len(), found.mandatory), (20, 300));
    }

    #[test]
    fn exempted_violations_are_listed_last_and_do_not_count_as_violations() {
        let exempted = proto::PolicyViolation { exemption: "EXC-1: legacy\n".to_owned(), ..reported("a", true) };
        let result = proto::Result {
            policy_violations: vec![reported("b", false)],
            exempted_violations: vec![exempted],
            ..proto::Result::default()
        };
        let found = violations(&result).expect("the result has violations");
        let listed: Vec<_> =
            found.violations.iter().map(|found| (found.policy.as_str(), found.exemption.as_str())).collect();
        assert_eq!(listed, [("b", ""), ("a", "EXC-1: legacy ")]);
        assert_eq!((found.mandatory, found.advisory, found.exempted, found.count()), (0, 1, Some(1), 2));
        let result = proto::Result { policy_violations: Vec::new(), ..result };
        assert!(!violations(&result).expect("the result has an exempted violation").has_unexempted());
    }
}

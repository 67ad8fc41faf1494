//! Descriptions of policy violations for events. All functions are pure.

use crate::api::auto::PlannedResource;
use crate::api::pulumi::{PolicyViolation, PolicyViolations};
use crate::controller::stack::markdown::{code, inline};

/// Maximum length of one violation in a list, in bytes.
const MAX_TEXT: usize = 200;

/// Returns a summary of the violations, such as `1 mandatory and 2 advisory policy violations`.
pub fn summary(violations: &PolicyViolations) -> String {
    let noun = if violations.count() == 1 { "policy violation" } else { "policy violations" };
    let PolicyViolations { mandatory, advisory, exempted, .. } = violations;
    let counts = [(*mandatory, "mandatory"), (*advisory, "advisory"), (exempted.unwrap_or_default(), "exempted")];
    let counts: Vec<String> =
        counts.iter().filter(|(count, _)| *count > 0).map(|(count, kind)| format!("{count} {kind}")).collect();
    format!("{} {noun}", counts.join(" and "))
}

/// Returns the number of violations and a list of them in Markdown, because Flux posts the message as a comment on a
/// pull request. The list has at most `most` bytes.
pub fn markdown(violations: &PolicyViolations, most: usize) -> String {
    let mut list = String::new();
    let mut listed = 0;
    for line in violations.violations.iter().map(line) {
        if list.len() + line.len() > most {
            break;
        }
        list.push_str(&line);
        listed += 1;
    }
    let more = violations.count().saturating_sub(listed);
    let more = if more > 0 { format!("\n- and {more} more") } else { String::new() };
    format!("{}:{list}{more}", summary(violations))
}

fn line(violation: &PolicyViolation) -> String {
    let PolicyViolation { exemption, enforcement_level, pack, version, policy, urn, message } = violation;
    let resource = PlannedResource { urn: urn.clone(), ..PlannedResource::default() };
    let resource = match urn.is_empty() {
        true => String::new(),
        false => format!(" {} {}", inline(resource.kind()), inline(resource.name())),
    };
    let pack = format!("{pack} {version}");
    // The first line is the description of the policy, and the other lines describe the violation.
    let lines: Vec<&str> = message.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let text = lines.join(" ");
    let (policy, pack) = (code(policy), inline(pack.trim_end()));
    let (level, exemption) = match exemption.is_empty() {
        true => (enforcement_level.as_str(), String::new()),
        false => ("exempted", format!(" ({})", inline(start(exemption)))),
    };
    format!("\n- {level} {policy} of {pack}{resource}: {}{exemption}", inline(start(&text)))
}

fn start(text: &str) -> &str {
    text.get(..text.floor_char_boundary(MAX_TEXT)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::pulumi::EnforcementLevel;

    fn violation(enforcement_level: EnforcementLevel, urn: &str, message: &str) -> PolicyViolation {
        PolicyViolation {
            exemption: String::new(),
            enforcement_level,
            pack: "house".to_owned(),
            version: "1.2.0".to_owned(),
            policy: "no-public".to_owned(),
            urn: urn.to_owned(),
            message: message.to_owned(),
        }
    }

    #[test]
    fn the_summary_counts_mandatory_and_advisory_violations() {
        let rows = [
            (1, 0, None, "1 mandatory policy violation"),
            (0, 2, None, "2 advisory policy violations"),
            (1, 2, None, "1 mandatory and 2 advisory policy violations"),
            (0, 0, Some(1), "1 exempted policy violation"),
            (0, 1, Some(1), "1 advisory and 1 exempted policy violations"),
        ];
        for (mandatory, advisory, exempted, expected) in rows {
            let violations = PolicyViolations { mandatory, advisory, exempted, violations: Vec::new() };
            assert_eq!(summary(&violations), expected);
        }
    }

    #[test]
    fn the_list_has_one_line_per_violation() {
        let bucket = "urn:pulumi:dev::web::aws:s3/bucket:Bucket::logs";
        let violations = PolicyViolations {
            mandatory: 1,
            advisory: 1,
            exempted: Some(1),
            violations: vec![
                violation(EnforcementLevel::Mandatory, bucket, "No bucket is public.\nMake it private."),
                violation(EnforcementLevel::Advisory, "", "\nThe stack is large."),
                PolicyViolation {
                    exemption: "EXC-1: @legacy".to_owned(),
                    ..violation(EnforcementLevel::Mandatory, "", "No bucket is public.")
                },
            ],
        };
        let expected = "1 mandatory and 1 advisory and 1 exempted policy violations:\n\
                        - mandatory `no-public` of house 1.2.0 aws:s3/bucket:Bucket logs: No bucket is public. Make it private.\n\
                        - advisory `no-public` of house 1.2.0: The stack is large.\n\
                        - exempted `no-public` of house 1.2.0: No bucket is public. (`EXC-1: @legacy`)";
        assert_eq!(markdown(&violations, 500), expected);
    }

    #[test]
    fn a_long_list_is_truncated() {
        let long = violation(EnforcementLevel::Mandatory, "urn", &"ä".repeat(500));
        let violations = PolicyViolations { mandatory: 30, violations: vec![long; 20], ..PolicyViolations::default() };
        let text = markdown(&violations, 600);
        assert!(text.len() < 700 && text.ends_with("\n- and 28 more"), "{text}");
        assert!(markdown(&violations, 0).ends_with(":\n- and 30 more"));
    }
}

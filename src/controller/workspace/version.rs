//! Supported agent versions: the minor version of the controller and the two before it. Pure functions.

/// Maximum number of minor versions that an agent may be behind.
const WINDOW: u64 = 2;

/// Returns whether an agent is older than the supported versions. Newer agents, and agents without a version, are kept, so
/// that a rollback of the controller does not replace every pod.
pub(super) fn is_too_old(agent: &str, own: &str) -> bool {
    match (major_and_minor(agent), major_and_minor(own)) {
        (Some((agent_major, _)), Some((own_major, _))) if agent_major != own_major => agent_major < own_major,
        (Some((_, agent_minor)), Some((_, own_minor))) => agent_minor.saturating_add(WINDOW) < own_minor,
        _ => false,
    }
}

fn major_and_minor(version: &str) -> Option<(u64, u64)> {
    let mut numbers = version.trim_start_matches('v').split(['.', '-', '+']);
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agents_of_the_last_two_minor_versions_are_kept() {
        let rows = [
            ("1.5.0", "1.5.3", false),
            ("1.4.9", "1.5.0", false),
            ("1.3.0", "1.5.0", false),
            ("1.2.9", "1.5.0", true),
            ("0.9.0", "1.0.0", true),
            ("1.6.0", "1.5.0", false),
            ("2.0.0", "1.5.0", false),
            ("v1.2.0-rc.1", "1.5.0", true),
            ("", "1.5.0", false),
            ("nonsense", "1.5.0", false),
        ];
        for (agent, own, wanted) in rows {
            assert_eq!(is_too_old(agent, own), wanted, "agent {agent}, controller {own}");
        }
        let own = crate::runtime::failpoint::version();
        assert!(major_and_minor(own).is_some(), "{own}");
    }
}

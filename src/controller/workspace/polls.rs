//! Limits the rate at which the controller polls idle agents.

use std::collections::HashSet;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::config::AGENT_STATUS_INTERVAL;

/// Minimum average time between two polls. A poll reads the Workspace and its pod, and performs a TLS handshake with the agent,
/// which takes about four milliseconds of CPU time.
const MIN_SPACING: Duration = Duration::from_millis(160);
/// Maximum time between two polls of an agent. A new certificate authority signs no certificates during its first hour,
/// because all agents must trust it first.
const MAX_INTERVAL: Duration = Duration::from_secs(30 * 60);

/// Workspaces whose idle agents the controller polls. Clones are cheap and share the same state.
#[derive(Clone, Default)]
pub struct Polls {
    /// Namespaces and names of the Workspaces. Hold the lock only for short critical sections, and never across an
    /// `.await`.
    workspaces: Arc<Mutex<HashSet<(String, String)>>>,
}

impl fmt::Debug for Polls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Polls").finish_non_exhaustive()
    }
}

impl Polls {
    /// Adds a Workspace, and returns the interval between the polls of its agent.
    pub(super) fn interval(&self, namespace: &str, name: &str) -> Duration {
        let mut workspaces = self.lock();
        workspaces.insert((namespace.to_owned(), name.to_owned()));
        interval(workspaces.len())
    }

    /// Removes a Workspace that goes to sleep or is deleted.
    pub fn forget(&self, namespace: &str, name: &str) {
        self.lock().remove(&(namespace.to_owned(), name.to_owned()));
    }

    fn lock(&self) -> MutexGuard<'_, HashSet<(String, String)>> {
        self.workspaces.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the interval between two polls of each agent. Up to the maximum, the interval grows with the number of
/// Workspaces, so that the polls use a constant share of a CPU.
fn interval(workspaces: usize) -> Duration {
    let workspaces = u32::try_from(workspaces).unwrap_or(u32::MAX);
    MIN_SPACING.saturating_mul(workspaces).clamp(AGENT_STATUS_INTERVAL, MAX_INTERVAL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_grows_with_the_number_of_workspaces() {
        for (workspaces, seconds) in [(0, 120), (1, 120), (750, 120), (1_000, 160), (10_000, 1_600), (100_000, 1_800)] {
            assert_eq!(interval(workspaces), Duration::from_secs(seconds), "{workspaces}");
        }
    }

    #[test]
    fn a_workspace_that_sleeps_does_not_count() {
        let polls = Polls::default();
        for number in 1..=1_000 {
            polls.interval("team", &number.to_string());
        }
        assert_eq!(polls.interval("team", "1"), Duration::from_secs(160), "the same Workspace");
        (1..=500).for_each(|number| polls.forget("team", &number.to_string()));
        assert_eq!(polls.interval("team", "1000"), AGENT_STATUS_INTERVAL);
    }
}

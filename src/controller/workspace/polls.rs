//! Limits the rate at which the controller polls idle agents, and divides this rate fairly between the namespaces.

use std::collections::{HashMap, HashSet};
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
    /// Names of the Workspaces, by namespace. Hold the lock only for short critical sections, and never across an
    /// `.await`.
    workspaces: Arc<Mutex<HashMap<String, HashSet<String>>>>,
}

impl fmt::Debug for Polls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Polls").finish_non_exhaustive()
    }
}

impl Polls {
    /// Returns the requeue interval of a ready Workspace. `reported` is the interval of its report. Only the periodic
    /// poll of an idle agent can wait. For example, a run waits for the end of an interactive session.
    pub(super) fn requeue_interval(&self, reported: Duration, namespace: &str, name: &str) -> Duration {
        if reported == AGENT_STATUS_INTERVAL { self.interval(namespace, name) } else { reported }
    }

    /// Adds a Workspace, and returns the interval between the polls of its agent.
    fn interval(&self, namespace: &str, name: &str) -> Duration {
        let mut workspaces = self.lock();
        let names = workspaces.entry(namespace.to_owned()).or_default();
        names.insert(name.to_owned());
        let own = names.len();
        interval(own, workspaces.values().map(HashSet::len).collect())
    }

    /// Removes a Workspace that goes to sleep or is deleted.
    pub fn forget(&self, namespace: &str, name: &str) {
        let mut workspaces = self.lock();
        let Some(names) = workspaces.get_mut(namespace) else { return };
        names.remove(name);
        if names.is_empty() {
            workspaces.remove(namespace);
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, HashSet<String>>> {
        self.workspaces.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the interval between two polls of each agent in a namespace with `own` Workspaces. `namespaces` contains the
/// number of Workspaces of each namespace. Up to the maximum interval, the interval grows with the number of Workspaces,
/// so that the polls use a constant share of a CPU.
fn interval(own: usize, namespaces: Vec<usize>) -> Duration {
    let seconds = own as f64 / max_rate(namespaces);
    Duration::try_from_secs_f64(seconds).unwrap_or(MAX_INTERVAL).clamp(AGENT_STATUS_INTERVAL, MAX_INTERVAL)
}

/// Returns the maximum number of polls per second for one namespace. Namespaces that need less than their share leave
/// the rest to the other namespaces.
fn max_rate(mut namespaces: Vec<usize>) -> f64 {
    namespaces.sort_unstable();
    let mut rest = MIN_SPACING.as_secs_f64().recip();
    let mut remaining = namespaces.len();
    for workspaces in namespaces {
        let needed = workspaces as f64 / AGENT_STATUS_INTERVAL.as_secs_f64();
        if needed * remaining as f64 > rest {
            return rest / remaining as f64;
        }
        rest -= needed;
        remaining -= 1;
    }
    // All namespaces together need at most the total rate.
    f64::INFINITY
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_grows_with_the_number_of_workspaces() {
        for (workspaces, seconds) in [(1, 120), (750, 120), (1_000, 160), (10_000, 1_600), (100_000, 1_800)] {
            assert_eq!(interval(workspaces, vec![workspaces]).as_secs(), seconds, "{workspaces}");
        }
        assert_eq!(interval(50, vec![50; 200]).as_secs(), 1_600, "10,000 Workspaces in 200 namespaces");
    }

    #[test]
    fn many_workspaces_in_one_namespace_do_not_delay_the_polls_of_other_namespaces() {
        let namespaces = || vec![10, 100_000, 50, 500];
        let seconds = |own| interval(own, namespaces()).as_secs();
        assert_eq!((seconds(10), seconds(50)), (120, 120));
        // The two large namespaces share the remaining rate of 5.75 polls per second.
        assert_eq!(seconds(500), 173);
        assert_eq!(seconds(100_000), 1_800);
    }

    #[test]
    fn only_the_periodic_polls_are_limited() {
        let polls = Polls::default();
        for number in 0..10_000 {
            polls.interval("team", &number.to_string());
        }
        let interval = |reported| polls.requeue_interval(Duration::from_secs(reported), "team", "1").as_secs();
        assert_eq!((interval(120), interval(5)), (1_600, 5));
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

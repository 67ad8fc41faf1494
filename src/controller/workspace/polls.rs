//! Limits the rate at which the controller polls idle agents and checks sleeping Workspaces, and divides both rates
//! fairly between the namespaces.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::config::{AGENT_STATUS_INTERVAL, SLEEP_CHECK_INTERVAL};

/// Limits of the polls of idle agents. A poll reads the Workspace and its pod, and performs a TLS handshake with the
/// agent, which takes about four milliseconds of CPU time. A new certificate authority signs no certificates during its
/// first hour, because all agents must trust it first.
const AGENT_POLLS: Limits = Limits {
    min_interval: AGENT_STATUS_INTERVAL,
    min_spacing: Duration::from_millis(160),
    max_interval: Duration::from_secs(30 * 60),
};
/// Limits of the reads for sleeping Workspaces.
const SLEEP_READS: Limits = Limits {
    min_interval: SLEEP_CHECK_INTERVAL,
    min_spacing: Duration::from_millis(5),
    max_interval: Duration::from_secs(60 * 60),
};
/// Number of reads for a sleeping Workspace without references: the Workspace, its pod, and its other objects.
const BASE_READS: usize = 6;

/// Limits of periodic requests.
struct Limits {
    /// Minimum interval between two requeues of a Workspace.
    min_interval: Duration,
    /// Minimum average time between two requests for all Workspaces. The interval grows with the number of requests.
    min_spacing: Duration,
    /// Maximum interval between two requeues of a Workspace.
    max_interval: Duration,
}

/// Workspaces that the controller requeues periodically. Clones are cheap and share the same state.
#[derive(Clone, Default)]
pub struct Polls {
    /// Workspaces whose idle agents the controller polls.
    agents: Load,
    /// Sleeping Workspaces.
    sleepers: Load,
}

/// Requests per requeue, by namespace and name of the Workspace. Hold the lock only for short critical sections, and
/// never across an `.await`.
#[derive(Clone, Default)]
struct Load(Arc<Mutex<HashMap<String, Requests>>>);

/// Requests per requeue for the Workspaces of one namespace.
#[derive(Default)]
struct Requests {
    by_workspace: HashMap<String, usize>,
    total: usize,
}

impl fmt::Debug for Polls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Polls").finish_non_exhaustive()
    }
}

impl Polls {
    /// Returns the requeue interval of a ready Workspace. `reported` is the interval of its report. Only the periodic
    /// requeue can wait. For example, a run waits for the end of an interactive session. `objects` is the number of
    /// referenced objects that the controller reads for a sleeping Workspace.
    pub(super) fn requeue_interval(
        &self,
        reported: Duration,
        (namespace, name): (&str, &str),
        objects: usize,
    ) -> Duration {
        if reported == SLEEP_CHECK_INTERVAL {
            self.agents.forget(namespace, name);
            return self.sleepers.interval(&SLEEP_READS, (namespace, name), BASE_READS + objects);
        }
        self.sleepers.forget(namespace, name);
        if reported == AGENT_STATUS_INTERVAL {
            self.agents.interval(&AGENT_POLLS, (namespace, name), 1)
        } else {
            reported
        }
    }

    /// Removes a Workspace that goes to sleep or is deleted.
    pub fn forget(&self, namespace: &str, name: &str) {
        self.agents.forget(namespace, name);
        self.sleepers.forget(namespace, name);
    }
}

impl Load {
    /// Sets the number of requests of a Workspace, and returns its requeue interval.
    fn interval(&self, limits: &Limits, (namespace, name): (&str, &str), requests: usize) -> Duration {
        let mut namespaces = self.lock();
        let of_namespace = namespaces.entry(namespace.to_owned()).or_default();
        of_namespace.set(name, requests);
        let own = of_namespace.total;
        interval(limits, own, namespaces.values().map(|requests| requests.total).collect())
    }

    fn forget(&self, namespace: &str, name: &str) {
        let mut namespaces = self.lock();
        let Some(requests) = namespaces.get_mut(namespace) else { return };
        requests.remove(name);
        if requests.by_workspace.is_empty() {
            namespaces.remove(namespace);
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Requests>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Requests {
    fn set(&mut self, name: &str, requests: usize) {
        let before = self.by_workspace.insert(name.to_owned(), requests).unwrap_or_default();
        self.total = self.total - before + requests;
    }

    fn remove(&mut self, name: &str) {
        self.total -= self.by_workspace.remove(name).unwrap_or_default();
    }
}

/// Returns the requeue interval of each Workspace in a namespace with `own` requests. `namespaces` contains the number
/// of requests of each namespace. Up to the maximum interval, the interval grows with the number of requests, so that
/// the requests use a constant share of a CPU.
fn interval(limits: &Limits, own: usize, namespaces: Vec<usize>) -> Duration {
    let seconds = own as f64 / max_rate(limits, namespaces);
    let Limits { min_interval, max_interval, .. } = *limits;
    Duration::try_from_secs_f64(seconds).unwrap_or(max_interval).clamp(min_interval, max_interval)
}

/// Returns the maximum number of requests per second for one namespace. Namespaces that need less than their share
/// leave the rest to the other namespaces.
fn max_rate(limits: &Limits, mut namespaces: Vec<usize>) -> f64 {
    namespaces.sort_unstable();
    let mut rest = limits.min_spacing.as_secs_f64().recip();
    let mut remaining = namespaces.len();
    for requests in namespaces {
        let needed = requests as f64 / limits.min_interval.as_secs_f64();
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

    /// Returns the interval between the polls of an idle agent in the namespace `team`.
    fn poll(polls: &Polls, name: &str) -> Duration {
        polls.requeue_interval(AGENT_STATUS_INTERVAL, ("team", name), 0)
    }

    #[test]
    fn the_interval_grows_with_the_number_of_workspaces() {
        for (workspaces, seconds) in [(1, 120), (750, 120), (1_000, 160), (10_000, 1_600), (100_000, 1_800)] {
            assert_eq!(interval(&AGENT_POLLS, workspaces, vec![workspaces]).as_secs(), seconds, "{workspaces}");
        }
        assert_eq!(interval(&AGENT_POLLS, 50, vec![50; 200]).as_secs(), 1_600, "10,000 Workspaces in 200 namespaces");
    }

    #[test]
    fn many_workspaces_in_one_namespace_do_not_delay_the_polls_of_other_namespaces() {
        let namespaces = || vec![10, 100_000, 50, 500];
        let seconds = |own| interval(&AGENT_POLLS, own, namespaces()).as_secs();
        assert_eq!((seconds(10), seconds(50)), (120, 120));
        // The two large namespaces share the remaining rate of 5.75 polls per second.
        assert_eq!(seconds(500), 173);
        assert_eq!(seconds(100_000), 1_800);
    }

    #[test]
    fn only_the_periodic_polls_are_limited() {
        let polls = Polls::default();
        for number in 0..10_000 {
            poll(&polls, &number.to_string());
        }
        let interval = |reported| polls.requeue_interval(Duration::from_secs(reported), ("team", "1"), 0).as_secs();
        assert_eq!((interval(120), interval(5)), (1_600, 5));
    }

    #[test]
    fn a_workspace_that_sleeps_does_not_count() {
        let polls = Polls::default();
        for number in 1..=1_000 {
            poll(&polls, &number.to_string());
        }
        assert_eq!(poll(&polls, "1"), Duration::from_secs(160), "the same Workspace");
        (1..=500).for_each(|number| polls.forget("team", &number.to_string()));
        assert_eq!(poll(&polls, "1000"), AGENT_STATUS_INTERVAL);
    }

    #[test]
    fn the_interval_of_sleeping_workspaces_grows_with_the_number_of_their_objects() {
        let polls = Polls::default();
        let check = |namespace: &str, name: &str, objects: usize| {
            polls.requeue_interval(SLEEP_CHECK_INTERVAL, (namespace, name), objects).as_secs()
        };
        let longest = |objects: usize| (0..10_000).map(|number| check("team", &number.to_string(), objects)).max();
        assert_eq!(longest(0), Some(600), "60,000 reads");
        assert_eq!(longest(18), Some(1_200), "240,000 reads");
        assert_eq!(check("other", "app", 4), 600, "another namespace");
        assert_eq!(longest(994), Some(3_600), "the maximum interval");
        (1..10_000).for_each(|number| polls.forget("team", &number.to_string()));
        assert_eq!(check("team", "0", 994), 600);
        assert_eq!(poll(&polls, "0"), AGENT_STATUS_INTERVAL, "the Workspace is awake");
        assert!(!polls.sleepers.lock().contains_key("team"));
    }
}

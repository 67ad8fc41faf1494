//! Lease state that a candidate observes, and pure functions that select the candidate's next step.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use tokio::time::Instant;

/// Last observed Lease state.
#[derive(Clone, Debug)]
pub(super) struct Observation {
    pub(super) lease: Lease,
    /// Time at which this process first observed this state.
    pub(super) since: Instant,
}

impl Observation {
    pub(super) fn spec(&self) -> LeaseSpec {
        self.lease.spec.clone().unwrap_or_default()
    }

    /// Returns the identity of the holder, or `None` if the identity is empty because the holder has released the
    /// Lease.
    pub(super) fn holder(&self) -> Option<&str> {
        let holder = self.lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_deref());
        holder.filter(|holder| !holder.is_empty())
    }

    /// Returns the lease duration from the Lease, or `ours` if the Lease has no valid duration.
    pub(super) fn duration(&self, ours: Duration) -> Duration {
        let seconds = self.lease.spec.as_ref().and_then(|spec| spec.lease_duration_seconds);
        let requested = seconds.and_then(|seconds| u64::try_from(seconds).ok()).filter(|seconds| *seconds > 0);
        requested.map_or(ours, Duration::from_secs)
    }
}

/// Next step of a candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The Lease does not exist.
    Create,
    /// The Lease has no holder, or the holder's Lease has expired.
    Take,
    /// This candidate holds the Lease.
    Renew,
    /// Another candidate holds the Lease.
    Wait,
}

/// Identity of a candidate.
#[derive(Clone, Debug)]
pub struct Identity {
    /// Unique identity of this process. A restarted container has another identity.
    pub(super) process: String,
    /// Prefix that the identities of all processes in this container share. `None` if the pod UID is unknown.
    pub(super) container: Option<String>,
}

impl Identity {
    /// Returns the identity of this process in a pod. Without the pod UID, a candidate cannot recognize earlier
    /// processes of its container, because pod names are not unique over time.
    pub fn new(pod_name: &str, pod_uid: &str) -> Self {
        let process = uuid::Uuid::new_v4();
        if pod_uid.is_empty() {
            return Identity { process: format!("{pod_name}_{process}"), container: None };
        }
        let container = format!("{pod_name}_{pod_uid}_");
        Identity { process: format!("{container}{process}"), container: Some(container) }
    }

    pub fn as_str(&self) -> &str {
        &self.process
    }

    pub(super) fn is_successor_of(&self, holder: &str) -> bool {
        self.container.as_ref().is_some_and(|container| holder.starts_with(container.as_str()))
    }
}

/// Returns the next step, based on the last observation and the clock of this process.
pub(super) fn decide(seen: Option<&Observation>, identity: &Identity, ours: Duration, now: Instant) -> Step {
    let Some(seen) = seen else { return Step::Create };
    match seen.holder() {
        None => Step::Take,
        Some(holder) if holder == identity.process => Step::Renew,
        Some(holder) if identity.is_successor_of(holder) => Step::Take,
        Some(_) if now.duration_since(seen.since) < seen.duration(ours) => Step::Wait,
        Some(_) => Step::Take,
    }
}

/// Returns the spec of the Lease after a step. The timestamps are only for users. Candidates ignore them.
pub(super) fn next_lease_spec(
    step: Step,
    before: &LeaseSpec,
    identity: &str,
    duration: Duration,
    now: Timestamp,
) -> LeaseSpec {
    let (acquired, transitions) = match step {
        Step::Renew => (before.acquire_time.clone(), before.lease_transitions),
        Step::Create => (None, Some(0)),
        Step::Take | Step::Wait => (None, Some(before.lease_transitions.unwrap_or_default().saturating_add(1))),
    };
    LeaseSpec {
        holder_identity: Some(identity.to_owned()),
        lease_duration_seconds: Some(i32::try_from(duration.as_secs()).unwrap_or(i32::MAX)),
        acquire_time: acquired.or(Some(MicroTime(now))),
        renew_time: Some(MicroTime(now)),
        lease_transitions: transitions,
        ..LeaseSpec::default()
    }
}

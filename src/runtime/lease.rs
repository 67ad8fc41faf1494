//! Leader election with a Lease, as in client-go.
//!
//! The algorithm never compares clocks of different machines. A candidate acquires another holder's Lease only if the
//! Lease has not changed for the lease duration, measured with the candidate's monotonic clock. The holder stops its
//! writes before a candidate can acquire the Lease: the holder's deadline starts when the holder sends the last
//! successful renewal request, and candidates observe the renewal only later.
//!
//! Unlike in client-go, a candidate immediately acquires a Lease that an earlier process of its container held. This is
//! safe, because the kubelet restarts a container only after its process has exited.

mod state;

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::{Client, ResourceExt};
use serde_json::json;
use thiserror::Error;
use tokio::sync::watch;
use tokio::task::{JoinError, JoinHandle};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::config::{LEASE_RETRY_JITTER, LeaderElection};
use crate::runtime::reads::{ReadError, Reader};
use crate::runtime::writes::{Created, Leadership, WriteError, Writer};
use crate::telemetry::chain;
use crate::telemetry::metrics::Metrics;

pub use state::Identity;
use state::{Observation, Step, decide, next_lease_spec};

/// Timeout for the release of the Lease.
pub const RELEASE_TIMEOUT: Duration = Duration::from_secs(2);
/// `leaseDurationSeconds` of a released Lease, as in client-go.
const RELEASED_SECONDS: i32 = 1;

/// Error from an attempt to acquire or renew the Lease.
#[derive(Debug, Error)]
pub enum LeaseError {
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error(transparent)]
    Write(#[from] WriteError),
}

/// Reason why a leader has lost the Lease.
#[derive(Debug, Error)]
pub enum LeaseLost {
    #[error("lost Lease {lease} to {holder}; restarting as a follower")]
    Taken { lease: String, holder: String },
    #[error("failed to renew Lease {lease} for {} s: {cause}; restarting as a follower", limit.as_secs())]
    NotRenewed { lease: String, limit: Duration, cause: String },
    #[error("Lease renewal task failed")]
    Task(#[from] JoinError),
}

/// Candidate for the Lease.
pub struct Elector {
    reader: Reader,
    /// Writer that does not require leadership, because a process becomes the leader by writing the Lease.
    writer: Writer,
    namespace: String,
    name: String,
    identity: Identity,
    times: LeaderElection,
    until: watch::Sender<Option<Instant>>,
    seen: Option<Observation>,
    /// Whether the candidate must read the Lease before the next write. The value is `false` only after this process
    /// has successfully written the Lease.
    must_read: bool,
    metrics: Metrics,
}

impl Elector {
    /// Creates a candidate for the Lease with this name. All writes require the returned [`Leadership`], except writes
    /// of the Lease itself.
    pub fn new(
        client: Client,
        (namespace, name): (&str, &str),
        identity: Identity,
        times: LeaderElection,
        metrics: Metrics,
    ) -> (Self, Leadership) {
        // The request timeout is half of the deadline, so that another attempt is possible after a request hangs.
        let limit = times.renew_deadline / 2;
        let (until, leadership) = Leadership::elected();
        metrics.leads(name, false);
        let elector = Elector {
            reader: Reader::new(client.clone(), limit),
            writer: Writer::new(client, limit, Leadership::sole(), metrics.clone()),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            identity,
            times,
            until,
            seen: None,
            must_read: true,
            metrics,
        };
        (elector, leadership)
    }

    pub fn identity(&self) -> &str {
        self.identity.as_str()
    }

    /// Returns the last observed Lease.
    pub fn lease(&self) -> Lease {
        self.seen.as_ref().map(|seen| seen.lease.clone()).unwrap_or_default()
    }

    /// Waits until this process holds the Lease.
    pub async fn acquire(&mut self) {
        let mut logged: Option<String> = None;
        loop {
            match self.try_acquire_or_renew().await {
                Ok(Some(started)) => return self.allow_writes_since(started),
                Ok(None) => {
                    let holder = self.seen.as_ref().and_then(Observation::holder).map(str::to_owned);
                    if holder != logged {
                        tracing::info!(lease = self.name, holder, "waiting for the Lease, which another replica holds");
                        logged = holder;
                    }
                }
                Err(error) => tracing::warn!(error = chain(&error), "failed to acquire the Lease; retrying"),
            }
            tokio::time::sleep(self.times.retry_period.mul_f64(1.0 + LEASE_RETRY_JITTER * fastrand::f64())).await;
        }
    }

    /// Renews the Lease until `stop` is canceled. Returns an error if this process has lost the Lease. After the loss,
    /// the process writes nothing.
    pub async fn hold(mut self, stop: CancellationToken) -> Result<Self, LeaseLost> {
        let mut cause = "this process was suspended".to_owned();
        loop {
            let Some(deadline) = *self.until.borrow() else { return Err(self.lost(cause)) };
            tokio::select! {
                () = stop.cancelled() => return Ok(self),
                () = tokio::time::sleep_until(deadline.min(Instant::now() + self.times.retry_period)) => {}
            }
            if Instant::now() >= deadline {
                return Err(self.lost(cause));
            }
            let attempt = tokio::select! {
                () = stop.cancelled() => return Ok(self),
                attempt = tokio::time::timeout_at(deadline, self.try_acquire_or_renew()) => attempt,
            };
            match attempt {
                Ok(Ok(Some(started))) => self.allow_writes_since(started),
                Ok(Ok(None)) => return Err(self.lost("another client changed the Lease".to_owned())),
                Ok(Err(error)) => {
                    cause = chain(&error);
                    tracing::warn!(error = cause, "failed to renew the Lease; retrying");
                }
                Err(_) => return Err(self.lost("API server did not respond".to_owned())),
            }
        }
    }

    /// Releases the Lease, so that other candidates do not wait until the Lease expires. The caller must set a timeout.
    pub async fn release(mut self) -> Result<(), LeaseError> {
        self.stop_writing();
        let free = json!({
            "holderIdentity": "", "leaseDurationSeconds": RELEASED_SECONDS,
            "acquireTime": MicroTime(Timestamp::now()), "renewTime": MicroTime(Timestamp::now()),
        });
        loop {
            if self.must_read {
                self.read().await?;
            }
            let Some(seen) = self.seen.clone().filter(|seen| seen.holder() == Some(self.identity())) else {
                return Ok(());
            };
            match self.write(&seen, &free).await {
                // An interrupted renewal by this process or another client has changed the Lease.
                Err(error) if error.is_conflict() => self.must_read = true,
                other => return Ok(other.map(|_| ())?),
            }
        }
    }

    /// Makes one attempt to acquire or renew the Lease. Returns the start time of the request, or `None` if another
    /// candidate holds the Lease.
    pub(super) async fn try_acquire_or_renew(&mut self) -> Result<Option<Instant>, LeaseError> {
        if !self.must_read {
            match self.step().await {
                // Another client has changed or deleted the Lease. This candidate may still be the holder.
                Err(error) if error.is_conflict() || error.is_not_found() => {}
                other => return Ok(other?),
            }
        }
        self.read().await?;
        match self.step().await {
            // Another candidate has acquired the Lease. The next attempt reads the Lease of the new holder.
            Err(error) if error.is_conflict() && !self.is_ours() => Ok(None),
            other => Ok(other?),
        }
    }

    async fn step(&mut self) -> Result<Option<Instant>, WriteError> {
        let started = Instant::now();
        let step = decide(self.seen.as_ref(), &self.identity, self.times.lease_duration, started);
        if step == Step::Wait {
            self.must_read = true;
            return Ok(None);
        }
        // Set `must_read` before the request, because the caller can drop this future before the response arrives.
        self.must_read = true;
        let before = self.seen.as_ref().map(Observation::spec).unwrap_or_default();
        let spec = next_lease_spec(step, &before, self.identity(), self.times.lease_duration, Timestamp::now());
        let granted = match self.seen.clone() {
            Some(seen) => self.write(&seen, &spec).await?,
            None => match self.writer.create(&self.new_lease(spec)).await? {
                Created::New(lease) => lease,
                Created::Existing(lease) => {
                    self.observe(Some(lease));
                    return Ok(None);
                }
            },
        };
        self.observe(Some(granted));
        self.must_read = false;
        Ok(Some(started))
    }

    /// Writes the spec of the Lease. Returns a conflict if the Lease has changed since this process last observed it.
    async fn write(&self, seen: &Observation, spec: &impl serde::Serialize) -> Result<Lease, WriteError> {
        let patch = json!({ "metadata": { "resourceVersion": seen.lease.resource_version() }, "spec": spec });
        self.writer.merge(&self.namespace, &self.name, &patch).await
    }

    async fn read(&mut self) -> Result<(), ReadError> {
        let lease = self.reader.get_opt::<Lease>(&self.namespace, &self.name).await?;
        self.observe(lease);
        Ok(())
    }

    /// Records the observed Lease. If the spec has not changed, the time of its first observation stays the same.
    fn observe(&mut self, lease: Option<Lease>) {
        let before = self.seen.take();
        self.seen = lease.map(|lease| {
            let unchanged = before.filter(|before| before.lease.spec == lease.spec);
            let since = unchanged.map_or_else(Instant::now, |before| before.since);
            Observation { lease, since }
        });
    }

    fn is_ours(&self) -> bool {
        self.seen.as_ref().and_then(Observation::holder) == Some(self.identity())
    }

    fn new_lease(&self, spec: LeaseSpec) -> Lease {
        let metadata = ObjectMeta {
            name: Some(self.name.clone()),
            namespace: Some(self.namespace.clone()),
            ..ObjectMeta::default()
        };
        Lease { metadata, spec: Some(spec) }
    }

    fn allow_writes_since(&self, started: Instant) {
        self.until.send_replace(Some(started + self.times.renew_deadline));
        self.metrics.leads(&self.name, true);
    }

    fn stop_writing(&self) {
        self.until.send_replace(None);
        self.metrics.leads(&self.name, false);
    }

    fn lost(&self, cause: String) -> LeaseLost {
        self.stop_writing();
        let lease = format!("{}/{}", self.namespace, self.name);
        match self.seen.as_ref().and_then(Observation::holder).filter(|holder| *holder != self.identity()) {
            Some(holder) => LeaseLost::Taken { lease, holder: holder.to_owned() },
            None => LeaseLost::NotRenewed { lease, limit: self.times.renew_deadline, cause },
        }
    }
}

/// Period of leadership, in which a task renews the Lease.
pub struct Term {
    renewing: JoinHandle<Result<Elector, LeaseLost>>,
    stop: CancellationToken,
}

impl Term {
    /// Starts the term of an elector that has acquired the Lease.
    pub fn begin(elector: Elector) -> Self {
        let stop = CancellationToken::new();
        // A separate task renews the Lease, so that renewals do not wait for reconciliations.
        let renewing = tokio::spawn(elector.hold(stop.clone()));
        Term { renewing, stop }
    }

    /// Waits until this process loses the Lease.
    pub async fn lost(&mut self) -> LeaseLost {
        match (&mut self.renewing).await {
            Ok(Err(lost)) => lost,
            Err(error) => LeaseLost::Task(error),
            // Only the method `end` cancels `stop`, and `end` consumes the term.
            Ok(Ok(_)) => std::future::pending().await,
        }
    }

    /// Ends the term. The caller must have completed all writes. If `release` is set, this method releases the Lease,
    /// so that another candidate can acquire it immediately.
    pub async fn end(self, release: bool) {
        self.stop.cancel();
        let elector = match self.renewing.await {
            Ok(Ok(elector)) => elector,
            Ok(Err(lost)) => return tracing::warn!(error = chain(&lost), "lost the Lease during shutdown"),
            Err(error) => return tracing::error!(%error, "Lease renewal task failed"),
        };
        if !release {
            return elector.stop_writing();
        }
        match tokio::time::timeout(RELEASE_TIMEOUT, elector.release()).await {
            Ok(Ok(())) => tracing::info!("released the Lease"),
            Ok(Err(error)) => {
                tracing::warn!(error = chain(&error), "failed to release the Lease; it expires after its duration")
            }
            Err(_) => tracing::warn!("timed out releasing the Lease; it expires after its duration"),
        }
    }
}

#[cfg(test)]
mod tests;

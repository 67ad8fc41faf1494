//! Which of several processes leads: the one that holds a Lease, elected as client-go does it.
//!
//! The clocks of two machines are never compared. A holder is taken for dead when this process has seen its Lease
//! unchanged for as long as the Lease is to last, by its own monotonic clock. The holder stops writing before that: its
//! deadline counts from the start of the last request with which it renewed, and nobody can have seen that earlier.
//!
//! One thing client-go does not know: a container is started again only once its process is gone. A holder that was an
//! earlier process of the same container is dead for certain, and its Lease is taken at once.

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
use crate::runtime::leadership::Leadership;
use crate::runtime::reads::{ReadError, Reader};
use crate::runtime::writes::{Created, WriteError, Writer};
use crate::telemetry::chain;
use crate::telemetry::metrics::Metrics;

/// How long the last request may take, with which the Lease is let go.
pub const RELEASE_TIMEOUT: Duration = Duration::from_secs(2);
/// What a Lease that nobody holds lasts, as client-go writes it.
const RELEASED_SECONDS: i32 = 1;

/// An attempt that came to nothing.
#[derive(Debug, Error)]
pub enum LeaseError {
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error(transparent)]
    Write(#[from] WriteError),
}

/// Why a leader is none any more.
#[derive(Debug, Error)]
pub enum LeaseLost {
    #[error("the Lease {lease} is held by {holder} now; this controller starts again as a follower")]
    Taken { lease: String, holder: String },
    #[error(
        "the Lease {lease} was not renewed for {} s ({cause}); this controller writes nothing any more and starts again as a follower",
        limit.as_secs()
    )]
    NotRenewed { lease: String, limit: Duration, cause: String },
    #[error("the task that renews the Lease broke down")]
    BrokeDown(#[from] JoinError),
}

/// The Lease as it is known.
#[derive(Clone, Debug)]
pub(super) struct Sighting {
    pub(super) lease: Lease,
    /// When this process first saw it so.
    pub(super) since: Instant,
}

impl Sighting {
    fn spec(&self) -> LeaseSpec {
        self.lease.spec.clone().unwrap_or_default()
    }

    /// Who holds it; a released one has an empty name.
    fn holder(&self) -> Option<&str> {
        let holder = self.lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_deref());
        holder.filter(|holder| !holder.is_empty())
    }

    /// How long its holder asked to be trusted; one that did not say is given as long as ourselves.
    fn lasts(&self, ours: Duration) -> Duration {
        let seconds = self.lease.spec.as_ref().and_then(|spec| spec.lease_duration_seconds);
        let said = seconds.and_then(|seconds| u64::try_from(seconds).ok()).filter(|seconds| *seconds > 0);
        said.map_or(ours, Duration::from_secs)
    }
}

/// What a candidate does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// There is no Lease.
    Create,
    /// Nobody holds it, or its holder is dead.
    Take,
    /// It is our own.
    Renew,
    /// Another holds it.
    Wait,
}

/// Who a candidate is.
#[derive(Clone, Debug)]
pub struct Identity {
    /// Different for each process, also for the next one in the same container.
    pub(super) process: String,
    /// What the identities of all processes of this container begin with, where it is known.
    pub(super) container: Option<String>,
}

impl Identity {
    /// Of this process: in the pod of that name and, if it is known, that UID. A name alone is no proof of anything: two
    /// machines may have the same.
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

/// Pure: from what was seen and this process's own clock.
pub(super) fn decide(seen: Option<&Sighting>, identity: &Identity, ours: Duration, now: Instant) -> Step {
    let Some(seen) = seen else { return Step::Create };
    match seen.holder() {
        None => Step::Take,
        Some(holder) if holder == identity.process => Step::Renew,
        Some(holder) if identity.is_successor_of(holder) => Step::Take,
        Some(_) if now.duration_since(seen.since) < seen.lasts(ours) => Step::Wait,
        Some(_) => Step::Take,
    }
}

/// What the Lease says once the step is done. The times are for people; nobody decides by them.
pub(super) fn wanted(step: Step, before: &LeaseSpec, identity: &str, lasts: Duration, now: Timestamp) -> LeaseSpec {
    let (acquired, transitions) = match step {
        Step::Renew => (before.acquire_time.clone(), before.lease_transitions),
        Step::Create => (None, Some(0)),
        Step::Take | Step::Wait => (None, Some(before.lease_transitions.unwrap_or_default().saturating_add(1))),
    };
    LeaseSpec {
        holder_identity: Some(identity.to_owned()),
        lease_duration_seconds: Some(i32::try_from(lasts.as_secs()).unwrap_or(i32::MAX)),
        acquire_time: acquired.or(Some(MicroTime(now))),
        renew_time: Some(MicroTime(now)),
        lease_transitions: transitions,
        ..LeaseSpec::default()
    }
}

/// One candidate for the Lease.
pub struct Elector {
    reader: Reader,
    /// Open at all times: by the Lease one comes to be allowed to write anything else.
    writer: Writer,
    namespace: String,
    name: String,
    identity: Identity,
    times: LeaderElection,
    until: watch::Sender<Option<Instant>>,
    seen: Option<Sighting>,
    /// The Lease has to be read before it is written, unless it is known to be as this process wrote it.
    look_first: bool,
    metrics: Metrics,
}

impl Elector {
    /// A candidate for the Lease of this name. The second is what the gate for writes is to ask.
    pub fn new(
        client: Client,
        (namespace, name): (&str, &str),
        identity: Identity,
        times: LeaderElection,
        metrics: Metrics,
    ) -> (Self, Leadership) {
        // A request that hangs must leave time for another one.
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
            look_first: true,
            metrics,
        };
        (elector, leadership)
    }

    pub fn identity(&self) -> &str {
        self.identity.as_str()
    }

    /// The Lease as it was seen last.
    pub fn lease(&self) -> Lease {
        self.seen.as_ref().map(|seen| seen.lease.clone()).unwrap_or_default()
    }

    /// Returns when this process holds the Lease.
    pub async fn acquire(&mut self) {
        let mut told: Option<String> = None;
        loop {
            match self.attempt().await {
                Ok(Some(begun)) => return self.may_write_since(begun),
                Ok(None) => {
                    let holder = self.seen.as_ref().and_then(Sighting::holder).map(str::to_owned);
                    if holder != told {
                        tracing::info!(lease = self.name, holder, "another controller leads; waiting for the Lease");
                        told = holder;
                    }
                }
                Err(error) => tracing::warn!(error = chain(&error), "the Lease could not be acquired; trying again"),
            }
            tokio::time::sleep(self.times.retry_period.mul_f64(1.0 + LEASE_RETRY_JITTER * fastrand::f64())).await;
        }
    }

    /// Renews the Lease until `stop`, and returns earlier only when it is lost: by then nothing is written any more.
    pub async fn hold(mut self, stop: CancellationToken) -> Result<Self, LeaseLost> {
        let mut cause = "this process was not running".to_owned();
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
                attempt = tokio::time::timeout_at(deadline, self.attempt()) => attempt,
            };
            match attempt {
                Ok(Ok(Some(begun))) => self.may_write_since(begun),
                Ok(Ok(None)) => return Err(self.lost("another controller wrote it".to_owned())),
                Ok(Err(error)) => {
                    cause = chain(&error);
                    tracing::warn!(error = cause, "the Lease could not be renewed; trying again");
                }
                Err(_) => return Err(self.lost("no answer from the API server".to_owned())),
            }
        }
    }

    /// Lets go of the Lease, so that nobody has to wait until it ends. Who calls it sets the limit.
    pub async fn release(mut self) -> Result<(), LeaseError> {
        self.stop_writing();
        let free = json!({
            "holderIdentity": "", "leaseDurationSeconds": RELEASED_SECONDS,
            "acquireTime": MicroTime(Timestamp::now()), "renewTime": MicroTime(Timestamp::now()),
        });
        loop {
            if self.look_first {
                self.look().await?;
            }
            let Some(seen) = self.seen.clone().filter(|seen| seen.holder() == Some(self.identity())) else {
                return Ok(());
            };
            match self.write(&seen, &free).await {
                // A renewal that was cut off came before, or somebody else did.
                Err(error) if error.is_conflict() => self.look_first = true,
                other => return Ok(other.map(|_| ())?),
            }
        }
    }

    /// One attempt to get or keep the Lease. If it is granted: when the request began by which it was.
    pub(super) async fn attempt(&mut self) -> Result<Option<Instant>, LeaseError> {
        if !self.look_first {
            match self.step().await {
                // Somebody has touched or removed it: as it is now, it may still be ours.
                Err(error) if error.is_conflict() || error.is_not_found() => {}
                other => return Ok(other?),
            }
        }
        self.look().await?;
        match self.step().await {
            // Another was quicker. Who leads is seen at the next look.
            Err(error) if error.is_conflict() && !self.is_ours() => Ok(None),
            other => Ok(other?),
        }
    }

    async fn step(&mut self) -> Result<Option<Instant>, WriteError> {
        let begun = Instant::now();
        let step = decide(self.seen.as_ref(), &self.identity, self.times.lease_duration, begun);
        if step == Step::Wait {
            self.look_first = true;
            return Ok(None);
        }
        // Also when the answer is not waited for to its end.
        self.look_first = true;
        let before = self.seen.as_ref().map(Sighting::spec).unwrap_or_default();
        let spec = wanted(step, &before, self.identity(), self.times.lease_duration, Timestamp::now());
        let granted = match self.seen.clone() {
            Some(seen) => self.write(&seen, &spec).await?,
            None => match self.writer.create(&self.new_lease(spec)).await? {
                Created::New(lease) => lease,
                Created::Existing(lease) => {
                    self.saw(Some(lease));
                    return Ok(None);
                }
            },
        };
        self.saw(Some(granted));
        self.look_first = false;
        Ok(Some(begun))
    }

    /// Changes the Lease if nobody else has done so since it was seen: else it is a conflict.
    async fn write(&self, seen: &Sighting, spec: &impl serde::Serialize) -> Result<Lease, WriteError> {
        let patch = json!({ "metadata": { "resourceVersion": seen.lease.resource_version() }, "spec": spec });
        self.writer.merge(&self.namespace, &self.name, &patch).await
    }

    async fn look(&mut self) -> Result<(), ReadError> {
        let lease = self.reader.get_opt::<Lease>(&self.namespace, &self.name).await?;
        self.saw(lease);
        Ok(())
    }

    /// The clock starts anew when what the Lease says has changed, and only then.
    fn saw(&mut self, lease: Option<Lease>) {
        let before = self.seen.take();
        self.seen = lease.map(|lease| {
            let unchanged = before.filter(|before| before.lease.spec == lease.spec);
            let since = unchanged.map_or_else(Instant::now, |before| before.since);
            Sighting { lease, since }
        });
    }

    fn is_ours(&self) -> bool {
        self.seen.as_ref().and_then(Sighting::holder) == Some(self.identity())
    }

    fn new_lease(&self, spec: LeaseSpec) -> Lease {
        let metadata = ObjectMeta {
            name: Some(self.name.clone()),
            namespace: Some(self.namespace.clone()),
            ..ObjectMeta::default()
        };
        Lease { metadata, spec: Some(spec) }
    }

    fn may_write_since(&self, begun: Instant) {
        self.until.send_replace(Some(begun + self.times.renew_deadline));
        self.metrics.leads(&self.name, true);
    }

    fn stop_writing(&self) {
        self.until.send_replace(None);
        self.metrics.leads(&self.name, false);
    }

    fn lost(&self, cause: String) -> LeaseLost {
        self.stop_writing();
        let lease = format!("{}/{}", self.namespace, self.name);
        match self.seen.as_ref().and_then(Sighting::holder).filter(|holder| *holder != self.identity()) {
            Some(holder) => LeaseLost::Taken { lease, holder: holder.to_owned() },
            None => LeaseLost::NotRenewed { lease, limit: self.times.renew_deadline, cause },
        }
    }
}

/// The time for which this process leads: a task renews the Lease.
pub struct Term {
    renewing: JoinHandle<Result<Elector, LeaseLost>>,
    stop: CancellationToken,
}

impl Term {
    /// Of an elector that has acquired its Lease.
    pub fn begin(elector: Elector) -> Self {
        let stop = CancellationToken::new();
        // A task of its own: it must not wait until a reconcile lets it have its turn.
        let renewing = tokio::spawn(elector.hold(stop.clone()));
        Term { renewing, stop }
    }

    /// Returns when the Lease is lost, and only then.
    pub async fn lost(&mut self) -> LeaseLost {
        match (&mut self.renewing).await {
            Ok(Err(lost)) => lost,
            Err(error) => LeaseLost::BrokeDown(error),
            // Only `end` stops it, which takes the term.
            Ok(Ok(_)) => std::future::pending().await,
        }
    }

    /// Ends it after everything was written; with `release`, another may lead at once.
    pub async fn end(self, release: bool) {
        self.stop.cancel();
        let elector = match self.renewing.await {
            Ok(Ok(elector)) => elector,
            Ok(Err(lost)) => return tracing::warn!(error = chain(&lost), "the Lease was lost at the end"),
            Err(error) => return tracing::error!(%error, "the task that renews the Lease broke down"),
        };
        if !release {
            return elector.stop_writing();
        }
        match tokio::time::timeout(RELEASE_TIMEOUT, elector.release()).await {
            Ok(Ok(())) => tracing::info!("the Lease is released"),
            Ok(Err(error)) => tracing::warn!(error = chain(&error), "the Lease was not released; it ends by itself"),
            Err(_) => tracing::warn!("the Lease was not released in time; it ends by itself"),
        }
    }
}

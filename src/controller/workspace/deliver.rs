//! Delivers the source: downloads the source into the store, and sends the source to the agent.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;
use tokio::io::AsyncRead;
use tokio::sync::Semaphore;

use super::act::{Act, Step};
use super::environment::{references, run_environment};
use super::observe::DesiredState;
use super::policy_packs::DesiredPack;
use super::report::Report;
use super::status;
use crate::api::auto::{ArtifactReference, Workspace};
use crate::api::conditions::{READY, find, workspace_reason};
use crate::artifact::{Pinned, StoreError, blocking};
use crate::controller::references::{Waiter, request_mounts};
use crate::rpc::client::{RpcError, Sending};
use crate::rpc::proto::{Artifact, SourceHeader};
use crate::runtime::failpoint;
use crate::runtime::fair_slots::Slot;
use crate::runtime::reconcile::ReconcileError;
use crate::source::Origin;
use crate::telemetry::metrics::FetchResult;

/// Delay before the status reports that the source is being installed. The status does not report a delivery that
/// completes earlier.
const INSTALLING_REPORT_DELAY: Duration = Duration::from_secs(1);

impl Act<'_> {
    /// Downloads the source into the store. If the source comes from a Git repository, requests another fetch of the
    /// repository.
    pub(super) async fn fetch(&self) -> Result<Step, ReconcileError> {
        let Ok(DesiredState { source, .. }) = &self.observed.desired else { return Ok(Step::Again) };
        let digest = &source.artifact.digest;
        let fetcher = &self.context.fetcher;
        let namespace = self.observed.workspace.namespace().unwrap_or_default();
        let fetched = match &source.origin {
            Some(Origin::Url(url)) => fetcher.fetch(url, digest, &namespace).await,
            Some(Origin::Made(bytes) | Origin::Program { bytes, .. }) => fetcher.keep(bytes, digest, &namespace).await,
            Some(Origin::Git(origin)) => {
                self.context.git.fetch_again(origin);
                return self.report(&Report::artifact_missing(&source.artifact)).await;
            }
            Some(Origin::InPod) | None => return Ok(Step::Again),
        };
        self.context.metrics.artifact_fetch(match &fetched {
            Ok(fetched) if fetched.downloaded => FetchResult::Fetched,
            Ok(_) => FetchResult::Cached,
            Err(_) => FetchResult::Failed,
        });
        let Err(error) = fetched else { return Ok(Step::Again) };
        let step = self.report(&Report::artifact_not_fetched(&source.artifact, &error)).await?;
        // Returns an error, so that the controller retries with backoff. Each retry downloads the entire content,
        // which probably has not changed.
        if error.is_about_content() { Err(ReconcileError::reported(error)) } else { Ok(step) }
    }

    /// Sends the source to the agent. Delays a further delivery if the agent has repeatedly accepted the source and then
    /// dropped it. Each reconciliation ends while the agent reports the installation, so the backoff of failed
    /// reconciliations does not apply.
    pub(super) async fn deliver_source(&self, artifact: &ArtifactReference) -> Result<Step, ReconcileError> {
        let workspace = &self.observed.workspace;
        let (namespace, name) = (workspace.namespace().unwrap_or_default(), workspace.name_any());
        match self.context.memory.deliveries.pause((&namespace, &name), &self.delivery(artifact)) {
            Some(pause) => self.report(&Report::source_dropped(artifact, pause)).await,
            None => Box::pin(self.put_source(artifact)).await,
        }
    }

    /// Returns a text that is equal for all deliveries of the same source to the same pod.
    fn delivery(&self, artifact: &ArtifactReference) -> String {
        let pod = self.observed.pod.as_ref().map(|pod| pod.uid.as_str()).unwrap_or_default();
        format!("{pod} {} {}", artifact.digest, artifact.dir)
    }

    async fn put_source(&self, artifact: &ArtifactReference) -> Result<Step, ReconcileError> {
        let Some(agent) = self.agent else {
            return Ok(Step::Again);
        };
        let required_directories = match Box::pin(self.required_directories()).await? {
            Ok(directories) => directories,
            Err(waits) => return self.report(&Report::reference_not_found(artifact, &waits)).await,
        };
        let is_in_pod = self.observed.desired.as_ref().is_ok_and(|desired| desired.source.is_in_pod());
        let pinned = if is_in_pod { None } else { self.open_artifact(artifact).await? };
        if pinned.is_none() && !is_in_pod {
            return self.report(&Report::artifact_missing(artifact)).await;
        }
        let size = pinned.as_ref().map(Pinned::size).unwrap_or_default();
        let bytes = pinned.as_ref().map(Pinned::file).transpose().map_err(ReconcileError::transient)?;
        let bytes: Box<dyn AsyncRead + Send + Unpin> = match bytes {
            Some(file) => blocking::reader(file),
            None => Box::new(tokio::io::empty()),
        };
        let namespace = self.observed.workspace.namespace().unwrap_or_default();
        let slot = self.context.memory.streams().acquire(&namespace).await.map_err(ReconcileError::transient)?;
        failpoint::hit("before-put-source");
        let desired = Artifact { digest: artifact.digest.to_string(), directory: artifact.dir.clone() };
        let environment = run_environment(&self.observed.workspace.spec).map_err(ReconcileError::transient)?;
        let limits = &self.context.artifact_limits;
        let header = SourceHeader {
            artifact: Some(desired),
            size,
            environment,
            most_bytes: limits.download_bytes,
            most_unpacked_bytes: limits.unpacked_bytes,
            required_directories,
            policy_packs: Vec::new(),
        };
        let sending = Sending::default();
        let put = agent.put_source(header, bytes, &sending);
        let mut put = std::pin::pin!(holding(slot, self.context.memory.slow_streams(), &sending, put));
        let mut written = None;
        let result = match tokio::time::timeout(INSTALLING_REPORT_DELAY, &mut put).await {
            Ok(result) => result,
            // A rejection remains in the status until the agent accepts the source. Otherwise, the message would
            // change twice with each retry.
            Err(_) if self.was_refused() => put.await,
            Err(_) => {
                written = status::write(self.observed, &Report::installing(artifact), self.context, self.now).await?;
                put.await
            }
        };
        match result {
            Ok(reply) => {
                tracing::info!(revision = artifact.revision, unchanged = reply.unchanged, "source sent to the agent");
                self.source_placed(artifact, written).await
            }
            Err(error) => self.source_failed(artifact, error, written).await,
        }
    }

    /// Sends a policy pack to the agent, which installs the pack in the background.
    pub(super) async fn put_policy_pack(&self, pack: &DesiredPack) -> Result<Step, ReconcileError> {
        let (Some(agent), Ok(desired)) = (self.agent, &self.observed.desired) else {
            return Ok(Step::Again);
        };
        let required_directories = match Box::pin(self.required_directories()).await? {
            Ok(directories) => directories,
            Err(waits) => return self.report(&Report::pack_reference_not_found(&pack.name, &waits)).await,
        };
        let Some(pinned) = self.open_artifact(&pack.artifact).await? else {
            return self.report(&Report::pack_missing(&pack.name)).await;
        };
        let file = pinned.file().map_err(ReconcileError::transient)?;
        let namespace = self.observed.workspace.namespace().unwrap_or_default();
        let slot = self.context.memory.streams().acquire(&namespace).await.map_err(ReconcileError::transient)?;
        let limits = &self.context.artifact_limits;
        let header = SourceHeader {
            artifact: Some(pack.to_proto()),
            size: pinned.size(),
            environment: run_environment(&self.observed.workspace.spec).map_err(ReconcileError::transient)?,
            most_bytes: limits.download_bytes,
            most_unpacked_bytes: limits.unpacked_bytes,
            required_directories,
            policy_packs: desired.policy_packs.iter().map(DesiredPack::to_proto).collect(),
        };
        let sending = Sending::default();
        let put = agent.put_policy_pack(header, blocking::reader(file), &sending);
        match holding(slot, self.context.memory.slow_streams(), &sending, put).await {
            Ok(_) => {
                tracing::info!(pack = pack.name, "policy pack sent to the agent");
                Ok(Step::Again)
            }
            Err(error) => self.pack_failed(pack, error).await,
        }
    }

    /// Reports that a policy pack could not be delivered.
    async fn pack_failed(&self, pack: &DesiredPack, error: RpcError) -> Result<Step, ReconcileError> {
        if error.is_unavailable() && !error.is_timeout() {
            return self.report(&Report::unreachable(&error.to_string())).await;
        }
        let report = match error.is_timeout() {
            true => Report::unreachable(&error.to_string()),
            false => Report::pack_refused(&pack.name, &error.message),
        };
        self.report(&report).await?;
        // Returns an error, so that the controller retries with backoff, as it does for a source.
        Err(ReconcileError::reported(error))
    }

    /// Returns the mount directories that the installation requires. If referenced objects are missing, returns a
    /// message that lists these objects, and requeues the Workspace when they exist.
    async fn required_directories(&self) -> Result<Result<Vec<String>, String>, ReconcileError> {
        let workspace = &self.observed.workspace;
        let namespace = workspace.namespace().unwrap_or_default();
        let mut desired = references(&workspace.spec, None);
        let pod = workspace.pod_name();
        let pod = match desired.is_empty() {
            true => None,
            false => self.context.reader.get_opt::<Pod>(&namespace, &pod).await?,
        };
        let mounted_since = pod.as_ref().and_then(Pod::creation_timestamp).map(|created| created.0);
        let waiter = Waiter::Workspace(ObjectRef::from_obj(workspace));
        let checked = self.context.references.check(&namespace, &desired, mounted_since, &waiter).await?;
        let waited = self.has_reason(workspace_reason::REFERENCE_NOT_FOUND);
        let waits = checked.missing_message(&namespace);
        let is_stale = if waits.is_some() { !waited } else { checked.is_recent };
        if let Some(pod) = pod.filter(|_| is_stale) {
            request_mounts(&pod, &self.context.writer, self.now).await?;
        }
        if let Some(waits) = waits {
            self.context.references.register(&namespace, &checked.missing, &waiter);
            return Ok(Err(waits));
        }
        desired.retain(|reference| !checked.empty.contains(&reference.object()));
        Ok(Ok(desired.into_iter().map(|reference| reference.directory).collect()))
    }

    /// Returns whether the status reports that the agent rejected the source of the current spec.
    fn was_refused(&self) -> bool {
        self.has_reason(workspace_reason::ARTIFACT_REFUSED)
    }

    /// Returns whether the condition `Ready` has the given reason and applies to the current spec.
    fn has_reason(&self, reason: &str) -> bool {
        let workspace = &self.observed.workspace;
        let conditions = workspace.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
        find(conditions, READY)
            .is_some_and(|ready| ready.reason == reason && ready.observed_generation == workspace.metadata.generation)
    }

    /// Completes a successful delivery. If the init container `fetch` received the source, reports that the
    /// user-defined init containers run next. The container `fetch` then exits, and the pod watch requeues the
    /// Workspace.
    async fn source_placed(
        &self,
        artifact: &ArtifactReference,
        written: Option<Workspace>,
    ) -> Result<Step, ReconcileError> {
        let workspace = &self.observed.workspace;
        let (namespace, name) = (workspace.namespace().unwrap_or_default(), workspace.name_any());
        self.context.memory.deliveries.record((&namespace, &name), &self.delivery(artifact));
        let Some(pod) = self.observed.pod.as_ref().filter(|pod| pod.fetching.is_some()) else {
            return Ok(Step::Again);
        };
        let mut observed = self.observed.clone();
        observed.workspace = written.unwrap_or(observed.workspace);
        let act = Act { observed: &observed, ..*self };
        act.report(&Report::initializing(&pod.name, None)).await
    }

    /// Reports that the source could not be delivered. `written` is the Workspace after a status write during the
    /// delivery, or `None` if there was no status write.
    async fn source_failed(
        &self,
        artifact: &ArtifactReference,
        error: RpcError,
        written: Option<Workspace>,
    ) -> Result<Step, ReconcileError> {
        let mut observed = self.observed.clone();
        observed.workspace = written.unwrap_or(observed.workspace);
        let act = Act { observed: &observed, ..*self };
        if error.is_unavailable() {
            let step = act.report(&Report::unreachable(&error.to_string())).await?;
            // Returns an error, so that the controller retries with backoff. Otherwise, an intentionally slow agent
            // would occupy a stream slot most of the time.
            return if error.is_timeout() { Err(ReconcileError::reported(error)) } else { Ok(step) };
        }
        act.report(&Report::artifact_refused(artifact, &error.message)).await?;
        // Returns an error, so that the controller retries with backoff: the agent probably rejects the same bytes
        // again.
        Err(ReconcileError::reported(error))
    }

    async fn open_artifact(&self, artifact: &ArtifactReference) -> Result<Option<Pinned>, ReconcileError> {
        let digest = artifact.digest.clone();
        let artifacts = self.context.artifacts.clone();
        let namespace = self.observed.workspace.namespace().unwrap_or_default();
        // A blocking thread opens the artifact, because the first access after a restart of the controller reads the
        // entire file.
        let opened: Result<Result<Option<Pinned>, StoreError>, _> =
            blocking::spawn(move || artifacts.open_granted(&digest, &namespace)).await;
        opened.map_err(ReconcileError::transient)?.map_err(ReconcileError::transient)
    }
}

/// Awaits `call`, and holds the stream slot until all bytes are sent. Other streams can use the slot while the agent
/// processes the source.
async fn holding<T>(slot: Slot, slow: &Semaphore, sending: &Sending, call: impl Future<Output = T>) -> T {
    let mut call = std::pin::pin!(call);
    tokio::select! {
        result = &mut call => return result,
        () = hold(slot, slow, sending) => {}
    }
    call.await
}

/// Holds the slot until all bytes are sent. A slow stream moves to a slot in `slow` if one is free, so that the
/// stream delays only streams in its own namespace. Otherwise, slow agents in a few namespaces could occupy all
/// slots.
async fn hold(mut slot: Slot, slow: &Semaphore, sending: &Sending) {
    let is_slow = async {
        sending.until_slow().await;
        slow.acquire().await.ok()
    };
    tokio::select! {
        () = sending.done() => {}
        _permit = is_slow => {
            slot.release_common();
            sending.done().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;
    use crate::runtime::fair_slots::{FairSlots, Limits};

    #[tokio::test(start_paused = true)]
    async fn a_slow_agent_delays_only_its_own_namespace() {
        let slots = FairSlots::new(Limits { total: 1, per_key: 1, waiting_per_key: 1 });
        let (slow, sending, started) = (Semaphore::new(1), Sending::default(), Instant::now());
        let slot = slots.acquire("slow").await.unwrap();
        let call = tokio::time::sleep(Duration::from_secs(15));
        let other = async {
            let _other = slots.acquire("other").await.unwrap();
            let waited = started.elapsed();
            let own = tokio::time::timeout(Duration::from_secs(1), slots.acquire("slow")).await;
            assert!(own.is_err(), "the stream keeps the slot of its namespace");
            waited
        };
        let ((), waited) = tokio::join!(holding(slot, &slow, &sending, call), other);
        assert!(waited < Duration::from_secs(5), "{waited:?}");
        assert_eq!(slow.available_permits(), 1);
        slots.acquire("slow").await.map(drop).unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn the_number_of_slow_streams_without_a_slot_is_limited() {
        let slots = FairSlots::new(Limits { total: 1, per_key: 1, waiting_per_key: 1 });
        let (slow, sending) = (Semaphore::new(0), Sending::default());
        let slot = slots.acquire("slow").await.unwrap();
        let call = tokio::time::sleep(Duration::from_secs(15));
        let other = tokio::time::timeout(Duration::from_secs(14), slots.acquire("other"));
        let ((), other) = tokio::join!(holding(slot, &slow, &sending, call), other);
        assert!(other.is_err(), "the stream keeps its slot");
    }
}

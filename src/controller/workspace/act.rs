//! Performs the actions of a Workspace reconcile, including all its writes.

use std::str::FromStr;
use std::time::Duration;

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{Pod, Secret, Service};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;
use tokio::io::AsyncRead;

use super::context::Context;
use super::decide::Action;
use super::environment::run_environment;
use super::observe::{Observed, RepositorySpec};
use super::parts::Part;
use super::references::references;
use super::report::{Report, State};
use super::{status, tls};
use crate::api::auto::{ArtifactReference, Workspace};
use crate::api::conditions::{READY, find, workspace_reason};
use crate::api::names;
use crate::artifact::{Digest, Pinned, StoreError};
use crate::controller::references::{Waiter, request_mounts};
use crate::rpc::client::{AgentClient, RpcError, Sending};
use crate::rpc::proto::{Artifact, SourceHeader};
use crate::runtime::failpoint;
use crate::runtime::fair_slots::Slot;
use crate::runtime::reconcile::{Outcome, ReconcileError};
use crate::runtime::writes::{Object, WriteError};
use crate::source::Origin;
use crate::telemetry::metrics::FetchResult;

/// Time after which the status reports that the delivery of a source is in progress.
const INSTALLING_REPORT_DELAY: Duration = Duration::from_secs(1);

/// Continuation after an action.
pub(super) enum Step {
    /// Run another pass.
    Again,
    Done(Outcome),
}

/// Action to perform, with its inputs.
pub(super) struct Act<'a> {
    pub observed: &'a Observed,
    pub agent: Option<&'a AgentClient>,
    pub context: &'a Context,
    pub now: Timestamp,
}

impl Act<'_> {
    pub(super) async fn perform(&self, action: Action) -> Result<Step, ReconcileError> {
        let writer = &self.context.writer;
        let workspace = &self.observed.workspace;
        let (namespace, name) = (workspace.namespace().unwrap_or_default(), workspace.name_any());
        let object = names::workspace_object(&name);
        match action {
            Action::Ignore => return Ok(Step::Done(Outcome::Settled)),
            Action::Report(report) => return self.report(&report).await,
            Action::TakeOver => drop(writer.take_over(workspace).await?),
            Action::AddFinalizer => writer.add_finalizer(workspace, names::WORKSPACE_FINALIZER).await?,
            Action::Apply { service, tls, budget, stateful_set } => {
                return self.apply([service, tls, budget, stateful_set]).await;
            }
            Action::Drain => return self.drain().await,
            Action::DeletePod { uid } => {
                tracing::info!(pod = names::workspace_pod(&name), uid, "deleting pod");
                writer.delete::<Pod>(&namespace, &names::workspace_pod(&name), Some(&uid)).await?;
            }
            Action::ReleasePod => self.release_pod(&namespace, &name).await?,
            Action::Fetch => return self.fetch().await,
            Action::PutSource { artifact } => return Box::pin(self.put_source(&artifact)).await,
            Action::DeleteStatefulSet => {
                writer.delete::<StatefulSet>(&namespace, &object, None).await?;
                self.context.memory.forget(&namespace, &object);
            }
            Action::DeleteService => writer.delete::<Service>(&namespace, &object, None).await?,
            Action::DeleteTlsSecret => {
                writer.delete::<Secret>(&namespace, &names::workspace_tls_secret(&name), None).await?;
            }
            Action::DeleteBudget => writer.delete::<PodDisruptionBudget>(&namespace, &object, None).await?,
            Action::RemoveFinalizer => {
                writer.remove_finalizer(workspace, names::WORKSPACE_FINALIZER).await?;
                return Ok(Step::Done(Outcome::Settled));
            }
        }
        Ok(Step::Again)
    }

    async fn report(&self, report: &Report) -> Result<Step, ReconcileError> {
        status::write(self.observed, report, self.context, self.now).await?;
        Ok(Step::Done(match report.again {
            None => Outcome::Settled,
            // Jitter spreads the polls of ready Workspaces. In other states, the given time applies.
            Some(again) if report.state == State::Ready => {
                let workspace = &self.observed.workspace;
                let namespace = workspace.namespace().unwrap_or_default();
                let awaited = self.context.inputs.next_poll(&namespace, &workspace.name_any());
                Outcome::After(awaited.unwrap_or_else(|| again.mul_f64(0.8 + 0.4 * fastrand::f64())))
            }
            Some(again) => Outcome::After(again),
        }))
    }

    async fn apply(&self, parts: [bool; 4]) -> Result<Step, ReconcileError> {
        if self.observed.service == Part::Operators {
            self.take_over::<Service>().await?;
        }
        if self.observed.stateful_set == Part::Operators {
            self.take_over::<StatefulSet>().await?;
        }
        let certificate = match parts {
            [_, true, _, _] => self.certificate().await?,
            _ => None,
        };
        match self.apply_parts(parts, certificate.as_ref()).await {
            Ok(()) => {
                self.record_apply(parts);
                Ok(Step::Again)
            }
            Err(error) => match rejection(&error) {
                Some(report) => self.report(&report).await,
                None => Err(error.into()),
            },
        }
    }

    /// Counts an apply over objects that differed, to detect objects that another client changes back each time.
    fn record_apply(&self, [service, _, budget, stateful_set]: [bool; 4]) {
        let Observed { workspace, wanted: Ok(wanted), .. } = self.observed else { return };
        let parts = [
            (service, self.observed.service),
            (budget, self.observed.budget),
            (stateful_set, self.observed.stateful_set),
        ];
        if parts.into_iter().any(|(is_applied, part)| is_applied && part == Part::Outdated) {
            let (namespace, name) = (workspace.namespace().unwrap_or_default(), workspace.name_any());
            self.context.memory.applies.record((&namespace, &name), &wanted.rendered.parts_hash);
        }
    }

    /// Takes over an object that is then applied. The apply removes the operator's fields that the rendered object does not
    /// have.
    async fn take_over<K: Object>(&self) -> Result<(), ReconcileError> {
        let workspace = &self.observed.workspace;
        let (namespace, name) = (workspace.namespace().unwrap_or_default(), workspace.name_any());
        let object = self.context.reader.get_opt::<K>(&namespace, &names::workspace_object(&name)).await?;
        if let Some(object) = object {
            self.context.writer.take_over(&object).await?;
        }
        Ok(())
    }

    /// Applies the selected ones of Service, certificate, PodDisruptionBudget and StatefulSet. `certificate` is the existing
    /// Secret.
    async fn apply_parts(
        &self,
        [service, tls, budget, stateful_set]: [bool; 4],
        certificate: Option<&Secret>,
    ) -> Result<(), WriteError> {
        let Ok(wanted) = &self.observed.wanted else {
            return Ok(());
        };
        let writer = &self.context.writer;
        let rendered = &wanted.rendered;
        if stateful_set {
            // The check rejects unknown fields in the user's part, which an apply would drop silently.
            writer.check::<StatefulSet>(&rendered.stateful_set).await?;
        }
        if service {
            writer.check::<Service>(&rendered.service).await?;
            writer.apply::<Service>(&rendered.service).await?;
        }
        if tls {
            self.apply_certificate(certificate).await?;
        }
        if budget {
            writer.apply::<PodDisruptionBudget>(&rendered.budget).await?;
        }
        if stateful_set {
            let applied = writer.apply::<StatefulSet>(&rendered.stateful_set).await?;
            self.context.memory.applied(&applied);
        }
        Ok(())
    }

    async fn certificate(&self) -> Result<Option<Secret>, ReconcileError> {
        let workspace = &self.observed.workspace;
        let (namespace, name) = (workspace.namespace().unwrap_or_default(), workspace.name_any());
        Ok(self.context.reader.get_opt::<Secret>(&namespace, &names::workspace_tls_secret(&name)).await?)
    }

    async fn apply_certificate(&self, before: Option<&Secret>) -> Result<(), WriteError> {
        let workspace = &self.observed.workspace;
        let (namespace, name) = (workspace.namespace().unwrap_or_default(), workspace.name_any());
        let authority = self.context.authority.borrow().clone();
        match tls::issue(&name, &namespace, before, &authority, self.now) {
            Ok(secret) => self.context.writer.apply::<Secret>(&secret).await.map(|_| ()),
            Err(error) => {
                tracing::error!(
                    error = &error as &dyn std::error::Error,
                    "failed to issue the certificate of the agent"
                );
                Ok(())
            }
        }
    }

    async fn drain(&self) -> Result<Step, ReconcileError> {
        let Some(agent) = self.agent else {
            return Ok(Step::Again);
        };
        match agent.drain().await {
            Ok(_) => Ok(Step::Again),
            Err(error) => self.report(&Report::unreachable(&error.to_string())).await,
        }
    }

    async fn release_pod(&self, namespace: &str, name: &str) -> Result<(), ReconcileError> {
        let pod = self.context.reader.get_opt::<Pod>(namespace, &names::workspace_pod(name)).await?;
        if let Some(pod) = pod {
            self.context.writer.remove_finalizer(&pod, names::RUN_FINALIZER).await?;
        }
        Ok(())
    }

    async fn fetch(&self) -> Result<Step, ReconcileError> {
        let Ok(RepositorySpec { source, .. }) = &self.observed.wanted else { return Ok(Step::Again) };
        let digest = Digest::from_str(&source.artifact.digest).map_err(ReconcileError::transient)?;
        let fetcher = &self.context.fetcher;
        let namespace = self.observed.workspace.namespace().unwrap_or_default();
        let fetched = match &source.origin {
            Some(Origin::Url(url)) => fetcher.fetch(url, &digest, &namespace).await,
            Some(Origin::Made(bytes)) => fetcher.keep(bytes, &digest, &namespace).await,
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
        // Return an error so that retries back off: a retry downloads everything, and the content is unlikely to change.
        if error.is_about_content() { Err(ReconcileError::transient(error)) } else { Ok(step) }
    }

    async fn put_source(&self, artifact: &ArtifactReference) -> Result<Step, ReconcileError> {
        let Some(agent) = self.agent else {
            return Ok(Step::Again);
        };
        let required_directories = match Box::pin(self.required_directories()).await? {
            Ok(directories) => directories,
            Err(waits) => return self.report(&Report::reference_not_found(artifact, &waits)).await,
        };
        let is_in_pod = self.observed.wanted.as_ref().is_ok_and(|wanted| wanted.source.is_in_pod());
        let pinned = if is_in_pod { None } else { self.open_artifact(artifact).await? };
        if pinned.is_none() && !is_in_pod {
            return self.report(&Report::artifact_missing(artifact)).await;
        }
        let size = pinned.as_ref().map(Pinned::size).unwrap_or_default();
        let bytes = pinned.as_ref().map(Pinned::file).transpose().map_err(ReconcileError::transient)?;
        let bytes: Box<dyn AsyncRead + Send + Unpin> = match bytes {
            Some(file) => Box::new(tokio::fs::File::from_std(file)),
            None => Box::new(tokio::io::empty()),
        };
        let namespace = self.observed.workspace.namespace().unwrap_or_default();
        let slot = self.context.memory.streams().acquire(&namespace).await.map_err(ReconcileError::transient)?;
        failpoint::hit("before-put-source");
        let wanted = Artifact { digest: artifact.digest.clone(), directory: artifact.dir.clone() };
        let environment = run_environment(&self.observed.workspace.spec).map_err(ReconcileError::transient)?;
        let limits = &self.context.artifact_limits;
        let header = SourceHeader {
            artifact: Some(wanted),
            size,
            environment,
            most_bytes: limits.download_bytes,
            most_unpacked_bytes: limits.unpacked_bytes,
            required_directories,
        };
        let sending = Sending::default();
        let mut put = std::pin::pin!(holding(slot, &sending, agent.put_source(header, bytes, &sending)));
        let mut noted = None;
        let result = match tokio::time::timeout(INSTALLING_REPORT_DELAY, &mut put).await {
            Ok(result) => result,
            // Keep a reported refusal in the status until the source is accepted. Otherwise, two messages would alternate
            // with each retry.
            Err(_) if self.was_refused() => put.await,
            Err(_) => {
                noted = status::write(self.observed, &Report::installing(artifact), self.context, self.now).await?;
                put.await
            }
        };
        match result {
            Ok(reply) => {
                tracing::info!(revision = artifact.revision, unchanged = reply.unchanged, "source sent to the agent");
                self.source_placed(noted).await
            }
            Err(error) => self.source_failed(artifact, error, noted).await,
        }
    }

    /// Returns the mounted directories that an installation needs, or a message about missing objects. The Workspace is woken
    /// once they exist.
    async fn required_directories(&self) -> Result<Result<Vec<String>, String>, ReconcileError> {
        let workspace = &self.observed.workspace;
        let namespace = workspace.namespace().unwrap_or_default();
        let mut wanted = references(&workspace.spec, None);
        let pod = names::workspace_pod(&workspace.name_any());
        let pod = match wanted.is_empty() {
            true => None,
            false => self.context.reader.get_opt::<Pod>(&namespace, &pod).await?,
        };
        let mounted_since = pod.as_ref().and_then(Pod::creation_timestamp).map(|created| created.0);
        let checked = self.context.references.check(&namespace, &wanted, mounted_since).await?;
        let waited = self.has_reason(workspace_reason::REFERENCE_NOT_FOUND);
        let waits = checked.waits_for(&namespace);
        let is_stale = if waits.is_some() { !waited } else { checked.is_recent };
        if let Some(pod) = pod.filter(|_| is_stale) {
            request_mounts(&pod, &self.context.writer, self.now).await?;
        }
        if let Some(waits) = waits {
            let waiter = Waiter::Workspace(ObjectRef::from_obj(workspace));
            self.context.references.wait(&namespace, &checked.missing, &waiter);
            return Ok(Err(waits));
        }
        wanted.retain(|reference| !checked.empty.contains(&reference.object()));
        Ok(Ok(wanted.into_iter().map(|reference| reference.directory).collect()))
    }

    /// Returns whether the status reports for the current spec that the source is refused.
    fn was_refused(&self) -> bool {
        self.has_reason(workspace_reason::ARTIFACT_REFUSED)
    }

    /// Returns whether `Ready` has this reason for the current spec.
    fn has_reason(&self, reason: &str) -> bool {
        let workspace = &self.observed.workspace;
        let conditions = workspace.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
        find(conditions, READY)
            .is_some_and(|ready| ready.reason == reason && ready.observed_generation == workspace.metadata.generation)
    }

    /// Reports that the source is delivered. If the init container `fetch` took it, it exits now, and the pod watch reports
    /// further progress.
    async fn source_placed(&self, noted: Option<Workspace>) -> Result<Step, ReconcileError> {
        let Some(pod) = self.observed.pod.as_ref().filter(|pod| pod.fetching.is_some()) else {
            return Ok(Step::Again);
        };
        let mut observed = self.observed.clone();
        observed.workspace = noted.unwrap_or(observed.workspace);
        let act = Act { observed: &observed, ..*self };
        act.report(&Report::initializing(&pod.name, None)).await
    }

    /// Reports a failed delivery. `noted` is the Workspace after the status was last written during the delivery.
    async fn source_failed(
        &self,
        artifact: &ArtifactReference,
        error: RpcError,
        noted: Option<Workspace>,
    ) -> Result<Step, ReconcileError> {
        let mut observed = self.observed.clone();
        observed.workspace = noted.unwrap_or(observed.workspace);
        let act = Act { observed: &observed, ..*self };
        if error.is_unavailable() {
            let step = act.report(&Report::unreachable(&error.to_string())).await?;
            // Return an error so that retries back off: a deliberately slow agent would otherwise hold a stream slot most of
            // the time.
            return if error.is_timeout() { Err(ReconcileError::transient(error)) } else { Ok(step) };
        }
        act.report(&Report::artifact_refused(artifact, &error.message)).await?;
        // Return an error so that retries back off: the agent is unlikely to accept the same bytes on the next attempt.
        Err(ReconcileError::transient(error))
    }

    async fn open_artifact(&self, artifact: &ArtifactReference) -> Result<Option<Pinned>, ReconcileError> {
        let digest = Digest::from_str(&artifact.digest).map_err(ReconcileError::transient)?;
        let artifacts = self.context.artifacts.clone();
        let namespace = self.observed.workspace.namespace().unwrap_or_default();
        // The first access after a start reads the whole file.
        let opened: Result<Result<Option<Pinned>, StoreError>, _> =
            tokio::task::spawn_blocking(move || artifacts.open_granted(&digest, &namespace)).await;
        opened.map_err(ReconcileError::transient)?.map_err(ReconcileError::transient)
    }
}

/// Holds the stream slot until all bytes are sent. The agent processes the source without the slot.
async fn holding<T>(slot: Slot, sending: &Sending, call: impl Future<Output = T>) -> T {
    let mut call = std::pin::pin!(call);
    tokio::select! {
        result = &mut call => return result,
        () = sending.done() => drop(slot),
    }
    call.await
}

/// Returns whether the API server rejected the content. It reports unknown fields and values of the wrong type with code 500.
fn is_invalid(error: &WriteError) -> bool {
    let words = ["field not declared in schema", "failed to create typed patch object"];
    error.is_invalid() || error.server_message().is_some_and(|message| words.iter().any(|word| message.contains(word)))
}

/// Returns the report for an object that the API server rejects, or `None` for errors that are retried.
fn rejection(error: &WriteError) -> Option<Report> {
    let message = || refusal(error);
    match error {
        error if error.is_denied_by_admission() => Some(Report::denied(message())),
        error if is_invalid(error) => Some(Report::rejected(message())),
        error if error.is_forbidden() => Some(Report::forbidden(message())),
        _ => None,
    }
}

fn refusal(error: &WriteError) -> String {
    match error.server_message() {
        Some(message) => format!("the API server rejected an object of the Workspace: {message}"),
        None => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::report::REJECTED_RETRY;
    use super::*;
    use crate::runtime::writes::Attempt;

    #[test]
    fn a_rejected_object_is_retried_every_few_minutes() {
        let webhook = "admission webhook \"images.example.com\" denied the request: image is not signed";
        let policy = "statefulsets.apps \"app-workspace\" is forbidden: ValidatingAdmissionPolicy 'images' with binding \
                      'images' denied request: image is not signed";
        let quota = "exceeded quota: pods";
        let few_minutes = Some(REJECTED_RETRY);
        let rows = [
            (400, webhook, Some((State::Failing, few_minutes))),
            (403, webhook, Some((State::Failing, few_minutes))),
            (422, policy, Some((State::Failing, few_minutes))),
            (422, "spec.template.spec.containers[0].name: Required value", Some((State::Stalled, few_minutes))),
            (400, "the policy of this company says no", Some((State::Stalled, few_minutes))),
            (500, "failed to create typed patch object", Some((State::Stalled, few_minutes))),
            (403, quota, Some((State::Failing, Some(Duration::from_secs(30))))),
            (500, "etcdserver: request timed out", None),
            (409, "the object has been modified", None),
        ];
        for (code, message, wanted) in rows {
            let (kind, namespace, name) = ("StatefulSet".to_owned(), "apps".to_owned(), "app-workspace".to_owned());
            let attempt = Box::new(Attempt { verb: "validate", kind, namespace, name });
            let error = WriteError::Refused { attempt, code, reason: "Reason".to_owned(), message: message.to_owned() };
            let found = rejection(&error);
            assert!(found.iter().all(|report| report.message.contains(message)), "{found:?}");
            assert_eq!(found.map(|report| (report.state, report.again)), wanted, "{code} {message}");
        }
    }
}

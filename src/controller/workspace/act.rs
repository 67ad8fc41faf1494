//! Performs the actions of a Workspace reconciliation, including all its writes.

use k8s_openapi::Resource as _;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{Pod, Secret, Service};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;

use super::context::Context;
use super::decide::Action;
use super::observe::Observed;
use super::parts::PartState;
use super::pool::take_patch;
use super::report::{Report, State};
use super::{missing_pod, sleep, status, tls};
use crate::api::auto::{PooledPod, WorkspaceStatus};
use crate::api::conditions::workspace_reason;
use crate::api::names;
use crate::rpc::client::AgentClient;
use crate::runtime::events::{Event, EventKind};
use crate::runtime::failpoint;
use crate::runtime::reconcile::{Outcome, ReconcileError};
use crate::runtime::writes::{Object, WriteError};

/// Next step of the reconciliation after an action.
pub(super) enum Step {
    /// Perform another step.
    Again,
    Done(Outcome),
}

/// Inputs of an action, and the methods that perform the action.
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
            Action::Sleep => return self.sleep().await,
            Action::Wake(why) => return self.wake(&why).await,
            Action::DeletePod { uid } => {
                let pod = workspace.pod_name();
                tracing::info!(pod, uid, "deleting pod");
                match self.observed.pod.as_ref().and_then(|pod| pod.short_grace_seconds) {
                    Some(seconds) => writer.delete_within::<Pod>(&namespace, &pod, &uid, seconds).await?,
                    None => writer.delete::<Pod>(&namespace, &pod, Some(&uid)).await?,
                }
                self.record_replacement();
            }
            Action::RequestPod(report) => {
                if let Some(stateful_set) = self.context.reader.get_opt::<StatefulSet>(&namespace, &object).await? {
                    tracing::info!(pod = workspace.pod_name(), "requesting the missing pod again");
                    missing_pod::request(&stateful_set, self.context, self.now).await?;
                }
                return self.report(&report).await;
            }
            Action::DeleteIdlePod { pod, uid, version } => {
                tracing::info!(pod, uid, "deleting pod, because its namespace is being deleted");
                writer.delete_now::<Pod>(&namespace, &pod, (&uid, &version)).await?;
            }
            Action::TakePod { version } => return self.take_pod(&version).await,
            Action::ForgetPod => self.forget_pod().await?,
            Action::RemovePodFinalizer => self.remove_pod_finalizer(&namespace).await?,
            Action::Fetch => return self.fetch().await,
            Action::PutSource { artifact } => return Box::pin(self.deliver_source(&artifact)).await,
            Action::PutPolicyPack { pack } => return Box::pin(self.put_policy_pack(&pack)).await,
            Action::DeleteStatefulSet => {
                writer.delete::<StatefulSet>(&namespace, &object, None).await?;
                self.context.memory.forget(&namespace, &object);
                self.context.memory.activity.forget((&namespace, &name));
            }
            Action::DeleteParts { service, tls, budget } => Box::pin(self.delete_parts([service, tls, budget])).await?,
            Action::RemoveFinalizer => {
                writer.remove_finalizers(workspace, &[names::WORKSPACE_FINALIZER]).await?;
                return Ok(Step::Done(Outcome::Settled));
            }
        }
        Ok(Step::Again)
    }

    pub(super) async fn report(&self, report: &Report) -> Result<Step, ReconcileError> {
        status::write(self.observed, report, self.context, self.now).await?;
        Ok(Step::Done(match report.again {
            None => Outcome::Settled,
            // Jitter distributes the periodic polls of ready Workspaces over time. Other intervals need no jitter.
            Some(again) if report.state == State::Ready => {
                let workspace = &self.observed.workspace;
                let namespace = workspace.namespace().unwrap_or_default();
                let name = workspace.name_any();
                let objects = self.observed.idle.inputs.count();
                let again = self.context.polls.requeue_interval(again, (&namespace, &name), objects);
                let awaited = self.context.inputs.next_poll(&namespace, &name);
                let poll = awaited.unwrap_or_else(|| again.mul_f64(0.8 + 0.4 * fastrand::f64()));
                Outcome::After(sleep::time_left(self.observed, self.now).map_or(poll, |left| poll.min(left)))
            }
            Some(again) => Outcome::After(again),
        }))
    }

    async fn apply(&self, parts: [bool; 4]) -> Result<Step, ReconcileError> {
        if self.observed.service == PartState::ManagedByOperator {
            self.take_over::<Service>().await?;
        }
        if self.observed.stateful_set == PartState::ManagedByOperator {
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

    /// Counts an apply if an object was outdated. A high count shows that another client changes the objects after
    /// each apply.
    fn record_apply(&self, [service, _, budget, stateful_set]: [bool; 4]) {
        let Observed { workspace, desired: Ok(desired), .. } = self.observed else { return };
        let parts = [
            (service, self.observed.service),
            (budget, self.observed.budget),
            (stateful_set, self.observed.stateful_set),
        ];
        if parts.into_iter().any(|(is_applied, part)| is_applied && part == PartState::Outdated) {
            let (namespace, name) = (workspace.namespace().unwrap_or_default(), workspace.name_any());
            self.context.memory.applies.record((&namespace, &name), &desired.rendered.parts_hash);
        }
    }

    /// Counts a replacement of the pod. A high count for the same spec shows that each new pod is outdated again.
    fn record_replacement(&self) {
        let Observed { workspace, desired: Ok(desired), .. } = self.observed else { return };
        if !workspace.is_asleep() {
            let (namespace, name) = (workspace.namespace().unwrap_or_default(), workspace.name_any());
            self.context.memory.replacements.record((&namespace, &name), &desired.rendered.revision_hash);
        }
    }

    /// Takes over an object from the Pulumi Kubernetes Operator. The next apply then removes the operator's fields
    /// that the rendered object does not contain.
    async fn take_over<K: Object>(&self) -> Result<(), ReconcileError> {
        let workspace = &self.observed.workspace;
        let (namespace, name) = (workspace.namespace().unwrap_or_default(), workspace.name_any());
        let object = self.context.reader.get_opt::<K>(&namespace, &names::workspace_object(&name)).await?;
        if let Some(object) = object {
            self.context.writer.take_over(&object).await?;
        }
        Ok(())
    }

    /// Applies the selected objects: the Service, the certificate, the PodDisruptionBudget and the StatefulSet.
    /// `certificate` is the existing Secret that contains the certificate.
    async fn apply_parts(
        &self,
        [service, tls, budget, stateful_set]: [bool; 4],
        certificate: Option<&Secret>,
    ) -> Result<(), WriteError> {
        let Ok(desired) = &self.observed.desired else {
            return Ok(());
        };
        let writer = &self.context.writer;
        let rendered = &desired.rendered;
        if stateful_set {
            // The check rejects unknown fields in the user-defined `podTemplate`. Without the check, the API server
            // would silently drop these fields.
            writer.check::<StatefulSet>(&rendered.stateful_set).await?;
        }
        if service {
            writer.check::<Service>(&rendered.service).await?;
            writer.apply::<Service>(&rendered.service).await?;
        }
        if tls {
            Box::pin(self.apply_certificate(certificate)).await?;
        }
        match &rendered.budget {
            Some(rendered) if budget => drop(writer.apply::<PodDisruptionBudget>(rendered).await?),
            None if budget => self.delete_parts([false, false, true]).await?,
            Some(_) | None => {}
        }
        if stateful_set {
            let applied = writer.apply::<StatefulSet>(&rendered.stateful_set).await?;
            self.context.memory.record_applied(&applied);
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
        let issued = match workspace.pooled_pod() {
            // The Secret of a pool pod contains a key that the controller copies from the Workspace's Secret.
            Some(pod) if self.observed.tls == PartState::Current => {
                tls::issue_for_pod(pod, &namespace, before, &authority, self.now)
            }
            _ => tls::issue(&name, &namespace, before, &authority, self.now),
        };
        match issued {
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

    /// Records in the status that the Workspace is sleeping. The following steps drain the agent and remove the pod,
    /// even after a restart of the controller.
    async fn sleep(&self) -> Result<Step, ReconcileError> {
        let workspace = &self.observed.workspace;
        let (namespace, name) = (workspace.namespace().unwrap_or_default(), workspace.name_any());
        status::write(self.observed, &Report::sleeping(self.now), self.context, self.now).await?;
        self.context.memory.activity.forget((&namespace, &name));
        self.context.polls.forget(&namespace, &name);
        tracing::info!(pod = workspace.pod_name(), "workspace is going to sleep");
        failpoint::hit("workspace-asleep");
        Ok(Step::Again)
    }

    /// Records in the status that the Workspace is awake, and which pod it takes from a pool. The following steps
    /// take or create the pod, even after a restart of the controller.
    async fn wake(&self, why: &str) -> Result<Step, ReconcileError> {
        let workspace = &self.observed.workspace;
        let pod = self.reserve_pod();
        let report = pod.as_ref().map_or_else(|| Report::waking(why), |pod| Report::taking_pod(&pod.name, why));
        let pod = pod.or_else(|| workspace.pooled_pod().cloned());
        Box::pin(status::write_waking(self.observed, &report, pod, self.context, self.now)).await?;
        tracing::info!(cause = why, "workspace is waking up");
        self.context.events.publish(Event::new(workspace, EventKind::Normal, workspace_reason::WAKING, report.message));
        failpoint::hit("workspace-awake");
        Ok(Step::Again)
    }

    /// Reserves a pod from a pool for a Workspace that has no pod.
    fn reserve_pod(&self) -> Option<PooledPod> {
        let has_pod = self.observed.pod.is_some() || self.observed.workspace.pooled_pod().is_some();
        let template = self.observed.pool_template.as_ref().filter(|_| !has_pod)?;
        self.context.pool.reserve(&self.observed.workspace.namespace()?, &template.key)
    }

    /// Assigns the pod in `status.pooledPod` to the Workspace. If the pod has changed, the next step reads the pod
    /// again.
    async fn take_pod(&self, version: &str) -> Result<Step, ReconcileError> {
        let workspace = &self.observed.workspace;
        let (namespace, name) = (workspace.namespace().unwrap_or_default(), workspace.name_any());
        let (Some(pod), Ok(desired)) = (workspace.pooled_pod(), &self.observed.desired) else { return Ok(Step::Again) };
        failpoint::hit("pod-recorded");
        let service = self.context.reader.get_opt::<Service>(&namespace, &names::workspace_object(&name)).await?;
        let Some(service) = service else { return Ok(Step::Again) };
        let patch = take_patch(&name, pod, version, &desired.rendered.revision_hash, &service);
        match self.context.writer.merge::<Pod>(&namespace, &pod.name, &patch).await {
            Err(error) if error.is_conflict() || error.is_not_found() => {}
            // The API server can reject the patch, for example if an admission policy does not permit the labels. The
            // StatefulSet then creates a pod instead.
            Err(error) if rejection(&error).is_some() => {
                tracing::warn!(error = &error as &dyn std::error::Error, "failed to take a pod from a pool");
                self.forget_pod().await?;
            }
            Err(error) => return Err(error.into()),
            Ok(_) => tracing::info!(pod = pod.name, "took a pod from a pool"),
        }
        Ok(Step::Again)
    }

    async fn forget_pod(&self) -> Result<(), WriteError> {
        let workspace = &self.observed.workspace;
        let status = WorkspaceStatus { pooled_pod: None, ..workspace.status.clone().unwrap_or_default() };
        self.context.writer.status(workspace, &status).await.map(drop)
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

    /// Deletes the selected objects: the Service, the certificate and the PodDisruptionBudget. A single step deletes
    /// all selected objects, because each additional step would read the complete Workspace state again.
    async fn delete_parts(&self, [service, tls, budget]: [bool; 3]) -> Result<(), WriteError> {
        let writer = &self.context.writer;
        let workspace = &self.observed.workspace;
        let (namespace, name) = (workspace.namespace().unwrap_or_default(), workspace.name_any());
        let object = names::workspace_object(&name);
        if service {
            writer.delete::<Service>(&namespace, &object, None).await?;
        }
        if tls {
            writer.delete::<Secret>(&namespace, &names::workspace_tls_secret(&name), None).await?;
        }
        if budget {
            writer.delete::<PodDisruptionBudget>(&namespace, &object, None).await?;
        }
        Ok(())
    }

    async fn remove_pod_finalizer(&self, namespace: &str) -> Result<(), ReconcileError> {
        let pod = self.context.reader.get_opt::<Pod>(namespace, &self.observed.workspace.pod_name()).await?;
        if let Some(pod) = pod {
            self.context.writer.remove_finalizers(&pod, &[names::RUN_FINALIZER]).await?;
        }
        Ok(())
    }
}

/// Returns a report if the API server rejects an object, or `None` for any other error. The reconciler retries other
/// errors with backoff.
fn rejection(error: &WriteError) -> Option<Report> {
    let message = || refusal(error);
    match error {
        error if error.is_denied_by_admission() => Some(Report::denied(message())),
        error if error.is_invalid() => Some(Report::rejected(message())),
        error if error.is_forbidden() => Some(Report::forbidden(message())),
        _ => None,
    }
}

fn refusal(error: &WriteError) -> String {
    let WriteError::Refused { attempt, message, .. } = error else { return error.to_string() };
    let solution = match attempt.kind == PodDisruptionBudget::KIND && error.is_denied_by_admission() {
        true => {
            ". To use no PodDisruptionBudget, set evictionProtection (spec.workspaceTemplate.spec.evictionProtection of a Stack) to false"
        }
        false => "",
    };
    format!("the API server rejected an object of the Workspace: {message}{solution}")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::report::REJECTED_REQUEUE_INTERVAL;
    use super::*;
    use crate::runtime::writes::AttemptedWrite;

    fn refused(code: u16, message: &str) -> WriteError {
        let (kind, namespace, name) = ("StatefulSet".to_owned(), "apps".to_owned(), "app-workspace".to_owned());
        let attempt = Box::new(AttemptedWrite { verb: "validate", kind, namespace, name });
        WriteError::Refused { attempt, code, reason: "Reason".to_owned(), message: message.to_owned() }
    }

    #[test]
    fn the_message_about_a_rejected_budget_names_the_solution() {
        let denied = "ValidatingAdmissionPolicy 'budgets' with binding 'budgets' denied request: no budgets";
        let message = |kind: &str, message: &str| {
            let mut error = refused(422, message);
            if let WriteError::Refused { attempt, .. } = &mut error {
                kind.clone_into(&mut attempt.kind);
            }
            refusal(&error)
        };
        assert!(message("PodDisruptionBudget", denied).ends_with("evictionProtection of a Stack) to false"));
        assert!(message("StatefulSet", denied).ends_with(denied), "another object");
        assert!(message("PodDisruptionBudget", "too long").ends_with("too long"), "no policy denied the object");
    }

    #[test]
    fn applying_a_rejected_object_is_retried_every_few_minutes() {
        let webhook = "admission webhook \"images.example.com\" denied the request: image is not signed";
        let policy = "statefulsets.apps \"app-workspace\" is forbidden: ValidatingAdmissionPolicy 'images' with binding \
                      'images' denied request: image is not signed";
        let quota = "exceeded quota: pods";
        let few_minutes = Some(REJECTED_REQUEUE_INTERVAL);
        let rows = [
            (400, webhook, Some((State::Failing, few_minutes))),
            (403, webhook, Some((State::Failing, few_minutes))),
            (422, policy, Some((State::Failing, few_minutes))),
            (422, "spec.template.spec.containers[0].name: Required value", Some((State::Stalled, few_minutes))),
            (400, "denied by the policy of the company", Some((State::Stalled, few_minutes))),
            (500, "failed to create typed patch object", Some((State::Stalled, few_minutes))),
            (403, quota, Some((State::Failing, Some(Duration::from_secs(30))))),
            (500, "etcdserver: request timed out", None),
            (409, "the object has been modified", None),
        ];
        for (code, message, expected) in rows {
            let error = refused(code, message);
            let found = rejection(&error);
            assert!(found.iter().all(|report| report.message.contains(message)), "{found:?}");
            assert_eq!(found.map(|report| (report.state, report.again)), expected, "{code} {message}");
        }
    }
}

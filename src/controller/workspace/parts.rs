//! Determines whether each object of a Workspace, except the pod, exists and matches the rendered object.

use std::time::Duration;

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{Secret, Service};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::jiff::Timestamp;
use kube::{Resource, ResourceExt};
use serde::Serialize;
use serde_json::Value;
use tokio::time::Instant;

use super::apply_conflicts::{Contested, describe};
use super::context::Context;
use super::metadata::{ANNOTATION_RENDERED, is_ours};
use super::pod_state::PodState;
use super::render::Rendered;
use super::{missing_pod, tls};
use crate::api::auto::Workspace;
use crate::api::conditions::{READY, is_true};
use crate::api::names;
use crate::controller::authority::Generations;
use crate::runtime::field_managers;
use crate::runtime::reconcile::ReconcileError;

/// State of a Workspace object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PartState {
    Missing,
    /// An object with the same name exists, but does not belong to the Workspace.
    Foreign,
    Outdated,
    /// The object does not exist, and the Workspace does not need it.
    NotNeeded,
    /// The Pulumi Kubernetes Operator manages fields of the object.
    ManagedByOperator,
    Current,
}

impl PartState {
    /// Returns whether the object needs no change.
    pub(super) fn is_final(self) -> bool {
        matches!(self, PartState::Current | PartState::NotNeeded)
    }

    pub(super) fn is_ours(self) -> bool {
        matches!(self, PartState::Outdated | PartState::ManagedByOperator | PartState::Current)
    }
}

/// States of the Workspace objects, except the pod.
pub(super) struct Parts {
    pub(super) service: PartState,
    pub(super) tls: PartState,
    /// State of the Secret that contains the certificate for the pod that the Workspace has taken from a pool.
    pub(super) pooled_tls: PartState,
    pub(super) budget: PartState,
    pub(super) stateful_set: PartState,
    /// UID of the StatefulSet, or `None` if the StatefulSet does not exist or the controller has not read it.
    pub(super) stateful_set_uid: Option<String>,
    /// Time at which the controller last requested a missing pod.
    pub(super) pod_requested_at: Option<Timestamp>,
    /// Name of the revision that contains the current pod template. `None` if the StatefulSet controller has not
    /// observed the current template, or the controller has not read the StatefulSet.
    pub(super) template_revision: Option<String>,
    pub(super) contested: Option<Contested>,
}

impl Parts {
    /// Returns the states of objects that the controller has not read.
    pub(super) fn assumed_current() -> Self {
        let current = PartState::Current;
        Parts {
            service: current,
            tls: current,
            pooled_tls: current,
            budget: current,
            stateful_set: current,
            stateful_set_uid: None,
            pod_requested_at: None,
            template_revision: None,
            contested: None,
        }
    }
}

/// Returns the states of the objects. If a pod exists and `VerifiedParts` contains the Workspace, the controller does
/// not read the objects, and their state is [`PartState::Current`].
pub(super) async fn parts(
    workspace: &Workspace,
    pod: Option<&PodState>,
    rendered: Option<&Rendered>,
    context: &Context,
    now: Timestamp,
) -> Result<Parts, ReconcileError> {
    let (namespace, name) = (workspace.namespace().unwrap_or_default(), workspace.name_any());
    let verified = &context.memory.verified_parts;
    let authority = context.authority.borrow().clone();
    let key = (namespace.as_str(), name.as_str());
    let hash = rendered.map(|rendered| rendered.parts_hash.as_str());
    let pod = pod.filter(|_| workspace.metadata.deletion_timestamp.is_none());
    if let Some(hash) = hash.filter(|_| was_current(workspace, pod, rendered, &context.pods.agent_image)) {
        verified.assume_current(key, hash, &authority);
    }
    if pod.is_some_and(|pod| hash.is_some_and(|hash| verified.contains(key, hash, &authority, pod.ready))) {
        return Ok(Parts::assumed_current());
    }
    let started = Instant::now();
    let (object, secret) = (names::workspace_object(&name), names::workspace_tls_secret(&name));
    let reader = &context.reader;
    let (service, secret, budget, stateful_set) = tokio::try_join!(
        reader.get_opt::<Service>(&namespace, &object),
        reader.get_opt::<Secret>(&namespace, &secret),
        reader.get_opt::<PodDisruptionBudget>(&namespace, &object),
        reader.get_opt::<StatefulSet>(&namespace, &object),
    )?;
    let server_name = names::workspace_server_name(&name, &namespace);
    let certified = |secret: &Secret| tls::is_current(secret, &server_name, &authority, now);
    let pooled_tls = pooled_tls(workspace, secret.as_ref(), &authority, context, now).await?;
    let mut parts = Parts {
        service: part_state(&name, service.as_ref(), |service| {
            is_as_desired(service, rendered.map(|rendered| &rendered.service))
        }),
        tls: part_state(&name, secret.as_ref(), certified),
        pooled_tls,
        budget: match rendered.is_some_and(|rendered| rendered.budget.is_none()) {
            true => unneeded_state(&name, budget.as_ref()),
            false => part_state(&name, budget.as_ref(), |budget| {
                is_as_desired(budget, rendered.and_then(|rendered| rendered.budget.as_ref()))
            }),
        },
        stateful_set: part_state(&name, stateful_set.as_ref(), |found| is_applied(found, rendered, context)),
        stateful_set_uid: stateful_set.as_ref().and_then(|stateful_set| stateful_set.uid()),
        pod_requested_at: stateful_set.as_ref().and_then(missing_pod::requested_at),
        template_revision: stateful_set.as_ref().and_then(template_revision),
        contested: None,
    };
    let all = [parts.service, parts.tls, parts.pooled_tls, parts.budget, parts.stateful_set];
    match hash.filter(|_| all.into_iter().all(PartState::is_final)) {
        Some(hash) => verified.insert(key, hash, &authority, started),
        None => verified.invalidate(key),
    }
    let pause = hash.and_then(|hash| context.memory.applies.pause(key, hash));
    if let (Some(pause), Some(rendered)) = (pause, rendered) {
        let found = (service.as_ref(), budget.as_ref(), stateful_set.as_ref());
        parts.contested = contested(&parts, found, rendered, pause);
    }
    Ok(parts)
}

/// Returns whether the objects were current during the last reconciliation: the Workspace is ready, and its ready pod
/// has the rendered template and the current agent.
fn was_current(workspace: &Workspace, pod: Option<&PodState>, rendered: Option<&Rendered>, agent_image: &str) -> bool {
    let (Some(pod), Some(rendered)) = (pod, rendered) else { return false };
    let status = workspace.status.as_ref();
    let was_ready = status.is_some_and(|status| {
        status.observed_generation == workspace.metadata.generation
            && is_true(&status.conditions, READY)
            && status.pod_uid.as_ref() == Some(&pod.uid)
    });
    let is_current =
        pod.revision_hash.as_ref() == Some(&rendered.revision_hash) && pod.agent_image.as_deref() == Some(agent_image);
    was_ready && pod.ready && !pod.terminating && is_current
}

/// Returns the state of the Secret for the pooled pod, or [`PartState::Current`] if the Workspace has no pooled pod.
/// `own` is the Secret of the Workspace.
async fn pooled_tls(
    workspace: &Workspace,
    own: Option<&Secret>,
    authority: &Generations,
    context: &Context,
    now: Timestamp,
) -> Result<PartState, ReconcileError> {
    let Some(pod) = workspace.pooled_pod() else { return Ok(PartState::Current) };
    let namespace = workspace.namespace().unwrap_or_default();
    let server_name = names::pool_pod_server_name(&pod.name, &namespace);
    let found = context.reader.get_opt::<Secret>(&namespace, &names::pool_pod_tls_secret(&pod.name)).await?;
    Ok(match (&found, own) {
        (None, _) => PartState::Missing,
        (Some(secret), _) if !tls::is_of_pod(secret, &pod.uid) => PartState::Foreign,
        (Some(secret), Some(own)) if tls::is_current_in_pod(secret, own, &server_name, authority, now) => {
            PartState::Current
        }
        (Some(_), _) => PartState::Outdated,
    })
}

/// Describes the outdated objects, or returns `None` if no object is outdated. `pause` is the delay before the next
/// apply.
fn contested(
    parts: &Parts,
    (service, budget, stateful_set): (Option<&Service>, Option<&PodDisruptionBudget>, Option<&StatefulSet>),
    rendered: &Rendered,
    pause: Duration,
) -> Option<Contested> {
    let is_outdated = |part: PartState| part == PartState::Outdated;
    let service = service.filter(|_| is_outdated(parts.service)).map(|found| describe(found, &rendered.service));
    let budget = budget.filter(|_| is_outdated(parts.budget)).zip(rendered.budget.as_ref());
    let budget = budget.map(|(found, rendered)| describe(found, rendered));
    let stateful_set =
        stateful_set.filter(|_| is_outdated(parts.stateful_set)).map(|found| describe(found, &rendered.stateful_set));
    let is_stateful_set = stateful_set.is_some();
    let objects: Vec<String> = service.into_iter().chain(budget).chain(stateful_set).collect();
    (!objects.is_empty()).then(|| Contested::new(&objects, pause, is_stateful_set))
}

fn part_state<K: Resource>(name: &str, found: Option<&K>, is_current: impl FnOnce(&K) -> bool) -> PartState {
    match found {
        None => PartState::Missing,
        Some(object) if !is_ours(object, name) => PartState::Foreign,
        Some(object) if field_managers::is_managed_by_operator(object) => PartState::ManagedByOperator,
        Some(object) if is_current(object) => PartState::Current,
        Some(_) => PartState::Outdated,
    }
}

/// Returns the state of an object that the Workspace does not need. An object of another owner can keep the name.
fn unneeded_state<K: Resource>(name: &str, found: Option<&K>) -> PartState {
    match found {
        Some(object) if is_ours(object, name) => PartState::Outdated,
        Some(_) | None => PartState::NotNeeded,
    }
}

fn is_as_desired<K: Serialize>(found: &K, desired: Option<&Value>) -> bool {
    let found = serde_json::to_value(found).unwrap_or_default();
    desired.is_some_and(|desired| covers(&found, desired))
}

/// Returns whether a StatefulSet has the hash and the replicas of the rendered StatefulSet, and is unchanged since
/// the last apply. A comparison of all fields would report false differences, because the API server normalizes
/// quantities.
fn is_applied(found: &StatefulSet, rendered: Option<&Rendered>, context: &Context) -> bool {
    let hash = found.annotations().get(ANNOTATION_RENDERED);
    let replicas = found.spec.as_ref().and_then(|spec| spec.replicas);
    rendered.is_some_and(|rendered| hash == Some(&rendered.rendered_hash) && replicas == Some(rendered.replicas))
        && context.memory.is_unchanged(found)
}

/// Returns the name of the revision that contains the current pod template of a StatefulSet.
fn template_revision(found: &StatefulSet) -> Option<String> {
    let status = found.status.as_ref()?;
    let is_observed = status.observed_generation.is_some() && status.observed_generation == found.metadata.generation;
    status.update_revision.clone().filter(|_| is_observed)
}

/// Returns whether `found` contains all fields of `desired`. `found` can contain additional fields.
fn covers(found: &Value, desired: &Value) -> bool {
    match (found, desired) {
        (Value::Object(found), Value::Object(desired)) => {
            desired.iter().all(|(field, value)| found.get(field).is_some_and(|found| covers(found, value)))
        }
        (Value::Array(found), Value::Array(desired)) => {
            found.len() == desired.len() && found.iter().zip(desired).all(|(found, desired)| covers(found, desired))
        }
        _ => found == desired,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn rendered() -> Rendered {
        let [service, budget, stateful_set] = [Value::Null, Value::Null, Value::Null];
        let budget = Some(budget);
        let (revision_hash, rendered_hash, parts_hash) = ("r1".to_owned(), "r2".to_owned(), "r3".to_owned());
        Rendered { service, budget, stateful_set, revision_hash, replicas: 1, rendered_hash, parts_hash }
    }

    #[test]
    fn only_objects_of_a_ready_workspace_with_a_current_pod_were_current() {
        let ready = json!({"type": "Ready", "status": "True", "reason": "Succeeded", "message": "",
            "lastTransitionTime": "2026-01-01T12:00:00Z"});
        let mut not_ready = ready.clone();
        not_ready["status"] = json!("False");
        let workspace = |generation: i64, pod_uid: &str, ready: &Value| -> Workspace {
            let status = json!({"observedGeneration": generation, "podUID": pod_uid, "conditions": [ready]});
            let metadata = json!({"name": "app", "generation": 2});
            serde_json::from_value(json!({"metadata": metadata, "spec": {}, "status": status})).expect("a Workspace")
        };
        let (revision_hash, agent_image) = (Some("r1".to_owned()), Some("agent:2".to_owned()));
        let pod = PodState { uid: "pod".to_owned(), ready: true, revision_hash, agent_image, ..PodState::default() };
        let text = |text: &str| Some(text.to_owned());
        let current = workspace(2, "pod", &ready);
        let rows = [
            ("current", current.clone(), pod.clone(), true),
            ("older generation", workspace(1, "pod", &ready), pod.clone(), false),
            ("another pod", workspace(2, "other", &ready), pod.clone(), false),
            ("not Ready", workspace(2, "pod", &not_ready), pod.clone(), false),
            ("pod not ready", current.clone(), PodState { ready: false, ..pod.clone() }, false),
            ("pod terminating", current.clone(), PodState { terminating: true, ..pod.clone() }, false),
            ("other template", current.clone(), PodState { revision_hash: text("r0"), ..pod.clone() }, false),
            ("old agent", current, PodState { agent_image: text("agent:1"), ..pod }, false),
        ];
        for (what, workspace, pod, expected) in rows {
            assert_eq!(was_current(&workspace, Some(&pod), Some(&rendered()), "agent:2"), expected, "{what}");
        }
    }

    #[test]
    fn an_object_that_the_workspace_does_not_need_is_deleted_only_if_it_belongs_to_the_workspace() {
        let budget = |labels: Value| -> PodDisruptionBudget {
            serde_json::from_value(json!({"metadata": {"name": "app-workspace", "labels": labels}})).expect("a budget")
        };
        let ours = budget(super::super::metadata::metadata("app", "team")["labels"].clone());
        assert_eq!(unneeded_state("app", Some(&ours)), PartState::Outdated);
        assert_eq!(unneeded_state("app", Some(&budget(json!({})))), PartState::NotNeeded);
        assert_eq!(unneeded_state::<PodDisruptionBudget>("app", None), PartState::NotNeeded);
        assert!(!PartState::NotNeeded.is_ours() && PartState::NotNeeded.is_final());
    }

    #[test]
    fn the_revision_of_a_stateful_set_is_known_after_its_controller_has_observed_the_template() {
        for (observed, expected) in [(json!(2), Some("app-workspace-b")), (json!(1), None), (json!(null), None)] {
            let status = json!({"observedGeneration": observed, "replicas": 1, "updateRevision": "app-workspace-b"});
            let found = json!({"metadata": {"name": "app-workspace", "generation": 2}, "status": status});
            let found: StatefulSet = serde_json::from_value(found).expect("a StatefulSet");
            assert_eq!(template_revision(&found).as_deref(), expected, "{observed}");
        }
    }

    #[test]
    fn an_object_with_additional_fields_matches_the_desired_object() {
        let cases = [
            (json!({"a": 1, "b": 2}), json!({"a": 1}), true),
            (json!({"a": 1}), json!({"a": 1, "b": 2}), false),
            (json!({"a": {"b": [{"c": 1, "d": 2}]}}), json!({"a": {"b": [{"c": 1}]}}), true),
            (json!([1, 2]), json!([1]), false),
            (json!({"a": "x"}), json!({"a": "y"}), false),
            (json!({"a": null}), json!({"a": {}}), false),
        ];
        for (found, desired, expected) in cases {
            assert_eq!(covers(&found, &desired), expected, "{found} {desired}");
        }
    }
}

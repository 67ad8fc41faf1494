//! Builds the status of a Workspace, and the events about changed conditions. No other module builds the conditions.

use std::collections::BTreeMap;
use std::str::FromStr;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;

use super::context::Context;
use super::init_containers::{self, FETCH_CONTAINER};
use super::observe::{Agent, Observed};
use super::report::{Report, State, describe_uncached};
use super::{config, environment};
use crate::api::auto::{ArtifactReference, PooledPod, Workspace, WorkspaceSleep, WorkspaceSpec, WorkspaceStatus};
use crate::api::bounds;
use crate::api::columns;
use crate::api::conditions::{self, ConditionUpdate, Status, workspace_reason};
use crate::api::names::{AGENT_PORT, ANNOTATION_REQUESTED_AT, workspace_object};
use crate::artifact::Directory;
use crate::rpc::proto::StatusReply;
use crate::runtime::events::{Event, EventKind};
use crate::runtime::writes::WriteError;

/// Maximum length of a project name in characters, as in the Pulumi CLI.
const MAX_PROJECT_NAME: usize = 100;
/// Reason of the event that lists the template fields that have no effect.
const NO_EFFECT: &str = "PodTemplateNoEffect";

/// Reason of the event about runs that are not protected from evictions.
const NOT_PROTECTED: &str = "RunsNotProtected";
/// Reason of the event that lists the objects that another client changes after each apply.
const APPLY_CONFLICT: &str = "ApplyConflict";

/// Reason of the event about dependencies that the dependency cache does not contain.
const NOT_CACHED: &str = "DependenciesNotCached";

/// Writes the reported state if it has changed. Returns the written Workspace, or `None` if the status was unchanged.
pub(super) async fn write(
    observed: &Observed,
    report: &Report,
    context: &Context,
    now: Timestamp,
) -> Result<Option<Workspace>, WriteError> {
    write_status(observed, report, status(observed, report, now), context).await
}

/// Records in the status that the Workspace is awake. `pod` is the pod that the Workspace takes from a pool.
pub(super) async fn write_waking(
    observed: &Observed,
    report: &Report,
    pod: Option<PooledPod>,
    context: &Context,
    now: Timestamp,
) -> Result<Option<Workspace>, WriteError> {
    let status = WorkspaceStatus { pooled_pod: pod, ..status(observed, report, now) };
    write_status(observed, report, status, context).await
}

async fn write_status(
    observed: &Observed,
    report: &Report,
    status: WorkspaceStatus,
    context: &Context,
) -> Result<Option<Workspace>, WriteError> {
    let workspace = &observed.workspace;
    let written = context.writer.status(workspace, &status).await?;
    mark_mounted(workspace, &status, context);
    if written.is_some()
        && let Some(event) = event(workspace, report)
    {
        context.events.publish(event);
    }
    if written.is_some() {
        let events = [
            without_effect(workspace),
            unprotected(observed),
            contested_event(observed),
            uncached_event(observed, report),
        ];
        for event in events.into_iter().flatten() {
            context.events.publish(event);
        }
    }
    Ok(written)
}

/// Returns an event about objects that another client changes after each apply. Returns `None` if the status already
/// reports the same differences.
fn contested_event(observed: &Observed) -> Option<Event> {
    let contested = observed.contested.as_ref()?;
    let conditions = observed.workspace.status.as_ref().map(|status| status.conditions.as_slice());
    let before = conditions::find(conditions.unwrap_or_default(), conditions::READY);
    let is_reported = before.is_some_and(|ready| ready.message.contains(&contested.message));
    (!is_reported)
        .then(|| Event::new(&observed.workspace, EventKind::Warning, APPLY_CONFLICT, contested.message.clone()))
}

/// Returns an event about dependencies that the dependency cache does not contain. Returns `None` if the status already
/// reports them.
fn uncached_event(observed: &Observed, report: &Report) -> Option<Event> {
    let message = describe_uncached(observed.uncached()?);
    let conditions = observed.workspace.status.as_ref().map(|status| status.conditions.as_slice());
    let before = conditions::find(conditions.unwrap_or_default(), conditions::READY);
    let is_reported = before.is_some_and(|ready| ready.message.contains(&message));
    (report.message.contains(&message) && !is_reported)
        .then(|| Event::new(&observed.workspace, EventKind::Normal, NOT_CACHED, message))
}

/// Stops polling for objects whose changes the kubelet has mounted.
fn mark_mounted(workspace: &Workspace, now: &WorkspaceStatus, context: &Context) {
    let before = workspace.status.as_ref().map(|status| &status.mounted_inputs);
    let arrived = now.mounted_inputs.iter().filter(|(object, word)| before.and_then(|b| b.get(*object)) != Some(*word));
    let namespace = workspace.namespace().unwrap_or_default();
    context.inputs.mark_mounted(&namespace, &workspace.name_any(), arrived.map(|(object, _)| object));
}

/// Returns the status that a report describes.
pub(super) fn status(observed: &Observed, report: &Report, now: Timestamp) -> WorkspaceStatus {
    let workspace = &observed.workspace;
    let generation = workspace.metadata.generation.unwrap_or_default();
    let mut status = workspace.status.clone().unwrap_or_default();
    status.observed_generation = Some(generation);
    let namespace = workspace.namespace().unwrap_or_default();
    status.address = Some(format!("{}.{namespace}:{AGENT_PORT}", workspace_object(&workspace.name_any())));
    // While the Workspace is sleeping, the status keeps the fields that describe the last pod.
    let was_asleep = status.is_asleep();
    if !was_asleep {
        status.sleep = None;
        describe_pod(&mut status, observed);
    }
    match report.reason {
        workspace_reason::SLEEPING if !was_asleep => fall_asleep(&mut status, observed, now),
        workspace_reason::WAKING => wake(&mut status),
        _ => {}
    }
    let request = workspace.annotations().get(ANNOTATION_REQUESTED_AT).cloned();
    status.last_handled_reconcile_at = request.or_else(|| status.last_handled_reconcile_at.take());
    set_conditions(&mut status, report, generation, now);
    status.short_revision = status.artifact.as_ref().and_then(|artifact| columns::revision(&artifact.revision));
    status.summary = conditions::summary(&status.conditions);
    status
}

/// Sets the fields that the agent reports. If the agent does not respond, keeps the last values while the same pod
/// exists.
fn describe_pod(status: &mut WorkspaceStatus, observed: &Observed) {
    match &observed.agent {
        Agent::Responded(reply) => {
            status.artifact = observed.in_place().map(|found| with_revision(found, observed));
            status.pod_uid = Some(reply.pod_uid.clone());
            status.agent_start_id = Some(reply.start_id.clone());
            status.pulumi_version = Some(reply.pulumi_version.clone()).filter(|version| !version.is_empty());
            status.config_inputs = config_inputs(status.config_inputs.take(), reply, &observed.workspace.spec);
            status.mounted_inputs = mounted_inputs(&status.mounted_inputs, reply, &observed.workspace.spec);
            status.project_name = Some(project_name(&reply.project_name)).filter(|name| !name.is_empty());
            status.agent_protocol_version = Some(reply.protocol_version);
        }
        Agent::NotCalled | Agent::Unreachable(_) => {
            if observed.pod.as_ref().map(|pod| &pod.uid) != status.pod_uid.as_ref() {
                status.artifact = None;
                status.pod_uid = None;
                status.agent_start_id = None;
                status.pulumi_version = None;
                status.project_name = None;
                status.agent_protocol_version = None;
            }
        }
    }
}

/// Records that the Workspace goes to sleep. Removes the pod UID, so that no run can be bound to the pod that the
/// controller is about to remove. Keeps all other fields from the agent, so that sleeping does not trigger a run of
/// the Stack.
fn fall_asleep(status: &mut WorkspaceStatus, observed: &Observed, now: Timestamp) {
    status.pod_uid = None;
    status.agent_start_id = None;
    status.sleep = Some(WorkspaceSleep { since: Some(Time(now)), input_versions: observed.idle.inputs.versions() });
}

/// Records that the Workspace wakes up. Removes the source, because the new pod does not contain a source yet.
fn wake(status: &mut WorkspaceStatus) {
    status.sleep = None;
    status.artifact = None;
    status.pulumi_version = None;
    status.project_name = None;
    status.agent_protocol_version = None;
}

/// Returns the hash of the configuration inputs that the agent reports, or the previous hash if the agent cannot
/// compute it. All pods of a Workspace compute the same hash from the same content. The controller therefore detects
/// a change even if no pod existed when the change occurred.
fn config_inputs(before: Option<String>, reply: &StatusReply, spec: &WorkspaceSpec) -> Option<String> {
    let has_inputs = !config::config_files(spec).is_empty();
    let reported = Some(reply.config_inputs.clone()).filter(|word| !word.is_empty());
    reported.or(before).filter(|_| has_inputs)
}

/// Returns the hash that the agent reports for each mounted Secret and ConfigMap. If the agent reports no hash for an
/// object, returns the previous hash.
fn mounted_inputs(
    before: &BTreeMap<String, String>,
    reply: &StatusReply,
    spec: &WorkspaceSpec,
) -> BTreeMap<String, String> {
    let word = |(object, directory): (String, String)| {
        let reported = reply.mounted_inputs.get(&directory).filter(|word| !word.is_empty());
        let word = reported.or_else(|| before.get(&object))?.clone();
        Some((object, word))
    };
    let max_inputs = usize::try_from(bounds::MOUNTED_INPUTS).unwrap_or(usize::MAX);
    environment::directories(spec).into_iter().filter_map(word).take(max_inputs).collect()
}

/// Removes control characters from the project name that the agent reports and limits its length, because the agent
/// is not trusted.
fn project_name(reported: &str) -> String {
    reported.chars().filter(|c| !c.is_control()).take(MAX_PROJECT_NAME).collect()
}

/// Adds the revision from the spec or from the previous status. The agent reports only the digest and the directory.
fn with_revision(found: ArtifactReference, observed: &Observed) -> ArtifactReference {
    let normal = observed.desired.as_ref().ok().map(|desired| &desired.source.artifact);
    let is_desired = normal.is_some_and(|desired| desired.digest == found.digest && desired.dir == found.dir);
    if let Some(desired) = observed.workspace.spec.artifact.as_ref().filter(|_| is_desired) {
        return desired.clone();
    }
    let before = observed.workspace.status.as_ref().and_then(|status| status.artifact.as_ref());
    let normal_dir = |dir: &str| Directory::from_str(dir).is_ok_and(|dir| dir.as_str() == found.dir);
    match before.filter(|before| before.digest == found.digest && normal_dir(&before.dir)) {
        Some(before) => before.clone(),
        None => found,
    }
}

/// Sets the conditions that a report describes.
pub fn set_conditions(status: &mut WorkspaceStatus, report: &Report, generation: i64, now: Timestamp) {
    let condition = |kind, status| ConditionUpdate { kind, status, reason: report.reason, message: &report.message };
    let ready = if report.state == State::Ready { Status::True } else { Status::False };
    conditions::set(&mut status.conditions, &condition(conditions::READY, ready), generation, now);
    let others = [
        (conditions::RECONCILING, matches!(report.state, State::Working | State::Failing)),
        (conditions::STALLED, report.state == State::Stalled),
    ];
    for (kind, holds) in others {
        if holds {
            conditions::set(&mut status.conditions, &condition(kind, Status::True), generation, now);
        } else {
            conditions::remove(&mut status.conditions, kind);
        }
    }
}

/// Returns an event if the state has changed and the new state is not `Working`.
fn event(workspace: &Workspace, report: &Report) -> Option<Event> {
    let before = workspace.status.as_ref().and_then(|status| conditions::find(&status.conditions, conditions::READY));
    let was = before.map(|ready| (ready.status.as_str(), ready.reason.as_str()));
    let is = (if report.state == State::Ready { "True" } else { "False" }, report.reason);
    let kind = match report.state {
        State::Ready => EventKind::Normal,
        State::Failing | State::Stalled => EventKind::Warning,
        State::Working => return None,
    };
    (was != Some(is)).then(|| {
        let event = Event::new(workspace, kind, event_reason(report), report.message.clone());
        match &workspace.spec.artifact {
            Some(artifact) => event.with("auto.pulumi.com/revision", artifact.revision.as_str()),
            None => event,
        }
    })
}

/// Returns an event that lists the template fields that have no effect, once per generation of the Workspace.
fn without_effect(workspace: &Workspace) -> Option<Event> {
    let observed = workspace.status.as_ref().and_then(|status| status.observed_generation);
    let template = workspace.spec.pod_template.as_ref().filter(|_| observed != workspace.metadata.generation)?;
    let fields = init_containers::without_effect(template);
    let message = format!(
        "podTemplate: the init container {FETCH_CONTAINER} ignores {}, because the controller fetches the source. Put known_hosts and \
         ca.crt into the Secret with the credentials",
        fields.join(", ")
    );
    (!fields.is_empty()).then(|| Event::new(workspace, EventKind::Warning, NO_EFFECT, message))
}

/// Returns an event if the controller does not protect the pod from evictions during a run, once per generation of the
/// Workspace.
fn unprotected(observed: &Observed) -> Option<Event> {
    let workspace = &observed.workspace;
    let reported = workspace.status.as_ref().and_then(|status| status.observed_generation);
    let is_unprotected = observed.desired.as_ref().is_ok_and(|desired| desired.rendered.budget.is_none());
    let message = "runs are not protected from evictions, so a node drain or an autoscaler can interrupt a run: to protect \
                   them, set spec.evictionProtection or the flag --eviction-protection to true";
    (is_unprotected && reported != workspace.metadata.generation)
        .then(|| Event::new(workspace, EventKind::Warning, NOT_PROTECTED, message))
}

fn event_reason(report: &Report) -> &'static str {
    match report.reason {
        workspace_reason::SLEEPING => workspace_reason::SLEEPING,
        _ if report.state == State::Ready => "Initialized",
        workspace_reason::CONNECTION_FAILED => "ConnectionFailure",
        workspace_reason::INSTALLATION_FAILED => "InstallationFailure",
        reason => reason,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn ineffective_template_fields_are_reported_once_per_generation() {
        let has_event = |observed: Option<i64>, pod_template: serde_json::Value| {
            let workspace: Workspace = serde_json::from_value(json!({
                "metadata": {"name": "app", "namespace": "team", "generation": 2}, "spec": {"podTemplate": pod_template},
                "status": {"observedGeneration": observed},
            }))
            .expect("valid Workspace");
            without_effect(&workspace).is_some()
        };
        let fetch = |fields| json!({"spec": {"initContainers": [fields]}});
        let added = || fetch(json!({"name": "fetch", "env": [{"name": "A", "value": "b"}]}));
        for (observed, template, expected) in [
            (None, added(), true),
            (Some(1), added(), true),
            (Some(2), added(), false),
            (Some(1), fetch(json!({"name": "fetch", "resources": {}})), false),
            (Some(1), json!(null), false),
        ] {
            assert_eq!(has_event(observed, template.clone()), expected, "{observed:?} {template}");
        }
    }

    #[test]
    fn the_last_reported_hash_of_the_config_inputs_is_kept() {
        let config = json!([{"key": "a", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]);
        let spec =
            |config| serde_json::from_value(json!({"stacks": [{"name": "dev", "config": config}]})).expect("valid");
        let (with, without): (WorkspaceSpec, WorkspaceSpec) = (spec(config), spec(json!([])));
        for (before, reported, spec, expected) in [
            (None, "", &with, None),
            (None, "new", &with, Some("new")),
            (Some("old"), "new", &with, Some("new")),
            (Some("old"), "", &with, Some("old")),
            (Some("old"), "", &without, None),
            (Some("old"), "invented", &without, None),
        ] {
            let reply = StatusReply { config_inputs: reported.to_owned(), ..StatusReply::default() };
            let found = config_inputs(before.map(str::to_owned), &reply, spec);
            assert_eq!(found.as_deref(), expected, "{before:?} {reported:?}");
        }
    }

    #[test]
    fn the_last_reported_hash_of_each_mounted_object_is_kept() {
        let spec: WorkspaceSpec = serde_json::from_value(json!({
            "envFrom": [{"secretRef": {"name": "aws"}}, {"configMapRef": {"name": "aws"}}],
            "stacks": [{"name": "dev", "config": [{"key": "a", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]}],
        }))
        .expect("valid spec");
        let map = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
            pairs.iter().map(|(key, word)| ((*key).to_owned(), (*word).to_owned())).collect()
        };
        let directories = environment::directories(&spec);
        let reported = [(&directories["Secret/aws"], "new"), (&directories["Secret/s"], "")];
        let reported = reported.map(|(directory, word)| (directory.clone(), word.to_owned()));
        let reply = StatusReply { mounted_inputs: reported.into(), ..StatusReply::default() };
        let before = map(&[("Secret/aws", "old"), ("Secret/s", "kept"), ("Secret/gone", "old")]);
        let expected = map(&[("Secret/aws", "new"), ("Secret/s", "kept")]);
        assert_eq!(mounted_inputs(&before, &reply, &spec), expected);
    }
}

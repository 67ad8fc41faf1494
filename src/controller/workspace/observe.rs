//! Reads the state that a step of a Workspace reconciliation needs from the API server and from the agent in the pod.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;

use super::agent_call::{call_agent, should_call_agent, status_request};
pub(super) use super::agent_reply::Agent;
use super::apply_conflicts::Contested;
use super::context::Context;
use super::environment::run_environment;
use super::idle::{self, Idle};
use super::metadata::is_ours;
use super::missing_pod;
use super::parts::{PartState, Parts, parts};
use super::pod_state::{self, PodState, StartEvent};
use super::policy_packs::{self, DesiredPack};
use super::pool::{PoolTemplate, Pooled, pooled};
use super::render::{Rendered, render};
use super::source::{self, DesiredSource};
use super::spec_error::SpecError;
use crate::api::auto::{ArtifactReference, Update, Workspace};
use crate::api::conditions::{COMPLETE, is_true};
use crate::api::names;
use crate::controller::update::{UpdateGroup, required_protocol_version};
use crate::rpc::client::AgentClient;
use crate::rpc::proto::{Artifact, Candidate, InteractiveSession, PolicyPackState, StatusRequest, Uncached};
use crate::rpc::protocol::{ENVIRONMENT_VERSION, is_new_variable};
use crate::runtime::failpoint;
use crate::runtime::reads::ReadError;
use crate::runtime::reconcile::ReconcileError;
use crate::source::{Origin, Unavailable};

/// Maximum number of minor versions that an agent can be older than the controller.
const SUPPORTED_MINOR_VERSIONS: u64 = 2;

/// State at the start of a step.
#[derive(Clone, Debug)]
pub(super) struct Observed {
    pub workspace: Workspace,
    /// Objects and source that the spec requests, or the reason why the source is not available.
    pub desired: Result<DesiredState, Unavailable>,
    pub service: PartState,
    pub tls: PartState,
    /// State of the Secret that contains the certificate for the pod that the Workspace has taken from a pool.
    pub pooled_tls: PartState,
    /// State of the PodDisruptionBudget.
    pub budget: PartState,
    pub stateful_set: PartState,
    /// Name of the StatefulSet revision that contains the current pod template, or `None` if it is unknown.
    pub template_revision: Option<String>,
    /// Outdated objects that another client changes after each apply. The controller therefore delays the next apply.
    pub contested: Option<Contested>,
    pub pod: Option<PodState>,
    /// Resource version of the pod.
    pub pod_version: Option<String>,
    /// State of the pod in `status.pooledPod`.
    pub pooled: Pooled,
    /// Template of the pool from which the Workspace can take a pod. Set only if the Workspace is sleeping or has taken
    /// a pod.
    pub pool_template: Option<PoolTemplate>,
    /// Event that explains why the pod is missing or starts slowly.
    pub start_event: Option<StartEvent>,
    pub open_runs: Vec<OpenRun>,
    pub agent: Agent,
    /// Time of the first failed call since the last response of the agent, or `None` if the agent is not silent.
    pub silent_since: Option<Timestamp>,
    /// Whether the controller no longer supports the agent version, or the agent is too old for a pending run.
    pub is_agent_too_old: bool,
    /// Delay before the controller can replace an outdated pod, because it has repeatedly replaced the pod for the same
    /// spec.
    pub replacement_pause: Option<Duration>,
    /// Whether the store contains the bytes of the requested artifact, or the source requires no bytes.
    pub artifact_stored: bool,
    /// Whether the namespace is being deleted.
    pub is_namespace_terminating: bool,
    pub idle: Idle,
}

/// Objects and source that the spec requests.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct DesiredState {
    pub rendered: Rendered,
    pub source: DesiredSource,
    pub policy_packs: Vec<DesiredPack>,
}

/// Update whose run is bound but has no recorded result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OpenRun {
    pub name: String,
    pub uid: String,
}

impl Observed {
    /// Returns the first object that has the name of a Workspace object but does not belong to the Workspace.
    pub(super) fn foreign(&self) -> Option<String> {
        let name = self.workspace.name_any();
        let object = names::workspace_object(&name);
        let pooled = self.workspace.pooled_pod().map(|pod| names::pool_pod_tls_secret(&pod.name));
        [
            (self.service, "Service", object.clone()),
            (self.budget, "PodDisruptionBudget", object.clone()),
            (self.stateful_set, "StatefulSet", object),
            (self.tls, "Secret", names::workspace_tls_secret(&name)),
        ]
        .into_iter()
        .chain(pooled.map(|secret| (self.pooled_tls, "Secret", secret)))
        .find(|(part, _, _)| *part == PartState::Foreign)
        .map(|(_, kind, name)| format!("{kind} {name}"))
    }

    /// Returns the name of the Update that has an open run. If that Update is unknown, returns its UID.
    pub(super) fn open_run(&self) -> Option<String> {
        let operation = match &self.agent {
            Agent::Responded(reply) if !reply.open_operation.is_empty() => Some(&reply.open_operation),
            _ => None,
        };
        let named = |uid: &String| self.open_runs.iter().find(|run| &run.uid == uid).map(|run| run.name.clone());
        match operation {
            Some(uid) => Some(named(uid).unwrap_or_else(|| uid.clone())),
            None => self.open_runs.first().map(|run| run.name.clone()),
        }
    }

    /// Returns the interactive session in the pod.
    pub(super) fn interactive_session(&self) -> Option<&InteractiveSession> {
        match &self.agent {
            Agent::Responded(reply) => reply.interactive_session.as_ref(),
            Agent::NotCalled | Agent::Unreachable(_) => None,
        }
    }

    /// Returns which dependencies the dependency cache does not contain, if any.
    pub(super) fn uncached(&self) -> Option<&Uncached> {
        match &self.agent {
            Agent::Responded(reply) => reply.uncached.as_ref(),
            Agent::NotCalled | Agent::Unreachable(_) => None,
        }
    }

    /// Returns the installed source that the agent reports.
    pub(super) fn in_place(&self) -> Option<ArtifactReference> {
        let Agent::Responded(reply) = &self.agent else {
            return None;
        };
        reply.artifact.as_ref().and_then(reference)
    }

    /// Returns the state of a policy pack, or `None` if the agent has not received the pack.
    pub(super) fn policy_pack(&self, pack: &DesiredPack) -> Option<&PolicyPackState> {
        let Agent::Responded(reply) = &self.agent else {
            return None;
        };
        let artifact = Some(pack.to_proto());
        reply.policy_packs.iter().find(|state| state.artifact == artifact)
    }

    /// Returns the source that the agent is installing, and the installation state.
    pub(super) fn candidate(&self) -> Option<(ArtifactReference, &Candidate)> {
        let Agent::Responded(reply) = &self.agent else {
            return None;
        };
        let candidate = reply.candidate.as_ref()?;
        Some((reference(candidate.artifact.as_ref()?)?, candidate))
    }
}

/// Converts an artifact that the agent reports. Returns `None` if the digest is invalid. The agent does not report
/// the revision, so the result has no revision.
fn reference(artifact: &Artifact) -> Option<ArtifactReference> {
    let digest = artifact.digest.parse().ok()?;
    Some(ArtifactReference { digest, revision: String::new(), dir: artifact.directory.clone() })
}

/// Returns the state of a Pulumi Kubernetes Operator agent. If that agent may still be executing a run, returns
/// `Unreachable`, so that the controller delays the deletion of the pod. The run can end during the delay, because
/// the agent ends its run when the operator stops.
fn pko_agent(updates: &[Arc<Update>]) -> Agent {
    match updates.iter().find(|update| update.is_started_by_operator()) {
        Some(update) => Agent::Unreachable(format!(
            "the agent in the pod belongs to the Pulumi Kubernetes Operator and may still be executing run {}",
            update.name_any()
        )),
        None => Agent::NotCalled,
    }
}

/// Reads the complete state. Returns `None` if the Workspace does not exist. `listed` is the Workspace if the caller
/// already has its current version.
pub(super) async fn observe(
    namespace: &str,
    name: &str,
    listed: Option<Workspace>,
    context: &Context,
    now: Timestamp,
) -> Result<Option<(Observed, Option<AgentClient>)>, ReconcileError> {
    let Some((mut workspace, pod)) = workspace_and_pod(namespace, name, listed, context).await? else {
        return Ok(None);
    };
    set_default_service_account(&mut workspace, context);
    let origin = source::resolve(&mut workspace, &context.git);
    let desired = origin.and_then(|origin| desired(name, namespace, &workspace, origin, context));
    let rendered = desired.as_ref().ok().map(|desired| &desired.rendered);
    let pool_template = pool_template(&workspace, desired.as_ref().ok(), context);
    let key = pool_template.as_ref().map(|template| template.key.as_str());
    let pooled = pooled(&workspace, pod.as_ref(), key, desired.is_ok());
    let pod = pod.filter(|pod| is_ours(pod, name) && pooled != Pooled::Lost);
    let state = pod.as_ref().map(pod_state::read);
    let mut found = parts(&workspace, state.as_ref(), rendered, context, now).await?;
    let start_event = start_event(&workspace, &found, rendered, pod.as_ref(), context, now).await?;
    let updates = context.updates.in_group(&UpdateGroup::workspace(namespace, name));
    let (agent, client) = match state.as_ref().filter(|pod| should_call_agent(pod, &workspace, rendered, context)) {
        Some(pod) if pod.has_pko_agent => (pko_agent(&updates), None),
        Some(pod) => {
            let request = if desired.is_ok() { status_request(&workspace, context) } else { StatusRequest::default() };
            call_agent(&workspace, pod, request, context).await
        }
        None => (Agent::NotCalled, None),
    };
    let silent_since = silent_since((namespace, name), state.as_ref(), &agent, context, now);
    let is_agent_too_old = is_too_old_for(&agent, &workspace, &updates);
    // An outdated object or an invalid certificate can be the cause, so the controller reads the objects.
    if (is_agent_too_old || agent.is_unavailable()) && context.memory.verified_parts.end_assumption((namespace, name)) {
        found = parts(&workspace, state.as_ref(), rendered, context, now).await?;
    }
    let open_runs = open_runs_in(state.as_ref().filter(|pod| pod.held), &updates, namespace, context).await?;
    let idle = idle::observe(&workspace, &updates, agent.is_busy(), context, now).await?;
    let observed = Observed {
        idle,
        service: found.service,
        tls: found.tls,
        pooled_tls: found.pooled_tls,
        budget: found.budget,
        stateful_set: found.stateful_set,
        template_revision: found.template_revision,
        contested: found.contested,
        pod: state,
        pod_version: pod.as_ref().and_then(ResourceExt::resource_version),
        pooled,
        pool_template,
        start_event,
        open_runs,
        is_agent_too_old,
        replacement_pause: rendered
            .and_then(|rendered| context.memory.replacements.pause((namespace, name), &rendered.revision_hash)),
        agent,
        silent_since,
        is_namespace_terminating: context.namespaces.is_terminating(namespace).await?,
        artifact_stored: desired.as_ref().is_ok_and(|desired| is_stored(desired, namespace, context)),
        desired,
        workspace,
    };
    Ok(Some((observed, client)))
}

/// Returns the reason why the pod is missing or starts slowly.
async fn start_event(
    workspace: &Workspace,
    found: &Parts,
    rendered: Option<&Rendered>,
    pod: Option<&Pod>,
    context: &Context,
    now: Timestamp,
) -> Result<Option<StartEvent>, ReconcileError> {
    let requested = found.stateful_set_uid.as_deref().map(|uid| (uid, found.pod_requested_at));
    let event = pod_state::find_start_event(workspace, requested, pod, context, now).await?;
    let is_expected = found.stateful_set == PartState::Current && pod_state::is_missing(workspace, pod, now);
    match rendered.filter(|rendered| is_expected && rendered.replicas > 0) {
        Some(rendered) => {
            let namespace = workspace.namespace().unwrap_or_default();
            Ok(missing_pod::check(event, &workspace.pod_name(), &namespace, rendered, context).await)
        }
        None => Ok(event),
    }
}

/// Records whether the agent of the pod is silent. Returns the time of the first failed call.
fn silent_since(
    workspace: (&str, &str),
    pod: Option<&PodState>,
    agent: &Agent,
    context: &Context,
    now: Timestamp,
) -> Option<Timestamp> {
    let silent_pod = pod.filter(|_| agent.is_silent()).map(|pod| pod.uid.as_str());
    context.memory.silences.record(workspace, silent_pod, now)
}

fn set_default_service_account(workspace: &mut Workspace, context: &Context) {
    let account = &mut workspace.spec.service_account_name;
    *account = account.take().filter(|name| !name.is_empty()).or_else(|| context.default_service_account.clone());
}

/// Reads the pod and, if `listed` is `None`, the Workspace. Returns `None` if the Workspace does not exist.
async fn workspace_and_pod(
    namespace: &str,
    name: &str,
    listed: Option<Workspace>,
    context: &Context,
) -> Result<Option<(Workspace, Option<Pod>)>, ReadError> {
    let (reader, pod) = (&context.reader, names::workspace_pod(name));
    let workspace = async {
        match listed {
            Some(listed) => Ok(Some(listed)),
            None => reader.get_opt::<Workspace>(namespace, name).await,
        }
    };
    let (workspace, pod) = tokio::try_join!(workspace, reader.get_opt::<Pod>(namespace, &pod))?;
    let Some(workspace) = workspace else { return Ok(None) };
    let pod = match workspace.pooled_pod() {
        Some(pooled) => reader.get_opt::<Pod>(namespace, &pooled.name).await?,
        None => pod,
    };
    Ok(Some((workspace, pod)))
}

/// Returns the template of the pool from which the Workspace can take a pod. An awake Workspace takes no other pod.
fn pool_template(workspace: &Workspace, desired: Option<&DesiredState>, context: &Context) -> Option<PoolTemplate> {
    let may_take = workspace.is_asleep() && context.pool.is_enabled();
    let desired = desired.filter(|_| may_take || workspace.pooled_pod().is_some())?;
    let authority = context.authority.borrow().clone();
    PoolTemplate::of(&desired.rendered, desired.source.is_in_pod(), authority.bundle_pem())
}

/// Returns the objects and the source that the spec requests. `origin` specifies how to obtain the source, if the
/// caller has already resolved it.
fn desired(
    name: &str,
    namespace: &str,
    workspace: &Workspace,
    origin: Option<Origin>,
    context: &Context,
) -> Result<DesiredState, Unavailable> {
    let invalid = |error: SpecError| Unavailable::Invalid(error.to_string());
    let rendered = render(name, namespace, workspace, &context.pods).map_err(invalid)?;
    let source = source::desired(&workspace.spec).map_err(invalid)?;
    let is_stored = |artifact: &ArtifactReference| context.artifacts.is_granted(&artifact.digest, namespace);
    let policy_packs = policy_packs::desired(&workspace.spec, is_stored).map_err(invalid)?;
    idle::after(&workspace.spec, None).map_err(invalid)?;
    Ok(DesiredState { rendered, source: DesiredSource { origin: origin.or(source.origin), ..source }, policy_packs })
}

fn is_agent_too_old(agent: &Agent) -> bool {
    matches!(agent, Agent::Responded(reply) if is_too_old(&reply.agent_version, failpoint::version()))
}

/// Returns whether the agent is too old to install the policy packs of the Workspace.
fn lacks_policy_packs(agent: &Agent, workspace: &Workspace) -> bool {
    matches!(agent, Agent::Responded(reply) if policy_packs::exceed(&workspace.spec, reply.protocol_version))
}

/// Returns whether the agent is too old for the controller, the Workspace or a pending Update.
fn is_too_old_for(agent: &Agent, workspace: &Workspace, updates: &[Arc<Update>]) -> bool {
    is_agent_too_old(agent)
        || lacks_policy_packs(agent, workspace)
        || lacks_environment(agent, workspace)
        || lacks_required_protocol(agent, workspace, updates)
}

/// Returns whether the agent is too old for the environment of the Workspace. Such an agent rejects the source.
fn lacks_environment(agent: &Agent, workspace: &Workspace) -> bool {
    let Agent::Responded(reply) = agent else { return false };
    reply.protocol_version < ENVIRONMENT_VERSION
        && run_environment(&workspace.spec).is_ok_and(|variables| variables.iter().any(is_new_variable))
}

/// Returns whether a pending Update of the Workspace requires a newer agent.
fn lacks_required_protocol(agent: &Agent, workspace: &Workspace, updates: &[Arc<Update>]) -> bool {
    let Agent::Responded(reply) = agent else { return false };
    let waits = |update: &Update| {
        let status = update.status.as_ref();
        update.metadata.deletion_timestamp.is_none()
            && status.is_none_or(|status| status.run.is_none() && !is_true(&status.conditions, COMPLETE))
    };
    updates.iter().any(|update| waits(update) && required_protocol_version(update, workspace) > reply.protocol_version)
}

/// Returns whether the source requires no bytes, or the store contains the bytes and the namespace may use them.
fn is_stored(desired: &DesiredState, namespace: &str, context: &Context) -> bool {
    desired.source.is_in_pod() || context.artifacts.is_granted(&desired.source.artifact.digest, namespace)
}

/// Returns the open runs of a Workspace whose pod has the finalizer of a run. If the cache contains no open run,
/// reads the Update that last marked the pod from the API server. Otherwise, the controller could release the pod
/// during a run because of a stale cache.
async fn open_runs_in(
    held_pod: Option<&PodState>,
    updates: &[Arc<Update>],
    namespace: &str,
    context: &Context,
) -> Result<Vec<OpenRun>, ReadError> {
    let known = open_runs(updates);
    let Some(pod) = held_pod.filter(|_| known.is_empty()) else { return Ok(known) };
    let Some(uid) = pod.run.as_deref() else { return Ok(known) };
    let is_its = |update: &Update| update.metadata.uid.as_deref() == Some(uid);
    let cached = updates.iter().find(|update| is_its(update)).map(|update| update.name_any());
    let name = match cached.or_else(|| pod.run_update.clone()) {
        Some(name) => Some(name),
        None => context.reader.find_name::<Update>(namespace, uid).await?,
    };
    let live = match name {
        Some(name) => context.reader.get_opt::<Update>(namespace, &name).await?.filter(is_its),
        None => None,
    };
    Ok(open_runs(&live.map(Arc::new).into_iter().collect::<Vec<_>>()))
}

/// Returns the open runs that the Updates of a Workspace record.
fn open_runs(updates: &[Arc<Update>]) -> Vec<OpenRun> {
    let is_open = |update: &Update| {
        let status = update.status.as_ref();
        status.is_some_and(|status| status.run.is_some() && !is_true(&status.conditions, COMPLETE))
    };
    let open = updates.iter().filter(|update| is_open(update));
    open.map(|update| OpenRun { name: update.name_any(), uid: update.uid().unwrap_or_default() }).collect()
}

/// Returns whether the controller no longer supports the agent version. The controller keeps agents whose version is
/// newer or unknown, so that a rollback of the controller does not replace all pods.
fn is_too_old(agent: &str, own: &str) -> bool {
    match (major_and_minor(agent), major_and_minor(own)) {
        (Some((agent_major, _)), Some((own_major, _))) if agent_major != own_major => agent_major < own_major,
        (Some((_, agent_minor)), Some((_, own_minor))) => {
            agent_minor.saturating_add(SUPPORTED_MINOR_VERSIONS) < own_minor
        }
        _ => false,
    }
}

fn major_and_minor(version: &str) -> Option<(u64, u64)> {
    let mut numbers = version.trim_start_matches('v').split(['.', '-', '+']);
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::api::auto::{RunBinding, UpdateKind, UpdateSpec, UpdateStatus, WorkspaceSpec};
    use crate::rpc::proto::StatusReply;
    use crate::rpc::protocol::PROTOCOL_VERSION;

    #[test]
    fn an_agent_without_support_for_a_waiting_run_is_too_old() {
        let mut workspace = Workspace::new("app", WorkspaceSpec::default());
        workspace.metadata.namespace = Some("apps".to_owned());
        let update = |targets: &[&str], change: fn(&mut Update)| {
            let target = targets.iter().map(|urn| (*urn).to_owned()).collect();
            let spec = UpdateSpec { workspace_name: "app".to_owned(), target, ..UpdateSpec::default() };
            let mut update = Update::new("app-1", spec);
            update.metadata.namespace = Some("apps".to_owned());
            change(&mut update);
            update
        };
        let is_open = |update: &mut Update| {
            update.status = Some(UpdateStatus { run: Some(RunBinding::default()), ..UpdateStatus::default() });
        };
        let rows = [
            ("plain", 0, update(&[], |_| ()), false),
            ("with targets", 0, update(&["urn"], |_| ()), true),
            ("with targets that the agent supports", PROTOCOL_VERSION, update(&["urn"], |_| ()), false),
            ("a destroy", 1, update(&[], |update| update.spec.kind = UpdateKind::Destroy), true),
            ("the run is open", 0, update(&["urn"], is_open), false),
        ];
        for (name, protocol_version, update, expected) in rows {
            let agent = Agent::Responded(Box::new(StatusReply { protocol_version, ..StatusReply::default() }));
            assert_eq!(lacks_required_protocol(&agent, &workspace, &[Arc::new(update)]), expected, "{name}");
        }
    }

    #[test]
    fn an_agent_without_support_for_the_environment_is_too_old() {
        let rows = [
            (json!([{"name": "A", "value": "1"}]), 7, false),
            (json!([{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}]), 7, false),
            (json!([{"name": "A", "value": "$(B)"}]), 7, true),
            (json!([{"name": "A", "value": "$(B)"}]), PROTOCOL_VERSION, false),
        ];
        for (env, protocol_version, expected) in rows {
            let spec = serde_json::from_value(json!({"env": env})).expect("valid spec");
            let agent = Agent::Responded(Box::new(StatusReply { protocol_version, ..StatusReply::default() }));
            assert_eq!(lacks_environment(&agent, &Workspace::new("app", spec)), expected, "{env}");
        }
    }

    #[test]
    fn agents_of_the_last_two_minor_versions_are_not_replaced() {
        let rows = [
            ("1.5.0", "1.5.3", false),
            ("1.4.9", "1.5.0", false),
            ("1.3.0", "1.5.0", false),
            ("1.2.9", "1.5.0", true),
            ("0.9.0", "1.0.0", true),
            ("1.6.0", "1.5.0", false),
            ("2.0.0", "1.5.0", false),
            ("v1.2.0-rc.1", "1.5.0", true),
            ("", "1.5.0", false),
            ("nonsense", "1.5.0", false),
        ];
        for (agent, own, expected) in rows {
            assert_eq!(is_too_old(agent, own), expected, "agent {agent}, controller {own}");
        }
        let own = crate::runtime::failpoint::version();
        assert!(major_and_minor(own).is_some(), "{own}");
    }
}

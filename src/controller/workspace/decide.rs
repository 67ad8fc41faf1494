//! Selects the next action for a Workspace. All functions are pure: they use no client and no clock.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;

use super::observe::{Agent, DesiredState, Observed};
use super::parts::PartState;
use super::pod_state::{PodState, StartEvent};
use super::policy_packs::DesiredPack;
use super::pool::Pooled;
use super::report::Report;
use super::sleep::{self, SleepDecision};
use super::source::DesiredSource;
use super::{config, environment};
use crate::api::auto::ArtifactReference;
use crate::api::conditions::{READY, find, workspace_reason as reason};
use crate::api::names::WORKSPACE_FINALIZER;
use crate::pulumi::cli;
use crate::runtime::field_managers;

/// Timeout of a silent agent, in seconds. After the timeout, the controller deletes an outdated pod without draining
/// the agent.
const SILENT_SECONDS: i64 = 120;

/// Startup timeout of the init container `fetch`, in seconds. After the timeout, the controller reports that the
/// container is unreachable.
const FETCH_START_SECONDS: i64 = 10;

/// Timeout for the input hashes after the Workspace has woken up, in seconds. The kubelet normally needs less than a
/// second to mount the inputs key in a pod from a pool.
const INPUTS_KEY_SECONDS: i64 = 30;

/// Next action for a Workspace. The actions `Ignore`, `RemoveFinalizer` and `Report` complete the reconciliation.
/// After any other successful action, the controller selects the next action.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Action {
    /// Do nothing, because the Workspace is being deleted and has no finalizer, or because the Pulumi Kubernetes
    /// Operator manages the Workspace.
    Ignore,
    /// Take over the fields that the Pulumi Kubernetes Operator manages, such as status fields.
    TakeOver,
    AddFinalizer,
    /// Apply the objects that are missing or outdated.
    Apply {
        service: bool,
        tls: bool,
        budget: bool,
        stateful_set: bool,
    },
    /// Drain the agent. A drained agent starts no new run.
    Drain,
    /// Delete the pod. The StatefulSet controller then creates a new pod, unless the StatefulSet is being deleted or
    /// the deleted pod came from a pool.
    DeletePod {
        uid: String,
    },
    /// Make the StatefulSet controller create the missing pod immediately, and report the state.
    RequestPod(Report),
    /// Remove the finalizer of the completed run from a pod that is being deleted.
    RemovePodFinalizer,
    /// Download the requested source into the store.
    Fetch,
    /// Send the source to the agent.
    PutSource {
        artifact: ArtifactReference,
    },
    /// Send a policy pack to the agent.
    PutPolicyPack {
        pack: DesiredPack,
    },
    /// Delete the pod without a grace period, because its namespace is being deleted.
    DeleteIdlePod {
        pod: String,
        uid: String,
        /// Resource version of the pod. A run that starts at the same time changes the pod first.
        version: String,
    },
    /// Record that the Workspace is sleeping. The next steps remove the pod.
    Sleep,
    /// Record that the Workspace is awake, with the given reason. The next steps assign a pod from a pool or
    /// create a pod.
    Wake(String),
    /// Assign the pod in `status.pooledPod` to the Workspace.
    TakePod {
        /// Resource version of the pod.
        version: String,
    },
    /// Remove `status.pooledPod`, so that the StatefulSet creates a pod.
    ForgetPod,
    DeleteStatefulSet,
    /// Delete the remaining objects.
    DeleteParts {
        service: bool,
        tls: bool,
        budget: bool,
    },
    RemoveFinalizer,
    /// Report the state, and wait for a change or for the requeue interval.
    Report(Report),
}

impl Action {
    /// Returns the name of the agent call if the action changes the state of the agent.
    pub(super) fn agent_call(&self) -> Option<&'static str> {
        match self {
            Action::Drain => Some("Drain"),
            Action::PutSource { .. } => Some("PutSource"),
            Action::PutPolicyPack { .. } => Some("PutPolicyPack"),
            _ => None,
        }
    }
}

/// Selects the next action for the observed state.
pub(super) fn decide(observed: &Observed, now: Timestamp) -> Action {
    let workspace = &observed.workspace;
    let has_finalizer = workspace.finalizers().iter().any(|finalizer| finalizer == WORKSPACE_FINALIZER);
    if workspace.metadata.deletion_timestamp.is_some() {
        return if has_finalizer { clean_up(observed, now) } else { Action::Ignore };
    }
    if let Some(pod) = pod_of_terminating_namespace(observed) {
        let version = observed.pod_version.clone().unwrap_or_default();
        return Action::DeleteIdlePod { pod: pod.name.clone(), uid: pod.uid.clone(), version };
    }
    if field_managers::is_applied_by_operator(workspace) {
        // The Stack controller takes over the Workspace. The change to the Workspace then triggers a reconciliation.
        return Action::Ignore;
    }
    if field_managers::is_managed_by_operator(workspace) {
        return Action::TakeOver;
    }
    if !has_finalizer {
        return Action::AddFinalizer;
    }
    // The agent in a free pod cannot start with the Secret of another owner.
    let has_foreign_secret =
        matches!(observed.pooled, Pooled::Free { .. }) && observed.pooled_tls == PartState::Foreign;
    if observed.pooled == Pooled::Lost || has_foreign_secret {
        return Action::ForgetPod;
    }
    if let Some(why) = sleep::wake_reason(observed) {
        return Action::Wake(why);
    }
    let desired = match &observed.desired {
        Ok(desired) => desired,
        Err(why) => return Action::Report(Report::no_source(why)),
    };
    if let Some(foreign) = observed.foreign() {
        return Action::Report(Report::foreign(&foreign));
    }
    if sleep::needs_drain(observed) {
        return Action::Drain;
    }
    let is_due = |part: PartState| match part {
        PartState::Current | PartState::NotNeeded => false,
        PartState::Outdated => observed.contested.is_none(),
        PartState::Missing | PartState::Foreign | PartState::ManagedByOperator => true,
    };
    let apply = Action::Apply {
        service: is_due(observed.service),
        tls: observed.tls != PartState::Current || observed.pooled_tls != PartState::Current,
        budget: is_due(observed.budget),
        stateful_set: is_due(observed.stateful_set),
    };
    if apply != (Action::Apply { service: false, tls: false, budget: false, stateful_set: false }) {
        return apply;
    }
    match (workspace_pod(observed, desired, now), &observed.contested) {
        (Action::Report(report), Some(contested)) => Action::Report(report.with_contested(contested)),
        (action, _) => action,
    }
}

/// Selects the action for an agent that ignores a call. Such an agent is as unreliable as a silent agent: if the pod must
/// be replaced and no run is open, the controller deletes the pod after the same timeout. `silent_since` must contain the
/// time of the first ignored call. Returns `None` if the controller must repeat the call later.
pub(super) fn decide_with_ignored_call(observed: &mut Observed, now: Timestamp) -> Option<Action> {
    observed.agent = Agent::Unreachable(String::new());
    match decide(observed, now) {
        Action::Report(report) if report.reason == reason::CONNECTION_FAILED => None,
        action => Some(action),
    }
}

/// Returns the pod of a Workspace whose namespace is being deleted, if no run requires the pod. The Kubernetes
/// namespace controller starts to delete objects after five seconds. If it finds a pod, it deletes the other objects
/// only after half of the pod's termination grace period, even if the pod terminates earlier.
fn pod_of_terminating_namespace(observed: &Observed) -> Option<&PodState> {
    let is_required = observed.open_run().is_some()
        || observed.idle.pending_update.is_some()
        || observed.interactive_session().is_some();
    let pod = observed.pod.as_ref().filter(|pod| !pod.terminating && !pod.held)?;
    // The agent can be executing a command of a user.
    let may_be_busy = pod.running && observed.agent.is_silent();
    (observed.is_namespace_terminating && !is_required && !may_be_busy).then_some(pod)
}

/// Selects the action for the pod and its source. The caller has already checked all other objects: either an object
/// is current, or its next apply is delayed.
fn workspace_pod(observed: &Observed, desired: &DesiredState, now: Timestamp) -> Action {
    if let Some(action) = asleep(observed, now) {
        return action;
    }
    if let Pooled::Free { version } = &observed.pooled {
        return Action::TakePod { version: version.clone() };
    }
    let Some(pod) = &observed.pod else {
        let report = Report::no_pod(observed.start_event.as_ref(), not_ready_for(observed, now));
        return match observed.start_event {
            Some(StartEvent::Resolved) => Action::RequestPod(report),
            _ => Action::Report(report),
        };
    };
    if pod.terminating {
        return terminating_pod(observed, pod, reason::ROLLING_UPDATE);
    }
    let is_other_revision = pod.revision_hash.as_deref() != Some(&desired.rendered.revision_hash);
    if is_other_revision && observed.contested.as_ref().is_some_and(|contested| contested.stateful_set) {
        return Action::Report(Report::contested_pod());
    }
    let draining = matches!(&observed.agent, Agent::Responded(reply) if reply.draining);
    if draining || observed.pooled == Pooled::Ended || fails_with_earlier_template(observed, pod) {
        return retire(observed, pod, reason::ROLLING_UPDATE, now);
    }
    if is_other_revision || observed.is_agent_too_old {
        return match observed.replacement_pause {
            Some(pause) => Action::Report(still_outdated(observed, pod, is_other_revision, pause)),
            None => retire(observed, pod, reason::ROLLING_UPDATE, now),
        };
    }
    if let Some(problem) = pod.problem.as_ref().filter(|_| !pod.ready) {
        return Action::Report(match pod.unschedulable {
            true => Report::unschedulable(&pod.name, problem),
            false => Report::pod_failed(&pod.name, problem),
        });
    }
    if let Some(since) = pod.fetching {
        return fetching(observed, pod, since, &desired.source, now);
    }
    if let Some(container) = &pod.initializing {
        return Action::Report(Report::initializing(&pod.name, Some(container)));
    }
    match &observed.agent {
        Agent::Unreachable(message) if pod.ready || is_silent_for_long(observed, now) => {
            Action::Report(Report::unreachable(message))
        }
        // If the pod is not ready, the agent is starting, for example after a restart of the container.
        Agent::NotCalled | Agent::Unreachable(_) => {
            Action::Report(Report::starting(&pod.name, observed.start_event.as_ref()))
        }
        Agent::Responded(reply) if reply.pod_uid != pod.uid => Action::Report(another_pod(&reply.pod_uid)),
        Agent::Responded(reply) => responded(observed, &reply.pulumi_version, &desired.source, now),
    }
}

/// Returns the report about a pod that is outdated although the controller has repeatedly replaced it. Without a delay
/// between the replacements, the pods of all Workspaces would be replaced endlessly if an administrator upgraded the
/// controller without the agent image.
fn still_outdated(observed: &Observed, pod: &PodState, is_other_revision: bool, pause: Duration) -> Report {
    match &observed.agent {
        Agent::Responded(reply) if !is_other_revision => {
            Report::agent_still_too_old(&pod.name, &reply.agent_version, pause)
        }
        _ => Report::pod_still_outdated(&pod.name, pause),
    }
}

/// Returns whether a pod fails to start and was created from an earlier template of the StatefulSet. The revision hash
/// excludes the defaults of the controller, such as the agent image. Without this check, the pod would keep an image
/// that cannot be pulled, even after an administrator has corrected the default.
fn fails_with_earlier_template(observed: &Observed, pod: &PodState) -> bool {
    let is_earlier = match (&pod.template_revision, &observed.template_revision) {
        (Some(of_pod), Some(current)) => of_pod != current,
        _ => false,
    };
    let fails = pod.problem.is_some() || matches!(observed.start_event, Some(StartEvent::Warning(_)));
    let is_contested = observed.contested.as_ref().is_some_and(|contested| contested.stateful_set);
    let status = observed.workspace.status.as_ref();
    let has_started = pod.running
        || pod.ready
        || pod.fetching.is_some()
        || pod.initializing.is_some()
        || status.is_some_and(|status| status.pod_uid.as_ref() == Some(&pod.uid));
    is_earlier && fails && !has_started && !is_contested
}

/// Selects the action for a sleeping Workspace, whose StatefulSet has no replicas. Returns `None` if the Workspace is
/// awake.
fn asleep(observed: &Observed, now: Timestamp) -> Option<Action> {
    let status = observed.workspace.status.as_ref().filter(|status| status.is_asleep())?;
    if observed.pod.as_ref().is_some_and(|pod| pod.terminating && pod.held && !pod.running) {
        return Some(Action::RemovePodFinalizer);
    }
    if let Some(pod) = sleep::pod_from_pool(observed) {
        return Some(Action::DeletePod { uid: pod.uid.clone() });
    }
    if matches!(observed.pooled, Pooled::Free { .. }) {
        return Some(Action::ForgetPod);
    }
    let since = status.sleep.as_ref().and_then(|sleep| sleep.since.as_ref());
    Some(Action::Report(Report::sleeping(since.map_or(now, |since| since.0))))
}

/// Selects the action for a pod whose agent has responded. Delivers no source if the controller does not support the
/// version of the Pulumi CLI.
fn responded(observed: &Observed, cli: &str, source: &DesiredSource, now: Timestamp) -> Action {
    match cli::is_too_old(cli) {
        true => Action::Report(Report::cli_too_old(cli)),
        false => self::source(observed, source, now),
    }
}

fn another_pod(uid: &str) -> Report {
    Report::unreachable(&format!("the agent of another pod responded (UID {uid})"))
}

/// Selects the action for a pod whose init container `fetch` is running. The container exits only after it has
/// received the source, so the controller delivers the source even if the source is already installed.
fn fetching(observed: &Observed, pod: &PodState, since: Timestamp, desired: &DesiredSource, now: Timestamp) -> Action {
    let starting = || Action::Report(Report::fetch_starting(&pod.name));
    let given = observed.workspace.status.as_ref().is_some_and(|status| {
        status.pod_uid.as_ref() == Some(&pod.uid)
            && find(&status.conditions, READY).is_some_and(|ready| ready.reason == reason::INITIALIZING)
    });
    match &observed.agent {
        Agent::Responded(reply) if reply.pod_uid != pod.uid => Action::Report(another_pod(&reply.pod_uid)),
        Agent::Responded(_) => deliver(observed, desired),
        // The container has exited, but the kubelet has not reported the exit yet.
        _ if given => Action::Report(Report::initializing(&pod.name, None)),
        Agent::Unreachable(message) if now.as_second() - since.as_second() > FETCH_START_SECONDS => {
            Action::Report(Report::unreachable(message))
        }
        Agent::NotCalled | Agent::Unreachable(_) => starting(),
    }
}

/// Selects the action for the source in a pod whose agent has responded.
fn source(observed: &Observed, source: &DesiredSource, now: Timestamp) -> Action {
    let desired = &source.artifact;
    let is_desired = |found: &ArtifactReference| found.digest == desired.digest && found.dir == desired.dir;
    let candidate = observed.candidate();
    if let Some((_, candidate)) = candidate.as_ref().filter(|(artifact, _)| is_desired(artifact)) {
        return Action::Report(Report::install_progress(desired, candidate, installing_for(observed, now)));
    }
    let run = observed.open_run();
    // If the agent is installing a different source (the candidate), the candidate would replace the desired source.
    // The controller must therefore send the desired source again. While a run is open, this is unnecessary, because
    // the agent does not replace the source during a run.
    if observed.in_place().is_some_and(|found| is_desired(&found)) && (candidate.is_none() || run.is_some()) {
        if awaits_inputs_key(observed, now) {
            return Action::Report(Report::mounting());
        }
        return policy_packs(observed, now).unwrap_or_else(|| match sleep::decision(observed, now) {
            SleepDecision::Now => Action::Sleep,
            SleepDecision::Stay | SleepDecision::After(_) => {
                Action::Report(ready(observed, observed.workspace.spec.artifact.as_ref().unwrap_or(desired)))
            }
        });
    }
    if let Some(run) = run {
        return Action::Report(Report::source_waits_for_run(desired, &run));
    }
    if let Some(session) = observed.interactive_session() {
        return Action::Report(Report::source_waits_for_session(desired, session));
    }
    deliver(observed, source)
}

/// Returns whether the agent in a pod from a pool does not report the input hashes yet. If a run started before the
/// agent reports these hashes, the controller would record the input hashes of the previous pod for this run. Changed
/// inputs would then trigger a second run.
fn awaits_inputs_key(observed: &Observed, now: Timestamp) -> bool {
    let Agent::Responded(reply) = &observed.agent else { return false };
    let spec = &observed.workspace.spec;
    let lacks_hashes = (reply.config_inputs.is_empty() && !config::config_files(spec).is_empty())
        || (reply.mounted_inputs.is_empty() && !environment::directories(spec).is_empty());
    let conditions = observed.workspace.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    let woken = find(conditions, READY).filter(|ready| ready.status != "True");
    let is_recent =
        woken.is_some_and(|ready| now.as_second() - ready.last_transition_time.0.as_second() < INPUTS_KEY_SECONDS);
    observed.pooled == Pooled::Taken && lacks_hashes && is_recent
}

/// Selects the action for the policy packs of a pod that has the requested source. Returns `None` if all packs are
/// installed. The controller delivers the packs one after another, after the source.
fn policy_packs(observed: &Observed, now: Timestamp) -> Option<Action> {
    let packs = observed.desired.as_ref().map(|desired| desired.policy_packs.as_slice()).unwrap_or_default();
    let run = observed.open_run();
    let mut report = None;
    for pack in packs {
        match (observed.policy_pack(pack), &run) {
            (Some(state), _) if state.installed => {}
            (Some(state), _) => {
                report.get_or_insert_with(|| Report::pack_progress(&pack.name, state, installing_for(observed, now)));
            }
            (None, Some(run)) => return Some(Action::Report(Report::pack_waits_for_run(&pack.name, run))),
            (None, None) if pack.is_stored => return Some(Action::PutPolicyPack { pack: pack.clone() }),
            (None, None) => return Some(Action::Report(Report::pack_missing(&pack.name))),
        }
    }
    report.map(Action::Report)
}

/// Selects the action that either delivers the source to the agent or downloads the source into the store.
fn deliver(observed: &Observed, source: &DesiredSource) -> Action {
    match &source.origin {
        _ if observed.artifact_stored => Action::PutSource { artifact: source.artifact.clone() },
        Some(_) => Action::Fetch,
        // The controller that set the artifact in the spec downloads the source and then requeues the Workspace.
        None => Action::Report(Report::artifact_missing(&source.artifact)),
    }
}

/// Returns the report that the source is installed. If an interactive session exists, the report also describes the
/// session, because new runs wait until the session ends.
fn ready(observed: &Observed, artifact: &ArtifactReference) -> Report {
    let report = match observed.uncached() {
        Some(uncached) => Report::ready(artifact).with_uncached(uncached),
        None => Report::ready(artifact),
    };
    match observed.interactive_session() {
        Some(session) => report.with_session(session),
        None => report,
    }
}

/// Selects the next action for a pod that the controller replaces. The controller deletes the pod when no run is
/// open, no interactive session exists, and the agent is either drained or silent for [`SILENT_SECONDS`].
fn retire(observed: &Observed, pod: &PodState, why: &'static str, now: Timestamp) -> Action {
    if matches!(&observed.agent, Agent::Responded(reply) if !reply.draining) {
        return Action::Drain;
    }
    if let Some(run) = observed.open_run() {
        return Action::Report(Report::pod_waits_for_run(why, pod, &run));
    }
    if let Some(session) = observed.interactive_session() {
        return Action::Report(Report::pod_waits_for_session(why, &pod.name, session));
    }
    match &observed.agent {
        // A silent agent can be executing a run that the controller has not recorded yet, or a command of a user.
        Agent::Unreachable(message) if pod.running && !is_silent_for_long(observed, now) => {
            Action::Report(Report::unreachable(message))
        }
        _ => Action::DeletePod { uid: pod.uid.clone() },
    }
}

/// Returns the time in whole seconds since the Workspace first reported that the source is being installed.
fn installing_for(observed: &Observed, now: Timestamp) -> Duration {
    let conditions = observed.workspace.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    let installing = find(conditions, READY).filter(|ready| ready.reason == reason::INSTALLING);
    let seconds = installing.map_or(0, |ready| now.as_second() - ready.last_transition_time.0.as_second());
    Duration::from_secs(u64::try_from(seconds).unwrap_or_default())
}

/// Returns the time since the condition `Ready` last changed, or zero if the Workspace is ready.
fn not_ready_for(observed: &Observed, now: Timestamp) -> Duration {
    let conditions = observed.workspace.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    let waiting = find(conditions, READY).filter(|ready| ready.status != "True");
    let seconds = waiting.map_or(0, |ready| now.as_second() - ready.last_transition_time.0.as_second());
    Duration::from_secs(u64::try_from(seconds).unwrap_or_default())
}

fn is_silent_for_long(observed: &Observed, now: Timestamp) -> bool {
    observed.silent_since.is_some_and(|since| now.as_second() - since.as_second() > SILENT_SECONDS)
}

/// Selects the action for a pod that is being deleted. Removes the finalizer if the run has completed, because the
/// finalizer would block the deletion.
fn terminating_pod(observed: &Observed, pod: &PodState, why: &'static str) -> Action {
    match observed.open_run() {
        Some(run) if pod.held => Action::Report(Report::pod_waits_for_run(why, pod, &run)),
        None if pod.held && !pod.running => Action::RemovePodFinalizer,
        _ => Action::Report(Report::pod_terminating(why, &pod.name)),
    }
}

/// Selects the action for a Workspace that is being deleted. When no run is open, the controller deletes the
/// StatefulSet, then the pod, and then all other objects.
fn clean_up(observed: &Observed, now: Timestamp) -> Action {
    if let Some(pod) = observed.pod.as_ref().filter(|pod| !pod.terminating) {
        match retire(observed, pod, reason::DELETING, now) {
            waits @ (Action::Drain | Action::Report(_)) => return waits,
            // The garbage collector would delete the pod of the StatefulSet with the complete grace period.
            delete if pod.short_grace_seconds.is_some() => return delete,
            _ => {}
        }
    }
    if let Some(run) = observed.open_run() {
        return Action::Report(match observed.pod.as_ref().filter(|pod| pod.terminating) {
            Some(pod) => Report::pod_waits_for_run(reason::DELETING, pod, &run),
            None => Report::deletion_waits_for_run(&run),
        });
    }
    if observed.stateful_set.is_ours() {
        return Action::DeleteStatefulSet;
    }
    match &observed.pod {
        Some(pod) if pod.terminating => return terminating_pod(observed, pod, reason::DELETING),
        Some(pod) => return Action::DeletePod { uid: pod.uid.clone() },
        None => {}
    }
    match (observed.service.is_ours(), observed.tls.is_ours(), observed.budget.is_ours()) {
        (false, false, false) => Action::RemoveFinalizer,
        (service, tls, budget) => Action::DeleteParts { service, tls, budget },
    }
}

#[cfg(test)]
mod tests;

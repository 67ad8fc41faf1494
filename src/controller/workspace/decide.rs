//! Decides the next action for a Workspace. Pure functions: no client, no clock.

use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;

use super::observe::{Agent, Observed, WantedState};
use super::parts::Part;
use super::pod_state::PodState;
use super::report::Report;
use super::source::WantedSource;
use crate::api::auto::ArtifactReference;
use crate::api::conditions::{READY, find, workspace_reason as reason};
use crate::api::names::WORKSPACE_FINALIZER;
use crate::pulumi::cli;
use crate::runtime::field_managers;

/// Seconds without an answer after which a stale pod is replaced without draining its agent.
const SILENT_SECONDS: i64 = 120;

/// Seconds that the init container `fetch` may take until it answers.
const FETCH_START_SECONDS: i64 = 10;

/// Next action. All actions except `Report` and `Ignore` are followed by another pass.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Action {
    /// The Workspace is gone, has lost its finalizer during deletion, or belongs to the Pulumi Kubernetes Operator.
    Ignore,
    /// The operator still manages the status: take over its fields.
    TakeOver,
    AddFinalizer,
    /// Apply the objects that are missing or differ.
    Apply {
        service: bool,
        tls: bool,
        budget: bool,
        stateful_set: bool,
    },
    /// Ask the agent to start no new run.
    Drain,
    /// Delete the pod. The StatefulSet creates a new one.
    DeletePod {
        uid: String,
    },
    /// Remove the finalizer of a completed run from a pod that is being deleted.
    ReleasePod,
    /// Download the bytes of the requested source into the store.
    Fetch,
    PutSource {
        artifact: ArtifactReference,
    },
    DeleteStatefulSet,
    DeleteService,
    DeleteTlsSecret,
    DeleteBudget,
    RemoveFinalizer,
    /// Report the state and wait.
    Report(Report),
}

/// Decides from the observed state.
pub(super) fn decide(observed: &Observed, now: Timestamp) -> Action {
    let workspace = &observed.workspace;
    let has_finalizer = workspace.finalizers().iter().any(|finalizer| finalizer == WORKSPACE_FINALIZER);
    if workspace.metadata.deletion_timestamp.is_some() {
        return if has_finalizer { clean_up(observed, now) } else { Action::Ignore };
    }
    if field_managers::is_applied_by_operator(workspace) {
        // Its Stack takes over the Workspace later, which wakes this controller. Until then, the Workspace stays unchanged.
        return Action::Ignore;
    }
    if field_managers::is_due(workspace) {
        return Action::TakeOver;
    }
    if !has_finalizer {
        return Action::AddFinalizer;
    }
    let wanted = match &observed.wanted {
        Ok(wanted) => wanted,
        Err(why) => return Action::Report(Report::no_source(why)),
    };
    if let Some(foreign) = observed.foreign() {
        return Action::Report(Report::foreign(&foreign));
    }
    let is_due = |part: Part| match part {
        Part::Current => false,
        Part::Outdated => observed.contested.is_none(),
        Part::Missing | Part::Foreign | Part::Operators => true,
    };
    let apply = Action::Apply {
        service: is_due(observed.service),
        tls: observed.tls != Part::Current,
        budget: is_due(observed.budget),
        stateful_set: is_due(observed.stateful_set),
    };
    if apply != (Action::Apply { service: false, tls: false, budget: false, stateful_set: false }) {
        return apply;
    }
    match (workspace_pod(observed, wanted, now), &observed.contested) {
        (Action::Report(report), Some(contested)) => Action::Report(report.with_contested(contested)),
        (action, _) => action,
    }
}

/// Decides about the pod and its source. All other objects are current or contested.
fn workspace_pod(observed: &Observed, wanted: &WantedState, now: Timestamp) -> Action {
    let Some(pod) = &observed.pod else {
        return Action::Report(Report::no_pod(observed.warning.as_deref()));
    };
    if pod.terminating {
        return terminating_pod(observed, pod, reason::ROLLING_UPDATE);
    }
    let is_other_revision = pod.revision_hash.as_deref() != Some(&wanted.rendered.revision_hash);
    if is_other_revision && observed.contested.as_ref().is_some_and(|contested| contested.stateful_set) {
        return Action::Report(Report::contested_pod());
    }
    let draining = matches!(&observed.agent, Agent::Answered(reply) if reply.draining);
    if draining || is_other_revision {
        return retire(observed, pod, reason::ROLLING_UPDATE, now);
    }
    if observed.is_agent_too_old {
        return retire(observed, pod, reason::ROLLING_UPDATE, now);
    }
    if let Some(trouble) = pod.trouble.as_ref().filter(|_| !pod.ready) {
        return Action::Report(match pod.unschedulable {
            true => Report::unschedulable(&pod.name, trouble),
            false => Report::pod_failed(&pod.name, trouble),
        });
    }
    if let Some(since) = pod.fetching {
        return fetching(observed, pod, since, &wanted.source, now);
    }
    if let Some(container) = &pod.initializing {
        return Action::Report(Report::initializing(&pod.name, Some(container)));
    }
    match &observed.agent {
        Agent::NotCalled => Action::Report(Report::starting(&pod.name, observed.warning.as_deref())),
        Agent::Unreachable(message) => Action::Report(Report::unreachable(message)),
        Agent::Answered(reply) if reply.pod_uid != pod.uid => Action::Report(another_pod(&reply.pod_uid)),
        Agent::Answered(reply) => answered(observed, &reply.pulumi_version, &wanted.source),
    }
}

/// Handles a pod whose agent answers. Without a supported CLI, no source is delivered.
fn answered(observed: &Observed, cli: &str, source: &WantedSource) -> Action {
    match cli::is_too_old(cli) {
        true => Action::Report(Report::cli_too_old(cli)),
        false => self::source(observed, source),
    }
}

fn another_pod(uid: &str) -> Report {
    Report::unreachable(&format!("the responding agent belongs to another pod ({uid})"))
}

/// Handles a running init container `fetch`. It always needs the source, even if the source is in place, because it does not
/// exit without one.
fn fetching(observed: &Observed, pod: &PodState, since: Timestamp, wanted: &WantedSource, now: Timestamp) -> Action {
    let starting = || Action::Report(Report::fetch_starting(&pod.name));
    let given = observed.workspace.status.as_ref().is_some_and(|status| {
        status.pod_uid.as_ref() == Some(&pod.uid)
            && find(&status.conditions, READY).is_some_and(|ready| ready.reason == reason::INITIALIZING)
    });
    match &observed.agent {
        Agent::Answered(reply) if reply.pod_uid != pod.uid => Action::Report(another_pod(&reply.pod_uid)),
        Agent::Answered(_) => deliver(observed, wanted),
        // The container has exited, but the kubelet has not reported it yet.
        _ if given => Action::Report(Report::initializing(&pod.name, None)),
        Agent::Unreachable(message) if now.as_second() - since.as_second() > FETCH_START_SECONDS => {
            Action::Report(Report::unreachable(message))
        }
        Agent::NotCalled | Agent::Unreachable(_) => starting(),
    }
}

/// Checks whether the requested source is in place in a pod whose agent answers.
fn source(observed: &Observed, source: &WantedSource) -> Action {
    let wanted = &source.artifact;
    let is_wanted = |found: &ArtifactReference| found.digest == wanted.digest && found.dir == wanted.dir;
    let candidate = observed.candidate();
    if let Some((_, candidate)) = candidate.as_ref().filter(|(artifact, _)| is_wanted(artifact)) {
        return Action::Report(Report::install_progress(wanted, candidate));
    }
    let run = observed.open_run();
    // A candidate, which the agent is still installing, would replace the source in place, so it must be superseded first.
    // While a run is open, the agent does not replace the source.
    if observed.in_place().is_some_and(|found| is_wanted(&found)) && (candidate.is_none() || run.is_some()) {
        return Action::Report(ready(observed, observed.workspace.spec.artifact.as_ref().unwrap_or(wanted)));
    }
    if let Some(run) = run {
        return Action::Report(Report::source_waits_for_run(wanted, &run));
    }
    if let Some(session) = observed.interactive_session() {
        return Action::Report(Report::source_waits_for_session(wanted, session));
    }
    deliver(observed, source)
}

/// Delivers the source to the agent once its bytes are in the store.
fn deliver(observed: &Observed, source: &WantedSource) -> Action {
    match &source.origin {
        _ if observed.artifact_stored => Action::PutSource { artifact: source.artifact.clone() },
        Some(_) => Action::Fetch,
        // The controller that wrote the digest fetches the bytes and wakes the Workspace.
        None => Action::Report(Report::artifact_missing(&source.artifact)),
    }
}

/// Reports that the source is in place. A new run waits for the end of an interactive session, which the report names.
fn ready(observed: &Observed, artifact: &ArtifactReference) -> Report {
    match observed.interactive_session() {
        Some(session) => Report::ready(artifact).with_session(session),
        None => Report::ready(artifact),
    }
}

/// Deletes a pod once it accepts no new run, no run is open and no interactive session uses it.
fn retire(observed: &Observed, pod: &PodState, why: &'static str, now: Timestamp) -> Action {
    if matches!(&observed.agent, Agent::Answered(reply) if !reply.draining) {
        return Action::Drain;
    }
    if let Some(run) = observed.open_run() {
        return Action::Report(Report::pod_waits_for_run(why, &pod.name, &run));
    }
    if let Some(session) = observed.interactive_session() {
        return Action::Report(Report::pod_waits_for_session(why, &pod.name, session));
    }
    match &observed.agent {
        // The agent may have restarted without being reachable, and a run that is not recorded yet may be open in it.
        Agent::Unreachable(message) if pod.ready && !silent_for_long(observed, now) => {
            Action::Report(Report::unreachable(message))
        }
        _ => Action::DeletePod { uid: pod.uid.clone() },
    }
}

fn silent_for_long(observed: &Observed, now: Timestamp) -> bool {
    let conditions = observed.workspace.status.as_ref().map(|status| status.conditions.as_slice());
    find(conditions.unwrap_or_default(), READY)
        .filter(|ready| ready.status == "False" && ready.reason == reason::CONNECTION_FAILED)
        .is_some_and(|ready| now.as_second() - ready.last_transition_time.0.as_second() > SILENT_SECONDS)
}

/// Handles a pod that is being deleted. The finalizer of a completed run must not block the deletion.
fn terminating_pod(observed: &Observed, pod: &PodState, why: &'static str) -> Action {
    match observed.open_run() {
        Some(run) if pod.held => Action::Report(Report::pod_waits_for_run(why, &pod.name, &run)),
        None if pod.held && !pod.running => Action::ReleasePod,
        _ => Action::Report(Report::pod_terminating(why, &pod.name)),
    }
}

/// Handles the deletion of a Workspace. Its objects are deleted one after the other once no run is open.
fn clean_up(observed: &Observed, now: Timestamp) -> Action {
    if let Some(pod) = observed.pod.as_ref().filter(|pod| !pod.terminating)
        && let waits @ (Action::Drain | Action::Report(_)) = retire(observed, pod, reason::DELETING, now)
    {
        return waits;
    }
    if let Some(run) = observed.open_run() {
        return Action::Report(Report::deletion_waits_for_run(&run));
    }
    if observed.stateful_set.is_ours() {
        return Action::DeleteStatefulSet;
    }
    match &observed.pod {
        Some(pod) if pod.terminating => return terminating_pod(observed, pod, reason::DELETING),
        Some(pod) => return Action::DeletePod { uid: pod.uid.clone() },
        None => {}
    }
    if observed.service.is_ours() {
        return Action::DeleteService;
    }
    if observed.tls.is_ours() {
        return Action::DeleteTlsSecret;
    }
    if observed.budget.is_ours() {
        return Action::DeleteBudget;
    }
    Action::RemoveFinalizer
}

#[cfg(test)]
mod tests;

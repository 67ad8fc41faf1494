//! What an Update needs next. Pure and total: no client, no clock.

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

use crate::api::auto::{RunBinding, Workspace};
use crate::api::conditions::{self, update_reason};
use crate::api::names;
use crate::controller::update::attachments::Seen;
use crate::controller::update::observe::{Observed, Owner, binding};
use crate::controller::update::request;
use crate::controller::update::verdict::Verdict;

/// The next step.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// The run cannot start yet.
    Wait(&'static str, String),
    /// The pod is marked and the run is written down; then it may start.
    Announce(RunBinding),
    /// The run was announced: find it, or start it.
    Attach(RunBinding),
    /// The run goes on.
    Await(String),
    /// The run is to be ended.
    Cancel,
    /// The run has ended: its result goes into the status.
    Record(Box<Verdict>),
    /// The result is recorded: pod and object are let go.
    Release,
    /// It is being deleted, and the Stack that would let go of it is gone.
    Abandon,
    Nothing,
}

impl Action {
    /// What the log says of it. Not all that it carries: outputs may be secret.
    pub fn name(&self) -> &'static str {
        match self {
            Action::Wait(..) => "Wait",
            Action::Announce(_) => "Announce",
            Action::Attach(_) => "Attach",
            Action::Await(_) => "Await",
            Action::Cancel => "Cancel",
            Action::Record(_) => "Record",
            Action::Release => "Release",
            Action::Abandon => "Abandon",
            Action::Nothing => "Nothing",
        }
    }
}

/// The next step for what was observed.
pub fn decide(observed: &Observed) -> Action {
    let update = &observed.update;
    if update.is_complete() {
        let has = |name: &str| update.finalizers().iter().any(|f| f == name);
        return match update.metadata.deletion_timestamp {
            _ if has(names::UPDATE_FINALIZER) => Action::Release,
            Some(_) if has(names::STACK_FINALIZER) && observed.stack == Owner::Gone => Action::Abandon,
            _ => Action::Nothing,
        };
    }
    match binding(update) {
        Some(binding) => announced(observed, binding),
        None if update.metadata.deletion_timestamp.is_some() => {
            Action::Record(Box::new(Verdict::failed(update_reason::CANCELED, "deleted before it started")))
        }
        None => waiting(observed),
    }
}

/// The run was written down: it is in that pod, or it is nowhere.
fn announced(observed: &Observed, binding: &RunBinding) -> Action {
    if let Some(Seen::Ended(result)) = &observed.seen {
        return Action::Record(Box::new(Verdict::of(result)));
    }
    let pod = observed.pod.as_ref().filter(|p| p.uid().as_deref() == Some(binding.pod_uid.as_str()));
    let Some(pod) = pod else {
        let message = "the pod that it ran in is gone, and nobody knows how far it came; read the stack's state before \
                       you run it again";
        return Action::Record(Box::new(Verdict::failed(update_reason::RUN_OUTCOME_UNKNOWN, message)));
    };
    if let Some(verdict) = ended_for_good(pod, &observed.update.uid().unwrap_or_default()) {
        return Action::Record(Box::new(verdict));
    }
    match &observed.seen {
        None => Action::Attach(binding.clone()),
        Some(Seen::Refused(why)) => {
            let message = format!("it never started: {why}");
            Action::Record(Box::new(Verdict::failed(update_reason::ABORTED, &message)))
        }
        Some(Seen::NotNow(why)) => {
            let message = format!("it could not start: {why}");
            Action::Record(Box::new(Verdict::failed(update_reason::RUN_REFUSED, &message)))
        }
        Some(_) if observed.update.metadata.deletion_timestamp.is_some() && observed.stack != Owner::Deleting => {
            Action::Cancel
        }
        Some(Seen::Unreachable(why)) => Action::Await(format!("the agent does not answer: {why}")),
        Some(Seen::Connecting | Seen::Running | Seen::Ended(_)) => Action::Await("the run goes on".to_owned()),
    }
}

/// How the run ended with its pod, when the kubelet will not start the container again.
fn ended_for_good(pod: &Pod, id: &str) -> Option<Verdict> {
    let status = pod.status.as_ref()?;
    let final_phase = matches!(status.phase.as_deref(), Some("Failed" | "Succeeded"));
    if pod.metadata.deletion_timestamp.is_none() && !final_phase {
        return None;
    }
    let container = status.container_statuses.iter().flatten().find(|c| c.name == names::PULUMI_CONTAINER);
    match container.and_then(|c| c.state.as_ref()?.terminated.as_ref()) {
        Some(terminated) => Some(Verdict::of_container(terminated, id)),
        // Whoever ended the pod, such as for a node that is gone, knew nothing of its containers.
        None => final_phase.then(|| Verdict::of_pod(status)),
    }
}

fn waiting(observed: &Observed) -> Action {
    let update = &observed.update;
    let name = &update.spec.workspace_name;
    if let Some(ahead) = &observed.ahead {
        return Action::Wait(update_reason::QUEUED, format!("waits for update {ahead} of the same workspace"));
    }
    let Some(workspace) = &observed.workspace else {
        return Action::Wait(update_reason::WORKSPACE_NOT_FOUND, format!("workspace {name} does not exist"));
    };
    if let Some(why) = not_ready(workspace, observed) {
        return Action::Wait(update_reason::WORKSPACE_NOT_READY, format!("workspace {name} {why}"));
    }
    match request::binding(update, workspace) {
        Some(binding) => Action::Announce(binding),
        None => Action::Wait(update_reason::WORKSPACE_NOT_READY, format!("workspace {name} has no agent yet")),
    }
}

/// Why a run cannot start in a Workspace now.
fn not_ready(workspace: &Workspace, observed: &Observed) -> Option<String> {
    let status = workspace.status.clone().unwrap_or_default();
    if workspace.metadata.deletion_timestamp.is_some() {
        return Some("is being deleted".to_owned());
    }
    let ready = conditions::find(&status.conditions, conditions::READY);
    if status.observed_generation != workspace.metadata.generation || ready.is_none_or(|r| r.status != "True") {
        let why = ready.map(|r| format!(": {}", r.message)).unwrap_or_default();
        return Some(format!("is not ready{why}"));
    }
    if status.artifact.as_ref() != Some(&observed.update.spec.artifact) {
        return Some(format!("does not have revision {} in place", observed.update.spec.artifact.revision));
    }
    let pod = observed.pod.as_ref().filter(|p| p.metadata.deletion_timestamp.is_none());
    if pod.is_none_or(|p| p.uid() != status.pod_uid) {
        return Some("is getting a new pod".to_owned());
    }
    None
}

#[cfg(test)]
mod tests;

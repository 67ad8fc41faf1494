//! The only place that makes a Workspace's conditions, and the events that go with a change of them.

use std::str::FromStr;

use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;

use super::context::Context;
use super::observe::{Agent, Observed};
use super::report::{Report, State};
use crate::api::auto::{ArtifactReference, Workspace, WorkspaceStatus};
use crate::api::conditions::{self, Claim, Status};
use crate::api::names::{AGENT_PORT, workspace_object};
use crate::artifact::Directory;
use crate::runtime::events::{Event, EventKind};
use crate::runtime::writes::WriteError;

/// Writes what is reported, if it is news; the answer is the Workspace as it is then.
pub(super) async fn write(
    observed: &Observed,
    report: &Report,
    context: &Context,
    now: Timestamp,
) -> Result<Option<Workspace>, WriteError> {
    let workspace = &observed.workspace;
    let status = status(observed, report, now);
    let written = context.writer.status(workspace, &status).await?;
    if written.is_some()
        && let Some(event) = event(workspace, report)
    {
        context.events.publish(event);
    }
    Ok(written)
}

/// The status that says what is reported.
fn status(observed: &Observed, report: &Report, now: Timestamp) -> WorkspaceStatus {
    let workspace = &observed.workspace;
    let generation = workspace.metadata.generation.unwrap_or_default();
    let mut status = workspace.status.clone().unwrap_or_default();
    status.observed_generation = Some(generation);
    let namespace = workspace.namespace().unwrap_or_default();
    status.address = Some(format!("{}.{namespace}:{AGENT_PORT}", workspace_object(&workspace.name_any())));
    describe_pod(&mut status, observed);
    set_conditions(&mut status, report, generation, now);
    status
}

/// What the agent says now; what it said last while it is the same pod and nobody has answered.
fn describe_pod(status: &mut WorkspaceStatus, observed: &Observed) {
    match &observed.agent {
        Agent::Answered(reply) => {
            status.artifact = observed.in_place().map(|found| with_revision(found, observed));
            status.pod_uid = Some(reply.pod_uid.clone());
            status.agent_start_id = Some(reply.start_id.clone());
            status.pulumi_version = Some(reply.pulumi_version.clone()).filter(|version| !version.is_empty());
        }
        Agent::NotAsked | Agent::Unreachable(_) => {
            if observed.pod.as_ref().map(|pod| &pod.uid) != status.pod_uid.as_ref() {
                status.artifact = None;
                status.pod_uid = None;
                status.agent_start_id = None;
                status.pulumi_version = None;
            }
        }
    }
}

/// The agent knows digests and directories; the revision is what the spec, or the status before, called it.
fn with_revision(found: ArtifactReference, observed: &Observed) -> ArtifactReference {
    let normal = observed.wanted.as_ref().ok().and_then(|wanted| wanted.artifact.as_ref());
    let is_wanted = normal.is_some_and(|wanted| wanted.digest == found.digest && wanted.dir == found.dir);
    if let Some(wanted) = observed.workspace.spec.artifact.as_ref().filter(|_| is_wanted) {
        return wanted.clone();
    }
    let before = observed.workspace.status.as_ref().and_then(|status| status.artifact.as_ref());
    let normal_dir = |dir: &str| Directory::from_str(dir).is_ok_and(|dir| dir.as_str() == found.dir);
    match before.filter(|before| before.digest == found.digest && normal_dir(&before.dir)) {
        Some(before) => before.clone(),
        None => found,
    }
}

fn set_conditions(status: &mut WorkspaceStatus, report: &Report, generation: i64, now: Timestamp) {
    let claim = |kind, status| Claim { kind, status, reason: report.reason, message: &report.message };
    let ready = if report.state == State::Ready { Status::True } else { Status::False };
    conditions::set(&mut status.conditions, &claim(conditions::READY, ready), generation, now);
    let others = [
        (conditions::RECONCILING, matches!(report.state, State::Working | State::Failing)),
        (conditions::STALLED, report.state == State::Stalled),
    ];
    for (kind, holds) in others {
        if holds {
            conditions::set(&mut status.conditions, &claim(kind, Status::True), generation, now);
        } else {
            conditions::remove(&mut status.conditions, kind);
        }
    }
}

/// An event where the state has changed; steps on the way are not worth one.
fn event(workspace: &Workspace, report: &Report) -> Option<Event> {
    let before = workspace.status.as_ref().and_then(|status| conditions::find(&status.conditions, conditions::READY));
    let was = before.map(|ready| (ready.status.as_str(), ready.reason.as_str()));
    let is = (if report.state == State::Ready { "True" } else { "False" }, report.reason);
    let kind = match report.state {
        State::Ready => EventKind::Normal,
        State::Failing | State::Stalled => EventKind::Warning,
        State::Working => return None,
    };
    (was != Some(is)).then(|| Event::new(workspace, kind, report.reason, report.message.clone()))
}

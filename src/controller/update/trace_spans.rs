//! Computes the trace spans of a run from the recorded times. All functions are pure.
//!
//! The root span covers the period from the detection of the artifact until the result is recorded. The children of
//! the root span are the phases `fetch`, `placement`, `wait`, `queue`, `run` and `record`. The children of `run` are
//! the resource operations. Users and the agent can set some of the times. This module therefore clamps the times, so
//! that no phase starts before the previous phase has ended.

use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use opentelemetry::KeyValue;
use opentelemetry::trace::Status;
use opentelemetry_sdk::trace::SpanData;

use crate::api::auto::{Update, UpdateStatus};
use crate::api::conditions::{self, FAILED};
use crate::api::phase_times::PhaseTimes;
use crate::controller::stack::stack_of;
use crate::controller::update::resource_steps::{ResourceStep, ResourceSteps};
use crate::controller::update::trace_context::TraceContext;
use crate::telemetry::redact::url_credentials;
use crate::telemetry::traces::span;

/// Name of the `run` span, whose context the agent receives.
pub const RUN: &str = "run";
/// Maximum length of a string attribute, in bytes.
const MAX_TEXT: usize = 512;
/// Maximum time between the detection of the artifact and the Update's creation. Earlier times in the annotation are
/// ignored.
const MAX_LEAD: SignedDuration = SignedDuration::from_hours(30 * 24);

/// Run whose result is recorded.
#[derive(Clone, Copy, Debug)]
pub struct Recorded<'a> {
    pub update: &'a Update,
    /// Status that contains the result. The times in this status can be more precise than the times in the status of
    /// `update`.
    pub status: &'a UpdateStatus,
    /// Time at which the controller recorded the result.
    pub recorded: Timestamp,
    /// Resource operations, or `None` if this process has not received them.
    pub steps: Option<&'a ResourceSteps>,
}

/// Times of the phases, in ascending order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Phases {
    /// Time at which the controller detected the artifact, or `None` if the run has another cause.
    detected: Option<Timestamp>,
    fetched: Option<Timestamp>,
    placed: Option<Timestamp>,
    requested: Timestamp,
    /// Start time and end time of the run, or `None` if the run did not start.
    run: Option<(Timestamp, Timestamp)>,
    recorded: Timestamp,
}

impl Phases {
    fn of(run: &Recorded<'_>) -> Self {
        let recorded = run.recorded;
        let created = run.update.creation_timestamp().map_or(recorded, |created| created.0).min(recorded);
        let earliest = created.saturating_sub(MAX_LEAD).unwrap_or(created);
        let times = PhaseTimes::of(run.update.annotations()).unwrap_or_default();
        let mut latest = earliest;
        // Clamps a time to the period between the previous phase and the end of the trace.
        let mut next = |time: Timestamp| {
            latest = time.clamp(latest, recorded);
            latest
        };
        let mut at = |time: Option<i64>| {
            let time = time.and_then(|time| Timestamp::from_millisecond(time).ok());
            time.filter(|time| *time >= earliest).map(&mut next)
        };
        let detected = at(times.detected);
        let fetched = detected.and_then(|_| at(times.fetched));
        let placed = detected.and_then(|_| at(times.placed));
        let requested = at(times.requested);
        let requested = requested.unwrap_or_else(|| next(created));
        let status = run.status;
        let started = status.start_time.as_ref().filter(|_| status.run.is_some()).map(|started| next(started.0));
        let run = started.map(|started| (started, next(status.end_time.as_ref().map_or(recorded, |ended| ended.0))));
        Phases { detected, fetched, placed, requested, run, recorded }
    }

    fn start(&self) -> Timestamp {
        self.detected.unwrap_or(self.requested)
    }

    /// Returns the name, the start time and the end time of each phase.
    fn spans(&self) -> Vec<(&'static str, Timestamp, Timestamp)> {
        let installed = self.placed.unwrap_or(self.requested);
        let fetch = self.detected.zip(self.fetched).map(|(start, end)| ("fetch", start, end));
        let placement = self.fetched.or(self.detected).map(|start| ("placement", start, installed));
        let wait = self.placed.map(|start| ("wait", start, self.requested));
        let queue = ("queue", self.requested, self.run.map_or(self.recorded, |(start, _)| start));
        let run = self.run.map(|(start, end)| (RUN, start, end));
        let record = self.run.map(|(_, end)| ("record", end, self.recorded));
        [fetch, placement, wait, Some(queue), run, record].into_iter().flatten().collect()
    }
}

/// Returns all spans of a run, starting with the root span.
pub fn spans(run: &Recorded<'_>) -> Vec<SpanData> {
    let context = TraceContext::of(run.update);
    let (trace, ids) = (context.trace(), context.root());
    let phases = Phases::of(run);
    let status = failure(run.status).map_or(Status::Unset, Status::error);
    let name = format!("pulumi {}", run.update.spec.kind.as_str());
    let root = span(trace, ids, name, (phases.start(), phases.recorded));
    let mut spans = vec![SpanData { attributes: attributes(run), status: status.clone(), ..root }];
    spans.extend(phases.spans().into_iter().map(|(name, start, end)| {
        let status = if name == RUN { status.clone() } else { Status::Unset };
        SpanData { status, ..span(trace, (context.span(name), ids.0), name, (start, end)) }
    }));
    if let Some((steps, period)) = run.steps.zip(phases.run) {
        spans.extend(resource_spans(&context, steps, period));
    }
    spans
}

/// Returns the spans of the resource operations, clamped to the time of the run.
fn resource_spans(
    context: &TraceContext,
    steps: &ResourceSteps,
    (start, end): (Timestamp, Timestamp),
) -> Vec<SpanData> {
    let at = |time: i64| Timestamp::from_millisecond(time).unwrap_or(start).clamp(start, end);
    let of_step = |(number, step): (usize, &ResourceStep)| {
        let start = at(step.start);
        let ids = (context.span(&format!("resource {number}")), context.span(RUN));
        let name = format!("{} {}", step.operation, step.kind);
        let failed = || Status::error(format!("{} failed", step.operation));
        SpanData {
            attributes: vec![
                KeyValue::new("pulumi.resource.urn", step.urn.clone()),
                KeyValue::new("pulumi.resource.type", step.kind.clone()),
                KeyValue::new("pulumi.resource.name", step.name.clone()),
                KeyValue::new("pulumi.operation", step.operation.clone()),
            ],
            status: step.has_failed.then(failed).unwrap_or_default(),
            ..span(context.trace(), ids, name, (start, step.end.map_or(end, at).max(start)))
        }
    };
    steps.steps().iter().enumerate().map(of_step).collect()
}

/// Returns the attributes of the root span. Omits unknown values.
fn attributes(run: &Recorded<'_>) -> Vec<KeyValue> {
    let (update, status) = (run.update, run.status);
    let artifact = update.artifact();
    let texts = [
        ("k8s.namespace.name", update.namespace()),
        ("pulumi.controller.stack", stack_of(update)),
        ("pulumi.controller.workspace", Some(update.spec.workspace_name.clone())),
        ("pulumi.controller.update", Some(update.name_any())),
        ("pulumi.stack", Some(update.spec.stack_name.clone())),
        ("pulumi.project", status.project_info.as_ref().map(|project| project.name.clone())),
        ("pulumi.operation", Some(update.spec.kind.as_str().to_owned())),
        ("pulumi.outcome", Some(failure_reason(status).unwrap_or("Succeeded").to_owned())),
        ("pulumi.permalink", status.permalink.clone()),
        ("flux.revision", artifact.map(|artifact| artifact.revision.clone())),
        ("flux.digest", artifact.map(|artifact| artifact.digest.to_string())),
        ("k8s.node.name", status.run.as_ref().map(|run| run.node_name.clone())),
    ];
    let known = texts.into_iter().filter_map(|(key, text)| Some((key, text.filter(|text| !text.is_empty())?)));
    let short = |(key, text): (&'static str, String)| KeyValue::new(key, conditions::shorten(&text, MAX_TEXT));
    let mut attributes: Vec<KeyValue> = known.map(short).collect();
    if let Some(steps) = run.steps.filter(|steps| steps.omitted() > 0) {
        attributes.push(KeyValue::new("pulumi.resources.omitted", steps.omitted()));
    }
    attributes
}

fn failure_reason(status: &UpdateStatus) -> Option<&str> {
    let failed = conditions::find(&status.conditions, FAILED).filter(|failed| failed.status == "True")?;
    Some(&failed.reason)
}

/// Returns the reason and the message of a failure, without credentials.
fn failure(status: &UpdateStatus) -> Option<String> {
    let reason = failure_reason(status)?;
    let message = status.message.as_deref().unwrap_or_default();
    Some(conditions::shorten(&url_credentials(&format!("{reason}: {message}")), MAX_TEXT))
}

#[cfg(test)]
mod tests;

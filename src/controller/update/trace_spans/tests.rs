//! Tests for the spans of a run.

use std::time::SystemTime;

use opentelemetry::trace::SpanId;
use serde_json::{Value as Json, json};

use super::*;
use crate::rpc::proto::{self, StepState, progress};

/// Creation time of the Update, in milliseconds since the Unix epoch.
const CREATED: i64 = 1_767_268_800_000;

fn at(after: i64) -> Timestamp {
    Timestamp::from_millisecond(CREATED + after).unwrap()
}

/// Returns an Update whose annotation contains the given times, in milliseconds after the Update was created.
fn update(times: Json, status: Json) -> Update {
    let mut all = json!({"digest": "sha256:a"});
    for (name, time) in times.as_object().unwrap() {
        all[name] = json!(CREATED + time.as_i64().unwrap());
    }
    serde_json::from_value(json!({
        "apiVersion": "auto.pulumi.com/v1alpha1", "kind": "Update",
        "metadata": {
            "name": "app-1", "namespace": "apps", "uid": "uid", "creationTimestamp": "2026-01-01T12:00:00Z",
            "annotations": {"auto.pulumi.com/phase-times": all.to_string()},
        },
        "spec": {"workspaceName": "app", "stackName": "dev", "type": "up"},
        "status": status,
    }))
    .unwrap()
}

/// Returns the status of a run with the given start and end times, in milliseconds after the Update was created.
fn ended(start: i64, end: i64) -> UpdateStatus {
    let run = json!({"podUID": "p", "agentStartID": "s", "settingsDigest": "d", "nodeName": "node-1"});
    let mut status: UpdateStatus = serde_json::from_value(json!({ "run": run })).unwrap();
    status.start_time = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(start)));
    status.end_time = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(end)));
    status
}

/// Returns the name, the start time and the end time of each span, in milliseconds after the Update was created.
fn shown(spans: &[SpanData]) -> Vec<(&str, i64, i64)> {
    let after = |time: SystemTime| Timestamp::try_from(time).unwrap().as_millisecond() - CREATED;
    spans.iter().map(|span| (span.name.as_ref(), after(span.start_time), after(span.end_time))).collect()
}

fn spans_of(update: &Update, status: &UpdateStatus, recorded: i64) -> Vec<SpanData> {
    spans(&Recorded { update, status, recorded: at(recorded), steps: None })
}

#[test]
fn the_phases_of_a_push_follow_each_other() {
    let update = update(json!({"detected": -900, "fetched": -500, "requested": 100}), json!({}));
    let spans = spans_of(&update, &ended(250, 700), 750);
    let expected = [
        ("pulumi up", -900, 750),
        ("fetch", -900, -500),
        ("placement", -500, 100),
        ("queue", 100, 250),
        ("run", 250, 700),
        ("record", 700, 750),
    ];
    assert_eq!(shown(&spans), expected);
    let [root, phases @ ..] = spans.as_slice() else { panic!("a root") };
    assert_eq!(root.parent_span_id, SpanId::INVALID);
    assert!(phases.iter().all(|phase| phase.parent_span_id == root.span_context.span_id()));
    let context = TraceContext::of(&update);
    assert!(spans.iter().all(|span| span.span_context.trace_id() == context.trace()));
    assert_eq!(phases[3].span_context.span_id(), context.span(RUN), "the agent receives this span as the parent");
}

#[test]
fn a_run_without_a_new_artifact_starts_with_the_queue() {
    let update = update(json!({"requested": 5}), json!({}));
    let expected = [("pulumi up", 5, 40), ("queue", 5, 10), ("run", 10, 30), ("record", 30, 40)];
    assert_eq!(shown(&spans_of(&update, &ended(10, 30), 40)), expected);
}

#[test]
fn a_wait_for_a_window_is_a_separate_phase() {
    let update = update(json!({"detected": -9000, "placed": -8000, "requested": 5}), json!({}));
    let spans = spans_of(&update, &ended(10, 30), 40);
    let shown: Vec<_> = shown(&spans).into_iter().map(|(name, ..)| name).collect();
    assert_eq!(shown, ["pulumi up", "placement", "wait", "queue", "run", "record"]);
}

#[test]
fn a_run_that_did_not_start_ends_in_the_queue() {
    let update = update(json!({"requested": 5}), json!({}));
    let status = UpdateStatus { run: None, ..ended(10, 30) };
    assert_eq!(shown(&spans_of(&update, &status, 40)), [("pulumi up", 5, 40), ("queue", 5, 40)]);
}

#[test]
fn implausible_times_are_limited() {
    let year = 365 * 24 * 3600 * 1000;
    let times = json!({"detected": year, "fetched": -year, "placed": 3, "requested": -1});
    let spans = spans_of(&update(times, json!({})), &ended(-50, 10 * year), 40);
    for span in &spans {
        assert!(span.start_time <= span.end_time && span.end_time <= SystemTime::from(at(40)), "{span:?}");
        assert!(span.start_time >= spans[0].start_time, "{span:?}");
    }
}

#[test]
fn a_failure_is_part_of_the_root_and_of_the_run() {
    let failed = json!({
        "type": "Failed", "status": "True", "reason": "UpdateFailed", "message": "",
        "lastTransitionTime": "2026-01-01T12:00:00Z",
    });
    let mut status = ended(10, 30);
    status.conditions = vec![serde_json::from_value(failed).unwrap()];
    status.message = Some("no route to https://me:secret@host".to_owned());
    let spans = spans_of(&update(json!({}), json!({})), &status, 40);
    let failed = spans.iter().filter(|span| span.status != Status::Unset);
    let failed: Vec<_> = failed.map(|span| (span.name.as_ref(), span.status.clone())).collect();
    let status = Status::error("UpdateFailed: no route to https://***@host");
    assert_eq!(failed, [("pulumi up", status.clone()), ("run", status)]);
    assert!(spans[0].attributes.contains(&KeyValue::new("pulumi.outcome", "UpdateFailed")));
}

#[test]
fn resource_operations_are_within_the_run_and_repeated_spans_are_equal() {
    let step = |time, name: &str, state: StepState| {
        let urn = format!("urn:pulumi:dev::app::aws:s3/bucket:Bucket::{name}");
        let step = proto::ResourceStep { urn, operation: "create".to_owned(), state: state.into() };
        proto::Progress { sequence: 1, time, event: Some(progress::Event::Resource(step)) }
    };
    let mut steps = ResourceSteps::default();
    steps.observe(&step(CREATED + 20, "a", StepState::Begun));
    steps.observe(&step(0, "b", StepState::Begun));
    steps.observe(&step(CREATED + 25, "a", StepState::Failed));
    let update = update(json!({"requested": 5}), json!({}));
    let status = ended(10, 30);
    let run = Recorded { update: &update, status: &status, recorded: at(40), steps: Some(&steps) };
    let all = spans(&run);
    let resources = &all[4..];
    assert_eq!(shown(resources), [("create aws:s3:Bucket", 20, 25), ("create aws:s3:Bucket", 10, 30)]);
    let parent = TraceContext::of(&update).span(RUN);
    assert!(resources.iter().all(|span| span.parent_span_id == parent));
    assert_eq!((&resources[0].status, &resources[1].status), (&Status::error("create failed"), &Status::Unset));
    assert_ne!(resources[0].span_context.span_id(), resources[1].span_context.span_id());
    assert_eq!(spans(&run), all);
}

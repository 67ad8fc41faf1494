//! Reasons for a missing or slow pod that only Kubernetes events show: quotas, Pod Security, or volumes that cannot be
//! mounted. The events are read only if the pod is missing or does not start for some time.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Event, Pod};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, ListParams};
use kube::{Resource, ResourceExt};

use super::context::Context;
use super::pod_state;
use crate::api::auto::Workspace;
use crate::api::conditions::{READY, find as find_condition};
use crate::runtime::reconcile::ReconcileError;

/// Seconds without a pod after which events are read.
const NO_POD_SECONDS: i64 = 4;
/// Seconds without a start of the pod after which events are read.
const SLOW_START_SECONDS: i64 = 40;
/// Age in seconds from which an event is ignored. The StatefulSet controller retries after 1000 s at most.
const OLD_SECONDS: i64 = 1200;
/// Maximum number of events to read for one object. Clients limit the event rate per object, so more are unlikely.
const MAX_EVENTS: u32 = 200;
const TIMEOUT: Duration = Duration::from_secs(10);

/// Returns the latest event about the object that blocks the Workspace, if it is a warning.
pub(super) async fn find(
    workspace: &Workspace,
    stateful_set_uid: Option<&str>,
    pod: Option<&Pod>,
    context: &Context,
    now: Timestamp,
) -> Result<Option<String>, ReconcileError> {
    let uid = match (stateful_set_uid, pod) {
        (Some(uid), None) if unready_seconds(workspace, now) > NO_POD_SECONDS => Some(uid.to_owned()),
        (_, Some(pod)) if starts_slowly(pod, now) => pod.uid(),
        _ => None,
    };
    let Some(uid) = uid else {
        return Ok(None);
    };
    let namespace = workspace.namespace().unwrap_or_default();
    let events: Api<Event> = Api::namespaced(context.client.clone(), &namespace);
    let fields = format!("involvedObject.uid={uid}");
    let parameters = ListParams::default().fields(&fields).limit(MAX_EVENTS);
    let listed = tokio::time::timeout(TIMEOUT, events.list(&parameters)).await;
    let events = match listed {
        Ok(Ok(events)) => events.items,
        Ok(Err(error)) => return Err(ReconcileError::transient(error)),
        Err(elapsed) => return Err(ReconcileError::transient(elapsed)),
    };
    Ok(newest(&events, now))
}

/// Returns the latest event if it is a warning. A later normal event means that the problem is solved.
fn newest(events: &[Event], now: Timestamp) -> Option<String> {
    let recent = events.iter().filter_map(|event| Some((time(event)?, event)));
    let recent = recent.filter(|(time, _)| now.as_second() - time.as_second() <= OLD_SECONDS);
    let (_, event) = recent.max_by_key(|(time, _)| *time)?;
    if event.type_.as_deref() != Some("Warning") {
        return None;
    }
    let reason = event.reason.as_deref().unwrap_or("Warning");
    Some(format!("{reason}: {}", event.message.as_deref().unwrap_or_default().trim()))
}

fn time(event: &Event) -> Option<Timestamp> {
    let series = event.series.as_ref().and_then(|series| series.last_observed_time.as_ref()).map(|time| time.0);
    let last = event.last_timestamp.as_ref().map(|time| time.0);
    let first = event.event_time.as_ref().map(|time| time.0);
    series.or(last).or(first).or_else(|| event.meta().creation_timestamp.as_ref().map(|time| time.0))
}

fn unready_seconds(workspace: &Workspace, now: Timestamp) -> i64 {
    let conditions = workspace.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    match find_condition(conditions, READY) {
        Some(ready) if ready.status != "True" => now.as_second() - ready.last_transition_time.0.as_second(),
        _ => 0,
    }
}

fn starts_slowly(pod: &Pod, now: Timestamp) -> bool {
    let state = pod_state::read(pod);
    let created = pod.creation_timestamp().map_or(now, |time| time.0);
    let slow = now.as_second() - created.as_second() > SLOW_START_SECONDS;
    let begun = state.running || state.fetching.is_some() || state.initializing.is_some();
    slow && !begun && !state.terminating && state.trouble.is_none()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_newest_recent_warning_is_reported() {
        let now: Timestamp = "2026-01-01T12:00:00Z".parse().expect("a time");
        let event = |kind: &str, time: &str, message: &str| -> Event {
            serde_json::from_value(json!({
                "metadata": {}, "involvedObject": {}, "reason": "FailedCreate", "message": message, "lastTimestamp": time,
                "type": kind,
            }))
            .expect("an event")
        };
        let old = event("Warning", "2026-01-01T11:39:00Z", "old");
        let first = event("Warning", "2026-01-01T11:59:00Z", "first");
        let second = event("Warning", "2026-01-01T11:59:30Z", "exceeded quota ");
        let mended = event("Normal", "2026-01-01T11:59:40Z", "created");
        assert_eq!(newest(std::slice::from_ref(&old), now), None);
        let warnings = [second, first, old];
        assert_eq!(newest(&warnings, now).as_deref(), Some("FailedCreate: exceeded quota"));
        assert_eq!(newest(&[warnings.as_slice(), &[mended]].concat(), now), None);
    }
}

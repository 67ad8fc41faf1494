//! Finds the reason why a pod is missing, and makes the StatefulSet controller retry after the cause has disappeared.
//!
//! The StatefulSet controller retries with a backoff of up to 1000 s. Kubernetes limits the number of its events, so the
//! newest event can describe an earlier problem. A dry run shows whether the API server accepts the pod now.

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use serde_json::{Value, json};

use super::context::Context;
use super::pod_state::{self, StartEvent};
use super::render::Rendered;
use crate::api::conditions;
use crate::runtime::writes::WriteError;

/// Annotation of a StatefulSet with the time at which the controller last requested the pod. A change to the StatefulSet
/// ends the backoff of the StatefulSet controller.
const ANNOTATION_REQUESTED: &str = "auto.pulumi.com/pod-requested-at";

/// Parts of the messages of a LimitRange and of a quota.
const LIMIT_MESSAGES: [&str; 3] = [" usage per ", " ratio per ", "exceeded quota"];

/// Returns the time at which the controller last requested the pod of a StatefulSet.
pub(super) fn requested_at(stateful_set: &StatefulSet) -> Option<Timestamp> {
    stateful_set.annotations().get(ANNOTATION_REQUESTED)?.parse().ok()
}

/// Replaces the newest event about a missing pod with the response of the API server to a dry run. `name` and
/// `namespace` are those of the pod.
pub(super) async fn check(
    event: Option<StartEvent>,
    name: &str,
    namespace: &str,
    rendered: &Rendered,
    context: &Context,
) -> Option<StartEvent> {
    let pod = pod(name, namespace, rendered);
    let response = context.writer.check_create::<Pod>(&pod).await;
    current(event, &response).map(|event| with_resources(event, &pod))
}

/// Adds the resources of the containers to a message about a LimitRange or a quota, which names no container.
fn with_resources(event: StartEvent, pod: &Value) -> StartEvent {
    match event {
        StartEvent::Warning(message) if LIMIT_MESSAGES.iter().any(|part| message.contains(part)) => {
            let resources = serde_json::from_value(pod.clone()).ok().and_then(|pod| pod_state::resources(&pod));
            let resources = resources.map(|resources| format!(" ({resources})")).unwrap_or_default();
            StartEvent::Warning(format!("{message}{resources}"))
        }
        event => event,
    }
}

/// Returns the pod that the StatefulSet controller creates, without the fields that it adds.
fn pod(name: &str, namespace: &str, rendered: &Rendered) -> Value {
    let mut pod = rendered.stateful_set.pointer("/spec/template").cloned().unwrap_or_default();
    if let Some(metadata) = pod.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.extend([("name".to_owned(), json!(name)), ("namespace".to_owned(), json!(namespace))]);
    }
    pod
}

/// Returns the current reason why the pod is missing. `event` describes the last attempt of the StatefulSet controller.
fn current(event: Option<StartEvent>, response: &Result<(), WriteError>) -> Option<StartEvent> {
    match (event, response) {
        (Some(StartEvent::Warning(_)), Ok(())) => Some(StartEvent::Resolved),
        (_, Err(error)) if error.is_invalid() || error.is_forbidden() => {
            error.server_message().map(|message| StartEvent::Warning(message.to_owned()))
        }
        (event, _) => event,
    }
}

/// Makes the StatefulSet controller create the pod immediately.
pub(super) async fn request(stateful_set: &StatefulSet, context: &Context, now: Timestamp) -> Result<(), WriteError> {
    let mark = [(ANNOTATION_REQUESTED.to_owned(), Some(conditions::time(now)))].into();
    context.writer.annotate(stateful_set, &mark).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::writes::AttemptedWrite;

    #[test]
    fn the_response_of_the_api_server_replaces_an_outdated_event() {
        let refused = |code: u16| {
            let (kind, namespace, name) = ("Pod".to_owned(), "apps".to_owned(), "app-workspace-0".to_owned());
            let attempt = Box::new(AttemptedWrite { verb: "validate", kind, namespace, name });
            Err(WriteError::Refused { attempt, code, reason: "Reason".to_owned(), message: "refused".to_owned() })
        };
        let warning = |text: &str| Some(StartEvent::Warning(text.to_owned()));
        let step = || Some(StartEvent::Step("pulling".to_owned()));
        let rows = [
            (warning("before"), refused(403), warning("refused")),
            (None, refused(403), warning("refused")),
            (None, refused(422), warning("refused")),
            (None, refused(400), warning("refused")),
            (warning("before"), Ok(()), Some(StartEvent::Resolved)),
            (None, Ok(()), None),
            (step(), Ok(()), step()),
            (warning("before"), refused(409), warning("before")),
            (warning("before"), refused(500), warning("before")),
        ];
        for (event, response, expected) in rows {
            assert_eq!(current(event.clone(), &response), expected, "{event:?} {response:?}");
        }
    }

    #[test]
    fn the_message_of_a_limit_range_lists_the_resources_of_the_containers() {
        let resources = json!({"requests": {"memory": "16Mi"}, "limits": {"memory": "512Mi"}});
        let spec = json!({"containers": [{"name": "pulumi", "resources": resources}], "initContainers": [{"name": "bootstrap"}]});
        let pod = json!({"metadata": {"name": "app-workspace-0"}, "spec": spec});
        let of = |message: &str| with_resources(StartEvent::Warning(message.to_owned()), &pod);
        let limit =
            "pods \"app-workspace-0\" is forbidden: maximum memory usage per Container is 100Mi, but limit is 512Mi";
        let expected = format!("{limit} (container pulumi requests memory 16Mi and is limited to memory 512Mi)");
        assert_eq!(of(limit), StartEvent::Warning(expected));
        let security = "pods \"app-workspace-0\" is forbidden: violates PodSecurity";
        assert_eq!(of(security), StartEvent::Warning(security.to_owned()));
        let step = StartEvent::Step(limit.to_owned());
        assert_eq!(with_resources(step.clone(), &pod), step);
    }

    #[test]
    fn the_time_of_the_request_is_read_from_the_annotation() {
        let of = |value: &str| {
            let metadata = json!({"annotations": {ANNOTATION_REQUESTED: value}});
            let stateful_set: StatefulSet = serde_json::from_value(json!({"metadata": metadata})).expect("valid");
            requested_at(&stateful_set)
        };
        let now: Timestamp = "2026-01-01T12:00:00Z".parse().expect("valid");
        assert_eq!(of(&conditions::time(now)), Some(now));
        assert_eq!(of("soon"), None);
        assert_eq!(requested_at(&StatefulSet::default()), None);
    }
}

//! Marks a pod while it executes a run:
//!
//! - The finalizer keeps the pod object after a forced deletion, so that the controller can read how the run ended.
//! - The change of the resource version prevents the Workspace controller from deleting the pod as an idle pod.
//! - With `evictionProtection`, the annotations prevent autoscalers from evicting the pod. Another annotation keeps the values that the user has
//!   set, so that the end of the run restores them.
//! - The label adds the pod to the PodDisruptionBudget of the Workspace, which blocks a node drain.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use serde_json::{Value, json};

use crate::api::auto::Update;
use crate::api::names::{ANNOTATION_DO_NOT_DISRUPT, ANNOTATION_RUN_REPLACED, ANNOTATION_SAFE_TO_EVICT};
use crate::api::{conditions, names};
use crate::runtime::writes::{WriteError, Writer};

/// Annotations that pin the pod to its node during the run, and their values.
const PINS: [(&str, &str); 2] = [(ANNOTATION_SAFE_TO_EVICT, "false"), (ANNOTATION_DO_NOT_DISRUPT, "true")];
/// Maximum length of the API server's message in the message about a rejected mark, in bytes.
const MAX_CAUSE: usize = 1024;

/// Returns whether the pod is marked for the run of this Update.
pub fn is_of(pod: &Pod, update: &Update) -> bool {
    let run = pod.annotations().get(names::ANNOTATION_RUN);
    run.is_some() && run == update.metadata.uid.as_ref()
}

/// Returns the name of the Update for whose run the pod is marked, or `None` if the pod has no mark or contains only the
/// UID.
pub fn update_name(pod: &Pod) -> Option<String> {
    let run = pod.annotations().get(names::ANNOTATION_RUN)?;
    let (name, uid) = pod.annotations().get(names::ANNOTATION_RUN_UPDATE)?.split_once('/')?;
    (uid == run).then(|| name.to_owned())
}

/// Marks the pod for the run of an Update. `is_pinned` adds the annotations that prevent autoscalers from evicting the
/// pod.
pub async fn mark(pod: &Pod, update: &Update, is_pinned: bool, writer: &Writer) -> Result<(), WriteError> {
    let uid = update.uid().unwrap_or_default();
    let mut finalizers = pod.finalizers().to_vec();
    if !finalizers.iter().any(|f| f == names::RUN_FINALIZER) {
        finalizers.push(names::RUN_FINALIZER.to_owned());
    }
    let mut annotations = json!({
        names::ANNOTATION_RUN: uid,
        names::ANNOTATION_RUN_UPDATE: format!("{}/{uid}", update.name_any()),
        ANNOTATION_RUN_REPLACED: json!(before_mark(pod)).to_string(),
    });
    for (name, value) in PINS.into_iter().filter(|_| is_pinned) {
        set(&mut annotations, name, json!(value));
    }
    patch(pod, &finalizers, &annotations, Some(names::RUN_OPEN), writer).await
}

/// Returns the message for the status if the API server rejected the mark of the pod and a retry has the same result
/// until a user removes the cause. Returns `None` for all other errors, such as a conflict or a timeout.
pub fn rejection(pod: &Pod, is_pinned: bool, error: &WriteError) -> Option<String> {
    let solution = match error {
        error if error.is_denied_by_admission() && is_pinned => {
            "exclude the pod from the webhook or policy that denied the request, or, if it denies the annotations for autoscalers, set \
             evictionProtection of the Workspace (spec.workspaceTemplate.spec.evictionProtection of a Stack) to false"
        }
        error if error.is_denied_by_admission() => "exclude the pod from the webhook or policy that denied the request",
        error if error.is_forbidden() => "allow the controller to patch pods in the namespace",
        error if error.is_content_rejected() => {
            "remove large annotations from the pod, or exclude the pod from the webhook that changes it"
        }
        _ => return None,
    };
    let name = pod.name_any();
    let cause = conditions::shorten(error.server_message().unwrap_or_default(), MAX_CAUSE);
    Some(format!("the API server rejected the metadata that protects pod {name} during the run: {cause}; {solution}"))
}

/// Removes the metadata of the run from the pod.
pub async fn unmark(pod: &Pod, writer: &Writer) -> Result<(), WriteError> {
    let finalizers: Vec<String> = pod.finalizers().iter().filter(|f| *f != names::RUN_FINALIZER).cloned().collect();
    let mut annotations = json!({
        names::ANNOTATION_RUN: null,
        names::ANNOTATION_RUN_UPDATE: null,
        ANNOTATION_RUN_REPLACED: null,
    });
    let before = before_mark(pod);
    for (name, _) in PINS {
        set(&mut annotations, name, json!(before.get(name)));
    }
    patch(pod, &finalizers, &annotations, None, writer).await
}

/// Returns the values that the annotations in [`PINS`] have without the mark. A marked pod contains these values in
/// [`ANNOTATION_RUN_REPLACED`].
fn before_mark(pod: &Pod) -> BTreeMap<String, String> {
    let annotations = pod.annotations();
    let is_marked = annotations.contains_key(names::ANNOTATION_RUN);
    let mut before = match annotations.get(ANNOTATION_RUN_REPLACED) {
        Some(replaced) if is_marked => serde_json::from_str(replaced).unwrap_or_default(),
        _ if is_marked => BTreeMap::new(),
        _ => annotations.clone(),
    };
    before.retain(|name, _| PINS.iter().any(|(pin, _)| pin == name));
    before
}

fn set(annotations: &mut Value, name: &str, value: Value) {
    if let Some(annotations) = annotations.as_object_mut() {
        annotations.insert(name.to_owned(), value);
    }
}

async fn patch(
    pod: &Pod,
    finalizers: &[String],
    annotations: &Value,
    run: Option<&str>,
    writer: &Writer,
) -> Result<(), WriteError> {
    let patch = json!({"metadata": {
        "resourceVersion": pod.resource_version(),
        "finalizers": finalizers,
        "annotations": annotations,
        "labels": {names::LABEL_RUN: run},
    }});
    let namespace = pod.namespace().unwrap_or_default();
    writer.merge::<Pod>(&namespace, &pod.name_any(), &patch).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::from_value;

    use super::*;
    use crate::api::auto::UpdateSpec;
    use crate::runtime::fake_api::{FakeResponse, apply_json_merge_patch, client};
    use crate::runtime::writes::{AttemptedWrite, Leadership};
    use crate::telemetry::metrics::Metrics;

    /// Returns the pod's annotations after the pod was marked twice for a run, and after the run.
    async fn annotations_during_and_after_a_run(before: Value, is_pinned: bool) -> [BTreeMap<String, String>; 2] {
        let metadata = json!({"name": "web-workspace-0", "namespace": "apps", "resourceVersion": "1"});
        let mut object = json!({"metadata": metadata});
        object["metadata"]["annotations"] = before;
        let response = object.clone();
        let (client, log) = client(move |_| FakeResponse::Json(200, response.clone()));
        let writer = Writer::new(client, Duration::from_secs(1), Leadership::sole(), Metrics::default());
        let pod = |object: &Value| from_value::<Pod>(object.clone()).expect("valid pod");
        for uid in ["first", "second"] {
            let mut update = Update::new("web-1", UpdateSpec::default());
            update.metadata.uid = Some(uid.to_owned());
            mark(&pod(&object), &update, is_pinned, &writer).await.expect("successful write");
            apply_json_merge_patch(&mut object, &log.all().last().expect("a write").body);
        }
        let during = pod(&object);
        unmark(&during, &writer).await.expect("successful write");
        apply_json_merge_patch(&mut object, &log.all().last().expect("a write").body);
        [during, pod(&object)].map(|pod| pod.annotations().clone())
    }

    #[tokio::test]
    async fn the_end_of_a_run_restores_the_annotations_of_the_user() {
        let (evict, disrupt) = (ANNOTATION_SAFE_TO_EVICT, ANNOTATION_DO_NOT_DISRUPT);
        let rows = [
            json!({}),
            json!({evict: "true"}),
            json!({evict: "false", disrupt: "true", "example.com/keep": "1"}),
            json!({disrupt: "false"}),
        ];
        for before in rows {
            let [during, after] = annotations_during_and_after_a_run(before.clone(), true).await;
            assert_eq!((during[evict].as_str(), during[disrupt].as_str()), ("false", "true"), "{before}");
            assert_eq!(json!(after), before);
            let [during, after] = annotations_during_and_after_a_run(before.clone(), false).await;
            assert_eq!(json!([during.get(evict), during.get(disrupt)]), json!([before[evict], before[disrupt]]));
            assert_eq!(json!(after), before);
        }
        // A tenant can change the annotation, which then restores nothing else than the two values.
        let replaced = json!({"example.com/other": "1", evict: "true"}).to_string();
        let pod =
            json!({"metadata": {"annotations": {names::ANNOTATION_RUN: "uid", ANNOTATION_RUN_REPLACED: replaced}}});
        let restored = before_mark(&from_value(pod).expect("valid pod"));
        assert_eq!(json!(restored), json!({evict: "true"}));
        let damaged =
            json!({"metadata": {"annotations": {names::ANNOTATION_RUN: "uid", ANNOTATION_RUN_REPLACED: "x"}}});
        assert_eq!(before_mark(&from_value(damaged).expect("valid pod")), BTreeMap::new());
    }

    #[tokio::test]
    async fn the_mark_names_the_update() {
        let mut object = json!({"metadata": {"name": "web-workspace-0", "namespace": "apps", "resourceVersion": "1"}});
        let response = object.clone();
        let (client, log) = client(move |_| FakeResponse::Json(200, response.clone()));
        let writer = Writer::new(client, Duration::from_secs(1), Leadership::sole(), Metrics::default());
        let mut update = Update::new("web-1", UpdateSpec::default());
        update.metadata.uid = Some("uid".to_owned());
        let pod = |object: &Value| from_value::<Pod>(object.clone()).expect("valid pod");
        assert_eq!(update_name(&pod(&object)), None, "no mark");
        mark(&pod(&object), &update, true, &writer).await.expect("successful write");
        apply_json_merge_patch(&mut object, &log.all()[0].body);
        let marked = pod(&object);
        assert!(is_of(&marked, &update));
        assert_eq!(update_name(&marked).as_deref(), Some("web-1"));
        unmark(&marked, &writer).await.expect("successful write");
        apply_json_merge_patch(&mut object, &log.all()[1].body);
        assert!(pod(&object).annotations().is_empty(), "{object}");
    }

    fn attempt() -> Box<AttemptedWrite> {
        let (kind, namespace, name) = ("Pod".to_owned(), "apps".to_owned(), "web-workspace-0".to_owned());
        Box::new(AttemptedWrite { verb: "patch", kind, namespace, name })
    }

    /// Returns the message for the status after the API server has responded with this error.
    fn message(code: u16, message: &str, is_pinned: bool) -> Option<String> {
        let pod = from_value(json!({"metadata": {"name": "web-workspace-0"}})).expect("valid pod");
        let (reason, message) = ("Reason".to_owned(), message.to_owned());
        rejection(&pod, is_pinned, &WriteError::Refused { attempt: attempt(), code, reason, message })
    }

    #[test]
    fn the_message_about_a_rejected_mark_contains_the_cause_and_the_solution() {
        let webhook = "admission webhook \"pods.example.com\" denied the request: no finalizers";
        let policy = "pods \"web-workspace-0\" is forbidden: ValidatingAdmissionPolicy 'pods' with binding 'pods' denied \
                      request: no finalizers";
        let role = "pods \"web-workspace-0\" is forbidden: User \"controller\" cannot patch resource \"pods\"";
        let size =
            "Pod \"web-workspace-0\" is invalid: metadata.annotations: Too long: may not be more than 262144 bytes";
        let (exclude, allow) = ("exclude the pod from the webhook or policy", "allow the controller to patch pods");
        let remove = "remove large annotations from the pod";
        let rows = [
            (400, webhook, Some(exclude)),
            (403, webhook, Some(exclude)),
            (422, policy, Some(exclude)),
            (403, role, Some(allow)),
            (422, size, Some(remove)),
            (413, "request entity too large", Some(remove)),
            (500, "etcdserver: request is too large", Some(remove)),
            (404, "pods \"web-workspace-0\" not found", None),
            (409, "the object has been modified", None),
            (429, "too many requests", None),
            (500, "failed calling webhook \"pods.example.com\": connection refused", None),
            (503, "apiserver is shutting down", None),
        ];
        for (code, cause, solution) in rows {
            let start = format!(
                "the API server rejected the metadata that protects pod web-workspace-0 during the run: {cause}; "
            );
            let found = message(code, cause, true);
            let is_expected = |found: &String, solution: &str| found.starts_with(&format!("{start}{solution}"));
            match solution {
                Some(solution) => assert!(found.iter().any(|found| is_expected(found, solution)), "{code} {found:?}"),
                None => assert_eq!(found, None, "{code} {cause}"),
            }
        }
        let advice =
            |is_pinned: bool| message(403, webhook, is_pinned).is_some_and(|it| it.contains("evictionProtection"));
        assert_eq!((advice(true), advice(false)), (true, false));
        let long = message(422, &"x".repeat(100_000), true).expect("a message");
        assert!(long.len() < 2 * MAX_CAUSE && long.contains(remove), "the solution follows a long cause: {long}");
    }

    #[test]
    fn a_mark_that_the_api_server_has_not_rejected_is_not_reported() {
        let pod = Pod::default();
        let errors = [
            WriteError::NotLeader { attempt: attempt() },
            WriteError::Timeout { attempt: attempt(), limit: Duration::from_secs(1) },
            WriteError::Nameless { attempt: attempt() },
        ];
        for error in errors {
            assert_eq!(rejection(&pod, true, &error), None, "{error}");
        }
    }

    #[test]
    fn a_name_that_belongs_to_another_mark_is_not_used() {
        let name = |annotations: Value| {
            let pod = json!({"metadata": {"name": "web-workspace-0", "annotations": annotations}});
            update_name(&from_value::<Pod>(pod).expect("valid pod"))
        };
        let (run, update) = (names::ANNOTATION_RUN, names::ANNOTATION_RUN_UPDATE);
        assert_eq!(name(json!({run: "uid", update: "web-1/uid"})).as_deref(), Some("web-1"));
        assert_eq!(name(json!({run: "uid"})), None, "an earlier version marked the pod");
        // An earlier version does not replace the annotation when it marks the pod for the next run.
        assert_eq!(name(json!({run: "uid-2", update: "web-1/uid"})), None);
        assert_eq!(name(json!({run: "uid", update: "web-1"})), None);
    }
}

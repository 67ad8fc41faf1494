//! Marks a pod while it executes a run:
//!
//! - The finalizer keeps the pod object after a forced deletion, so that the controller can read how the run ended.
//! - The change of the resource version prevents the Workspace controller from deleting the pod as an idle pod.
//! - The annotations prevent autoscalers from evicting the pod.
//! - The label adds the pod to the PodDisruptionBudget of the Workspace, which blocks a node drain.

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use serde_json::{Value, json};

use crate::api::auto::Update;
use crate::api::names;
use crate::runtime::writes::{WriteError, Writer};

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

/// Marks the pod for the run of an Update.
pub async fn mark(pod: &Pod, update: &Update, writer: &Writer) -> Result<(), WriteError> {
    let uid = update.uid().unwrap_or_default();
    let mut finalizers = pod.finalizers().to_vec();
    if !finalizers.iter().any(|f| f == names::RUN_FINALIZER) {
        finalizers.push(names::RUN_FINALIZER.to_owned());
    }
    let annotations = json!({
        names::ANNOTATION_RUN: uid,
        names::ANNOTATION_RUN_UPDATE: format!("{}/{uid}", update.name_any()),
        names::ANNOTATION_SAFE_TO_EVICT: "false",
        names::ANNOTATION_DO_NOT_DISRUPT: "true",
    });
    patch(pod, &finalizers, &annotations, Some(names::RUN_OPEN), writer).await
}

/// Removes the metadata of the run from the pod.
pub async fn unmark(pod: &Pod, writer: &Writer) -> Result<(), WriteError> {
    let finalizers: Vec<String> = pod.finalizers().iter().filter(|f| *f != names::RUN_FINALIZER).cloned().collect();
    let annotations = json!({
        names::ANNOTATION_RUN: null,
        names::ANNOTATION_RUN_UPDATE: null,
        names::ANNOTATION_SAFE_TO_EVICT: null,
        names::ANNOTATION_DO_NOT_DISRUPT: null,
    });
    patch(pod, &finalizers, &annotations, None, writer).await
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
    use crate::runtime::writes::Leadership;
    use crate::telemetry::metrics::Metrics;

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
        mark(&pod(&object), &update, &writer).await.expect("successful write");
        apply_json_merge_patch(&mut object, &log.all()[0].body);
        let marked = pod(&object);
        assert!(is_of(&marked, &update));
        assert_eq!(update_name(&marked).as_deref(), Some("web-1"));
        unmark(&marked, &writer).await.expect("successful write");
        apply_json_merge_patch(&mut object, &log.all()[1].body);
        assert!(pod(&object).annotations().is_empty(), "{object}");
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

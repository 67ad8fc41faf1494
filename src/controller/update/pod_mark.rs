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

/// Marks the pod for the run of the Update with this UID.
pub async fn mark(pod: &Pod, uid: &str, writer: &Writer) -> Result<(), WriteError> {
    let mut finalizers = pod.finalizers().to_vec();
    if !finalizers.iter().any(|f| f == names::RUN_FINALIZER) {
        finalizers.push(names::RUN_FINALIZER.to_owned());
    }
    let annotations = json!({
        names::ANNOTATION_RUN: uid,
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

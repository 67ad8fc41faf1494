//! Headless Service of a Workspace, with the labels and annotations of its `serviceTemplate`. Pure functions.

use serde_json::{Map, Value, json};

use super::metadata::{ANNOTATION_RENDERED, labels, metadata};
use super::revision::hash;
use super::spec_error::SpecError;
use crate::api::names::AGENT_PORT;
use crate::controller::merge::{SERVICE_TEMPLATE, merge};

/// Metadata fields that a template may set. The others define how the agent is reached.
const FIELDS: [&str; 2] = ["annotations", "labels"];

/// Returns the Service. Generated labels and the selector take precedence over the template.
pub(super) fn service(name: &str, namespace: &str, template: Option<&Value>) -> Result<Value, SpecError> {
    let mut metadata = metadata(name, namespace);
    // Added even without a template, so that an empty template makes no difference.
    add(&mut metadata, "annotations", None);
    if let Some(template) = template {
        check(template)?;
        let base = json!({"metadata": {"labels": labels(name)}});
        let merged = merge(base, template, &SERVICE_TEMPLATE).map_err(SpecError::ServiceMerge)?;
        for field in FIELDS {
            let users = merged.pointer(&format!("/metadata/{field}")).and_then(Value::as_object);
            add(&mut metadata, field, users);
        }
    }
    let mut service = json!({
        "metadata": metadata,
        "spec": {
            "clusterIP": "None",
            // The controller calls the agent before the pod is ready.
            "publishNotReadyAddresses": true,
            "selector": labels(name),
            "ports": [{"name": "grpc", "port": AGENT_PORT}],
        },
    });
    // The hash detects fields that were removed from the template: the remaining fields alone would still match the existing
    // Service.
    let hash = json!({ANNOTATION_RENDERED: hash(&service)});
    if let Some(metadata) = service.get_mut("metadata") {
        replace(metadata, "annotations", hash.as_object());
    }
    Ok(service)
}

fn check(template: &Value) -> Result<(), SpecError> {
    let unsupported = |field: String| Err(SpecError::ServiceField { field });
    for (field, section) in template.as_object().into_iter().flatten() {
        if field != "metadata" {
            return unsupported(field.clone());
        }
        let mut names = section.as_object().into_iter().flatten().map(|(name, _)| name.as_str());
        if let Some(name) = names.find(|name| !FIELDS.contains(name)) {
            return unsupported(format!("metadata.{name}"));
        }
    }
    Ok(())
}

/// Adds the entries that do not exist yet.
fn add(metadata: &mut Value, field: &str, more: Option<&Map<String, Value>>) {
    let Some(fields) = entry(metadata, field) else { return };
    for (key, value) in more.into_iter().flatten() {
        fields.entry(key.clone()).or_insert_with(|| value.clone());
    }
}

fn replace(metadata: &mut Value, field: &str, more: Option<&Map<String, Value>>) {
    let Some(fields) = entry(metadata, field) else { return };
    fields.extend(more.into_iter().flatten().map(|(key, value)| (key.clone(), value.clone())));
}

fn entry<'a>(metadata: &'a mut Value, field: &str) -> Option<&'a mut Map<String, Value>> {
    metadata.as_object_mut()?.entry(field).or_insert_with(|| json!({})).as_object_mut()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rendered(template: Value) -> Value {
        service("app", "team", Some(&template)).expect("valid")
    }

    #[test]
    fn template_labels_and_annotations_do_not_override_generated_ones() {
        let ours = labels("app");
        let plain = service("app", "team", None).expect("valid");
        let with = rendered(json!({"metadata": {
            "labels": {"team": "a", "auto.pulumi.com/component": "mine"},
            "annotations": {"note": "x"},
        }}));
        assert_eq!(with["metadata"]["labels"]["team"], "a");
        assert_eq!(with["metadata"]["labels"]["auto.pulumi.com/component"], ours["auto.pulumi.com/component"]);
        assert_eq!(with["metadata"]["annotations"]["note"], "x");
        assert_eq!(with["spec"], plain["spec"]);
        let rendered_hash = |service: &Value| service["metadata"]["annotations"][ANNOTATION_RENDERED].clone();
        assert_ne!(rendered_hash(&with), rendered_hash(&plain), "what is taken out again is noticed");
        for nothing in [json!({}), json!({"metadata": null}), json!({"metadata": {"labels": {"$patch": "replace"}}})] {
            assert_eq!(rendered(nothing.clone()), plain, "{nothing}");
        }
    }

    #[test]
    fn unsupported_service_template_fields_are_rejected_by_name() {
        let rows = [
            (json!({"spec": {"type": "LoadBalancer"}}), "serviceTemplate.spec is not supported"),
            (json!({"metadata": {"lables": {}}}), "serviceTemplate.metadata.lables is not supported"),
            (json!({"metadata": {"labels": {"$patch": "remove"}}}), "serviceTemplate: metadata.labels.$patch"),
            (json!({"metadata": "x"}), "serviceTemplate: metadata must be an object"),
        ];
        for (template, wanted) in rows {
            let error = service("app", "team", Some(&template)).expect_err("refused").to_string();
            assert!(error.starts_with(wanted), "{template}: {error}");
        }
    }
}

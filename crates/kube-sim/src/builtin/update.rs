//! Rules about updates of the built-in kinds: fields that cannot change.

use serde_json::{Value, json};

use super::strategy::{copy, text, validate_series};
use crate::apply::is_equal;
use crate::status::Cause;
use crate::store::GroupResource;

/// Fields of the spec of a StatefulSet that an update can change.
const MUTABLE: [&str; 7] = [
    "replicas",
    "ordinals",
    "template",
    "updateStrategy",
    "revisionHistoryLimit",
    "persistentVolumeClaimRetentionPolicy",
    "minReadySeconds",
];
const NO_UPDATE_OF_STATEFUL_SET: &str = "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', 'updateStrategy', 'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden";
const NO_UPDATE_OF_POD: &str = "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";

/// Returns the reasons why an update is invalid, in addition to those for new objects.
pub(crate) fn validate_update(id: &GroupResource, object: &Value, old: &Value, subresource: &str) -> Vec<Cause> {
    let mut causes = Vec::new();
    match id.resource.as_str() {
        "secrets" | "configmaps" => validate_data_update(object, old, &mut causes),
        "statefulsets" if subresource == "status" => validate_replicas(object, &mut causes),
        "statefulsets" if !is_equal(&without_mutable_fields(object), &without_mutable_fields(old)) => {
            causes.push(Cause::forbidden("spec", NO_UPDATE_OF_STATEFUL_SET));
        }
        "deployments" | "replicasets" if object.pointer("/spec/selector") != old.pointer("/spec/selector") => {
            causes.push(immutable("spec.selector", &json!({})));
        }
        "services" => {
            let (new, before) = (text(object, "/spec/clusterIP"), text(old, "/spec/clusterIP"));
            let is_external = text(object, "/spec/type") == "ExternalName" || text(old, "/spec/type") == "ExternalName";
            if new != before && !is_external {
                causes.push(Cause::invalid("spec.clusterIPs[0]", &json!([new]), "may not change once set"));
            }
        }
        "pods" => validate_pod_update(object, old, &mut causes),
        "events" if id.group == "events.k8s.io" => validate_event_update(object, old, &mut causes),
        _ => {}
    }
    causes
}

fn field(object: &Value, name: &str) -> Value {
    object.get(name).cloned().unwrap_or_default()
}

fn immutable(field: &str, value: &Value) -> Cause {
    Cause::invalid(field, value, "field is immutable")
}

fn validate_data_update(object: &Value, old: &Value, causes: &mut Vec<Cause>) {
    if field(object, "type") != field(old, "type") {
        causes.push(immutable("type", &field(object, "type")));
    }
    if old.get("immutable") != Some(&json!(true)) {
        return;
    }
    let detail = "field is immutable when `immutable` is set";
    if object.get("immutable") != Some(&json!(true)) {
        causes.push(Cause::forbidden("immutable", detail));
    }
    for name in ["data", "binaryData"] {
        if field(object, name) != field(old, name) {
            causes.push(Cause::forbidden(name, detail));
        }
    }
}

fn validate_replicas(object: &Value, causes: &mut Vec<Cause>) {
    let count = |name: &str| object.pointer(&format!("/status/{name}")).and_then(Value::as_i64).unwrap_or_default();
    for name in ["readyReplicas", "currentReplicas", "updatedReplicas", "availableReplicas"] {
        if count(name) > count("replicas") {
            let detail = "cannot be greater than status.replicas";
            causes.push(Cause::invalid(&format!("status.{name}"), &count(name).into(), detail));
        }
    }
}

fn without_mutable_fields(object: &Value) -> Value {
    let mut spec = field(object, "spec");
    if let Value::Object(spec) = &mut spec {
        spec.retain(|name, _| !MUTABLE.contains(&name.as_str()));
    }
    spec
}

fn validate_event_update(object: &Value, old: &Value, causes: &mut Vec<Cause>) {
    // Errors name the fields of the older event type. The API server checks the reason twice.
    let fields = [
        ("regarding", "involvedObject"),
        ("reason", "reason"),
        ("note", "message"),
        ("reason", "reason"),
        ("type", "type"),
        ("eventTime", "eventTime"),
        ("action", "action"),
        ("related", "related"),
        ("reportingController", "reportingController"),
        ("reportingInstance", "reportingInstance"),
    ];
    for (name, path) in fields {
        if field(object, name) != field(old, name) {
            causes.push(immutable(path, &field(object, name)));
        }
    }
    if field(object, "series") != field(old, "series") {
        validate_series(object, causes);
    }
}

fn validate_pod_update(object: &Value, old: &Value, causes: &mut Vec<Cause>) {
    for list in ["containers", "initContainers"] {
        let of = |object: &Value| {
            object.pointer(&format!("/spec/{list}")).and_then(Value::as_array).cloned().unwrap_or_default()
        };
        let containers = of(object);
        if containers.len() != of(old).len() {
            causes.push(Cause::forbidden(&format!("spec.{list}"), "pod updates may not add or remove containers"));
            return;
        }
        let without_image = |container: &Value| text(container, "/image").is_empty();
        for (index, _) in containers.iter().enumerate().filter(|(_, container)| without_image(container)) {
            causes.push(Cause::required(&format!("spec.{list}[{index}].image")));
        }
    }
    let tolerations = |pod: &Value| -> Vec<Value> {
        let list = pod.pointer("/spec/tolerations").and_then(Value::as_array).cloned().unwrap_or_default();
        let without_seconds = |mut toleration: Value| {
            toleration.as_object_mut().and_then(|toleration| toleration.remove("tolerationSeconds"));
            toleration
        };
        list.into_iter().map(without_seconds).collect()
    };
    let new = tolerations(object);
    if tolerations(old).iter().any(|toleration| !new.contains(toleration)) {
        let detail = "existing toleration can not be modified except its tolerationSeconds";
        causes.push(Cause::forbidden("spec.tolerations", detail));
    }
    if !is_equal(&without_mutable_parts(object, old), &without_mutable_parts(old, old)) {
        causes.push(Cause::forbidden("spec", NO_UPDATE_OF_POD));
    }
}

/// Returns the spec of a pod with those parts of the old pod that an update can change.
fn without_mutable_parts(object: &Value, old: &Value) -> Value {
    let mut spec = object.get("spec").cloned().unwrap_or_default();
    let before = old.get("spec").cloned().unwrap_or_default();
    copy(&before, &mut spec, "activeDeadlineSeconds");
    copy(&before, &mut spec, "tolerations");
    for containers in ["containers", "initContainers"] {
        let images = before.get(containers).and_then(Value::as_array).cloned().unwrap_or_default();
        let list = spec.get_mut(containers).and_then(Value::as_array_mut);
        for (container, before) in list.into_iter().flatten().zip(&images) {
            copy(before, container, "image");
        }
    }
    spec
}

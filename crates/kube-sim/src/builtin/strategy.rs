//! Rules of the endpoints of the built-in kinds: which fields a write can set, when the generation increases, and which
//! new objects are valid. The validation covers the fields that controllers usually set, and not all fields of a pod.

use serde_json::{Map, Value, json};

use crate::apply::is_equal;
use crate::status::Cause;
use crate::store::GroupResource;

/// Returns whether a PUT of a missing object creates the object.
pub(crate) fn allows_create_on_update(id: &GroupResource) -> bool {
    matches!(id.resource.as_str(), "leases" | "services" | "events")
}

/// Returns whether an update without a resource version is possible.
pub(crate) fn allows_unconditional_update(id: &GroupResource) -> bool {
    !matches!(id.resource.as_str(), "leases" | "poddisruptionbudgets")
}

pub(super) fn text<'v>(object: &'v Value, pointer: &str) -> &'v str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

fn has_generation(id: &GroupResource) -> bool {
    let kinds = ["pods", "statefulsets", "deployments", "replicasets", "networkpolicies", "poddisruptionbudgets"];
    kinds.contains(&id.resource.as_str())
}

/// Returns the termination grace period of an object in seconds. Only pods have one.
pub(crate) fn default_grace_seconds(id: &GroupResource, object: &Value, requested: Option<i64>) -> Option<i64> {
    if id.resource != "pods" {
        return None;
    }
    let configured = object.pointer("/spec/terminationGracePeriodSeconds").and_then(Value::as_i64);
    let period = requested.or(configured).unwrap_or(30);
    let is_on_node = !text(object, "/spec/nodeName").is_empty();
    let has_ended = matches!(text(object, "/status/phase"), "Succeeded" | "Failed");
    Some(if is_on_node && !has_ended { period } else { 0 })
}

fn set(object: &mut Value, name: &str, value: Value) {
    if let Value::Object(map) = object {
        map.insert(name.to_owned(), value);
    }
}

pub(super) fn copy(from: &Value, to: &mut Value, name: &str) {
    if let Value::Object(to) = to {
        match from.get(name) {
            Some(value) => drop(to.insert(name.to_owned(), value.clone())),
            None => drop(to.remove(name)),
        }
    }
}

fn set_generation(object: &mut Value, generation: i64) {
    if let Some(metadata) = object.get_mut("metadata") {
        set(metadata, "generation", generation.into());
    }
}

/// Removes what a client cannot set in a new object, and sets what the API server decides.
pub(crate) fn prepare_for_create(id: &GroupResource, object: &mut Value) {
    if has_generation(id) {
        set_generation(object, 1);
    }
    match id.resource.as_str() {
        "pods" => {
            let mut status = json!({ "phase": "Pending", "qosClass": quality_of_service(object) });
            if let Value::Object(status) = &mut status {
                status.retain(|_, value| !value.is_null());
            }
            set(object, "status", status);
            prepare_pod(object);
        }
        "namespaces" => {
            set(object, "status", json!({ "phase": "Active" }));
            let finalizers = object.pointer("/spec/finalizers").and_then(Value::as_array).cloned();
            let mut finalizers = finalizers.unwrap_or_default();
            if !finalizers.contains(&json!("kubernetes")) {
                finalizers.push("kubernetes".into());
            }
            set(object, "spec", json!({ "finalizers": finalizers }));
        }
        "statefulsets" => set(object, "status", json!({ "replicas": 0, "availableReplicas": 0 })),
        "deployments" => set(object, "status", json!({})),
        "replicasets" => set(object, "status", json!({ "replicas": 0 })),
        "services" => set(object, "status", json!({ "loadBalancer": {} })),
        "poddisruptionbudgets" => set(object, "status", budget_status()),
        "persistentvolumeclaims" => set(object, "status", json!({ "phase": "Pending" })),
        _ => {}
    }
}

fn budget_status() -> Value {
    json!({ "disruptionsAllowed": 0, "currentHealthy": 0, "desiredHealthy": 0, "expectedPods": 0 })
}

/// Sets what the standard admission plugins set in each new pod.
fn prepare_pod(object: &mut Value) {
    let Some(Value::Object(fields)) = object.get_mut("spec") else { return };
    fields.entry("priority").or_insert_with(|| json!(0));
    fields.entry("preemptionPolicy").or_insert_with(|| json!("PreemptLowerPriority"));
    add_default_tolerations(object);
}

/// Adds the tolerations that each pod has.
fn add_default_tolerations(object: &mut Value) {
    let Some(Value::Object(fields)) = object.get_mut("spec") else { return };
    let tolerations = fields.entry("tolerations").or_insert_with(|| json!([]));
    let Value::Array(tolerations) = tolerations else { return };
    for key in ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"] {
        let tolerates = |toleration: &Value| {
            let is_for =
                |name: &str, value: &str| matches!(text(toleration, name), found if found.is_empty() || found == value);
            is_for("/key", key) && is_for("/effect", "NoExecute")
        };
        if !tolerations.iter().any(tolerates) {
            let toleration =
                json!({ "key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300 });
            tolerations.push(toleration);
        }
    }
}

fn quality_of_service(pod: &Value) -> &'static str {
    let containers = ["/spec/containers", "/spec/initContainers"].into_iter();
    let containers = containers.filter_map(|pointer| pod.pointer(pointer)?.as_array()).flatten();
    let resources: Vec<(Map<String, Value>, Map<String, Value>)> = containers
        .map(|container| {
            let of = |name: &str| container.pointer(&format!("/resources/{name}")).and_then(Value::as_object).cloned();
            (of("requests").unwrap_or_default(), of("limits").unwrap_or_default())
        })
        .collect();
    let has = |map: &Map<String, Value>| map.contains_key("cpu") || map.contains_key("memory");
    if !resources.iter().any(|(requests, limits)| has(requests) || has(limits)) {
        return "BestEffort";
    }
    let is_guaranteed = |(requests, limits): &(Map<String, Value>, Map<String, Value>)| {
        ["cpu", "memory"].iter().all(|name| limits.contains_key(*name) && limits.get(*name) == requests.get(*name))
    };
    if resources.iter().all(is_guaranteed) { "Guaranteed" } else { "Burstable" }
}

/// Restores what a client cannot change with an update through the main endpoint.
pub(crate) fn prepare_for_update(id: &GroupResource, object: &mut Value, old: &Value, has_status: bool) {
    if has_status {
        copy(old, object, "status");
    }
    match id.resource.as_str() {
        "namespaces" => copy(old, object, "spec"),
        "services" => keep_addresses(object, old),
        "pods" => {
            add_default_tolerations(object);
            if let (Some(spec), Some(before)) = (object.get_mut("spec"), old.get("spec")) {
                for name in ["priority", "preemptionPolicy"]
                    .into_iter()
                    .filter(|name| spec.get(name).is_none())
                    .collect::<Vec<_>>()
                {
                    copy(before, spec, name);
                }
            }
        }
        "secrets" if text(object, "/type").is_empty() => copy(old, object, "type"),
        _ => {}
    }
    if has_generation(id) {
        let empty = Value::Null;
        let spec = |object: &Value| object.get("spec").unwrap_or(&empty).clone();
        let generation = old.pointer("/metadata/generation").and_then(Value::as_i64).unwrap_or_default();
        let is_changed = !is_equal(&spec(object), &spec(old));
        set_generation(object, if is_changed { generation + 1 } else { generation });
    }
}

/// Restores what a client cannot change with an update of the status.
pub(crate) fn prepare_for_status_update(id: &GroupResource, object: &mut Value, old: &Value) {
    copy(old, object, "spec");
    if id.resource == "pods"
        && let (Some(status), Some(before)) = (object.get_mut("status"), old.get("status"))
    {
        copy(before, status, "qosClass");
    }
    if id.resource == "pods"
        && let (Some(metadata), Some(before)) = (object.get_mut("metadata"), old.get("metadata"))
    {
        copy(before, metadata, "ownerReferences");
    }
    if id.resource == "services" || id.resource == "nodes" {
        return;
    }
    if id.resource == "statefulsets"
        && let (Some(metadata), Some(before)) = (object.get_mut("metadata"), old.get("metadata"))
    {
        copy(before, metadata, "generation");
    }
}

/// Keeps the allocated addresses of a Service if an update does not contain them.
fn keep_addresses(object: &mut Value, old: &Value) {
    let (Some(spec), Some(before)) = (object.get_mut("spec"), old.get("spec")) else { return };
    if text(spec, "/type") == "ExternalName" || text(before, "/type") == "ExternalName" {
        return;
    }
    for name in ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
        if spec.get(name).is_none_or(|value| value.is_null() || value.as_str() == Some("")) {
            copy(before, spec, name);
        }
    }
}

/// Returns the reasons why a new object is invalid.
pub(crate) fn validate(id: &GroupResource, object: &Value, is_new: bool) -> Vec<Cause> {
    let mut causes = Vec::new();
    let name = text(object, "/metadata/name");
    if is_new && !is_valid_name(id, name) {
        let detail = "a valid name consists of lower case alphanumeric characters, '-' or '.', and starts and ends with an alphanumeric character";
        causes.push(Cause::invalid("metadata.name", &name.into(), detail));
    }
    match id.resource.as_str() {
        "pods" => {
            validate_pod_spec(object.get("spec"), "spec", &mut causes);
            let volumes = object.pointer("/spec/volumes").and_then(Value::as_array).into_iter().flatten();
            for (index, volume) in volumes.enumerate().filter(|(_, volume)| volume.get("ephemeral").is_some()) {
                // The name of the claim consists of the names of the pod and of the volume.
                if !is_subdomain(name) {
                    let field = format!("spec.volumes[{index}].name");
                    causes.push(Cause::invalid(&field, &field_of(volume, "name"), "PVC name is invalid"));
                }
            }
        }
        "statefulsets" | "deployments" | "replicasets" => validate_template_owner(object, &mut causes),
        "secrets" | "configmaps" => validate_data(object, &mut causes),
        "services" => validate_service(object, &mut causes),
        "leases" => validate_lease(object, &mut causes),
        "poddisruptionbudgets" => {
            let has = |name: &str| object.pointer(&format!("/spec/{name}")).is_some();
            if has("minAvailable") && has("maxUnavailable") {
                causes.push(Cause::invalid("spec", &json!({}), "minAvailable and maxUnavailable cannot be both set"));
            }
        }
        "events" if id.group == "events.k8s.io" => {
            if is_new {
                validate_new_event(object, &mut causes);
            }
            validate_event(object, &mut causes);
        }
        _ => {}
    }
    causes
}

fn field_of(object: &Value, name: &str) -> Value {
    object.get(name).cloned().unwrap_or_default()
}

fn validate_pod_spec(spec: Option<&Value>, path: &str, causes: &mut Vec<Cause>) {
    let none = json!({});
    let spec = spec.unwrap_or(&none);
    let containers = spec.get("containers").and_then(Value::as_array).cloned().unwrap_or_default();
    if containers.is_empty() {
        causes.push(Cause::required(&format!("{path}.containers")));
    }
    let init = spec.get("initContainers").and_then(Value::as_array).cloned().unwrap_or_default();
    let volumes = spec.get("volumes").and_then(Value::as_array).cloned().unwrap_or_default();
    for (index, volume) in volumes.iter().enumerate() {
        let template = volume.pointer("/ephemeral/volumeClaimTemplate");
        if template.is_some_and(|template| template.pointer("/spec/resources/requests/storage").is_none()) {
            let field = format!("{path}.volumes[{index}].ephemeral.volumeClaimTemplate.spec.resources[storage]");
            causes.push(Cause::required(&field));
        }
    }
    let mut names = Vec::new();
    for (list, items) in [("initContainers", &init), ("containers", &containers)] {
        for (index, container) in items.iter().enumerate() {
            let at = format!("{path}.{list}[{index}]");
            let name = text(container, "/name").to_owned();
            if name.is_empty() {
                causes.push(Cause::required(&format!("{at}.name")));
            } else if !is_label(&name) {
                causes.push(Cause::invalid(&format!("{at}.name"), &name.clone().into(), "must be an RFC 1123 label"));
            } else if names.contains(&name) {
                causes.push(Cause::field(
                    "FieldValueDuplicate",
                    &format!("{at}.name"),
                    &format!("Duplicate value: {name:?}"),
                ));
            }
            if text(container, "/image").is_empty() {
                causes.push(Cause::required(&format!("{at}.image")));
            }
            for (number, mount) in
                container.get("volumeMounts").and_then(Value::as_array).into_iter().flatten().enumerate()
            {
                let name = text(mount, "/name");
                if !volumes.iter().any(|volume| text(volume, "/name") == name) {
                    let field = format!("{at}.volumeMounts[{number}].name");
                    causes.push(Cause::field("FieldValueNotFound", &field, &format!("Not found: {name:?}")));
                }
            }
            names.push(name);
        }
    }
}

fn validate_template_owner(object: &Value, causes: &mut Vec<Cause>) {
    let labels =
        object.pointer("/spec/template/metadata/labels").and_then(Value::as_object).cloned().unwrap_or_default();
    match object.pointer("/spec/selector") {
        None | Some(Value::Null) => {
            causes.push(Cause::required("spec.selector"));
            let detail = "`selector` does not match template `labels`";
            causes.push(Cause::invalid("spec.template.metadata.labels", &Value::Object(labels), detail));
        }
        Some(selector) => {
            let wanted = selector.get("matchLabels").and_then(Value::as_object).cloned().unwrap_or_default();
            let expressions =
                selector.get("matchExpressions").and_then(Value::as_array).is_some_and(|list| !list.is_empty());
            if wanted.is_empty() && !expressions {
                let detail = "empty selector is invalid for statefulset";
                causes.push(Cause::invalid("spec.selector", selector, detail));
            } else if wanted.iter().any(|(name, value)| labels.get(name) != Some(value)) {
                let detail = "`selector` does not match template `labels`";
                causes.push(Cause::invalid("spec.template.metadata.labels", &Value::Object(labels), detail));
            }
        }
    }
    if object.pointer("/spec/replicas").and_then(Value::as_i64).is_some_and(|replicas| replicas < 0) {
        causes.push(Cause::invalid("spec.replicas", &json!(-1), "must be greater than or equal to 0"));
    }
    let strategy = object.pointer("/spec/updateStrategy");
    if let Some(strategy) = strategy {
        match text(strategy, "/type") {
            "OnDelete" if strategy.get("rollingUpdate").is_some() => {
                let detail = "only allowed for updateStrategy 'RollingUpdate'";
                causes.push(Cause::invalid("spec.updateStrategy.rollingUpdate", &json!({}), detail));
            }
            "OnDelete" | "RollingUpdate" => {}
            other => {
                let detail = "must be 'RollingUpdate' or 'OnDelete'";
                causes.push(Cause::invalid("spec.updateStrategy", &other.into(), detail));
            }
        }
    }
    let policy = text(object, "/spec/template/spec/restartPolicy");
    if policy != "Always" {
        let field = "spec.template.spec.restartPolicy";
        causes.push(Cause::not_supported(field, &policy.into(), &["Always".into()]));
    }
    // The API server adds a volume for each claim in front of the other volumes.
    let claims = object.pointer("/spec/volumeClaimTemplates").and_then(Value::as_array).into_iter().flatten();
    let claims = claims.map(|claim| json!({ "name": claim.pointer("/metadata/name") }));
    let mut spec = object.pointer("/spec/template/spec").cloned().unwrap_or_default();
    if let Value::Object(spec) = &mut spec {
        let volumes = spec.get("volumes").and_then(Value::as_array).cloned().unwrap_or_default();
        spec.insert("volumes".to_owned(), claims.chain(volumes).collect());
    }
    validate_pod_spec(Some(&spec), "spec.template.spec", causes);
}

fn validate_data(object: &Value, causes: &mut Vec<Cause>) {
    for field in ["data", "binaryData"] {
        for (key, _) in object.get(field).and_then(Value::as_object).into_iter().flatten() {
            let is_valid = !key.is_empty()
                && key.len() <= 253
                && key != "."
                && !key.starts_with("..")
                && key.chars().all(|c| c.is_ascii_alphanumeric() || "-._".contains(c));
            if !is_valid {
                let detail = "a valid config key must consist of alphanumeric characters, '-', '_' or '.'";
                causes.push(Cause::invalid(&format!("{field}[{key}]"), &key.clone().into(), detail));
            }
        }
    }
    let required: &[&str] = match text(object, "/type") {
        "kubernetes.io/tls" => &["tls.crt", "tls.key"],
        _ => &[],
    };
    for key in required.iter().filter(|key| object.pointer(&format!("/data/{key}")).is_none()) {
        causes.push(Cause::required(&format!("data[{key}]")));
    }
}

fn validate_service(object: &Value, causes: &mut Vec<Cause>) {
    let is_headless = text(object, "/spec/clusterIP") == "None";
    let ports = object.pointer("/spec/ports").and_then(Value::as_array).cloned().unwrap_or_default();
    if ports.is_empty() && !is_headless && text(object, "/spec/type") != "ExternalName" {
        causes.push(Cause::required("spec.ports"));
    }
    for (index, port) in ports.iter().enumerate() {
        let at = format!("spec.ports[{index}]");
        if ports.len() > 1 && text(port, "/name").is_empty() {
            causes.push(Cause::required(&format!("{at}.name")));
        }
        let number = port.get("port").and_then(Value::as_i64).unwrap_or_default();
        if !(1..=65535).contains(&number) {
            causes.push(Cause::invalid(
                &format!("{at}.port"),
                &number.into(),
                "must be between 1 and 65535, inclusive",
            ));
        }
        if let Some(target) =
            port.get("targetPort").and_then(Value::as_i64).filter(|target| !(1..=65535).contains(target))
        {
            let detail = "must be between 1 and 65535, inclusive";
            causes.push(Cause::invalid(&format!("{at}.targetPort"), &target.into(), detail));
        }
        let name = text(port, "/name");
        if !name.is_empty() && ports.iter().take(index).any(|other| text(other, "/name") == name) {
            let detail = format!("Duplicate value: {name:?}");
            causes.push(Cause::field("FieldValueDuplicate", &format!("{at}.name"), &detail));
        }
    }
}

fn validate_lease(object: &Value, causes: &mut Vec<Cause>) {
    let number = |name: &str| object.pointer(&format!("/spec/{name}")).and_then(Value::as_i64);
    if let Some(seconds) = number("leaseDurationSeconds").filter(|seconds| *seconds <= 0) {
        causes.push(Cause::invalid("spec.leaseDurationSeconds", &seconds.into(), "must be greater than 0"));
    }
    if let Some(count) = number("leaseTransitions").filter(|count| *count < 0) {
        causes.push(Cause::invalid("spec.leaseTransitions", &count.into(), "must be greater than or equal to 0"));
    }
    if !text(object, "/spec/preferredHolder").is_empty() && text(object, "/spec/strategy").is_empty() {
        causes.push(Cause::forbidden("spec.preferredHolder", "may only be specified if `strategy` is defined"));
    }
}

fn validate_new_event(object: &Value, causes: &mut Vec<Cause>) {
    if text(object, "/eventTime").is_empty() {
        causes.push(Cause::required("eventTime"));
    }
    if !matches!(text(object, "/type"), "Normal" | "Warning") {
        causes.push(Cause::invalid("type", &"".into(), "has invalid value"));
    }
    validate_series(object, causes);
}

fn validate_event(object: &Value, causes: &mut Vec<Cause>) {
    for field in ["reportingController", "reportingInstance", "action", "reason"] {
        if text(object, &format!("/{field}")).is_empty() {
            causes.push(Cause::required(field));
        }
    }
    for (field, max) in [("reportingInstance", 128), ("action", 128), ("reason", 128), ("note", 1024)] {
        if text(object, &format!("/{field}")).len() > max {
            let field = if field == "note" { "message" } else { field };
            causes.push(Cause::invalid(field, &"".into(), &format!("can have at most {max} characters")));
        }
    }
    let (own, regarding) = (text(object, "/metadata/namespace"), text(object, "/regarding/namespace"));
    if regarding.is_empty() && !matches!(own, "default" | "kube-system") {
        let detail = "does not match event.namespace";
        causes.push(Cause::invalid("involvedObject.namespace", &regarding.into(), detail));
    }
}

pub(super) fn validate_series(object: &Value, causes: &mut Vec<Cause>) {
    let Some(series) = object.get("series").filter(|series| !series.is_null()) else { return };
    if series.get("count").and_then(Value::as_i64).unwrap_or_default() < 2 {
        causes.push(Cause::invalid("series.count", &"".into(), "should be at least 2"));
    }
    if text(series, "/lastObservedTime").is_empty() {
        causes.push(Cause::required("series.lastObservedTime"));
    }
}

fn is_valid_name(id: &GroupResource, name: &str) -> bool {
    match id.resource.as_str() {
        "namespaces" => is_label(name),
        "services" => is_label(name),
        // The API server does not check the names of budgets.
        "poddisruptionbudgets" => true,
        _ => is_subdomain(name),
    }
}

fn is_label(name: &str) -> bool {
    let is_edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
    name.len() <= 63
        && is_edge(name.chars().next())
        && is_edge(name.chars().last())
        && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
}

/// Returns whether a name is a DNS subdomain, as most names of objects must be.
pub(crate) fn is_subdomain(name: &str) -> bool {
    let is_part =
        |part: &str| !part.is_empty() && is_label(&part.chars().take(63).collect::<String>()) && !part.ends_with('-');
    name.len() <= 253 && name.split('.').all(is_part)
}

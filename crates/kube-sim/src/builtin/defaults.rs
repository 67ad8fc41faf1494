//! Defaults of the built-in kinds.

use serde_json::{Map, Value, json};

use crate::store::GroupResource;

/// Sets the defaults of an object.
pub(crate) fn set_defaults(id: &GroupResource, object: &mut Value) {
    match id.resource.as_str() {
        "pods" => pod(object),
        "services" => service(object),
        "secrets" => secret(object),
        "statefulsets" => stateful_set(object),
        "deployments" | "replicasets" => template_owner(object, &id.resource),
        "networkpolicies" => network_policy(object),
        "namespaces" => namespace(object),
        "persistentvolumeclaims" => claim(object),
        _ => {}
    }
}

fn entry<'v>(object: &'v mut Value, name: &str, empty: &Value) -> &'v mut Value {
    if !object.is_object() {
        *object = json!({});
    }
    // The value is an object here.
    let Value::Object(map) = object else { return object };
    map.entry(name.to_owned()).or_insert_with(|| empty.clone())
}

fn put(object: &mut Value, name: &str, value: &Value) {
    let missing = |found: &Value| found.is_null() || found.as_str() == Some("");
    if let Value::Object(map) = object
        && map.get(name).is_none_or(missing)
    {
        map.insert(name.to_owned(), value.clone());
    }
}

fn each<'v>(object: &'v mut Value, name: &str) -> impl Iterator<Item = &'v mut Value> {
    object.get_mut(name).and_then(Value::as_array_mut).into_iter().flatten()
}

fn namespace(object: &mut Value) {
    let name = object.pointer("/metadata/name").cloned().unwrap_or_default();
    if name.as_str().is_some_and(|name| !name.is_empty()) {
        let metadata = entry(object, "metadata", &json!({}));
        let labels = entry(metadata, "labels", &json!({}));
        if let Value::Object(labels) = labels {
            labels.insert("kubernetes.io/metadata.name".to_owned(), name);
        }
    }
}

fn secret(object: &mut Value) {
    put(object, "type", &json!("Opaque"));
    let text = object.as_object_mut().and_then(|object| object.remove("stringData"));
    let Some(Value::Object(text)) = text else { return };
    let data = entry(object, "data", &json!({}));
    if let Value::Object(data) = data {
        for (name, value) in text {
            let encoded =
                base64::Engine::encode(&base64::engine::general_purpose::STANDARD, value.as_str().unwrap_or_default());
            data.insert(name, encoded.into());
        }
    }
}

fn service(object: &mut Value) {
    let spec = entry(object, "spec", &json!({}));
    put(spec, "sessionAffinity", &json!("None"));
    put(spec, "type", &json!("ClusterIP"));
    let is_external_name = spec.get("type").and_then(Value::as_str) == Some("ExternalName");
    if !is_external_name {
        put(spec, "internalTrafficPolicy", &json!("Cluster"));
    }
    for port in each(spec, "ports") {
        put(port, "protocol", &json!("TCP"));
        let target = port.get("port").cloned().unwrap_or_default();
        if matches!(port.get("targetPort"), None | Some(Value::Null)) || port.get("targetPort") == Some(&json!(0)) {
            put(port, "targetPort", &target);
            if let Value::Object(port) = port {
                port.insert("targetPort".to_owned(), target);
            }
        }
    }
}

fn stateful_set(object: &mut Value) {
    let spec = entry(object, "spec", &json!({}));
    put(spec, "podManagementPolicy", &json!("OrderedReady"));
    put(spec, "replicas", &json!(1));
    put(spec, "revisionHistoryLimit", &json!(10));
    let retention = entry(spec, "persistentVolumeClaimRetentionPolicy", &json!({}));
    put(retention, "whenDeleted", &json!("Retain"));
    put(retention, "whenScaled", &json!("Retain"));
    let strategy = entry(spec, "updateStrategy", &json!({}));
    if strategy.get("type").and_then(Value::as_str).unwrap_or_default().is_empty() {
        put(strategy, "type", &json!("RollingUpdate"));
        put(strategy, "rollingUpdate", &json!({}));
    }
    if strategy.get("type").and_then(Value::as_str) == Some("RollingUpdate")
        && let Some(rolling) = strategy.get_mut("rollingUpdate")
    {
        put(rolling, "partition", &json!(0));
    }
    for template in each(spec, "volumeClaimTemplates") {
        put(template, "apiVersion", &json!("v1"));
        put(template, "kind", &json!("PersistentVolumeClaim"));
        claim(template);
    }
    template(spec);
}

fn template_owner(object: &mut Value, resource: &str) {
    let spec = entry(object, "spec", &json!({}));
    put(spec, "replicas", &json!(1));
    if resource == "deployments" {
        put(spec, "revisionHistoryLimit", &json!(10));
        put(spec, "progressDeadlineSeconds", &json!(600));
        let strategy = entry(spec, "strategy", &json!({}));
        put(strategy, "type", &json!("RollingUpdate"));
        if strategy.get("type").and_then(Value::as_str) == Some("RollingUpdate") {
            let rolling = entry(strategy, "rollingUpdate", &json!({}));
            put(rolling, "maxUnavailable", &json!("25%"));
            put(rolling, "maxSurge", &json!("25%"));
        }
    }
    template(spec);
}

fn template(spec: &mut Value) {
    let template = entry(spec, "template", &json!({}));
    pod_spec(entry(template, "spec", &json!({})));
}

fn claim(object: &mut Value) {
    let spec = entry(object, "spec", &json!({}));
    put(spec, "volumeMode", &json!("Filesystem"));
    put(entry(object, "status", &json!({})), "phase", &json!("Pending"));
}

fn network_policy(object: &mut Value) {
    let spec = entry(object, "spec", &json!({}));
    if spec.get("policyTypes").and_then(Value::as_array).is_none_or(Vec::is_empty) {
        let has_egress = spec.get("egress").and_then(Value::as_array).is_some_and(|rules| !rules.is_empty());
        let types = if has_egress { json!(["Ingress", "Egress"]) } else { json!(["Ingress"]) };
        if let Value::Object(spec) = spec {
            spec.insert("policyTypes".to_owned(), types);
        }
    }
    for direction in ["ingress", "egress"] {
        for rule in each(spec, direction) {
            each(rule, "ports").for_each(|port| put(port, "protocol", &json!("TCP")));
        }
    }
}

fn pod(object: &mut Value) {
    let spec = entry(object, "spec", &json!({}));
    put(spec, "enableServiceLinks", &json!(true));
    for containers in ["containers", "initContainers"] {
        for container in each(spec, containers) {
            let limits = container.pointer("/resources/limits").and_then(Value::as_object).cloned().unwrap_or_default();
            if !limits.is_empty() {
                let requests = entry(entry(container, "resources", &json!({})), "requests", &json!({}));
                limits.iter().for_each(|(name, value)| put(requests, name, value));
            }
        }
    }
    pod_spec(spec);
}

fn pod_spec(spec: &mut Value) {
    put(spec, "dnsPolicy", &json!("ClusterFirst"));
    put(spec, "restartPolicy", &json!("Always"));
    put(spec, "securityContext", &json!({}));
    put(spec, "terminationGracePeriodSeconds", &json!(30));
    put(spec, "schedulerName", &json!("default-scheduler"));
    // Both fields have the same meaning, and the API server always writes both.
    if let Some(account) = spec.get("serviceAccountName").or_else(|| spec.get("serviceAccount")).cloned()
        && account.as_str().is_some_and(|account| !account.is_empty())
        && let Value::Object(spec) = spec
    {
        spec.insert("serviceAccount".to_owned(), account.clone());
        spec.insert("serviceAccountName".to_owned(), account);
    }
    for containers in ["containers", "initContainers"] {
        each(spec, containers).for_each(container);
    }
    each(spec, "volumes").for_each(volume);
}

fn container(container: &mut Value) {
    let image = container.get("image").and_then(Value::as_str).unwrap_or_default();
    let policy = if is_latest(image) { "Always" } else { "IfNotPresent" };
    put(container, "imagePullPolicy", &json!(policy));
    put(container, "terminationMessagePath", &json!("/dev/termination-log"));
    put(container, "terminationMessagePolicy", &json!("File"));
    for port in each(container, "ports") {
        put(port, "protocol", &json!("TCP"));
    }
    for variable in each(container, "env") {
        if let Some(reference) = variable.pointer_mut("/valueFrom/fieldRef") {
            put(reference, "apiVersion", &json!("v1"));
        }
        if let Some(reference) = variable.pointer_mut("/valueFrom/resourceFieldRef") {
            put(reference, "divisor", &json!("0"));
        }
    }
    for name in ["livenessProbe", "readinessProbe", "startupProbe"] {
        let Some(probe) = container.get_mut(name).filter(|probe| probe.is_object()) else { continue };
        for (field, default) in
            [("timeoutSeconds", 1), ("periodSeconds", 10), ("successThreshold", 1), ("failureThreshold", 3)]
        {
            if probe.get(field) == Some(&json!(0))
                && let Value::Object(probe) = probe
            {
                probe.remove(field);
            }
            put(probe, field, &json!(default));
        }
        http_action(probe);
        if let Some(grpc) = probe.get_mut("grpc") {
            let grpc = grpc.as_object_mut();
            if let Some(grpc) = grpc {
                grpc.entry("service").or_insert_with(|| json!(""));
            }
        }
    }
    for hook in ["postStart", "preStop"] {
        if let Some(hook) = container.pointer_mut(&format!("/lifecycle/{hook}")) {
            http_action(hook);
        }
    }
}

fn http_action(handler: &mut Value) {
    if let Some(action) = handler.get_mut("httpGet") {
        put(action, "path", &json!("/"));
        put(action, "scheme", &json!("HTTP"));
    }
}

/// Returns whether the tag of an image is `latest`, which is also the default.
fn is_latest(image: &str) -> bool {
    if image.is_empty() {
        return false;
    }
    let name = image.rsplit('/').next().unwrap_or_default();
    match name.split_once('@') {
        Some(_) => false,
        None => name.split_once(':').is_none_or(|(_, tag)| tag == "latest"),
    }
}

fn volume(volume: &mut Value) {
    let Value::Object(sources) = volume else { return };
    if sources.iter().all(|(name, value)| name == "name" || value.is_null()) {
        sources.insert("emptyDir".to_owned(), json!({}));
    }
    let defaults: [(&str, Map<String, Value>); 5] = [
        ("secret", Map::from_iter([("defaultMode".to_owned(), json!(420))])),
        ("configMap", Map::from_iter([("defaultMode".to_owned(), json!(420))])),
        ("downwardAPI", Map::from_iter([("defaultMode".to_owned(), json!(420))])),
        ("projected", Map::from_iter([("defaultMode".to_owned(), json!(420))])),
        ("hostPath", Map::from_iter([("type".to_owned(), json!(""))])),
    ];
    for (name, fields) in defaults {
        let Some(Value::Object(source)) = sources.get_mut(name) else { continue };
        for (field, value) in fields {
            source.entry(field).or_insert(value);
        }
    }
    for source in sources.get_mut("projected").into_iter().flat_map(|projected| each(projected, "sources")) {
        if let Some(token) = source.get_mut("serviceAccountToken") {
            put(token, "expirationSeconds", &json!(3600));
        }
    }
    if let Some(template) = volume.pointer_mut("/ephemeral/volumeClaimTemplate/spec") {
        put(template, "volumeMode", &json!("Filesystem"));
    }
}

//! Random objects.

use fastrand::Rng;
use serde_json::{Map, Value, json};

/// Kind that the test sends.
pub struct Kind {
    pub api_version: String,
    pub kind: String,
    pub plural: String,
    pub has_status: bool,
    pub source: Source,
}

/// Where the content of the objects of a kind comes from.
pub enum Source {
    BuiltIn(fn(&mut Rng) -> Value),
    Widget,
    /// Schema of a CustomResourceDefinition.
    Schema(Value),
}

impl Kind {
    pub fn path(&self, namespace: &str) -> String {
        let root = if self.api_version.contains('/') { "apis" } else { "api" };
        format!("/{root}/{}/namespaces/{namespace}/{}", self.api_version, self.plural)
    }

    /// Returns the content of an object: all fields except the metadata. `is_invalid` asks for a mistake.
    pub fn content(&self, rng: &mut Rng, is_invalid: bool) -> Value {
        match &self.source {
            Source::BuiltIn(content) => content(rng),
            Source::Widget => {
                let mut content = json!({ "spec": widget(rng, is_invalid) });
                if rng.u8(..) < 20 {
                    content["status"] = widget_status(rng);
                }
                if rng.u8(..) < 10 {
                    content["extra"] = 1.into();
                }
                content
            }
            Source::Schema(schema) => {
                let mut content = Map::new();
                if let Some(properties) = schema["properties"].as_object() {
                    for (name, schema) in properties
                        .iter()
                        .filter(|(name, _)| !["apiVersion", "kind", "metadata", "status"].contains(&name.as_str()))
                    {
                        content.insert(name.clone(), of_schema(rng, schema, 0, if is_invalid { 10 } else { 1 }));
                    }
                }
                Value::Object(content)
            }
        }
    }

    pub fn status(&self, rng: &mut Rng) -> Value {
        match &self.source {
            Source::Widget => widget_status(rng),
            Source::Schema(schema) => of_schema(rng, &schema["properties"]["status"], 0, 2),
            Source::BuiltIn(_) => match self.kind.as_str() {
                "Pod" => {
                    json!({ "phase": pick(rng, &["Pending", "Running", "Failed"]), "conditions": [{ "type": "Ready", "status": pick(rng, &["True", "False"]) }] })
                }
                "StatefulSet" => {
                    json!({ "replicas": rng.u8(0..2), "readyReplicas": rng.u8(0..2), "observedGeneration": 1 })
                }
                "PodDisruptionBudget" => {
                    json!({ "disruptionsAllowed": 1, "currentHealthy": 1, "desiredHealthy": 1, "expectedPods": rng.u8(1..3) })
                }
                _ => json!({ "loadBalancer": {} }),
            },
        }
    }
}

fn pick<'a>(rng: &mut Rng, values: &[&'a str]) -> &'a str {
    values[rng.usize(..values.len())]
}

fn some(rng: &mut Rng, map: &mut Map<String, Value>, chance: u8, name: &str, value: impl FnOnce(&mut Rng) -> Value) {
    if rng.u8(..100) < chance {
        let value = value(rng);
        map.insert(name.to_owned(), value);
    }
}

fn widget(rng: &mut Rng, is_invalid: bool) -> Value {
    let mut spec = Map::new();
    spec.insert("size".to_owned(), rng.u8(0..92).into());
    some(rng, &mut spec, 50, "mode", |rng| pick(rng, &["Small", "Large"]).into());
    some(rng, &mut spec, 30, "fixed", |rng| pick(rng, &["a", "b"]).into());
    some(rng, &mut spec, 30, "name", |rng| pick(rng, &["abc", "x"]).into());
    some(rng, &mut spec, 30, "note", |rng| if rng.bool() { Value::Null } else { "text".into() });
    some(rng, &mut spec, 15, "when", |_| "2026-01-01T00:00:00Z".into());
    some(rng, &mut spec, 30, "port", |rng| if rng.bool() { 80.into() } else { "http".into() });
    some(rng, &mut spec, 10, "ratio", |rng| if rng.bool() { 1.into() } else { 0.5.into() });
    some(rng, &mut spec, 30, "free", |rng| json!({ "any": rng.u8(0..3), "list": [1, { "a": null }], "empty": {} }));
    some(rng, &mut spec, 40, "labels", |rng| json!({ pick(rng, &["a", "b", "c"]): pick(rng, &["x", "y"]) }));
    some(rng, &mut spec, 40, "tags", |rng| (0..rng.u8(0..4)).map(|_| pick(rng, &["a", "b"])).collect());
    some(rng, &mut spec, 40, "set", |rng| {
        let all = ["a", "b", "c", "d"];
        all.iter().filter(|_| rng.bool()).copied().collect()
    });
    some(rng, &mut spec, 50, "parts", |rng| {
        let names: Vec<&str> = ["a", "b", "c"].into_iter().filter(|_| rng.bool()).collect();
        names
            .into_iter()
            .map(|name| {
                if rng.bool() {
                    json!({ "name": name })
                } else {
                    json!({ "name": name, "count": rng.u8(0..3), "limit": "2m" })
                }
            })
            .collect()
    });
    some(rng, &mut spec, 30, "atomic", |rng| json!({ "a": pick(rng, &["x", "y"]) }));
    some(rng, &mut spec, 40, "nested", |rng| {
        if rng.bool() { json!({ "enabled": rng.bool() }) } else { json!({ "deep": { "value": rng.u8(0..3) } }) }
    });
    if is_invalid {
        let (name, value) = match rng.u8(0..22) {
            0 => ("size", json!("x")),
            1 => ("size", json!(101)),
            2 => ("size", json!(95)),
            3 => ("size", Value::Null),
            4 => ("mode", json!("Other")),
            5 => ("mode", Value::Null),
            6 => ("name", json!("ABC")),
            7 => ("name", json!("")),
            8 => ("when", json!("yesterday")),
            9 => ("labels", json!({ "a": "too long" })),
            10 => ("labels", json!({ "a": 1 })),
            11 => ("tags", json!(["a", "b", "c", "d"])),
            12 => ("set", json!(["a", "a"])),
            13 => ("parts", json!([{ "name": "a" }, { "name": "a" }])),
            14 => ("parts", json!([{ "count": 1 }])),
            15 => ("parts", json!([{ "name": "a", "limit": "1s" }])),
            16 => ("port", json!(true)),
            17 => ("nested", json!({ "enabled": "yes" })),
            18 => ("fixed", json!("longer than ten")),
            19 => ("parts", json!([{ "name": "a", "limit": "soon" }])),
            20 => ("nested", Value::Null),
            _ => ("unknown", json!({ "a": 1 })),
        };
        spec.insert(name.to_owned(), value);
    }
    Value::Object(spec)
}

fn widget_status(rng: &mut Rng) -> Value {
    let mut status = Map::new();
    some(rng, &mut status, 60, "phase", |rng| pick(rng, &["Ready", "Failed", "Failed", "Invalid"]).into());
    some(rng, &mut status, 60, "observedGeneration", |rng| rng.u8(0..3).into());
    some(
        rng,
        &mut status,
        60,
        "conditions",
        |rng| json!([{ "type": "Ready", "status": pick(rng, &["True", "False"]), "message": pick(rng, &["", "a"]) }]),
    );
    Value::Object(status)
}

/// Returns a value of a schema. `mistakes` is the percentage of wrong values.
fn of_schema(rng: &mut Rng, schema: &Value, depth: u8, mistakes: u8) -> Value {
    if rng.u8(..100) < mistakes {
        return match rng.u8(0..5) {
            0 => "text".into(),
            1 => 7.into(),
            2 => Value::Null,
            3 => json!([]),
            _ => json!({}),
        };
    }
    if let Some(values) = schema["enum"].as_array() {
        return values[rng.usize(..values.len())].clone();
    }
    if schema["x-kubernetes-int-or-string"] == true {
        return if rng.bool() { 1.into() } else { "10%".into() };
    }
    match schema["type"].as_str() {
        Some("object") => {
            let mut map = Map::new();
            let required: Vec<&str> =
                schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
            for (name, field) in schema["properties"].as_object().into_iter().flatten() {
                let is_required = required.contains(&name.as_str());
                let chance = 40_u8.saturating_sub(depth.saturating_mul(10)).max(5);
                if is_required || (depth < 5 && rng.u8(..100) < chance) {
                    map.insert(name.clone(), of_schema(rng, field, depth + 1, mistakes));
                }
            }
            if schema["additionalProperties"].is_object() {
                for key in ["a", "b"] {
                    if rng.bool() {
                        map.insert(
                            key.to_owned(),
                            of_schema(rng, &schema["additionalProperties"], depth + 1, mistakes),
                        );
                    }
                }
            }
            Value::Object(map)
        }
        Some("array") => (0..rng.u8(0..3)).map(|_| of_schema(rng, &schema["items"], depth + 1, mistakes)).collect(),
        Some("integer") => (schema["minimum"].as_i64().unwrap_or(0) + i64::from(rng.u8(0..3))).into(),
        Some("number") => 0.5.into(),
        Some("boolean") => rng.bool().into(),
        Some("string") => match schema["format"].as_str() {
            Some("date-time") => "2026-01-01T00:00:00Z".into(),
            Some("duration") => "5m".into(),
            _ => text(rng, schema).into(),
        },
        _ => json!({ "any": 1 }),
    }
}

/// Returns a text that usually matches the pattern of a schema.
fn text(rng: &mut Rng, schema: &Value) -> &'static str {
    const DIGEST: &str = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
    let texts = [
        "a",
        "main",
        "5m",
        "team/app",
        "",
        "https://example.com/x",
        "1.2.3",
        DIGEST,
        "* * * * *",
        "A_B",
        "urn:pulumi:a::b::c::d",
    ];
    let pattern = schema["pattern"].as_str().and_then(|pattern| regex::Regex::new(pattern).ok());
    let min = schema["minLength"].as_u64().unwrap_or_default();
    for _ in 0..30 {
        let text = texts[rng.usize(..texts.len())];
        if pattern.as_ref().is_none_or(|pattern| pattern.is_match(text)) && text.len() as u64 >= min {
            return text;
        }
    }
    "a"
}

/// Returns the kinds of the test.
pub fn kinds(definitions: &[Value], no_controllers: bool, only: Option<String>) -> Vec<Kind> {
    let mut kinds = Vec::new();
    let built_in: &[(&str, &str, &str, bool, fn(&mut Rng) -> Value)] = &[
        (
            "v1",
            "ConfigMap",
            "configmaps",
            false,
            |rng| json!({ "data": { pick(rng, &["a", "b", "c"]): pick(rng, &["x", "y"]) } }),
        ),
        ("v1", "Secret", "secrets", false, secret),
        ("v1", "Service", "services", true, service),
        ("v1", "Pod", "pods", true, pod),
        ("coordination.k8s.io/v1", "Lease", "leases", false, lease),
        ("events.k8s.io/v1", "Event", "events", false, event),
        ("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies", false, network_policy),
    ];
    let controlled: &[(&str, &str, &str, bool, fn(&mut Rng) -> Value)] = &[
        ("apps/v1", "StatefulSet", "statefulsets", true, stateful_set),
        ("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets", true, budget),
    ];
    let controlled = controlled.iter().filter(|_| no_controllers);
    for (api_version, kind, plural, has_status, content) in built_in.iter().chain(controlled) {
        kinds.push(Kind {
            api_version: (*api_version).to_owned(),
            kind: (*kind).to_owned(),
            plural: (*plural).to_owned(),
            has_status: *has_status,
            source: Source::BuiltIn(*content),
        });
    }
    for definition in definitions {
        let spec = &definition["spec"];
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let is_widget = spec["names"]["kind"] == "Widget";
        for version in spec["versions"].as_array().unwrap().iter().filter(|version| version["served"] == true) {
            let kind = || Kind {
                api_version: format!("{}/{}", text(&spec["group"]), text(&version["name"])),
                kind: text(&spec["names"]["kind"]),
                plural: text(&spec["names"]["plural"]),
                has_status: version["subresources"]["status"].is_object(),
                source: if is_widget {
                    Source::Widget
                } else {
                    Source::Schema(version["schema"]["openAPIV3Schema"].clone())
                },
            };
            kinds.push(kind());
            if is_widget && version["storage"] == true {
                (0..4).for_each(|_| kinds.push(kind()));
            }
        }
    }
    kinds.retain(|kind| only.as_ref().is_none_or(|only| only.split(',').any(|name| name == kind.kind)));
    kinds
}

fn secret(rng: &mut Rng) -> Value {
    let mut secret = json!({ "data": { pick(rng, &["a", "b"]): pick(rng, &["eA==", "eQ=="]) } });
    match rng.u8(0..12) {
        0 => secret["type"] = "example.com/own".into(),
        1 => secret["stringData"] = json!({ "s": "text" }),
        2 => secret["immutable"] = true.into(),
        3 => secret["data"]["bad key"] = "eA==".into(),
        4 => secret["data"]["a"] = "not base64".into(),
        5 => secret["type"] = "kubernetes.io/tls".into(),
        _ => {}
    }
    secret
}

fn service(rng: &mut Rng) -> Value {
    let mut spec = json!({ "selector": { "app": pick(rng, &["a", "b"]) }, "ports": [{ "name": "http", "port": rng.u16(80..83) }] });
    match rng.u8(0..8) {
        0 => spec["ports"] = json!([{ "port": 80, "name": "a" }, { "port": 81, "name": "b", "targetPort": "web" }]),
        1 => spec["ports"] = json!([]),
        2 => spec["ports"][0]["port"] = 0.into(),
        3..6 => spec["clusterIP"] = "None".into(),
        _ => {}
    }
    json!({ "spec": spec })
}

/// Returns the spec of a realistic pod without some of its optional fields.
fn rich_pod_spec(rng: &mut Rng) -> Value {
    let memory = pick(rng, &["16Mi", "1024Mi", "0.5Gi", "100M", "1.5Gi", "many"]);
    let cpu = pick(rng, &["1", "1000m", "0.5", "250m"]);
    let security = json!({ "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] } });
    let probe = json!({ "httpGet": { "path": "/readyz", "port": 50052 }, "periodSeconds": 10, "timeoutSeconds": 2 });
    let mut main = json!({
        "name": "app", "image": "example/app:3", "command": ["/share/bin/agent"], "imagePullPolicy": "IfNotPresent",
        "env": [
            { "name": "URL", "value": "s3://state" }, { "name": "EMPTY", "value": "" },
            { "name": "TOKEN", "valueFrom": { "secretKeyRef": { "key": "token", "name": "a.secret", "optional": true } } },
            { "name": "POD_UID", "valueFrom": { "fieldRef": { "fieldPath": "metadata.uid" } } },
            { "name": "LIMIT", "valueFrom": { "resourceFieldRef": { "resource": "limits.memory" } } },
        ],
        "envFrom": [{ "secretRef": { "name": "b", "optional": true } }, { "configMapRef": { "name": "c" } }],
        "ports": [{ "containerPort": 50051, "name": "tls-agent" }, { "containerPort": 50052 }],
        "readinessProbe": probe, "startupProbe": probe, "livenessProbe": { "grpc": { "port": 50053 } },
        "lifecycle": { "preStop": { "exec": { "command": ["/bin/true"] } } },
        "resources": { "requests": { "memory": memory, "cpu": cpu }, "limits": { "memory": "2Gi" } },
        "securityContext": security, "workingDir": "/share", "terminationMessagePolicy": "File",
        "volumeMounts": [{ "mountPath": "/share", "name": "share" }, { "mountPath": "/tls", "name": "tls", "readOnly": true }],
    });
    let mut spec = json!({
        "initContainers": [
            { "name": "bootstrap", "image": "controller:1", "command": ["/agent"], "securityContext": security, "volumeMounts": [{ "mountPath": "/share", "name": "share" }] },
            { "name": "sidecar", "image": "proxy", "restartPolicy": "Always" },
        ],
        "automountServiceAccountToken": false, "enableServiceLinks": false, "nodeSelector": { "kubernetes.io/os": "linux" },
        "securityContext": { "runAsGroup": 1000, "runAsNonRoot": true, "runAsUser": 1000, "fsGroup": 1000, "seccompProfile": { "type": "RuntimeDefault" } },
        "terminationGracePeriodSeconds": 600, "priorityClassName": "", "hostNetwork": false,
        "imagePullSecrets": [{ "name": "registry" }],
        "tolerations": [{ "key": "a", "operator": "Exists" }],
        "topologySpreadConstraints": [{ "maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": { "matchLabels": { "app": "a" } } }],
        "affinity": { "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": [{ "matchExpressions": [{ "key": "a", "operator": "In", "values": ["b"] }] }] } } },
    });
    for fields in [&mut main, &mut spec] {
        let fields = fields.as_object_mut().unwrap();
        fields.retain(|name, _| {
            ["name", "image", "initContainers", "automountServiceAccountToken"].contains(&name.as_str())
                || rng.u8(..10) < 7
        });
    }
    if rng.bool() {
        spec.as_object_mut().unwrap().remove("initContainers");
    }
    spec["containers"] = json!([main]);
    spec["serviceAccountName"] = "default".into();
    spec["schedulerName"] = "nobody".into();
    spec["volumes"] = json!([
        { "name": "share", "emptyDir": { "sizeLimit": memory } },
        { "name": "tls", "secret": { "optional": false, "secretName": "tls" } },
        { "name": "token", "projected": { "sources": [{ "serviceAccountToken": { "path": "token", "audience": "a" } }, { "configMap": { "name": "ca" } }] } },
        { "name": "cache", "ephemeral": { "volumeClaimTemplate": { "spec": { "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1024Mi" } } } } } },
        { "name": "claim", "persistentVolumeClaim": { "claimName": "c" } },
    ]);
    spec
}

fn pod_spec(rng: &mut Rng) -> Value {
    if rng.u8(..10) < 4 {
        return rich_pod_spec(rng);
    }
    let mut spec = json!({
        "serviceAccountName": "default", "automountServiceAccountToken": false, "schedulerName": "nobody",
        "containers": [{ "name": "main", "image": pick(rng, &["a", "a:1", "b.example.com/a@sha256:0000000000000000000000000000000000000000000000000000000000000000"]) }],
    });
    match rng.u8(0..12) {
        0 => spec["containers"] = json!([]),
        1 => spec["containers"][0]["image"] = "".into(),
        2 => spec["containers"][0]["ports"] = json!([{ "containerPort": 80, "name": "http" }]),
        3 => {
            spec["containers"][0]["env"] = json!([{ "name": "A", "value": "x" }, { "name": "B", "valueFrom": { "fieldRef": { "fieldPath": "metadata.name" } } }, { "name": "C" }])
        }
        4 => spec["containers"][0]["resources"] = json!({ "limits": { "cpu": "1", "memory": "1Gi" } }),
        5 => spec["containers"][0]["readinessProbe"] = json!({ "httpGet": { "port": 80 }, "timeoutSeconds": 0 }),
        6 => spec["volumes"] = json!([{ "name": "v" }, { "name": "s", "secret": { "secretName": "s" } }]),
        7 => spec["containers"][0]["volumeMounts"] = json!([{ "name": "missing", "mountPath": "/m" }]),
        8 => spec["initContainers"] = json!([{ "name": "init", "image": "i", "args": [] }]),
        9 => spec["securityContext"] = json!({ "runAsNonRoot": true }),
        10 => spec["terminationGracePeriodSeconds"] = rng.u8(0..3).into(),
        _ => {}
    }
    spec
}

fn pod(rng: &mut Rng) -> Value {
    let mut spec = pod_spec(rng);
    if rng.u8(..) < 80 {
        spec["nodeName"] = "no-such-node".into();
    }
    json!({ "spec": spec })
}

fn stateful_set(rng: &mut Rng) -> Value {
    let mut spec = json!({
        "selector": { "matchLabels": { "app": "a" } }, "serviceName": "s",
        "template": { "metadata": { "labels": { "app": "a" } }, "spec": pod_spec(rng) },
    });
    match rng.u8(0..8) {
        0 => spec["updateStrategy"] = json!({ "type": "OnDelete" }),
        1 => spec["replicas"] = rng.u8(0..2).into(),
        2 => spec["template"]["metadata"]["labels"] = json!({ "app": "b" }),
        3 => spec["selector"] = Value::Null,
        4 => {
            spec["volumeClaimTemplates"] = json!([{ "metadata": { "name": "data" }, "spec": { "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } } } }])
        }
        5 => spec["serviceName"] = "other".into(),
        _ => {}
    }
    json!({ "spec": spec })
}

fn budget(rng: &mut Rng) -> Value {
    let mut spec = json!({ "selector": { "matchLabels": { "app": pick(rng, &["a", "b"]) } } });
    match rng.u8(0..4) {
        0 => spec["minAvailable"] = 1.into(),
        1 => spec["maxUnavailable"] = "50%".into(),
        2 => spec["maxUnavailable"] = rng.u8(0..2).into(),
        _ => (spec["minAvailable"], spec["maxUnavailable"]) = (1.into(), 1.into()),
    }
    json!({ "spec": spec })
}

fn lease(rng: &mut Rng) -> Value {
    let mut spec = json!({ "holderIdentity": pick(rng, &["a", "b", ""]), "leaseDurationSeconds": rng.u8(0..3), "renewTime": "2026-01-01T00:00:00.000001Z" });
    match rng.u8(0..5) {
        0 => spec["leaseTransitions"] = rng.i8(-1..2).into(),
        1 => spec["acquireTime"] = "2026-01-01T00:00:00Z".into(),
        2 => spec["renewTime"] = "now".into(),
        _ => {}
    }
    json!({ "spec": spec })
}

fn event(rng: &mut Rng) -> Value {
    let mut event = json!({
        "eventTime": "2026-01-01T00:00:00.000000Z", "type": pick(rng, &["Normal", "Warning"]), "reason": pick(rng, &["A", "B"]), "action": "Run",
        "reportingController": "example.com/test", "reportingInstance": "test-0", "note": pick(rng, &["a", "b"]),
        "regarding": { "apiVersion": "v1", "kind": "Pod", "name": "p", "namespace": "NAMESPACE" },
    });
    match rng.u8(0..10) {
        0 => event["series"] = json!({ "count": rng.u8(1..4), "lastObservedTime": "2026-01-01T00:00:00.000000Z" }),
        1 => event["type"] = "Other".into(),
        2 => event["eventTime"] = Value::Null,
        3 => event["action"] = "".into(),
        4 => event["regarding"]["namespace"] = "elsewhere".into(),
        _ => {}
    }
    event
}

fn network_policy(rng: &mut Rng) -> Value {
    let mut spec = json!({ "podSelector": { "matchLabels": { "app": pick(rng, &["a", "b"]) } } });
    match rng.u8(0..4) {
        0 => spec["ingress"] = json!([{ "ports": [{ "port": 80 }], "from": [{ "podSelector": {} }] }]),
        1 => spec["egress"] = json!([{ "to": [{ "namespaceSelector": {} }] }]),
        2 => spec["policyTypes"] = json!(["Egress"]),
        _ => {}
    }
    json!({ "spec": spec })
}

//! A sequence of random requests, which both servers receive.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};

use fastrand::Rng;
use kube_sim::Kinds;
use serde_json::{Value, json};

use crate::canonical::{Names, differences};
use crate::generate::Kind;
use crate::sides::{Response, Side};

const LENGTH: usize = 20;
const PARTIAL: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
const PARTIAL_LIST: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
const TABLE: &str = "application/json;as=Table;g=meta.k8s.io;v=v1";

/// Request with placeholders for identifiers.
struct Planned {
    /// Row of the coverage table.
    row: String,
    method: &'static str,
    path: String,
    content_type: &'static str,
    accept: &'static str,
    body: Option<Value>,
    /// Object whose last version the placeholders mean.
    name: String,
    is_list: bool,
}

/// What a client knows about the objects of one server.
#[derive(Default)]
struct Known {
    current: HashMap<String, Value>,
    stale: HashMap<String, Value>,
    names: Names,
    token: String,
}

impl Known {
    fn learn(&mut self, response: &Response) {
        let body = &response.body;
        if response.code < 300
            && body["metadata"]["uid"].is_string()
            && let Some(name) = body["metadata"]["name"].as_str()
        {
            // A response to a dry run of a creation contains no resource version.
            if body["metadata"]["resourceVersion"].is_string()
                && let Some(before) = self.current.insert(name.to_owned(), body.clone())
            {
                self.stale.insert(name.to_owned(), before);
            }
        }
        if let Some(token) = body["metadata"]["continue"].as_str() {
            token.clone_into(&mut self.token);
        }
    }

    /// Replaces placeholders.
    fn fill(&self, value: &Value, name: &str) -> Value {
        let of = |objects: &HashMap<String, Value>, field: &str| {
            objects.get(name).map_or_else(|| Value::from("1"), |object| object["metadata"][field].clone())
        };
        match value {
            Value::String(text) => match text.as_str() {
                "$uid" => of(&self.current, "uid"),
                "$version" => of(&self.current, "resourceVersion"),
                "$stale" => of(&self.stale, "resourceVersion"),
                "$fields" => {
                    self.current.get(name).map_or(json!([]), |object| renamed(&object["metadata"]["managedFields"]))
                }
                "$finalizers" => {
                    self.current.get(name).map_or(Value::Null, |object| object["metadata"]["finalizers"].clone())
                }
                _ => value.clone(),
            },
            Value::Array(list) => list.iter().map(|item| self.fill(item, name)).collect(),
            Value::Object(map) if map.contains_key("$object") => {
                let mut object = self.current.get(name).cloned().unwrap_or_else(|| json!({}));
                json_patch::merge(&mut object, &self.fill(&map["$object"], name));
                object
            }
            Value::Object(map) => {
                Value::Object(map.iter().map(|(key, value)| (key.clone(), self.fill(value, name))).collect())
            }
            other => other.clone(),
        }
    }
}

/// Returns managed fields with another manager, as a takeover writes them.
fn renamed(fields: &Value) -> Value {
    let mut fields = fields.clone();
    for entry in fields.as_array_mut().into_iter().flatten() {
        if entry["manager"] == "one" && entry["operation"] == "Update" {
            entry["operation"] = "Apply".into();
        }
    }
    let mut seen = Vec::new();
    if let Some(entries) = fields.as_array_mut() {
        entries.retain(|entry| {
            let key = (entry["manager"].clone(), entry["operation"].clone(), entry["subresource"].clone());
            let is_new = !seen.contains(&key);
            seen.push(key);
            is_new
        });
    }
    fields
}

/// Runs a sequence on both servers. Returns the differences.
pub async fn run(
    real: &Side,
    served: &Kinds,
    kinds: &Arc<Vec<Kind>>,
    (namespace, has_collector): (&str, bool),
    seed: u64,
    coverage: &Arc<Mutex<BTreeMap<String, [u64; 3]>>>,
) -> Vec<String> {
    let mut rng = Rng::with_seed(seed);
    let kind = &kinds[rng.usize(..kinds.len())];
    let (model, _server) = Side::simulated(served, namespace, seed);
    let mut plan = Plan {
        rng,
        kind,
        namespace,
        prefix: format!("s{seed}"),
        has_token: false,
        has_generated: false,
        has_collector,
    };
    let (mut ours, mut theirs) = (Known::default(), Known::default());
    let mut found = Vec::new();
    let mut marker = None;
    for seed in 0..1000 {
        let planned = plan.marker("begin", seed);
        let dry_run = Planned { path: format!("{}?dryRun=All", planned.path), ..plan.marker("begin", seed) };
        if send(&model, &ours, &dry_run).await.code == 201 {
            marker = Some((planned, seed));
            break;
        }
    }
    let Some((begin, marker)) = marker else {
        return vec![format!("seed {seed}: no valid object of kind {}", kind.kind)];
    };
    let (first, second) = tokio::join!(send(&model, &ours, &begin), send(real, &theirs, &begin));
    let starts =
        [first, second].map(|response| response.body["metadata"]["resourceVersion"].as_str().unwrap_or("1").to_owned());
    let mut log = Vec::new();
    for _ in 0..LENGTH {
        let planned = plan.next();
        let (answer, truth) = tokio::join!(send(&model, &ours, &planned), send(real, &theirs, &planned));
        if planned.is_list {
            let has_token = |response: &Response| {
                response.body["metadata"]["continue"].as_str().is_some_and(|token| !token.is_empty())
            };
            plan.has_token = has_token(&answer) && has_token(&truth);
        }
        ours.learn(&answer);
        theirs.learn(&truth);
        let (answer, truth) = (filtered(&answer, &plan.prefix), filtered(&truth, &plan.prefix));
        let (one, other) = (ours.names.response(&answer), theirs.names.response(&truth));
        let column = usize::from(truth.code >= 400) + usize::from(truth.code >= 500);
        coverage.lock().unwrap().entry(planned.row.clone()).or_default()[column] += 1;
        let body = planned.body.as_ref().map(|body| theirs.fill(body, &planned.name).to_string()).unwrap_or_default();
        log.push(format!("  {} {} {} {} -> {}", planned.row, planned.method, planned.path, body, truth.code));
        if one != other {
            let mut paths = Vec::new();
            differences("", &one, &other, &mut paths);
            let history: Vec<String> = log.iter().filter(|line| line.contains(&planned.name)).cloned().collect();
            found.push(format!(
                "seed {seed} {} {}: {}\n{}\n    model: {}\n    real:  {}\n{}",
                kind.api_version,
                kind.kind,
                planned.row,
                paths.join("\n"),
                answer.body["message"],
                truth.body["message"],
                history.join("\n")
            ));
            return found;
        }
    }
    let end = plan.marker("end", marker);
    tokio::join!(send(&model, &ours, &end), send(real, &theirs, &end));
    let (selector, accept) = match plan.rng.u8(0..3) {
        0 => ("&labelSelector=a%3Dx", ""),
        1 => ("", PARTIAL),
        _ => ("", ""),
    };
    let last = if selector.is_empty() { end.name.clone() } else { format!("{}-end", plan.prefix) };
    let path = |start: &str| {
        format!("{}?watch=true&resourceVersion={start}&timeoutSeconds=10{selector}", kind.path(namespace))
    };
    let (one, other) = (path(&starts[0]), path(&starts[1]));
    let (one, other) = tokio::join!(model.watch(&one, accept, &last), real.watch(&other, accept, &last));
    // Other objects of the namespace can still change.
    let is_mine = |event: &&Value| {
        event["type"] == "ERROR" || event["object"]["metadata"]["labels"]["sequence"] == plan.prefix.as_str()
    };
    let one: Vec<Value> = one.iter().filter(is_mine).map(|event| ours.names.value(event)).collect();
    let other: Vec<Value> = other.iter().filter(is_mine).map(|event| theirs.names.value(event)).collect();
    *coverage.lock().unwrap().entry("watch events".to_owned()).or_default().first_mut().unwrap() += other.len() as u64;
    if one != other {
        let mut paths = Vec::new();
        differences("", &json!(one), &json!(other), &mut paths);
        let brief = |events: &[Value]| {
            events
                .iter()
                .map(|event| format!("{} {}", event["type"], event["object"]["metadata"]["name"]))
                .collect::<Vec<_>>()
                .join(", ")
        };
        found.push(format!(
            "seed {seed} {} watch {selector}\n    model {}\n    real  {}\n{}\n{}",
            kind.kind,
            brief(&one),
            brief(&other),
            paths.join("\n"),
            log.join("\n")
        ));
    }
    found
}

/// Removes list items of other sequences.
fn filtered(response: &Response, prefix: &str) -> Response {
    let mut response = response.clone();
    if response.body["items"].is_null() && response.body["kind"] == "PartialObjectMetadataList" {
        response.body["items"] = json!([]);
    }
    if let Some(items) = response.body["items"].as_array_mut() {
        items.retain(|item| item["metadata"]["labels"]["sequence"] == prefix);
    }
    response
}

async fn send(side: &Side, known: &Known, planned: &Planned) -> Response {
    let body = planned.body.as_ref().map(|body| known.fill(body, &planned.name));
    let path = planned.path.replace("$token", &known.token);
    side.send(planned.method, &path, planned.content_type, planned.accept, body.as_ref()).await
}

struct Plan<'a> {
    rng: Rng,
    kind: &'a Kind,
    namespace: &'a str,
    prefix: String,
    has_token: bool,
    /// Whether the sequence has generated a name. The order of several generated names would be random.
    has_generated: bool,
    /// Whether the cluster has a garbage collector, which would change objects during the sequence.
    has_collector: bool,
}

impl Plan<'_> {
    fn object(&self, name: &str, content: Value) -> Value {
        let text = content.to_string().replace("NAMESPACE", self.namespace);
        let mut object: Value = serde_json::from_str(&text).unwrap();
        object["apiVersion"] = self.kind.api_version.as_str().into();
        object["kind"] = self.kind.kind.as_str().into();
        object["metadata"] = json!({ "name": name, "labels": { "sequence": self.prefix } });
        object
    }

    /// Returns the creation of an object that marks the begin or the end of a sequence in the watch.
    fn marker(&self, name: &str, seed: u64) -> Planned {
        let name = format!("{}-{name}", self.prefix);
        let mut content = self.kind.content(&mut Rng::with_seed(seed), false);
        if let Some(content) = content.as_object_mut() {
            content.remove("status");
        }
        let mut object = self.object(&name, content);
        object["metadata"]["labels"]["a"] = "x".into();
        self.planned("marker", "POST", "", "application/json", Some(object), &name)
    }

    fn planned(
        &self,
        row: &str,
        method: &'static str,
        suffix: &str,
        content_type: &'static str,
        body: Option<Value>,
        name: &str,
    ) -> Planned {
        let path = format!("{}{suffix}", self.kind.path(self.namespace));
        Planned {
            row: row.to_owned(),
            method,
            path,
            content_type,
            accept: "",
            body,
            name: name.to_owned(),
            is_list: false,
        }
    }

    fn name(&mut self) -> String {
        format!("{}-{}", self.prefix, ["a", "b"][self.rng.usize(..2)])
    }

    fn manager(&mut self) -> &'static str {
        ["one", "two"][self.rng.usize(..2)]
    }

    fn next(&mut self) -> Planned {
        match self.rng.u8(0..100) {
            0..18 => self.create(),
            18..28 => self.read(),
            28..36 => self.update(),
            36..54 => self.merge(),
            54..62 => self.status(),
            62..74 => self.json(),
            74..90 => self.apply(),
            _ => self.delete(),
        }
    }

    fn create(&mut self) -> Planned {
        let name = self.name();
        let is_invalid = self.rng.u8(..100) < 20;
        let mut object = self.object(&name, self.kind.content(&mut self.rng.clone(), is_invalid));
        self.rng.u8(..);
        let (mut suffix, mut row) = ("?fieldManager=one".to_owned(), "create");
        match self.rng.u8(0..16) {
            0 | 1 => {
                suffix = "?dryRun=All&fieldManager=one".to_owned();
                row = "create, dry run";
            }
            2 if !self.has_generated => {
                self.has_generated = true;
                object["metadata"] = json!({ "generateName": "gen-", "labels": { "sequence": self.prefix } });
                row = "create, generateName";
            }
            3 => {
                object["metadata"]["namespace"] = "other".into();
                row = "create, other namespace in object";
            }
            4 => {
                let mut planned =
                    self.planned("create, missing namespace", "POST", "", "application/json", Some(object), &name);
                planned.path = self.kind.path("no-such-namespace");
                return planned;
            }
            5 => {
                object["metadata"]["finalizers"] = json!(["example.com/one"]);
                row = "create, finalizer";
            }
            6 => {
                suffix = "?fieldValidation=Strict".to_owned();
                row = "create, strict";
            }
            7 => {
                object["metadata"]["name"] = format!("Not_Valid_{}", self.prefix).into();
                row = "create, invalid name";
            }
            8 => {
                object["metadata"]["labels"] = json!({ "sequence": self.prefix, "a b": "c" });
                row = "create, invalid label";
            }
            9 if !self.has_collector => {
                object["metadata"]["ownerReferences"] = json!([{ "apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": if self.rng.bool() { "123" } else { "" } }]);
                row = "create, owner";
            }
            10 => {
                object["metadata"]["resourceVersion"] = "5".into();
                row = "create, resourceVersion";
            }
            11 => object["metadata"]["labels"]["a"] = "x".into(),
            _ => {}
        }
        self.planned(row, "POST", &suffix, "application/json", Some(object), &name)
    }

    fn read(&mut self) -> Planned {
        let name = self.name();
        let (suffix, accept, row, is_list) = match self.rng.u8(0..9) {
            0 => (format!("/{name}"), "", "get", false),
            1 => (format!("/{name}"), PARTIAL, "get, metadata", false),
            2 if ["Widget", "ConfigMap", "Secret"].contains(&self.kind.kind.as_str()) => {
                (format!("/{name}"), TABLE, "get, table", false)
            }
            3 => (format!("?labelSelector=sequence%3D{}", self.prefix), "", "list, labels", true),
            4 => (format!("?labelSelector=sequence%3D{},a", self.prefix), PARTIAL_LIST, "list, labels, metadata", true),
            5 => (format!("?labelSelector=sequence%3D{}&limit=1", self.prefix), "", "list, limit", true),
            6 if self.has_token => (
                format!("?labelSelector=sequence%3D{}&limit=1&continue=$token", self.prefix),
                "",
                "list, continue",
                true,
            ),
            7 => (format!("?fieldSelector=metadata.name%3D{name}"), "", "list, fields", true),
            8 => ("?fieldSelector=spec.unknown%3Dx".to_owned(), "", "list, unsupported field", true),
            _ => (
                format!("?labelSelector=sequence%3D{}&resourceVersion=0", self.prefix),
                PARTIAL_LIST,
                "list, metadata",
                false,
            ),
        };
        let mut planned = self.planned(row, "GET", &suffix, "", None, &name);
        if row == "list, metadata" {
            // The watch cache of the real server can be late.
            planned.path = planned.path.replace("&resourceVersion=0", "");
        }
        planned.accept = accept;
        planned.is_list = is_list;
        planned
    }

    fn update(&mut self) -> Planned {
        let name = self.name();
        let mut change = self.kind.content(&mut self.rng, false);
        change = serde_json::from_str(&change.to_string().replace("NAMESPACE", self.namespace)).unwrap();
        let row = match self.rng.u8(0..8) {
            0 => {
                change = json!({ "metadata": { "resourceVersion": "$stale" } });
                "update, stale version"
            }
            1 => {
                change["metadata"] = json!({ "resourceVersion": "" });
                "update, no version"
            }
            2 => {
                change["metadata"] = json!({ "uid": "other" });
                "update, other uid"
            }
            3 => {
                change = json!({});
                "update, no change"
            }
            4 => {
                change["metadata"] = json!({ "labels": { "a": "x" } });
                "update, labels"
            }
            5 => {
                change["metadata"] = json!({ "name": "other" });
                "update, other name"
            }
            _ => "update, version",
        };
        let body = json!({ "$object": change });
        self.planned(row, "PUT", &format!("/{name}?fieldManager=two"), "application/json", Some(body), &name)
    }

    fn merge(&mut self) -> Planned {
        let name = self.name();
        let manager = self.manager();
        let mut suffix = format!("/{name}?fieldManager={manager}");
        let is_invalid = self.rng.u8(..100) < 25;
        let (row, body) = match self.rng.u8(0..16) {
            0 => (
                "merge, labels",
                json!({ "metadata": { "labels": { "a": if self.rng.bool() { json!("x") } else { Value::Null } } } }),
            ),
            1 => ("merge, annotations, uid", json!({ "metadata": { "annotations": { "n": "1" }, "uid": "$uid" } })),
            2 => (
                "merge, annotations, other uid",
                json!({ "metadata": { "annotations": { "n": "2" }, "uid": "other" } }),
            ),
            3 => (
                "merge, version",
                json!({ "metadata": { "annotations": { "n": "3" }, "resourceVersion": "$version" } }),
            ),
            4 => (
                "merge, stale version",
                json!({ "metadata": { "annotations": { "n": "4" }, "resourceVersion": "$stale" } }),
            ),
            5 => (
                "merge, managed fields",
                json!({ "metadata": { "managedFields": "$fields", "resourceVersion": "$version" } }),
            ),
            6 => ("merge, finalizers", json!({ "metadata": { "finalizers": ["example.com/one", "example.com/two"] } })),
            7 => ("merge, no finalizers", json!({ "metadata": { "finalizers": null } })),
            8 => ("merge, nothing", json!({})),
            9 => {
                suffix.push_str("&dryRun=All");
                ("merge, dry run", self.kind.content(&mut self.rng, is_invalid))
            }
            10 => ("merge, no object", json!([1])),
            11 => {
                suffix.push_str("&fieldValidation=Strict");
                ("merge, strict", json!({ "metadata": { "annotations": { "n": "5" } }, "unknownField": 1 }))
            }
            12 => {
                suffix.push_str("&force=true");
                ("merge, force", json!({}))
            }
            _ => ("merge, content", self.kind.content(&mut self.rng, is_invalid)),
        };
        let body = serde_json::from_str(&body.to_string().replace("NAMESPACE", self.namespace)).unwrap();
        let mut planned = self.planned(row, "PATCH", &suffix, "application/merge-patch+json", Some(body), &name);
        if self.rng.u8(..4) == 0 {
            planned.accept = PARTIAL;
            planned.row.push_str(", metadata");
        }
        planned
    }

    fn status(&mut self) -> Planned {
        let name = self.name();
        let mut body = json!({ "status": self.kind.status(&mut self.rng) });
        let row = match self.rng.u8(0..6) {
            0 => {
                body["metadata"] = json!({ "resourceVersion": "$version" });
                "merge status, version"
            }
            1 => {
                body["metadata"] = json!({ "resourceVersion": "$stale" });
                "merge status, stale version"
            }
            2 => {
                body["metadata"] = json!({ "labels": { "ignored": "x" } });
                body["spec"] = self.kind.content(&mut self.rng, false)["spec"].clone();
                "merge status, other fields"
            }
            3 => {
                body["metadata"] = json!({ "uid": if self.rng.bool() { "$uid" } else { "other" } });
                "merge status, uid"
            }
            4 => {
                body = json!({ "status": null });
                "merge status, none"
            }
            _ => "merge status",
        };
        if !self.kind.has_status && self.rng.bool() {
            return self.merge();
        }
        self.planned(
            row,
            "PATCH",
            &format!("/{name}/status?fieldManager=one"),
            "application/merge-patch+json",
            Some(body),
            &name,
        )
    }

    fn json(&mut self) -> Planned {
        let name = self.name();
        let finalizer = "example.com/one";
        let uid = |uid: &str| json!({ "op": "test", "path": "/metadata/uid", "value": uid });
        let (row, body) = match self.rng.u8(0..9) {
            0 | 1 => (
                "json, first finalizer",
                json!([uid("$uid"), { "op": "test", "path": "/metadata/finalizers", "value": null }, { "op": "add", "path": "/metadata/finalizers", "value": [finalizer] }]),
            ),
            2 => (
                "json, further finalizer",
                json!([{ "op": "test", "path": "/metadata/finalizers", "value": "$finalizers" }, { "op": "add", "path": "/metadata/finalizers/-", "value": "example.com/two" }]),
            ),
            3 | 4 => (
                "json, remove finalizer",
                json!([uid("$uid"), { "op": "test", "path": "/metadata/finalizers/0", "value": finalizer }, { "op": "remove", "path": "/metadata/finalizers/0" }]),
            ),
            5 => ("json, other uid", json!([uid("other"), { "op": "remove", "path": "/metadata/finalizers" }])),
            6 => ("json, impossible", json!([{ "op": "remove", "path": "/metadata/missing" }])),
            7 => ("json, malformed", json!({ "op": "add" })),
            _ => ("json, labels", json!([{ "op": "add", "path": "/metadata/labels/a", "value": "x" }])),
        };
        let mut planned = self.planned(
            row,
            "PATCH",
            &format!("/{name}?fieldManager=one"),
            "application/json-patch+json",
            Some(body),
            &name,
        );
        if self.rng.bool() {
            planned.accept = PARTIAL;
        }
        planned
    }

    fn apply(&mut self) -> Planned {
        let name = self.name();
        let manager = self.manager();
        let is_invalid = self.rng.u8(..100) < 15;
        let content = self.kind.content(&mut self.rng, is_invalid);
        let mut object = self.object(&name, content);
        if self.rng.u8(..4) == 0 {
            object["metadata"]["annotations"] = json!({ "n": if self.rng.bool() { "1" } else { "2" } });
        }
        let mut suffix = format!("/{name}?fieldManager={manager}");
        let mut row = "apply".to_owned();
        if self.rng.u8(..3) > 0 {
            suffix.push_str("&force=true");
            row.push_str(", force");
        }
        match self.rng.u8(0..16) {
            0 => {
                suffix.push_str("&dryRun=All&fieldValidation=Strict");
                row.push_str(", dry run, strict");
            }
            1 => {
                object["metadata"]["resourceVersion"] = "$version".into();
                row.push_str(", version");
            }
            2 => {
                object["metadata"]["resourceVersion"] = "$stale".into();
                row.push_str(", stale version");
            }
            3 => {
                object["metadata"]["uid"] = if self.rng.bool() { "$uid".into() } else { "other".into() };
                row.push_str(", uid");
            }
            4 => {
                object["metadata"]["managedFields"] = json!([]);
                row.push_str(", managed fields");
            }
            5 => {
                suffix = format!("/{name}?force=true");
                row = "apply, no manager".to_owned();
            }
            6 => {
                object["apiVersion"] = "example.com/v9".into();
                row.push_str(", other version");
            }
            7 => {
                object["metadata"]["finalizers"] = json!(["example.com/three"]);
                row.push_str(", finalizer");
            }
            8 => {
                object["metadata"]["name"] = "other".into();
                row.push_str(", other name");
            }
            9 => {
                object["unknownField"] = 1.into();
                row.push_str(", unknown field");
            }
            _ => {}
        }
        self.planned(&row, "PATCH", &suffix, "application/apply-patch+yaml", Some(object), &name)
    }

    fn delete(&mut self) -> Planned {
        let name = self.name();
        let (row, body) = match self.rng.u8(0..11) {
            0 => ("delete, uid", json!({ "preconditions": { "uid": "$uid" }, "propagationPolicy": "Background" })),
            1 => ("delete, other uid", json!({ "preconditions": { "uid": "other" } })),
            2 => (
                "delete, uid and version",
                json!({ "preconditions": { "uid": "$uid", "resourceVersion": "$version" }, "gracePeriodSeconds": 0 }),
            ),
            3 => ("delete, stale version", json!({ "preconditions": { "resourceVersion": "$stale" } })),
            4 => ("delete, grace period", json!({ "gracePeriodSeconds": 5, "preconditions": { "uid": "$uid" } })),
            5 if !self.has_collector => ("delete, foreground", json!({ "propagationPolicy": "Foreground" })),
            6 if !self.has_collector => ("delete, orphan", json!({ "propagationPolicy": "Orphan" })),
            7 => ("delete, dry run", json!({ "dryRun": ["All"] })),
            8 => ("delete, invalid policy", json!({ "propagationPolicy": "Other" })),
            _ => ("delete, background", json!({ "propagationPolicy": "Background" })),
        };
        self.planned(row, "DELETE", &format!("/{name}"), "application/json", Some(body), &name)
    }
}

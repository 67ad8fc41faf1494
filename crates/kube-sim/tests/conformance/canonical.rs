//! Canonical form of responses: without identifiers and times that differ between two servers.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use crate::sides::Response;

/// Names for the identifiers of one server, in the order of their appearance.
#[derive(Default)]
pub struct Names {
    uids: HashMap<String, usize>,
    versions: HashMap<String, usize>,
    generated: HashMap<String, usize>,
}

fn index(map: &mut HashMap<String, usize>, key: &str) -> usize {
    let next = map.len();
    *map.entry(key.to_owned()).or_insert(next)
}

impl Names {
    /// Returns the parts of a response that two servers must have in common.
    pub fn response(&mut self, response: &Response) -> Value {
        let body = &response.body;
        if response.code >= 400 {
            let mut causes: Vec<String> = body["details"]["causes"]
                .as_array()
                .into_iter()
                .flatten()
                .map(|cause| {
                    format!("{} {}", cause["reason"].as_str().unwrap_or(""), cause["field"].as_str().unwrap_or(""))
                })
                .collect();
            causes.sort();
            let details = &body["details"];
            let name = details["name"].as_str().unwrap_or_default();
            let name = if name.starts_with("gen-") { "gen" } else { name };
            return json!({ "code": response.code, "reason": body["reason"], "name": name, "group": details["group"],
                "kind": details["kind"], "causes": causes });
        }
        let mut body = body.clone();
        if body["kind"].as_str().is_some_and(|kind| kind.ends_with("List")) {
            // Other clients change the revision of the real server.
            body["metadata"]["resourceVersion"] = Value::Null;
        }
        json!({ "code": response.code, "body": self.value(&body) })
    }

    /// Returns an object without identifiers and times.
    pub fn value(&mut self, value: &Value) -> Value {
        match value {
            Value::Object(map) => {
                if map.get("kind").and_then(Value::as_str) == Some("Table") {
                    return self.table(map);
                }
                // The namespace of the real server contains further objects, so its lists continue.
                let fields = map.iter().filter(|(key, _)| *key != "continue" && *key != "remainingItemCount");
                Value::Object(fields.map(|(key, value)| (key.clone(), self.field(key, value))).collect())
            }
            Value::Array(list) => Value::Array(list.iter().map(|item| self.value(item)).collect()),
            Value::Number(number) => {
                number.as_f64().filter(|n| n.fract() == 0.0).map_or_else(|| value.clone(), |n| json!(n))
            }
            other => other.clone(),
        }
    }

    fn table(&mut self, table: &Map<String, Value>) -> Value {
        let rows = table["rows"].as_array().into_iter().flatten();
        let is_age = |at: usize| table["columnDefinitions"][at]["name"] == "Age";
        let cells = |row: &Value| -> Vec<Value> {
            let cells = row["cells"].as_array().into_iter().flatten().enumerate();
            cells.filter(|(at, _)| !is_age(*at)).map(|(_, cell)| cell.clone()).collect()
        };
        let rows: Vec<Value> = rows.map(|row| json!([cells(row), self.value(&row["object"])])).collect();
        let columns = table["columnDefinitions"].as_array().into_iter().flatten();
        let columns: Vec<Value> = columns.map(|column| json!([column["name"], column["type"]])).collect();
        json!({ "columns": columns, "rows": rows })
    }

    fn field(&mut self, key: &str, value: &Value) -> Value {
        match (key, value) {
            ("uid", Value::String(uid)) => format!("uid-{}", index(&mut self.uids, uid)).into(),
            ("resourceVersion", Value::String(version)) if !version.is_empty() => {
                format!("version-{}", index(&mut self.versions, version)).into()
            }
            ("creationTimestamp" | "deletionTimestamp", Value::String(_)) => "<time>".into(),
            ("time", Value::String(_)) => Value::Null,
            ("clusterIP", Value::String(ip)) if ip != "None" && !ip.is_empty() => "<ip>".into(),
            ("clusterIPs", Value::Array(ips)) if ips.first().is_some_and(|ip| ip != "None") => json!(["<ip>"]),
            ("name", Value::String(name)) if name.starts_with("gen-") => {
                format!("gen-{}", index(&mut self.generated, name)).into()
            }
            ("managedFields", Value::Array(entries)) => {
                let mut entries: Vec<Value> = entries.iter().map(|entry| self.value(entry)).collect();
                entries.sort_by_key(|entry| {
                    format!(
                        "{} {} {} {}",
                        entry["operation"], entry["manager"], entry["apiVersion"], entry["subresource"]
                    )
                });
                entries.into()
            }
            (_, value) => self.value(value),
        }
    }
}

/// Returns the paths at which two values differ.
pub fn differences(path: &str, model: &Value, real: &Value, found: &mut Vec<String>) {
    match (model, real) {
        (Value::Object(one), Value::Object(other)) => {
            for (key, _) in one.iter().filter(|(key, value)| value.is_null() && !other.contains_key(*key)) {
                found.push(format!("    {path}/{key}: only the model has a null"));
            }
            for (key, _) in other.iter().filter(|(key, value)| value.is_null() && !one.contains_key(*key)) {
                found.push(format!("    {path}/{key}: only the real server has a null"));
            }
            let mut keys: Vec<&String> = one.keys().chain(other.keys()).collect();
            keys.sort();
            keys.dedup();
            for key in keys {
                let (one, other) = (one.get(key).unwrap_or(&Value::Null), other.get(key).unwrap_or(&Value::Null));
                differences(&format!("{path}/{key}"), one, other, found);
            }
        }
        (Value::Array(one), Value::Array(other)) if one.len() == other.len() => {
            for (index, (one, other)) in one.iter().zip(other).enumerate() {
                differences(&format!("{path}/{index}"), one, other, found);
            }
        }
        _ if model == real => {}
        _ => found.push(format!("    {path}: model {model}, real {real}")),
    }
}

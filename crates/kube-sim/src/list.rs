//! Lists, and the representations of objects: complete, only the metadata, or a table.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::metadata;
use crate::request::Call;
use crate::resources::{Column, Resource};
use crate::selectors::Selector;
use crate::state::{Core, to_version};
use crate::status::Status;
use crate::store::Store;

/// Representation of objects in a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Representation {
    Object,
    Metadata,
    Table,
}

impl Representation {
    /// Selects the representation from the header `Accept`.
    pub(crate) fn of(call: &Call) -> Self {
        let first = call.accept.split(',').next().unwrap_or_default();
        if first.contains("as=PartialObjectMetadata") {
            Representation::Metadata
        } else if first.contains("as=Table") {
            Representation::Table
        } else {
            Representation::Object
        }
    }
}

/// Returns an object in the representation that the request asks for.
pub(crate) fn render(call: &Call, resource: &Resource, object: &Value) -> Value {
    match Representation::of(call) {
        Representation::Object => object.clone(),
        Representation::Metadata => partial(object),
        Representation::Table => table(
            call,
            resource,
            std::iter::once(object),
            &json!({ "resourceVersion": metadata::text(object, "resourceVersion") }),
        ),
    }
}

/// Returns only the metadata of an object.
pub(crate) fn partial(object: &Value) -> Value {
    let metadata = object.get("metadata").cloned().unwrap_or_default();
    json!({ "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata })
}

fn table<'a>(call: &Call, resource: &Resource, objects: impl Iterator<Item = &'a Value>, metadata: &Value) -> Value {
    let name = Column {
        name: "Name".to_owned(),
        kind: "string".to_owned(),
        path: vec!["metadata".to_owned(), "name".to_owned()],
    };
    let columns: Vec<Column> = match resource.columns.get(&call.version) {
        Some(columns) => std::iter::once(name).chain(columns.iter().cloned()).collect(),
        None => vec![name],
    };
    // The table of a built-in kind has columns that Go code computes. Only those of data have an implementation.
    let has_data = matches!(resource.id.resource.as_str(), "configmaps" | "secrets");
    let cell = |object: &Value, column: &Column| {
        let value = column.path.iter().try_fold(object, |value, name| value.get(name));
        value.cloned().unwrap_or_default()
    };
    let rows = objects.map(|object| {
        let mut cells: Vec<Value> = columns.iter().map(|column| cell(object, column)).collect();
        if has_data {
            let count = |name: &str| object.get(name).and_then(Value::as_object).map_or(0, Map::len);
            if resource.id.resource == "secrets" {
                cells.push(object.get("type").cloned().unwrap_or_default());
            }
            cells.push((count("data") + count("binaryData")).into());
            cells.push("<unknown>".into());
        }
        json!({ "cells": cells, "object": partial(object) })
    });
    let rows: Vec<Value> = rows.collect();
    let definition = |column: &Column| json!({ "name": column.name, "type": column.kind, "format": "", "description": "", "priority": 0 });
    let mut definitions: Vec<Value> = columns.iter().map(definition).collect();
    if has_data {
        let extra: &[(&str, &str)] = match resource.id.resource.as_str() {
            "secrets" => &[("Type", "string"), ("Data", "string"), ("Age", "string")],
            _ => &[("Data", "string"), ("Age", "string")],
        };
        let extra = extra.iter().map(|(name, kind)| Column {
            name: (*name).to_owned(),
            kind: (*kind).to_owned(),
            path: Vec::new(),
        });
        definitions.extend(extra.map(|column| definition(&column)));
    }
    json!({ "kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": metadata, "columnDefinitions": definitions, "rows": rows })
}

/// Position in a list that a client reads in pages.
struct Position {
    revision: u64,
    after: String,
}

impl Position {
    fn encode(&self) -> String {
        let token = json!({ "v": "meta.k8s.io/v1", "rv": self.revision, "start": self.after });
        base64::Engine::encode(&base64::engine::general_purpose::URL_SAFE_NO_PAD, token.to_string())
    }

    fn decode(token: &str) -> Option<Self> {
        let text = base64::Engine::decode(&base64::engine::general_purpose::URL_SAFE_NO_PAD, token).ok()?;
        let token: Value = serde_json::from_slice(&text).ok()?;
        let after = token.get("start")?.as_str()?.to_owned();
        Some(Position { revision: token.get("rv")?.as_u64()?, after })
    }
}

/// Parses the selectors of a request.
pub(crate) fn selector(call: &Call, resource: &Resource) -> Result<Selector, Status> {
    Selector::parse(call.parameter("labelSelector"), call.parameter("fieldSelector"), &resource.selectable)
}

/// Answers a list request. `view` is the revision that the client sees, or `None` for the current one.
pub(crate) fn list(core: &Core, call: &Call, resource: &Resource, view: Option<u64>) -> Result<Value, Status> {
    let selector = selector(call, resource)?;
    let position = position(core, call, view)?;
    let limit = call.parameter("limit").parse::<usize>().ok().filter(|limit| *limit > 0);
    // With the resource version 0, the API server answers from its cache, and ignores the limit.
    let limit = limit.filter(|_| call.parameter("resourceVersion") != "0" || !call.parameter("continue").is_empty());
    let namespace = Some(call.namespace.as_str()).filter(|namespace| !namespace.is_empty());
    let all = core.store.list(&resource.id, namespace, position.revision, &position.after);
    let mut items: Vec<(&str, Arc<Value>)> = Vec::new();
    let mut remaining = 0_usize;
    for (key, object) in all {
        let object = to_version(resource, &object, &call.version);
        if !selector.matches(&object) {
            continue;
        }
        match limit {
            Some(limit) if items.len() >= limit => remaining += 1,
            _ => items.push((Store::path(key), object)),
        }
    }
    let mut metadata = json!({ "resourceVersion": position.revision.to_string() });
    if let (Some((last, _)), true, Value::Object(metadata)) = (items.last(), remaining > 0, &mut metadata) {
        let next = Position { revision: position.revision, after: (*last).to_owned() };
        metadata.insert("continue".to_owned(), next.encode().into());
        if selector.is_empty() {
            metadata.insert("remainingItemCount".to_owned(), remaining.into());
        }
    }
    if resource.is_custom
        && Representation::of(call) == Representation::Object
        && let Value::Object(metadata) = &mut metadata
    {
        metadata.entry("continue").or_insert_with(|| "".into());
    }
    let objects = items.iter().map(|(_, object)| &**object);
    Ok(match Representation::of(call) {
        Representation::Table => table(call, resource, objects, &metadata),
        Representation::Metadata => {
            let items: Vec<Value> = objects.map(partial).collect();
            // Go writes an empty list of this type as null.
            let items = if items.is_empty() { Value::Null } else { items.into() };
            json!({ "kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": metadata, "items": items })
        }
        Representation::Object => {
            let items: Vec<Value> = objects.map(|object| item(resource, object)).collect();
            json!({
                "kind": format!("{}List", resource.kind), "apiVersion": resource.api_version(&call.version),
                "metadata": metadata, "items": items,
            })
        }
    })
}

/// Items of lists of built-in kinds have neither a kind nor an API version.
fn item(resource: &Resource, object: &Value) -> Value {
    let mut item = object.clone();
    if let (false, Value::Object(item)) = (resource.is_custom, &mut item) {
        item.remove("kind");
        item.remove("apiVersion");
    }
    item
}

fn position(core: &Core, call: &Call, view: Option<u64>) -> Result<Position, Status> {
    let token = call.parameter("continue");
    if !token.is_empty() {
        let position =
            Position::decode(token).ok_or_else(|| Status::bad_request("continue key is not valid: invalid token"))?;
        if position.revision < core.store.compacted() {
            return Err(Status::expired(
                "The provided continue parameter is too old to display a consistent list result. You can start a new list without the continue parameter.",
            ));
        }
        return Ok(position);
    }
    let current = view.unwrap_or_else(|| core.store.revision());
    let requested = parse_version(call.parameter("resourceVersion"))?;
    if requested > current {
        return Err(too_large(requested, current));
    }
    if call.parameter("resourceVersionMatch") == "Exact" && requested > 0 {
        if requested < core.store.compacted() {
            return Err(Status::expired(&format!("The resourceVersion for the provided list is too old: {requested}")));
        }
        return Ok(Position { revision: requested, after: String::new() });
    }
    Ok(Position { revision: current, after: String::new() })
}

/// Parses a resource version. An empty text is zero.
pub(crate) fn parse_version(text: &str) -> Result<u64, Status> {
    match text {
        "" => Ok(0),
        text => text.parse().map_err(|_| Status::bad_request(&format!("invalid resource version {text:?}"))),
    }
}

/// Response to a request for a resource version in the future.
fn too_large(requested: u64, current: u64) -> Status {
    let message = format!("Too large resource version: {requested}, current: {current}");
    let cause = crate::status::Cause {
        reason: "ResourceVersionTooLarge".to_owned(),
        message: "Too large resource version".to_owned(),
        field: String::new(),
    };
    Status { retry_after: Some(1), ..Status::new(504, "Timeout", &message).with_causes(vec![cause]) }
}

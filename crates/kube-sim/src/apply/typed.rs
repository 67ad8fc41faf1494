//! Operations on values with a type, as in the Go library structured-merge-diff: the fields of a value, the difference of
//! two values, the merge of two values and the removal of fields.

use serde_json::{Map, Value};

use super::fieldset::{Element, FieldSet, field};
use crate::schema::{Kind, ListType, Schema};

/// Fields in which two values differ.
#[derive(Clone, Debug, Default)]
pub(crate) struct Comparison {
    pub(crate) removed: FieldSet,
    pub(crate) modified: FieldSet,
    pub(crate) added: FieldSet,
}

/// How an operation visits a value.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shape {
    Leaf,
    Map,
    List,
}

/// Schema of content without a schema: maps are merged, and lists are atomic.
fn shape(schema: Option<&Schema>, value: &Value) -> Shape {
    match (value, schema) {
        (Value::Object(_), Some(schema)) if schema.is_atomic_map => Shape::Leaf,
        (Value::Object(_), _) => Shape::Map,
        (Value::Array(_), Some(schema)) if schema.list != ListType::Atomic => Shape::List,
        _ => Shape::Leaf,
    }
}

fn child<'a>(schema: Option<&'a Schema>, name: &str) -> Option<&'a Schema> {
    schema.and_then(|schema| schema.field(name)).map(|schema| &**schema)
}

fn items(schema: Option<&Schema>) -> Option<&Schema> {
    schema.and_then(|schema| schema.items.as_deref())
}

/// Returns the path element of a list item, or `None` if it has no key.
fn element_of(schema: Option<&Schema>, item: &Value) -> Option<Element> {
    match &schema?.list {
        ListType::Set if item.is_object() || item.is_array() => None,
        ListType::Set => Some(format!("v:{item}")),
        ListType::Map(keys) => {
            let item = item.as_object()?;
            let mut values = Map::new();
            for key in keys {
                let default = || items(schema).and_then(|items| items.properties.get(key)?.default.clone());
                if let Some(value) = item.get(key).cloned().or_else(default) {
                    values.insert(key.clone(), value);
                }
            }
            (!values.is_empty()).then(|| format!("k:{}", Value::Object(values)))
        }
        ListType::Atomic => None,
    }
}

fn elements<'v>(schema: Option<&Schema>, list: Option<&'v Value>) -> Vec<(Element, &'v Value)> {
    let list = list.and_then(Value::as_array).into_iter().flatten();
    list.filter_map(|item| Some((element_of(schema, item)?, item))).collect()
}

/// Returns whether two values are equal. Integers and floating-point numbers are equal if their values are.
pub(crate) fn is_equal(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => one == other || one.as_f64() == other.as_f64(),
        (Value::Array(one), Value::Array(other)) => {
            one.len() == other.len() && one.iter().zip(other).all(|(one, other)| is_equal(one, other))
        }
        (Value::Object(one), Value::Object(other)) => {
            one.len() == other.len()
                && one.iter().all(|(key, value)| other.get(key).is_some_and(|other| is_equal(value, other)))
        }
        _ => one == other,
    }
}

/// Returns the fields of a value.
pub(crate) fn fields(schema: Option<&Schema>, value: &Value) -> FieldSet {
    let mut set = FieldSet::default();
    collect(schema, value, &mut Vec::new(), &mut set);
    set
}

fn collect(schema: Option<&Schema>, value: &Value, path: &mut Vec<Element>, set: &mut FieldSet) {
    match shape(schema, value) {
        Shape::Leaf => {
            // A null in place of a map or a granular list contains no fields.
            let is_granular = schema.is_some_and(|schema| match schema.kind {
                Some(Kind::Object) => !schema.is_atomic_map && !schema.is_untyped(),
                Some(Kind::Array) => schema.list != ListType::Atomic,
                _ => false,
            });
            if !(value.is_null() && is_granular) {
                set.insert(path);
            }
        }
        Shape::Map => {
            for (name, below) in value.as_object().into_iter().flatten() {
                path.push(field(name));
                collect(child(schema, name), below, path, set);
                let is_empty = below.is_null() || below.as_object().is_some_and(Map::is_empty);
                if is_empty || !schema.is_some_and(|schema| schema.properties.contains_key(name)) {
                    set.insert(path);
                }
                path.pop();
            }
        }
        Shape::List => {
            let all = elements(schema, Some(value));
            for (element, item) in &all {
                path.push(element.clone());
                if all.iter().filter(|(other, _)| other == element).count() == 1 {
                    collect(items(schema), item, path, set);
                }
                set.insert(path);
                path.pop();
            }
        }
    }
}

/// Compares two values of the same type.
pub(crate) fn compare(schema: Option<&Schema>, old: &Value, new: &Value) -> Comparison {
    let mut comparison = Comparison::default();
    compare_at(schema, Some(old), Some(new), &mut Vec::new(), &mut comparison);
    comparison
}

fn compare_at(
    schema: Option<&Schema>,
    old: Option<&Value>,
    new: Option<&Value>,
    path: &mut Vec<Element>,
    found: &mut Comparison,
) {
    let shape_of = |value: Option<&Value>| value.map(|value| shape(schema, value));
    let is_empty = |value: Option<&Value>| match value {
        None | Some(Value::Null) => true,
        Some(Value::Object(map)) => map.is_empty(),
        Some(Value::Array(list)) => list.is_empty(),
        Some(_) => false,
    };
    let shapes = (shape_of(old), shape_of(new));
    if let (Some(before), Some(after), (Some(one), Some(other))) = (old, new, shapes)
        && one != other
        && !before.is_null()
        && !after.is_null()
    {
        // A value of another type is a modification, and its fields are removed and added.
        found.modified.insert(path);
        if one == Shape::Map {
            compare_maps(schema, old, None, path, found);
        } else if other == Shape::Map {
            compare_maps(schema, None, new, path, found);
        }
        return;
    }
    let is_leaf = match shapes {
        (Some(Shape::Map) | None, Some(Shape::Map)) | (Some(Shape::Map), None) => is_empty(old) && is_empty(new),
        (Some(Shape::List) | None, Some(Shape::List)) | (Some(Shape::List), None) => is_empty(old) && is_empty(new),
        // A null accepts the shape of the other value.
        (Some(Shape::Leaf), Some(Shape::Map | Shape::List)) if old == Some(&Value::Null) => is_empty(new),
        (Some(Shape::Map | Shape::List), Some(Shape::Leaf)) if new == Some(&Value::Null) => is_empty(old),
        _ => true,
    };
    if is_leaf {
        match (old, new) {
            (None, Some(_)) => found.added.insert(path),
            (Some(_), None) => found.removed.insert(path),
            (Some(old), Some(new)) if !is_equal(old, new) => found.modified.insert(path),
            _ => {}
        }
        return;
    }
    if shapes.0 == Some(Shape::Map) || shapes.1 == Some(Shape::Map) {
        compare_maps(schema, old, new, path, found);
    } else {
        compare_lists(schema, old, new, path, found);
    }
    if old.is_none() {
        found.added.insert(path);
    } else if new.is_none() {
        found.removed.insert(path);
    }
}

fn compare_maps(
    schema: Option<&Schema>,
    old: Option<&Value>,
    new: Option<&Value>,
    path: &mut Vec<Element>,
    found: &mut Comparison,
) {
    let (old, new) = (old.and_then(Value::as_object), new.and_then(Value::as_object));
    let mut names: Vec<&String> = old.into_iter().chain(new).flat_map(Map::keys).collect();
    names.sort_unstable();
    names.dedup();
    for name in names {
        path.push(field(name));
        let (old, new) = (old.and_then(|old| old.get(name)), new.and_then(|new| new.get(name)));
        compare_at(child(schema, name), old, new, path, found);
        path.pop();
    }
}

fn compare_lists(
    schema: Option<&Schema>,
    old: Option<&Value>,
    new: Option<&Value>,
    path: &mut Vec<Element>,
    found: &mut Comparison,
) {
    let (old, new) = (elements(schema, old), elements(schema, new));
    let mut names: Vec<&Element> = old.iter().chain(&new).map(|(element, _)| element).collect();
    names.sort_unstable();
    names.dedup();
    for name in names {
        let (old, new) = (named(&old, name), named(&new, name));
        path.push(name.clone());
        match (old.len(), new.len()) {
            (0 | 1, 0 | 1) => compare_at(items(schema), old.first().copied(), new.first().copied(), path, found),
            (2.., 2..) => {
                if old != new {
                    found.modified.insert(path);
                }
            }
            (2.., _) => {
                if let Some(new) = new.first() {
                    compare_at(items(schema), None, Some(new), path, found);
                }
                found.removed.insert(path);
            }
            _ => {
                if let Some(old) = old.first() {
                    compare_at(items(schema), Some(old), None, path, found);
                }
                found.added.insert(path);
            }
        }
        path.pop();
    }
}

/// Returns the elements of a list with a name. Only an invalid list contains several.
fn named<'v>(list: &[(Element, &'v Value)], name: &str) -> Vec<&'v Value> {
    list.iter().filter(|(element, _)| element == name).map(|(_, value)| *value).collect()
}

/// Merges an applied value into a live value.
pub(crate) fn merge(schema: Option<&Schema>, live: Option<&Value>, applied: Option<&Value>) -> Option<Value> {
    let (Some(old), Some(new)) = (live, applied) else {
        return merge_one(schema, live, applied);
    };
    let is_empty = |value: &Value| match value {
        Value::Null => true,
        Value::Object(map) => map.is_empty(),
        Value::Array(list) => list.is_empty(),
        _ => false,
    };
    // A null accepts the shape of the other value.
    let shapes = match (shape(schema, old), shape(schema, new)) {
        (shape, Shape::Leaf) if new.is_null() => (shape, shape),
        (Shape::Leaf, shape) if old.is_null() => (shape, shape),
        shapes => shapes,
    };
    match shapes {
        _ if is_empty(old) && is_empty(new) => Some(new.clone()),
        (Shape::Map, Shape::Map) => merge_maps(schema, old, new),
        (Shape::List, Shape::List) => merge_lists(schema, Some(old), Some(new)),
        _ => Some(new.clone()),
    }
}

/// Merges a value that exists only on one side. The result contains no empty granular lists.
fn merge_one(schema: Option<&Schema>, live: Option<&Value>, applied: Option<&Value>) -> Option<Value> {
    let value = applied.or(live)?;
    match shape(schema, value) {
        Shape::Leaf => Some(value.clone()),
        Shape::Map => {
            let map = value.as_object()?;
            let below = map.iter().filter_map(|(name, value)| {
                let (live, applied) = if applied.is_some() { (None, Some(value)) } else { (Some(value), None) };
                Some((name.clone(), merge(child(schema, name), live, applied)?))
            });
            Some(Value::Object(below.collect()))
        }
        Shape::List => match value.as_array().is_some_and(Vec::is_empty) {
            true => Some(value.clone()),
            false => merge_lists(schema, live, applied),
        },
    }
}

fn merge_maps(schema: Option<&Schema>, old: &Value, new: &Value) -> Option<Value> {
    let empty = Map::new();
    let (old, new) = (old.as_object().unwrap_or(&empty), new.as_object().unwrap_or(&empty));
    let mut merged = Map::new();
    for name in old.keys().chain(new.keys().filter(|name| !old.contains_key(*name))) {
        if let Some(value) = merge(child(schema, name), old.get(name), new.get(name)) {
            merged.insert(name.clone(), value);
        }
    }
    (!merged.is_empty()).then_some(Value::Object(merged))
}

/// Merges two granular lists. The result has the order of the applied list, and keeps the other live items close to
/// their live neighbors.
fn merge_lists(schema: Option<&Schema>, live: Option<&Value>, applied: Option<&Value>) -> Option<Value> {
    let (left, right) = (elements(schema, live), elements(schema, applied));
    let find = |list: &[(Element, &Value)], name: &Element| -> Option<Value> {
        let mut found = list.iter().filter(|(element, _)| element == name).map(|(_, value)| (*value).clone());
        let first = found.next();
        if found.next().is_some() { Some(Value::Null) } else { first }
    };
    let mut shared = right.iter().map(|(name, _)| name).filter(|name| left.iter().any(|(other, _)| other == *name));
    let mut next_shared = shared.next();
    let (mut out, mut done): (Vec<Value>, Vec<&Element>) = (Vec::new(), Vec::new());
    let (mut l, mut r) = (0, 0);
    loop {
        let (at_left, at_right) = (left.get(l), right.get(r));
        match (at_left, at_right) {
            (None, None) => break,
            (Some((name, _)), Some((other, _))) if name == other => {
                done.push(name);
                out.extend(merge(items(schema), find(&left, name).as_ref(), find(&right, name).as_ref()));
                (l, r) = (l + 1, r + 1);
                next_shared = shared.next();
                continue;
            }
            (Some((name, _)), Some(_)) => {
                let is_shared = right.iter().any(|(other, _)| other == name);
                if is_shared && next_shared.is_some_and(|next| next != name) {
                    l += 1;
                    continue;
                }
            }
            _ => {}
        }
        if let Some((name, item)) = at_left {
            if !right.iter().any(|(other, _)| other == name) {
                out.extend(merge(items(schema), Some(item), None));
                l += 1;
                continue;
            } else if done.contains(&name) {
                l += 1;
            }
        }
        if let Some((name, _)) = at_right {
            done.push(name);
            out.extend(merge(items(schema), find(&left, name).as_ref(), find(&right, name).as_ref()));
            r += 1;
            if next_shared == Some(name) {
                next_shared = shared.next();
            }
        }
    }
    (!out.is_empty()).then_some(Value::Array(out))
}

/// Returns the value without the fields of a set. Returns null if nothing remains of a map or a list.
pub(crate) fn remove(schema: Option<&Schema>, value: &Value, set: &FieldSet) -> Value {
    match (shape(schema, value), value) {
        (Shape::Map, Value::Object(map)) => {
            let kept = map.iter().filter(|(name, _)| !set.members.contains(&field(name))).map(|(name, below)| {
                let below = match set.children.get(&field(name)) {
                    Some(removed) if !removed.is_empty() => remove(child(schema, name), below, removed),
                    _ => below.clone(),
                };
                (name.clone(), below)
            });
            let kept: Map<String, Value> = kept.collect();
            if kept.is_empty() { Value::Null } else { Value::Object(kept) }
        }
        (Shape::List, Value::Array(list)) => {
            let kept = list.iter().filter_map(|item| {
                let Some(element) = element_of(schema, item) else { return Some(item.clone()) };
                if set.members.contains(&element) {
                    return None;
                }
                Some(match set.children.get(&element) {
                    Some(removed) if !removed.is_empty() => remove(items(schema), item, removed),
                    _ => item.clone(),
                })
            });
            let kept: Vec<Value> = kept.collect();
            if kept.is_empty() { Value::Null } else { Value::Array(kept) }
        }
        // An atomic map or list below a removed field disappears as a whole.
        (Shape::Leaf, Value::Object(_) | Value::Array(_)) => Value::Null,
        _ => value.clone(),
    }
}

/// Checks an applied value against its type. Returns the problems with their paths.
pub(crate) fn validate(schema: Option<&Schema>, value: &Value) -> Vec<String> {
    let mut problems = Vec::new();
    validate_at(schema, value, "", &mut problems);
    problems
}

fn validate_at(schema: Option<&Schema>, value: &Value, path: &str, problems: &mut Vec<String>) {
    let Some(schema) = schema else { return };
    if value.is_null() {
        return;
    }
    let mismatch = |expected: &str| format!("{path}: expected {expected}, got &{{{value}}}");
    if schema.kind == Some(Kind::String) && schema.bounds.format() == Some("date-time") {
        // The Go type of a time is not a text, so server-side apply accepts any scalar.
        if value.is_object() || value.is_array() {
            problems.push(mismatch("any scalar"));
        }
        return;
    }
    match (schema.kind, value) {
        (Some(Kind::Object), Value::Object(map)) => {
            for (name, below) in map {
                let path = format!("{path}.{name}");
                match schema.field(name) {
                    Some(field) => validate_at(Some(field), below, &path, problems),
                    None if schema.preserves_unknown || schema.is_untyped() => {}
                    None => problems.push(format!("{path}: field not declared in schema")),
                }
            }
        }
        (Some(Kind::Object), _) => problems.push(mismatch("map")),
        (Some(Kind::Array), Value::Array(list)) => validate_list(schema, list, path, problems),
        (Some(Kind::Array), _) => problems.push(mismatch("list")),
        (Some(Kind::String), Value::String(_))
        | (Some(Kind::Integer | Kind::Number), Value::Number(_))
        | (Some(Kind::Boolean), Value::Bool(_))
        | (Some(Kind::IntOrString) | None, _) => {}
        (Some(Kind::String), _) => problems.push(mismatch("string")),
        (Some(Kind::Integer | Kind::Number), _) => problems.push(mismatch("numeric (int or float)")),
        (Some(Kind::Boolean), _) => problems.push(mismatch("boolean")),
    }
}

fn validate_list(schema: &Schema, list: &[Value], path: &str, problems: &mut Vec<String>) {
    let mut seen = Vec::new();
    for (index, item) in list.iter().enumerate() {
        let mut at = format!("{path}[{index}]");
        if schema.list != ListType::Atomic {
            let Some(element) = element_of(Some(schema), item) else {
                problems.push(format!(
                    "{path}: element {index}: associative list without keys has an element that's a map type"
                ));
                continue;
            };
            if seen.contains(&element) {
                problems.push(format!("{path}: duplicate entries for key {}", element.get(2..).unwrap_or_default()));
            }
            at = format!(
                "{path}{}",
                FieldSet { members: [element.clone()].into(), ..FieldSet::default() }.paths().concat()
            );
            seen.push(element);
        }
        validate_at(schema.items.as_deref(), item, &at, problems);
    }
}

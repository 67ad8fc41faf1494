//! Sets of fields, as in `metadata.managedFields[].fieldsV1`.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use crate::schema::{Kind, ListType, Schema};

/// Element of a path, in the notation of `fieldsV1`: `f:name` for a field, `k:{…}` for the keys of a list element, or
/// `v:…` for an element of a set.
pub(crate) type Element = String;

/// Set of paths. A path can be in the set although longer paths with the same beginning are too.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FieldSet {
    pub(crate) members: BTreeSet<Element>,
    pub(crate) children: BTreeMap<Element, FieldSet>,
}

impl FieldSet {
    /// Parses the content of `fieldsV1`. Returns `None` if it is invalid.
    pub(crate) fn parse(fields: &Value) -> Option<Self> {
        let mut set = FieldSet::default();
        for (element, below) in fields.as_object()? {
            if element == "." {
                continue;
            }
            let is_valid = ["f:", "k:", "v:", "i:"].iter().any(|prefix| element.starts_with(prefix));
            let below = below.as_object().filter(|_| is_valid)?;
            if below.is_empty() || below.contains_key(".") {
                set.members.insert(element.clone());
            }
            let child = FieldSet::parse(&Value::Object(below.clone()))?;
            if !child.is_empty() {
                set.children.insert(element.clone(), child);
            }
        }
        Some(set)
    }

    /// Returns the content of `fieldsV1`.
    pub(crate) fn to_fields(&self) -> Value {
        let mut fields = Map::new();
        for element in &self.members {
            fields.insert(element.clone(), Value::Object(Map::new()));
        }
        for (element, child) in &self.children {
            let mut below = child.to_fields();
            if self.members.contains(element)
                && let Value::Object(below) = &mut below
            {
                below.insert(".".to_owned(), Value::Object(Map::new()));
            }
            fields.insert(element.clone(), below);
        }
        Value::Object(fields)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.members.is_empty() && self.children.values().all(FieldSet::is_empty)
    }

    pub(crate) fn insert(&mut self, path: &[Element]) {
        match path {
            [] => {}
            [last] => {
                self.members.insert(last.clone());
            }
            [first, rest @ ..] => self.children.entry(first.clone()).or_default().insert(rest),
        }
    }

    pub(crate) fn of_paths(paths: &[&[&str]]) -> Self {
        let mut set = FieldSet::default();
        for path in paths {
            set.insert(&path.iter().map(|name| field(name)).collect::<Vec<_>>());
        }
        set
    }

    pub(crate) fn union(&self, other: &Self) -> Self {
        let mut set = self.clone();
        set.members.extend(other.members.iter().cloned());
        for (element, child) in &other.children {
            let merged = set.children.get(element).map_or_else(|| child.clone(), |ours| ours.union(child));
            set.children.insert(element.clone(), merged);
        }
        set
    }

    pub(crate) fn intersection(&self, other: &Self) -> Self {
        let both = self.children.iter().filter_map(|(element, child)| {
            let common = child.intersection(other.children.get(element)?);
            (!common.is_empty()).then(|| (element.clone(), common))
        });
        FieldSet { members: self.members.intersection(&other.members).cloned().collect(), children: both.collect() }
    }

    /// Returns the paths that are not in `other`.
    pub(crate) fn difference(&self, other: &Self) -> Self {
        let rest = self.children.iter().filter_map(|(element, child)| {
            let rest = other.children.get(element).map_or_else(|| child.clone(), |theirs| child.difference(theirs));
            (!rest.is_empty()).then(|| (element.clone(), rest))
        });
        FieldSet { members: self.members.difference(&other.members).cloned().collect(), children: rest.collect() }
    }

    /// Returns the paths that are not in `other` and have no beginning in `other`.
    pub(crate) fn recursive_difference(&self, other: &Self) -> Self {
        let rest = self.children.iter().filter(|(element, _)| !other.members.contains(*element)).filter_map(
            |(element, child)| {
                let theirs = other.children.get(element);
                let rest = theirs.map_or_else(|| child.clone(), |theirs| child.recursive_difference(theirs));
                (!rest.is_empty()).then(|| (element.clone(), rest))
            },
        );
        FieldSet { members: self.members.difference(&other.members).cloned().collect(), children: rest.collect() }
    }

    /// Adds the named fields that contain a member, because a value cannot exist without the fields that contain it.
    pub(crate) fn with_named_parents(&self, schema: Option<&Schema>) -> Self {
        let mut set = FieldSet { members: self.members.clone(), children: BTreeMap::new() };
        for (element, child) in &self.children {
            let mut below = None;
            if let Some(name) = element.strip_prefix("f:") {
                if let Some(named) = schema.and_then(|schema| schema.properties.get(name)) {
                    set.members.insert(element.clone());
                    below = Some(named);
                } else {
                    below = schema.and_then(|schema| schema.additional.as_ref());
                }
            } else if element.starts_with("k:") {
                below = schema.and_then(|schema| schema.items.as_ref());
            }
            set.children.insert(element.clone(), child.with_named_parents(below.map(|below| &**below)));
        }
        set
    }

    /// Returns all paths in the notation of messages, such as `.spec.ports[port=80,protocol="TCP"].name`.
    pub(crate) fn paths(&self) -> Vec<String> {
        let mut paths = Vec::new();
        self.collect("", &mut paths);
        paths
    }

    fn collect(&self, prefix: &str, paths: &mut Vec<String>) {
        for element in &self.members {
            paths.push(format!("{prefix}{}", readable(element)));
        }
        for (element, child) in &self.children {
            child.collect(&format!("{prefix}{}", readable(element)), paths);
        }
    }

    /// Changes the set after a list or map has become atomic or granular.
    pub(crate) fn reconciled_with(&self, schema: &Schema, value: &Value) -> Self {
        let mut set = FieldSet { members: self.members.clone(), children: BTreeMap::new() };
        for (element, child) in &self.children {
            let next = element.strip_prefix("f:").and_then(|name| {
                let schema = schema.field(name)?;
                Some((schema, value.get(name).unwrap_or(&Value::Null)))
            });
            let Some((below, value)) = next else {
                set.children.insert(element.clone(), child.clone());
                continue;
            };
            let is_atomic = match below.kind {
                Some(Kind::Object) => below.is_atomic_map,
                Some(Kind::Array) => below.list == ListType::Atomic,
                _ => false,
            };
            if is_atomic {
                set.members.insert(element.clone());
            } else {
                set.children.insert(element.clone(), child.reconciled_with(below, value));
            }
        }
        set
    }
}

/// Returns the element of a field.
pub(crate) fn field(name: &str) -> Element {
    format!("f:{name}")
}

fn readable(element: &str) -> String {
    if let Some(name) = element.strip_prefix("f:") {
        return format!(".{name}");
    }
    if let Some(value) = element.strip_prefix("v:") {
        return format!("[={value}]");
    }
    let keys: Value = serde_json::from_str(element.get(2..).unwrap_or_default()).unwrap_or_default();
    let keys = keys.as_object().into_iter().flatten().map(|(name, value)| format!("{name}={value}"));
    format!("[{}]", keys.collect::<Vec<_>>().join(","))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn set(fields: Value) -> FieldSet {
        FieldSet::parse(&fields).unwrap()
    }

    #[test]
    fn sets_have_the_notation_of_managed_fields() {
        let fields = json!({ "f:a": {}, "f:b": { ".": {}, "f:c": {} }, "f:d": { "k:{\"name\":\"x\"}": { ".": {}, "f:e": {} }, "v:1": {} } });
        assert_eq!(set(fields.clone()).to_fields(), fields);
        assert_eq!(set(fields).paths(), [".a", ".b", ".b.c", ".d[name=\"x\"]", ".d[=1]", ".d[name=\"x\"].e"]);
        for invalid in [json!([]), json!({ "a": {} }), json!({ "f:a": 1 })] {
            assert_eq!(FieldSet::parse(&invalid), None);
        }
    }

    #[test]
    fn set_operations() {
        let (one, other) = (
            set(json!({ "f:a": {}, "f:b": { "f:c": {}, "f:d": {} } })),
            set(json!({ "f:a": { "f:x": {} }, "f:b": { "f:c": {} } })),
        );
        assert_eq!(
            one.union(&other).to_fields(),
            json!({ "f:a": { ".": {}, "f:x": {} }, "f:b": { "f:c": {}, "f:d": {} } })
        );
        assert_eq!(one.intersection(&other).to_fields(), json!({ "f:b": { "f:c": {} } }));
        assert_eq!(one.difference(&other).to_fields(), json!({ "f:a": {}, "f:b": { "f:d": {} } }));
        assert_eq!(other.recursive_difference(&set(json!({ "f:a": {} }))).to_fields(), json!({ "f:b": { "f:c": {} } }));
    }
}

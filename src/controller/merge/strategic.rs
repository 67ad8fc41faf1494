//! Merges maps by field, lists of maps by merge key, and lists of scalars as sets. Orders merged lists as Kubernetes
//! does.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt;

use serde_json::{Map, Value};

use super::keys::{KeyTable, PLAIN, Rule};

const PATCH: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const SET_ELEMENT_ORDER: &str = "$setElementOrder/";
const DELETE_FROM_PRIMITIVE_LIST: &str = "$deleteFromPrimitiveList/";

static PLAIN_MAP: Rule = Rule::Map(&PLAIN);

/// Merge error that contains the path of the invalid value in the patch.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum MergeError {
    #[error("{path} must be an object")]
    NotAnObject { path: String },

    #[error("{path} must be a list")]
    NotAList { path: String },

    #[error("{path} must have the merge key `{key}`")]
    MissingKey { path: String, key: &'static str },

    #[error("invalid {path}.$patch {found}: must be `replace`, `delete` or `merge`")]
    UnknownDirective { path: String, found: String },

    #[error("{path}.{field} is set but not listed in $retainKeys")]
    NotRetained { path: String, field: String },
}

/// Value of the `$patch` directive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Directive {
    Merge,
    Replace,
    Delete,
}

/// Path of a value in the patch, for error messages. Only an error message contains the text of the path, because a
/// path can be long, and building the text for each value could occupy a CPU for seconds.
#[derive(Clone, Copy, Debug)]
enum Path<'a> {
    Root,
    Field(&'a Path<'a>, &'a str),
    Item(&'a Path<'a>, usize),
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Path::Root => formatter.write_str("the template"),
            Path::Field(Path::Root, name) => formatter.write_str(name),
            Path::Field(parent, name) => write!(formatter, "{parent}.{name}"),
            Path::Item(parent, index) => write!(formatter, "{parent}[{index}]"),
        }
    }
}

/// Returns the `$patch` directive of a map, or `merge` if the map does not contain the directive.
fn directive(patch: &Map<String, Value>, path: &Path<'_>) -> Result<Directive, MergeError> {
    match patch.get(PATCH).map(|value| (value, value.as_str())) {
        None | Some((_, Some("merge"))) => Ok(Directive::Merge),
        Some((_, Some("replace"))) => Ok(Directive::Replace),
        Some((_, Some("delete"))) => Ok(Directive::Delete),
        Some((found, _)) => Err(MergeError::UnknownDirective { path: path.to_string(), found: found.to_string() }),
    }
}

/// Merges `patch` into `base`. A null value deletes the field. Maps are merged. Lists are either replaced or merged
/// by the merge keys that `keys` defines. Supports the directives `$patch`, `$retainKeys`, `$setElementOrder/…` and
/// `$deleteFromPrimitiveList/…`.
pub fn merge(base: Value, patch: &Value, keys: &'static KeyTable) -> Result<Value, MergeError> {
    merge_value(Some(base), patch, &Rule::Map(keys), &Path::Root)
}

/// Merges a value into the existing value. Replaces an existing value of a different type, as Kubernetes does.
fn merge_value(base: Option<Value>, patch: &Value, rule: &Rule, path: &Path<'_>) -> Result<Value, MergeError> {
    match (rule, patch) {
        (Rule::Map(keys), Value::Object(patch)) => {
            let base = match base {
                Some(Value::Object(base)) => base,
                _ => Map::new(),
            };
            merge_map(base, patch, keys, path).map(Value::Object)
        }
        (Rule::List { key, items }, Value::Array(patch)) => match base {
            Some(Value::Array(base)) => merge_by_key(base, patch, key, items, path).map(Value::Array),
            _ => take_by_key(patch, key, items, path).map(Value::Array),
        },
        (Rule::Set, Value::Array(patch)) => match base {
            Some(Value::Array(base)) => Ok(Value::Array(merge_set(base, patch))),
            _ => Ok(Value::Array(patch.clone())),
        },
        (Rule::Map(_), _) => Err(MergeError::NotAnObject { path: path.to_string() }),
        (Rule::List { .. } | Rule::Set, _) => Err(MergeError::NotAList { path: path.to_string() }),
        (Rule::Whole, _) => Ok(patch.clone()),
    }
}

/// Merges `patch` into `base`, and applies the directives in `patch`.
fn merge_map(
    mut base: Map<String, Value>,
    patch: &Map<String, Value>,
    keys: &KeyTable,
    path: &Path<'_>,
) -> Result<Map<String, Value>, MergeError> {
    match directive(patch, path)? {
        Directive::Delete => return Ok(Map::new()),
        Directive::Replace => base = Map::new(),
        Directive::Merge => {}
    }
    retain_keys(&mut base, patch, path)?;
    delete_from_primitive_lists(&mut base, patch, path)?;
    for (field, value) in patch.iter().filter(|(field, _)| !field.starts_with('$')) {
        if value.is_null() {
            base.remove(field);
            continue;
        }
        let path = Path::Field(path, field);
        let merged = merge_value(base.remove(field), value, rule_for(keys, field, value), &path)?;
        base.insert(field.clone(), merged);
    }
    set_element_order(&mut base, patch, keys, path)?;
    Ok(base)
}

/// Returns the merge rule of a field. If the table contains no rule for the field, derives the rule from the type of
/// `value`.
fn rule_for(keys: &KeyTable, field: &str, value: &Value) -> &'static Rule {
    match keys.rule(field) {
        Some(rule) => rule,
        None if value.is_object() => &PLAIN_MAP,
        None => &Rule::Whole,
    }
}

/// Merges items whose merge keys have the same value. An item with `$patch: delete` removes all items with the same
/// key value from the base. If the patch contains an item with `$patch: replace`, the other patch items replace the
/// entire list, as in Kubernetes.
fn merge_by_key(
    mut base: Vec<Value>,
    patch: &[Value],
    key: &'static str,
    items: &KeyTable,
    path: &Path<'_>,
) -> Result<Vec<Value>, MergeError> {
    let patch_items = PatchItems::read(patch, key, path)?;
    if patch_items.replace {
        return take(&patch_items.merged, items);
    }
    base.retain(|item| !patch_items.deleted.contains(&item.get(key)));
    let order: Vec<Value> = base.clone();
    let mut places = positions(&order, Some(key));
    for (place, item) in &patch_items.merged {
        let position = *places.entry(item.get(key)).or_insert(base.len());
        match base.get_mut(position) {
            Some(slot) => {
                let there = match slot.take() {
                    Value::Object(there) => there,
                    _ => Map::new(),
                };
                *slot = Value::Object(merge_map(there, item, items, place)?);
            }
            None => base.push(Value::Object(merge_map(Map::new(), item, items, place)?)),
        }
    }
    let patched: Vec<Value> = patch_items.merged.iter().map(|(_, item)| Value::Object((*item).clone())).collect();
    Ok(in_order(base, &patched, &order, Some(key)))
}

/// Returns the patch items, with their directives applied, for a list that does not exist in the base. Does not merge
/// items whose merge keys have the same value, for example a TCP port and a UDP port with the same number.
fn take_by_key(
    patch: &[Value],
    key: &'static str,
    items: &KeyTable,
    path: &Path<'_>,
) -> Result<Vec<Value>, MergeError> {
    take(&PatchItems::read(patch, key, path)?.merged, items)
}

fn take(merged: &[(Path<'_>, &Map<String, Value>)], items: &KeyTable) -> Result<Vec<Value>, MergeError> {
    merged.iter().map(|(place, item)| merge_map(Map::new(), item, items, place).map(Value::Object)).collect()
}

/// Patch items, grouped by directive.
struct PatchItems<'a> {
    merged: Vec<(Path<'a>, &'a Map<String, Value>)>,
    deleted: HashSet<Option<&'a Value>>,
    replace: bool,
}

impl<'a> PatchItems<'a> {
    fn read(patch: &'a [Value], key: &'static str, path: &'a Path<'a>) -> Result<Self, MergeError> {
        let mut patch_items = Self { merged: Vec::new(), deleted: HashSet::new(), replace: false };
        for (index, item) in patch.iter().enumerate() {
            let place = Path::Item(path, index);
            let Value::Object(item) = item else {
                return Err(MergeError::NotAnObject { path: place.to_string() });
            };
            let requests = directive(item, &place)?;
            if requests == Directive::Replace {
                patch_items.replace = true;
                continue;
            }
            let value = item.get(key).filter(|value| !value.is_null());
            if value.is_none() {
                return Err(MergeError::MissingKey { path: place.to_string(), key });
            }
            match requests {
                Directive::Delete => {
                    patch_items.deleted.insert(value);
                }
                _ => patch_items.merged.push((place, item)),
            }
        }
        Ok(patch_items)
    }
}

/// Applies `$retainKeys`: removes all fields from the base that `$retainKeys` does not list, and rejects such fields
/// in the patch.
fn retain_keys(base: &mut Map<String, Value>, patch: &Map<String, Value>, path: &Path<'_>) -> Result<(), MergeError> {
    let Some(retained) = list_directive(patch, RETAIN_KEYS, path)? else {
        return Ok(());
    };
    let retained: HashSet<&str> = retained.iter().filter_map(Value::as_str).collect();
    let named = |field: &str| retained.contains(field);
    let stray = patch.iter().find(|(field, value)| !field.starts_with('$') && !value.is_null() && !named(field));
    if let Some((field, _)) = stray {
        return Err(MergeError::NotRetained { path: path.to_string(), field: field.clone() });
    }
    base.retain(|field, _| named(field));
    Ok(())
}

/// Applies `$deleteFromPrimitiveList/<field>`: removes the scalars that the directive lists from the base list.
fn delete_from_primitive_lists(
    base: &mut Map<String, Value>,
    patch: &Map<String, Value>,
    path: &Path<'_>,
) -> Result<(), MergeError> {
    for name in patch.keys() {
        let Some(field) = name.strip_prefix(DELETE_FROM_PRIMITIVE_LIST) else {
            continue;
        };
        let doomed: HashSet<&Value> = list_directive(patch, name, path)?.into_iter().flatten().collect();
        if let Some(Value::Array(items)) = base.get_mut(field) {
            items.retain(|item| !doomed.contains(item));
        }
    }
    Ok(())
}

/// Applies `$setElementOrder/<field>` to a merged list. A replaced list already has the order that the patch
/// specifies.
fn set_element_order(
    merged: &mut Map<String, Value>,
    patch: &Map<String, Value>,
    keys: &KeyTable,
    path: &Path<'_>,
) -> Result<(), MergeError> {
    for name in patch.keys() {
        let Some(field) = name.strip_prefix(SET_ELEMENT_ORDER) else {
            continue;
        };
        let order = list_directive(patch, name, path)?.map(Vec::as_slice).unwrap_or_default();
        let key = match keys.rule(field) {
            Some(Rule::List { key, .. }) => Some(*key),
            Some(Rule::Set) => None,
            _ => continue,
        };
        if let Some(Value::Array(items)) = merged.get_mut(field) {
            let current = items.clone();
            *items = in_order(std::mem::take(items), order, &current, key);
        }
    }
    Ok(())
}

fn list_directive<'a>(
    patch: &'a Map<String, Value>,
    name: &str,
    path: &Path<'_>,
) -> Result<Option<&'a Vec<Value>>, MergeError> {
    match patch.get(name) {
        None => Ok(None),
        Some(Value::Array(items)) => Ok(Some(items)),
        Some(_) => Err(MergeError::NotAList { path: Path::Field(path, name).to_string() }),
    }
}

/// Returns the union of two lists of scalars.
fn merge_set(base: Vec<Value>, patch: &[Value]) -> Vec<Value> {
    let mut seen = HashSet::new();
    let union = base.iter().chain(patch).filter(|item| seen.insert(*item)).cloned().collect();
    in_order(union, patch, &base, None)
}

/// Orders a merged list as Kubernetes does. Patch items keep the order of the patch, and all other items keep the
/// order of the base. An item that is missing from the patch precedes a patch item only if both items exist in the
/// base and have this order there. Items that exist only in the patch are therefore inserted as early as possible.
fn in_order(merged: Vec<Value>, patch: &[Value], base: &[Value], key: Option<&str>) -> Vec<Value> {
    let (in_patch, in_base) = (positions(patch, key), positions(base, key));
    let index = |of: &HashMap<_, usize>, item: &Value| of.get(&identity(item, key)).copied();
    let (mut patched, mut others): (Vec<Value>, Vec<Value>) =
        merged.into_iter().partition(|item| index(&in_patch, item).is_some());
    patched.sort_by_cached_key(|item| index(&in_patch, item));
    others.sort_by_cached_key(|item| index(&in_base, item));
    let mut patched = VecDeque::from(patched);
    let mut others = VecDeque::from(others);
    let mut ordered = Vec::with_capacity(patched.len() + others.len());
    while let (Some(other), Some(next)) = (others.front(), patched.front()) {
        let other_first = matches!((index(&in_base, other), index(&in_base, next)), (Some(a), Some(b)) if a < b);
        ordered.extend(if other_first { others.pop_front() } else { patched.pop_front() });
    }
    ordered.extend(others);
    ordered.extend(patched);
    ordered
}

/// Returns the index of each item as a map for fast lookups, because a list in a template can contain tens of
/// thousands of items.
fn positions<'a>(list: &'a [Value], key: Option<&str>) -> HashMap<Option<&'a Value>, usize> {
    // Inserts the items in reverse order, so that the first of several items with the same identity takes precedence.
    list.iter().enumerate().rev().map(|(index, item)| (identity(item, key), index)).collect()
}

fn identity<'a>(item: &'a Value, key: Option<&str>) -> Option<&'a Value> {
    match key {
        Some(key) => item.get(key),
        None => Some(item),
    }
}

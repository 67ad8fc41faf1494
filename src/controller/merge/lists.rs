//! Merging of lists by a key, of sets of scalars, and the order of what comes out.

use std::collections::{HashMap, HashSet, VecDeque};

use serde_json::{Map, Value};

use super::MergeError;
use super::keys::KeyTable;
use super::maps::{Directive, Path, directive, merge_map};

/// Merges items with the same key. An item with `$patch: delete` removes its like; one with `$patch: replace` makes
/// the other items of the patch the whole list, as in Kubernetes.
pub(super) fn merge_by_key(
    mut base: Vec<Value>,
    patch: &[Value],
    key: &'static str,
    items: &KeyTable,
    path: &Path,
) -> Result<Vec<Value>, MergeError> {
    let sorted = Sorted::read(patch, key, path)?;
    if sorted.replace {
        return take(&sorted.merged, items);
    }
    base.retain(|item| !sorted.deleted.contains(&item.get(key)));
    let order: Vec<Value> = base.clone();
    let mut places = positions(&order, Some(key));
    for (place, item) in &sorted.merged {
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
    let patched: Vec<Value> = sorted.merged.iter().map(|(_, item)| Value::Object((*item).clone())).collect();
    Ok(in_order(base, &patched, &order, Some(key)))
}

/// A patch where nothing was: its items, without directives. Items that share a key stay apart (two ports of one
/// number, one for TCP and one for UDP).
pub(super) fn take_by_key(
    patch: &[Value],
    key: &'static str,
    items: &KeyTable,
    path: &Path,
) -> Result<Vec<Value>, MergeError> {
    take(&Sorted::read(patch, key, path)?.merged, items)
}

fn take(merged: &[(Path, &Map<String, Value>)], items: &KeyTable) -> Result<Vec<Value>, MergeError> {
    merged.iter().map(|(place, item)| merge_map(Map::new(), item, items, place).map(Value::Object)).collect()
}

/// The items of a patch by what they ask for.
struct Sorted<'a> {
    merged: Vec<(Path, &'a Map<String, Value>)>,
    deleted: HashSet<Option<&'a Value>>,
    replace: bool,
}

impl<'a> Sorted<'a> {
    fn read(patch: &'a [Value], key: &'static str, path: &Path) -> Result<Self, MergeError> {
        let mut sorted = Self { merged: Vec::new(), deleted: HashSet::new(), replace: false };
        for (index, item) in patch.iter().enumerate() {
            let place = path.item(index);
            let Value::Object(item) = item else {
                return Err(MergeError::NotAnObject { path: place.to_string() });
            };
            let asked = directive(item, &place)?;
            if asked == Directive::Replace {
                sorted.replace = true;
                continue;
            }
            let value = item.get(key).filter(|value| !value.is_null());
            if value.is_none() {
                return Err(MergeError::MissingKey { path: place.to_string(), key });
            }
            match asked {
                Directive::Delete => {
                    sorted.deleted.insert(value);
                }
                _ => sorted.merged.push((place, item)),
            }
        }
        Ok(sorted)
    }
}

/// The union of two lists of scalars.
pub(super) fn merge_set(base: Vec<Value>, patch: &[Value]) -> Vec<Value> {
    let mut seen = HashSet::new();
    let union = base.iter().chain(patch).filter(|item| seen.insert(*item)).cloned().collect();
    in_order(union, patch, &base, None)
}

/// Puts a merged list in Kubernetes' order: items of the patch in the patch's order, the others in the base's order;
/// one of the others comes first only where the base had it before the patch's next item. So a new item of the patch
/// goes to the front.
pub(super) fn in_order(merged: Vec<Value>, patch: &[Value], base: &[Value], key: Option<&str>) -> Vec<Value> {
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

/// Where each item is in a list: a list of a template may have ten thousands.
fn positions<'a>(list: &'a [Value], key: Option<&str>) -> HashMap<Option<&'a Value>, usize> {
    // The first of those that share an identity is found.
    list.iter().enumerate().rev().map(|(index, item)| (identity(item, key), index)).collect()
}

fn identity<'a>(item: &'a Value, key: Option<&str>) -> Option<&'a Value> {
    match key {
        Some(key) => item.get(key),
        None => Some(item),
    }
}

//! Merging of scalar sets, and ordering of merged lists.

use std::collections::{HashMap, HashSet, VecDeque};

use serde_json::Value;

/// Returns the union of two lists of scalars.
pub(super) fn merge_set(base: Vec<Value>, patch: &[Value]) -> Vec<Value> {
    let mut seen = HashSet::new();
    let union = base.iter().chain(patch).filter(|item| seen.insert(*item)).cloned().collect();
    in_order(union, patch, &base, None)
}

/// Orders a merged list as Kubernetes does. Items of the patch keep the order of the patch, and the other items keep the
/// order of the base. One of the other items precedes the next patch item only if it precedes that item in the base, so new
/// items of the patch move to the front.
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

/// Returns the index of each item. A map, because a list in a template can have tens of thousands of items.
pub(super) fn positions<'a>(list: &'a [Value], key: Option<&str>) -> HashMap<Option<&'a Value>, usize> {
    // Reversed, so that the first of several items with the same identity wins.
    list.iter().enumerate().rev().map(|(index, item)| (identity(item, key), index)).collect()
}

fn identity<'a>(item: &'a Value, key: Option<&str>) -> Option<&'a Value> {
    match key {
        Some(key) => item.get(key),
        None => Some(item),
    }
}

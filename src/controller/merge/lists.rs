//! Merging of sets of scalars, and the order of a merged list.

use std::collections::{HashMap, HashSet, VecDeque};

use serde_json::Value;

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
pub(super) fn positions<'a>(list: &'a [Value], key: Option<&str>) -> HashMap<Option<&'a Value>, usize> {
    // The first of those that share an identity is found.
    list.iter().enumerate().rev().map(|(index, item)| (identity(item, key), index)).collect()
}

fn identity<'a>(item: &'a Value, key: Option<&str>) -> Option<&'a Value> {
    match key {
        Some(key) => item.get(key),
        None => Some(item),
    }
}

//! Slots that are in use or reserved.
//!
//! The queue grants slots only within the limits. However, a namespace can have more open runs, because the queue also
//! adopts runs that started elsewhere: before this process, or in another shard. A tenant can choose the shard of an
//! Update. The surplus runs of a namespace therefore take no slots from other namespaces: in total and on each node,
//! the runs of a namespace count as at most the number of slots that the queue could have granted to the namespace.

use std::cmp::{Ordering, Reverse};
use std::collections::HashMap;

use crate::runtime::fair_queue::run::{GroupKey, Limits, Run, Share};

/// Number of slots in use or reserved: in total, by namespace, by node and by concurrency group.
#[derive(Default)]
pub(super) struct Taken<'t> {
    /// Number of slots in total, without the surplus runs.
    pub(super) all: usize,
    by_namespace: HashMap<&'t str, NamespaceUse>,
    /// Number of slots on each node, without the surplus runs.
    by_node: HashMap<&'t str, usize>,
    by_both: HashMap<(&'t str, &'t str), usize>,
    by_group: HashMap<&'t GroupKey, GroupUse>,
    by_group_and_namespace: HashMap<(&'t GroupKey, &'t str), usize>,
}

/// Open runs of a namespace, in total or on one node.
#[derive(Clone, Copy, Default)]
struct NamespaceUse {
    open: usize,
    /// Maximum number of open runs: the highest maximum of the open runs, because an administrator can lower the
    /// maximum while the runs are open.
    limit: usize,
    /// Highest weight of the open runs.
    weight: usize,
}

/// Open runs of a concurrency group.
#[derive(Clone, Copy)]
struct GroupUse {
    open: usize,
    /// Lowest limit of the open runs.
    limit: usize,
}

/// Ratio of a namespace's slots to its weight. The namespace with the lowest ratio gets the next slot.
#[derive(Clone, Copy, Debug)]
pub(super) struct WeightedUse {
    pub(super) open: usize,
    pub(super) weight: usize,
}

impl Ord for WeightedUse {
    fn cmp(&self, other: &Self) -> Ordering {
        // Compares products of integers, because the quotients would have rounding errors.
        let (own, its) = (self.open.saturating_mul(other.weight), other.open.saturating_mul(self.weight));
        own.cmp(&its)
    }
}

impl PartialOrd for WeightedUse {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for WeightedUse {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for WeightedUse {}

impl<'t> Taken<'t> {
    /// Counts the slots that the given runs occupy.
    pub(super) fn of(runs: impl Iterator<Item = &'t Run>, limits: &Limits) -> Self {
        let mut taken = Taken::default();
        for run in runs {
            let (namespace, node) = (run.namespace.as_str(), run.node.as_str());
            let uses = taken.by_namespace.entry(namespace).or_default();
            uses.open += 1;
            uses.limit = uses.limit.max(limits.of_namespace(run.share));
            uses.weight = uses.weight.max(run.share.weight);
            *taken.by_both.entry((namespace, node)).or_default() += 1;
            if let Some(group) = &run.group {
                let uses = taken.by_group.entry(&group.key).or_insert(GroupUse { open: 0, limit: group.limit });
                uses.open += 1;
                uses.limit = uses.limit.min(group.limit);
                *taken.by_group_and_namespace.entry((&group.key, namespace)).or_default() += 1;
            }
        }
        taken.all = counted(limits.all, taken.by_namespace.values().copied().collect(), limits);
        let mut nodes: HashMap<&'t str, Vec<NamespaceUse>> = HashMap::new();
        for ((namespace, node), open) in &taken.by_both {
            let uses = taken.by_namespace.get(namespace).copied().unwrap_or_default();
            nodes.entry(*node).or_default().push(NamespaceUse { open: *open, ..uses });
        }
        let nodes = nodes.into_iter().map(|(node, uses)| (node, counted(limits.each_node, uses, limits)));
        taken.by_node = nodes.collect();
        taken
    }

    /// Returns the number of slots that a namespace uses, including the surplus runs.
    pub(super) fn in_namespace(&self, namespace: &str) -> usize {
        self.by_namespace.get(namespace).map(|uses| uses.open).unwrap_or_default()
    }

    pub(super) fn on_node(&self, node: &str) -> usize {
        self.by_node.get(node).copied().unwrap_or_default()
    }

    /// Returns the number of slots that a namespace uses on a node, including the surplus runs.
    pub(super) fn of_both(&self, namespace: &str, node: &str) -> usize {
        self.by_both.get(&(namespace, node)).copied().unwrap_or_default()
    }

    /// Returns the number of a group's slots that a namespace uses.
    pub(super) fn of_group_in(&self, group: &GroupKey, namespace: &str) -> usize {
        self.by_group_and_namespace.get(&(group, namespace)).copied().unwrap_or_default()
    }

    /// Returns the group's limit if the group has no free slot. `queued` is the lowest limit that the group's queued
    /// runs specify.
    pub(super) fn full_group(&self, group: &GroupKey, queued: Option<usize>) -> Option<usize> {
        let uses = self.by_group.get(group)?;
        let limit = queued.map_or(uses.limit, |queued| queued.min(uses.limit));
        (uses.open >= limit).then_some(limit)
    }

    /// Returns whether the namespace limit and the node limit permit another run. The caller must check the total limit
    /// and the group limit.
    pub(super) fn has_free_slot(&self, namespace: &str, node: &str, share: Share, limits: &Limits) -> bool {
        self.on_node(node) < limits.each_node
            && self.in_namespace(namespace) < limits.of_namespace(share)
            && !self.is_reserved(namespace, share, limits)
            && !self.is_reserved_on_node(namespace, node, share, limits)
    }

    /// Returns whether the namespace must leave the free slots to namespaces with a lower ratio of open runs to weight.
    pub(super) fn is_reserved(&self, namespace: &str, share: Share, limits: &Limits) -> bool {
        is_reserved(limits.all, self.all, self.in_namespace(namespace), share, limits)
    }

    /// Returns whether the namespace must leave the node's free slots to namespaces with a lower ratio of open runs on
    /// the node to weight.
    pub(super) fn is_reserved_on_node(&self, namespace: &str, node: &str, share: Share, limits: &Limits) -> bool {
        is_reserved(limits.each_node, self.on_node(node), self.of_both(namespace, node), share, limits)
    }
}

/// Returns whether a namespace that uses `own` slots must leave the free slots to other namespaces. A limit in a
/// namespace annotation does not disable the reservation, so that other namespaces do not lose their slots.
fn is_reserved(all: usize, taken: usize, own: usize, share: Share, limits: &Limits) -> bool {
    let free = all.saturating_sub(taken);
    reserves_slots(limits) && own > 0 && free.saturating_mul(share.weight) <= own
}

/// Returns `false` if the flags allow one namespace to use all slots.
fn reserves_slots(limits: &Limits) -> bool {
    limits.each_namespace < limits.all
}

/// Returns how many of `slots` slots the open runs of several namespaces take, without the surplus runs.
///
/// The function grants slots to one namespace after the other, as [`is_reserved`] permits, and starts with the
/// namespace that needs the most slots in relation to its weight. If the queue has granted the slots of all runs, this order
/// leaves enough slots for each namespace, regardless of the order in which the runs have started. There are then no
/// surplus runs.
fn counted(slots: usize, mut uses: Vec<NamespaceUse>, limits: &Limits) -> usize {
    for namespace in &mut uses {
        namespace.open = namespace.open.min(namespace.limit);
    }
    if !reserves_slots(limits) {
        return uses.iter().map(|namespace| namespace.open).sum();
    }
    // The queue grants the last slot of a namespace while the namespace has one slot less.
    let before_last =
        |NamespaceUse { open, weight, .. }: NamespaceUse| WeightedUse { open: open.saturating_sub(1), weight };
    uses.sort_by_key(|namespace| Reverse((before_last(*namespace), namespace.weight)));
    let free = uses
        .iter()
        .fold(slots, |free, namespace| free.saturating_sub(namespace.open.min(most_granted(free, namespace.weight))));
    slots - free
}

/// Returns the number of `free` slots that the queue grants to one namespace before [`is_reserved`] returns `true`.
fn most_granted(free: usize, weight: usize) -> usize {
    free.saturating_mul(weight).div_ceil(weight.saturating_add(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_use_of_slots_is_compared_in_relation_to_the_weight() {
        let uses = |open, weight| WeightedUse { open, weight };
        assert!(uses(0, 1) < uses(1, 100));
        assert!(uses(3, 2) < uses(2, 1) && uses(2, 1) < uses(5, 2));
        assert_eq!(uses(2, 1), uses(4, 2));
        assert_eq!(uses(0, 1), uses(0, 7), "a namespace without a slot has no advantage from its weight");
        assert!(uses(usize::MAX, 1) >= uses(1, 1), "no overflow");
    }
}

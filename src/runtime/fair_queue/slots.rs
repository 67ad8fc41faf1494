//! Limits and usage of run slots.

use std::collections::HashMap;

/// Maximum number of open runs, in total, in each namespace and on each node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    pub all: usize,
    pub each_namespace: usize,
    pub each_node: usize,
}

/// Number of slots that are in use or reserved.
#[derive(Default)]
pub(super) struct Taken<'t> {
    pub(super) all: usize,
    pub(super) by_namespace: HashMap<&'t str, usize>,
    pub(super) by_node: HashMap<&'t str, usize>,
    pub(super) by_both: HashMap<(&'t str, &'t str), usize>,
}

impl Taken<'_> {
    pub(super) fn in_namespace(&self, namespace: &str) -> usize {
        self.by_namespace.get(namespace).copied().unwrap_or_default()
    }

    pub(super) fn on_node(&self, node: &str) -> usize {
        self.by_node.get(node).copied().unwrap_or_default()
    }

    pub(super) fn of_both(&self, namespace: &str, node: &str) -> usize {
        self.by_both.get(&(namespace, node)).copied().unwrap_or_default()
    }

    /// Whether the namespace may open one more run on the node.
    pub(super) fn has_free_slot(&self, namespace: &str, node: &str, limits: &Limits) -> bool {
        self.on_node(node) < limits.each_node
            && self.in_namespace(namespace) < limits.each_namespace
            && !self.is_reserved(namespace, limits)
            && !self.is_reserved_on_node(namespace, node, limits)
    }

    /// Whether the last free slot is reserved for namespaces without a run.
    pub(super) fn is_reserved(&self, namespace: &str, limits: &Limits) -> bool {
        limits.each_namespace < limits.all && self.all + 1 == limits.all && self.in_namespace(namespace) > 0
    }

    /// Whether the last free slot of the node is reserved for namespaces without a run on it.
    pub(super) fn is_reserved_on_node(&self, namespace: &str, node: &str, limits: &Limits) -> bool {
        self.on_node(node) + 1 == limits.each_node && self.of_both(namespace, node) > 0
    }
}
